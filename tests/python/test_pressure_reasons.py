"""A put that cannot succeed says so at once, and why."""

from __future__ import annotations

import time

import numpy as np
import pytest
from contents import value

from mooncake.store import ReplicateConfig
from pool import wait_for

pytestmark = pytest.mark.timeout(60)

MIB = 1 << 20


def put_of(store, buffer, key: str, size: int) -> tuple[int, float]:
    begin = time.monotonic()
    code = store.put_from(key, buffer.ctypes.data, size)
    return code, time.monotonic() - begin


def test_a_value_larger_than_all_segments_fails_at_once_with_a_reason(cluster):
    store = cluster(node_bytes=64 * MIB).store()
    buffer = np.ones(80 * MIB, dtype=np.uint8)
    code, seconds = put_of(store, buffer, "large", 80 * MIB)
    assert code == -200
    assert seconds < 0.3
    assert store.last_error()
    code, seconds = put_of(store, buffer, "fits", 48 * MIB)
    assert code == 0, store.last_error()


def test_pinned_objects_are_never_taken_and_named_as_the_reason(cluster):
    store = cluster(node_bytes=64 * MIB).store()
    pinned = ReplicateConfig()
    pinned.with_hard_pin = True
    for number in range(8):
        assert store.put(f"pinned{number}", value(f"pinned{number}", 6 * MIB), pinned) == 0, store.last_error()
    buffer = np.ones(32 * MIB, dtype=np.uint8)
    code, seconds = put_of(store, buffer, "large", 32 * MIB)
    assert code == -200
    assert seconds < 0.3
    assert "pin" in store.last_error().lower()
    for number in range(8):
        assert store.get(f"pinned{number}") == value(f"pinned{number}", 6 * MIB)
    assert store.remove_all(True) == 8
    wait_for("the space", lambda: put_of(store, buffer, "large", 32 * MIB)[0] == 0, 2.0)


def test_a_pool_without_memory_says_so_at_once(cluster):
    store = cluster(nodes=0).store()
    begin = time.monotonic()
    assert store.put("k", b"v") == -200
    assert time.monotonic() - begin < 0.3
    assert "segment" in store.last_error().lower()
