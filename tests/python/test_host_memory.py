"""Memory from us for engines: populated, usable, taken back once; NUMA bindings that never fail a call."""

from __future__ import annotations

import ctypes
import logging
import os
import threading

import pytest

import mooncake.store as ms
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator, bind_to_numa_node


def pages(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) << 10


def test_memory_is_zero_populated_and_can_be_registered(store):
    allocator, size = MooncakeHostMemAllocator(), 32 << 20
    before = pages("RssShmem")
    address = allocator.alloc(size)
    assert pages("RssShmem") - before >= size
    assert address % 4096 == 0
    memory = (ctypes.c_ubyte * size).from_address(address)
    assert not any(memory[at] for at in range(0, size, 4096))
    memory[size - 1] = 7
    assert store.register_buffer(address, size) == 0
    assert store.put_from("k", address + size - 10, 10) == 0
    assert store.get("k") == bytes(9) + b"\7"
    assert store.unregister_buffer(address) == 0
    assert allocator.free(address) == 0
    assert pages("RssShmem") - before < size
    assert allocator.free(address) == -600


def test_what_the_allocator_did_not_give_is_left_alone():
    memory = ctypes.create_string_buffer(b"mine", 4096)
    assert MooncakeHostMemAllocator().free(ctypes.addressof(memory)) == -600
    assert memory.value == b"mine"


@pytest.mark.parametrize("size", [0, 1 << 46, (1 << 64) - 1], ids=str)
def test_sizes_that_cannot_be_had_are_runtime_errors(size):
    with pytest.raises(RuntimeError, match=str(size)):
        MooncakeHostMemAllocator().alloc(size)


@pytest.mark.parametrize("size", [-1, None, "1", 1.5, 1 << 64], ids=repr)
def test_sizes_are_integers(size):
    with pytest.raises(TypeError):
        MooncakeHostMemAllocator().alloc(size)
    with pytest.raises(TypeError):
        MooncakeHostMemAllocator().free(size)


def test_allocators_of_others_can_call_ours():
    alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(ms.get_alloc_func_addr())
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ms.get_free_func_addr())
    address = alloc(5 << 20)
    memory = (ctypes.c_ubyte * (5 << 20)).from_address(address)
    memory[0], memory[-1] = 1, 2
    assert memory[1] == 0
    free(address)
    free(address)
    free(None)
    assert alloc(0) is None
    assert alloc(1 << 46) is None


@pytest.mark.skipif(not os.path.exists("/sys/devices/system/node/node0"), reason="the kernel has no NUMA nodes")
def test_a_thread_is_bound_to_the_processors_of_a_node():
    found: list[set[int]] = []

    def bound():
        bind_to_numa_node(0)
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=bound)
    thread.start()
    thread.join()
    with open("/sys/devices/system/node/node0/cpulist") as file:
        listed = file.read().strip().replace("-", ",").split(",")
    assert str(min(found[0])) in listed


@pytest.mark.parametrize("node", [-1, 999, 1 << 20, 1 << 70], ids=str)
def test_a_node_that_is_not_there_is_a_warning(node, caplog):
    with caplog.at_level(logging.WARNING, logger="mooncake.store"):
        assert bind_to_numa_node(node) is None
    assert str(node) in caplog.text
    with pytest.raises(TypeError):
        bind_to_numa_node("0")


def test_old_calls_answer_as_the_references():
    s = MooncakeDistributedStore()
    assert s.alloc_from_mem_pool(4096) == 0
    with pytest.raises(TypeError):
        s.alloc_from_mem_pool(None)
    with pytest.raises(TypeError):
        s.init_all("tcp")
    with pytest.raises(TypeError):
        s.init_all(protocol="tcp", device_name="")
    assert ms._get_pyclient_from_wrapper(s) is None
    with pytest.raises(TypeError):
        ms._get_pyclient_from_wrapper("store")


def test_a_store_that_is_set_up_is_its_own_client(store):
    assert ms._get_pyclient_from_wrapper(store) is store
