"""Leased buffers are registered, bounded and used again; nothing is given back while it is in use."""

from __future__ import annotations

import re
import threading
import time
from fractions import Fraction

import numpy
import pytest

import mooncake
from mooncake import buffer_pool
from mooncake.store import BufferLease, BufferPool, MooncakeDistributedStore


@pytest.fixture
def pool(store):
    made = BufferPool(store, max_bytes=64 << 20)
    yield made
    made.close()


def test_objects_go_through_leased_buffers(store, pool):
    with pool.acquire(100_000) as lease:
        assert lease.size == len(lease) == len(lease.buffer) == 100_000
        assert lease.buffer.format == "B"
        assert not lease.buffer.readonly
        lease.buffer[:] = b"x" * 100_000
        assert store.put_from("k", lease.ptr, lease.size) == 0
        assert store.register_buffer(lease.ptr, 10) != 0  # It is registered already.
    with pool.buffer(100_000) as lease:
        assert store.get_into("k", lease.ptr, lease.size) == 100_000
        assert bytes(lease.buffer) == store.get("k")


def test_a_buffer_that_came_back_is_leased_again(pool):
    first = pool.acquire(100_000)
    address = first.ptr
    first.release()
    first.release()
    second = pool.acquire(99_000)
    assert second.ptr == address
    second.release()


def test_no_more_is_leased_than_the_pool_has(store):
    pool = BufferPool(store, max_bytes=64 << 20, block_on_exhaustion=False)
    leases = [pool.acquire(16 << 20) for _ in range(4)]
    assert len({lease.ptr for lease in leases}) == 4
    with pytest.raises(RuntimeError, match="buffer pool is exhausted"):
        pool.acquire(1)
    with pytest.raises(RuntimeError, match="timed out waiting for buffer"):
        pool.acquire(1, block=True, timeout=0.05)
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    with pytest.raises(RuntimeError, match="exceeds the pool's capacity"):
        pool.acquire((64 << 20) + 1)
    for lease in leases:
        lease.release()
    # The whole of it, although other sizes were leased before.
    pool.acquire(64 << 20).release()
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.acquire(1)


def test_a_waiter_gets_what_another_thread_gives_back(pool):
    held = pool.acquire(64 << 20)
    got: list[BufferLease] = []
    waiter = threading.Thread(target=lambda: got.append(pool.acquire(1000, timeout=20)))
    waiter.start()
    time.sleep(0.05)
    assert not got
    held.release()
    waiter.join(20)
    got[0].release()


def test_views_hold_a_lease(pool):
    lease = pool.acquire(5000)
    part = lease.buffer[10:20]
    with pytest.raises(RuntimeError, match="exported views"):
        lease.release()
    part[:] = b"0123456789"
    assert bytes(lease.buffer[10:20]) == b"0123456789"
    part.release()
    whole = lease.buffer
    with pytest.raises(RuntimeError, match="exported views"):
        lease.release()
    whole[:3] = b"abc"
    del whole
    lease.release()
    for call in (lambda: lease.ptr, lambda: lease.buffer, lease.__enter__):
        with pytest.raises(RuntimeError, match="released"):
            call()


def test_a_forgotten_lease_comes_back(pool):
    pool.acquire(64 << 20)
    pool.acquire(64 << 20, timeout=1).release()


def test_many_threads_lease_at_once(pool):
    faults = []

    def work(number: int) -> None:
        for size in range(1, 200):
            with pool.acquire(size * 5000, timeout=20) as lease:
                lease.buffer[:8] = number.to_bytes(8, "little")
                time.sleep(0)
                if int.from_bytes(lease.buffer[:8], "little") != number:
                    faults.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults


def test_without_a_number_it_has_twice_the_local_buffer(shared_cluster):
    store = shared_cluster.store(buffer=1 << 20)
    pool = BufferPool(store)
    pool.acquire(2 << 20).release()
    with pytest.raises(RuntimeError):
        pool.acquire((2 << 20) + 1)
    pool.prewarm(4096, 3)
    pool.close()
    small = BufferPool(store, max_bytes=1)
    small.acquire(1 << 20).release()
    small.close()


def test_an_empty_buffer_is_leased_like_any_other(pool):
    with pool.acquire(0) as lease:
        assert (lease.size, len(lease.buffer), lease.buffer.format) == (0, 0, "B")
        assert lease.ptr != 0


@pytest.mark.parametrize("size", [-1, (1 << 64) - 1], ids=str)
def test_sizes_that_no_buffer_has_are_refused(pool, size):
    with pytest.raises(RuntimeError):
        pool.acquire(size)


