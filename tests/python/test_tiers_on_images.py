"""Tiers on file systems that are full, become read-only or are slow: real ones, on loop devices."""

from __future__ import annotations

import os
import sys
import time

import pytest
from contents import value, version_of
from fuse import EmptyFuse
from images import Image, Throttle
from peer import Peer
from test_tiers import MEMORY, MIB, put_all, versions

from mooncake.store import MooncakeDistributedStore
from pool import wait_for

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

# The least that XFS takes.
SIZE = 320 * MIB


@pytest.fixture(params=["ext4", "xfs"])
def image(request, tmp_path):
    made = Image(tmp_path, request.param, SIZE)
    yield made
    made.close()


@pytest.fixture
def on_image(image, cluster):
    """A master, and a node of 32 MiB whose tier lies on the image. They end before the image goes."""
    pool = cluster(
        nodes=1,
        node_bytes=MEMORY,
        node_flags=["--enable_offload"],
        env={"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(image.path / "tiers")},
    )
    wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    yield pool
    pool.end()


def test_a_file_system_that_others_fill_takes_what_it_has_room_for_and_refuses_no_put(on_image, image):
    pool, store = on_image, on_image.store()
    put_all(store, [f"k{number}" for number in range(100)], MIB)
    wait_for("all to be written", lambda: pool.metric("file_cache_nums_") == 100)
    neighbour = image.fill()
    assert os.statvfs(image.path).f_bavail * 4096 < 40 * MIB
    keys = [f"full{number}" for number in range(200)]
    put_all(store, keys, MIB)
    read = versions(store, keys)
    assert None not in read
    assert read[-16:] == [0] * 16
    assert read.count(0) >= 60, "the tier goes on in the room that it has"
    said = [line for line in pool.nodes[0].output().splitlines() if "WARN" in line or "ERROR" in line]
    assert any("room" in line for line in said), said
    wait_for("that to be told", lambda: pool.metric("mooncake_tier_lacks_room") == 1)
    # What is given back may be used again.
    neighbour.unlink()
    put_all(store, [f"more{number}" for number in range(100)], MIB)
    assert None not in versions(store, [f"more{number}" for number in range(100)])


def test_a_file_system_that_becomes_read_only_is_read_if_it_can_be_and_no_put_fails(on_image, image):
    pool, store = on_image, on_image.store()
    pool.spoils_replicas = image.kind == "xfs"
    keys = [f"k{number}" for number in range(100)]
    put_all(store, keys, MIB)
    wait_for("all to be written", lambda: pool.metric("file_cache_nums_") == len(keys))
    image.becomes_read_only()
    new = [f"new{number}" for number in range(150)]
    began = time.monotonic()
    put_all(store, new, MIB)
    assert time.monotonic() - began < 30, "no put waits long for such a disk"
    wait_for("the tier to be written no more", lambda: pool.metric("mooncake_tiers_refusing") == 1, 20)
    read = versions(store, [*keys, *new])
    assert None not in read
    assert read[-8:] == [0] * 8
    if image.kind == "ext4":
        assert read[: len(keys)] == [0] * len(keys), "what is there is read"
    said = pool.nodes[0].output()
    assert "it is read and not written" in said
    assert "dmesg" in said, "the operator is told what to do"


def test_a_disk_that_is_slow_loses_what_it_has_no_time_for_and_refuses_no_put(on_image, image):
    throttle = Throttle(f"mooncake-test-{os.getpid()}", image.device, 4 * MIB)
    pool, store = on_image, on_image.store()
    try:
        throttle.take(pool.nodes[0].pid)
        keys = [f"k{number}" for number in range(80)]
        began = time.monotonic()
        put_all(store, keys, MIB)
        put_in = time.monotonic() - began
        read = versions(store, keys)
        assert None not in read
        assert read[-16:] == [0] * 16
        # A put waits a quarter of a second at most for the disk.
        assert put_in < len(keys) * 0.35
        assert pool.metric("mooncake_evicted_unwritten_objects_total") > 0, "the disk was not slow"
        assert pool.metric("mooncake_tiers_hidden") == 0
        wait_for("the operator to be told what to do", lambda: "more memory gives it time" in pool.master.output())
    finally:
        pool.end()
        throttle.close()


def test_objects_of_most_of_memory_are_put_though_the_disk_is_slow(on_image, image):
    throttle = Throttle(f"mooncake-test-{os.getpid()}", image.device, 8 * MIB)
    pool, store = on_image, on_image.store()
    sizes = [20 * MIB, MIB, MIB, 20 * MIB, MIB] * 4
    keys = [f"k{number}" for number in range(len(sizes))]
    try:
        throttle.take(pool.nodes[0].pid)
        for key, size in zip(keys, sizes, strict=True):
            began = time.monotonic()
            assert store.put(key, value(key, size)) == 0, store.last_error()
            assert time.monotonic() - began < 3
            assert version_of(key, store.get(key)) == 0
        read = versions(store, keys)
        assert None not in read
        assert read[-1] == 0
        assert pool.metric("mooncake_evicted_unwritten_objects_total") > 0, "the disk was not slow"
    finally:
        pool.end()
        throttle.close()


def test_a_tier_of_one_store_is_refused_on_fuse_with_what_to_do(shared_cluster, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("FUSE needs root, or a program of its own")
    mounted = EmptyFuse(tmp_path / "fuse")
    store = MooncakeDistributedStore()
    try:
        code = store.setup(
            "127.0.0.1", "P2PHANDSHAKE", MEMORY, MEMORY, "tcp", "", shared_cluster.master.addr,
            enable_ssd_offload=True, ssd_offload_path=str(mounted.path),
        )  # fmt: skip
        said = store.last_error()
        assert code != 0
        assert "FUSE" in said
        assert "--root_fs_dir" in said
        assert str(mounted.path) in said
    finally:
        store.close()
        mounted.close()


def test_files_that_a_limit_of_the_process_does_not_allow_are_refused_and_no_signal_ends_it(shared_cluster, tmp_path):
    peer = Peer("limited", tmp_path / "limited.out", None, ["prlimit", f"--fsize={8 * MIB}", sys.executable])
    try:
        code = peer.call(
            "setup", "127.0.0.1", "P2PHANDSHAKE", 0, MEMORY, "tcp", "", shared_cluster.master.addr,
            enable_ssd_offload=True, ssd_offload_path=str(tmp_path / "tiers"),
        )  # fmt: skip
        assert code != 0
        assert "RLIMIT_FSIZE" in peer.call("last_error")
    finally:
        peer.kill()
