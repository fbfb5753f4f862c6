"""Readers that are frozen, and views that are held, across everything that happens to the pool meanwhile."""

from __future__ import annotations

import hashlib
import time

import pytest
from contents import value, version_of
from machine import cpu_seconds, wait_cpu

from pool import wait_for

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("checksums")]

MIB = 1 << 20
DIGEST = "import hashlib; result = hashlib.sha256(memoryview(served.bytes)[:size]).hexdigest()"
HOLD = (
    "served.view = store.get_buffer(key); import hashlib; result = hashlib.sha256(memoryview(served.view)).hexdigest()"
)
LOOK = "import hashlib; result = hashlib.sha256(memoryview(served.view)).hexdigest()"


def overcommit(store, size: int, count: int, prefix: str = "over") -> None:
    """Puts `count` values of `size`; none may fail."""
    for number in range(count):
        key = f"{prefix}{number}"
        assert store.put(key, value(key, size)) == 0, store.last_error()


def test_a_view_does_not_change_across_a_masters_restart_and_a_threefold_overcommit(cluster):
    pool = cluster(node_bytes=256 * MIB)
    store = pool.store()
    assert store.put("viewed", value("viewed", 8 * MIB)) == 0
    view = store.get_buffer("viewed")
    assert version_of("viewed", view) == 0

    pool.master.kill()
    pool.master.start()
    wait_for("the pool", lambda: store.is_exist("viewed") == 1, 3.0)
    overcommit(store, 4 * MIB, 3 * 256 // 4)
    assert version_of("viewed", view) == 0
    assert store.remove("viewed", True) in (0, -704)
    overcommit(store, 4 * MIB, 3 * 256 // 4, "again")
    assert version_of("viewed", view) == 0
    store.close()
    assert version_of("viewed", view) == 0


def test_the_space_under_a_view_comes_back_when_the_view_ends(cluster):
    pool = cluster(node_bytes=128 * MIB)
    store = pool.store(buffer=128 * MIB)
    assert store.put("viewed", value("viewed", 40 * MIB)) == 0
    view = store.get_buffer("viewed")
    assert store.remove("viewed", True) == 0
    whole = value("whole", 64 * MIB)
    parts = [whole, whole[: 48 * MIB]]  # 112 MiB: they fit only where the view is.
    assert store.put_parts("whole", *parts) == -200
    assert "pin" in store.last_error().lower()
    assert version_of("viewed", view) == 0
    del view
    wait_for("the space", lambda: store.put_parts("whole", *parts) == 0, 3.0)


def test_a_view_in_a_frozen_process_is_as_it_was_when_the_process_goes_on(cluster):
    pool = cluster(node_bytes=256 * MIB)
    store, reader = pool.store(), pool.process()
    data = value("viewed", 8 * MIB)
    assert store.put("viewed", data) == 0
    want = hashlib.sha256(data).hexdigest()
    assert reader.call("run", HOLD, key="viewed") == want
    reader.stop()
    time.sleep(2.5)  # Its session is away by now; its pin is not.
    overcommit(store, 4 * MIB, 3 * 256 // 4)
    reader.cont()
    assert reader.call("run", LOOK) == want


def test_the_pin_of_a_killed_process_is_given_back(cluster):
    pool = cluster(node_bytes=128 * MIB)
    store, reader = pool.store(buffer=128 * MIB), pool.process()
    assert store.put("viewed", value("viewed", 40 * MIB)) == 0
    reader.call("run", HOLD, key="viewed")
    whole = value("whole", 64 * MIB)
    parts = [whole, whole[: 48 * MIB]]
    assert store.put_parts("whole", *parts) == -200
    reader.kill()
    wait_for("the space", lambda: store.put_parts("whole", *parts) == 0, 3.0)


def test_a_reader_frozen_in_mid_copy_gets_the_right_bytes_or_a_miss(cluster):
    pool = cluster(node_bytes=512 * MIB)
    store, reader = pool.store(), pool.process()
    size = 192 * MIB
    place = reader.call("arena", size)
    outcomes = []
    for turn in range(3):
        key = f"large{turn}"
        parts = [value(f"{key}/{n}", 32 * MIB) for n in range(size // (32 * MIB))]
        assert store.put_parts(key, *parts) == 0, store.last_error()
        want = hashlib.sha256(b"".join(parts)).hexdigest()
        used = cpu_seconds(reader.pid)
        pending = reader.start("get_into", key, place, size)
        wait_cpu(reader.pid, used, 0.01 * (turn + 1))
        reader.stop()
        overcommit(store, 16 * MIB, 2 * 512 // 16, f"turn{turn}-")
        reader.cont()
        got = pending.result(timeout=20)
        outcomes.append(got)
        if got == size:
            assert reader.call("run", DIGEST, size=size) == want
        else:
            assert got < 0
    print("outcomes", outcomes)
