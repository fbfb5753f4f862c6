"""Wrong calls of everything public, one subject a process: ``python wrong_calls.py SUBJECT MASTER``.

Arguments are wrong in type, length, sign and size, or missing, and now and then all right. Each call has a deadline:
one that does not come back ends the process with a traceback, one that kills it does so where a test can see it. What
was called last is in the file that WRONG_CALLS_LOG names.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import functools
import json
import mmap
import os
import sys
import tempfile
import warnings

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mooncake.errors import BY_CODE
from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import (
    BufferHandle,
    BufferPool,
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ParallelAxis,
    ReadTarget,
    ReplicateConfig,
    SoftPinAction,
    TensorParallelism,
)

try:
    import torch
except ImportError:
    torch = None

DEADLINE_S = 25
CODES = {0, *BY_CODE}
PAGE = 4096
SIZE = 64 * 1024


def room() -> tuple[mmap.mmap, int]:
    """SIZE bytes with nothing behind them: the page there may not be touched."""
    memory = mmap.mmap(-1, SIZE + PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + SIZE), PAGE, 0) == 0
    return memory, address


MEMORY, ROOM = room()

# Sizes of memory that could really be had are left out: a test is not to take it.
NUMBERS = st.one_of(
    st.integers(0, 1 << 16),
    st.integers(-(1 << 66), -1),
    st.integers(1 << 46, 1 << 66),
    st.sampled_from([1 << 63, 1 << 64]),
)
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=8), st.binary(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=6,
) | st.sampled_from([object(), object, "\ud800", {"a"}, float("nan"), np.float32(1), bytearray(b"x"), 1j])

KEY = st.sampled_from(["there", "k", b"k", b"\xff\0", "ключ", "", "x" * 65_536, "x" * 65_537])
VALUE = st.sampled_from(
    [b"v", b"", b"v" * 5000, bytearray(b"w" * 9), memoryview(b"ab"), memoryview(b"abcdef")[::2], np.arange(9)]
)
ADDRESS = st.sampled_from([ROOM, ROOM + 1, ROOM + SIZE - 1, ROOM + SIZE, 0, 1, 1 << 47, (1 << 64) - 1])
BYTES = st.sampled_from([0, 1, 8, PAGE, SIZE, SIZE + 1, SIZE + PAGE, 1 << 46, 1 << 63, (1 << 64) - 1])
MANY = {"max_size": 3}


def configs():
    def made(fields):
        config = ReplicateConfig()
        for name, value in fields.items():
            setattr(config, name, value)
        return config

    fields = {
        "replica_num": st.sampled_from([0, 1, 2, 1 << 40]),
        "nof_replica_num": st.sampled_from([0, 1]),
        "dfs_replica_num": st.sampled_from([0, 1]),
        "soft_pin_action": st.sampled_from([SoftPinAction.PRESERVE, SoftPinAction.ENABLE, SoftPinAction.DISABLE]),
        "soft_pin_ttl_ms": st.sampled_from([None, 0, 5, (1 << 64) - 1]),
        "preferred_segments": st.lists(st.text(max_size=4), **MANY),
        "prefer_alloc_in_same_node": st.booleans(),
        "group_ids": st.none() | st.lists(st.text(max_size=4), **MANY),
    }
    return st.none() | st.fixed_dictionaries({}, optional=fields).map(made)


def tensors():
    if torch is None:
        return st.none()
    return st.sampled_from(
        [torch.arange(8), torch.ones(2, 3).t(), torch.zeros(0), torch.tensor(1.0), torch.zeros(9, 0, 9)]
    )


AXIS = st.builds(
    ParallelAxis,
    kind=st.sampled_from(["dp", "tp", "ep", "pp", "", "xx"]),
    rank=st.sampled_from([0, 1, 7, -1]),
    size=st.sampled_from([0, 1, 2, -1, 1 << 40]),
    split_dim=st.sampled_from([None, 0, 1, 9, -1]),
)
SHARDS = st.none() | st.builds(TensorParallelism, axes=st.lists(AXIS, max_size=5))
TARGET = st.none() | st.builds(ReadTarget, mode=st.sampled_from(["as_stored", "shard", "full"]), parallelism=SHARDS)
RANK = st.sampled_from([0, 1, 7, -1, 1 << 40])

# What an argument is to be, when it is right.
GOOD = {
    "key": KEY,
    "keys": st.lists(KEY, **MANY),
    "value": VALUE,
    "values": st.lists(VALUE, **MANY),
    "address": ADDRESS,
    "addresses": st.lists(ADDRESS, **MANY),
    "bytes": BYTES,
    "sizes": st.lists(BYTES, **MANY),
    "address lists": st.lists(st.lists(ADDRESS, **MANY), **MANY),
    "size lists": st.lists(st.lists(BYTES, **MANY), **MANY),
    "key lists": st.lists(st.lists(KEY, **MANY), **MANY),
    "range lists": st.lists(st.lists(st.lists(BYTES, **MANY), **MANY), **MANY),
    "flag": st.sampled_from([True, False, None, 1]),
    "config": configs(),
    "pattern": st.sampled_from(["k", "^there$", "", "(", "(a)\\1", "x" * 5000, "[", "(?=a)"]),
    "ids": st.lists(st.sampled_from(["", "x", "0" * 32, "g" * 32, "0" * 33]), **MANY),
    "seconds": st.sampled_from([0, 1, 1 << 40, (1 << 64) - 1]),
    "path": st.sampled_from(["", "/nowhere/file", "/", "\0", "/dev/null", "/proc/self/mem", b"/nowhere"]),
    "text": st.sampled_from(["", "tcp", "rdma", "\0", "?" * 300]),
    "tensor": tensors(),
    "tensors": st.lists(tensors(), **MANY),
    "rank": RANK,
    "shards": SHARDS,
    "shard list": st.none() | st.lists(SHARDS, **MANY),
    "target": TARGET,
    "targets": st.none() | st.lists(TARGET, **MANY),
    "none": st.none(),
    "host": st.sampled_from(["127.0.0.1", "", "[::1", "\0", "127.0.0.1:x", ":"]),
    "master": st.sampled_from(["127.0.0.1:1", "", "nonsense", ":", "127.0.0.1:99999", ",,", "\0"]),
    "dictionary": st.dictionaries(st.sampled_from(["local_hostname", "global_segment_size", "x"]), JUNK, max_size=3),
}


# What comes back: `judge(result)` says what is wrong with it, `failed(result)` whether it is a refusal.
def _code(result):
    return type(result) is int and result in CODES


def _count(result):
    return type(result) is int and (result >= 0 or result in CODES)


def _list_of(judge):
    return lambda result: type(result) is list and all(judge(one) for one in result)


def _tensor(result):
    return result is None or (torch is not None and isinstance(result, torch.Tensor))


def _mounted(result):
    ids = result["segment_ids"]
    return _code(result["ret"]) and (result["ret"] == 0) == bool(ids) and all(type(one) is str for one in ids)


ANSWERS = {
    "code": _code,
    "count": _count,
    "codes": _list_of(_code),
    "counts": _list_of(_count),
    "nested": _list_of(_list_of(_list_of(_count))),
    "flags": _list_of(lambda one: one in (0, 1) or one in CODES),
    "bytes": lambda result: type(result) is bytes,
    "all bytes": _list_of(lambda one: type(one) is bytes),
    "view": lambda result: result is None or isinstance(result, BufferHandle),
    "views": _list_of(lambda one: one is None or isinstance(one, BufferHandle)),
    "tensor": _tensor,
    "array": lambda result: result is None or type(result).__name__ == "ndarray",
    "tensors": _list_of(lambda one: _tensor(one) or _code(one)),
    "copies": _list_of(lambda one: one.is_memory_replica()),
    "copies by key": lambda result: type(result) is dict,
    "mounted": _mounted,
    "cleared": lambda result: type(result) is list and all(isinstance(key, (str, bytes)) for key in result),
    "text": lambda result: type(result) is str,
    "health": lambda result: result in (0, 1, 2),
}

PUT = ["config"]
SHARDED = ["rank", "rank", "rank"]
SHAPED = ["shards", "config", "none"]
SHAPED_BATCH = ["shard list", "config", "none"]
HERE = ["address", "bytes"]
HERE_BATCH = ["addresses", "sizes"]

# Each public method: its arguments, and what it answers.
CALLS: dict[str, tuple[list[str], str]] = {
    "put": (["key", "value", *PUT], "code"),
    "put_parts": (["key", "value", "value"], "code"),
    "put_batch": (["keys", "values", *PUT], "code"),
    "put_from": (["key", *HERE, *PUT], "code"),
    "put_from_with_metadata": (["key", "address", "address", "bytes", "bytes", *PUT], "code"),
    "batch_put_from": (["keys", *HERE_BATCH, *PUT], "codes"),
    "batch_put_from_multi_buffers": (["keys", "address lists", "size lists", *PUT], "codes"),
    "upsert": (["key", "value", *PUT], "code"),
    "upsert_parts": (["key", "value", "value"], "code"),
    "upsert_batch": (["keys", "values", *PUT], "code"),
    "upsert_from": (["key", *HERE, *PUT], "code"),
    "batch_upsert_from": (["keys", *HERE_BATCH, *PUT], "codes"),
    "get": (["key"], "bytes"),
    "get_batch": (["keys"], "all bytes"),
    "get_buffer": (["key"], "view"),
    "batch_get_buffer": (["keys"], "views"),
    "get_into": (["key", *HERE], "count"),
    "batch_get_into": (["keys", *HERE_BATCH], "counts"),
    "batch_get_into_multi_buffers": (["keys", "address lists", "size lists", "flag"], "counts"),
    "batch_get_session_start": (["keys"], "codes"),
    "batch_get_into_multi_buffer_ranges": (["keys", "address lists", "size lists", "size lists"], "counts"),
    "batch_get_session_end": (["keys"], "code"),
    "batch_put_session_start": (["keys", "sizes", *PUT], "codes"),
    "batch_put_from_multi_buffer_ranges": (["keys", "address lists", "size lists", "size lists"], "counts"),
    "batch_put_session_end": (["keys"], "codes"),
    "batch_put_session_revoke": (["keys"], "codes"),
    "get_into_ranges": (["addresses", "key lists", "range lists", "range lists", "range lists"], "nested"),
    "get_size": (["key"], "count"),
    "is_exist": (["key"], "count"),
    "batch_is_exist": (["keys"], "flags"),
    "remove": (["key", "flag"], "code"),
    "batch_remove": (["keys", "flag"], "codes"),
    "remove_all": (["flag"], "count"),
    "remove_by_regex": (["pattern", "flag"], "count"),
    "register_buffer": (HERE, "code"),
    "unregister_buffer": (["address"], "code"),
    "get_replica_desc": (["key"], "copies"),
    "batch_get_replica_desc": (["keys"], "copies by key"),
    "allocate_and_mount_segment": (["bytes", "text", "text"], "mounted"),
    "mount_segment": (["path", "bytes", "bytes", "text", "text"], "mounted"),
    "unmount_segment": (["ids", "seconds"], "code"),
    "unmount_and_free_segment": (["ids", "seconds"], "code"),
    "alloc_from_mem_pool": (["bytes"], "count"),
    "unmount_local_disk_segment": (["seconds"], "code"),
    "get_offload_rpc_read_count": ([], "count"),
    "batch_replica_clear": (["keys", "text"], "cleared"),
    "get_hostname": ([], "text"),
    "health_check": ([], "health"),
    "last_error": ([], "text"),
    "put_array": (["key", "tensor", *PUT], "code"),
    "get_array": (["key"], "array"),
    "put_tensor": (["key", "tensor"], "code"),
    "batch_put_tensor": (["keys", "tensors"], "codes"),
    "pub_tensor": (["key", "tensor", *PUT], "code"),
    "batch_pub_tensor": (["keys", "tensors", *PUT], "codes"),
    "put_tensor_from": (["key", *HERE], "code"),
    "batch_put_tensor_from": (["keys", *HERE_BATCH], "codes"),
    "upsert_tensor": (["key", "tensor"], "code"),
    "batch_upsert_tensor": (["keys", "tensors"], "codes"),
    "upsert_pub_tensor": (["key", "tensor", *PUT], "code"),
    "batch_upsert_pub_tensor": (["keys", "tensors", *PUT], "codes"),
    "upsert_tensor_from": (["key", *HERE], "code"),
    "batch_upsert_tensor_from": (["keys", *HERE_BATCH], "codes"),
    "get_tensor": (["key"], "tensor"),
    "batch_get_tensor": (["keys"], "tensors"),
    "get_tensor_into": (["key", *HERE], "tensor"),
    "batch_get_tensor_into": (["keys", *HERE_BATCH], "tensors"),
    "get_tensor_into_cuda": (["key", "tensor"], "count"),
    "batch_get_tensor_into_cuda": (["keys", "tensors"], "counts"),
    "put_tensor_with_tp": (["key", "tensor", *SHARDED], "code"),
    "batch_put_tensor_with_tp": (["keys", "tensors", *SHARDED], "codes"),
    "pub_tensor_with_tp": (["key", "tensor", *PUT, *SHARDED], "code"),
    "batch_pub_tensor_with_tp": (["keys", "tensors", *PUT, *SHARDED], "codes"),
    "put_tensor_with_tp_from": (["key", *HERE, *SHARDED], "code"),
    "batch_put_tensor_with_tp_from": (["keys", *HERE_BATCH, *SHARDED], "codes"),
    "get_tensor_with_tp": (["key", *SHARDED], "tensor"),
    "batch_get_tensor_with_tp": (["keys", "rank", "rank"], "tensors"),
    "get_tensor_with_tp_into": (["key", *HERE, *SHARDED], "tensor"),
    "batch_get_tensor_with_tp_into": (["keys", *HERE_BATCH, "rank", "rank"], "tensors"),
    "put_tensor_with_parallelism": (["key", "tensor", *SHAPED], "code"),
    "put_tensor_with_parallelism_from": (["key", *HERE, *SHAPED], "code"),
    "batch_put_tensor_with_parallelism": (["keys", "tensors", *SHAPED_BATCH], "codes"),
    "batch_put_tensor_with_parallelism_from": (["keys", *HERE_BATCH, *SHAPED_BATCH], "codes"),
    "upsert_tensor_with_parallelism": (["key", "tensor", *SHAPED], "code"),
    "upsert_tensor_with_parallelism_from": (["key", *HERE, *SHAPED], "code"),
    "batch_upsert_tensor_with_parallelism": (["keys", "tensors", *SHAPED_BATCH], "codes"),
    "batch_upsert_tensor_with_parallelism_from": (["keys", *HERE_BATCH, *SHAPED_BATCH], "codes"),
    "get_tensor_with_parallelism": (["key", "target"], "tensor"),
    "batch_get_tensor_with_parallelism": (["keys", "targets"], "tensors"),
    "get_tensor_with_parallelism_into": (["key", *HERE, "target"], "tensor"),
    "batch_get_tensor_with_parallelism_into": (["keys", *HERE_BATCH, "targets"], "tensors"),
    "save_tensor_to_safetensor": (["key", "path"], "code"),
    "load_tensor_from_safetensor": (["key", "path"], "tensor"),
}
# Those that begin and end a store have a subject of their own.
BEGINS = {
    "setup": (["host", "text", "bytes", "bytes", "text", "text", "master"], "code"),
    "setup_dummy": (["bytes", "bytes", "master"], "code"),
}
# `init_all` and `connect` may go to whichever master has the usual port of this host: they have tests of their own.
OTHERS = {"close", "init_all", "connect"}
# Of what is not there: the same answers, whatever the store's state.
WITHOUT_SSDS = {"unmount_local_disk_segment", "get_offload_rpc_read_count"}
FILES = {"save_tensor_to_safetensor", "load_tensor_from_safetensor"}


def everything(examples: int):
    """The settings of every property here: the same examples each time."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )


