"""A tier: what memory has no room for lies on a disk, is read from there, and outlives every process of the pool."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
from contents import value, version_of
from device import has_compiler
from faulty_disk import ALWAYS, FaultyDisk, build
from test_client_http import ask
from test_client_http import value as counted

import mooncake.errors
from mooncake.store import MooncakeDistributedStore
from pool import PoolError, free_port, wait_for

pytestmark = pytest.mark.timeout(90)

KIB, MIB = 1 << 10, 1 << 20
MEMORY = 32 * MIB
# So long a put waits for a disk at most before it takes memory whose bytes the disk has not written.
PUT_WAITS = 0.25


@pytest.fixture
def tiered(cluster, tmp_path):
    """Starts a master, and a node of 32 MiB whose tier lies in the folder that is given with it."""

    def start(limit: int = 1 << 30, nodes: int = 1, master_flags: list[str] | None = None):
        folder = tmp_path / "tiers"
        env = {
            "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(folder),
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(limit),
        }
        pool = cluster(
            nodes=nodes, node_bytes=MEMORY, node_flags=["--enable_offload"], env=env, master_flags=master_flags
        )
        # What is put before is written when its memory is nearly full.
        if "--enable_offload=false" not in (master_flags or []):
            wait_for("tiers to be mounted", lambda: pool.metric("mooncake_tiers_live") == nodes)
        return pool, folder

    return start


def put_all(store, keys, size: int, version: int = 0) -> None:
    for key in keys:
        assert store.put(key, value(key, size, version)) == 0, f"{key}: {store.last_error()}"


def longest_put(store, keys) -> float:
    """Puts 1 MiB under each; how long the slowest took, in seconds."""
    longest = 0.0
    for key in keys:
        began = time.monotonic()
        put_all(store, [key], MIB)
        longest = max(longest, time.monotonic() - began)
    return longest


def put_to_disk(pool, store, keys) -> None:
    """The first objects of a pool, and waits until its tiers have them."""
    put_all(store, keys, MIB)
    wait_for("all to be written", lambda: pool.metric("file_cache_nums_") == len(keys))


def make_older(mark: Path, hours: float) -> None:
    """The mark of a folder that no log knows was made so many hours sooner."""
    log, made = mark.read_text().splitlines()
    boot, seconds = made.split()
    mark.write_text(f"{log}\n{boot} {int(int(seconds) - hours * 3600)}\n")


def versions(store, keys) -> list[int | None]:
    """What is read of each: a version, None for wrong bytes, and -1 for no object."""
    return [version_of(key, got) if (got := store.get(key)) else -1 for key in keys]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("mooncake-*/*.records"))


def size_of(folder: Path) -> int:
    """Bytes of its files, of which some may be removed meanwhile."""
    size = 0
    for file in files(folder):
        with contextlib.suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


def opened_below(folder: Path, pid: int) -> set[str]:
    """Files of that folder that a process has open."""
    opened = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            opened.add(os.readlink(link))
    return {path for path in opened if str(folder) in path}


def wait_read(store, keys, timeout: float = 15.0) -> None:
    """Until all of them are there again."""
    wait_for(f"{len(keys)} objects", lambda: store.batch_is_exist(keys) == [1] * len(keys), timeout)


@pytest.mark.parametrize("flags", [[], ["--offload_on_evict"]])
def test_five_times_what_memory_holds_is_put_without_a_refusal_and_read_right(tiered, flags):
    for turn in range(4):
        pool, _ = tiered(master_flags=flags)
        store = pool.store()
        keys = [f"{turn}/k{number}" for number in range(160)]
        if longest_put(store, keys) < PUT_WAITS:
            break
        # This machine's disk stood still, and what it had not written made room: each of these is counted as that, and
        # all others are right.
        found = versions(store, keys)
        lost = found.count(-1)
        assert (lost, found.count(0)) == (pool.metric("mooncake_evicted_unwritten_objects_total"), len(keys) - lost)
    else:
        pytest.fail("in four turns a put waited for the disk as long as puts do: look at this machine's disk")
    assert versions(store, keys) == [0] * len(keys)
    # In every way that there is to read.
    assert [version_of(key, got) for key, got in zip(keys, store.get_batch(keys), strict=True)] == [0] * len(keys)
    view = store.get_buffer(keys[0])
    assert version_of(keys[0], memoryview(view)) == 0
    assert store.get_size(keys[1]) == MIB
    assert store.batch_is_exist(keys) == [1] * len(keys)
    assert pool.metric("mooncake_evicted_clean_objects_total") >= 160 - MEMORY // MIB
    assert pool.metric("mooncake_evicted_unwritten_objects_total") == 0


def test_batches_larger_than_memory_has_room_for_lose_nothing(tiered):
    pool, _ = tiered()
    store = pool.store()
    keys = [f"k{number}" for number in range(160)]
    for start in range(0, len(keys), 20):
        some = keys[start : start + 20]
        assert store.put_batch(some, [value(key, MIB) for key in some]) == 0, store.last_error()
    assert pool.metric("mooncake_evicted_unwritten_objects_total") == 0
    assert versions(store, keys) == [0] * len(keys)


def test_descriptors_and_pages_say_which_replicas_are_on_a_disk(tiered):
    pool, _ = tiered()
    store = pool.store()
    keys = [f"k{number}" for number in range(64)]
    put_to_disk(pool, store, keys)
    on_disk_alone, in_both = [], []
    for key, replicas in store.batch_get_replica_desc(keys).items():
        kinds = [(one.is_memory_replica(), one.is_local_disk_replica(), one.is_disk_replica()) for one in replicas]
        assert kinds.count((False, True, False)) == 1, kinds
        (on_disk_alone if len(kinds) == 1 else in_both).append(key)
        for one in replicas:
            if one.is_memory_replica():
                assert one.get_memory_descriptor().buffer_descriptor.size == MIB
            else:
                with pytest.raises(RuntimeError, match="is_local_disk_replica"):
                    one.get_memory_descriptor()
            with pytest.raises(RuntimeError):
                one.get_disk_descriptor()
    assert on_disk_alone
    assert in_both
    cold, warm = on_disk_alone[0], in_both[0]
    page = json.loads(pool.master.http(f"/batch_query_keys?keys={cold},{warm}"))["data"]
    assert page[cold]["values"] == []
    assert len(page[warm]["values"]) == 1
    for key in (cold, warm):
        [on_disk] = page[key]["local_disk_values"]
        assert set(on_disk) == {"client_id", "object_size", "transport_endpoint"}
        assert on_disk["object_size"] == MIB
        assert on_disk["transport_endpoint"]
    assert json.loads(pool.master.http(f"/query_key?key={cold}"))["data"] == []


def on_disk_alone(store, keys) -> list[str]:
    described = store.batch_get_replica_desc(keys)
    return [key for key in keys if [one.is_local_disk_replica() for one in described[key]] == [True]]


def test_what_an_existence_query_finds_on_a_disk_alone_is_in_memory_when_it_is_read(tiered):
    pool, _ = tiered()
    store = pool.store()
    keys = [f"k{number}" for number in range(96)]
    put_to_disk(pool, store, keys)
    cold = keys[:12]
    assert on_disk_alone(store, cold) == cold
    time.sleep(2.5)  # Until nothing in memory is protected any more.

    def are_back() -> bool:
        assert store.batch_is_exist(cold) == [1] * len(cold)
        return on_disk_alone(store, cold) == []

    wait_for("copies in memory", are_back, step=0.2)
    assert pool.metric("master_promotion_completed_total") >= len(cold)
    before = store.get_offload_rpc_read_count()
    assert versions(store, cold) == [0] * len(cold)
    assert store.get_offload_rpc_read_count() == before, "they are read from memory"
    assert on_disk_alone(store, cold) == []
    view = store.get_buffer(cold[0])
    assert version_of(cold[0], memoryview(view)) == 0
    del view
    # All that there is, again and again: more than memory holds at a time.
    for _ in range(3):
        assert store.batch_is_exist(keys) == [1] * len(keys)
        assert versions(store, keys) == [0] * len(keys)
    wait_for("promotions to end", lambda: pool.metric("master_promotion_in_flight") == 0)
    assert pool.metric("mooncake_evicted_unwritten_objects_total") == 0


def test_an_owner_that_is_killed_while_it_copies_leaves_every_object_as_it_was(tiered):
    pool, _ = tiered(nodes=2)
    store = pool.store()
    keys = [f"k{number}" for number in range(192)]
    put_to_disk(pool, store, keys)
    time.sleep(2.5)
    for round_ in range(4):
        assert store.batch_is_exist(keys) == [1] * len(keys)
        time.sleep(0.01 * round_)
        pool.nodes[round_ % 2].kill()
        assert None not in versions(store, keys)
        pool.nodes[round_ % 2].start()
        wait_for("both tiers", lambda: pool.metric("mooncake_tiers_live") == 2)
        # A reader asks where a tier is once a second at most.
        wait_for("all of them again", lambda: versions(store, keys) == [0] * len(keys), timeout=20)


def test_what_is_got_from_a_disk_is_in_memory_soon_with_promotion_on_hit(tiered):
    flags = [
        "--enable_offload=true", "--offload_on_evict=true", "--promotion_on_hit=true",
        "--promotion_admission_threshold=1", "--default_kv_lease_ttl=500",
    ]  # fmt: skip
    pool, _ = tiered(master_flags=flags)
    store = pool.store()
    keys = [f"k{number}" for number in range(96)]
    put_all(store, keys, MIB)
    wait_for("an object on the disk alone", lambda: on_disk_alone(store, keys), timeout=25)
    key = on_disk_alone(store, keys)[0]
    assert [version_of(key, store.get(key)) for _ in range(4)] == [0] * 4
    wait_for("its copy in memory", lambda: on_disk_alone(store, [key]) == [], timeout=25)
    before = store.get_offload_rpc_read_count()
    assert versions(store, [key]) == [0]
    assert store.get_offload_rpc_read_count() == before


def test_a_store_on_this_host_reads_files_itself_and_another_one_asks_their_owner(tiered):
    pool, folder = tiered()
    store, far = pool.store(), pool.process(env={"MC_SHM": "0"})
    keys = [f"k{number}" for number in range(96)]
    put_to_disk(pool, store, keys)
    assert versions(store, keys) == [0] * len(keys)
    assert [version_of(key, far.call("get", key)) for key in keys] == [0] * len(keys)
    on_disk_alone = len(keys) - MEMORY // MIB
    for reader in (store.get_offload_rpc_read_count(), far.call("get_offload_rpc_read_count")):
        assert reader >= on_disk_alone
    assert opened_below(folder, os.getpid())
    assert not opened_below(folder, far.pid)
    # What is no more is gone from the files that are open, too.
    assert store.remove_all(True) == len(keys)
    put_all(store, keys, MIB, version=1)
    assert versions(store, keys) == [1] * len(keys)


def test_the_masters_page_says_what_owners_count_of_their_disks_and_a_clients_what_it_reads_itself(tiered):
    pool, folder = tiered()
    pool.spoils_replicas = True
    metric = pool.master.metric
    far = pool.process(env={"MC_SHM": "0"})
    keys = [f"k{number}" for number in range(96)]
    put_to_disk(pool, pool.store(), keys)
    spoil(folder, lambda number: number == 1)
    read = [version_of(key, far.call("get", key)) for key in keys[:20]]
    wait_for(
        "the owner to say what it has read", lambda: metric("mooncake_tier_read_bytes_total", by="lane") >= 10 * MIB
    )
    wait_for("the bad record", lambda: metric("mooncake_tier_errors_total", kind="record") >= 1)
    assert read.count(0) >= 18
    assert len(keys) * MIB <= metric("mooncake_tier_write_bytes_total", why="ordered")
    assert len(keys) * MIB <= metric("mooncake_tier_used_bytes") <= metric("mooncake_tier_capacity_bytes")
    assert metric("mooncake_tier_engine") == 1
    for op in ("read", "write", "sync"):
        assert metric("mooncake_tier_io_seconds_count", op=op) > 0 < metric("mooncake_tier_io_seconds_sum", op=op)
        assert metric("mooncake_tier_errors_total", kind=op) == 0
    own = MooncakeDistributedStore()
    here = {"enable_client_http_server": True, "client_http_port": (port := free_port())}
    assert own.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 * MIB, "tcp", "", pool.master.addr, **here) == 0
    assert versions(own, keys[20:40]).count(0) >= 18
    page = ask(port, "/metrics")[1]
    assert counted(page, "mooncake_client_tier_read_bytes_total") >= 18 * MIB
    assert counted(page, "mooncake_ssd_read_bytes_total") >= 18 * MIB
    assert counted(page, "mooncake_ssd_write_ops_total") == 0, "it has no tier of its own"
    own.close()
    assert metric("mooncake_tier_read_bytes_total", by="lane") < 30 * MIB, "readers of this host read files themselves"


def test_objects_of_every_size_are_read_right_from_a_tier(tiered):
    pool, _ = tiered()
    store = pool.store()
    sizes = [16, 4096, 32 * KIB, 32 * KIB + 8, 64 * KIB, 64 * KIB - 8, MIB + 8, 3 * MIB, 9 * MIB, 17 * MIB]
    odd = {f"odd{number}/{size}": size for number in range(8) for size in sizes}
    for key, size in odd.items():
        assert store.put(key, value(key, size)) == 0, store.last_error()
    long = "l" * 4000
    put_all(store, [long], 8 * KIB)
    put_all(store, [f"cold{number}" for number in range(40)], MIB)
    assert versions(store, [*odd, long]) == [0] * (len(odd) + 1)


def test_a_killed_owner_and_a_killed_master_lose_nothing_that_a_tier_has(tiered):
    pool, _ = tiered()
    store = pool.store()
    keys = [f"k{number}" for number in range(120)]
    put_all(store, keys, MIB)
    cold, warm = keys[:80], keys[80:]
    wait_read(store, cold)
    pool.nodes[0].kill()
    pool.nodes[0].start()
    wait_read(store, cold)
    assert versions(store, cold) == [0] * len(cold)
    assert set(versions(store, warm)) <= {0, -1}
    pool.master.kill()
    pool.master.start()
    wait_read(store, cold)
    assert versions(store, cold) == [0] * len(cold)
    # Both at once.
    pool.master.kill()
    pool.nodes[0].kill()
    pool.master.start()
    pool.nodes[0].start()
    wait_read(store, cold)
    assert versions(store, cold) == [0] * len(cold)
    assert store.put("new", value("new", MIB)) == 0
    assert versions(store, ["new"]) == [0]


def test_an_owner_that_leaves_in_order_leaves_everything_to_the_next(tiered):
    pool, folder = tiered()
    store = pool.store()
    keys = [f"k{number}" for number in range(20)]
    put_to_disk(pool, store, keys)
    assert pool.nodes[0].terminate() == 0
    assert store.get(keys[0]) == b""
    pool.nodes[0].start()
    wait_read(store, keys)
    assert versions(store, keys) == [0] * len(keys)
    assert len(list(folder.glob("mooncake-*"))) == 1, "the folder is taken over"


def test_a_store_that_is_set_up_before_the_last_one_has_ended_takes_its_folder(tiered):
    pool, folder = tiered()
    store = pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_all(store, keys, MIB)
    wait_for("most to be written", lambda: pool.metric("file_cache_nums_") >= 60)
    there = pool.metric("file_cache_nums_")
    env = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(folder)}
    pool.add_node(MEMORY, ["--enable_offload"], env)
    assert "tier mounted" not in pool.nodes[1].output(), "it waits"
    pool.nodes[0].kill()
    wait_for("the tier", lambda: "tier mounted" in pool.nodes[1].output())
    assert versions(store, keys).count(0) >= there
    assert len(list(folder.glob("mooncake-*"))) == 1


def test_what_was_removed_or_replaced_does_not_come_back(tiered):
    pool, folder = tiered()
    store = pool.store()
    keys = [f"k{number}" for number in range(100)]
    put_all(store, keys, MIB)
    removed, replaced, kept = keys[:20], keys[20:40], keys[40:80]
    for key in removed:
        assert store.remove(key, True) == 0, store.last_error()
    for key in replaced:
        assert store.upsert(key, value(key, 64 * KIB, 1)) == 0, store.last_error()
    put_all(store, [f"more{number}" for number in range(40)], MIB)
    for process in (pool.nodes[0], pool.master):
        process.kill()
        process.start()
        wait_read(store, kept)
        assert versions(store, removed) == [-1] * len(removed)
        assert set(versions(store, replaced)) <= {1, -1}
        assert versions(store, kept) == [0] * len(kept)
    assert store.remove_all(True) > 0
    assert set(versions(store, keys)) == {-1}
    # Their files are given back, all but those that are written next.
    wait_for("files to be given back", lambda: len(files(folder)) <= 4)
    for process in (pool.nodes[0], pool.master):
        process.kill()
        process.start()
        assert set(versions(store, keys)) == {-1}


REMOVALS = {
    "remove": lambda store, keys: [store.remove(key, True) for key in keys],
    "remove_by_regex": lambda store, keys: store.remove_by_regex(f"^({'|'.join(keys)})$", True),
    "remove_all": lambda store, keys: store.remove_all(True),
    "upsert": lambda store, keys: [store.upsert(key, value(key, 64 * KIB, 1)) for key in keys],
}


@pytest.mark.parametrize("how", REMOVALS)
def test_what_is_removed_while_the_owner_of_its_tier_is_away_stays_removed(tiered, how):
    pool, _ = tiered(nodes=2)
    store = pool.store()
    keys = [f"k{number}" for number in range(160)]
    put_all(store, keys, MIB)
    wait_for("all to be written", lambda: pool.metric("file_cache_nums_") == len(keys))
    # Of both nodes' objects, those in memory among them.
    pool.nodes[0].kill()
    REMOVALS[how](store, keys[:100])
    left = keys[100:] if how != "remove_all" else []
    for process in (None, pool.master):
        if process is not None:
            process.kill()
            process.start()
        pool.nodes[0].kill()
        pool.nodes[0].start()
        wait_for("both tiers", lambda: pool.metric("mooncake_tiers_live") == 2)
        read = versions(store, keys)
        assert set(read[:100]) <= ({-1} if how != "upsert" else {1, -1})
        assert [read[number] for number in range(100, 160)] == [0 if left else -1] * 60
    if how == "upsert":
        assert read[:100].count(1) > 50


def test_what_an_existence_query_has_found_is_read_while_files_are_given_up(tiered):
    limit = 160 * MIB
    pool, folder = tiered(limit=limit, master_flags=["--tier_prefetch=false"])
    store, writer = pool.store(), pool.process()
    writer.call("run", WRITES)
    wait_for("the tier to be full", lambda: pool.metric("mooncake_tier_dropped_objects_total") > 0, 30)
    found, missed, end = 0, 0, time.monotonic() + 6
    while time.monotonic() < end:
        newest = writer.call("run", "result = served.written")
        # About those that are given up next.
        for first in range(newest - 130, newest - 34, 8):
            some = [f"k{number}" for number in range(first, first + 4)]
            are = [key for key, there in zip(some, store.batch_is_exist(some), strict=True) if there == 1]
            time.sleep(0.05)
            assert versions(store, are) == [0] * len(are)
            found, missed = found + len(are), missed + len(some) - len(are)
    dropped = pool.metric("mooncake_tier_dropped_objects_total")
    writer.call("run", "served.writes = False; served.writing.join()")
    assert min(found, missed, dropped) > 20, f"{found} found, {missed} missed, {dropped} dropped"
    assert store.get_offload_rpc_read_count() > 20, "they were in memory"
    wait_for("room to be made", lambda: size_of(folder) <= limit)


# A hundred objects a second at most.
WRITES = """
import threading, time
from contents import value
served.writes, served.written = True, 0
def puts():
    while served.writes:
        key = f"k{served.written}"
        if store.put(key, value(key, 1 << 20)) == 0:
            served.written += 1
        time.sleep(0.01)
