"""Objects read and written in parts, in sessions: what engines do that load and store a cache layer by layer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.errors import AlreadyExists, SessionOver, checked
from mooncake.store import ReplicateConfig
from pool import wait_for

LAYERS, PAGES, PART = 8, 6, 3_000
SIZE = LAYERS * PART


def pages(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (PAGES, SIZE), dtype=np.uint8)


def layer(memory: np.ndarray, number: int):
    """Addresses, sizes and offsets of a layer in each page: two pieces of it, as of keys and values."""
    half = PART // 2
    at = [page.ctypes.data + number * PART for page in memory]
    return (
        [[address, address + half] for address in at],
        [[half, PART - half]] * len(at),
        [[number * PART, number * PART + half]] * len(at),
    )


@pytest.fixture(params=["1", "0"], ids=["shared memory", "TCP"])
def pool_of_two(request, cluster, monkeypatch):
    monkeypatch.setenv("MC_SHM", request.param)
    return cluster(nodes=2, node_bytes=64 << 20)


def test_layers_are_stored_and_loaded_one_after_the_other(pool_of_two):
    store, other = pool_of_two.store(), pool_of_two.store()
    source, target = pages(1), np.zeros((PAGES, SIZE), dtype=np.uint8)
    keys = [f"page-{number}" for number in range(PAGES)]
    config = ReplicateConfig()
    config.replica_num = 2
    assert store.batch_put_session_start(keys, [SIZE] * PAGES, config) == [0] * PAGES
    assert store.batch_put_session_start(keys[:1], [SIZE]) == [-600]
    assert "session already" in store.last_error()
    # Threads take the layers, the last one first.
    left, codes = list(range(LAYERS)), []

    def fill():
        while left:
            codes.append(store.batch_put_from_multi_buffer_ranges(keys, *layer(source, left.pop())))

    threads = [threading.Thread(target=fill) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert codes == [[PART] * PAGES] * LAYERS
    assert other.batch_is_exist(keys) == [0] * PAGES
    assert store.batch_put_session_end(keys) == [0] * PAGES
    assert other.get_batch(keys) == [page.tobytes() for page in source]
    assert store.batch_put_session_start(keys[:1], [SIZE]) == [-705]

    twice = [*keys, keys[0]]
    assert other.batch_get_session_start([*twice, "none"]) == [0] * len(twice) + [-704]
    for number in range(LAYERS):
        assert other.batch_get_into_multi_buffer_ranges(keys, *layer(target, number)) == [PART] * PAGES
        assert np.array_equal(source[:, : (number + 1) * PART], target[:, : (number + 1) * PART])
    assert other.batch_get_session_end(twice) == 0
    assert other.batch_get_into_multi_buffer_ranges(keys, *layer(target, 0)) == [-600] * PAGES


def test_parts_that_an_object_does_not_have_and_lists_that_do_not_fit_are_refused(store):
    data = np.arange(100, dtype=np.uint8)
    at = data.ctypes.data
    assert store.batch_put_session_start(["k"], [100]) == [0]
    for put in (True, False):
        call = store.batch_put_from_multi_buffer_ranges if put else store.batch_get_into_multi_buffer_ranges
        for offset, size in [(100, 1), (99, 2), (0, 101), (2**64 - 1, 2)]:
            assert call(["k"], [[at]], [[size]], [[offset]]) == [-600], (put, offset, size)
            assert f"from byte {offset} on" in store.last_error()
        for ptrs, sizes, offsets in [
            ([[at]], [[1]], []),
            ([[at]], [[1]], [[0, 1]]),
            ([[at, at]], [[1]], [[0]]),
            ([], [], []),
        ]:
            assert call(["k"], ptrs, sizes, offsets) == [-600]
        assert call(["none"], [[at]], [[1]], [[0]]) == [-600]
        if put:
            assert store.batch_put_from_multi_buffer_ranges(["k"], [[at]], [[100]], [[0]]) == [100]
            assert store.batch_put_session_end(["k", "none"]) == [0, -600]
            assert store.batch_get_session_start(["k"]) == [0]
    assert store.batch_put_session_revoke(["none"]) == [-600]


def test_an_end_names_the_first_hole_and_the_session_goes_on(store):
    data = np.arange(100, dtype=np.uint8)
    at = data.ctypes.data
    assert store.batch_put_session_start(["holes"], [100]) == [0]
    assert store.batch_put_from_multi_buffer_ranges(["holes"], [[at, at + 60]], [[10, 40]], [[0, 60]]) == [50]
    assert store.batch_put_session_end(["holes"]) == [-600]
    assert 'key "holes": bytes 10 to 60 of 100 were never written' in store.last_error()
    assert store.is_exist("holes") == 0
    assert store.batch_put_session_start(["none at all"], [7]) == [0]
    assert store.batch_put_session_end(["none at all", "holes"]) == [-600, -600]
    assert 'key "none at all": bytes 0 to 7 of 7' in store.last_error(), "the first of them"
    assert store.batch_put_session_revoke(["none at all"]) == [0]
    # Written over, the last bytes count.
    assert store.batch_put_from_multi_buffer_ranges(["holes"], [[at]], [[80]], [[0]]) == [80]
    assert store.batch_put_session_end(["holes"]) == [0]
    assert store.get("holes") == data.tobytes()


def test_a_revoked_key_is_free_at_once(store):
    assert store.batch_put_session_start(["revoked", "l"], [100, 100]) == [0, 0]
    assert store.batch_put_session_revoke(["revoked", "l"]) == [0, 0]
    assert store.put("revoked", b"x") == 0
    assert store.get("revoked") == b"x"


def test_copies_that_no_client_is_there_for_refuse_no_key(store):
    config = ReplicateConfig()
    config.replica_num = 64
    keys = [f"few-copies-{number}" for number in range(300)]
    codes = store.batch_put_session_start(keys, [10] * len(keys), config)
    assert codes == [0] * len(keys), store.last_error()
    assert store.batch_put_session_revoke(keys) == codes


def test_more_than_a_client_may_have_unfinished_is_refused_with_the_reason(cluster):
    pool = cluster(nodes=1, node_bytes=16 << 20)
    store = pool.store()
    keys = [f"k{number}" for number in range(20)]
    codes = store.batch_put_session_start(keys, [1 << 20] * 20)
    held = [key for key, code in zip(keys, codes, strict=True) if code == 0]
    assert set(codes) == {0, -200}
    assert 4 <= len(held) <= 8, codes
    assert "unfinished" in store.last_error()
    assert store.batch_put_session_revoke(held) == [0] * len(held)
    # Their memory is free once its owner has confirmed that nobody writes there any more.
    until, wanted = time.monotonic() + 5, keys[:4]
    while wanted:
        codes = store.batch_put_session_start(wanted, [1 << 20] * len(wanted))
        wanted = [key for key, code in zip(wanted, codes, strict=True) if code != 0]
        assert time.monotonic() < until, store.last_error()


@pytest.mark.parametrize("shm", ["1", "0"], ids=["shared memory", "TCP"])
def test_sessions_of_a_killed_owner_are_over_and_no_key_is_stuck(cluster, monkeypatch, shm):
    monkeypatch.setenv("MC_SHM", shm)
    pool = cluster(nodes=0)
    owner = pool.process(segment=64 << 20)
    pool.wait_segments(1)
    store = pool.store()
    source, target = pages(2), np.zeros((PAGES, SIZE), dtype=np.uint8)
    read, written = [f"read-{n}" for n in range(PAGES)], [f"written-{n}" for n in range(PAGES)]
    assert store.put_batch(read, [page.tobytes() for page in source]) == 0
    assert store.batch_get_session_start(read) == [0] * PAGES
    assert store.batch_put_session_start(written, [SIZE] * PAGES) == [0] * PAGES
    assert store.batch_get_into_multi_buffer_ranges(read, *layer(target, 0)) == [PART] * PAGES
    assert store.batch_put_from_multi_buffer_ranges(written, *layer(source, 0)) == [PART] * PAGES
    owner.kill()

    # What is mapped stays readable until its end is known; wrong bytes it never has.
    def is_over() -> bool:
        target[:] = 0
        codes = store.batch_get_into_multi_buffer_ranges(read, *layer(target, 1))
        for page, code in enumerate(codes):
            assert code in (PART, -707, -600), codes
            assert code != PART or np.array_equal(source[page, PART : 2 * PART], target[page, PART : 2 * PART])
        return PART not in codes

    wait_for("the get sessions are over", is_over, 5.0)
    wait_for(
        "the put sessions are over",
        lambda: set(store.batch_put_from_multi_buffer_ranges(written, *layer(source, 1))) == {-707},
        5.0,
    )
    with pytest.raises(SessionOver):
        checked(store).batch_put_session_end(written[:1])
    assert store.batch_put_session_end(written[1:]) == [-707] * (PAGES - 1)
    pool.process(segment=64 << 20)
    pool.wait_segments(1)
    for keys in (read, written):
        wait_for("the keys are free", lambda keys=keys: store.put_batch(keys, [b"new"] * PAGES) == 0, 5.0)
        assert store.get_batch(keys) == [b"new"] * PAGES


def test_keys_of_a_writer_that_is_killed_or_frozen_in_mid_session_are_free(cluster):
    pool = cluster(nodes=1, node_bytes=64 << 20)
    for ends in ("kill", "stop"):
        writer = pool.process()
        fill = """
