"""Two masters with one log between them lead the same owner in turn: bytes may be forgotten, they are never wrong."""

from __future__ import annotations

import shutil

import pytest
from contents import value, version_of
from network import Network, NoNamespaces, Relay

from pool import wait_for
from pool.cluster import Master

pytestmark = pytest.mark.timeout(60)

KIB, MIB = 1 << 10, 1 << 20


def put_all(client, prefix: str, count: int) -> list[str]:
    keys = [f"{prefix}{number}" for number in range(count)]
    for key in keys:
        assert client.call("put", key, value(key, 256 * KIB)) == 0, client.call("last_error")
    return keys


def right_or_missing(client, keys: list[str]) -> int:
    got = {key: client.call("get", key) for key in keys}
    wrong = [key for key, data in got.items() if data and version_of(key, data) != 0]
    assert not wrong, wrong
    return sum(1 for data in got.values() if data)


def test_no_region_is_handed_out_twice(cluster, tmp_path):
    try:
        network = Network()
    except NoNamespaces as reason:
        pytest.skip(f"needs a network namespace: {reason}")
    pool = cluster(nodes=0)
    first = pool.master
    relay = Relay(first.port, network)
    second = Master(tmp_path, [])
    try:
        real, first.port = first.port, relay.port
        with network.inside():
            pool.process(segment=64 * MIB)
            client = pool.process()
        first.port = real
        old = put_all(client, "old", 40)

        # A copy of the log, as of a host that was thought to be dead.
        first.stop()
        shutil.copytree(first.folder, second.folder)
        second.start()
        first.cont()
        # They give out the same numbers otherwise: the first one has said how far it had come, and stands still.
        assert second.metric("mooncake_epoch") > first.metric("mooncake_epoch")
        relay.lead_to(second.port)
        wait_for("the second master", lambda: client.call("batch_is_exist", old) == [1] * len(old), 8.0, 0.05)
        under_second = put_all(client, "second", 60)
        assert right_or_missing(client, old + under_second) == 100

        relay.lead_to(first.port)
        wait_for("the first master again", lambda: client.call("put", "probe", b"p") == 0, 8.0, 0.05)
        right_or_missing(client, old + under_second)
        under_first = put_all(client, "first", 120)
        right_or_missing(client, old + under_second)
        assert right_or_missing(client, under_first) == 120

        relay.lead_to(second.port)
        wait_for("the second master again", lambda: client.call("put", "probe too", b"p") == 0, 8.0, 0.05)
        right_or_missing(client, old + under_second + under_first)
        last = put_all(client, "last", 150)
        right_or_missing(client, old + under_second + under_first)
        assert right_or_missing(client, last) == 150
    finally:
        second.kill()
        relay.close()
        network.close()
