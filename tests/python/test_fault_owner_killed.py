"""A process that lent memory is killed: its objects are misses at once, its memory comes back, the rest goes on."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from contents import value, version_of
from machine import seconds_until_shmem_falls, shmem, shmem_at_rest, wait_shmem_grows

from mooncake.store import ReplicateConfig
from pool import wait_for

pytestmark = [pytest.mark.timeout(60), pytest.mark.alone, pytest.mark.usefixtures("checksums")]

MIB = 1 << 20
FORK = """
import os, time
child = os.fork()
if child == 0:
    os.close(0); os.close(1)
    time.sleep(60)
    os._exit(0)
result = child
"""


@pytest.fixture(params=[False, True], ids=["alone", "with a forked child that lives on"])
def owner(request, cluster):
    """A cluster without nodes, and a process that owns 256 MiB; a child of it may outlive it."""
    pool = cluster(nodes=0)
    before = shmem_at_rest()
    peer = pool.process(segment=256 * MIB)
    child = peer.call("run", FORK) if request.param else None
    pool.wait_segments(1)
    peer.populated = wait_shmem_grows(before, 256 * MIB)
    yield pool, peer
    if child is not None:
        os.kill(child, signal.SIGKILL)


def test_its_objects_are_misses_within_a_second_and_do_not_exist_within_two(owner):
    pool, peer = owner
    store = pool.store()
    keys = [f"k{i}" for i in range(8)]
    for key in keys:
        assert store.put(key, value(key, MIB)) == 0, store.last_error()
        assert store.get(key) == value(key, MIB)

    peer.kill()
    killed = time.monotonic()
    # Until the master has heard of the end, a reader that has the memory mapped may read it: right bytes, or a miss.
    while (got := store.get(keys[0])) != b"":
        assert version_of(keys[0], got) == 0
        assert time.monotonic() - killed < 1.0
    assert time.monotonic() - killed < 1.0
    wait_for(
        "is_exist says 0", lambda: store.batch_is_exist(keys) == [0] * len(keys), 2.0 - (time.monotonic() - killed)
    )
    assert store.get_batch(keys) == [b""] * len(keys)


def test_the_hosts_shared_memory_is_back_within_two_seconds_while_readers_live(owner):
    pool, peer = owner
    readers = [pool.process(), pool.process()]
    for number, reader in enumerate(readers):
        key = f"k{number}"
        assert reader.call("put", key, value(key, 4 * MIB)) == 0
        assert version_of(key, reader.call("get", key)) == 0

    full = shmem()
    peer.kill()
    assert seconds_until_shmem_falls(full, 256 * MIB, 2.0) < 2.0
    for reader in readers:
        assert reader.call("health_check") == 0


@pytest.mark.parametrize("shm", ["1", "0"], ids=["shared memory", "TCP"])
def test_a_put_issued_200_ms_after_the_kill_succeeds_within_a_second(cluster, shm):
    pool = cluster(nodes=2, node_bytes=128 * MIB)
    writer = pool.process(env={"MC_SHM": shm})
    for number in range(8):  # The writer knows both nodes before one of them dies.
        assert writer.call("put", f"before{number}", value(f"before{number}", MIB)) == 0

    pool.nodes[0].kill()
    time.sleep(0.2)
    for number in range(16):
        key = f"after{number}"
        begin = time.monotonic()
        assert writer.call("put", key, value(key, MIB)) == 0, writer.call("last_error")
        assert time.monotonic() - begin < 1.0
        assert version_of(key, writer.call("get", key)) == 0


def test_with_two_replicas_reads_go_on_without_a_miss(cluster):
    pool = cluster(nodes=2, node_bytes=128 * MIB)
    store = pool.store()
    config = ReplicateConfig()
    config.replica_num = 2
    keys = [f"k{i}" for i in range(40)]
    for key in keys:
        assert store.put(key, value(key, 256 << 10), config) == 0, store.last_error()

    misses, longest, reads, stop = [], 0.0, 0, threading.Event()

    def read():
        nonlocal longest, reads
        while not stop.is_set():
            key = keys[reads % len(keys)]
            begin = time.monotonic()
            if version_of(key, store.get(key)) != 0:
                misses.append(key)
            longest = max(longest, time.monotonic() - begin)
            reads += 1

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.3)
    pool.nodes[1].kill()
    time.sleep(3.0)
    stop.set()
    reader.join()
    assert not misses, f"{len(misses)} misses of {reads} reads: {store.last_error()}"
    assert reads > len(keys)
    assert longest < 1.0
