"""A copy of the log from before the last raise of the epoch is put back: it gives out nothing that is read.

The master that finds it takes up the number of an epoch that others have seen already, and numbers what it places as
the lost epoch did.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest
from cluster import Cluster
from contents import value, version_of
from peer import Peer
from test_fault_writer_lost import LARGE, freeze_in_mid_put

from pool import wait_for

pytestmark = pytest.mark.timeout(60)

KIB, MIB = 1 << 10, 1 << 20
# A wrong byte has to show, and not to become a miss.
UNCHECKED = {"MOONCAKE_STORE_CHECKSUM": "0"}

HOLD = "served.views = {key: store.get_buffer(key) for key in keys}"
LOOK = "import hashlib; result = {key: hashlib.sha256(memoryview(v)).hexdigest() for key, v in served.views.items()}"
RELEASE = "served.views.clear()"


def put_all(client: Peer, prefix: str, count: int) -> list[str]:
    keys = [f"{prefix}{number}" for number in range(count)]
    for key in keys:
        assert client.call("put", key, value(key, 64 * KIB)) == 0, client.call("last_error")
    return keys


def put_some(client: Peer, prefix: str, count: int, size: int) -> list[str]:
    """Puts what the master finds room for, as not all memory may be given out; the keys that were stored."""
    until, stored = time.monotonic() + 2.0, []
    for key in [f"{prefix}{number}" for number in range(count)]:
        if time.monotonic() < until and client.call("put", key, value(key, size)) == 0:
            stored.append(key)
    return stored


def read_all(client: Peer, keys: list[str], timeout: float = 5.0) -> None:
    """Waits until the client finds all of them. None may ever have wrong bytes."""

    def found() -> bool:
        got = {key: client.call("get", key) for key in keys}
        wrong = [key for key in keys if got[key] and version_of(key, got[key]) != 0]
        assert not wrong, f"{len(wrong)} of {len(keys)} have wrong bytes, {wrong[0]} first"
        return all(got.values())

    wait_for(f"all {len(keys)} keys", found, timeout, 0.05)


def look_again(reader: Peer, digests: dict[str, str]) -> None:
    """Its views are what they were."""
    now = reader.call("run", LOOK)
    changed = [key for key, digest in digests.items() if now[key] != digest]
    assert not changed, f"{len(changed)} of {len(digests)} views have changed"


def wait_open(pool: Cluster, count: int) -> None:
    """Waits until so many segments are there, and all of them are given out."""
    pool.wait_segments(count)
    wait_for("open segments", lambda: pool.master.metric("mooncake_segments_closed") == 0)


@contextlib.contextmanager
def heard_last(peer: Peer):
    """The thread that hears the master runs after all others of that process, which share one CPU."""
    cpus = os.sched_getaffinity(peer.pid)
    threads = {int(task.name): (task / "comm").read_text() for task in Path(f"/proc/{peer.pid}/task").iterdir()}
    for thread, name in threads.items():
        os.sched_setaffinity(thread, {min(cpus)})
        if name.startswith("mooncake-anchor"):
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    yield
    for thread in threads:
        os.sched_setaffinity(thread, cpus)


def begin_second_epoch(pool: Cluster) -> None:
    """The master is killed, and starts without anything that vouches for its log."""
    pool.master.kill()
    pool.master.forget()
    pool.master.start()
    assert pool.master.metric("mooncake_epoch") == 2


def begin_it_again(pool: Cluster, copy: Path, forget: bool = True) -> Peer:
    """The master is killed and starts with the copy, which comes further than any client remembers of the lost epoch.

    Nobody but a new client may be there meanwhile; gives that one.
    """
    position = pool.master.metric("mooncake_log_position")
    pool.master.kill()
    pool.master.put_back(copy)
    if forget:
        pool.master.forget()
    pool.master.start()
    newcomer = pool.process(env=UNCHECKED)
    for number in range(1000):
        if pool.master.metric("mooncake_log_position") > position:
            return newcomer
        newcomer.call("remove", f"nothing{number}")
    raise AssertionError(f"the log does not reach {position}")


@pytest.mark.parametrize("late", [False, True], ids=["frozen before they heard of it", "frozen when they knew all"])
def test_what_was_viewed_after_the_raise_keeps_its_bytes(cluster, tmp_path, late):
    pool = cluster(node_bytes=16 * MIB, env=UNCHECKED)
    owner = pool.nodes[0]
    reader, writer = pool.process(env=UNCHECKED), pool.process(env=UNCHECKED)
    put_all(writer, "before", 1)
    copy = pool.master.copy_log(tmp_path / "copy")

    begin_second_epoch(pool)
    wait_open(pool, 1)
    # Both map the segment; what they do with it later needs no owner.
    read_all(reader, put_all(writer, "mapped", 1))
    time.sleep(0.7)  # More than a heartbeat: the owner has heard of this. Frozen now, it hears of nothing that follows.
    if not late:
        owner.stop()
    seen = put_all(writer, "seen", 30)
    reader.call("run", HOLD, keys=seen)
    digests = reader.call("run", LOOK)
    if late:
        time.sleep(1.2)  # Two heartbeats: owner and reader have heard how far the log has come.
        owner.stop()
    reader.stop()
    writer.kill()

    newcomer = begin_it_again(pool, copy)
    pool.add_node(16 * MIB, env=UNCHECKED)
    put_all(newcomer, "elsewhere", 100)  # More placements than the lost epoch had: later ones have higher numbers.
    owner.cont()
    pool.wait_segments(2)
    assert put_some(newcomer, "asleep", 300, 256 * KIB)  # All that there is, twice.
    reader.cont()
    look_again(reader, digests)
    put_some(newcomer, "awake", 300, 256 * KIB)
    look_again(reader, digests)

    reader.call("run", RELEASE)
    wait_open(pool, 2)
    read_all(reader, put_all(newcomer, "after", 30))


def test_a_reader_that_slept_through_it_reads_what_is_placed_under_numbers_that_it_knows(cluster, tmp_path):
    pool = cluster(nodes=0, env=UNCHECKED)
    reader, writer = pool.process(env=UNCHECKED), pool.process(env=UNCHECKED)
    copy = pool.master.copy_log(tmp_path / "copy")

    begin_second_epoch(pool)
    lost = pool.add_node(16 * MIB, env=UNCHECKED)
    read_all(reader, put_all(writer, "seen", 60))
    reader.stop()
    lost.stop()
    writer.kill()

    # The witness is left as it is: it knows a longer log, and does not vouch for the copy either.
    newcomer = begin_it_again(pool, copy, forget=False)
    pool.add_node(16 * MIB, env=UNCHECKED)
    new = put_all(newcomer, "new", 60)
    reader.cont()
    read_all(reader, new)

    lost.cont()
    wait_open(pool, 2)
    read_all(reader, new + put_all(newcomer, "after", 30))


def test_a_writer_that_slept_through_it_writes_over_nothing_that_the_copy_gave_out(cluster, tmp_path):
    pool = cluster(node_bytes=1024 * MIB, env=UNCHECKED)
    owner, other = pool.nodes[0], pool.process(env=UNCHECKED)
    copy = pool.master.copy_log(tmp_path / "copy")

    begin_second_epoch(pool)
    wait_open(pool, 1)
    wait_for("the pool", lambda: other.call("put", "mapped", value("mapped", 64 * KIB)) == 0)
    writer, _, pending = freeze_in_mid_put(pool, other, "1")
    owner.stop()
    other.kill()

    newcomer = begin_it_again(pool, copy)
    owner.cont()
    pool.wait_segments(1)
    new = put_some(newcomer, "new", LARGE // (4 * MIB), 4 * MIB)  # Where the writer was, if that is given out.
    writer.cont()
    pending.result(timeout=20)  # It may have put its object once more.
    wait_open(pool, 1)
    read_all(newcomer, new + put_all(newcomer, "after", 30))


def test_a_word_of_the_lost_epoch_that_a_reader_hears_late_opens_nothing(cluster, tmp_path):
    pool = cluster(node_bytes=16 * MIB, env=UNCHECKED)
    owner = pool.nodes[0]
    reader, writer = pool.process(env=UNCHECKED), pool.process(env=UNCHECKED)
    put_all(writer, "before", 1)
    copy = pool.master.copy_log(tmp_path / "copy")
    seen = put_all(writer, "seen", 30)
    reader.call("run", HOLD, keys=seen)
    digests = reader.call("run", LOOK)

    # The owner misses all of the epoch that is lost. Its master knows the views, and says so to the reader: that word
    # answers a heartbeat, and lies unread when the reader is frozen.
    owner.stop()
    begin_second_epoch(pool)
    wait_for("all but the owner", lambda: pool.master.metric("mooncake_sessions_away") == 1)
    assert pool.master.metric("mooncake_pins") == len(seen)
    pool.master.stop()
    time.sleep(0.6)  # More than a heartbeat.
    reader.stop()
    pool.master.cont()
    time.sleep(0.3)
    writer.kill()

    newcomer = begin_it_again(pool, copy)
    pool.add_node(16 * MIB, env=UNCHECKED)
    put_all(newcomer, "elsewhere", 100)
    owner.cont()
    pool.wait_segments(2)
    time.sleep(0.5)  # The owner asks the reader whether the master knows its views. This one does not.
    with heard_last(reader):
        reader.cont()
        time.sleep(0.2)  # It hears the question, and then that late word.
    put_some(newcomer, "awake", 300, 256 * KIB)
    look_again(reader, digests)

    reader.call("run", RELEASE)
    wait_open(pool, 2)
    read_all(reader, put_all(newcomer, "after", 30))
