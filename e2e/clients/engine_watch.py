"""The transfer engine of a vLLM server as the scenarios watch it: every call written down, every write held back.

    MOONCAKE_E2E_RECORD=NAME.calls  in the server's environment: a line of JSON a call, in the order of their ends
    MOONCAKE_E2E_HOLD=FILE          as long as FILE is there, a write waits before it begins, with FILE.held beside it;
                                    FILE.writing is there from its begin to its end

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
                with _held(Path(hold)) if hold and "write" in name else contextlib.nullcontext():
                    result = attribute(*args)
                line = {"at": time.time(), "call": name, "args": args, "returns": result}
                # Of the server's processes, only that which has an engine comes here.
                if record:
                    with lock, open(record, "a") as file:
                        file.write(json.dumps(line, separators=(",", ":")) + "\n")
                return result

            return call

    return TransferEngine


@contextlib.contextmanager
def _held(hold):
    """Around a write."""
    held, writing = (hold.with_name(f"{hold.name}.{mark}") for mark in ("held", "writing"))
    while hold.exists():
        held.touch()
        time.sleep(0.01)
    held.unlink(missing_ok=True)
    writing.touch()
    try:
        yield
    finally:
        writing.unlink(missing_ok=True)