import ctypes
memory = ctypes.create_string_buffer(b'w' * 100_000, 100_000)
result = [store.batch_put_session_start(['k'], [100_000]),
          store.batch_put_from_multi_buffer_ranges(['k'], [[ctypes.addressof(memory)]], [[50_000]], [[0]])]
"""
        assert writer.call("run", fill) == [[0], [50_000]]
        getattr(writer, ends)()
        store = pool.store()
        # A writer that is away yields its key.
        wait_for("the key is free", lambda store=store: store.put("k", b"other") == 0, 10.0)
        if ends == "stop":
            writer.cont()
            rest = """
codes = store.batch_put_from_multi_buffer_ranges(['k'], [[ctypes.addressof(memory)]], [[50_000]], [[50_000]])
result = [codes, store.batch_put_session_end(['k'])]
"""
            codes, ended = writer.call("run", "import ctypes\nmemory = ctypes.create_string_buffer(50_000)\n" + rest)
            assert codes in ([50_000], [-707])
            assert ended == [-707]
        assert store.get("k") == b"other"
        assert store.remove("k", True) == 0


def test_both_kinds_of_sessions_as_coroutines_and_with_exceptions(shared_cluster):
    store = MooncakeDistributedStoreAsync()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", shared_cluster.master.addr) == 0
    source, target = pages(3), np.zeros((PAGES, SIZE), dtype=np.uint8)
    keys = [f"async-{number}" for number in range(PAGES)]

    async def use():
        assert await store.async_batch_put_session_start(keys, [SIZE] * PAGES) == [0] * PAGES
        filled = [store.async_batch_put_from_multi_buffer_ranges(keys, *layer(source, n)) for n in range(LAYERS)]
        assert await asyncio.gather(*filled) == [[PART] * PAGES] * LAYERS
        assert await store.async_batch_put_session_end(keys) == [0] * PAGES
        assert await store.async_batch_get_session_start(keys) == [0] * PAGES
        loaded = [store.async_batch_get_into_multi_buffer_ranges(keys, *layer(target, n)) for n in range(LAYERS)]
        assert await asyncio.gather(*loaded) == [[PART] * PAGES] * LAYERS
        assert np.array_equal(source, target)
        with pytest.raises(AlreadyExists):
            checked(store).batch_put_session_start(keys, [1] * PAGES)
        assert await store.async_batch_get_session_end(keys) == 0

    try:
        asyncio.run(use())
    finally:
        store.remove_by_regex("^async-", True)
        store.close()


@pytest.mark.parametrize("shm", ["1", "0"], ids=["shared memory", "TCP"])
def test_an_end_waits_for_owners_that_are_away_and_loses_nothing(cluster, monkeypatch, shm):
    monkeypatch.setenv("MC_SHM", shm)
    pool = cluster(nodes=1, node_bytes=64 << 20)
    store, size = pool.store(), 1 << 16
    source = np.full(size, 7, dtype=np.uint8)

    def fill(key):
        assert store.batch_put_session_start([key], [size]) == [0]
        assert store.batch_put_from_multi_buffer_ranges([key], [[source.ctypes.data]], [[size]], [[0]]) == [size]

    fill("frozen")
    pool.nodes[0].stop()
    try:
        time.sleep(3)
        assert store.batch_put_session_end(["frozen"]) == [-901]
        assert "away" in store.last_error()
    finally:
        pool.nodes[0].cont()
    assert store.batch_put_session_end(["frozen"]) == [0]
    for trial in range(3):
        fill(f"restarted-{trial}")
        pool.master.kill()
        pool.master.start()
        codes = []
        while not codes or codes[-1] in ([-900], [-901]):
            codes.append(store.batch_put_session_end([f"restarted-{trial}"]))
            assert len(codes) < 100, codes
        assert codes[-1] == [0], (codes, store.last_error())
    for key in ("frozen", *(f"restarted-{trial}" for trial in range(3))):
        assert store.get(key) == source.tobytes()


@pytest.mark.parametrize("call", ["session_end(['k'])", "session_revoke(['k'])", "from_multi_buffer_ranges(*few)"])
def test_ctrl_c_ends_a_call_that_waits_for_another_threads_write(cluster, call):
    pool = cluster(nodes=1, node_bytes=128 << 20)
    source = f"""
