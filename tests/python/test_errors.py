"""Failures as exceptions, for those who ask for them."""

from __future__ import annotations

import asyncio
import ctypes
import pickle
from pathlib import Path

import pytest

from mooncake import _native, errors
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.store import BufferPool, MooncakeDistributedStore, ReplicateConfig


def test_exceptions_are_the_same_in_another_process():
    for failed in (errors.error(-704, "no such object", "k"), errors.error(-200, "full"), errors.error(-900)):
        there = pickle.loads(pickle.dumps(failed))
        assert (type(there), str(there), there.code, there.reason, there.key) == (
            type(failed),
            str(failed),
            failed.code,
            failed.reason,
            failed.key,
        )


def test_a_failure_is_raised_with_its_code_and_reason(store):
    raising = errors.checked(store)
    assert raising.put("k", b"v") == 0
    assert raising.get("k") == b"v"
    for call in (raising.get, raising.get_buffer, raising.get_tensor):
        with pytest.raises(errors.NotFound, match="no such object") as miss:
            call("no")
        assert miss.value.key == "no"
    assert raising.get_batch(["k", "no"]) == [b"v", b""]
    assert raising.batch_get_buffer(["no"]) == [None]
    assert raising.is_exist("no") == 0
    assert "k" in raising
    assert "no" not in raising
    with pytest.raises(errors.NotFound, match="no such object") as missing:
        raising.get_size("no")
    assert missing.value.code == -704
    with pytest.raises(errors.InvalidKey, match="65536") as bad:
        raising.put("k" * 70_000, b"v")
    assert bad.value.code == -400


def test_a_value_that_cannot_be_had_for_another_reason_is_no_miss(cluster):
    pool = cluster()
    raising = errors.checked(pool.store())
    assert raising.put("k", b"v") == 0
    pool.master.stop()
    try:
        with pytest.raises(errors.MasterUnreachable):
            raising.get("k")
    finally:
        pool.master.cont()
    raising.close()
    with pytest.raises(errors.InvalidParams, match="setup"):
        raising.get("k")


def test_what_is_no_tensor_is_refused_as_that(store):
    raising = errors.checked(store)
    assert raising.put("k", b"no tensor") == 0
    with pytest.raises(errors.InvalidParams, match="header"):
        raising.get_tensor("k")


def test_a_checked_store_completes_and_passes_as_the_store(store):
    raising = errors.checked(store)
    assert {"put", "get_buffer", "last_error"} <= set(dir(raising))
    assert {"async_put", "put"} <= set(dir(errors.checked(MooncakeDistributedStoreAsync())))
    with BufferPool(raising) as buffers, buffers.acquire(4096) as lease:
        assert raising.put_from("k", lease.ptr, 16) == 0


def test_the_first_bad_key_of_a_batch_is_named(store):
    raising = errors.checked(store)
    assert raising.put("there", b"v") == 0
    with pytest.raises(errors.NotFound) as missing:
        raising.batch_remove(["there", "gone"], True)
    assert missing.value.key == "gone"
    assert isinstance(missing.value, KeyError)


def test_every_exception_is_a_store_error_and_knows_its_code():
    for code, kind in errors.BY_CODE.items():
        raised = errors.error(code, "because")
        assert type(raised) is kind
        assert isinstance(raised, errors.StoreError)
        assert raised.code == code
        assert "because" in str(raised)
    assert type(errors.error(-12345)) is errors.StoreError


def test_a_store_that_is_not_set_up_says_so():
    with pytest.raises(errors.InvalidParams, match="setup"):
        errors.checked(MooncakeDistributedStore()).get_size("k")


def test_the_page_of_codes_is_the_one_that_the_table_makes():
    page = Path(__file__).parents[2] / "docs/error-codes.md"
    assert page.read_text() == errors.reference_page(), "docs/error-codes.md is stale: run `make reference`"


def test_every_exception_has_a_row_of_the_table_and_says_the_same():
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.StoreError)}
    assert kinds - {errors.StoreError} == set(errors.BY_CODE.values())
    meanings = {number: meaning for number, _, _, meaning in _native._error_codes()}
    for code, kind in errors.BY_CODE.items():
        assert kind.__doc__ == f"{code}: {meanings[code]}."


def test_codes_in_lists_of_lists_and_in_answers_of_several_parts_are_judged(store):
    raising = errors.checked(store)
    memory = ctypes.create_string_buffer(8)
    at = ctypes.addressof(memory)
    assert raising.put("there", b"12345678") == 0
    assert raising.get_into_ranges([at], [["there"]], [[[0]]], [[[0]]], [[[8]]]) == [[[8]]]
    with pytest.raises(errors.NotFound) as missing:
        raising.get_into_ranges([at], [["there", "gone"]], [[[0], [0]]], [[[0], [0]]], [[[8], [8]]])
    assert missing.value.key == "gone"
    with pytest.raises(errors.InvalidParams, match="nowhere"):
        raising.mount_segment("/nowhere/at/all", 4096)


def test_coroutines_raise_too_each_with_its_own_reason(shared_cluster):
    store = MooncakeDistributedStoreAsync()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", shared_cluster.master.addr) == 0
    raising = errors.checked(store)

    async def reason_of(call, *args):
        try:
            return await call(*args)
        except errors.StoreError as error:
            return type(error), error.reason

    async def use():
        assert await raising.async_put("k", b"v") == 0
        assert await raising.async_get("k") == b"v"
        misses = await asyncio.gather(*(reason_of(raising.async_get, "gone") for _ in range(50)))
        assert {kind for kind, _ in misses} == {errors.NotFound}
        assert all("no such object" in reason for _, reason in misses)
        with pytest.raises(errors.InvalidKey):
            await raising.async_put("", b"x")
        with pytest.raises(errors.NotFound) as missing:
            await raising.async_batch_remove(["k", "gone"], True)
        assert missing.value.key == "gone"
        assert await raising.async_health_check() == 0
        config = ReplicateConfig()
        config.replica_num = 0
        calls = []
        for _ in range(50):
            calls.append(reason_of(raising.async_put, "k" * 70_000, b"x"))
            calls.append(reason_of(raising.async_put, "k", b"x", config))
            calls.append(reason_of(raising.async_is_exist, "gone"))
        outcomes = await asyncio.gather(*calls)
        for long_key, no_copy, exists in zip(outcomes[::3], outcomes[1::3], outcomes[2::3], strict=True):
            assert long_key[0] is errors.InvalidKey
            assert "65536" in long_key[1]
            assert no_copy[0] is errors.InvalidParams
            assert "replica_num" in no_copy[1]
            assert exists == 0

    asyncio.run(use())
    store.close()