def note(text: str) -> None:
    if path := os.environ.get("WRONG_CALLS_LOG"):
        with open(path, "w", errors="backslashreplace") as log:
            log.write(text[:2000])


def within_deadline(what: str, call, *arguments):
    note(f"{what}{arguments!r}")
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    try:
        return call(*arguments)
    finally:
        faulthandler.cancel_dump_traceback_later()


def draw_arguments(data, kinds: list[str]) -> list:
    """Mostly one wrong argument; or none, or all of them, or another number of them."""
    how = data.draw(st.sampled_from(["one wrong", "one wrong", "right", "all wrong", "fewer", "more"]))
    wrong = data.draw(st.integers(0, max(len(kinds) - 1, 0)))
    arguments = []
    for index, kind in enumerate(kinds):
        junk = how == "all wrong" or (how == "one wrong" and index == wrong)
        arguments.append(data.draw(JUNK if junk else GOOD[kind]))
    if how == "fewer":
        return arguments[: max(len(kinds) - 1, 0)]
    return [*arguments, None, None, None] if how == "more" else arguments


def failures(result):
    """Codes below 0 anywhere in a result."""
    if type(result) is int:
        return [result] if result < 0 else []
    if type(result) is dict:
        return failures(result.get("ret", 0))
    return [code for one in result for code in failures(one)] if type(result) is list else []


