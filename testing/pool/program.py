"""One process of the pool, and the signals that it may be sent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from pool.ports import accepts_connections
from pool.waiting import PoolError, wait_for, wait_stopped

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    """A child process with a log file, which can be started again.

    ``ready`` is the line that it says, or the port at which it listens, once it is ready. With ``ends_with_parent`` the
    kernel kills it with the thread that started it: for what runs until a user ends it. Tests end theirs themselves,
    since they start programs from threads, and fork with a store in their process.
    """

    def __init__(
        self,
        name: str,
        command: list,
        log: Path,
        ready: str | int | None = None,
        env: dict[str, str] | None = None,
        ends_with_parent: bool = False,
        **options,
    ):
        self.name, self.log, self.ready = name, Path(log), ready
        self.command = [str(part) for part in command]
        self.env = {**os.environ, **(env or {})}
        # Of `subprocess.Popen`. The log takes what no pipe takes.
        self.options = {"stdin": subprocess.DEVNULL, **options}
        if ends_with_parent:
            self.options["preexec_fn"] = _end_with_parent
        self.process: subprocess.Popen | None = None
        self._said_before = 0

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def output(self) -> str:
        """All that it has printed so far, over all of its lives."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def last_lines(self, count: int = 8) -> str:
        """The end of its output, for messages about its failure."""
        return "\n".join(f"    {line}" for line in self.output().splitlines()[-count:])

    def launch(self) -> Program:
        """Starts it, again if need be, and does not wait until it is ready."""
        assert not self.alive, f"{self.name} is running"
        self._said_before = len(self.output())
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, env=self.env, stderr=out, **{"stdout": out, **self.options})
        return self

    def start(self, timeout: float = 15.0, step: float = 0.01) -> Program:
        """Starts it, again if need be, and waits until it is ready."""
        self.launch()
        self.wait_ready(self._is_ready, timeout, step)
        return self

    def wait_ready(self, condition: Callable[[], object], timeout: float = 15.0, step: float = 0.01) -> None:
        """Waits until the condition is met; an error as soon as the process has ended."""

        def met() -> object:
            if not self.alive:
                raise PoolError(f"{self.name} ended with {self.process.returncode}")
            return condition()

        try:
            wait_for(f"{self.name} ready", met, timeout, step)
        except PoolError as e:
            raise PoolError(f"{e}\n{' '.join(self.command)}\n{self.last_lines(40)}") from None

    def _is_ready(self) -> bool:
        if isinstance(self.ready, str):
            return self.ready in self.output()[self._said_before :]
        return self.ready is None or accepts_connections(self.ready)

    def signal(self, number: int) -> None:
        if self.alive:
            self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and waits for its end."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def stop(self) -> None:
        """SIGSTOP: frozen until `cont`. Returns when the kernel says that it is stopped."""
        self.signal(signal.SIGSTOP)
        wait_stopped(self.name, self.pid)

    def cont(self) -> None:
        self.signal(signal.SIGCONT)

    def rss(self) -> int:
        """Resident bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    def terminate(self, timeout: float = 10.0) -> int:
        """SIGTERM; its exit status. Killed when it does not end in time."""
        if self.process is None:
            return 0
        self.cont()
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode
