"""Where copies lie; segments that come and go; removal by pattern; groups."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from mooncake.store import MooncakeDistributedStore, ReplicaStatus, ReplicateConfig
from pool import wait_for

MIB = 1 << 20


def test_copies_are_described(cluster):
    c = cluster(nodes=2)
    store = c.store()
    config = ReplicateConfig()
    config.replica_num = 2
    assert store.put("two", b"v" * 5000, config) == 0
    assert store.put("one", b"v") == 0
    copies = store.get_replica_desc("two")
    assert sorted(copy.get_memory_descriptor().buffer_descriptor.transport_endpoint for copy in copies) == sorted(
        c.segments()
    )
    for copy in copies:
        assert copy.status == ReplicaStatus.COMPLETE
        assert copy.is_memory_replica()
        assert not copy.is_disk_replica()
        assert not copy.is_local_disk_replica()
        assert copy.get_memory_descriptor().buffer_descriptor.size == 5000
        with pytest.raises(RuntimeError):
            copy.get_disk_descriptor()
    assert len({copy.id for copy in copies}) == 2
    found = store.batch_get_replica_desc(["one", "missing", "two"])
    assert {key: len(copies) for key, copies in found.items()} == {"one": 1, "two": 2}
    assert store.get_replica_desc("missing") == []
    assert MooncakeDistributedStore().get_replica_desc("k") == []


def test_memory_is_given_and_taken_back_at_run_time(cluster):
    c = cluster(nodes=0)
    store, other = c.store(), c.store()
    assert store.put("k", b"v") == -200
    given = store.allocate_and_mount_segment(20 * MIB)
    assert given["ret"] == 0, store.last_error()
    assert given["allocated_size"] == 32 * MIB
    assert len(given["segment_ids"]) == 1
    assert other.put("k", b"v" * MIB) == 0, other.last_error()
    assert store.get("k") == b"v" * MIB
    assert store.unmount_segment(given["segment_ids"]) == 0
    assert other.get("k") == b""
    assert store.unmount_segment(given["segment_ids"]) < 0
    for wrong in ("nonsense", "", "1-x", "0" * 32, "1-2"):
        assert store.unmount_segment([wrong]) == -600
        assert wrong in store.last_error()


def test_a_segment_has_the_same_id_everywhere(cluster):
    c = cluster(nodes=0)
    store = c.store()
    given = store.allocate_and_mount_segment(16 * MIB)
    (name,) = given["segment_ids"]
    detail = json.loads(c.master.http("/get_segments_detail"))["segments"]
    assert [segment["segment_id"] for segment in detail] == [name]
    high, low = name.split("-")
    assert 0 <= int(high) < 1 << 64
    assert 0 <= int(low) < 1 << 64
    assert store.unmount_segment([name]) == 0


def test_what_cannot_be_mounted_is_told_as_that(cluster):
    c = cluster(nodes=0)
    store = c.store()
    failed = store.allocate_and_mount_segment(1 << 50)
    assert failed == {"ret": failed["ret"], "segment_ids": [], "allocated_size": 0}
    assert failed["ret"] < 0
    assert store.last_error().startswith("making the segment"), store.last_error()


def test_for_the_time_of_the_grace_what_a_segment_holds_is_read(cluster):
    c = cluster(nodes=0)
    store = c.store()
    given = store.allocate_and_mount_segment(16 * MIB)
    assert store.put("k", b"v") == 0
    assert store.unmount_and_free_segment(given["segment_ids"], grace_period_seconds=2) == 0
    assert store.get("k") == b"v"
    assert store.put("new", b"v") == -200
    wait_for("the grace to end", lambda: store.get("k") == b"", timeout=6)


def test_a_file_is_given_to_the_pool(cluster, tmp_path):
    c = cluster(nodes=0)
    store, other = c.store(), c.store()
    path = tmp_path / "segment"
    path.write_bytes(bytes(8 * MIB))
    given = store.mount_segment(path, 4 * MIB, offset=4 * MIB)
    assert given["ret"] == 0, store.last_error()
    assert other.put("k", b"v" * MIB) == 0, other.last_error()
    assert other.get("k") == b"v" * MIB
    assert bytes(other.get_buffer("k")) == b"v" * MIB
    assert path.read_bytes()[: 4 * MIB] == bytes(4 * MIB)
    assert store.mount_segment(path, 4 * MIB, offset=4 * MIB)["ret"] < 0
    assert store.mount_segment(tmp_path / "none", 4096)["ret"] < 0
    assert store.mount_segment(path, 64 * MIB)["ret"] < 0
    assert store.unmount_segment(given["segment_ids"]) == 0


def memory_of_segments(process: int | str) -> list[str]:
    found = []
    for fd in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # what listed them is gone by now
            if "memfd:kv-segment" in os.readlink(fd):
                found.append(str(fd))
    return found


def test_a_segments_own_memory_is_not_given_a_second_time(cluster):
    c = cluster(nodes=1)
    store = c.store(segment=16 * MIB)
    found = [fd for process in ("self", c.nodes[0].pid) for fd in memory_of_segments(process)]
    assert len(found) >= 4, "data and stamps of two segments"
    for fd in found:
        assert store.mount_segment(fd, 4096)["ret"] == -600
        assert "sealed" in store.last_error()
    assert len(c.segments()) == 2


def test_objects_are_removed_by_pattern(store):
    keys = ["model-a/1", "model-a/2", "model-b/1", "other"]
    assert store.put_batch(keys, [b"v"] * 4) == 0
    assert store.remove_by_regex(r"^model-a/\d$") == 2
    assert store.batch_is_exist(keys) == [0, 0, 1, 1]
    assert store.remove_by_regex("b/", False) == 0, "looked up a moment ago"
    assert store.remove_by_regex("b/", True) == 1
    assert store.remove_by_regex("(", True) == -600
    assert "(" in store.last_error()
    assert store.get("other") == b"v"


def test_the_members_of_a_group_leave_one_after_another(cluster):
    c = cluster(nodes=1, node_bytes=16 * MIB)
    store = c.store()
    config = ReplicateConfig()
    config.group_ids = ["g"] * 4
    group = [f"g{i}" for i in range(4)]
    assert store.put(group[0], bytes(MIB)) == 0
    assert store.remove(group[0], True) == 0
    assert store.put_batch(group, [bytes(MIB)] * 4, config) == 0
    singles = [f"s{i}" for i in range(10)]
    assert store.put_batch(singles, [bytes(MIB)] * 10) == 0
    for i in range(4):
        assert store.put(f"n{i}", bytes(MIB)) == 0
    gone = [len(store.get(key)) for key in group].count(0)
    assert gone == c.master.metric("master_evicted_key_count"), "nobody else leaves while the group does"
    assert gone >= 2
    assert all(len(store.get(key)) == MIB for key in singles)