class Waiting:
    """A store's methods, each carried out by its coroutine."""

    def __init__(self, store, loop, closed=False):
        self.store, self.loop, self.closed = store, loop, closed

    def __getattr__(self, name):
        if name == "last_error":
            return lambda *_: "told to the thread that made the call"
        return functools.partial(self._wait, getattr(self.store, f"async_{name}"))

    def _wait(self, method, *arguments):
        try:
            return self.loop.run_until_complete(asyncio.wait_for(method(*arguments), DEADLINE_S - 5))
        except RuntimeError as closed:
            # The one thing that a coroutine says otherwise: nobody is there to carry it out.
            if self.closed and "closed" in str(closed):
                return None
            raise


def check_call(store, name: str, kinds: list[str], answer: str, data):
    arguments = draw_arguments(data, kinds)
    try:
        result = within_deadline(name, getattr(store, name), *arguments)
        if result is None and isinstance(store, Waiting) and store.closed:
            return None
    except TypeError:
        return None
    except ModuleNotFoundError:
        if name in FILES:
            return None
        raise
    assert ANSWERS[answer](result), f"{name}{arguments!r} -> {result!r}"
    codes = failures(result)
    assert set(codes) <= CODES, f"{name}{arguments!r} -> {result!r}"
    if codes and -704 not in codes and -706 not in codes:
        assert store.last_error(), f"{name}{arguments!r} -> {result!r} without a reason"
    return result


