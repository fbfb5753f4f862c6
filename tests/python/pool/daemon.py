"""One process of the pool, and the signals that a test may send it."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def binary(python: str | None = None) -> str:
    """The native binary under test: MOONCAKE_BIN, or the one beside this interpreter; or that of another wheel's."""
    if python is not None:
        return str(Path(python).parent / "mooncake")
    return os.environ.get("MOONCAKE_BIN") or str(Path(sys.executable).parent / "mooncake")


# Below the ports that Linux gives to connections (32768 on, if nobody changed it), so that none is taken between the
# question and the daemon's start; each of the processes that run tests side by side counts through a slice of its own.
_PORTS_EACH = 1500
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
_first_port = 20_000 + _worker * _PORTS_EACH
_next_ports = (_first_port + n % _PORTS_EACH for n in itertools.count(os.getpid()))


def free_port() -> int:
    """A TCP port that was free a moment ago, and another one each time."""
    for port in itertools.islice(_next_ports, _PORTS_EACH):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"none of the {_PORTS_EACH} ports from {_first_port} on is free")


def wait_for(what: str, condition: Callable[[], object], timeout: float = 10.0, step: float = 0.01):
    """The first true value of ``condition``; a test failure that names ``what`` when there is none in time."""
    end = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout} s")
        time.sleep(step)


def wait_stopped(name: str, pid: int) -> None:
    """Returns when none of its threads runs any more: one takes the signal, the others stop a moment later."""

    def stands(task: Path) -> bool:
        try:
            return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
        except (FileNotFoundError, ProcessLookupError):
            return True

    tasks = Path(f"/proc/{pid}/task")
    wait_for(f"{name} stopped", lambda: all(stands(task) for task in tasks.iterdir()), 10, 0.001)


class Daemon:
    """A process that says one line when it is ready and then runs until it is told to end."""

    def __init__(self, name: str, command: list[str], log: Path, ready: str, env: dict[str, str] | None = None):
        self.name, self.command, self.log, self.ready = name, command, log, ready
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen | None = None

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

    def start(self, timeout: float = 15.0) -> None:
        """Starts it, again if need be, and waits for its ready line."""
        assert not self.alive, f"{self.name} is running"
        before = len(self.output())
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=self.env
            )

        def said() -> bool:
            text = self.output()[before:]
            assert self.alive, f"{self.name} ended with {self.process.returncode}:\n{text}"
            return self.ready in text

        try:
            wait_for(f"{self.name} ready", said, timeout)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{' '.join(self.command)}\n{self.output()[before:]}") from None

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
