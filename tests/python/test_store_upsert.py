"""Upserts replace a value; until the new one is whole the old one is read."""

from __future__ import annotations

import ctypes

import pytest

from mooncake.store import ReplicateConfig


@pytest.fixture
def memory():
    """4 KiB of some bytes; its address."""
    made = ctypes.create_string_buffer(bytes(i % 251 for i in range(4096)), 4096)
    made.at = ctypes.addressof(made)
    return made


def test_every_form_replaces_what_is_there_and_makes_what_is_not(store, memory):
    for turn in range(2):
        size = 100 + turn
        assert store.upsert("a", b"%d" % turn * size) == 0
        assert store.upsert_parts("b", b"x", b"%d" % turn, config=ReplicateConfig()) == 0
        assert store.upsert_batch(["c", "d"], [b"c%d" % turn, b"d%d" % turn]) == 0
        assert store.upsert_from("e", memory.at + turn, size) == 0
        assert store.batch_upsert_from(["f", "g"], [memory.at + turn, memory.at], [size, 7]) == [0, 0]
        assert store.get_batch(["a", "b", "c", "d"]) == [
            b"%d" % turn * size,
            b"x%d" % turn,
            b"c%d" % turn,
            b"d%d" % turn,
        ]
        assert store.get_batch(["e", "f", "g"]) == [
            memory.raw[turn : turn + size],
            memory.raw[turn : turn + size],
            memory.raw[:7],
        ]


def test_a_put_keeps_what_an_upsert_wrote(store):
    assert store.upsert("k", b"upserted") == 0
    assert store.put("k", b"put") == 0
    assert store.get("k") == b"upserted"


def test_a_view_of_the_old_value_does_not_change(store):
    assert store.put("k", b"old" * 1000) == 0
    view = store.get_buffer("k")
    assert store.upsert("k", b"new" * 1000) == 0
    assert bytes(view) == b"old" * 1000
    assert store.get("k") == b"new" * 1000


def test_an_upsert_that_fails_leaves_the_old_value(store):
    assert store.put("k", b"old") == 0
    assert store.upsert_from("k", 8, 4096) < 0
    assert store.upsert("k", bytes(1 << 30)) == -200
    assert store.get("k") == b"old"


def test_metadata_and_data_make_one_object(store, memory):
    assert store.put_from_with_metadata("k", memory.at + 100, memory.at, 50, 8) == 0
    assert store.get("k") == memory.raw[:8] + memory.raw[100:150]
    assert store.put_from_with_metadata("k2", memory.at, 0, 50, 0) == 0
    assert store.get("k2") == memory.raw[:50]
    assert store.put_from_with_metadata("bad", memory.at, 8, 50, 4096) == -600


def test_fragments_are_gathered_from_several_objects(store, memory):
    a, b = bytes(range(200)), bytes(range(100, 250))
    assert store.put_batch(["a", "b"], [a, b]) == 0
    into = ctypes.create_string_buffer(256)
    at = ctypes.addressof(into)
    assert store.register_buffer(at, 256) == 0
    got = store.get_into_ranges(
        [at, at + 128],
        [["a", "b"], ["b", "missing", "a"]],
        [[[0, 64], [32]], [[0], [10], [64, 0]]],
        [[[10, 150], [0]], [[50], [0], [0, 190]]],
        [[[16, 50], [8]], [[32], [4], [8, 20]]],
    )
    assert got == [[[16, 50], [8]], [[32], [-704], [8, -600]]]
    assert into.raw[:16] == a[10:26]
    assert into.raw[64:114] == a[150:200]
    assert into.raw[32:40] == b[:8]
    assert into.raw[128:160] == b[50:82]
    assert into.raw[192:200] == a[:8]
    assert "no such object" in store.last_error(), "the first that failed"
    assert store.get_into_ranges([at], [["a"]], [[[0]]], [[[190]]], [[[20]]]) == [[[-600]]]
    assert "200 bytes" in store.last_error()


@pytest.mark.parametrize(
    ("keys", "destinations", "sources", "sizes", "answer"),
    [
        # Fragments of one key: the other is read.
        ([["a", "b"]], [[[0, 10], [20]]], [[[0], [0]]], [[[5, 5], [5]]], [[[-600, -600], [5]]]),
        ([["a", "b"]], [[[0, 10], [20]]], [[[0, 0], [0]]], [[[5], [5]]], [[[-600, -600], [5]]]),
        ([["a", "b"]], [[[0], [20]]], [[[0, 0], [0]]], [[[5, 5], [5]]], [[[-600], [5]]]),
        # Keys of a buffer: an entry for each key, and in it one for each destination.
        ([["a", "b"]], [[[0, 10]]], [[[0, 0], [0]]], [[[5, 5], [5]]], [[[-600, -600], [-600]]]),
        ([["a"]], [[[0, 10], [20]]], [[[0, 0], [0]]], [[[5, 5], [5]]], [[[-600, -600]]]),
        # Buffers.
        ([["a", "b"]], [], [[[0, 0], [0]]], [[[5, 5], [5]]], [[[-600], [-600]]]),
        ([["a", "b"], ["a"]], [[[0, 10], [20]]], [[[0, 0], [0]]], [[[5, 5], [5]]], [[[-600, -600], [-600]]]),
        ([], [], [], [], [[[-600]]]),
        ([[]], [[]], [[]], [[]], [[]]),
    ],
)
def test_fragments_that_do_not_fit_fail_in_the_shape_of_the_reference(
    store, memory, keys, destinations, sources, sizes, answer
):
    assert store.put_batch(["a", "b"], [bytes(200), bytes(150)]) == 0
    assert store.get_into_ranges([memory.at], keys, destinations, sources, sizes) == answer
    assert ("fit together" in store.last_error()) == ("-600" in str(answer))


def test_buffers_without_keys_have_an_entry_each(store, memory):
    assert store.put("a", bytes(200)) == 0
    two = [memory.at, memory.at]
    one_list = ([["a", "a"]], [[[0, 10], [20]]], [[[0, 0], [0]]], [[[5, 5], [5]]])
    assert store.get_into_ranges(two, *one_list) == [[[-600, -600], [-600]], [[-600]]]
    second_misfits = ([["a"], ["a", "a"]], [[[0]], [[1]]], [[[0]], [[1], [2]]], [[[5]], [[5], [5, 5]]])
    assert store.get_into_ranges(two, *second_misfits) == [[[5]], [[-600], [-600]]]