def every_call(store, examples: int, after=lambda store, name, result: None) -> None:
    @given(st.sampled_from(sorted(CALLS)), st.data())
    @everything(examples)
    def check(name, data):
        result = check_call(store, name, *CALLS[name], data)
        after(store, name, result)

    check()


def connected(master: str, kind=MooncakeDistributedStore):
    store = kind()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master)
    assert code == 0, store.last_error()
    return store


def is_refused(store, name: str, result) -> None:
    """Nothing succeeds on a store that is none."""
    if result is None or name in ("last_error", "alloc_from_mem_pool", *WITHOUT_SSDS):
        return
    if name in ("is_exist", "batch_is_exist"):
        # Callers take any other number for "it is there".
        assert all(code in (0, -601) for code in (result if type(result) is list else [result])), (
            f"{name} -> {result!r}"
        )
        return
    if name == "get_hostname" and store.put("k", b"v") != -600:
        # What a forked child has from its parent is the name alone.
        return
    kind = CALLS[name][1]
    if kind in ("code", "count", "mounted"):
        code = result["ret"] if kind == "mounted" else result
        # A list of nothing is nothing to refuse.
        nothing = code == 0 and name.endswith(("_parts", "_batch", "unmount_segment", "unmount_and_free_segment"))
        assert code < 0 or nothing, f"{name} -> {result!r}"
    elif kind in ("bytes", "text"):
        assert not result
    elif kind == "health":
        assert result != 0
    elif kind in ("codes", "counts"):
        assert all(code < 0 for code in result), f"{name} -> {result!r}"
    elif kind in ("all bytes", "views", "tensors", "copies", "copies by key", "nested"):
        assert not any(type(one) not in (int, list) and one for one in result), f"{name} -> {result!r}"


