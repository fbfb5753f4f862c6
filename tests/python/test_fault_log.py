"""The master's log is cut, old, missing or on a full disk: objects may be lost, bytes are never wrong."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from contents import value, version_of

from pool import wait_for

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("checksums")]

KIB, MIB = 1 << 10, 1 << 20


def put_all(store, prefix: str, count: int, size: int = 256 * KIB) -> list[str]:
    keys = [f"{prefix}{number}" for number in range(count)]
    for key in keys:
        assert store.put(key, value(key, size)) == 0, store.last_error()
    return keys


def right_or_missing(store, keys: list[str]) -> int:
    """Asserts that no key gives wrong bytes; how many are there."""
    present = 0
    for key in keys:
        got = store.get(key)
        assert not got or version_of(key, got) == 0, f"{key} has wrong bytes"
        present += bool(got)
    return present


def usable(store) -> None:
    """Waits until the pool takes a put again."""
    wait_for("a put", lambda: store.put("probe", b"p") == 0, 15.0, 0.05)
    store.remove("probe", True)


def test_an_older_copy_put_back_never_hands_a_region_out_twice(cluster, tmp_path):
    pool = cluster(node_bytes=64 * MIB)
    store = pool.store()
    old = put_all(store, "old", 40)
    copy = pool.master.copy_log(tmp_path / "copy")
    wait_for("the master", lambda: store.is_exist("old0") == 1, 3.0)
    lost = put_all(store, "lost", 80)

    pool.master.kill()
    pool.master.put_back(copy)
    pool.master.start()
    usable(store)
    right_or_missing(store, old + lost)
    new = put_all(store, "new", 100)  # Where the forgotten objects are, among others.
    right_or_missing(store, old + lost)
    assert right_or_missing(store, new) == 100


def test_keys_that_an_older_copy_brought_back_can_be_put_again(cluster, tmp_path):
    pool = cluster(node_bytes=32 * MIB)
    pool.spoils_replicas = True
    store = pool.store()
    old = put_all(store, "old", 40)
    copy = pool.master.copy_log(tmp_path / "copy")
    wait_for("the master", lambda: store.is_exist("old0") == 1, 3.0)
    put_all(store, "lost", 250)  # Twice the pool: the old ones leave, and others have their memory.

    pool.master.kill()
    pool.master.put_back(copy)
    pool.master.start()
    usable(store)
    poisoned = [key for key in old if store.is_exist(key) == 1 and not store.get(key)]
    assert poisoned, "no key came back without its bytes"
    for key in poisoned:
        data = value(key, 256 * KIB)
        wait_for(key, lambda key=key, data=data: store.put(key, data) == 0 and store.get(key) == data, 2.0)


HOLD = "served.view = store.get_buffer('seen')"
DIGEST = "import hashlib; result = hashlib.sha256(memoryview(served.view)).hexdigest()"


def test_a_view_that_an_older_copy_does_not_know_keeps_its_bytes(cluster, tmp_path):
    pool = cluster(node_bytes=64 * MIB)
    store = pool.store()
    put_all(store, "old", 40)
    copy = pool.master.copy_log(tmp_path / "copy")
    wait_for("the master", lambda: store.is_exist("old0") == 1, 3.0)
    reader = pool.process()
    assert reader.call("put", "seen", value("seen", 4 * MIB)) == 0
    reader.call("run", HOLD)
    digest = reader.call("run", DIGEST)

    pool.master.kill()
    pool.master.put_back(copy)
    pool.master.start()
    # Three times what fits. Nothing takes it: the reader alone knows where its view is.
    until = time.monotonic() + 2.5
    for number in range(3 * 64 * 4):
        if time.monotonic() > until:
            break
        store.put(f"new{number}", value(f"new{number}", 256 * KIB))
        if number % 16 == 0:
            assert reader.call("run", DIGEST) == digest
    assert reader.call("run", DIGEST) == digest
    assert pool.master.metric("mooncake_segments_closed") == 1

    reader.call("run", "del served.view")
    usable(store)
    assert pool.master.metric("mooncake_segments_closed") == 0
    newer = put_all(store, "newer", 100)
    assert right_or_missing(store, newer) == 100


@pytest.mark.parametrize("cut", [1, 13, 200], ids=["one byte", "inside a frame", "several frames"])
def test_a_torn_tail_is_cut_and_everything_before_it_is_kept(cluster, cut):
    pool = cluster(node_bytes=64 * MIB)
    store = pool.store()
    keys = put_all(store, "k", 60)
    pool.master.kill()
    files = [path for path in Path(pool.master.folder).rglob("*") if path.is_file() and path.stat().st_size > cut]
    newest = max(files, key=lambda path: path.stat().st_mtime_ns)
    newest.open("rb+").truncate(newest.stat().st_size - cut)
    pool.master.start()
    usable(store)
    assert right_or_missing(store, keys) >= 50
    new = put_all(store, "new", 100)
    right_or_missing(store, keys)
    assert right_or_missing(store, new) == 100


def test_one_run_without_a_log_in_between(cluster):
    pool = cluster(node_bytes=64 * MIB)
    store = pool.store()
    first = put_all(store, "first", 40)
    pool.master.kill()
    pool.master.command.append("--wal=off")
    pool.master.start()
    usable(store)
    second = put_all(store, "second", 100)
    right_or_missing(store, first)
    assert right_or_missing(store, second) == 100

    pool.master.kill()
    pool.master.command.remove("--wal=off")
    pool.master.start()
    usable(store)
    right_or_missing(store, first + second)
    third = put_all(store, "third", 100)
    right_or_missing(store, first + second)
    assert right_or_missing(store, third) == 100


def test_a_disk_that_fills_up_in_mid_run_stops_no_put_and_spoils_no_byte(cluster, tmp_path):
    small = tmp_path / "small-disk"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs to mount a small disk")
    try:
        pool = cluster(node_bytes=128 * MIB, master_flags=[f"--wal_dir={small / 'state'}"])
        store = pool.store()
        (small / "ballast").write_bytes(bytes(380 * KIB))
        begin = time.monotonic()
        for turn in range(40):  # Each turn writes some 200 records.
            keys = [f"t{turn}-{number}" for number in range(100)]
            code = store.put_batch(keys, [value(key, 256) for key in keys])
            assert code == 0, f"turn {turn}: {store.last_error()}"
            assert right_or_missing(store, keys[:5]) == 5
        assert time.monotonic() - begin < 30
        assert pool.master.metric("mooncake_log_lost") == 1, "the disk was not full"
        old = [f"t39-{number}" for number in range(100)]
        pool.master.kill()
        (small / "ballast").unlink()
        pool.master.start()
        usable(store)
        right_or_missing(store, old)
        new = put_all(store, "new", 100)
        right_or_missing(store, old)
        assert right_or_missing(store, new) == 100
    finally:
        for process in [pool.master, *pool.nodes]:
            process.kill()
        pool.master.forget(small / "state")
        subprocess.run(["umount", str(small)], check=False)
