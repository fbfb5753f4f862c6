"""A client's own HTTP server: whether it is well, and what it has counted."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from pool import binary, free_port, wait_for

HTTP = ["--enable_http_server", "--http_port=0"]


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def health(port: int) -> tuple[int, dict]:
    status, body = ask(port, "/health")
    return status, json.loads(body)


HEALTHY = (200, {"status": "healthy", "code": 0})
NOT_INITIALIZED = (503, {"status": "not_initialized", "code": 1})
UNREACHABLE = (503, {"status": "master_unreachable", "code": 2})


def port_in(output: str) -> int:
    found = re.search(r"HTTP server started on port (\d+)", output)
    return int(found[1]) if found else 0


def value(page: str, name: str, **labels: str) -> float:
    """A value of the page by its name and those of its labels."""
    for line in page.splitlines():
        parsed = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
        if parsed and all(f'{label}="{text}"' in parsed[1] for label, text in labels.items()):
            return float(parsed[2])
    raise AssertionError(f"{name} {labels} is not on the page:\n{page}")


def test_a_node_tells_how_it_is_from_before_there_is_a_master_until_it_has_gone(cluster, tmp_path):
    made = cluster(nodes=0)
    made.master.kill()
    flags = ["client", f"--master_server_address={made.master.addr}", "--host=127.0.0.1", "--port=0"]
    log = tmp_path / "node.log"
    with log.open("wb") as out:
        node = subprocess.Popen([binary(), *flags, "--global_segment_size=16MB", *HTTP], stdout=out, stderr=out)
    try:
        port = wait_for("the HTTP server", lambda: port_in(log.read_text()))
        assert health(port) == NOT_INITIALIZED
        assert ask(port, "/metrics") == (503, "metrics not available")
        made.master.start()
        wait_for("the node well", lambda: health(port) == HEALTHY)
        made.master.kill()
        wait_for("the node without its master", lambda: health(port) == UNREACHABLE)
        made.master.start()
        wait_for("the node well again", lambda: health(port) == HEALTHY)
    finally:
        node.terminate()
        assert node.wait(10) == 0


def test_a_node_counts_its_requests_and_says_whose_they_are(cluster):
    env = {"MC_STORE_CLUSTER_ID": "blue", "MC_STORE_CLIENT_METRIC_INTERVAL": "1"}
    env["MC_STORE_CLIENT_METRIC_BANDWIDTH"] = "1"
    node = cluster(nodes=0).add_node(16 << 20, HTTP, env)
    port = port_in(node.output())
    status, page = ask(port, "/metrics")
    assert status == 200
    whose = {"client_mode": "real", "cluster_id": "blue"}
    assert value(page, "mooncake_client_rpc_count", rpc_name="mount", **whose) == 1
    assert value(page, "mooncake_client_rpc_latency_count", rpc_name="mount", **whose) == 1
    assert value(page, "mooncake_transfer_read_bytes", **whose) == 0
    samples = [line for line in page.splitlines() if not line.startswith("#")]
    assert all('client_mode="real",cluster_id="blue"' in line for line in samples)
    status, line = ask(port, "/metrics/summary")
    assert status == 200
    assert line.count("\n") == 1
    assert "mount=1" in line
    assert ask(port, "/elsewhere")[0] == 404
    wait_for("the line in the log", lambda: node.output().count("Client Metrics: ") >= 2)
    assert "/s)" in node.output()


def test_without_collection_there_are_no_metrics_and_still_health(cluster):
    node = cluster(nodes=0).add_node(16 << 20, HTTP, {"MC_STORE_CLIENT_METRIC": "0"})
    port = port_in(node.output())
    assert health(port) == HEALTHY
    for path in ("/metrics", "/metrics/summary"):
        assert ask(port, path) == (503, "metrics not available")


def test_a_taken_port_ends_a_node_and_names_the_flag():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--enable_http_server", f"--http_port={port}", "--master_server_address=127.0.0.1:1"]
        done = subprocess.run([binary(), "client", *flags], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "--http_port" in done.stderr
    assert str(port) in done.stderr


def test_the_server_is_off_unless_asked_for_and_only_this_host_is_served(cluster):
    pool = cluster(nodes=0)
    assert port_in(pool.add_node(16 << 20, ["--http_port=0"]).output()) == 0
    port = port_in(pool.add_node(16 << 20, HTTP).output())
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=2)
    elsewhere = port_in(pool.add_node(16 << 20, [*HTTP, "--http_host=127.0.0.2"]).output())
    socket.create_connection(("127.0.0.2", elsewhere), timeout=2).close()


def test_probes_that_hang_up_ask_the_master_no_more_often_than_others(cluster):
    pool = cluster(nodes=0)
    port = port_in(pool.add_node(16 << 20, HTTP).output())
    assert health(port) == HEALTHY
    pool.master.stop()
    try:
        for _ in range(60):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as probe:
                probe.sendall(b"GET /health HTTP/1.1\r\nHost: node\r\n\r\n")
                time.sleep(0.01)
    finally:
        pool.master.cont()
    wait_for("the node well", lambda: health(port) == HEALTHY)
    # One was being asked, and one every tenth of a second since: not one for each probe, two at a time.
    assert value(ask(port, "/metrics")[1], "mooncake_client_rpc_count", rpc_name="ping") < 30


def served(pool, port: int):
    """A store with an HTTP server."""
    from mooncake.store import MooncakeDistributedStore

    made = MooncakeDistributedStore()
    arguments = ("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 24, "tcp", "", pool.master.addr)
    assert made.setup(*arguments, enable_client_http_server=True, client_http_port=port) == 0, made.last_error()
    return made


def test_a_store_counts_its_calls_and_their_bytes(cluster):
    pool, port = cluster(nodes=1), free_port()
    store = served(pool, port)
    assert health(port) == HEALTHY
    assert store.put("a", b"x" * 5000) == 0
    assert store.put("a", b"x" * 5000) == 0
    assert store.put_batch(["b", "c"], [b"y" * 100, b"z" * 200]) == 0
    assert store.upsert("a", b"w" * 6000) == 0
    assert store.get("a") == b"w" * 6000
    assert store.get_batch(["b", "c", "nothing"]) == [b"y" * 100, b"z" * 200, b""]
    assert store.get("nothing") == b""
    page = ask(port, "/metrics")[1]
    assert value(page, "mooncake_transfer_write_bytes") == 5000 + 300 + 6000, "a put of what is there stores nothing"
    assert value(page, "mooncake_transfer_read_bytes") == 6000 + 300
    assert value(page, "mooncake_transfer_put_latency_count") == 3
    assert value(page, "mooncake_transfer_batch_put_latency_count") == 1
    assert value(page, "mooncake_transfer_get_latency_count") == 2
    assert value(page, "mooncake_transfer_batch_get_latency_count") == 1
    assert value(page, "mooncake_transfer_write_operation_count", operation="put") == 2
    assert value(page, "mooncake_transfer_write_operation_bytes", operation="upsert") == 6000
    assert value(page, "mooncake_transfer_read_operation_count", operation="batch_get") == 1
    assert value(page, "mooncake_client_rpc_count", rpc_name="lookup") >= 3
    assert value(page, "mooncake_transfer_get_latency_bucket", le="20000000") == 2
    assert 0 < value(page, "mooncake_transfer_get_latency_sum") < 60e6
    store.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=2)


def test_a_store_that_is_forgotten_takes_its_server_with_it(cluster):
    pool, port = cluster(nodes=0), free_port()
    store = served(pool, port)
    assert health(port) == HEALTHY
    del store
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=2)


def test_a_taken_port_leaves_a_store_without_a_server_and_a_port_that_is_none_is_refused(cluster):
    from mooncake.store import MooncakeDistributedStore

    pool = cluster(nodes=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        store = served(pool, taken.getsockname()[1])
        assert store.put("k", b"v") == 0
        store.close()
    refused = MooncakeDistributedStore()
    config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": 0}
    config |= {"master_server_addr": pool.master.addr, "enable_client_http_server": "true"}
    for port in ("0", "65536", "x"):
        assert refused.setup(config | {"client_http_port": port}) == -600
        assert "client_http_port" in refused.last_error()


FORK = """
import os, sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
master, port = sys.argv[1], int(sys.argv[2])
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 24, "tcp", "", master, enable_client_http_server=True,
                   client_http_port=port) == 0
read, write = os.pipe()
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)  # Only behind what a fork does in the child: until then the child has the port.
    os.close(write)
    os.read(read, 1)  # Until the parent has gone.
    os._exit(0)
sys.stdin.read()
store.close()
print("closed", flush=True)
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_the_port(cluster):
    pool, port = cluster(nodes=1), free_port()
    command = [sys.executable, "-c", FORK, pool.master.addr, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        try:
            child = int(parent.stdout.readline())
            assert health(port) == HEALTHY
            parent.stdin.close()
            assert parent.stdout.readline() == "closed\n"
            os.kill(child, 0)
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.1", port), timeout=2)
        finally:
            parent.kill()