# ------------------------------------------------------------------ subjects


def of_a_store_that_is_not_set_up(master: str) -> None:
    every_call(MooncakeDistributedStore(), 300, is_refused)


def of_a_store_that_is_closed(master: str) -> None:
    store = connected(master)
    store.upsert("there", b"v" * 500)
    view = store.get_buffer("there")
    assert store.close() == 0
    every_call(store, 200, is_refused)
    assert bytes(view) == b"v" * 500
    assert store.close() == 0


def of_a_store_in_use(master: str) -> None:
    store = connected(master)

    def after(store, name, result):
        if name == "register_buffer" and result == 0:
            # Whatever may be registered may be used: it is there, or it is an error.
            for address in (ROOM, ROOM + 1, ROOM + SIZE - 1, ROOM + SIZE, 0, 1, 1 << 47, (1 << 64) - 1):
                for size in (1, 8, PAGE, SIZE, 1 << 46):
                    assert within_deadline("put_from", store.put_from, "registered", address, size) in CODES
                    within_deadline("get_into", store.get_into, "there", address, size)
                store.unregister_buffer(address)
        if type(result) is dict and result.get("segment_ids"):
            assert store.unmount_and_free_segment(result["segment_ids"]) == 0
        if not store.is_exist("there"):
            assert store.upsert("there", b"v" * 500) == 0, store.last_error()

    every_call(store, 600, after)
    assert store.put("after all of it", b"v") == 0
    assert store.get("after all of it") == b"v"
    store.close()


