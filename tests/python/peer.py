"""A store object in a process of its own, called through pipes.

The parent sends ``(name, args, kwargs)``, the process answers ``(ok, value)``,
one after another, pickled. A few names are not the store's: ``arena`` gives
the process a registered buffer, ``fill`` and ``peek`` use it, ``run`` executes source.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path


class PeerGone(Exception):
    """The process ended before it answered."""


class Pending:
    """An answer that may still come."""

    def __init__(self, peer: Peer):
        self._peer, self._box = peer, queue.SimpleQueue()
        self._answer: tuple | None = None

    def result(self, timeout: float = 30.0):
        """The same however often it is asked for."""
        try:
            self._answer = self._answer or self._box.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"{self._peer.name}: no answer within {timeout} s") from None
        ok, value = self._answer
        if not ok:
            raise value
        return value

    @property
    def done(self) -> bool:
        return self._answer is not None or not self._box.empty()


class Peer:
    """The parent's side."""

    def __init__(self, name: str, log: Path, env: dict[str, str] | None, interpreter: list[str]):
        self.name, self.log = name, log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*interpreter, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env={**os.environ, **(env or {})},
            )
        self._waiting: queue.SimpleQueue[Pending] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        """What it wrote to stderr so far, its log among it."""
        return self.log.read_text(errors="replace")

    def start(self, name: str, *args, **kwargs) -> Pending:
        """Asks, and does not wait."""
        pending = Pending(self)
        self._waiting.put(pending)
        try:
            pickle.dump((name, args, kwargs), self.process.stdin)
            self.process.stdin.flush()
        except OSError:
            pending._box.put((False, PeerGone(self.name)))
        return pending

    def call(self, name: str, *args, timeout: float = 30.0, **kwargs):
        """What the store's method returned; its exception if it raised one."""
        return self.start(name, *args, **kwargs).result(timeout)

    def _read(self) -> None:
        while True:
            try:
                answer = pickle.load(self.process.stdout)
            except Exception:
                answer = None
            if answer is None:
                while not self._waiting.empty():
                    self._waiting.get()._box.put((False, PeerGone(self.name)))
                return
            self._waiting.get()._box.put(answer)

    def kill(self) -> None:
        """SIGKILL, and waits for its end."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP; returns when the kernel says that it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        # Not known to the process itself, which runs this file alone.
        from pool import wait_stopped

        wait_stopped(self.name, self.pid)

    def cont(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class _Served:
    """The process's side: the store, and a buffer for the zero-copy calls."""

    def __init__(self):
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        self.bytes = None

    def arena(self, size: int) -> int:
        """A registered buffer; its address."""
        import ctypes

        self.bytes = (ctypes.c_char * size)()
        code = self.store.register_buffer(ctypes.addressof(self.bytes), size)
        assert code == 0, code
        return ctypes.addressof(self.bytes)

    def fill(self, data: bytes, offset: int = 0) -> None:
        self.bytes[offset : offset + len(data)] = data

    def peek(self, size: int, offset: int = 0) -> bytes:
        return self.bytes[offset : offset + size]

    def run(self, source: str, **names):
        """Executes source with `store` in reach; the value of its `result`."""
        scope = {"store": self.store, "served": self, "result": None, **names}
        exec(source, scope)
        return scope["result"]

    def answer(self, name: str, args, kwargs):
        own = {"arena": self.arena, "fill": self.fill, "peek": self.peek, "run": self.run}
        value = (own.get(name) or getattr(self.store, name))(*args, **kwargs)
        if type(value).__name__ == "BufferHandle":
            return bytes(memoryview(value))
        return value


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    served = _Served()
    while True:
        try:
            name, args, kwargs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (True, served.answer(name, args, kwargs))
        except BaseException as e:
            traceback.print_exc()
            answer = (False, e)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
