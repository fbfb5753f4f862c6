"""An engine in a process of its own, of this project or of Mooncake: one JSON line for each call and each answer.

Started with any interpreter that has ``mooncake.engine``; it imports nothing else that is not of Python itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import Future


class EngineProcess:
    """``peer.call("initialize", ...)`` calls the engine's method; ``peer.run(source)`` gives its ``result``."""

    def __init__(
        self,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        protocol: str = "tcp",
        device: str = "",
    ):
        self.protocol, self.device = protocol, device
        self.process = subprocess.Popen(
            [python, os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            text=True,
        )
        self._lock = threading.Lock()

    def run(self, source: str, **names):
        return self.start(source, **names).result(timeout=60)

    def start(self, source: str, **names) -> Future:
        """As ``run``, without waiting for it."""
        self.process.stdin.write(json.dumps([source, names]) + "\n")
        self.process.stdin.flush()
        answer: Future = Future()

        def read() -> None:
            with self._lock:
                line = self.process.stdout.readline()
            if not line:
                answer.set_exception(EOFError("the process has ended"))
                return
            result, error = json.loads(line)
            if error:
                answer.set_exception(AssertionError(error))
            else:
                answer.set_result(result)

        threading.Thread(target=read, daemon=True).start()
        return answer

    def call(self, method: str, *args, **kwargs):
        return self.run("result = getattr(engine, method)(*args, **kwargs)", method=method, args=args, kwargs=kwargs)

    def begin(self, metadata: str = "P2PHANDSHAKE", name: str = "127.0.0.1") -> str:
        """Initializes the engine; its name for peers."""
        assert self.call("initialize", name, metadata, self.protocol, self.device) == 0
        return f"127.0.0.1:{self.call('get_rpc_port')}" if metadata == "P2PHANDSHAKE" else name

    def buffer(self, size: int, fill: int = 0, register: bool = True) -> int:
        """Address of so many bytes there, registered or not."""
        addr = self.run("result = make_buffer(size, fill)", size=size, fill=fill)
        if register:
            assert self.call("register_memory", addr, size) == 0
        return addr

    def write(self, addr: int, seed: int, size: int) -> None:
        self.run("ctypes.memmove(addr, random.Random(seed).randbytes(size), size)", addr=addr, seed=seed, size=size)

    def holds(self, addr: int, seed: int, size: int) -> bool:
        source = "result = ctypes.string_at(addr, size) == random.Random(seed).randbytes(size)"
        return self.run(source, addr=addr, seed=seed, size=size)

    def holds_only(self, addr: int, byte: int, size: int) -> bool:
        return self.run(
            "result = ctypes.string_at(addr, size) == bytes([byte]) * size", addr=addr, byte=byte, size=size
        )

    def freeze(self) -> None:
        """Stops the process, and returns once none of its threads runs any more."""
        # Not known to the process itself, which runs this file alone.
        from pool import wait_stopped

        self.process.send_signal(signal.SIGSTOP)
        wait_stopped("the engine's process", self.process.pid)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


def serve() -> None:
    import ctypes
    import random

    # What the engine's own code prints goes elsewhere than the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from mooncake import engine as module

    kept = []

    def make_buffer(size: int, fill: int) -> int:
        kept.append((ctypes.c_ubyte * size).from_buffer(bytearray([fill]) * size))
        return ctypes.addressof(kept[-1])

    names = {
        "module": module,
        "engine": module.TransferEngine(),
        "ctypes": ctypes,
        "random": random,
        "os": os,
        "time": time,
        "threading": threading,
        "make_buffer": make_buffer,
    }
    for line in sys.stdin:
        source, given = json.loads(line)
        names.update(given, result=None)
        try:
            exec(source, names)
            answer = [names["result"], None]
        except BaseException:
            answer = [None, traceback.format_exc()]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