def of_a_store_in_a_forked_child(master: str) -> None:
    store = connected(master)
    assert store.upsert("there", b"v" * 500) == 0
    child = os.fork()
    if child == 0:
        status = 1
        try:
            every_call(store, 200, is_refused)
            assert store.put("there", b"v") == -601
            assert MooncakeDistributedStore().setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master) < 0
            store.close()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert store.get("there") == b"v" * 500
    store.close()


def of_setting_up(master: str) -> None:
    @given(st.sampled_from(sorted(BEGINS)), st.data())
    @everything(80)
    def check(name, data):
        store = MooncakeDistributedStore()
        kinds, answer = BEGINS[name]
        if name == "setup" and data.draw(st.booleans()):
            kinds = ["dictionary"]
        result = check_call(store, name, kinds, answer, data)
        assert result is None or result < 0, "there is no master there"
        assert store.close() == 0
        assert store.put("k", b"v") == -600

    check()
    for wrong in (
        (),
        (1, "", 1),
        ("tcp", None),
        ("tcp", "", -1),
        ("tcp", "", 1 << 64),
        ("\ud800", "", 0),
        ("", "", 0, 0),
    ):
        with contextlib.suppress(TypeError):
            within_deadline("init_all", MooncakeDistributedStore().init_all, *wrong)
            raise AssertionError(f"init_all{wrong}")


