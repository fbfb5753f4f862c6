"""Who uses how much: what the master tells of its clients."""

from __future__ import annotations

import json
import os
import pwd
import socket

import pytest

from pool import wait_for

MIB = 1 << 20


def clients_of(cluster) -> list[dict]:
    """All clients of the master, as its page tells them."""
    page = json.loads(cluster.master.http("/get_clients"))
    assert page["total_clients"] == len(page["clients"])
    return page["clients"]


def client_of(cluster, pid: int) -> dict:
    """The one client of that process."""
    (client,) = [client for client in clients_of(cluster) if client["pid"] == pid]
    return client


@pytest.fixture(autouse=True)
def outside_of_kubernetes(monkeypatch):
    """A runner that is a pod itself is no part of these tests."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def this_user() -> str:
    """As the file of users has it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def test_each_client_says_who_it_is_and_is_told_with_what_it_lends_holds_and_asks_for(cluster):
    c = cluster(nodes=1, node_bytes=64 * MIB)
    (node,) = c.nodes
    writer, reader = c.process(), c.process()
    for nth in range(3):
        assert writer.call("put", f"k{nth}", b"v" * MIB) == 0
    assert reader.call("get", "k0") == b"v" * MIB
    assert reader.call("get", "none") == b""
    assert reader.call("is_exist", "k1") == 1

    lends, writes, reads = (client_of(c, pid) for pid in (node.pid, writer.pid, reader.pid))
    for client in (lends, writes, reads):
        assert (client["host"], client["user"], client["pod"]) == (socket.gethostname(), this_user(), "")
        assert client["software"].startswith("mooncake-client ")
        assert (client["state"], client["away_seconds"]) == ("ok", None)
    assert lends["program"] == "mooncake"
    assert writes["program"].startswith("python")
    assert (lends["segments"], lends["lent_bytes"], lends["used_bytes"]) == (1, 64 * MIB, 3 * MIB)
    assert (writes["lent_bytes"], writes["puts"], writes["put_bytes"]) == (0, 3, 3 * MIB)
    assert (writes["stored_objects"], writes["stored_bytes"], lends["stored_bytes"]) == (3, 3 * MIB, 0)
    assert (lends["paths"], writes["paths"]) == (["tcp", "shm"], [])
    assert (reads["gets"], reads["hits"], reads["got_bytes"]) == (2, 1, MIB)
    assert reads["exists"] == 1
    assert reads["gets_per_second"] > 0
    assert reads["puts_per_second"] == 0
    assert all(client["unfinished_bytes"] == 0 for client in (lends, writes, reads))


def test_what_a_client_has_stored_counts_for_it_as_long_as_it_is_there(cluster):
    c = cluster(nodes=1, node_bytes=64 * MIB)
    first, second = c.process(), c.process()
    assert first.call("put", "a", b"v" * MIB) == 0
    assert first.call("put", "b", b"v" * MIB) == 0
    assert second.call("upsert", "b", b"w" * 2 * MIB) == 0
    stored = {pid: client_of(c, pid)["stored_bytes"] for pid in (first.pid, second.pid)}
    assert stored == {first.pid: MIB, second.pid: 2 * MIB}, "what replaces another's object is its own"
    assert second.call("remove", "a", True) == 0
    assert client_of(c, first.pid)["stored_objects"] == 0
    assert c.master.metric("mooncake_client_stored_bytes", client=client_of(c, second.pid)["name"]) == 2 * MIB


def test_a_view_counts_for_its_reader_and_on_the_memory_that_it_keeps(cluster):
    c = cluster(nodes=1, node_bytes=64 * MIB)
    store = c.store()
    assert store.put("k", b"v" * MIB) == 0
    view = store.get_buffer("k")
    assert client_of(c, os.getpid())["viewed_bytes"] == MIB
    lends = client_of(c, c.nodes[0].pid)
    assert (lends["pinned_bytes"], lends["viewed_bytes"]) == (MIB, 0)
    del view


def test_a_client_that_was_killed_is_not_told_any_more(cluster):
    c = cluster(nodes=1)
    peer = c.process()
    assert client_of(c, peer.pid)["state"] == "ok"
    peer.kill()
    wait_for("the end of its session", lambda: all(client["pid"] != peer.pid for client in clients_of(c)), 10)


def test_a_master_that_was_restarted_hears_again_who_its_clients_are(cluster):
    c = cluster(nodes=1)
    before = client_of(c, c.nodes[0].pid)
    c.master.kill()
    c.master.start()
    wait_for("the node to be back", lambda: any(client["pid"] == c.nodes[0].pid for client in clients_of(c)), 10)
    again = client_of(c, c.nodes[0].pid)
    for name in ("client_id", "name", "host", "user", "program", "software"):
        assert again[name] == before[name], name


def test_a_pod_is_told_where_kubernetes_says_that_there_is_one(cluster):
    c = cluster(nodes=0)
    peer = c.process(env={"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "decode-7"})
    assert client_of(c, peer.pid)["pod"] == "decode-7"
