"""Put and get of device memory, as fast as the GPU's link of the same run allows: a table is printed."""

from __future__ import annotations

import ctypes
import os
import statistics
import time

import pytest

from pool.device import Cuda

KEYS, LAYERS = 64, 32
ROUNDS = 7


def rate_of(size: int, work) -> float:
    """GB/s of the median of several rounds, after one that counts for nothing."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return size / statistics.median(times[1:]) / 1e9


def link_rates(cuda: Cuda, size: int) -> tuple[float, float]:
    """A plain copy between the GPU and pinned memory, either way."""
    pinned = ctypes.c_void_p()
    cuda.call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(size), ctypes.c_uint(1))
    at, length = ctypes.c_uint64(cuda.alloc(size)), ctypes.c_size_t(size)
    out = rate_of(size, lambda: cuda.call("cuMemcpyDtoH_v2", pinned, at, length))
    back = rate_of(size, lambda: cuda.call("cuMemcpyHtoD_v2", at, pinned, length))
    cuda.free(at.value)
    cuda.call("cuMemFreeHost", pinned)
    return out, back


@pytest.mark.parametrize("block", [16 << 10, 64 << 10])
def test_the_rate_beside_that_of_the_link(cuda, store, request, capsys, block):
    size = KEYS * LAYERS * block
    out, back = link_rates(cuda, size)
    data = os.urandom(size)
    cache = cuda.holding(data)
    assert store.register_buffer(cache, size) == 0
    addrs = [[cache + (layer * KEYS + key) * block for layer in range(LAYERS)] for key in range(KEYS)]
    sizes = [[block] * LAYERS] * KEYS
    turn = 0

    def put():
        nonlocal turn
        turn += 1
        names = [f"{turn}-{key}" for key in range(KEYS)]
        assert store.batch_put_from_multi_buffers(names, addrs, sizes) == [0] * KEYS, store.last_error()

    def get():
        names = [f"{turn}-{key}" for key in range(KEYS)]
        assert store.batch_get_into_multi_buffers(names, addrs, sizes) == [LAYERS * block] * KEYS

    put_rate = rate_of(size, put)
    cuda.write(cache, bytes(size))
    get_rate = rate_of(size, get)
    assert cuda.read(cache, size) == data
    assert store.unregister_buffer(cache) == 0
    cuda.free(cache)
    with capsys.disabled():
        print(
            f"\n{request.node.name}: {KEYS} x {LAYERS} x {block >> 10} KiB, GB/s:"
            f" put {put_rate:.1f} (link {out:.1f}, {put_rate / out:.0%}),"
            f" get {get_rate:.1f} (link {back:.1f}, {get_rate / back:.0%})"
        )