def of_configs(master: str) -> None:
    store = connected(master)
    names = [name for name in dir(ReplicateConfig) if not name.startswith("_")]
    assert len(names) == 12

    @given(st.sampled_from(names), JUNK, st.data())
    @everything(90)
    def check(name, value, data):
        config = ReplicateConfig()
        before = getattr(config, name)
        try:
            within_deadline(name, setattr, config, name, value)
        except TypeError:
            assert getattr(config, name) == before
        except ValueError:
            assert name == "dfs_replica_num"
        assert type(str(config)) is str
        for put in (store.put, store.upsert):
            assert within_deadline("put", put, "k", b"v", config) in CODES
        with contextlib.suppress(AttributeError):
            config.no_such_field = value
            raise AssertionError("a field that there is not")

    check()
    store.close()


def of_views(master: str) -> None:
    store = connected(master)
    assert store.upsert("there", bytes(range(200))) == 0
    views = [store.get_buffer("there"), *store.batch_get_buffer(["there"])]

    @given(
        st.sampled_from(["ptr", "size", "__len__", "__getitem__", "__buffer__", "__setitem__"]),
        st.lists(JUNK, max_size=2),
    )
    @everything(90)
    def check(name, arguments):
        for view in views:
            with contextlib.suppress(TypeError, AttributeError, BufferError, IndexError, OverflowError, ValueError):
                within_deadline(name, lambda view: getattr(view, name)(*arguments), view)
            assert bytes(view) == bytes(range(200))
            memory = memoryview(view)
            assert memory.readonly
        for wrong in (BufferHandle,):
            with contextlib.suppress(TypeError):
                wrong(*arguments)
                raise AssertionError("nobody makes a view")

    check()
    store.close()
    check()


def of_memory(master: str) -> None:
    allocator = MooncakeHostMemAllocator()
    got: list[int] = []

    @given(st.sampled_from(["alloc", "free"]), JUNK | ADDRESS | BYTES, st.booleans())
    @everything(90)
    def check(name, value, one_more):
        arguments = (value, value) if one_more else (value,)
        try:
            result = within_deadline(name, getattr(allocator, name), *arguments)
        except TypeError:
            return
        except RuntimeError:
            assert name == "alloc"
            return
        if name == "alloc":
            assert not one_more
            assert result % PAGE == 0
            ctypes.memset(result, 7, value)
            got.append(result)
        else:
            assert result == -600, "nobody else's memory is freed"
        if len(got) > 8:
            while got:
                address = got.pop()
                assert [allocator.free(address), allocator.free(address)] == [0, -600]

    check()
    MEMORY[0] = 1


def of_buffer_pools(master: str) -> None:
    store = connected(master)
    refusals = (TypeError, ValueError, RuntimeError)

    @given(st.lists(JUNK, max_size=3), JUNK)
    @everything(150)
    def make(arguments, not_a_store):
        with contextlib.suppress(*refusals):
            within_deadline("BufferPool", BufferPool, not_a_store)
            raise AssertionError("that is no store")
        with contextlib.suppress(*refusals):
            within_deadline("BufferPool", BufferPool, store, *arguments).close()

    make()
    pool = BufferPool(store, max_bytes=32 << 20)

    @given(JUNK | BYTES, st.booleans() | st.none(), JUNK)
    @everything(60)
    def acquire(size, block, timeout):
        try:
            lease = within_deadline("acquire", pool.acquire, size, block, timeout)
        except refusals:
            return
        assert lease.size == len(lease.buffer) == size
        lease.buffer[:1] = b"x"
        lease.release()
        lease.release()
        for use in (lambda: lease.ptr, lambda: lease.buffer, lease.__enter__):
            with contextlib.suppress(RuntimeError):
                use()
                raise AssertionError("a lease that is over")

    acquire()
    held = pool.acquire(1000)
    with contextlib.suppress(RuntimeError):
        pool.close()
        raise AssertionError("closed under a lease")
    store.close()
    held.release()
    acquire()
    pool.close()
    acquire()


