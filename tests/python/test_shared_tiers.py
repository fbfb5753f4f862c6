"""Tiers on a file system that clients share (the master's `root_fs_dir`): what they have outlives its writer."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from contents import value, version_of
from device import has_compiler
from faulty_disk import ALWAYS, FaultyDisk, build
from test_tiers import MIB, put_all, versions, wait_read

from mooncake.store import MooncakeDistributedStore
from pool import Master, free_port, wait_for

pytestmark = pytest.mark.timeout(90)

MEMORY = 32 * MIB
CLUSTER = "mooncake_cluster"


@pytest.fixture
def shared(cluster, tmp_path):
    """Starts a master whose clients share a folder, and nodes of 32 MiB: the pool, and the folder of its cluster."""

    def start(*flags: str, nodes: int = 1):
        root = tmp_path / "fs"
        root.mkdir(exist_ok=True)
        pool = cluster(nodes=nodes, node_bytes=MEMORY, master_flags=[f"--root_fs_dir={root}", *flags])
        wait_for("tiers to be mounted", lambda: pool.metric("mooncake_tiers_live") == nodes)
        return pool, root / CLUSTER

    return start


def tiers(pool) -> list[dict]:
    return json.loads(pool.master.http("/get_tiers_detail"))["tiers"]


def folders(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def folder_of(pid: int, folder: Path) -> Path:
    """The one that a process has locked."""
    opened = [Path(os.readlink(link)) for link in Path(f"/proc/{pid}/fd").iterdir()]
    (found,) = {path.parent for path in opened if path.parent.parent == folder}
    return found


def taken(folder: Path, files: str = "*/*.records") -> int:
    """Bytes of its files, of which some may be removed meanwhile."""
    blocks = 0
    for file in folder.glob(files):
        with contextlib.suppress(FileNotFoundError):
            blocks += file.stat().st_blocks
    return blocks * 512


def written(pool, keys) -> None:
    wait_for("all to be written", lambda: pool.metric("file_cache_nums_") >= len(keys))


@pytest.mark.parametrize("threads", [1, 4])
def test_what_mooncakes_tests_of_a_shared_file_system_do(cluster, tmp_path, threads):
    """1,000 objects of 1 MiB into a segment of 512 MiB, by one thread and by four with the same keys."""
    root = tmp_path / "fs"
    root.mkdir()
    pool = cluster(nodes=0, master_flags=[f"--root_fs_dir={root}", "--default_kv_lease_ttl=500"])
    store = MooncakeDistributedStore()
    pool.stores.append(store)
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 512 * MIB, 16 * MIB, "tcp", "", pool.master.addr) == 0
    keys = [f"k{number}" for number in range(1_000)]
    codes: list[list[int]] = [[] for _ in range(threads)]

    def put(nth: int) -> None:
        for key in keys:
            codes[nth].append(store.put(key, value(key, MIB)))

    workers = [threading.Thread(target=put, args=(nth,)) for nth in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {code for some in codes for code in some} == {0}
    # Every one is found: what memory has lost lies on the file system.
    assert versions(store, keys) == [0] * len(keys)
    for start in range(0, len(keys), 50):
        some = keys[start : start + 50]
        assert store.get_batch(some) == [value(key, MIB) for key in some]
    assert pool.metric("mooncake_evicted_clean_objects_total") >= 400
    assert pool.metric("mooncake_evicted_unwritten_objects_total") == 0


def test_a_master_that_is_given_both_keeps_what_fits_in_memory_there_alone(cluster, tmp_path, monkeypatch):
    root = tmp_path / "fs"
    root.mkdir()
    flags = [f"--root_fs_dir={root}", "--default_kv_lease_ttl=500", "--enable_offload=true", "--offload_on_evict=true"]
    pool = cluster(nodes=0, master_flags=flags)
    monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", str(root))
    store = MooncakeDistributedStore()
    pool.stores.append(store)
    # With a list of engines that is not given, as Mooncake's test does.
    code = store.setup(
        "127.0.0.1", "P2PHANDSHAKE", 512 * MIB, 16 * MIB, "tcp", "", pool.master.addr, None, True
    )  # fmt: skip
    assert code == 0, store.last_error()
    wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    keys = [f"k{number}" for number in range(16)]
    put_all(store, keys, 1 << 10)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for key in keys:
            (replica,) = store.get_replica_desc(key)
            assert replica.is_memory_replica()
        time.sleep(0.2)
    assert pool.metric("file_cache_nums_") == 0
    assert not (root / CLUSTER / "TIER").exists(), "no tier that clients share"
    assert "root_fs_dir" in pool.master.output(), "the operator is told"


@pytest.fixture
def on_a_faulty_disk(cluster, tmp_path):
    """Two nodes that share a file system, which has 120 MiB of theirs, and a reader: the pool, what its disk has, the
    reader, and the keys."""
    if not has_compiler():
        pytest.skip("no C compiler: the disk that fails is a library")
    # By its name the disk knows what is a tier's.
    root, disk = tmp_path / "mooncake-fs", FaultyDisk(build(tmp_path), tmp_path / "faults")
    root.mkdir()
    env = disk.env | {"MC_TIER_ENGINE": "threads"}
    pool = cluster(nodes=2, node_bytes=MEMORY, master_flags=[f"--root_fs_dir={root}"], env=env)
    wait_for("tiers to be mounted", lambda: pool.metric("mooncake_tiers_live") == 2)
    keys = [f"k{number}" for number in range(120)]
    put_all(pool.store(), keys, MIB)
    written(pool, keys)
    return pool, disk, pool.process(env=env), keys


def test_a_file_system_that_fails_gives_no_wrong_byte_and_no_put_fails(on_a_faulty_disk):
    pool, disk, reader, keys = on_a_faulty_disk
    pool.spoils_replicas = True

    def read() -> list[int | None]:
        got = reader.call("get_batch", keys, timeout=60)
        return [version_of(key, one) if one else -1 for key, one in zip(keys, got, strict=True)]

    assert read() == [0] * len(keys)
    for faults in ({"read_flipped": 300_000, "read_short": 100_000}, {"read_fails": ALWAYS}):
        disk.is_having(**faults)
        assert set(read()) <= {0, -1}
        assert sum(disk.counts().values()) > 0, "the disk was never bad"
    # Neither what is written to it, nor what is not.
    disk.is_having(read_fails=ALWAYS, write_fails=ALWAYS, sync_fails=ALWAYS)
    put_all(pool.store(), [f"more{number}" for number in range(80)], MIB)
    disk.is_having()
    assert None not in read()
    assert versions(pool.store(), [f"more{number}" for number in range(70, 80)]) == [0] * 10


def test_a_file_system_that_stands_still_holds_a_read_up_for_seconds_and_refuses_no_put(on_a_faulty_disk):
    pool, disk, reader, keys = on_a_faulty_disk
    store = pool.store()
    disk.is_having(stands=ALWAYS)
    began = time.monotonic()
    assert reader.call("get", keys[0], timeout=60) == b""
    assert time.monotonic() - began < 10
    new = [f"new{number}" for number in range(80)]
    began = time.monotonic()
    put_all(store, new, MIB)
    assert time.monotonic() - began < 30, "no put waits long for it"
    assert versions(store, new[-10:]) == [0] * 10
    # Other hosts may read there still: what its writers have is not hidden for that.
    wait_for("a writer to leave it alone", lambda: any("stands still" in node.output() for node in pool.nodes), 25)
    assert any("dmesg" in node.output() for node in pool.nodes), "the operator is told what to do"
    disk.is_having()
    wait_for("it to be written again", lambda: all("answers" in node.output() for node in pool.nodes), 20)
    wait_for("it to be read again", lambda: versions(store, keys) == [0] * len(keys), 30, 1)


def test_the_recipe_of_engines_that_share_a_file_system(tmp_path):
    root, port = tmp_path / "fs", free_port()
    root.mkdir()
    flags = ["--port", str(port), "--root_fs_dir", str(root), "--cluster_id", "engines"]
    master = Master(tmp_path, flags)
    master.start()
    stores = []
    try:
        for _ in range(2):
            store = MooncakeDistributedStore()
            stores.append(store)
            assert store.setup("127.0.0.1", "P2PHANDSHAKE", MEMORY, MEMORY, "tcp", "", master.addr) == 0
        wait_for("tiers to be mounted", lambda: master.metric("mooncake_tiers_live") == 2)
        keys = [f"k{number}" for number in range(120)]
        put_all(stores[0], keys, MIB)
        assert versions(stores[1], keys) == [0] * len(keys)
        assert len(folders(root / "engines")) == 2
        assert (root / "engines" / "TIER").read_text().strip()
    finally:
        for store in stores:
            store.close()
        master.kill()
        master.forget()


def test_descriptors_and_pages_name_the_files(shared):
    pool, folder = shared()
    store = pool.store()
    keys = [f"k{number}" for number in range(64)]
    put_all(store, keys, MIB)
    written(pool, keys)
    alone = []
    for key, replicas in store.batch_get_replica_desc(keys).items():
        [on_disk] = [one for one in replicas if one.is_disk_replica()]
        assert not on_disk.is_memory_replica()
        assert not on_disk.is_local_disk_replica()
        disk = on_disk.get_disk_descriptor()
        assert disk.object_size == MIB
        assert Path(disk.file_path).is_file()
        assert Path(disk.file_path).parent.parent == folder
        with pytest.raises(RuntimeError, match="get_disk_descriptor"):
            on_disk.get_memory_descriptor()
        if len(replicas) == 1:
            alone.append((key, disk.file_path))
    assert alone
    page = json.loads(pool.master.http(f"/batch_query_keys?keys={alone[0][0]}"))["data"][alone[0][0]]
    assert page["disk_values"] == [{"file_path": alone[0][1], "object_size": MIB}]
    assert (page["values"], page["local_disk_values"]) == ([], None)
    [tier] = tiers(pool)
    assert Path(tier["shared_folder"]).parent == folder


def test_a_killed_writers_objects_are_read_by_all_others_and_given_up_by_them(shared):
    pool, folder = shared(nodes=2)
    store = pool.store()
    keys = [f"k{number}" for number in range(120)]
    put_all(store, keys, MIB)
    written(pool, keys)
    assert store.remove(keys[0], True) == 0
    before = {one["uuid"]: one["records"] for one in tiers(pool)}
    assert min(before.values()) > 0
    # One that lends nothing reads the files by itself.
    reader = pool.process()
    pool.nodes[1].kill()
    assert reader.call("batch_is_exist", keys[1:]) == [1] * (len(keys) - 1)
    assert reader.call("get_batch", keys[1:]) == [value(key, MIB) for key in keys[1:]]
    assert versions(store, keys) == [-1, *[0] * (len(keys) - 1)]

    def is_adopted() -> bool:
        listed = tiers(pool)
        return len(listed) == 2 and {one["adopted"] for one in listed} == {True, False}

    wait_for("the other one to adopt its tier", is_adopted)
    assert {one["state"] for one in tiers(pool)} == {"LIVE"}
    assert versions(store, keys) == [-1, *[0] * (len(keys) - 1)]
    # The master forgets nothing, and what was removed stays so.
    pool.master.kill()
    pool.master.start()
    wait_read(store, keys[1:])
    assert versions(store, keys) == [-1, *[0] * (len(keys) - 1)]
    # No process takes a folder over: the next one makes its own.
    pool.nodes[1].start()
    wait_for("three tiers", lambda: pool.metric("mooncake_tiers_live") == 3)
    assert len(folders(folder)) == 3
    # With no reader and no writer left it is hidden, and it is there again with the next one.
    reader.kill()
    store.close()
    for node in pool.nodes:
        node.kill()
    wait_for("nobody to have it", lambda: {one["state"] for one in tiers(pool)} == {"HIDDEN"})
    pool.nodes[0].start()
    last = pool.store()
    wait_read(last, keys[1:])
    assert versions(last, keys) == [-1, *[0] * (len(keys) - 1)]


def test_a_reader_that_does_not_find_the_file_system_reads_through_the_writer(shared, tmp_path):
    pool, folder = shared()
    store = pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_all(store, keys, MIB)
    written(pool, keys)
    root, hidden = folder.parent, tmp_path / "elsewhere"
    root.rename(hidden)
    far = pool.process(env={"MC_SHM": "0"})
    hidden.rename(root)
    wait_for("a line that says so", lambda: "works without" in far.output() and str(root) in far.output())
    assert far.call("get_batch", keys) == [value(key, MIB) for key in keys]
    # Another file system at the same path is another one, whatever lies there.
    root.rename(hidden)
    root.mkdir()
    other = pool.process(env={"MC_SHM": "0"})
    name = (root / CLUSTER / "TIER").read_text()
    root.rename(tmp_path / "other")
    hidden.rename(root)
    assert name != (folder / "TIER").read_text()
    assert other.call("get_batch", keys[:20]) == [value(key, MIB) for key in keys[:20]]


def test_a_file_system_that_is_mounted_late_is_found_by_those_who_run_already(cluster, tmp_path):
    root = tmp_path / "fs"
    pool = cluster(nodes=1, node_bytes=MEMORY, master_flags=[f"--root_fs_dir={root}"])
    reader = pool.process(env={"MC_SHM": "0"})
    node = pool.nodes[0]
    for process in (node, reader):
        wait_for("a line that says so", lambda process=process: f"there is no folder {root}" in process.output())
    store = pool.store()
    keys = [f"k{number}" for number in range(20)]
    put_all(store, keys, MIB)
    assert tiers(pool) == []
    root.mkdir()
    for process in (node, reader):
        wait_for("it to be found", lambda process=process: "is there now" in process.output())
    written(pool, keys)
    # What only the file system has is read there, whoever wrote it.
    node.kill()
    assert reader.call("get_batch", keys) == [value(key, MIB) for key in keys]


def test_garbage_in_the_file_that_names_the_file_system_is_said_and_left_alone(cluster, tmp_path):
    folder = tmp_path / "fs" / CLUSTER
    folder.mkdir(parents=True)
    (folder / "TIER").write_bytes(b"\xffgarbage\n")
    pool = cluster(nodes=1, node_bytes=MEMORY, master_flags=[f"--root_fs_dir={folder.parent}"])
    assert "names no file system" in pool.nodes[0].output()
    store = pool.store()
    assert store.put("k", b"v") == 0
    assert store.get("k") == b"v"
    assert tiers(pool) == []
    assert (folder / "TIER").read_bytes() == b"\xffgarbage\n"
    assert folders(folder) == set()
    # Once that is gone, the file system is found, and the next process is there as well.
    (folder / "TIER").unlink()
    wait_for("a tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    first = folders(folder)
    pool.nodes[0].kill()
    pool.nodes[0].start()
    wait_for("another tier", lambda: len(folders(folder) - first) == 1)


def test_writers_share_a_quota_and_another_clusters_folder_is_left_as_it_is(shared, tmp_path):
    quota = 512 * MIB
    other = tmp_path / "fs" / "another"
    (other / ("a" * 32)).mkdir(parents=True)
    kept = other / ("a" * 32) / f"{0:016x}.records"
    kept.write_bytes(b"x" * MIB)
    pool, folder = shared(f"--quota_bytes={quota}", nodes=2)
    store = pool.store()

    def capacities() -> dict[str, int]:
        return {one["uuid"]: one["capacity_bytes"] for one in tiers(pool)}

    # What each of them was told the master knows as well.
    wait_for("both to have their half", lambda: list(capacities().values()) == [quota // 2] * 2)
    assert pool.metric("master_total_file_capacity_bytes") == quota
    of_first = folder_of(pool.nodes[0].pid, folder).name
    keys = [f"k{number}" for number in range(900)]
    for start in range(0, len(keys), 50):
        put_all(store, keys[start : start + 50], MIB)
        assert taken(folder) <= quota
    listed = tiers(pool)
    assert all(one["records"] > 0 for one in listed)
    # Each keeps to its half.
    for one in listed:
        assert taken(folder / one["uuid"], "*.records") <= quota // 2
    read = versions(store, keys)
    assert None not in read
    assert read[-60:] == [0] * 60
    assert read.count(0) >= 250
    # With one of them gone the other has all of it.
    pool.nodes[1].kill()
    wait_for("the first one to have all", lambda: capacities()[of_first] == quota)
    assert pool.metric("master_total_file_capacity_bytes") == quota
    more = [f"new{number}" for number in range(600)]
    for start in range(0, len(more), 50):
        put_all(store, more[start : start + 50], MIB)
        assert taken(folder) <= quota
    read = versions(store, more)
    assert None not in read
    assert read.count(0) >= 300
    assert kept.read_bytes() == b"x" * MIB
    assert [path.name for path in other.iterdir()] == ["a" * 32]


def test_without_eviction_a_full_file_system_is_not_written_and_no_put_fails(shared):
    quota = 256 * MIB
    pool, folder = shared(f"--quota_bytes={quota}", "--enable_disk_eviction=false")
    store = pool.store()
    keys = [f"k{number}" for number in range(400)]
    put_all(store, keys, MIB)
    assert taken(folder) <= quota
    read = versions(store, keys)
    assert None not in read
    assert read[:100] == [0] * 100, "what was there first stays"
    assert read[-10:] == [0] * 10, "in memory"
    assert pool.metric("mooncake_tier_dropped_objects_total") == 0
    assert read.count(-1) > 0
    # Room that is made is written again.
    assert store.remove_all(True) >= 0
    wait_for("files to go", lambda: taken(folder) < quota // 2)
    more = itertools.count()

    def are_written() -> bool:
        # The master learns of the room some time after the files are gone, and what memory evicts before is not
        # written: some more are put until then.
        put_all(store, [f"new{next(more)}" for _ in range(4)], MIB)
        return pool.metric("file_cache_nums_") >= 40

    wait_for("new ones to be written", are_written, step=0.05)


def test_what_was_removed_stays_so_whoever_has_its_files(shared):
    pool, _ = shared(nodes=2)
    store = pool.store()
    keys = [f"k{number}" for number in range(60)]
    put_all(store, keys, MIB)
    written(pool, keys)
    assert store.remove_by_regex("^k[0-9]$", True) == 10
    assert store.upsert(keys[20], value(keys[20], MIB, 1)) == 0
    for process in (pool.nodes[0], pool.master):
        process.kill()
        process.start()
    wait_for("tiers", lambda: pool.metric("mooncake_tiers_live") >= 3)
    wait_read(store, keys[10:20] + keys[21:])
    read = versions(store, keys)
    assert read[:10] == [-1] * 10
    assert read[20] in (-1, 1)
    assert read[10:20] + read[21:] == [0] * 49
    assert store.remove_all(True) >= 49
    for node in pool.nodes:
        node.kill()
        node.start()
    wait_for("tiers", lambda: pool.metric("mooncake_tiers_live") >= 2)
    assert versions(store, keys) == [-1] * 60


def test_a_writer_that_stands_still_while_others_adopt_its_tier_does_no_harm(shared):
    pool, _ = shared(nodes=2)
    store = pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_all(store, keys, MIB)
    written(pool, keys)
    os.kill(pool.nodes[1].pid, signal.SIGSTOP)
    # Its folder is locked for as long as it lives: what it has is read all the same.
    time.sleep(8)
    wait_read(store, keys)
    assert versions(store, keys) == [0] * len(keys)
    os.kill(pool.nodes[1].pid, signal.SIGCONT)
    put_all(store, [f"new{number}" for number in range(80)], MIB)
    assert versions(store, keys) == [0] * len(keys)


def test_objects_of_a_folder_that_was_removed_are_missed_once_and_then_unknown(shared):
    pool, folder = shared(nodes=2)
    pool.spoils_replicas = True
    store = pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_all(store, keys, MIB)
    written(pool, keys)
    stopped = pool.nodes[1].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_for("the other one alone to be there", lambda: pool.metric("mooncake_sessions_away") == 1)
        shutil.rmtree(folder_of(stopped, folder))
        wait_for("a miss of each", lambda: 0 < len([code for code in versions(store, keys) if code < 0]) < len(keys))
        found = versions(store, keys)
        assert set(found) == {-1, 0}
        wait_for(
            "queries to know that",
            lambda: store.batch_is_exist(keys) == [1 if code == 0 else 0 for code in versions(store, keys)],
        )
        lost = [key for key, there in zip(keys, store.batch_is_exist(keys), strict=True) if not there]
        assert [store.put(key, value(key, MIB)) for key in lost] == [0] * len(lost)
        assert versions(store, keys) == [0] * len(keys)
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_the_folder_of_a_tier_that_is_forgotten_is_marked_by_those_who_write_beside_it(shared):
    pool, folder = shared(nodes=2)
    store = pool.store()
    keys = [f"k{number}" for number in range(40)]
    put_all(store, keys, MIB)
    written(pool, keys)
    killed = folder_of(pool.nodes[1].pid, folder)
    pool.nodes[1].kill()
    pool.master.http(f"/api/v1/forget_tier?uuid={killed.name}", b"")
    wait_for("a mark in its folder", lambda: (killed / "unknown").is_file())
    assert {one["uuid"] for one in tiers(pool)} == folders(folder) - {killed.name}
