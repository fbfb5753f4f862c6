"""The real vLLM uses the pool: one engine computes and saves, ends, and a second one loads.

    python e2e/run.py [--wheel dist/mooncake_rs-*.whl] [--folder target/e2e]

Installs the CPU build of vLLM and our wheel into an environment of its own
(about 3 GB of downloads, once), makes a tiny random model, and starts a
master and a storage node. Passes when the first engine finds nothing in the
pool, the second one loads every whole block of the prompt from it, and both
generate the same tokens, and when the tensor calls pass their tests with
vLLM's torch. Skips, with the reason and exit status 0, where vLLM
cannot be had.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import environment
from scenarios import tensors

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from demo.pool import Pool, PoolError  # noqa: E402

PROMPT_TOKENS = 1_500
BLOCK_TOKENS = 32
# The last token is always computed, and only whole blocks are stored.
EXPECTED_HITS = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
POOL_BYTES = 1 << 30
ENGINE_LIMIT_S = 300


def generate(python, model, pool, folder, name):
    """One engine from its start to its end; what it generated."""
    config, answer, log = folder / "pool.json", folder / f"{name}.json", folder / f"{name}.log"
    config.write_text(
        json.dumps(
            {
                "mode": "standalone-store",
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": pool.address,
                "protocol": "tcp",
                "device_name": "",
                "global_segment_size": 0,
                "local_buffer_size": "256MB",
            }
        )
    )
    settings = {
        "MOONCAKE_CONFIG_PATH": str(config),
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # Block hashes must agree between the engines.
        "PYTHONHASHSEED": "0",
    }
    command = [python, ROOT / "e2e" / "engine.py", model, PROMPT_TOKENS, 1, answer]
    with log.open("wb") as output:
        done = subprocess.run(
            [str(part) for part in command],
            env={**os.environ, **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=ENGINE_LIMIT_S,
            check=False,
        )
    if done.returncode != 0 or not answer.exists():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise PoolError(f"{name} ended with {done.returncode}:\n{tail}")
    return json.loads(answer.read_text())


def prove(python, folder):
    """Runs the two engines; returns what each check found."""
    model = folder / "tiny"
    if not (model / "config.json").exists():
        subprocess.run([str(python), str(ROOT / "e2e" / "tiny_model.py"), str(model)], check=True)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    pool = Pool(python.parent, work)
    try:
        pool.start_master()
        pool.start_node("node", POOL_BYTES)
        pool.wait_for_segments(1)
        first = generate(python, model, pool, work, "first-engine")
        print(f"first engine: {first['cached']} cached tokens, {first['seconds']} s", flush=True)
        stored = len(pool.keys() or ())
        second = generate(python, model, pool, work, "second-engine")
        print(f"second engine: {second['cached']} cached tokens, {second['seconds']} s", flush=True)
    finally:
        pool.stop()
    return [
        ("the first engine finds nothing and computes", first["cached"] == 0),
        (f"it stores its blocks in the pool ({stored} objects)", stored > 0),
        (f"the second engine loads {EXPECTED_HITS} tokens", second["cached"] == EXPECTED_HITS),
        ("both generate the same tokens", first["tokens"] == second["tokens"]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", help="our wheel; the newest of dist/ when left out")
    parser.add_argument("--folder", type=Path, default=ROOT / "target" / "e2e")
    options = parser.parse_args()
    wheels = sorted((ROOT / "dist").glob("mooncake_rs-*.whl"), key=lambda path: path.stat().st_mtime)
    wheel = options.wheel or (wheels[-1] if wheels else None)
    if wheel is None:
        sys.exit("no wheel in dist/: make wheel")
    try:
        python = environment.prepare(options.folder / "venv", wheel)
    except environment.Unavailable as reason:
        print(f"SKIPPED: {reason}")
        return 0
    try:
        checks = [*prove(python, options.folder), *tensors.run(argparse.Namespace(python=python))]
    except (PoolError, subprocess.SubprocessError) as error:
        print(f"FAILED: {error}")
        return 1
    for what, good in checks:
        print(("PASS " if good else "FAIL ") + what)
    return 0 if all(good for _, good in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
