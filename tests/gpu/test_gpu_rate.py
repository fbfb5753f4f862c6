"""Put and get of device memory, beside the GPU's link and the processor of the same run: a table is printed."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

import pytest
from device import Cuda

KEYS, LAYERS = 64, 32
ROUNDS = 8

# Bytes of a GPU cross its link, in pieces of a cache's block, and are copied and checksummed by a processor as those of
# the host. The two go side by side, so that the slower one alone should be seen. Filling and draining the slots, and
# memory that the link's traffic shares with the copy's, may cost as much again, and no more.
FLOOR = 0.5


class Link:
    """Copies between the GPU and pinned memory, in pieces that are queued on one stream."""

    def __init__(self, cuda: Cuda, size: int, piece: int):
        self.cuda, self.pinned, self.stream = cuda, ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuMemHostAlloc", ctypes.byref(self.pinned), ctypes.c_size_t(size), ctypes.c_uint(1))
        cuda.call("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(1))
        self.memory = cuda.alloc(size)
        starts, self.piece = range(0, size, piece), ctypes.c_size_t(piece)
        self.host = [ctypes.c_void_p(self.pinned.value + start) for start in starts]
        self.device = [ctypes.c_uint64(self.memory + start) for start in starts]

    def put(self) -> None:
        for host, device in zip(self.host, self.device, strict=True):
            self.cuda.call("cuMemcpyDtoHAsync_v2", host, device, self.piece, self.stream)
        self.cuda.call("cuStreamSynchronize", self.stream)

    def get(self) -> None:
        for host, device in zip(self.host, self.device, strict=True):
            self.cuda.call("cuMemcpyHtoDAsync_v2", device, host, self.piece, self.stream)
        self.cuda.call("cuStreamSynchronize", self.stream)

    def clear(self) -> None:
        pass

    def free(self) -> None:
        self.cuda.call("cuStreamDestroy_v2", self.stream)
        self.cuda.free(self.memory)
        self.cuda.call("cuMemFreeHost", self.pinned)


class Objects:
    """Put and get of objects that lie in memory as the blocks of a cache do: one buffer for each layer."""

    keys = tuple(f"block-{key}" for key in range(KEYS))

    def __init__(self, store, memory: int, block: int, clear: Callable[[], object]):
        self.store, self.memory, self.length, self.clear = store, memory, LAYERS * block, clear
        self.addrs = [[memory + (layer * KEYS + key) * block for layer in range(LAYERS)] for key in range(KEYS)]
        self.sizes = [[block] * LAYERS] * KEYS
        assert store.register_buffer(memory, KEYS * self.length) == 0, store.last_error()

    def put(self) -> None:
        codes = self.store.batch_put_from_multi_buffers(list(self.keys), self.addrs, self.sizes)
        assert codes == [0] * KEYS, self.store.last_error()

    def get(self) -> None:
        codes = self.store.batch_get_into_multi_buffers(list(self.keys), self.addrs, self.sizes)
        assert codes == [self.length] * KEYS, self.store.last_error()

    def free(self) -> None:
        assert self.store.unregister_buffer(self.memory) == 0


def best_rates(store, size: int, sides: list[Link | Objects]) -> list[tuple[float, float]]:
    """GB/s of put and get of each side. They take turns, so that whatever else the machine does is met by all."""
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in sides]
    for _ in range(ROUNDS):
        for side, (puts, gets) in zip(sides, times, strict=True):
            start = time.perf_counter()
            side.put()
            puts.append(time.perf_counter() - start)
            side.clear()
            start = time.perf_counter()
            side.get()
            gets.append(time.perf_counter() - start)
            store.remove_all(True)
    return [(size / min(puts) / 1e9, size / min(gets) / 1e9) for puts, gets in times]


@pytest.mark.parametrize("block", [16 << 10, 64 << 10])
def test_the_rate_is_at_least_half_of_what_link_and_processor_give(cuda, store, request, capsys, block):
    size = KEYS * LAYERS * block
    data = os.urandom(size)
    host, cache = ctypes.create_string_buffer(data, size), cuda.holding(data)
    sides = [
        Link(cuda, size, block),
        Objects(store, ctypes.addressof(host), block, lambda: ctypes.memset(host, 0, size)),
        Objects(store, cache, block, lambda: cuda.write(cache, bytes(size))),
    ]
    rates = best_rates(store, size, sides)
    assert cuda.read(cache, size) == data == host.raw
    for side in sides:
        side.free()
    cuda.free(cache)
    shares = [device / min(link, same) for link, same, device in zip(*rates, strict=True)]
    with capsys.disabled():
        print(f"\n{request.node.name}: {KEYS} x {LAYERS} x {block >> 10} KiB, GB/s:")
        for way, link, same, device, share in zip(("put", "get"), *rates, shares, strict=True):
            print(f"  {way} {device:.1f}, {share:.0%} (link {link:.1f}, the same objects of host memory {same:.1f})")
    assert min(shares) >= FLOOR, shares
