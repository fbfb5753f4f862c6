"""Networks of their own for some processes of a test: behind a relay that can be cut, or two with a cable between them.

Processes in another network namespace do not meet the host's abstract Unix
sockets, so what they say to the master goes through the relay, all of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import threading
import time

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


# Bits a second of each of two networks that hosts have.
NETWORK_RATE = 400e6


class NoNamespaces(Exception):
    """This user may not make network namespaces."""


class Network:
    """A new network namespace with its loopback device up."""

    def __init__(self):
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        if _libc.unshare(_CLONE_NEWNET) != 0:
            os.close(self._home)
            raise NoNamespaces(os.strerror(ctypes.get_errno()))
        self._inner = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            with socket.socket() as any_socket:
                request = struct.pack("16sH14x", b"lo", 0)
                flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
                fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
        finally:
            self._enter(self._home)

    @staticmethod
    def _enter(descriptor: int) -> None:
        if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    @contextlib.contextmanager
    def inside(self):
        """Sockets and processes that this thread makes meanwhile belong to the network."""
        self._enter(self._inner)
        try:
            yield
        finally:
            self._enter(self._home)

    def ip(self, *arguments: str) -> None:
        """Runs ``ip`` here."""
        with self.inside():
            done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            raise NoNamespaces(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    @property
    def descriptor(self) -> int:
        return self._inner

    def close(self) -> None:
        os.close(self._inner)
        os.close(self._home)


class Hosts:
    """Two networks with a cable between them, as two hosts have: 10.77.0.1 and 10.77.0.2.

    With a second cable they have two cards each, in networks apart: 10.78.0.1 and 10.78.0.2.
    """

    ADDRESSES = ("10.77.0.1", "10.77.0.2")

    def __init__(self, cables: int = 1):
        if shutil.which("ip") is None:
            raise NoNamespaces("there is no `ip` (iproute2)")
        self.networks: list[Network] = []
        try:
            self.networks.append(Network())
            self.networks.append(Network())
            one, two = self.networks
            path = f"/proc/{os.getpid()}/fd/{two.descriptor}"
            for cable in range(cables):
                peer = ("peer", "name", self.card(1, cable), "netns", path)
                one.ip("link", "add", self.card(0, cable), "type", "veth", *peer)
                for number, network in enumerate(self.networks):
                    card = self.card(number, cable)
                    network.ip("address", "add", f"{self.address(number, cable)}/24", "dev", card)
                    network.ip("link", "set", card, "up")
        except BaseException:
            self.close()
            raise

    @staticmethod
    def card(host: int, cable: int = 0) -> str:
        return f"cable{host}" if cable == 0 else f"cable{host}n{cable}"

    @staticmethod
    def address(host: int, cable: int = 0) -> str:
        return f"10.{77 + cable}.0.{host + 1}"

    def unplug(self, host: int, cable: int = 0) -> None:
        """The cable is out at one end: both have no carrier."""
        self.networks[host].ip("link", "set", self.card(host, cable), "down")

    def plug(self, host: int, cable: int = 0) -> None:
        self.networks[host].ip("link", "set", self.card(host, cable), "up")

    def lose(self, host: int, cable: int = 0) -> None:
        """What one host sends is lost on the way, and nobody is told: it goes to a card that the other has not."""
        card, other = self.card(host, cable), self.address(1 - host, cable)
        where = (other, "lladdr", "02:00:00:00:00:01", "dev", card, "nud", "permanent")
        self.networks[host].ip("neighbour", "replace", *where)

    def find(self, host: int, cable: int = 0) -> None:
        other = self.address(1 - host, cable)
        self.networks[host].ip("neighbour", "delete", other, "dev", self.card(host, cable))

    def limit(self, host: int, rate: str, cable: int = 0) -> None:
        """What one host sends goes no faster than this."""
        with self.networks[host].inside():
            command = ["tc", "qdisc", "add", "dev", self.card(host, cable), "root", "tbf", "rate", rate]
            done = subprocess.run([*command, "burst", "256k", "latency", "50ms"], capture_output=True, text=True)
        if done.returncode != 0:
            raise NoNamespaces(f"tc: {done.stderr.strip()}")

    def close(self) -> None:
        for network in self.networks:
            network.close()


class Relay:
    """Accepts on a port of its own and passes bytes to an address; `cut` holds them back, as a dead link does.

    It listens in one network and leads to another, where they are given. What it
    reads it passes on after `delay` seconds, and no more than `rate` bytes a second of a connection.
    """

    def __init__(
        self, upstream: int, network: Network | None = None, port: int = 0, upstream_network: Network | None = None
    ):
        self._upstream = upstream
        self._upstream_network = upstream_network
        self.delay, self.rate = 0.0, float("inf")
        self._passed, self._trap = 0, None
        with network.inside() if network else contextlib.nullcontext():
            self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def once_passed(self, more: int, then) -> None:
        """Calls `then` when it has passed so many bytes more, of all connections."""
        self._trap = (self._passed + more, then)

    def hang_up(self) -> None:
        """Ends all connections; new ones are taken."""
        # A thread that is blocked in recv is woken by the shutdown, not by a close.
        ended, self._sockets = self._sockets, []
        for one in ended:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def lead_to(self, upstream: int) -> None:
        """Ends all connections; new ones lead to another port."""
        self._upstream = upstream
        self.hang_up()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                with self._upstream_network.inside() if self._upstream_network else contextlib.nullcontext():
                    far = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                return
            self._sockets += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                time.sleep(self.delay + len(data) / self.rate)
                self._open.wait()
                target.sendall(data)
                self._passed += len(data)
                if self._trap and self._passed >= self._trap[0]:
                    (_, then), self._trap = self._trap, None
                    then()
            self._open.wait()
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One side is gone: so is the connection.
            for one in (source, target):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._open.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
