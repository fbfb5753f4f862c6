"""Folders of tiers, as operators arrange and remove them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from contents import value
from test_tiers import MEMORY, MIB, files, make_older, put_all, put_to_disk, size_of, versions, wait_read

from pool import binary, wait_for

pytestmark = pytest.mark.timeout(90)

NODE_FLAGS = ["--enable_offload"]


@pytest.fixture
def with_folders(cluster, tmp_path):
    """Starts a master, and nodes of 32 MiB with these variables; their tiers lie below one folder unless these say
    otherwise."""

    def start(nodes: int = 1, tiers: int | None = None, **env: str):
        folder = tmp_path / "tiers"
        env = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(folder), **env}
        pool = cluster(nodes=nodes, node_bytes=MEMORY, node_flags=NODE_FLAGS, env=env)
        mounted = nodes if tiers is None else tiers
        wait_for("tiers to be mounted", lambda: pool.metric("mooncake_tiers_live") == mounted)
        return pool, folder

    return start


def tier(pool, *args: str) -> subprocess.CompletedProcess[str]:
    where = f"--metrics_address=127.0.0.1:{pool.master.metrics_port}"
    return subprocess.run([binary(), "tier", *args, where], capture_output=True, text=True, timeout=40, check=False)


def listed(pool) -> list[dict]:
    done = tier(pool, "list", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["tiers"]


def uuids(folder: Path) -> set[str]:
    return {path.name.removeprefix("mooncake-") for path in folder.glob("mooncake-*")}


def take(folder: Path, size: int) -> None:
    """A folder that is of no use, and that nothing deletes, has so many bytes."""
    left_over = folder / "mooncake-left-over"
    left_over.mkdir(mode=0o700)
    with (left_over / f"{7:016x}.records").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def test_a_tier_in_use_is_forgotten_and_its_owner_begins_another(with_folders):
    pool, folder = with_folders()
    store = pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_to_disk(pool, store, keys)
    [before] = listed(pool)
    assert (before["state"], before["records"], before["object_bytes"]) == ("LIVE", len(keys), len(keys) * MIB)
    assert before["capacity_bytes"] > 0
    assert uuids(folder) == {before["uuid"]}
    table = tier(pool, "list").stdout.splitlines()
    assert len(table) == 2
    assert before["uuid"] in table[1]
    assert " live " in table[1]
    assert before["owner"] in table[1]

    unknown = tier(pool, "forget", "0" * 32)
    assert (unknown.returncode, f"known: {before['uuid']}" in unknown.stderr) == (1, True), unknown.stderr
    assert "32 hexadecimal digits" in tier(pool, "forget", "k&uuid=all").stderr
    assert len(listed(pool)) == 1

    done = tier(pool, "forget", before["uuid"])
    assert (done.returncode, done.stdout) == (0, f"forgotten: {before['uuid']}, with {len(keys)} objects\n")
    wait_for("another tier", lambda: [one["state"] for one in listed(pool)] == ["LIVE"])
    [after] = listed(pool)
    assert after["uuid"] != before["uuid"]
    assert uuids(folder) == {before["uuid"], after["uuid"]}
    # What memory has is there, and is written again; what only that tier had is not.
    read = versions(store, keys)
    assert None not in read
    assert read[:40] == [-1] * 40
    assert read[-16:] == [0] * 16
    put_all(store, [f"new{number}" for number in range(80)], MIB)
    assert versions(store, [f"new{number}" for number in range(80)]) == [0] * 80
    # Nothing of it comes back with the next processes.
    for process in (pool.master, pool.nodes[0]):
        process.kill()
        process.start()
        wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)
        assert {one["uuid"] for one in listed(pool)} == {after["uuid"]}
        assert versions(store, keys[:40]) == [-1] * 40
    assert (folder / f"mooncake-{before['uuid']}" / "unknown").exists(), "it is deleted a day later"


def test_tiers_whose_owner_is_away_are_forgotten_with_all_others(with_folders):
    pool, _ = with_folders()
    store = pool.store()
    keys = [f"k{number}" for number in range(40)]
    put_to_disk(pool, store, keys)
    pool.nodes[0].kill()
    wait_for("the tier to be hidden", lambda: [one["state"] for one in listed(pool)] == ["HIDDEN"])
    done = tier(pool, "forget", "all")
    assert (done.returncode, done.stdout.count("forgotten: ")) == (0, 1)
    assert listed(pool) == []
    assert tier(pool, "list").stdout == "no tiers\n"
    assert (tier(pool, "forget", "all").stdout, tier(pool, "forget", "0" * 32).returncode) == ("no tiers\n", 1)
    pool.nodes[0].start()
    wait_for("another tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    assert versions(store, keys) == [-1] * len(keys)


def test_a_store_with_two_paths_writes_reads_and_takes_over_a_tier_on_each(with_folders, tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    limit = 512 * MIB
    pool, single = with_folders(
        tiers=2,
        MOONCAKE_OFFLOAD_FILE_STORAGE_PATHS=",".join(map(str, paths)),
        MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=str(limit),
    )
    store = pool.store()
    keys = [f"k{number}" for number in range(160)]
    put_to_disk(pool, store, keys)
    assert not single.exists(), "the one path is passed over"
    before = {one["uuid"]: one for one in listed(pool)}
    assert [len(uuids(path)) for path in paths] == [1, 1]
    assert uuids(paths[0]) | uuids(paths[1]) == set(before)
    assert {one["capacity_bytes"] for one in before.values()} == {limit // 2}
    # Both have their part, and all of it is read, most of it from the disks.
    assert min(one["records"] for one in before.values()) >= len(keys) // 4
    assert versions(store, keys) == [0] * len(keys)
    far = pool.process(env={"MC_SHM": "0"})
    assert far.call("get_batch", keys[:40]) == [value(key, MIB) for key in keys[:40]]
    # The next process takes both over.
    pool.nodes[0].kill()
    pool.nodes[0].start()
    wait_read(store, keys)
    assert versions(store, keys) == [0] * len(keys)
    assert {one["uuid"]: one["records"] for one in listed(pool)} == {
        uuid: one["records"] for uuid, one in before.items()
    }
    assert pool.nodes[0].terminate() == 0
    # With one of its disks gone it has what the other one has.
    lost = next(iter(uuids(paths[0])))
    shutil.rmtree(paths[0])
    pool.nodes[0].start()
    wait_for("two tiers", lambda: pool.metric("mooncake_tiers_live") == 2)
    left = len(keys) - before[lost]["records"]
    # A reader asks for new endpoints once a second at most.
    wait_for("what the other disk has", lambda: versions(store, keys).count(0) == left)
    assert versions(store, keys).count(-1) == before[lost]["records"]
    assert tier(pool, "forget", lost).returncode == 0


def test_a_full_disk_of_two_stops_neither_and_forgetting_one_tier_leaves_the_other(with_folders, tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    limit = 384 * MIB
    pool, _ = with_folders(
        tiers=2,
        MOONCAKE_OFFLOAD_FILE_STORAGE_PATHS=",".join(map(str, paths)),
        MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=str(limit),
    )
    store = pool.store()
    keys = [f"k{number}" for number in range(600)]
    for start in range(0, len(keys), 50):
        put_all(store, keys[start : start + 50], MIB)
        for path in paths:
            assert size_of(path) <= limit // 2
    read = versions(store, keys)
    assert None not in read
    assert read[-50:] == [0] * 50
    assert read.count(0) >= 250, "most of both is in use"
    [uuid] = uuids(paths[0])
    assert tier(pool, "forget", uuid).returncode == 0
    wait_for("another tier", lambda: pool.metric("mooncake_tiers_live") == 2)
    [kept] = uuids(paths[1])
    assert kept in {one["uuid"] for one in listed(pool)}
    after = versions(store, keys)
    assert None not in after
    assert 0 < after.count(0) < read.count(0)
    assert len(uuids(paths[0])) == 2


def test_a_path_that_is_named_twice_or_cannot_be_used_is_refused(shared_cluster, tmp_path, monkeypatch):
    from mooncake.store import MooncakeDistributedStore

    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    for paths, said in ((f"{tmp_path},{tmp_path}/", "there twice"), (f"{tmp_path}/one,{in_the_way}", str(in_the_way))):
        monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATHS", paths)
        store = MooncakeDistributedStore()
        code = store.setup(
            "127.0.0.1", "P2PHANDSHAKE", MEMORY, MEMORY, "tcp", "", shared_cluster.master.addr, enable_ssd_offload=True
        )
        assert code != 0
        assert said in store.last_error()
        store.close()


def test_tiers_of_two_stores_below_one_path_stay_within_their_common_limit(with_folders):
    limit = 320 * MIB
    pool, folder = with_folders(nodes=2, MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES=str(limit))
    store = pool.store()

    def taken() -> int:
        blocks = 0
        for file in files(folder):
            with contextlib.suppress(FileNotFoundError):
                blocks += file.stat().st_blocks
        return blocks * 512

    assert {one["capacity_bytes"] for one in listed(pool)} == {limit}
    keys = [f"k{number}" for number in range(800)]
    longest = 0.0
    for start in range(0, len(keys), 20):
        begin = time.monotonic()
        put_all(store, keys[start : start + 20], MIB)
        longest = max(longest, time.monotonic() - begin)
        assert taken() <= limit
    assert all(one["records"] > 0 for one in listed(pool))
    read = versions(store, keys)
    assert None not in read
    # A put waits for a disk for 250 ms. Only where one took that long may what was not written have made room, and is
    # counted then.
    lost = read[-40:].count(-1)
    assert read[-40:].count(0) == 40 - lost
    assert lost == 0 or longest >= 0.25
    assert lost <= pool.metric("mooncake_evicted_unwritten_objects_total")
    assert read.count(0) >= 160, "half of the limit is in use, and memory"
    assert pool.metric("mooncake_evicted_unwritten_objects_total") <= len(keys) // 20
    # A folder that is of no use counts, and where it has all, no put fails and nothing else is given up.
    there = sum(one["records"] for one in listed(pool))
    take(folder, limit + MIB)
    put_all(store, [f"new{number}" for number in range(120)], MIB)
    assert versions(store, ["new119"]) == [0]
    assert sum(one["records"] for one in listed(pool)) >= there // 2


def on_disk(store, keys) -> list[str]:
    described = store.batch_get_replica_desc(keys)
    return [key for key in keys if any(one.is_local_disk_replica() for one in described.get(key, []))]


def test_a_tier_with_as_many_objects_as_it_may_have_gives_the_oldest_up_and_goes_on(with_folders):
    most = 200
    pool, _ = with_folders(MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT=str(most), MOONCAKE_OFFLOAD_USE_URING="false")
    store = pool.store()
    size = 256 << 10

    def put_some(name: str) -> list[str]:
        keys = [f"{name}{number}" for number in range(160)]
        for start in range(0, len(keys), 20):
            put_all(store, keys[start : start + 20], size)
        return keys

    rounds = [put_some(f"r{number}-") for number in range(4)]
    wait_for("the oldest to be given up", lambda: listed(pool)[0]["records"] < most)
    # What memory has, and the tier had no room for, is written as it gets cold.
    rounds.append(put_some("last-"))
    wait_for("new ones to be written", lambda: len(on_disk(store, rounds[-1])) > len(rounds[-1]) // 2)
    assert listed(pool)[0]["records"] <= most + 32, "and those that were under way"
    assert on_disk(store, rounds[0][:40]) == []
    assert None not in versions(store, [key for keys in rounds for key in keys])
    assert "MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT" in pool.nodes[0].output()


def test_a_folder_that_no_log_knows_goes_after_an_hour_where_its_room_is_needed(with_folders):
    limit = 320 * MIB
    pool, folder = with_folders(MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES=str(limit))
    put_all(pool.store(), [f"k{number}" for number in range(60)], MIB)
    [uuid] = uuids(folder)
    assert tier(pool, "forget", uuid).returncode == 0
    unknown = folder / f"mooncake-{uuid}"
    wait_for("the folder to be marked", (unknown / "unknown").exists)

    def look_again(hours_later: float) -> None:
        pool.nodes[0].terminate()
        make_older(unknown / "unknown", hours_later)
        pool.nodes[0].start()
        wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)

    look_again(2)
    assert versions(pool.store(), ["k0"]) == [-1]
    assert unknown.exists(), "there is room for a day"
    make_older(unknown / "unknown", -2)
    take(folder, limit)
    look_again(0.5)
    assert unknown.exists(), "not before an hour"
    wait_for("that to be told", lambda: pool.metric("mooncake_tier_unknown_folders") == 1)
    assert len(uuids(folder)) == 3, "the next process takes its own again, and not what is forgotten"
    look_again(2)
    wait_for("the folder to be deleted", lambda: not unknown.exists())
    wait_for("that to be told", lambda: pool.metric("mooncake_tier_unknown_folders") == 0)


def left_by_one_of_two(with_folders, keys, **env: str):
    """Two nodes with one path, one of which has ended. All keys had a replica on a tier: the pool, its folder, and the
    tier that is left."""
    pool, folder = with_folders(nodes=2, MOONCAKE_OFFLOAD_ADOPT_SECONDS="2", **env)
    store = pool.store()
    put_to_disk(pool, store, keys)
    before = {one["uuid"]: one for one in listed(pool)}
    pool.nodes[1].kill()
    wait_for("a tier to be hidden", lambda: "HIDDEN" in {one["state"] for one in listed(pool)})
    [left] = [one["uuid"] for one in listed(pool) if one["state"] == "HIDDEN"]
    assert before[left]["records"] > 0
    return pool, folder, left


def adopted(pool) -> list[str]:
    return [one["uuid"] for one in listed(pool) if one["adopted"] and one["state"] == "LIVE"]


def test_a_tier_outlasts_another_master_that_did_not_know_it(with_folders, tmp_path):
    pool, folder = with_folders()
    store = pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_to_disk(pool, store, keys)
    (tier,) = folder.iterdir()
    # A master without its log takes its place for a while, and the node goes on.
    log = pool.master.copy_log(tmp_path / "log-copy")
    pool.master.kill()
    pool.master.forget()
    shutil.rmtree(pool.master.folder)
    pool.master.start()
    wait_for("another tier", lambda: pool.metric("mooncake_tiers_live") == 1 and len(list(folder.iterdir())) == 2)
    pool.wait_segments(1)
    put_to_disk(pool, pool.store(), ["of the other master"])
    pool.master.kill()
    pool.master.put_back(log)
    pool.master.start()
    wait_read(store, keys)
    assert versions(store, keys) == [0] * len(keys)
    # The look for what no log knows passes over it.
    pool.nodes[0].kill()
    pool.nodes[0].start()
    wait_read(store, keys)
    assert not (tier / "unknown").exists()


def test_what_is_read_while_a_folder_is_away_is_there_when_it_is_back(with_folders):
    pool, folder = with_folders()
    keys = [f"k{number}" for number in range(80)]
    put_to_disk(pool, pool.store(), keys)
    # Whoever has read files has them open.
    pool.nodes[0].kill()
    pool.nodes[0].start()
    far = pool.process(env={"MC_SHM": "0"})
    near = pool.process()
    wait_for("the tier", lambda: pool.metric("file_cache_nums_") == len(keys))
    away = folder.with_name("away")
    folder.rename(away)
    for reader in (far, near):
        got = reader.call("get_batch", keys)
        assert all(one in (b"", value(key, MIB)) for key, one in zip(keys, got, strict=True))
    wait_for("it to be hidden", lambda: pool.metric("mooncake_tiers_live") == 0)
    away.rename(folder)
    wait_for("it again", lambda: pool.metric("mooncake_tiers_live") == 1)
    wait_for("all of it", lambda: far.call("get_batch", keys) == [value(key, MIB) for key in keys], 20)


def test_what_a_process_has_left_is_read_again_by_another_store_of_its_path(with_folders):
    keys = [f"k{number}" for number in range(120)]
    pool, folder, left = left_by_one_of_two(with_folders, keys)
    store = pool.store()
    wait_for("the folder to be adopted", lambda: adopted(pool) == [left])
    assert pool.metric("mooncake_tiers_adopted") == 1
    assert " adopted " in tier(pool, "list").stdout
    assert versions(store, keys) == [0] * len(keys)
    # By its files, and by a lane.
    far = pool.process(env={"MC_SHM": "0"})
    assert far.call("get_batch", keys[:60]) == [value(key, MIB) for key in keys[:60]]
    # What is removed stays so, whoever has the folder next.
    assert store.remove(keys[0], True) == 0
    pool.master.kill()
    pool.master.start()
    wait_for("the folder to be adopted", lambda: adopted(pool) == [left])
    wait_read(store, keys[1:])
    assert versions(store, keys) == [-1, *[0] * (len(keys) - 1)]
    assert {path.name.removeprefix("mooncake-") for path in folder.glob("mooncake-*")} == {
        one["uuid"] for one in listed(pool)
    }
    # Its adopter leaves it as any tier: the next one has it.
    assert pool.nodes[0].terminate() == 0
    assert {one["state"] for one in listed(pool)} == {"HIDDEN"}
    pool.nodes[0].start()
    pool.nodes[1].start()
    wait_for("both to be taken", lambda: pool.metric("mooncake_tiers_live") == 2 and adopted(pool) == [])
    wait_read(store, keys[1:])


def test_a_folder_that_is_adopted_goes_first_where_room_is_short_and_nothing_of_it_is_left(with_folders):
    limit = 320 * MIB
    keys = [f"k{number}" for number in range(120)]
    pool, folder, left = left_by_one_of_two(with_folders, keys, MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES=str(limit))
    store = pool.store()
    wait_for("the folder to be adopted", lambda: adopted(pool) == [left])
    own = next(one["uuid"] for one in listed(pool) if one["uuid"] != left)
    path = folder / f"mooncake-{left}"
    first = {file.name for file in files(folder) if file.parent.name.endswith(own)}
    more = [f"new{number}" for number in range(400)]
    for start in range(0, len(more), 20):
        put_all(store, more[start : start + 20], MIB)
        if path.exists():
            kept = {file.name for file in files(folder) if file.parent.name.endswith(own)}
            assert first <= kept or not list(path.glob("*.records")), "the own files stay while the others are there"
        assert size_of(folder) <= limit
    wait_for("the folder to be deleted", lambda: not path.exists())
    wait_for("the tier to be forgotten", lambda: [one["uuid"] for one in listed(pool)] == [own])
    read = versions(store, more)
    assert None not in read
    assert read[-60:] == [0] * 60


def changed_since_a_copy(with_folders, to: Path):
    """A pool whose tier's folder was copied, and that has changed since: it, a store, the folder, and keys that are as
    they were, upserted ones and removed ones."""
    pool, folder = with_folders()
    pool.spoils_replicas = True
    store = pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_to_disk(pool, store, keys)
    shutil.copytree(folder, to)
    assert [store.remove(key, True) for key in keys[:10]] == [0] * 10
    assert [store.upsert(key, value(key, MIB, 1)) for key in keys[10:20]] == [0] * 10
    put_all(store, [f"more{number}" for number in range(60)], MIB)
    wait_for("all to be written", lambda: pool.metric("mooncake_tier_unwritten_bytes") == 0)
    return pool, store, folder, (keys[20:], keys[10:20], keys[:10])


def bring_nothing_back(store, same, upserted, removed) -> None:
    assert set(versions(store, removed)) == {-1}
    assert set(versions(store, upserted)) <= {-1, 1}
    assert set(versions(store, same)) <= {-1, 0}
    assert set(versions(store, [f"more{number}" for number in range(60)])) <= {-1, 0}


def test_a_copy_of_a_folder_elsewhere_is_not_mounted_beside_it_and_brings_nothing_back(with_folders, tmp_path):
    other = tmp_path / "other"
    pool, store, folder, changed = changed_since_a_copy(with_folders, other)
    [uuid] = uuids(folder)
    pool.add_node(MEMORY, NODE_FLAGS, {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(other)})
    wait_for("the copy to be refused", lambda: f"tier {uuid} is mounted by session" in pool.nodes[1].output())
    assert versions(store, changed[0]) == [0] * len(changed[0])
    bring_nothing_back(store, *changed)
    pool.nodes[0].kill()
    wait_for("the copy to be mounted", lambda: [one["state"] for one in listed(pool)] == ["LIVE"], 20)
    wait_for("its records to be read", lambda: 0 in versions(store, changed[0]))
    bring_nothing_back(store, *changed)


def test_a_folder_that_is_put_back_as_it_was_brings_nothing_back(with_folders, tmp_path):
    aside = tmp_path / "aside"
    pool, store, folder, changed = changed_since_a_copy(with_folders, aside)
    pool.nodes[0].terminate()
    shutil.rmtree(folder)
    shutil.copytree(aside, folder)
    pool.nodes[0].start()
    wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    wait_read(store, changed[0][:20])
    bring_nothing_back(store, *changed)
    # Many records that are not what the log says: it is not written for a minute, and no put fails for it.
    put_all(store, [f"new{number}" for number in range(60)], MIB)
    assert set(versions(store, [f"new{number}" for number in range(60)])) <= {-1, 0}
    bring_nothing_back(store, *changed)
