"""vLLM in plain Python: one engine computes and saves, ends, and a second one loads."""

import json
import os
import subprocess

from recorded import recording, unknown_calls
from rig import E2E
from server import ENVIRONMENT

from pool import PoolError

PROMPT_TOKENS = 1_500
BLOCK_TOKENS = 32
# The last token is always computed, and only whole blocks are stored.
EXPECTED_HITS = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
ENGINE_LIMIT_S = 300


def run(rig):
    with rig.pool() as pool:
        first = generate(rig, pool, "first", environment=recording(pool.folder, "first"))
        stored = len(pool.keys() or ())
        second = generate(rig, pool, "second", environment=recording(pool.folder, "second"))
        unknown = unknown_calls(pool.folder, "vllm")
    yield "the first engine finds nothing and computes", first["cached"] == 0
    yield f"it stores its blocks in the pool ({stored} objects)", stored > 0
    yield f"the second engine loads {EXPECTED_HITS} tokens", second["cached"] == EXPECTED_HITS
    yield "both generate the same tokens", first["tokens"] == second["tokens"]
    yield f"every call of theirs is among the recorded ones {unknown}", not unknown


def generate(rig, pool, name, tokens=PROMPT_TOKENS, environment=None, options=()):
    """One engine from its start to its end; what it generated."""
    answer, log = pool.folder / f"{name}.json", pool.folder / f"{name}.log"
    command = [rig.python, E2E / "clients" / "vllm_engine.py", rig.model, tokens, 1, answer, *options]
    settings = {"MOONCAKE_CONFIG_PATH": str(rig.pool_json(pool)), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with log.open("wb") as output:
        done = subprocess.run(
            [str(part) for part in command],
            env={**os.environ, **ENVIRONMENT, **settings, **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=ENGINE_LIMIT_S,
            check=False,
        )
    if done.returncode != 0 or not answer.exists():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise PoolError(f"{name} ended with {done.returncode}:\n{tail}")
    return json.loads(answer.read_text())
