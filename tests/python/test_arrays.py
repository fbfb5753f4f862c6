"""numpy arrays are stored as the tensors that they are, without torch."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from mooncake import errors
from mooncake.store import ReplicateConfig
from mooncake.store._tensor_header import CODES, HEADER_SIZE, decode, full

KINDS = [name for name in CODES if hasattr(np, name) or name == "bool"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (2, 3, 4)], ids=str)
def test_an_array_comes_back_as_it_was(store, kind, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
    assert store.put_array("a", array) == 0, store.last_error()
    got = store.get_array("a")
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert np.array_equal(got, array)
    got.flags.writeable and got.fill(0)
    assert np.array_equal(store.get_array("a"), array), "memory of its own"
    stored = store.get("a")
    assert decode(stored, len(stored)) == full(CODES[kind], shape)
    assert stored[HEADER_SIZE:] == array.tobytes()


def test_order_and_byte_order_are_those_of_the_object(store):
    array = np.arange(24, dtype=">i4").reshape(4, 6).T[::2]
    config = ReplicateConfig()
    assert store.put_array(b"a", array, config) == 0
    got = store.get_array(b"a")
    assert got.dtype == np.int32
    assert np.array_equal(got, array)
    large = np.arange(3 << 20, dtype=np.float64)
    assert store.put_array("large", large) == 0
    assert np.array_equal(store.get_array("large"), large)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1], "numpy array is needed, not list"),
        (np.array(["text"]), "cannot be stored"),
        (np.zeros(2, complex), "complex128 cannot be stored"),
        (np.zeros((1,) * 9), "9 dimensions"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_reason(store, value, reason):
    assert store.put_array("a", value) == -600
    assert reason in store.last_error()
    assert store.is_exist("a") == 0


def test_a_checked_store_gives_arrays_of_any_length_and_raises_where_there_is_none(store):
    raising = errors.checked(store)
    for array in (np.arange(4.0), np.zeros(()), np.zeros((0, 3), np.int8)):
        assert raising.put_array("a", array) == 0
        assert np.array_equal(raising.get_array("a"), array)
        assert raising.remove("a", force=True) == 0
    with pytest.raises(errors.NotFound):
        raising.get_array("a")


def test_misses_and_other_objects_are_none_with_a_reason(store):
    assert store.get_array("no") is None
    assert "no such object" in store.last_error()
    assert store.put("k", b"no array") == 0
    assert store.get_array("k") is None
    assert "header" in store.last_error()
    assert store.put("bf16", full(CODES["bfloat16"], (1,)).encode() + b"ab") == 0
    assert store.get_array("bf16") is None
    assert "get_tensor" in store.last_error()
    for wrong in (7, None):
        with pytest.raises(TypeError):
            store.put_array(wrong, np.zeros(1))
        with pytest.raises(TypeError):
            store.get_array(wrong)


def test_who_takes_an_array_for_a_tensor_is_told_where_it_belongs(store):
    assert store.put_tensor("t", np.zeros(1)) == -600
    assert "put_array" in store.last_error()


def test_without_torch_an_array_that_is_read_as_a_tensor_says_what_to_install(store, monkeypatch):
    for module in ("torch", "safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, module, None)
    assert store.put_array("a", np.arange(4)) == 0
    calls = [
        lambda: store.get_tensor("a"),
        lambda: store.load_tensor_from_safetensor("a", "nowhere"),
        lambda: store.save_tensor_to_safetensor("a", "nowhere"),
    ]
    for call in calls:
        assert call() in (None, -600)
        assert "mooncake-rs[torch]" in store.last_error()
    assert np.array_equal(store.get_array("a"), np.arange(4))
