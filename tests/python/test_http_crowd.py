"""Connections that stand still, on any HTTP port, keep nobody from asking whether a process is well."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import time
from collections.abc import Iterator

import pytest

from pool import free_port

#: More than a server keeps.
CROWD = 140

#: A probe that waits longer than this would kill a process that is well.
TIMEOUT = 1.0


@contextlib.contextmanager
def crowd(port: int, says: bytes) -> Iterator[list[socket.socket]]:
    """Connections that say something and then nothing more, and read nothing."""
    opened = []
    try:
        for _ in range(CROWD):
            made = socket.socket()
            opened.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            made.settimeout(2)
            made.connect(("127.0.0.1", port))
            made.setblocking(False)
            # It may have been cut for the sake of a later one.
            with contextlib.suppress(OSError):
                made.send(says)
        yield opened
    finally:
        for made in opened:
            made.close()


def health(port: int) -> tuple[int, float]:
    """Status of /health, and the seconds that it took."""
    began = time.monotonic()
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        asked.request("GET", "/health")
        answer = asked.getresponse()
        answer.read()
        return answer.status, time.monotonic() - began
    finally:
        asked.close()


ASKS = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"
UPLOAD = b"PUT /metadata?key=q HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc"


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("master", ASKS % b"/metrics" * 900),
        ("metadata", ASKS % b"/metadata?key=a" * 900),
        ("metadata", UPLOAD),
        ("node", ASKS % b"/metrics" * 900),
    ],
    ids=["master, not reading", "metadata, not reading", "metadata, uploading", "node, not reading"],
)
def test_connections_that_stand_still_lock_nobody_out(cluster, server, says):
    port = free_port()
    flags = ["--enable_http_metadata_server", f"--http_metadata_server_port={port}"]
    made = cluster(nodes=0, master_flags=[*flags, "--http_metadata_server_host=127.0.0.1"])
    if server == "master":
        port = made.master.metrics_port
    if server == "node":
        node = made.add_node(16 << 20, ["--enable_http_server", "--http_port=0"])
        port = int(re.search(r"HTTP server started on port (\d+)", node.output())[1])
    with crowd(port, says):
        probes = [health(port) for _ in range(20)]
    assert {status for status, _ in probes} == {200}
    print(f"slowest {max(seconds for _, seconds in probes) * 1000:.1f} ms")
