"""Shards of tensors where there is no torch: they are stored from memory, and read through numpy in its place.

`make e2e` runs the files of tensors that need torch itself, with its own.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from mooncake.store import _tensor_header as th
from mooncake.store import _tensor_memory as memory


class Numpy:
    """What reading a stored shard asks of torch."""

    frombuffer, empty = staticmethod(np.frombuffer), staticmethod(np.empty)


@pytest.fixture(autouse=True)
def numpy_for_torch(monkeypatch):
    monkeypatch.setattr(memory, "_torch", lambda: Numpy)
    monkeypatch.setattr(memory, "_torch_types", lambda: tuple(getattr(np, name, None) for name, _ in th.DTYPES))


def as_object(array: np.ndarray) -> ctypes.Array:
    """A whole tensor in memory, as it is stored."""
    header = th.full(th.CODES[str(array.dtype)], array.shape)
    return ctypes.create_string_buffer(header.encode() + array.tobytes(), header.total_bytes)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("size", [2, 4])
def test_without_a_dimension_a_rank_gets_its_stored_shard(store, dim, size):
    whole = np.arange(4 * 8 * 12, dtype=np.int32).reshape(4, 8, 12)
    given = as_object(whole)
    assert store.put_tensor_with_tp_from("t", ctypes.addressof(given), len(given), 0, size, dim) == 0
    room = ctypes.create_string_buffer(len(given))
    for rank, part in enumerate(np.split(whole, size, dim)):
        # A rank of none says nothing of how the tensor was cut: the one that is stored does.
        assert np.array_equal(store.get_tensor_with_tp("t", rank, size), part), store.last_error()
        [one] = store.batch_get_tensor_with_tp(["t"], rank, size)
        assert np.array_equal(one, part)
        into = store.get_tensor_with_tp_into("t", ctypes.addressof(room), len(room), rank, size)
        assert np.array_equal(into, part)
        assert bytes(room)[th.HEADER_SIZE :][: part.nbytes] == part.tobytes()


def test_a_rank_of_which_nothing_is_stored_is_none_and_the_reason_is_told(store):
    whole = np.arange(16, dtype=np.float32).reshape(2, 8)
    given = as_object(whole)
    assert store.put_tensor_with_tp_from("t", ctypes.addressof(given), len(given), 0, 2, 1) == 0
    assert store.remove("t_tp_1", True) == 0
    assert np.array_equal(store.get_tensor_with_tp("t", 0, 2), whole[:, :4])
    assert store.get_tensor_with_tp("t", 1, 2) is None
    assert "no such object" in store.last_error()
    assert store.get_tensor_with_tp("other", 0, 2) is None
