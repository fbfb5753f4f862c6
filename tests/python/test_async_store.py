"""The same store for asyncio: many calls in flight, cancelled calls leave nobody's memory in use."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import inspect
import re
import subprocess
import sys
import threading
import time
import weakref

import pytest

from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.async_store._calls import _may_touch_memory
from mooncake.async_store._executor import _Worker
from mooncake.store import MooncakeDistributedStore, ReplicateConfig


@pytest.fixture
def astore(shared_cluster):
    made = MooncakeDistributedStoreAsync()
    assert made.setup("127.0.0.1", "P2PHANDSHAKE", 0, 256 << 20, "tcp", "", shared_cluster.master.addr) == 0
    yield made
    made.remove_all(True)
    made.close()


def threads() -> int:
    return sum(t.name.startswith("mooncake-async") for t in threading.enumerate())


def test_every_method_is_a_coroutine_by_its_own_name(astore):
    async def use():
        assert await astore.async_put("a", b"1" * 100) == 0
        assert await astore.async_put("a", b"2", ReplicateConfig()) == 0  # the first writer wins
        assert await astore.async_put(key="b", value=b"22") == 0
        assert await astore.async_get("a") == b"1" * 100
        assert bytes(await astore.async_get_buffer("a")) == b"1" * 100
        assert await astore.async_is_exist("a") == 1
        assert await astore.async_batch_is_exist(["a", "b", "c"]) == [1, 1, 0]
        assert await astore.async_get_size("b") == 2
        assert await astore.async_remove("b", True) == 0
        assert await astore.async_get("b") == b""
        assert await astore.async_put_parts("c", b"x", b"y") == 0
        assert await astore.async_get_batch(["c", "a", "no"]) == [b"xy", b"1" * 100, b""]
        assert await astore.async_health_check() == 0

    asyncio.run(use())
    with pytest.raises(AttributeError, match="async_nothing"):
        astore.async_nothing  # noqa: B018


def test_thousands_of_calls_are_in_flight_on_four_threads(astore):
    async def use():
        values = {f"k{i}": bytes([i % 251]) * (1 + i % 5000) for i in range(3000)}
        assert set(await asyncio.gather(*(astore.async_put(k, v) for k, v in values.items()))) == {0}
        assert threads() <= 4
        got = await asyncio.gather(*(astore.async_get(k) for k in values))
        assert got == list(values.values())
        mixed = [astore.async_is_exist(k) if i % 2 else astore.async_get_size(k) for i, k in enumerate(values)]
        answers = await asyncio.gather(*mixed)
        assert answers == [1 if i % 2 else len(v) for i, v in enumerate(values.values())]

    asyncio.run(use())


def test_each_call_has_its_own_outcome(astore):
    async def use():
        keys = ["good", "", "good2", "k" * 70_000]
        assert await asyncio.gather(*(astore.async_put(k, b"v") for k in keys)) == [0, -400, 0, -400]
        found = await asyncio.gather(*(astore.async_get(k) for k in ["good", 7, "good2"]), return_exceptions=True)
        assert (found[0], found[2]) == (b"v", b"v")
        assert isinstance(found[1], TypeError)

    asyncio.run(use())


def test_a_config_is_read_when_the_call_is_made(astore):
    async def use():
        config = ReplicateConfig()
        first = asyncio.ensure_future(astore.async_put("c1", b"v", config))
        await asyncio.sleep(0)
        config.replica_num = 0
        assert await first == 0
        assert await astore.async_put("c2", b"v", config) == -600

    asyncio.run(use())


def test_a_cancelled_call_that_has_not_begun_is_never_made(astore, shared_cluster):
    gate = threading.Event()

    class Slow(MooncakeDistributedStoreAsync):
        def wait(self):
            gate.wait(10)
            return 0

    slow = Slow(threads=1)
    assert slow.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", shared_cluster.master.addr) == 0

    async def use():
        running = asyncio.ensure_future(slow.async_wait())
        await asyncio.sleep(0.05)
        waiting = asyncio.ensure_future(slow.async_put("never", b"v"))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        assert await running == 0
        assert await slow.async_is_exist("never") == 0

    asyncio.run(use())
    slow.close()


def test_a_cancelled_call_on_ones_memory_leaves_it_alone_soon_and_stores_nothing(cluster):
    c = cluster(nodes=1, node_bytes=64 << 20)
    store = MooncakeDistributedStoreAsync()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", c.master.addr) == 0
    memory = ctypes.create_string_buffer(b"7" * (1 << 20), 1 << 20)
    at = ctypes.addressof(memory)

    async def cancelled_in(call) -> float:
        begun = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return time.monotonic() - begun

    async def use():
        assert await store.async_put_from("k", at, 1 << 20) == 0
        c.master.stop()
        put = asyncio.ensure_future(store.async_put_from("frozen", at, 1 << 20))
        get = asyncio.ensure_future(store.async_get("k"))
        await asyncio.sleep(0.1)
        assert await cancelled_in(get) < 0.1, "nobody's memory: ends at once"
        assert await cancelled_in(put) < 0.25, "interrupted, not waited for until its deadline"
        c.master.cont()
        assert await store.async_is_exist("frozen") == 0

    asyncio.run(use())
    store.close()


@pytest.mark.parametrize("form", ["put", "put_parts", "upsert_batch"])
def test_a_cancelled_put_of_memory_that_changes_never_stores_a_mixture(cluster, form):
    c = cluster(nodes=1, node_bytes=320 << 20)
    store, reader = MooncakeDistributedStoreAsync(), c.store()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", c.master.addr) == 0
    size, last = 128 << 20, 1 << 20
    value = bytearray(b"A") * size
    before, after = b"A" * last, b"B" * last

    def put(key):
        return {
            "put": lambda: store.async_put(key, value),
            "put_parts": lambda: store.async_put_parts(key, b"A", memoryview(value)),
            "upsert_batch": lambda: store.async_upsert_batch([key], [value]),
        }[form]()

    async def use():
        # Warm: the first one maps the memory of the node.
        assert await put("warm") == 0
        reader.remove("warm", True)
        for attempt in range(5):
            value[-last:] = before
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(put(f"k{attempt}"), 0.003 * (attempt + 1))
            # The call is over for its caller, who uses the memory again.
            value[-last:] = after
            await asyncio.sleep(0.3)
            assert ord("B") not in reader.get(f"k{attempt}")[-last:]
            reader.remove(f"k{attempt}", True)

    asyncio.run(use())
    store.close()


def test_one_cancelled_call_of_a_batch_does_not_end_the_others(astore):
    async def use():
        calls = [asyncio.ensure_future(astore.async_put(f"b{n}", bytearray(100_000))) for n in range(200)]
        await asyncio.sleep(0.002)
        for call in calls[::2]:
            call.cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert outcomes[1::2] == [0] * 100
        assert await astore.async_batch_is_exist([f"b{n}" for n in range(1, 200, 2)]) == [1] * 100

    asyncio.run(use())


def test_every_call_that_takes_memory_waits_for_it_when_it_is_cancelled():
    memory = re.compile(r"value|parts|tensor|array|buffer_ptr|metadata_buffer_ptr|all_buffer_ptrs")
    for name in dir(MooncakeDistributedStore):
        method = getattr(MooncakeDistributedStore, name)
        if name.startswith("_") or not callable(method) or name == "setup":
            continue
        takes = any(memory.search(parameter) for parameter in inspect.signature(method).parameters)
        assert _may_touch_memory(name, (["k"], 4096), {}) == takes, name
    assert not _may_touch_memory("put_batch", (["k"], [b"v"]), {"config": ReplicateConfig()})
    assert _may_touch_memory("put_batch", (["k"], [b"v", bytearray(b"v")]), {})


def test_lists_are_read_when_the_call_is_made(astore):
    async def use():
        keys, values, config = ["l1", "l2"], [b"1", b"2"], ReplicateConfig()
        put = asyncio.ensure_future(astore.async_put_batch(keys, values, config=config))
        await asyncio.sleep(0)
        keys.clear()
        values[0] = b"other"
        config.replica_num = 0
        assert await put == 0
        assert await astore.async_get_batch(["l1", "l2"]) == [b"1", b"2"]
        memory = [ctypes.create_string_buffer(1) for _ in range(2)]
        at = [[ctypes.addressof(one)] for one in memory]
        get = asyncio.ensure_future(astore.async_batch_get_into_multi_buffers(["l1", "l2"], at, [[1], [1]]))
        await asyncio.sleep(0)
        at[1][0] = at[0][0]
        assert await get == [1, 1]
        assert [one.raw for one in memory] == [b"1", b"2"]

    asyncio.run(use())


def test_calls_that_wait_when_the_store_is_closed_fail_like_calls_made_later(shared_cluster):
    gate, begun = threading.Event(), threading.Event()

    class Slow(MooncakeDistributedStoreAsync):
        def wait(self):
            begun.set()
            gate.wait(10)
            return 7

    slow = Slow(threads=1)
    assert slow.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", shared_cluster.master.addr) == 0

    async def use():
        running = asyncio.ensure_future(slow.async_wait())
        await asyncio.to_thread(begun.wait, 10)
        queued = [asyncio.ensure_future(slow.async_get("k")) for _ in range(100)]
        await asyncio.sleep(0.01)
        # These have not even been queued when the executor ends.
        same_turn = [asyncio.ensure_future(slow.async_get("k")) for _ in range(100)]
        threading.Timer(0.1, gate.set).start()
        closing = asyncio.ensure_future(asyncio.to_thread(slow.close))
        outcomes = await asyncio.gather(*queued, *same_turn, return_exceptions=True)
        assert await running == 7
        await closing
        with pytest.raises(RuntimeError) as later:
            await slow.async_get("k")
        assert {(type(outcome), str(outcome)) for outcome in outcomes} == {(RuntimeError, str(later.value))}

    asyncio.run(use())


def test_a_worker_that_is_rung_twice_hears_it_once():
    worker = _Worker(0, lambda me: None)
    worker.ring()
    worker.ring()
    begun = time.monotonic()
    worker.wait(5)
    assert time.monotonic() - begun < 1, "it was rung"
    worker.wait(0.05)
    assert time.monotonic() - begun > 0.05, "not again"


def test_a_loop_that_closes_in_the_turn_of_its_calls_is_not_kept(astore):
    loop = asyncio.new_event_loop()
    coroutine = astore.async_get("k")
    asyncio.events._set_running_loop(loop)
    try:
        coroutine.send(None)
    finally:
        asyncio.events._set_running_loop(None)
    loop.close()
    gone = weakref.ref(loop)
    coroutine.close()
    asyncio.run(astore.async_is_exist("k"))
    del loop, coroutine
    gc.collect()
    assert gone() is None


def test_last_error_after_an_await_is_of_that_call(astore):
    async def use():
        assert await astore.async_put("", b"x") == -400
        assert "key" in astore.last_error()
        assert await astore.async_is_exist("k") == 0
        assert astore.last_error() == ""

    asyncio.run(use())


def test_loops_of_several_threads_share_a_store(astore):
    failures = []

    def loop(n: int) -> None:
        async def use():
            await asyncio.gather(*(astore.async_put(f"{n}-{i}", b"%d" % n) for i in range(200)))
            got = await asyncio.gather(*(astore.async_get(f"{n}-{i}") for i in range(200)))
            if got != [b"%d" % n] * 200:
                failures.append(n)

        asyncio.run(use())

    crowd = [threading.Thread(target=loop, args=(n,)) for n in range(4)]
    for t in crowd:
        t.start()
    for t in crowd:
        t.join(30)
    assert failures == []


def test_close_ends_the_threads_and_setup_begins_anew(astore, shared_cluster):
    async def use():
        assert await astore.async_put("k", b"v") == 0
        assert await astore.async_close() == 0
        with pytest.raises(RuntimeError, match="closed"):
            await astore.async_get("k")
        assert astore.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", shared_cluster.master.addr) == 0
        assert await astore.async_get("k") == b"v"

    asyncio.run(use())


def test_a_store_that_nobody_holds_takes_its_threads_along(shared_cluster):
    before = threads()
    store = MooncakeDistributedStoreAsync()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", shared_cluster.master.addr) == 0
    asyncio.run(store.async_is_exist("k"))
    assert threads() > before
    del store
    end = time.monotonic() + 5
    while threads() > before and time.monotonic() < end:
        # Once is not enough: the thread that answered may hold the store for a moment yet.
        gc.collect()
        time.sleep(0.05)
    assert threads() <= before


IN_A_CHILD = """
import asyncio, os, signal, sys
from mooncake.async_store import MooncakeDistributedStoreAsync
store = MooncakeDistributedStoreAsync()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
assert asyncio.run(store.async_put("k", b"v")) == 0
child = os.fork()
if child == 0:
    signal.alarm(20)
    async def use():
        return await store.async_put("x", b"v"), await store.async_get("k"), store.last_error()
    code, value, reason = asyncio.run(use())
    store.close()
    os._exit(0 if code == -601 and value == b"" and "fork" in reason else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert asyncio.run(store.async_get("k")) == b"v"
assert asyncio.run(store.async_remove("k", True)) == 0
"""


def test_calls_in_a_forked_child_are_refused_at_once(shared_cluster):
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD, shared_cluster.master.addr], capture_output=True, text=True, timeout=40
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", [float("nan"), 1.5, "4", None], ids=repr)
def test_a_number_of_threads_that_is_none_is_refused(threads):
    with pytest.raises(TypeError, match=f"threads={threads!r}"):
        MooncakeDistributedStoreAsync(threads=threads)
