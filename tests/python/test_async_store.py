"""The same store for asyncio: many calls in flight, cancelled calls leave nobody's memory in use."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
import time

import pytest

from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.store import ReplicateConfig


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


def test_cancelling_a_call_on_ones_memory_waits_until_it_is_left_alone(cluster):
    c = cluster(nodes=1, node_bytes=64 << 20)
    store = MooncakeDistributedStoreAsync()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", c.master.addr) == 0
    memory = ctypes.create_string_buffer(b"7" * (1 << 20), 1 << 20)
    at = ctypes.addressof(memory)

    async def use():
        assert await store.async_put_from("k", at, 1 << 20) == 0
        c.master.stop()
        put = asyncio.ensure_future(store.async_put_from("frozen", at, 1 << 20))
        get = asyncio.ensure_future(store.async_get("k"))
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        get.cancel()
        with pytest.raises(asyncio.CancelledError):
            await get
        assert time.monotonic() - begun < 0.1, "nobody's memory: ends at once"
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        assert time.monotonic() - begun > 0.2, "the thread had until its deadline"
        assert time.monotonic() - begun < 5
        c.master.cont()

    asyncio.run(use())
    store.close()


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