served.writing = threading.Thread(target=puts)
served.writing.start()
"""


def test_a_full_tier_gives_up_its_oldest_file_and_never_a_wrong_byte(tiered):
    limit = 192 * MIB
    pool, folder = tiered(limit=limit)
    store = pool.store()
    keys = [f"k{number}" for number in range(500)]
    for start in range(0, len(keys), 50):
        put_all(store, keys[start : start + 50], MIB)
        assert size_of(folder) <= limit
    read = versions(store, keys)
    assert None not in read
    assert read[-50:] == [0] * 50, "what was put last is there"
    assert read.count(0) >= 100, "most of the tier is in use"
    assert read[:100].count(0) < 100, "it has room for less"


def test_a_full_tier_keeps_what_is_read_and_goes_on_writing(tiered):
    limit = 192 * MIB
    pool, folder = tiered(limit=limit)
    store = pool.store()
    hot = [f"hot{number}" for number in range(20)]
    put_all(store, hot, MIB)
    for start in range(0, 480, 40):
        put_all(store, [f"k{number}" for number in range(start, start + 40)], MIB)
        assert None not in versions(store, hot)
    assert pool.metric("mooncake_evicted_unwritten_objects_total") == 0
    assert size_of(folder) <= limit
    assert versions(store, hot).count(0) >= 8, "of what is read again and again, half a file is written once more"
    last = [f"k{number}" for number in range(440, 480)]
    assert versions(store, last) == [0] * len(last)
    written = pool.metric("mooncake_tier_written_bytes_total") / MIB
    assert written < 500 * 1.5, f"{written:.0f} MiB for 500 that were put: files are given up once"


def spoil(folder: Path, is_spoilt) -> None:
    """Flips one byte in each record, of about a megabyte each, whose number in its file is one of these."""
    for file in files(folder):
        with file.open("r+b") as spoilt:
            for number, at in enumerate(range(MIB // 2, file.stat().st_size, MIB + 8 * KIB)):
                if is_spoilt(number):
                    spoilt.seek(at)
                    byte = spoilt.read(1)
                    spoilt.seek(at)
                    spoilt.write(bytes([byte[0] ^ 0x40]))
            os.fsync(spoilt.fileno())


def test_a_byte_that_flips_on_the_disk_is_a_miss_and_never_an_answer(tiered):
    pool, folder = tiered()
    pool.spoils_replicas = True
    store = pool.store()
    keys = [f"k{number}" for number in range(100)]
    put_all(store, keys, MIB)
    store.put("last", value("last", MIB))
    spoil(folder, lambda number: number % 6 == 1)
    read = versions(store, keys)
    assert None not in read
    assert 5 <= read.count(-1) <= 15, "the flipped bytes were seen"
    # What is known to be bad is gone, and can be put again.
    bad = [key for key, version in zip(keys, read, strict=True) if version == -1]
    wait_for("bad replicas to be dropped", lambda: store.batch_is_exist(bad) == [0] * len(bad))
    put_all(store, bad, MIB, version=1)
    assert versions(store, bad) == [1] * len(bad)
    assert pool.metric("mooncake_tiers_refusing") == 0


def test_a_disk_that_gives_wrong_bytes_again_and_again_is_written_no_more_and_no_put_fails(tiered):
    pool, folder = tiered()
    pool.spoils_replicas = True
    store = pool.store()
    keys = [f"k{number}" for number in range(100)]
    put_all(store, keys, MIB)
    spoil(folder, lambda number: number % 3)
    assert None not in versions(store, keys)
    wait_for("the tier to be written no more", lambda: pool.metric("mooncake_tiers_refusing") == 1)
    before = pool.metric("mooncake_tier_written_objects_total")
    began = time.monotonic()
    put_all(store, [f"new{number}" for number in range(100)], MIB)
    assert time.monotonic() - began < 20, "no put waits for such a disk"
    assert pool.metric("mooncake_tier_written_objects_total") <= before + 16
    assert versions(store, ["new99"]) == [0]
    assert "dmesg" in pool.nodes[0].output(), "the operator is told what to do"


def test_two_stores_with_one_path_have_a_folder_each_and_the_next_takes_one_that_is_free(tiered):
    pool, folder = tiered(nodes=2)
    store = pool.store()
    # The second one waits for the first, which may be about to end.
    wait_for("two tiers", lambda: pool.metric("mooncake_tiers_live") == 2)
    keys = [f"k{number}" for number in range(160)]
    put_all(store, keys, MIB)
    made = sorted(folder.glob("mooncake-*"))
    assert len(made) == 2
    assert pool.metric("mooncake_tiers_live") == 2
    assert versions(store, keys) == [0] * len(keys)
    pool.nodes[0].kill()
    # What the killed one had in memory alone is gone; what the other has is there.
    assert None not in versions(store, keys)
    pool.nodes[0].start()
    wait_for("the killed one's records", lambda: versions(store, keys).count(0) >= 100)
    assert sorted(folder.glob("mooncake-*")) == made


def test_without_a_log_a_tier_lasts_as_long_as_the_master_and_another_one_is_begun(tiered):
    pool, folder = tiered(master_flags=["--wal=off"])
    store = pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_all(store, keys, MIB)
    assert versions(store, keys) == [0] * len(keys)
    pool.master.kill()
    pool.master.start()
    pool.wait_segments(1)
    assert set(versions(store, keys)) == {-1}
    wait_for("another tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    again = [f"again{number}" for number in range(80)]
    put_all(store, again, MIB)
    assert versions(store, again) == [0] * len(again)
    assert set(versions(store, keys)) == {-1}
    assert len(list(folder.glob("mooncake-*"))) == 2


def test_a_folder_that_no_log_knows_is_deleted_after_a_day_and_what_is_no_tier_never(tiered):
    pool, folder = tiered(master_flags=["--wal=off"])
    store = pool.store()
    put_all(store, [f"k{number}" for number in range(60)], MIB)
    unknown = next(folder.glob("mooncake-*"))
    pool.nodes[0].terminate()
    pool.master.kill()
    pool.master.start()
    pool.nodes[0].start()
    mark = unknown / "unknown"
    wait_for("the folder to be marked", mark.exists)
    assert "--cluster_id" in pool.nodes[0].output(), "an operator has a day to move it away"
    pool.nodes[0].terminate()
    assert (unknown / "super").exists()
    os.utime(mark, (0, 0))
    make_older(mark, 23)
    pool.nodes[0].start()
    wait_for("the tier to be mounted", lambda: pool.metric("mooncake_tiers_live") == 1)
    pool.nodes[0].terminate()
    assert (unknown / "super").exists(), "a clock that was set makes no mark older"
    make_older(mark, 2)
    spoilt = folder / "mooncake-of-something-else"
    spoilt.mkdir()
    (spoilt / "super").write_text("no superblock")
    pool.nodes[0].start()
    wait_for("the folder to be deleted", lambda: not unknown.exists())
    assert [file.name for file in spoilt.iterdir()] == ["super"], "nothing is left in it"
    assert (spoilt / "super").read_text() == "no superblock"


def test_a_folder_of_another_cluster_is_never_touched(tiered):
    pool, folder = tiered(master_flags=["--cluster_id=blue"])
    put_all(pool.store(), [f"k{number}" for number in range(60)], MIB)
    blue = next(folder.glob("mooncake-*"))
    pool.nodes[0].terminate()
    pool.master.kill()
    pool.master.command = [word.replace("=blue", "=green") for word in pool.master.command]
    pool.master.start()
    pool.nodes[0].start()
    wait_for("a folder of its own", lambda: len(list(folder.glob("mooncake-*"))) == 2)
    wait_for("the tier to be mounted", lambda: pool.metric("mooncake_tiers_live") == 1)
    # It has looked once by now; even a mark that somebody else has left counts for nothing.
    assert not (blue / "unknown").exists()
    had = sorted(file.name for file in blue.iterdir())
    pool.nodes[0].terminate()
    (blue / "unknown").write_bytes(b"of long ago")
    os.utime(blue / "unknown", (0, 0))
    pool.nodes[0].start()
    wait_for("the tier to be mounted again", lambda: pool.metric("mooncake_tiers_live") == 1)
    time.sleep(1)
    assert sorted(file.name for file in blue.iterdir()) == sorted([*had, "unknown"])
    assert len(list(folder.glob("mooncake-*"))) == 2, "the next process takes its own again"


def test_a_node_that_stood_still_has_its_tier_again(tiered):
    pool, _ = tiered()
    store = pool.store()
    keys = [f"k{number}" for number in range(100)]
    put_all(store, keys, MIB)
    pool.nodes[0].stop()
    wait_for("its tier to be hidden", lambda: pool.metric("mooncake_tiers_live") == 0)
    pool.nodes[0].cont()
    wait_for("its tier to be there again", lambda: pool.metric("mooncake_tiers_live") == 1, 5)
    wait_read(store, keys)
    assert versions(store, keys) == [0] * len(keys)
    # And it is written.
    put_all(store, [f"new{number}" for number in range(60)], MIB)
    wait_for("what is new to be written", lambda: pool.metric("file_cache_nums_") == 160)


def test_a_bulk_removal_is_on_the_disk_before_it_is_answered_though_nothing_of_it_could_be_seen(tiered):
    pool, _ = tiered()
    store = pool.store()
    keys = [f"k{number}" for number in range(100)]
    put_to_disk(pool, store, keys)
    pool.nodes[0].kill()
    wait_for("its objects to be hidden", lambda: store.batch_is_exist(keys) == [0] * len(keys))
    synced = pool.metric("mooncake_log_fsync_duration_seconds_count")
    assert store.remove_all(True) == 0, "nothing of it can be seen"
    assert pool.metric("mooncake_log_fsync_duration_seconds_count") == synced + 1
    assert store.remove_by_regex(".*", True) == 0
    assert pool.metric("mooncake_log_fsync_duration_seconds_count") == synced + 2
    pool.nodes[0].start()
    wait_for("its tier to be there", lambda: pool.metric("mooncake_tiers_live") == 1)
    assert store.batch_is_exist(keys) == [0] * len(keys)


def test_a_folder_that_is_away_hides_its_objects_until_it_is_back_and_no_put_fails(tiered, tmp_path):
    pool, folder = tiered()
    store = pool.store()
    keys = [f"k{number}" for number in range(100)]
    put_to_disk(pool, store, keys)
    own = next(folder.glob("mooncake-*"))
    own.rename(tmp_path / "away")
    wait_for("its tier to be hidden", lambda: pool.metric("mooncake_tiers_live") == 0)
    put_all(store, [f"new{number}" for number in range(60)], MIB)
    assert not own.exists(), "nothing is made in its place"
    assert "mooncake tier forget" in pool.nodes[0].output()
    (tmp_path / "away").rename(own)
    wait_for("its tier to be there again", lambda: pool.metric("mooncake_tiers_live") == 1)
    wait_read(store, keys)
    assert versions(store, keys) == [0] * len(keys)


@pytest.mark.skipif(not has_compiler(), reason="the faulty disk is a library in C, and there is no compiler")
def test_a_record_that_can_never_be_read_again_is_dropped_and_can_be_put_anew(cluster, tmp_path, monkeypatch):
    disk = FaultyDisk(build(tmp_path), tmp_path / "faults")
    env = disk.env | {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(tmp_path / "tiers")}
    flags = ["--tier_prefetch=false"]
    pool = cluster(nodes=1, node_bytes=MEMORY, node_flags=["--enable_offload"], env=env, master_flags=flags)
    wait_for("its tier to be mounted", lambda: pool.metric("mooncake_tiers_live") == 1)
    pool.spoils_replicas = True
    # By its owner, who has that disk.
    monkeypatch.setenv("MC_SHM", "0")
    store = pool.store()
    keys = [f"k{number}" for number in range(100)]
    put_to_disk(pool, store, keys)
    disk.is_having(read_fails=ALWAYS)
    for _ in range(20):
        assert not store.get(keys[0])
        if store.is_exist(keys[0]) == 0:
            break
        time.sleep(0.2)
    disk.is_having()
    assert store.is_exist(keys[0]) == 0, "its owner has looked twice"
    assert store.batch_is_exist(keys[1:]) == [1] * 99, "of the others nobody has asked"
    assert pool.metric("mooncake_tiers_refusing") == 0, "one record is no reason to write no more"
    put_all(store, keys[:1], MIB, version=1)
    assert versions(store, keys) == [1] + [0] * 99


def test_a_store_with_a_tier_is_not_set_up_where_the_master_takes_none_and_one_without_is(cluster, tmp_path):
    pool = cluster(nodes=1, master_flags=["--enable_offload=false"])
    plain = ("127.0.0.1", "P2PHANDSHAKE", MEMORY, MEMORY, "tcp", "", pool.master.addr)
    asked = {"enable_ssd_offload": True, "ssd_offload_path": str(tmp_path / "of-setup")}
    store = MooncakeDistributedStore()
    assert store.setup(*plain, **asked) == -1300
    said = store.last_error()
    assert all(part in said for part in ("--enable_offload=false", pool.master.addr, "of-setup")), said
    with pytest.raises(mooncake.errors.TiersNotAllowed, match="enable_offload"):
        mooncake.errors.checked(store).setup(*plain, **asked)
    assert store.setup(*plain) == 0, store.last_error()
    assert store.put("k", b"v") == 0
    assert store.get("k") == b"v"
    store.close()
    assert not (tmp_path / "of-setup").exists(), "no folder is begun"
    with pytest.raises(PoolError, match="--enable_offload=false"):
        pool.add_node(MEMORY, ["--enable_offload"], {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(tmp_path / "of-node")})
    pool.nodes.pop()


def test_memory_works_as_without_tiers_where_a_master_that_takes_none_comes_back(tiered):
    pool, _ = tiered()
    pool.master.kill()
    pool.master.command.append("--enable_offload=false")
    pool.master.start()
    wait_for("the node to be back", lambda: pool.segments())
    store = pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_all(store, keys, MIB)
    read = versions(store, keys)
    assert read[-8:] == [0] * 8
    assert read.count(-1) >= 80 - MEMORY // MIB
    said = pool.nodes[0].output()
    assert said.count("enable_offload=false") == 1, "it is said once, however often it is tried"


def test_a_store_of_a_program_keeps_a_tier_leaves_it_and_its_reads_are_counted(tiered, tmp_path):
    pool, _ = tiered()
    pool.nodes[0].terminate()
    path = tmp_path / "of-the-program"

    def own(**more) -> MooncakeDistributedStore:
        made = MooncakeDistributedStore()
        code = made.setup(
            "127.0.0.1", "P2PHANDSHAKE", MEMORY, MEMORY, "tcp", "", pool.master.addr,
            enable_ssd_offload=True, ssd_offload_path=str(path), **more,
        )  # fmt: skip
        assert code == 0, made.last_error()
        wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)
        return made

    here = {"enable_client_http_server": True, "client_http_port": (port := free_port())}
    keeper, reader = own(**here), pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_all(reader, keys, MIB)
    assert reader.get_offload_rpc_read_count() == 0
    assert versions(reader, keys[:10]) == [0] * 10
    assert reader.get_offload_rpc_read_count() == 10
    assert keeper.get_offload_rpc_read_count() == 0
    wait_for("memory to be written", lambda: pool.metric("file_cache_nums_") >= 60)
    page = ask(port, "/metrics")[1]
    assert counted(page, "mooncake_ssd_write_bytes_total") >= 60 * MIB, "as Mooncake's clients say it"
    for what in ("ops_total", "bytes_total", "latency_us_count", "latency_summary_us_count"):
        read, write, both = (counted(page, f"mooncake_ssd_{way}_{what}") for way in ("read", "write", "total"))
        assert write > 0, what
        assert both == read + write, what
    times = [line.rsplit(" ", 1)[1] for line in page.splitlines() if "ssd_write_latency_summary_us{" in line]
    assert [float(time) > 0 for time in times] == [True] * 3, "half of them, nine tenths, all but a hundredth"
    assert counted(page, "mooncake_ssd_write_ops_total") * MIB == counted(page, "mooncake_ssd_write_bytes_total")
    began = time.monotonic()
    assert keeper.unmount_local_disk_segment(1) == 0, keeper.last_error()
    assert time.monotonic() - began >= 1
    assert versions(reader, keys[:10]) == [-1] * 10
    assert pool.metric("mooncake_tiers_live") == 0
    assert keeper.unmount_local_disk_segment() == 0
    put_all(reader, ["in-memory"], MIB)
    assert versions(reader, ["in-memory"]) == [0], "the store goes on lending its memory"
    keeper.close()
    keeper = own()
    assert versions(reader, keys[:10]) == [0] * 10
    assert len(list(path.glob("mooncake-*"))) == 1
    keeper.close()


def test_lmcaches_storage_root_dir_is_a_folder_of_a_tier(tiered, tmp_path, monkeypatch):
    pool, _ = tiered()
    path = tmp_path / "of-lmcache"
    monkeypatch.setenv("MOONCAKE_STORAGE_ROOT_DIR", str(path))
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", MEMORY, MEMORY, "tcp", "", pool.master.addr) == 0
    wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 2)
    assert len(list(path.glob("mooncake-*"))) == 1
    store.close()


def test_what_was_in_memory_alone_is_on_the_disk_when_its_store_has_closed(tiered, tmp_path):
    pool, _ = tiered(master_flags=["--offload_on_evict"])
    store = pool.store()
    keys = [f"k{number}" for number in range(20)]
    put_all(store, keys, MIB)
    assert pool.metric("file_cache_nums_") == 0, "nothing is about to be evicted"
    pool.nodes[0].terminate()
    pool.nodes[0].start()
    wait_read(store, keys)
    assert versions(store, keys) == [0] * len(keys)


def test_a_store_that_closes_while_its_master_is_started_again_is_still_owed_what_memory_has(tiered, monkeypatch):
    monkeypatch.setenv("MOONCAKE_OFFLOAD_CLOSE_SECONDS", "30")
    pool, _ = tiered(master_flags=["--offload_on_evict"])
    store = pool.store()
    keys = [f"k{number}" for number in range(20)]
    put_all(store, keys, MIB)
    assert pool.metric("file_cache_nums_") == 0, "nothing is about to be evicted"
    node = pool.nodes[0]
    pool.master.kill()
    node.signal(signal.SIGTERM)
    time.sleep(0.3)
    pool.master.start()
    wait_for("the node to end", lambda: not node.alive, 40)
    node.start()
    wait_read(store, keys)
    assert versions(store, keys) == [0] * len(keys)


def test_a_disk_that_stands_still_while_nobody_writes_hides_its_tier_and_holds_no_close_up(cluster, tmp_path):
    if not has_compiler():
        pytest.skip("no C compiler")
    disk = FaultyDisk(build(tmp_path), tmp_path / "table")
    env = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(tmp_path / "tiers"), **disk.env}
    pool = cluster(nodes=1, node_bytes=MEMORY, node_flags=["--enable_offload"], env=env)
    far = pool.process(env={"MC_SHM": "0"})
    wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    keys = [f"k{number}" for number in range(80)]
    put_to_disk(pool, pool.store(), keys)
    wait_for("its syncs", lambda: pool.metric("mooncake_tier_ordered_bytes") == 0)
    time.sleep(2)
    disk.is_having(stands=ALWAYS)
    # No reader says so: the owner finds out by itself.
    wait_for("it to be hidden", lambda: pool.metric("mooncake_tiers_live") == 0, 25)
    assert "stands still" in pool.nodes[0].output()
    began = time.monotonic()
    assert far.call("get", keys[0]) == b""
    assert time.monotonic() - began < 1, "nobody waits for it"
    disk.is_having()
    wait_for("it again", lambda: pool.metric("mooncake_tiers_live") == 1, 20)
    got = far.call("get_batch", keys)
    assert [version_of(key, one) for key, one in zip(keys, got, strict=True)] == [0] * len(keys)
    disk.is_having(stands=ALWAYS)
    assert pool.nodes[0].terminate(40) == 0
    disk.is_having()


def test_a_folder_that_cannot_be_used_is_named_when_the_store_is_set_up(shared_cluster, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    store = MooncakeDistributedStore()
    code = store.setup(
        "127.0.0.1", "P2PHANDSHAKE", MEMORY, MEMORY, "tcp", "", shared_cluster.master.addr,
        enable_ssd_offload=True, ssd_offload_path=str(in_the_way),
    )  # fmt: skip
    assert code != 0
    assert str(in_the_way) in store.last_error()
    store.close()
