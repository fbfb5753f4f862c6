"""The link between an owner and the master is dead for five seconds: nothing is lost."""

from __future__ import annotations

import time

import pytest
from contents import value, version_of
from network import Network, NoNamespaces, Relay

from pool import wait_for

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("checksums")]

MIB = 1 << 20


@pytest.fixture
def apart(cluster):
    """A master here; a network elsewhere with a relay for an owner and another for a client."""
    try:
        network = Network()
    except NoNamespaces as reason:
        pytest.skip(f"needs a network namespace: {reason}")
    pool = cluster(nodes=0)
    relays = [Relay(pool.master.port, network), Relay(pool.master.port, network)]
    yield pool, network, *relays
    for relay in relays:
        relay.close()
    network.close()


def test_nothing_is_lost(apart):
    pool, network, for_owner, for_client = apart
    with network.inside():
        connect(pool, for_owner.port, 128 * MIB)
        client = connect(pool, for_client.port, 0)
    pool.wait_segments(1)
    keys = [f"k{i}" for i in range(64)]
    for key in keys:
        assert client.call("put", key, value(key, 256 << 10)) == 0, client.call("last_error")

    for_owner.cut()
    time.sleep(2.7)
    assert client.call("batch_is_exist", keys) == [0] * len(keys), "the owner has been silent for more than two seconds"
    time.sleep(2.3)
    for_owner.mend()
    mended = time.monotonic()
    # Tries to come back that were given up are through the relay first, each of them for a moment.
    wait_for("all objects", lambda: all(version_of(key, client.call("get", key)) == 0 for key in keys), 4.0)
    assert client.call("batch_is_exist", keys) == [1] * len(keys)
    assert time.monotonic() - mended < 4.0
    for number in range(64):
        assert client.call("put", f"new{number}", value(f"new{number}", 256 << 10)) == 0
    for key in keys:
        assert version_of(key, client.call("get", key)) == 0


def connect(pool, port, segment):
    """A peer whose master is the relay on `port`."""
    real, pool.master.port = pool.master.port, port
    try:
        return pool.process(segment=segment)
    finally:
        pool.master.port = real
