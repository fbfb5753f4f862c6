"""The master is killed and started again: what it acknowledged is still there, and nothing is mixed up."""

from __future__ import annotations

import random
import threading
import time

import pytest
from contents import value, version_of

from pool import wait_for

pytestmark = pytest.mark.timeout(90)

MIB = 1 << 20


def restart(pool) -> float:
    """SIGKILL, start; when it was started."""
    pool.master.kill()
    begin = time.monotonic()
    pool.master.start()
    return begin


def all_exist(store, keys, batch=10_000) -> bool:
    return all(code == 1 for at in range(0, len(keys), batch) for code in store.batch_is_exist(keys[at : at + batch]))


def test_every_acknowledged_object_is_readable_within_two_seconds(cluster):
    pool = cluster(nodes=2, node_bytes=128 * MIB)
    store = pool.store()
    keys = [f"dir/{i}@tp:0" for i in range(100)]
    for key in keys:
        assert store.put(key, value(key, 512 << 10)) == 0, store.last_error()
    begin = restart(pool)
    wait_for("all objects", lambda: all_exist(store, keys), 2.0 - (time.monotonic() - begin))
    for key in keys:
        assert store.get(key) == value(key, 512 << 10), store.last_error()
    assert time.monotonic() - begin < 3.0
    # And the pool goes on: no region is handed out twice.
    for key in keys:
        assert store.put(f"new/{key}", value(f"new/{key}", 512 << 10)) == 0, store.last_error()
    for key in keys:
        assert store.get(key) == value(key, 512 << 10)
        assert version_of(f"new/{key}", store.get(f"new/{key}")) == 0


@pytest.mark.slow
def test_200_000_objects_are_readable_within_two_seconds(cluster):
    pool = cluster(nodes=1, node_bytes=512 * MIB)
    store = pool.store()
    count, batch = 200_000, 1_000
    keys = [f"object-{i}" for i in range(count)]
    values = [value(f"value {i}", 64) for i in range(97)]
    for at in range(0, count, batch):
        code = store.put_batch(keys[at : at + batch], [values[i % 97] for i in range(at, at + batch)])
        assert code == 0, store.last_error()
    assert all_exist(store, keys)
    begin = restart(pool)
    wait_for("200,000 objects", lambda: all_exist(store, keys), 2.0 - (time.monotonic() - begin))
    for i in range(0, count, 997):
        assert store.get(keys[i]) == values[i % 97]


def test_objects_acknowledged_while_it_is_killed_again_and_again_are_kept(cluster, seed):
    pool = cluster(nodes=2, node_bytes=256 * MIB)
    store, acknowledged, stop = pool.store(), [], threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            key = f"w{number}"
            if store.put(key, value(key, 64 << 10)) == 0:
                acknowledged.append(key)
            else:
                time.sleep(0.01)
            number += 1
            time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    dice = random.Random(seed)
    try:
        for _ in range(3):
            time.sleep(dice.uniform(0.2, 0.8))
            restart(pool)
        time.sleep(0.5)
    finally:
        stop.set()
        writer.join()
    assert len(acknowledged) > 50
    wait_for("all acknowledged objects", lambda: all_exist(store, acknowledged), 2.0)
    for key in acknowledged:
        assert version_of(key, store.get(key)) == 0, f"{key}: {store.last_error()}"


def test_while_it_is_away_calls_fail_fast_and_succeed_again_by_themselves(cluster):
    pool = cluster()
    store = pool.store()
    assert store.put("k", b"v" * 100) == 0
    pool.master.kill()
    store.is_exist("k")  # The call that finds out may take its whole deadline.
    begin = time.monotonic()
    assert store.is_exist("k") == 0
    assert store.put("l", b"w") == -900
    assert "master" in store.last_error().lower()
    assert store.get("k") == b""
    assert time.monotonic() - begin < 0.5
    pool.master.start()
    wait_for("the store to be back", lambda: store.get("k") == b"v" * 100, 2.0)
    assert store.put("l", b"w") == 0
