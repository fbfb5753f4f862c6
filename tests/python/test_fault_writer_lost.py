"""A writer is frozen or killed in the middle of a put: its key and its region never suffer from it."""

from __future__ import annotations

import time

import pytest
from contents import value, version_of
from machine import cpu_seconds, wait_cpu

from mooncake.store import ReplicateConfig
from pool import wait_for

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("checksums")]

MIB = 1 << 20
# Large enough that the copy takes some ten milliseconds at any speed.
LARGE = 384 * MIB


def freeze_in_mid_put(pool, other, shm: str, size: int = LARGE):
    """A peer that is stopped while it writes `key`, the key, and its put's pending answer."""
    for attempt in range(8):
        key = f"contended{attempt}"
        writer = pool.process(env={"MC_SHM": shm})
        place = writer.call("arena", size)
        used = cpu_seconds(writer.pid)
        pending = writer.start("put_from", key, place, size)
        wait_cpu(writer.pid, used, 0.02)
        writer.stop()
        # While the writer is alive its key is busy for others: that is how one knows that it was stopped in mid-put.
        if not pending.done and other.call("put", key, value(key, MIB)) == -703:
            return writer, key, pending
        writer.kill()
    raise AssertionError("no writer could be stopped in mid-put")


@pytest.mark.parametrize("shm", ["1", "0"], ids=["shared memory", "TCP"])
def test_killed_in_mid_put_its_key_can_be_put_within_a_second_and_is_really_stored(cluster, shm):
    pool = cluster(node_bytes=1024 * MIB)
    other = pool.process()
    writer, key, _ = freeze_in_mid_put(pool, other, shm)
    assert other.call("is_exist", key) == 0

    writer.kill()
    begin = time.monotonic()
    assert other.call("put", key, value(key, MIB, version=1)) == 0, other.call("last_error")
    assert time.monotonic() - begin < 1.0
    assert version_of(key, other.call("get", key)) == 1
    # The last megabytes of a killed TCP writer may still arrive a second later.
    for number in range(32):
        extra = f"extra{number}"
        assert other.call("put", extra, value(extra, 16 * MIB)) == 0, other.call("last_error")
    time.sleep(1.2)
    assert version_of(key, other.call("get", key)) == 1
    for number in range(32):
        extra = f"extra{number}"
        assert version_of(extra, other.call("get", extra)) == 0


def test_frozen_past_its_session_its_key_is_free_and_its_late_bytes_hurt_nobody(cluster):
    pool = cluster(node_bytes=1024 * MIB)
    other = pool.process()
    writer, key, pending = freeze_in_mid_put(pool, other, "1")
    time.sleep(2.5)  # Its session is away: it yields the key to the first contending put.
    begin = time.monotonic()
    assert other.call("put", key, value(key, MIB, version=1)) == 0, other.call("last_error")
    assert time.monotonic() - begin < 1.0
    # Nobody but the writer itself can say that its bytes will not land, and it stands still.
    quarantined = pool.master.metric("mooncake_quarantined_bytes")
    assert quarantined >= LARGE, "its region has come back though it may still write there"

    # The region of the frozen writer is wanted: twice the pool is written.
    size = 16 * MIB
    for number in range(128):
        extra = f"extra{number}"
        assert other.call("put", extra, value(extra, size)) == 0, other.call("last_error")
    assert pool.master.metric("mooncake_quarantined_bytes") >= LARGE
    writer.cont()
    try:
        assert pending.result(timeout=20) < 0
        wait_for("its own word to free its region", lambda: pool.master.metric("mooncake_quarantined_bytes") == 0, 10)
    finally:
        writer.kill()
    got = {name: other.call("get", name) for name in [key, *(f"extra{n}" for n in range(128))]}
    wrong = [name for name, bytes_ in got.items() if bytes_ and version_of(name, bytes_) != int(name == key)]
    assert not wrong
    # A wrong byte that was found out would be a miss as well: those that there are were evicted.
    missing = sum(1 for bytes_ in got.values() if not bytes_)
    assert missing == pool.master.metric("master_evicted_key_count")


def test_frozen_briefly_its_put_goes_on_and_is_stored(cluster):
    pool = cluster(node_bytes=1024 * MIB)
    other = pool.process()
    writer, key, pending = freeze_in_mid_put(pool, other, "1")
    writer.cont()
    assert pending.result(timeout=20) == 0
    assert other.call("get_size", key) == LARGE


def test_space_of_an_unfinished_put_is_waited_for_and_named_when_it_does_not_come(cluster):
    pool = cluster(node_bytes=640 * MIB)
    store, other = pool.store(), pool.process()
    pinned = ReplicateConfig()
    pinned.with_hard_pin = True
    for number in range(10):
        assert store.put(f"pinned{number}", value(f"pinned{number}", 10 * MIB), pinned) == 0, store.last_error()
    writer, _, _ = freeze_in_mid_put(pool, other, "1", 280 * MIB)
    place = other.call("arena", 300 * MIB)
    begin = time.monotonic()
    assert other.call("put_from", "needs the space", place, 300 * MIB) == -200
    assert 0.5 < time.monotonic() - begin < 1.8
    assert "unfinished" in other.call("last_error").lower()

    waiting = other.start("put_from", "waits for the space", place, 300 * MIB)
    time.sleep(0.3)
    writer.kill()
    assert waiting.result(timeout=5) == 0, other.call("last_error")
    assert other.call("get_size", "waits for the space") == 300 * MIB
    for number in range(10):
        assert version_of(f"pinned{number}", store.get(f"pinned{number}")) == 0
