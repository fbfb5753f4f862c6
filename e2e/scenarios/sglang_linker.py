"""SGLang's direct linker: pools of several layers, offloaded whole and loaded layer by layer in get sessions, while a
reader consumes them and the storage node is killed in their midst."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import environment
from conversation import Conversation
from recorded import recording, unknown_calls
from rig import E2E, until, without_node

PAGES, LAYERS = 8, 4
RIGHT = [True, *["right"] * LAYERS]


def run(rig):
    environment.add_sglang(rig.python)
    with rig.pool() as pool, client(rig, pool, "writer") as writer, client(rig, pool, "reader") as reader:
        yield "nothing can be loaded at first", reader.lookup(0, PAGES) == []
        yield "all pages are offloaded", writer.offload(0, PAGES) is True
        yield "another process finds every prefix", reader.lookup(0, PAGES + 2) == list(range(1, PAGES + 1))
        yield "and loads it, each layer right when it is told", reader.load(0, PAGES, 0) == RIGHT
        yield "consumed slowly as well", reader.load(2, PAGES - 2, 200) == RIGHT
        yield "pages that are not there are a load that did not land", reader.load(PAGES - 2, 4, 0)[0] is False
        with ThreadPoolExecutor(1) as caller:
            loading = caller.submit(reader.load, 0, PAGES, 500)
            time.sleep(0.8)
            with without_node(pool):
                landed, *layers = loading.result()
                right = landed is False or layers == ["right"] * LAYERS
                yield f"the storage node dies in mid-session: landed and right, or not ({landed})", right
        until("its pages are forgotten", lambda: reader.lookup(0, PAGES) == [])
        yield "a new one is there: they are offloaded again", writer.offload(0, PAGES) is True
        yield "and loaded", reader.load(0, PAGES, 0) == RIGHT
        unknown = unknown_calls(pool.folder, "sglang_linker")
        yield f"every call is among the recorded ones {unknown}", not unknown


def client(rig, pool, name):
    settings = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp", "device_name": ""}
    settings |= {"master_server_address": pool.master.addr, "global_segment_size": 0}
    script = E2E / "clients" / "sglang_linker.py"
    return Conversation(rig.python, script, [json.dumps(settings)], pool.folder, name, recording(pool.folder, name))
