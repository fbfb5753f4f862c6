"""Engines publish over HTTP how to reach them: alone, in the master, and from Python."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from mooncake.http_metadata_server import KVBootstrapServer
from pool import free_port


@pytest.fixture(params=["alone", "in the master"])
def server(request, cluster):
    """Port of a metadata server."""
    if request.param == "alone":
        made = KVBootstrapServer(0, "127.0.0.1")
        made.run()
        yield made.port
        made.close()
    else:
        port = free_port()
        flags = ["--enable_http_metadata_server", f"--http_metadata_server_port={port}"]
        cluster(nodes=0, master_flags=[*flags, "--http_metadata_server_host=127.0.0.1"])
        yield port


def call(port: int, method: str, query: str = "", body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metadata{query}", data=body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def meta(port: int) -> bytes:
    return json.dumps({"ip_or_host_name": "127.0.0.1", "rpc_port": port}).encode()


def test_values_are_kept_as_they_are(server):
    blob = bytes(range(256)) * 1000
    assert call(server, "GET", "?key=mooncake/ram/a%20b") == (404, b"metadata not found")
    assert call(server, "PUT", "?key=mooncake/ram/a%20b", blob) == (200, b"metadata updated")
    assert call(server, "GET", "?key=mooncake/ram/a%20b") == (200, blob)
    assert call(server, "PUT", "?key=mooncake/ram/a%20b", b"new") == (200, b"metadata updated")
    assert call(server, "GET", "?key=mooncake/ram/a%20b") == (200, b"new")
    assert call(server, "DELETE", "?key=mooncake/ram/a%20b")[0] == 200
    assert call(server, "DELETE", "?key=mooncake/ram/a%20b")[0] == 404


@pytest.mark.parametrize("query", ["", "?key=", "?key=%20%20", "?key=%09", "?other=k"])
def test_a_request_without_a_key_is_refused_whatever_its_method(server, query):
    for method, body in (("GET", None), ("PUT", b"v"), ("DELETE", None)):
        assert call(server, method, query, body) == (400, b"metadata key is required"), method


def test_blanks_around_a_key_are_not_part_of_it(server):
    assert call(server, "PUT", "?key=%20%20k%20", b"v")[0] == 200
    assert call(server, "GET", "?key=k") == (200, b"v")
    assert call(server, "GET", "?key=%20k") == (200, b"v")
    assert call(server, "DELETE", "?key=k%09")[0] == 200
    assert call(server, "GET", "?key=k")[0] == 404


def test_wrong_requests_are_told_what_is_wrong(server):
    assert call(server, "GET") == (400, b"metadata key is required")
    assert call(server, "GET", "?key=" + "k" * 5000)[0] == 400
    assert call(server, "POST", "?key=k", b"v")[0] == 405
    # It may answer and hang up before all of it has been sent.
    with contextlib.suppress(urllib.error.URLError):
        assert call(server, "PUT", "?key=k", b"v" * (17 << 20))[0] == 413
    assert call(server, "GET", "?key=k")[0] == 404


def test_the_address_of_an_engine_that_listens_is_not_overwritten(server):
    with socket.create_server(("127.0.0.1", 0)) as engine:
        own = meta(engine.getsockname()[1])
        assert call(server, "PUT", "?key=mooncake/rpc_meta/e", own) == (200, b"metadata updated")
        assert call(server, "PUT", "?key=mooncake/rpc_meta/e", own) == (200, b"metadata unchanged")
        refused = call(server, "PUT", "?key=mooncake/rpc_meta/e", meta(1))
        assert refused == (400, b"Duplicate rpc_meta key not allowed")
    # The engine has gone: the next of its name takes its place.
    assert call(server, "PUT", "?key=mooncake/rpc_meta/e", meta(2)) == (200, b"metadata updated")
    assert call(server, "GET", "?key=mooncake/rpc_meta/e") == (200, meta(2))


def test_it_binds_the_host_that_it_is_given(server):
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", server), timeout=2)


def test_a_taken_port_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=str(port)):
            KVBootstrapServer(port, "127.0.0.1").run()


def test_the_module_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "mooncake.http_metadata_server", "--help"], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0
    assert "--port" in done.stdout
