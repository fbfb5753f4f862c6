"""SGLang's HiCache store class with pages in host memory, with a killed master and node.

The SGLang server itself needs kernels that PyPI does not carry for processors; its store class needs none.
"""

import json

import environment
from conversation import Conversation
from recorded import recording, unknown_calls
from rig import E2E, until, without_master, without_node

PAGES = 8
MODES = ("mha", "mla", "groups", "standalone")


def run(rig):
    environment.add_sglang(rig.python)
    for mode in MODES:
        with (
            rig.pool() as pool,
            client(rig, pool, mode, "writer") as writer,
            client(rig, pool, mode, "reader") as reader,
        ):
            for what, good in checks(pool, writer, reader, faults=mode == "mha"):
                yield f"{mode}: {what}", good
            unknown = unknown_calls(pool.folder, f"sglang_{mode}")
            yield f"{mode}: every call is among the recorded ones {unknown}", not unknown


def client(rig, pool, mode, name):
    """SGLang's store: of a model with or without latent attention, with groups, or through the node of the host."""
    of_mode = settings(pool)
    if mode == "standalone":
        of_mode = {"local_hostname": "127.0.0.1", "standalone_storage": True}
        of_mode["client_server_address"] = pool.nodes[0].addr
    if mode == "groups":
        of_mode["enable_group_semantics"] = True
    return converse(rig, pool.folder, name, of_mode, "mla" if mode == "mla" else "mha")


def settings(pool):
    """SGLang's extra configuration of a store that lends no memory."""
    return {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
        "device_name": "",
        "master_server_address": pool.master.addr,
        "global_segment_size": 0,
    }


def converse(rig, folder, name, settings, kind="mha", variables=None):
    script = E2E / "clients" / "sglang_store.py"
    variables = {**(variables or {}), **recording(folder, name)}
    return Conversation(rig.python, script, [json.dumps(settings), kind], folder, name, variables)


def checks(pool, writer, reader, faults):
    right = ["right"] * PAGES
    yield "nothing is there at first", reader.exists(0, PAGES) == 0 and reader.get(0, PAGES) == ["missing"] * PAGES
    yield "all pages are set", writer.set(0, PAGES) == [True] * PAGES
    yield "setting them again is fine", writer.set(0, PAGES) == [True] * PAGES
    yield "another process finds the prefix", reader.exists(0, PAGES + 3) == PAGES
    yield "and gets it exactly", reader.get(0, PAGES) == right
    yield "a missing page among others is one", reader.get(PAGES - 2, 4) == ["right", "right", "missing", "missing"]
    if faults:
        with without_master(pool):
            found = reader.get(0, PAGES)
            yield f"the master is dead: right or missing, never wrong ({found[0]})", "wrong" not in found
        yield "it is back: every page is there", reader.get(0, PAGES) == right
        with without_node(pool):
            found = reader.get(0, PAGES)
            yield f"the storage node is dead: right or missing, never wrong ({found[0]})", "wrong" not in found
        until("its pages are forgotten", lambda: reader.exists(0, PAGES) == 0)
        yield "a new one is there: they are set again", writer.set(0, PAGES) == [True] * PAGES
        yield "and got", reader.get(0, PAGES) == right
    # What was looked up a moment ago is left by a `clear`, which is not forced.
    until("clear empties the pool", lambda: [writer.clear(), not pool.keys()][1])
    yield "clear empties the pool", True