import ctypes, signal, sys, threading, time
from mooncake.store import MooncakeDistributedStore
signal.signal(signal.SIGINT, signal.default_int_handler)
s = MooncakeDistributedStore()
assert s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", {pool.master.addr!r}) == 0
size = 48 << 20
memory = ctypes.create_string_buffer(size)
few = [["k"], [[ctypes.addressof(memory)]], [[10]], [[5]]]
assert s.batch_put_session_start(["k"], [size]) == [0]
assert s.batch_put_from_multi_buffer_ranges(*few) == [10]
print("started", flush=True)
sys.stdin.readline()
whole = [["k"], [[ctypes.addressof(memory)]], [[size]], [[0]]]
threading.Thread(target=lambda: s.batch_put_from_multi_buffer_ranges(*whole), daemon=True).start()
time.sleep(0.3)
print("calling", flush=True)
try:
    print("returned", s.batch_put_{call})
except KeyboardInterrupt:
    print("interrupted", time.time(), flush=True)
"""
    env = {**os.environ, "MC_SHM": "0", "MC_DATA_TIMEOUT_MS": "20000"}
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    try:
        assert process.stdout.readline() == "started\n"
        pool.nodes[0].stop()
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "calling\n"
        time.sleep(0.2)
        sent = time.time()
        process.send_signal(signal.SIGINT)
        word, at = process.stdout.readline().split()
        assert word == "interrupted"
        assert float(at) - sent < 0.25
    finally:
        process.kill()
        process.wait()
        pool.nodes[0].cont()


def test_a_start_whose_caller_hears_nothing_of_it_holds_no_key(cluster):
    pool = cluster(nodes=1, node_bytes=64 << 20)
    store, other = MooncakeDistributedStoreAsync(), pool.store()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", pool.master.addr) == 0
    keys = [f"k{number}" for number in range(8_000)]

    async def start(after: float) -> bool:
        call = asyncio.create_task(store.async_batch_put_session_start(keys, [100] * len(keys)))
        await asyncio.sleep(after)
        call.cancel()
        try:
            assert await call == [0] * len(keys)
        except asyncio.CancelledError:
            return True
        assert await store.async_batch_put_session_revoke(keys) == [0] * len(keys)
        return False

    def is_free() -> bool:
        codes = [other.put(key, b"1") for key in (keys[0], keys[-1])]
        return codes == [0, 0]

    async def cancel_all() -> int:
        cancelled = 0
        for after in (0.001, 0.005, 0.02, 0.05):
            cancelled += await start(after)
            await asyncio.to_thread(wait_for, "the keys are free", is_free, 5.0)
            assert other.batch_remove([keys[0], keys[-1]], True) == [0, 0]
        return cancelled

    try:
        assert asyncio.run(cancel_all()) > 0
        assert other.put("there", b"1") == 0
        with pytest.raises(AlreadyExists):
            checked(store).batch_put_session_start(["new", "there"], [10, 10])
        assert other.put("new", b"1") == 0

        async def with_exceptions():
            names = ["newer", "there"]
            call = asyncio.create_task(checked(store).async_batch_put_session_start(names, [10, 10]))
            await asyncio.sleep(0)
            names.clear()
            with pytest.raises(AlreadyExists):
                await call

        asyncio.run(with_exceptions())
        assert other.put("newer", b"1") == 0

        async def cancelled_behind_its_result():
            call = asyncio.create_task(store.async_batch_put_session_start(["newest"], [10]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            # The loop is busy until the result is there, and in the same turn the call is cancelled.
            time.sleep(0.2)
            asyncio.get_running_loop().call_soon(call.cancel)
            with pytest.raises(asyncio.CancelledError):
                await call

        asyncio.run(cancelled_behind_its_result())
        wait_for("the key is free", lambda: other.put("newest", b"1") == 0, 5.0)
    finally:
        store.close()
