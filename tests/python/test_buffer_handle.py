"""A handle's bytes never change, whatever happens to the object or to the store."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from mooncake.store import BufferHandle

VALUE = np.random.default_rng(1).bytes(1 << 20)


@pytest.fixture
def handle(store):
    assert store.put("k", VALUE) == 0
    made = store.get_buffer("k")
    assert isinstance(made, BufferHandle)
    return made


def test_it_looks_like_the_reference_s(handle):
    assert handle.size() == len(handle) == len(VALUE)
    view = memoryview(handle)
    assert (view.format, view.ndim, view.shape, view.itemsize) == ("c", 1, (len(VALUE),), 1)
    assert ctypes.string_at(handle.ptr(), 16) == VALUE[:16]
    assert bytes(handle) == VALUE
    assert np.frombuffer(handle, dtype=np.uint8, offset=28, count=100).tobytes() == VALUE[28:128]


def test_it_cannot_be_written(handle):
    assert memoryview(handle).readonly
    with pytest.raises((TypeError, BufferError)):
        ctypes.c_char.from_buffer(handle)
    array = np.frombuffer(handle, dtype=np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_it_cannot_be_made_by_hand():
    with pytest.raises(TypeError):
        BufferHandle()


def test_it_outlives_remove_eviction_and_close(cluster):
    c = cluster(nodes=1, node_bytes=32 << 20)
    s = c.store(buffer=16 << 20)
    assert s.put("k", VALUE) == 0
    handle = s.get_buffer("k")
    view = np.frombuffer(handle, dtype=np.uint8)
    del handle
    gc.collect()
    assert s.remove("k", True) == 0
    for i in range(96):
        assert s.put(f"other-{i}", bytes([i]) * (1 << 20)) == 0
    assert view.tobytes() == VALUE
    s.close()
    writer = c.store()
    for i in range(96):
        assert writer.put(f"more-{i}", bytes([i]) * (1 << 20)) == 0
    assert view.tobytes() == VALUE


def test_more_handles_than_the_local_buffer_holds_are_copies(cluster):
    c = cluster(nodes=1, node_bytes=64 << 20)
    s = c.store(buffer=4 << 20)
    for i in range(12):
        assert s.put(f"k{i}", bytes([i]) * (1 << 20)) == 0
    handles = s.batch_get_buffer([f"k{i}" for i in range(12)])
    assert all(h is not None for h in handles)
    for i in range(96):  # whatever is not pinned goes
        assert s.put(f"other-{i}", VALUE) == 0
    for i, handle in enumerate(handles):
        assert bytes(handle) == bytes([i]) * (1 << 20)


def test_missing_keys_are_none_in_their_place(store):
    assert store.put("there", b"v") == 0
    handles = store.batch_get_buffer(["missing", "there", "missing"])
    assert handles[0] is handles[2] is None
    assert bytes(handles[1]) == b"v"


def test_a_memoryview_keeps_what_it_shows(store):
    assert store.put("k", VALUE) == 0
    views = [memoryview(store.get_buffer("k")) for _ in range(3)]
    gc.collect()
    assert all(v.tobytes() == VALUE for v in views)
