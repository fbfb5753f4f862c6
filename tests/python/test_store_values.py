"""Whatever has bytes can be stored under whatever has UTF-8 or is bytes, and comes back as it was."""

from __future__ import annotations

import array
import ctypes

import numpy as np
import pytest

VALUES = {
    "bytes": b"\x00\xff value",
    "bytearray": bytearray(b"value"),
    "memoryview": memoryview(b"value")[1:],
    "array": array.array("d", [1.5, 2.5]),
    "numpy floats": np.arange(6, dtype=np.float32).reshape(2, 3),
    "numpy bool": np.array([True, False]),
    "numpy structs": np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
    "ctypes": (ctypes.c_int32 * 4)(1, 2, 3, 4),
    "memoryview of ctypes": memoryview((ctypes.c_double * 2)(1, 2)),
    "numpy scalar array": np.array(3.0),
}

KEYS = [
    "plain",
    b"bytes",
    "Überraschung/漢字/🌑",
    "nul\0inside",
    b"\xff\xfe not utf-8",
    "model/with/slashes@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@0a1b2c",
    " ",
    "x" * 250,
    "x" * 65536,
]


@pytest.mark.parametrize("kind", VALUES)
def test_every_kind_of_buffer_comes_back_byte_for_byte(store, kind):
    value = VALUES[kind]
    want = memoryview(value).tobytes()
    assert store.put("whole", value) == 0, store.last_error()
    assert store.put_parts("parts", b"head", value, value) == 0
    assert store.put_batch(["batch-1", "batch-2"], [value, want]) == 0
    assert store.get("whole") == want
    assert store.get("parts") == b"head" + want * 2
    assert store.get_batch(["batch-1", "batch-2"]) == [want, want]


@pytest.mark.parametrize("key", KEYS, ids=lambda k: repr(k)[:30])
def test_every_key_is_a_key(store, key):
    value = repr(key[:40]).encode()
    assert store.put(key, value) == 0, store.last_error()
    assert store.is_exist(key) == 1
    assert store.get_size(key) == len(value)
    assert store.get(key) == value
    assert bytes(store.get_buffer(key)) == value
    assert store.remove(key, True) == 0
    assert store.is_exist(key) == 0


def test_str_and_its_utf8_are_the_same_key(store):
    assert store.put("schlüssel", b"v") == 0
    assert store.get("schlüssel".encode()) == b"v"


@pytest.mark.parametrize(
    "key", ["", b"", "x" * 65537, b"k" * (16 << 20)], ids=["empty", "empty b", "64 KiB+1", "16 MiB"]
)
def test_keys_that_are_none_are_refused_with_the_limit(store, key):
    assert store.put(key, b"v") == -400
    assert "65536" in store.last_error()
    assert store.is_exist(key) == 0
    assert store.get(key) == b""
    assert store.get_size(key) < 0
    assert store.remove(key) < 0
    # Its neighbours in a batch are not harmed.
    assert store.batch_is_exist([key, "other"]) == [0, 0]
    assert store.put_batch(["other"], [b"v"]) == 0
    assert store.get_batch([key, "other"]) == [b"", b"v"]


def test_one_bad_key_of_a_batch_fails_alone(store):
    data = ctypes.create_string_buffer(b"abcd", 4)
    at = ctypes.addressof(data)
    assert store.batch_put_from(["good", "", "fine"], [at] * 3, [4] * 3) == [0, -400, 0]
    assert store.get_batch(["good", "fine"]) == [b"abcd", b"abcd"]


def test_a_key_that_is_there_is_not_written_again(store):
    assert store.put("k", b"first") == 0
    assert store.put("k", b"second") == 0
    assert store.get("k") == b"first"


def test_the_first_of_equal_keys_in_a_batch_wins(store):
    assert store.put_batch(["k", "other", "k"], [b"first", b"x", b"second"]) == 0
    assert store.get("k") == b"first"


def test_empty_values_are_refused_and_empty_parts_store_nothing(store):
    assert store.put("empty", b"") == -600
    assert store.last_error() != ""
    assert store.put_parts("empty") == 0
    assert store.put_parts("empty", b"", memoryview(b"")) == 0
    assert store.put_from("empty", 0, 0) == 0
    assert store.put_batch(["empty"], [b""]) == -600
    assert store.is_exist("empty") == 0
    assert store.get("empty") == b""


def test_parts_may_be_empty_among_others(store):
    assert store.put_parts("k", b"", b"a", b"", b"b") == 0
    assert store.get("k") == b"ab"


def test_a_batch_of_unequal_lengths_stores_nothing(store):
    assert store.put_batch(["a", "b"], [b"v"]) == -600
    assert "2 keys and 1 values" in store.last_error()
    assert store.batch_is_exist(["a", "b"]) == [0, 0]


def test_empty_batches_are_empty(store):
    assert store.batch_is_exist([]) == store.batch_get_buffer([]) == store.batch_remove([]) == []
    assert store.batch_put_from([], [], []) == store.batch_get_into([], [], []) == []
    assert store.put_batch([], []) == 0
    assert store.get_batch([]) == [b""]


def test_missing_keys_have_their_own_answers(store):
    assert store.get("missing") == b""
    assert store.get_batch(["missing", "missing too"]) == [b"", b""]
    assert store.get_buffer("missing") is None
    assert store.is_exist("missing") == 0
    assert store.get_size("missing") == -704
    assert store.remove("missing") == -704
    assert store.get_into("missing", 1, 1) == -704


def test_last_error_speaks_of_the_last_call_only(store):
    store.put("", b"v")
    assert store.last_error() != ""
    assert store.put("k", b"v") == 0
    assert store.last_error() == ""


def test_values_that_can_never_fit_fail_at_once_with_the_reason(store):
    value = bytes(300 << 20)  # the pool has 256 MiB
    assert store.put("huge", value) == -200
    assert str(300 << 20) in store.last_error()


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 4096, 65537, 1 << 20, (16 << 20) + 1])
def test_every_size_comes_back_by_every_way(store, size):
    value = np.random.default_rng(size).bytes(size)
    assert store.put("k", value) == 0
    assert store.get("k") == value
    assert bytes(store.get_buffer("k")) == value
    into = np.zeros(size, dtype=np.uint8)
    assert store.get_into("k", into.ctypes.data, size) == size
    assert into.tobytes() == value
