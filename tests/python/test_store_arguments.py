"""What is not an argument is a TypeError, as callers of Mooncake expect; nothing else ever raises."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

NOT_AN_INTEGER = [-1, 1 << 64, 1.0, "1", None, b"1"]
NOT_A_KEY = [1, None, 1.5, ["a"], bytearray(b"a"), "\ud800"]
NOT_A_VALUE = ["text", None, 7, ["x"], np.zeros((4, 4))[:, 1]]
NOT_A_LIST = ["keys", b"keys", 3, None, {"a": 1}]


@pytest.mark.parametrize("key", NOT_A_KEY, ids=repr)
def test_keys_are_str_or_bytes(key):
    s = MooncakeDistributedStore()
    for call in (
        lambda: s.put(key, b"v"),
        lambda: s.put_parts(key, b"v"),
        lambda: s.get(key),
        lambda: s.get_buffer(key),
        lambda: s.is_exist(key),
        lambda: s.get_size(key),
        lambda: s.remove(key),
        lambda: s.put_from(key, 1, 1),
        lambda: s.get_into(key, 1, 1),
        lambda: s.put_batch([key], [b"v"]),
        lambda: s.get_batch([key]),
        lambda: s.batch_is_exist([key]),
        lambda: s.batch_remove(["fine", key]),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("value", NOT_A_VALUE, ids=lambda v: type(v).__name__)
def test_values_have_a_contiguous_buffer(value):
    s = MooncakeDistributedStore()
    for call in (
        lambda: s.put("k", value),
        lambda: s.put_parts("k", b"v", value),
        lambda: s.put_batch(["a", "b"], [b"v", value]),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("number", NOT_AN_INTEGER, ids=repr)
def test_addresses_and_sizes_that_do_not_fit_are_a_type_error(number):
    s = MooncakeDistributedStore()
    for call in (
        lambda: s.put_from("k", number, 1),
        lambda: s.put_from("k", 1, number),
        lambda: s.get_into("k", number, 1),
        lambda: s.register_buffer(number, 1),
        lambda: s.register_buffer(1, number),
        lambda: s.unregister_buffer(number),
        lambda: s.batch_put_from(["k"], [number], [1]),
        lambda: s.batch_get_into(["k"], [1], [number]),
        lambda: s.batch_put_from_multi_buffers(["k"], [[1, number]], [[1, 1]]),
        lambda: s.batch_get_into_multi_buffers(["k"], [[1]], [[number]]),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("keys", NOT_A_LIST, ids=repr)
def test_a_string_is_not_a_list_of_keys(keys):
    s = MooncakeDistributedStore()
    for call in (s.batch_is_exist, s.get_batch, s.batch_get_buffer, s.batch_remove):
        with pytest.raises(TypeError):
            call(keys)


def test_tuples_arrays_and_numpy_integers_are_taken(store):
    data = np.arange(8, dtype=np.uint8)
    address, size = np.uint64(data.ctypes.data), np.int64(8)
    assert store.batch_put_from(("n1",), np.array([address]), (size,)) == [0]
    assert store.batch_is_exist(("n1", "n2")) == [1, 0]
    assert store.get("n1") == data.tobytes()


def test_names_of_the_reference_work_as_keywords(store):
    data = ctypes.create_string_buffer(b"12345678", 8)
    at = ctypes.addressof(data)
    assert store.put(key="k1", value=b"v", config=ReplicateConfig()) == 0
    assert store.put_parts("k2", b"a", b"b", config=ReplicateConfig()) == 0
    assert store.put_batch(keys=["k3"], values=[b"v"], config=ReplicateConfig()) == 0
    assert store.register_buffer(buffer_ptr=at, size=8) == 0
    assert store.put_from(key="k4", buffer_ptr=at, size=8, config=ReplicateConfig()) == 0
    assert store.get_into(key="k4", buffer_ptr=at, size=8) == 8
    assert store.batch_put_from(keys=["k5"], buffer_ptrs=[at], sizes=[8], config=ReplicateConfig()) == [0]
    assert store.batch_get_into(keys=["k5"], buffer_ptrs=[at], sizes=[8]) == [8]
    assert store.batch_put_from_multi_buffers(
        keys=["k6"], all_buffer_ptrs=[[at, at]], all_sizes=[[4, 4]], config=ReplicateConfig()
    ) == [0]
    assert store.batch_get_into_multi_buffers(
        keys=["k6"], all_buffer_ptrs=[[at]], all_sizes=[[8]], prefer_alloc_in_same_node=False
    ) == [8]
    assert store.batch_is_exist(keys=["k6"]) == [1]
    assert store.unregister_buffer(buffer_ptr=at) == 0
    assert store.remove(key="k1", force=True) == 0
    assert store.batch_remove(keys=["k2"], force=True) == [0]
    assert store.remove_all(force=True) == 4


@pytest.mark.parametrize("name", ["get", "get_batch", "get_buffer", "batch_get_buffer", "is_exist", "get_size"])
def test_positional_only_calls_have_no_keywords(name):
    with pytest.raises(TypeError):
        getattr(MooncakeDistributedStore(), name)(key="k")


def test_a_store_that_is_not_set_up_answers_with_codes_and_a_reason():
    s = MooncakeDistributedStore()
    answers = {
        "put": s.put("k", b"v"),
        "put_parts": s.put_parts("k", b"v"),
        "put_batch": s.put_batch(["k"], [b"v"]),
        "put_from": s.put_from("k", 1, 1),
        "get_into": s.get_into("k", 1, 1),
        "get_size": s.get_size("k"),
        "remove": s.remove("k"),
        "remove_all": s.remove_all(),
        "register_buffer": s.register_buffer(1, 1),
        "unregister_buffer": s.unregister_buffer(1),
    }
    assert set(answers.values()) == {-600}, answers
    assert "setup()" in s.last_error()
    two = ["a", "b"]
    assert s.batch_remove(two) == [-600, -600]
    assert s.batch_put_from(two, [1, 1], [1, 1]) == s.batch_get_into(two, [1, 1], [1, 1]) == [-600, -600]
    assert s.get("k") == b""
    assert s.get_batch(two) == [b""]
    assert s.get_buffer("k") is None
    assert s.batch_get_buffer(two) == [None, None]
    assert s.get_hostname() == ""
    assert s.health_check() == 1
    assert s.close() == 0
    assert s.last_error() == ""


def test_a_store_without_a_pool_has_no_key_and_says_why(shared_cluster):
    """Engines take the answer for a truth value: any other than 0 would make every key one that exists."""
    closed = shared_cluster.store()
    assert closed.put("here", b"v") == 0
    assert closed.close() == 0
    failed = MooncakeDistributedStore()
    assert failed.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", "nowhere.invalid:1") < 0
    for s in (MooncakeDistributedStore(), closed, failed):
        assert s.is_exist("here") == 0
        assert "is_exist" in s.last_error()
        assert "setup()" in s.last_error()
        assert s.batch_is_exist(["here", "k"]) == [0, 0]
        assert "setup()" in s.last_error()
        assert s.get_size("here") == -600
    other = shared_cluster.store()
    assert other.is_exist("here") == 1
    assert other.remove("here", True) == 0
    other.close()


def test_calls_of_a_tier_of_ssds_answer_as_without_one(store):
    assert store.put("k", b"v") == 0
    assert store.unmount_local_disk_segment() == 0
    assert store.unmount_local_disk_segment(3600) == 0, "there is nothing to wait for"
    assert store.unmount_local_disk_segment(grace_period_seconds=0) == 0
    assert store.get_offload_rpc_read_count() == 0
    for wrong in (-1, "1", 1.5):
        with pytest.raises(TypeError):
            store.unmount_local_disk_segment(wrong)
    assert MooncakeDistributedStore().unmount_local_disk_segment() == 0


def test_the_store_can_not_be_made_to_borrow_itself():
    """Frozen classes: no attribute can be set, none can be subclassed into something else by accident."""
    with pytest.raises(AttributeError):
        MooncakeDistributedStore().anything = 1
