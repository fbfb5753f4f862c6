"""Ports of the loopback address."""

from __future__ import annotations

import itertools
import os
import socket

HOST = "127.0.0.1"

# Below the ports that Linux gives to connections (32768 on, if nobody changed it), so that none is taken between the
# question and the program's start; each of the processes that run tests side by side counts through a slice of its own.
_PORTS_EACH = 1500
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
_first_port = 20_000 + _worker * _PORTS_EACH
_next_ports = (_first_port + n % _PORTS_EACH for n in itertools.count(os.getpid()))


def free_port() -> int:
    """A TCP port that was free a moment ago, and another one each time."""
    for port in itertools.islice(_next_ports, _PORTS_EACH):
        with socket.socket() as s:
            try:
                s.bind((HOST, port))
            except OSError:
                continue
        return port
    raise AssertionError(f"none of the {_PORTS_EACH} ports from {_first_port} on is free")


def accepts_connections(port: int) -> bool:
    """Whether a process listens there."""
    try:
        socket.create_connection((HOST, port), timeout=0.5).close()
    except OSError:
        return False
    return True
