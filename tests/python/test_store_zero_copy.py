"""The calls by address: registered or not, in one piece or several."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest


def arena(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("registered", [True, False])
def test_objects_go_from_and_into_buffers(store, registered):
    src, dst = arena(1 << 20), np.zeros(1 << 20, dtype=np.uint8)
    if registered:
        assert store.register_buffer(src.ctypes.data, src.nbytes) == 0
        assert store.register_buffer(dst.ctypes.data, dst.nbytes) == 0
    n = src.nbytes // 4
    keys = [f"k{i}" for i in range(4)]
    at = [src.ctypes.data + i * n for i in range(4)]
    into = [dst.ctypes.data + i * n for i in range(4)]
    assert store.put_from(keys[0], at[0], n) == 0
    assert store.batch_put_from(keys[1:], at[1:], [n] * 3) == [0] * 3
    assert store.get_into(keys[0], into[0], n) == n
    assert store.batch_get_into(keys[1:], into[1:], [n] * 3) == [n] * 3
    assert np.array_equal(src, dst)
    if registered:
        assert store.unregister_buffer(src.ctypes.data) == 0
        assert store.unregister_buffer(dst.ctypes.data) == 0


def test_an_object_is_the_concatenation_of_its_pieces(store):
    src, dst = arena(1000), np.zeros(1200, dtype=np.uint8)
    cuts = [0, 1, 17, 400, 400, 999, 1000]
    pieces = [(src.ctypes.data + a, b - a) for a, b in itertools.pairwise(cuts)]
    assert store.batch_put_from_multi_buffers(["k"], [[p for p, _ in pieces]], [[n for _, n in pieces]]) == [0]
    assert store.get("k") == src.tobytes()
    at = dst.ctypes.data
    assert store.batch_get_into_multi_buffers(["k"], [[at, at + 300, at + 700]], [[300, 400, 500]]) == [1000]
    assert np.array_equal(src, dst[:1000])
    assert not dst[1000:].any()


def test_each_key_of_a_batch_has_its_own_answer(store):
    data = arena(64)
    at = data.ctypes.data
    assert store.put_from("there", at, 64) == 0
    assert store.batch_get_into(["there", "missing", "there"], [at] * 3, [64, 64, 63]) == [64, -704, -600]
    assert store.batch_get_into_multi_buffers(["missing", "there"], [[at], [at, at + 32]], [[64], [32, 32]]) == [
        -704,
        64,
    ]


def test_a_buffer_smaller_than_the_object_is_left_alone(store):
    assert store.put("k", b"x" * 100) == 0
    into = np.zeros(100, dtype=np.uint8)
    assert store.get_into("k", into.ctypes.data, 99) == -600
    assert "100" in store.last_error()
    assert "99" in store.last_error()
    assert not into.any()


def test_a_larger_buffer_keeps_its_rest(store):
    assert store.put("k", b"x" * 100) == 0
    into = np.full(200, 7, dtype=np.uint8)
    assert store.get_into("k", into.ctypes.data, 200) == 100
    assert (into[:100] == ord("x")).all()
    assert (into[100:] == 7).all()


@pytest.mark.parametrize(
    ("ptrs", "sizes"),
    [([1], [1, 1]), ([1, 1], [1]), ([], []), ([1] * 3, [1] * 3)],
)
def test_lists_of_unequal_lengths_fail_for_every_key(store, ptrs, sizes):
    keys = ["a", "b"]
    assert store.batch_put_from(keys, ptrs, sizes) == [-600, -600]
    assert store.batch_get_into(keys, ptrs, sizes) == [-600, -600]
    nested = [[p] for p in ptrs], [[s] for s in sizes]
    assert store.batch_put_from_multi_buffers(keys, *nested) == [-600, -600]
    assert store.batch_get_into_multi_buffers(keys, *nested) == [-600, -600]
    assert "2 keys" in store.last_error()


def test_pieces_without_a_size_fail_for_every_key(store):
    data = arena(8)
    at = data.ctypes.data
    assert store.batch_put_from_multi_buffers(["a", "b"], [[at], [at, at]], [[8], [8]]) == [-600, -600]
    assert store.batch_is_exist(["a", "b"]) == [0, 0]


def test_unregistering_what_is_not_registered_says_so(store):
    assert store.unregister_buffer(0x1000) == -600
    assert "0x1000" in store.last_error()


def test_a_read_only_source_can_be_registered_and_read(store):
    text = b"literal bytes, read-only for the kernel or not" * 100
    at = ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value
    assert store.register_buffer(at, len(text)) == 0
    assert store.put_from("k", at, len(text)) == 0
    assert store.get("k") == text
    assert store.unregister_buffer(at) == 0


def test_batches_with_very_long_keys_are_cut_to_what_the_master_reads(store):
    keys = [f"{i:04}" + "k" * 60_000 for i in range(1_200)]
    assert store.put_batch(keys, [b"v"] * len(keys)) == 0, store.last_error()
    assert store.batch_is_exist(keys) == [1] * len(keys)
    assert store.get_batch(keys) == [b"v"] * len(keys)
    assert [bytes(view) for view in store.batch_get_buffer(keys)] == [b"v"] * len(keys)
    assert store.batch_remove(keys, True) == [0] * len(keys)
    assert store.health_check() == 0


# Sums of 2^64 and a little, of 2^63 twice, and of pieces that each are too large already.
WRAPPING = [[1 << 63, (1 << 63) + 4096], [(1 << 64) - 1, 4097], [1 << 63, 1 << 63], [4096, (1 << 64) - 4096]]


@pytest.mark.parametrize("sizes", WRAPPING, ids=str)
def test_sizes_whose_sum_wraps_around_touch_nothing(cluster, sizes):
    c = cluster(nodes=1, node_bytes=32 << 20)
    peer = c.process()
    keys, others = ["bad"], [f"other-{i}" for i in range(8)]
    for key in others:
        assert peer.call("put", key, key.encode() * 4096) == 0
    at = peer.call("arena", 1 << 20)
    assert peer.call("batch_put_from_multi_buffers", keys, [[at, at]], [sizes])[0] < 0
    assert peer.call("put", "bad", b"8" * 8192) == 0
    assert peer.call("batch_get_into_multi_buffers", keys, [[at, at]], [sizes])[0] in (-600, 8192)
    assert peer.call("get_batch", others) == [key.encode() * 4096 for key in others]