def of_json_and_variables(master: str) -> None:
    warnings.simplefilter("ignore")
    names = list(MooncakeConfig.__dataclass_fields__)
    json_junk = st.recursive(
        st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
        max_leaves=4,
    )
    least = {"local_hostname": "h", "metadata_server": "P", "master_server_address": "m:1"}

    @given(st.dictionaries(st.sampled_from(names), JUNK, max_size=3))
    @everything(60)
    def made(fields):
        with contextlib.suppress(TypeError, ValueError):
            config = within_deadline("MooncakeConfig", lambda: MooncakeConfig(**{**least, **fields}))
            assert config.global_segment_size >= 0
            assert type(config.client_http_port) is int

    @given(st.dictionaries(st.sampled_from(names), json_junk, max_size=3) | json_junk, st.booleans())
    @everything(60)
    def read(found, broken):
        if type(found) is dict:
            found = {**least, **found}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            text = json.dumps(found)
            file.write(text[: len(text) // 2] if broken else text)
            file.flush()
            with contextlib.suppress(ValueError):
                within_deadline("from_file", MooncakeConfig.from_file, file.name)

    @given(st.dictionaries(st.sampled_from(names), st.text(st.characters(exclude_characters="\0"), max_size=6)))
    @everything(60)
    def environment(values):
        from mooncake import _native

        variables = {attribute: variable for attribute, variable, _ in _native._config_values()}
        for name in [*variables.values(), "MOONCAKE_CONFIG_PATH"]:
            os.environ.pop(name, None)
        for attribute, value in values.items():
            with contextlib.suppress(UnicodeEncodeError):
                os.environ[variables[attribute]] = value
        with contextlib.suppress(ValueError):
            within_deadline("load_from_env", MooncakeConfig.load_from_env)

    made()
    read()
    environment()
    for path in ("/nowhere/at/all.json", "/", ""):
        with contextlib.suppress(OSError):
            MooncakeConfig.from_file(path)
            raise AssertionError("there is no file there")


def of_coroutines(master: str) -> None:
    from mooncake.async_store import MooncakeDistributedStoreAsync

    loop = asyncio.new_event_loop()

    unset = MooncakeDistributedStoreAsync()
    every_call(
        Waiting(unset, loop), 120, lambda store, name, result: name != "last_error" and is_refused(store, name, result)
    )
    store = connected(master, MooncakeDistributedStoreAsync)

    def after(waiting, name, result):
        if type(result) is dict and result.get("segment_ids"):
            assert store.unmount_and_free_segment(result["segment_ids"]) == 0
        if name == "register_buffer" and result == 0:
            for address in (ROOM, ROOM + 1, ROOM + SIZE - 1, ROOM + SIZE, 0, 1, 1 << 47, (1 << 64) - 1):
                store.unregister_buffer(address)

    every_call(Waiting(store, loop), 150, after)
    assert loop.run_until_complete(store.async_close()) == 0
    every_call(Waiting(store, loop, closed=True), 80)
    loop.close()


def of_what_is_no_store(master: str) -> None:
    for subject in (of_configs, of_views, of_memory, of_buffer_pools, of_json_and_variables):
        subject(master)


# One process each.
SUBJECTS = [
    of_a_store_that_is_not_set_up,
    of_a_store_that_is_closed,
    of_a_store_in_use,
    of_a_store_in_a_forked_child,
    of_setting_up,
    of_what_is_no_store,
    of_coroutines,
]

if __name__ == "__main__":
    faulthandler.enable()
    next(subject for subject in SUBJECTS if subject.__name__ == sys.argv[1])(sys.argv[2])
    print("all of it")
