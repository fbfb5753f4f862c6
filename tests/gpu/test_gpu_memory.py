"""Bytes of a real GPU go in and come out, of every sort of memory that frameworks allocate."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest
from device import Cuda

SIZES = [1, 4096, 100_003, 1 << 20, (5 << 20) + 17, 24 << 20]


class Mapped:
    """Memory that was reserved, made and mapped by itself, as PyTorch's expandable segments are: in two pieces."""

    class Properties(ctypes.Structure):
        _fields_ = (
            ("type", ctypes.c_int),
            ("handle_types", ctypes.c_int),
            ("location_type", ctypes.c_int),
            ("location_id", ctypes.c_int),
            ("win32", ctypes.c_void_p),
            ("flags", ctypes.c_ubyte * 8),
        )

    class Access(ctypes.Structure):
        _fields_ = (("location_type", ctypes.c_int), ("location_id", ctypes.c_int), ("flags", ctypes.c_int))

    def __init__(self, cuda: Cuda, piece: int):
        size_t, u64 = ctypes.c_size_t, ctypes.c_uint64
        wanted = self.Properties(type=1, location_type=1, location_id=0)
        unit = size_t()
        cuda.call("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(wanted), 0)
        self.cuda, self.piece = cuda, -(-piece // unit.value) * unit.value
        self.size = 2 * self.piece
        at = u64()
        cuda.call("cuMemAddressReserve", ctypes.byref(at), size_t(self.size), size_t(0), u64(0), u64(0))
        self.addr, self.handles = at.value, []
        for nth in range(2):
            handle = u64()
            cuda.call("cuMemCreate", ctypes.byref(handle), size_t(self.piece), ctypes.byref(wanted), u64(0))
            where = u64(self.addr + nth * self.piece)
            cuda.call("cuMemMap", where, size_t(self.piece), size_t(0), handle, u64(0))
            self.handles.append(handle)
        access = self.Access(1, 0, 3)
        cuda.call("cuMemSetAccess", at, size_t(self.size), ctypes.byref(access), size_t(1))

    def free(self) -> None:
        size_t, u64 = ctypes.c_size_t, ctypes.c_uint64
        self.cuda.call("cuMemUnmap", u64(self.addr), size_t(self.size))
        for handle in self.handles:
            self.cuda.call("cuMemRelease", handle)
        self.cuda.call("cuMemAddressFree", u64(self.addr), size_t(self.size))


@pytest.mark.parametrize("registered", [False, True])
def test_bytes_are_those_of_a_host_copy(cuda, store, registered):
    for size in SIZES:
        data = os.urandom(size)
        source, target = cuda.holding(data), cuda.holding(bytes(size))
        if registered:
            assert store.register_buffer(source, size) == store.register_buffer(target, size) == 0
        assert store.put_from(f"k{size}", source, size) == 0, store.last_error()
        assert store.get_into(f"k{size}", target, size) == size, store.last_error()
        assert cuda.read(target, size) == data
        assert store.get(f"k{size}") == data
        if registered:
            assert store.unregister_buffer(source) == store.unregister_buffer(target) == 0
        cuda.free(source)
        cuda.free(target)


def test_many_buffers_of_a_registered_cache_come_back(cuda, store):
    keys, layers, block = 16, 32, 32 << 10
    data = os.urandom(keys * layers * block)
    cache = cuda.holding(data)
    assert store.register_buffer(cache, len(data)) == 0
    names = [f"block-{key}" for key in range(keys)]
    addrs = [[cache + (layer * keys + key) * block for layer in range(layers)] for key in range(keys)]
    sizes = [[block] * layers] * keys
    assert store.batch_put_from_multi_buffers(names, addrs, sizes) == [0] * keys
    cuda.write(cache, bytes(len(data)))
    assert store.batch_get_into_multi_buffers(names, addrs, sizes) == [layers * block] * keys
    assert cuda.read(cache, len(data)) == data
    assert store.unregister_buffer(cache) == 0
    cuda.free(cache)


@pytest.mark.parametrize("registered", [False, True])
def test_memory_that_was_mapped_by_pieces_is_device_memory(cuda, store, registered):
    memory = Mapped(cuda, 4 << 20)
    data = os.urandom(memory.size)
    cuda.write(memory.addr, data)
    if registered:
        assert store.register_buffer(memory.addr, memory.size) == 0, store.last_error()
    # Across the seam.
    at, size = memory.addr + memory.piece - 1_000_000, 2_000_000
    assert store.put_from("seam", at, size) == 0, store.last_error()
    cuda.write(memory.addr, bytes(memory.size))
    assert store.get_into("seam", at, size) == size, store.last_error()
    assert cuda.read(at, size) == data[memory.piece - 1_000_000 : memory.piece + 1_000_000]
    if registered:
        assert store.unregister_buffer(memory.addr) == 0
    memory.free()


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("sort", ["pinned", "managed"])
def test_memory_of_the_driver_that_processors_can_use_is_host_memory(cuda, store, sort, registered):
    size, at = 3_000_001, ctypes.c_uint64()
    if sort == "pinned":
        cuda.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_uint(1))
    else:
        cuda.call("cuMemAllocManaged", ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_uint(1))
    data = os.urandom(size)
    ctypes.memmove(at.value, data, size)
    if registered:
        assert store.register_buffer(at.value, size) == 0, store.last_error()
    assert store.put_from("k", at.value, size) == 0, store.last_error()
    ctypes.memset(at.value, 0, size)
    assert store.get_into("k", at.value, size) == size, store.last_error()
    assert ctypes.string_at(at.value, size) == data
    if registered:
        assert store.unregister_buffer(at.value) == 0
    cuda.call("cuMemFreeHost" if sort == "pinned" else "cuMemFree_v2", at)


def test_a_range_beyond_an_allocation_is_refused_and_the_gpu_unharmed(cuda, store):
    size = 64 << 20
    memory = cuda.alloc(size)
    assert store.register_buffer(memory, 1 << 44) == -600
    assert store.put_from("beyond", memory, 1 << 44) < 0
    assert store.register_buffer(memory, size) == 0
    cuda.free(memory)
    assert store.put_from("freed", memory, size) in (-600, -800)
    assert store.last_error()
    assert store.unregister_buffer(memory) == 0
    again = cuda.holding(b"fine" * 1000)
    assert store.put_from("after", again, 4000) == 0, store.last_error()
    assert store.get("after") == b"fine" * 1000
    cuda.free(again)


def test_threads_without_a_context_of_their_own_may_call(cuda, store):
    data = os.urandom(1 << 20)
    source, target = cuda.holding(data), cuda.alloc(len(data))
    codes = []

    def work():
        codes.append(store.put_from("thread", source, len(data)))
        codes.append(store.get_into("thread", target, len(data)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [0, len(data)], store.last_error()
    assert cuda.read(target, len(data)) == data
    cuda.free(source)
    cuda.free(target)
