"""Processes that know only the storage node of their host: `setup_dummy`."""

from __future__ import annotations

import ctypes

import pytest

from mooncake.store import MooncakeDistributedStore
from pool import free_port, wait_for


@pytest.fixture
def pool(cluster):
    """A cluster with one node whose service has a port, and that port."""
    c = cluster(nodes=0)
    port = free_port()
    c.add_node(64 << 20, [f"--port={port}"])
    return c, port


def dummy(port: int) -> MooncakeDistributedStore:
    made = MooncakeDistributedStore()
    assert made.setup_dummy(1 << 30, 16 << 20, f"127.0.0.1:{port}") == 0, made.last_error()
    return made


def test_a_dummy_does_what_a_real_client_does(pool):
    c, port = pool
    real, made = c.store(), dummy(port)
    assert made.get_hostname() == ""
    assert made.health_check() == 0
    assert made.put("k", b"v" * 5000) == 0
    assert real.get("k") == b"v" * 5000
    assert bytes(made.get_buffer("k")) == b"v" * 5000
    memory = ctypes.create_string_buffer(5000)
    at = ctypes.addressof(memory)
    assert made.register_buffer(at, 5000) == 0
    assert made.get_into("k", at, 5000) == 5000
    assert memory.raw == b"v" * 5000
    assert made.batch_put_from(["a", "b"], [at, at], [100, 200]) == [0, 0]
    assert made.batch_is_exist(["a", "b", "c"]) == [1, 1, 0]
    assert made.get_size("b") == 200
    assert made.remove_all(True) == 3
    assert c.segments() == [c.nodes[0].segment], "it lends nothing"
    assert made.close() == 0


def test_a_dummy_gets_memory_from_its_pool(pool):
    c, port = pool
    made = dummy(port)
    size = 1 << 20
    at, other = made.alloc_from_mem_pool(size), made.alloc_from_mem_pool(size)
    assert at, made.last_error()
    assert other not in (0, at)
    memory = (ctypes.c_ubyte * size).from_address(at)
    memory[:4] = b"head"
    assert made.register_buffer(at, size) == 0
    assert made.register_buffer(other, size) == 0
    assert made.put_from("k", at, size) == 0
    assert made.get_into("k", other, size) == size
    assert ctypes.string_at(other, 5) == b"head\0"
    assert made.alloc_from_mem_pool(1 << 46) == 0
    assert str(1 << 46) in made.last_error()
    for wrong in (-1, None, "1", 1.5):
        with pytest.raises(TypeError):
            made.alloc_from_mem_pool(wrong)
    assert made.close() == 0
    assert made.alloc_from_mem_pool(size) == 0
    real = c.store()
    assert real.alloc_from_mem_pool(size) == 0
    assert "setup_dummy" in real.last_error()


def test_the_memory_of_a_dummys_pool_goes_with_the_store(pool):
    _, port = pool

    def shared() -> int:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssShmem")) << 10

    made = dummy(port)
    before, size = shared(), 32 << 20
    assert made.alloc_from_mem_pool(size)
    assert shared() - before >= size
    assert made.close() == 0
    del made
    assert shared() - before < size


def test_a_forked_child_of_a_dummy_gets_no_memory_and_takes_none(pool):
    c, port = pool
    process = c.process()
    assert process.call("setup_dummy", 1 << 30, 16 << 20, f"127.0.0.1:{port}") == 0
    assert process.call(
        "run",
        """
import os, signal, ctypes
at = store.alloc_from_mem_pool(4096)
ctypes.memset(at, 7, 4096)
child = os.fork()
if child == 0:
    signal.alarm(20)
    ok = False
    try:
        ok = store.alloc_from_mem_pool(4096) == 0 and "fork" in store.last_error()
    finally:
        os._exit(0 if ok else 1)
_, status = os.waitpid(child, 0)
result = os.waitstatus_to_exitcode(status) == 0 and ctypes.string_at(at, 4096) == bytes([7]) * 4096
""",
    )


def test_a_dummy_that_is_killed_takes_nothing_along(pool):
    c, port = pool
    process = c.process()
    assert process.call("setup_dummy", 1 << 30, 16 << 20, f"127.0.0.1:{port}") == 0
    assert process.call("put", "kept", b"v" * 100_000) == 0
    process.kill()
    assert dummy(port).get("kept") == b"v" * 100_000


def test_a_node_that_starts_anew_is_used_again(pool):
    c, port = pool
    made = dummy(port)
    assert made.put("before", b"v") == 0
    c.nodes[0].kill()
    assert made.get("before") == b""
    c.nodes[0].start()
    wait_for("puts to succeed again", lambda: made.put("after", b"v") == 0)
    assert made.get("after") == b"v"
    assert dummy(port).get("after") == b"v"


def test_a_pool_without_memory_is_said_to_lack_its_node(pool):
    c, port = pool
    made, real = dummy(port), c.store()
    c.nodes[0].kill()
    wait_for("no memory to be left", lambda: made.put("k", b"v") == -200)
    assert made.put("k", b"v") == -200
    assert f"the storage node 127.0.0.1:{port} has gone" in made.last_error()
    assert made.put_batch(["k", "l"], [b"v", b"v"]) == -200
    assert "has gone" in made.last_error()
    assert real.put("k", b"v") == -200
    assert "has gone" not in real.last_error(), "it knows of no node"


def test_a_node_of_another_host_is_not_looked_for_on_this_one(pool):
    _, port = pool
    made = MooncakeDistributedStore()
    assert made.setup_dummy(0, 1 << 20, f"192.0.2.1:{port}") == -1
    assert f"192.0.2.1:{port}" in made.last_error()


def test_nobody_there_is_an_error_that_says_what_to_start():
    made = MooncakeDistributedStore()
    port = free_port()
    assert made.setup_dummy(0, 1 << 20, f"127.0.0.1:{port}") == -1
    assert "mooncake_client" in made.last_error()
    assert str(port) in made.last_error()
    assert made.put("k", b"v") == -600
    assert made.setup_dummy(0, 1 << 20, "nonsense") == -1
    for wrong in [(None, 0, "h:1"), (0, -1, "h:1"), (0, 0, 7)]:
        with pytest.raises(TypeError):
            made.setup_dummy(*wrong)


def test_a_port_that_was_asked_for_and_is_taken_stops_the_node(pool, tmp_path):
    c, port = pool
    with pytest.raises(AssertionError, match=str(port)):
        c.add_node(16 << 20, [f"--port={port}"])
