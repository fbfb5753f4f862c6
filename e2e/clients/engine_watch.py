"""The transfer engine of a vLLM server as the scenarios watch it: every call written down, every write held back.

    MOONCAKE_E2E_RECORD=NAME.calls  in the server's environment: a line of JSON a call, in the order of their ends
    MOONCAKE_E2E_HOLD=FILE          as long as FILE is there, a write waits before it begins, with FILE.held beside it

A call is written as it was made: {"at": seconds, "call": "get_rpc_port", "args": [], "returns": 15123}. What its
addresses and ports mean, recorded.py finds out from the calls of all servers together.
"""

import contextlib
import json
import os
import threading
import time
from pathlib import Path


def install():
    """Puts a watched class in the place of the engine's, once, if the environment asks for it."""
    record, hold = os.environ.get("MOONCAKE_E2E_RECORD"), os.environ.get("MOONCAKE_E2E_HOLD")
    if not record and not hold:
        return
    from mooncake import engine

    if not hasattr(engine.TransferEngine, "watched"):
        engine.TransferEngine = _watched(engine.TransferEngine, record, hold)


def _watched(original, record, hold):
    lock = threading.Lock()

    class TransferEngine(original):
        watched = True

        def __getattribute__(self, name):
            attribute = super().__getattribute__(name)
            if name.startswith("_") or not callable(attribute):
                return attribute

            def call(*args):
                if hold and "write" in name:
                    _wait_while_held(Path(hold))
                result = attribute(*args)
                line = {"at": time.time(), "call": name, "args": args, "returns": result}
                # Of the server's processes, only that which has an engine comes here.
                if record:
                    with lock, open(record, "a") as file:
                        file.write(json.dumps(line, separators=(",", ":")) + "\n")
                return result

            return call

    return TransferEngine


def _wait_while_held(hold):
    mark = hold.with_name(hold.name + ".held")
    while hold.exists():
        mark.touch()
        time.sleep(0.01)
    with contextlib.suppress(FileNotFoundError):
        mark.unlink()
