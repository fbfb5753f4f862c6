"""LMCache's connector class with tensors in host memory, both ways of storing chunks, with a killed master and node."""

import json

from conversation import Conversation
from recorded import recording, unknown_calls
from rig import E2E, until, without_master, without_node

CHUNKS = 8
# What of it is recorded for the replay.
MODES = (("metadata stored", "true", "lmcache_metadata"), ("zero copy", "false", "lmcache_zero_copy"))


def run(rig):
    for mode, stored, recorded in MODES:
        with (
            rig.pool() as pool,
            client(rig, pool, stored, "writer") as writer,
            client(rig, pool, stored, "reader") as reader,
        ):
            for what, good in checks(pool, writer, reader):
                yield f"{mode}: {what}", good
            unknown = unknown_calls(pool.folder, recorded)
            yield f"{mode}: every call is among the recorded ones {unknown}", not unknown


def client(rig, pool, stored, name, config=None):
    """LMCache's connector; `config` is laid over its extra configuration."""
    script = E2E / "clients" / "lmcache_connector.py"
    variables = recording(pool.folder, name)
    return Conversation(
        rig.python, script, [pool.master.addr, stored, json.dumps(config or {})], pool.folder, name, variables
    )


def checks(pool, writer, reader):
    right = ["right"] * CHUNKS
    yield (
        "nothing is there before the first put",
        writer.exists(0) == [False, False] and reader.contains(0, CHUNKS) == 0,
    )
    yield "and a get of it gives nothing", reader.get(0, 1) == ["missing"]
    writer.put(0, CHUNKS)
    yield (
        "after batched_put the chunks exist, here and in another process",
        [writer.exists(0), reader.exists(7)] == [[True] * 2] * 2,
    )
    yield "batched_async_contains counts the prefix", reader.contains(0, CHUNKS + 3) == CHUNKS
    yield "batched_get is exact to the bit in both", writer.get(0, CHUNKS) == right and reader.get(0, CHUNKS) == right
    yield "a missing chunk between others is None", reader.get(CHUNKS - 1, 3) == ["right", "missing", "missing"]
    writer.put_one(50)
    yield "a single put is as good", reader.get(50, 1) == ["right"]
    yield "the look-up client finds three chunks of four", reader.lookup(1_000, 3) == 3 * 256

    with without_master(pool):
        found = reader.get(0, CHUNKS)
        yield f"the master is dead: right or missing, never wrong ({found[0]})", "wrong" not in found
        writer.put(100, 1)
    yield "it is back: every chunk is there", reader.get(0, CHUNKS) == right and reader.contains(0, CHUNKS) == CHUNKS

    with without_node(pool):
        found = reader.get(0, CHUNKS)
        yield f"the storage node is dead: right or missing, never wrong ({found[0]})", "wrong" not in found
    until("its chunks are forgotten", lambda: reader.contains(0, CHUNKS) == 0)
    writer.put(0, CHUNKS)
    yield "a new one is there: they are stored again", reader.get(0, CHUNKS) == right
    writer.close()
    reader.close()
    yield "both closed", True
