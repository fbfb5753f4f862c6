"""What a service manager does for a service that has descriptors held: systemd's part, for the programs of a test."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from pool.node import Node
from pool.program import Program

# Puts descriptors where a service looks for them, and becomes it: the numbers are for this very process.
_LAUNCHER = """
import fcntl, os, sys
passed = [int(number) for number in sys.argv[1].split(",") if number]
high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 200) for number in passed]
for number in passed:
    os.close(number)
for place, number in enumerate(high, 3):
    os.dup2(number, place, inheritable=True)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServiceManager:
    """A notification socket, and a store of descriptors by their names. `close` lets go of all."""

    def __init__(self, folder: Path):
        self.path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._lock = threading.Lock()
        self._held: list[tuple[str, int]] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def names(self) -> list[str]:
        """What it holds."""
        with self._lock:
            return sorted(name for name, _ in self._held)

    def descriptor(self, prefix: str) -> int:
        """The first one whose name begins so."""
        with self._lock:
            return next(number for name, number in self._held if name.startswith(prefix))

    def drop(self, prefix: str) -> None:
        """Lets go of all whose names begin so."""
        with self._lock:
            gone = [number for name, number in self._held if name.startswith(prefix)]
            self._held = [(name, number) for name, number in self._held if number not in gone]
        for number in gone:
            os.close(number)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)
        self.drop("")

    def launch(self, program: Program) -> None:
        """Starts a service with what is held for it; does not wait until it is ready."""
        with self._lock:
            held = list(self._held)
        numbers = [number for _, number in held]
        env = {
            **program.env,
            "NOTIFY_SOCKET": str(self.path),
            "LISTEN_FDS": str(len(held)),
            "LISTEN_FDNAMES": ":".join(name for name, _ in held),
        }
        passed = ",".join(str(number) for number in numbers)
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, passed, *program.command]
        with program.log.open("ab") as out:
            program.process = subprocess.Popen(
                command, env=env, stderr=out, stdout=out, stdin=subprocess.DEVNULL, pass_fds=numbers
            )

    def _listen(self) -> None:
        while True:
            try:
                message, numbers, _, _ = socket.recv_fds(self._socket, 4096, 8)
            except OSError:
                return
            if not message:
                return
            self._hear(dict(line.split("=", 1) for line in message.decode().splitlines()), numbers)

    def _hear(self, said: dict[str, str], numbers: list[int]) -> None:
        name = said.get("FDNAME", "stored")
        if said.get("FDSTOREREMOVE") == "1":
            with self._lock:
                gone = [number for other, number in self._held if other == name]
                self._held = [(other, number) for other, number in self._held if other != name]
            numbers = [*numbers, *gone]
        elif said.get("FDSTORE") == "1":
            with self._lock:
                self._held += [(name, number) for number in numbers]
            numbers = []
        # Of a barrier among others: closed, it tells the service that all before it was heard.
        for number in numbers:
            os.close(number)


class KeptNode(Node):
    """A storage node whose memory a service manager holds from one process to the next."""

    def __init__(
        self, name: str, folder: Path, master: str, size: int, manager: ServiceManager, flags=(), env=None, **more
    ):
        super().__init__(name, folder, master, size, ["--keep", *flags], env, **more)
        self.manager = manager

    def launch(self) -> KeptNode:
        assert not self.alive, f"{self.name} is running"
        self._said_before = len(self.output())
        self.manager.launch(self)
        return self
