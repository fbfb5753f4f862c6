"""Time to first token of a long prompt: computed, and with its KV cache from elsewhere, in one run.

    python e2e/ttft.py [--repeats 5] [--tokens 4000] [--json FILE] [--only ROW ...]

vLLM on this machine's processor, with a random model whose prefill takes seconds. Each row has a server of its own:

    computed         vLLM alone
    ours             MooncakeStoreConnector, our master and storage node
    disk             the same, and the node is killed and started again before the second request: its disk alone has it
    rival            MooncakeStoreConnector, mooncake-transfer-engine-non-cuda: its client, master and storage node
    lmcache-ours     LMCacheConnectorV1 over mooncakestore://, our master and storage node
    lmcache-redis    LMCacheConnectorV1 over redis://, one Redis server without persistence

For each of the repeats a prompt of its own is asked for twice: once so that it is computed and stored, and, when it is
stored and vLLM has forgotten its own copy, once more, which is what is measured. A row counts only if the second
answer took the prompt from outside and begins with the same token. Prints medians, and all figures as JSON. A row
that cannot be had is skipped with the reason.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import environment
from environment import Unavailable
from rig import MOONCAKE, Rig, node_with_its_tier_alone, until
from run import newest_wheel
from scenarios import lmcache_vllm
from server import PYTHONPATH, prompt

from pool import HOST, PoolError, Program, free_port
from rival import MOONCAKE as PUBLISHED

ROOT = Path(__file__).resolve().parent.parent

# Hidden size, layers, heads, heads of the cache: 48 KiB of cache a token.
MODEL = (768, 8, 12, 12)
BLOCK_TOKENS = 32
POOL_BYTES = 2 << 30
ENOUGH = 0.95


def first_token(server, text):
    """Seconds until the first token of a streamed answer, and the token."""
    body = {"model": "tiny", "prompt": text, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}
    request = urllib.request.Request(
        f"http://{HOST}:{server.port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    begin = time.perf_counter()
    with urllib.request.urlopen(request, timeout=300) as reply:
        for line in reply:
            if line.startswith(b"data: {") and (tokens := json.loads(line[6:])["choices"][0].get("token_ids")):
                return time.perf_counter() - begin, tokens[0]
    raise PoolError("the server ended its answer without a token")


def measure(server, options, stored=None):
    """The figures of one row. `stored(n)` waits until n prompts are outside; without it nothing is loaded."""
    first_token(server, prompt(1, options.tokens // 4))  # The first request of a server takes longer.
    computed, loaded = [], []
    for number in range(options.repeats):
        text = prompt(1_000 + number, options.tokens)
        seconds, token = first_token(server, text)
        computed.append(seconds)
        if stored is None:
            server.forget()
            continue
        stored(number + 1)
        server.forget()
        before = server.hits()
        seconds, again = first_token(server, text)
        loaded.append(seconds)
        server.forget()
        if again != token or server.hits() - before < ENOUGH * options.tokens:
            raise PoolError(f"{server.hits() - before} tokens loaded, first token {again} instead of {token}")
    return {"computed_s": computed, "loaded_s": loaded}


def alone(rig, options):
    folder = rig.new_folder()
    # With a connector vLLM computes on all processors, without one it leaves one idle.
    with rig.server(folder, "computed", None, {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}) as server:
        return measure(server, options)


def store(rig, options, **how):
    """vLLM's own connector over a pool."""
    variables = how.pop("variables", {})
    with rig.pool(node_bytes=POOL_BYTES, env=variables, **how) as pool:
        settings = {"MOONCAKE_CONFIG_PATH": str(rig.pool_json(pool)), **variables}
        with rig.vllm(pool, "vllm", MOONCAKE, settings) as server:
            warm = options.tokens // 4 // BLOCK_TOKENS
            return measure(server, options, at_least(lambda: pool.keys() or (), warm, options.tokens // BLOCK_TOKENS))


def ours(rig, options):
    return store(rig, options)


def disk(rig, options):
    with rig.pool(node_bytes=POOL_BYTES, tier=True) as pool:
        settings = {"MOONCAKE_CONFIG_PATH": str(rig.pool_json(pool))}
        with rig.vllm(pool, "vllm", MOONCAKE, settings) as server:
            warm, each = options.tokens // 4 // BLOCK_TOKENS, options.tokens // BLOCK_TOKENS
            return measure(server, options, lambda count: node_with_its_tier_alone(pool, warm + count * each))


def rival(rig, options):
    folder = environment.overlay(rig.folder / "rival", rig.python, PUBLISHED.distribution)
    variables = {"PYTHONPATH": os.pathsep.join([str(folder), PYTHONPATH]), "MC_TCP_BIND_ADDRESS": HOST}
    return store(rig, options, programs=folder / "bin", variables=variables)


def lmcache_ours(rig, options):
    with rig.pool(node_bytes=POOL_BYTES) as pool:
        settings = lmcache_vllm.configuration(pool.master.addr, stored_metadata=False)
        return lmcache(rig, options, pool.folder, settings, lambda: pool.keys() or (), objects=1)


def lmcache_redis(rig, options):
    folder, port = rig.new_folder(), free_port()
    command = [redis_server(), "--bind", HOST, "--port", port, "--save", "", "--appendonly", "no", "--dir", folder]
    redis = Program("redis", command, folder / "redis.log", ends_with_parent=True).start()
    try:
        until("Redis answers", lambda: redis_keys(port) is not None)
        settings = lmcache_vllm.configuration("", stored_metadata=False).split("remote_url")[0]
        settings += (
            f'remote_url: "redis://{HOST}:{port}"\nremote_serde: "naive"\nlocal_cpu: False\nmax_local_cpu_size: 1\n'
        )
        # Each chunk has a key for its description and one for its bytes.
        return lmcache(rig, options, folder, settings, lambda: range(redis_keys(port)), objects=2)
    finally:
        redis.terminate(5)


def lmcache(rig, options, folder, settings, keys, objects):
    file = folder / "lmcache.yaml"
    file.write_text(settings)
    chunk = lmcache_vllm.CHUNK_TOKENS
    with rig.server(folder, "vllm", lmcache_vllm.TRANSFER, {"LMCACHE_CONFIG_FILE": str(file)}) as server:
        warm = options.tokens // 4 // chunk * objects
        return measure(server, options, at_least(keys, warm, options.tokens // chunk * objects))


def at_least(keys, warm, each):
    """What waits until n prompts' objects are there, beside those of the first request."""
    return lambda count: until(f"{count} prompts are stored", lambda: len(keys()) >= warm + count * each, 60)


def redis_server():
    if not shutil.which("redis-server") and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-q", "redis-server"], capture_output=True, check=False)
    return shutil.which("redis-server") or _no_redis()


def _no_redis():
    raise Unavailable("no redis-server: apt-get install redis-server")


def redis_keys(port):
    """How many keys Redis has; None while it does not answer."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=2) as connection:
        connection.sendall(b"DBSIZE\r\n")
        return int(connection.recv(64).strip(b":\r\n"))
    return None


ROWS = {
    "computed": alone,
    "ours": ours,
    "disk": disk,
    "rival": rival,
    "lmcache-ours": lmcache_ours,
    "lmcache-redis": lmcache_redis,
}


def table(results, options):
    print(f"\nTime to first token, {options.tokens} tokens, median of {options.repeats} (least to most), s\n")
    print("| KV cache | first token | of computing | computing and storing |")
    print("|---|---|---|---|")
    base = statistics.median(results["computed"]["computed_s"]) if "computed" in results else None
    for name, row in results.items():
        computing = _spread(row["computed_s"])
        if not row["loaded_s"]:
            print(f"| {name} | {computing} | | |")
            continue
        share = f"{100 * statistics.median(row['loaded_s']) / base:.0f} %" if base else ""
        print(f"| {name} | {_spread(row['loaded_s'])} | {share} | {computing} |")


def _spread(seconds):
    return f"{statistics.median(seconds):.3f} ({min(seconds):.3f}-{max(seconds):.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4_000)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--only", metavar="ROW", choices=ROWS, nargs="+", default=list(ROWS))
    parser.add_argument("--wheel", help="our wheel; the newest of dist/ when left out")
    parser.add_argument("--folder", type=Path, default=ROOT / "target" / "e2e")
    options = parser.parse_args()
    try:
        python = environment.prepare(options.folder / "venv", options.wheel or newest_wheel())
    except Unavailable as reason:
        print(f"SKIPPED: {reason}")
        return 0
    rig = Rig(python, options.folder, "ttft-" + "-".join(map(str, MODEL)), MODEL)
    results, failed = {}, False
    for name in options.only:
        begin = time.monotonic()
        try:
            results[name] = ROWS[name](rig, options)
            print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
        except Unavailable as reason:
            print(f"{name}: SKIPPED {reason}", flush=True)
        except (PoolError, OSError) as error:
            print(f"{name}: FAILED {error}", flush=True)
            failed = True
    if results:
        table(results, options)
    figures = json.dumps({"tokens": options.tokens, "model": MODEL, "rows": results})
    print("\n" + figures)
    if options.json:
        options.json.write_text(figures + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