def test_regions_bound_what_is_leased(store):
    options = {"min_size_class": 4096, "max_size_class": 8192}
    pool = BufferPool(store, max_regions=2, block_on_exhaustion=False, **options)
    first, second = pool.acquire(1), pool.acquire(8192)
    with pytest.raises(RuntimeError, match=r"exhausted.*2 of 2 regions"):
        pool.acquire(1)
    with pytest.raises(RuntimeError, match=r"timed out.*2 of 2 regions"):
        pool.acquire(1, block=True, timeout=0.05)
    first.release()
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(8193)
    second.release()
    pool.acquire(16384).release()
    with pytest.raises(RuntimeError, match="2 regions of 8192 bytes"):
        pool.acquire(16385)
    pool.close()
    unbounded = BufferPool(store, **options)
    with unbounded.acquire((1 << 20) + 1) as large:
        assert len(large.buffer) == (1 << 20) + 1
        address = large.ptr
    # What is above the largest class is not kept: its memory is registered no more.
    assert store.unregister_buffer(address) != 0
    unbounded.close()


@pytest.mark.parametrize("alignment", [12345, 0, -4096, 4096.0, 4, True, 1 << 64], ids=repr)
def test_an_alignment_is_a_power_of_two_that_an_address_may_have(store, alignment):
    with pytest.raises(RuntimeError, match=f"alignment={alignment!r} is no power of two from 8 to"):
        BufferPool(store, alignment=alignment)
    for allowed in (8, 1 << 63):
        BufferPool(store, alignment=allowed).close()


@pytest.mark.parametrize("bound", ["max_size_class", "max_regions"])
def test_bounds_are_positive(store, bound):
    with pytest.raises(ValueError, match=bound):
        BufferPool(store, **{bound: 0})


@pytest.mark.parametrize("size", [None, "1", 1.5], ids=repr)
def test_sizes_are_integers(pool, size):
    with pytest.raises(TypeError):
        pool.acquire(size)


NO_SECONDS = [("x", TypeError), (b"1", TypeError), ([], TypeError), (1j, TypeError), (float("nan"), ValueError)]


@pytest.mark.parametrize(("timeout", "error"), NO_SECONDS, ids=repr)
def test_a_timeout_is_a_number_of_seconds(store, timeout, error):
    with pytest.raises(error, match=re.escape(f"default_timeout={timeout!r}")):
        BufferPool(store, default_timeout=timeout)
    with BufferPool(store, max_bytes=64 << 20) as pool:
        with pytest.raises(error, match=re.escape(f"timeout={timeout!r}")):
            pool.acquire(1, timeout=timeout)
        with pool.acquire(64 << 20), pytest.raises(error, match=re.escape(f"timeout={timeout!r}")):
            pool.acquire(1, timeout=timeout)


def test_no_pool_has_a_negative_timeout_but_the_rest_of_a_callers_time_may_be_one(store):
    for timeout in (-1, -0.001, float("-inf")):
        with pytest.raises(ValueError, match=f"default_timeout={timeout!r}"):
            BufferPool(store, default_timeout=timeout)
    pool = BufferPool(store, max_bytes=64 << 20)
    with pool, pool.acquire(64 << 20), pytest.raises(RuntimeError, match="timed out"):
        pool.acquire(1, timeout=-0.001)


@pytest.mark.parametrize("timeout", [0.05, numpy.float32(0.05), Fraction(1, 20)], ids=repr)
def test_any_number_is_a_timeout(store, timeout):
    with BufferPool(store, max_bytes=64 << 20, default_timeout=timeout) as pool, pool.acquire(64 << 20):
        with pytest.raises(RuntimeError, match="timed out"):
            pool.acquire(1)
        with pytest.raises(RuntimeError, match="timed out"):
            pool.acquire(1, timeout=timeout)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**400], ids=["inf", "float", "int"])
def test_a_timeout_may_be_longer_than_any_clock_goes(store, timeout):
    with BufferPool(store, max_bytes=64 << 20, default_timeout=timeout) as pool:
        held = pool.acquire(64 << 20)
        later = threading.Timer(0.05, held.release)
        later.start()
        pool.acquire(1, timeout=timeout).release()
        later.join()


def test_a_pool_needs_a_store_that_is_set_up():
    with pytest.raises(RuntimeError, match="not set up"):
        BufferPool(MooncakeDistributedStore())
    with pytest.raises(TypeError):
        BufferPool(None)


def test_the_names_are_where_the_references_are():
    for name in buffer_pool.__all__:
        assert getattr(mooncake, name) is getattr(buffer_pool, name)
    assert buffer_pool.RegisteredBufferPool is BufferPool
    with pytest.raises(AttributeError):
        mooncake.nothing  # noqa: B018
