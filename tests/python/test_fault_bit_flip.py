"""One byte of an object flips in its owner's memory: it is never served, and its key is not poisoned."""

from __future__ import annotations

import os

import pytest
from contents import value, version_of
from machine import memfds

from mooncake.store import ReplicateConfig
from pool import wait_for

pytestmark = pytest.mark.timeout(60)

MIB = 1 << 20


def flip_a_byte(pid: int, data: bytes) -> None:
    """Finds `data` in the shared memory of a process, by its first KiB, and flips a byte in its middle."""
    for path in memfds(pid):
        with path.open("rb+", buffering=0) as memory:
            size = os.fstat(memory.fileno()).st_size
            for offset in range(0, size, 1 << 10):
                if os.pread(memory.fileno(), 1 << 10, offset) == data[: 1 << 10]:
                    at = offset + len(data) // 2
                    byte = os.pread(memory.fileno(), 1, at)
                    os.pwrite(memory.fileno(), bytes([byte[0] ^ 0x10]), at)
                    return
    raise AssertionError("the object is in no memfd of the process")


@pytest.mark.parametrize("shm", ["1", "0"], ids=["shared memory", "TCP"])
@pytest.mark.parametrize("how", ["get", "get_buffer"])
def test_a_flipped_byte_is_a_miss_then_the_key_is_free(cluster, shm, how):
    pool = cluster(node_bytes=32 * MIB)
    pool.spoils_replicas = True
    reader = pool.process(env={"MC_SHM": shm})
    data = value("k", MIB)
    assert reader.call("put", "k", data) == 0
    assert reader.call("get", "k") == data
    flip_a_byte(pool.nodes[0].pid, data)
    assert reader.call("is_exist", "k") == 1  # Nobody has looked at the bytes yet.
    assert not reader.call(how, "k")
    told = reader.call("last_error")
    assert "checksum" in told
    assert "the buffer that it was put from was changed during the put" in told
    wait_for("is_exist to say 0", lambda: reader.call("is_exist", "k") == 0, 2.0)
    again = value("k", MIB, version=1)
    assert reader.call("put", "k", again) == 0, reader.call("last_error")
    assert version_of("k", reader.call("get", "k")) == 1


def test_the_good_replica_is_served_instead(cluster):
    pool = cluster(nodes=2, node_bytes=32 * MIB)
    pool.spoils_replicas = True
    store = pool.store()
    config = ReplicateConfig()
    config.replica_num = 2
    data = value("k", MIB)
    assert store.put("k", data, config) == 0
    flip_a_byte(pool.nodes[0].pid, data)
    for _ in range(20):
        assert store.get("k") == data, store.last_error()
