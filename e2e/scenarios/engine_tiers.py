"""The engines' own switches for a disk: LMCache's `storage_root_dir`, SGLang's `enable_ssd_offload` and its path.

The engine's process lends the memory and keeps the tier. It is killed, and what it stored is read by another process
once the next one has the folder."""

import contextlib

import environment
from rig import until

from scenarios import lmcache_direct, sglang_direct

LENT = 64 << 20
OBJECTS = 24


def run(rig):
    yield from checks(rig, "lmcache", lmcache, "put")
    environment.add_sglang(rig.python)
    yield from checks(rig, "sglang", sglang, "set")


def lmcache(rig, pool, name, folder=None):
    config = {"global_segment_size": LENT, "storage_root_dir": str(folder)} if folder else {}
    return lmcache_direct.client(rig, pool, "false", name, config)


def sglang(rig, pool, name, folder=None):
    settings = sglang_direct.settings(pool)
    if folder:
        settings |= {"global_segment_size": LENT, "enable_ssd_offload": True, "ssd_offload_path": str(folder)}
    return sglang_direct.converse(rig, pool.folder, name, settings)


def checks(rig, engine, client, store):
    right = ["right"] * OBJECTS
    with rig.pool(nodes=0) as pool, contextlib.ExitStack() as clients:
        folder = pool.folder / "of-the-engine"
        writer = clients.enter_context(client(rig, pool, "writer", folder))
        until("its tier is mounted", lambda: pool.metric("mooncake_tiers_live") == 1)
        yield f"{engine}: a tier lies in the engine's folder", any(folder.rglob("mooncake-*/super"))
        # SGLang's store tries a put as it begins, so there must be memory.
        reader = clients.enter_context(client(rig, pool, "reader"))
        getattr(writer, store)(0, OBJECTS)
        keys = pool.keys()
        until("all is on the disk", lambda: pool.metric("file_cache_nums_") >= len(keys))
        yield f"{engine}: another process reads what it stored", reader.get(0, OBJECTS) == right
        writer.program.kill()
        until("its memory is forgotten", lambda: not pool.segments())
        yield f"{engine}: it is killed, and nothing wrong is read", "wrong" not in reader.get(0, OBJECTS)
        clients.enter_context(client(rig, pool, "next", folder))
        until("its tier is mounted again", lambda: pool.metric("mooncake_tiers_live") == 1)
        yield f"{engine}: its next process has all of it, from the disk", reader.get(0, OBJECTS) == right
        yield f"{engine}: no key was lost", set(pool.keys()) >= set(keys)
