"""Memory of a storage node outlives its process: an upgrade, or a crash, of the node loses no object."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time

import pytest
from contents import value, version_of

from pool import KeptNode, Program, ServiceManager, binary, wait_for

pytestmark = pytest.mark.timeout(90)

KIB, MIB = 1 << 10, 1 << 20
MEMORY = 64 * MIB
STATE = "mooncake-state"


@pytest.fixture
def kept(cluster, tmp_path):
    """A master, and a node that a service manager looks after."""
    managers: list[ServiceManager] = []

    def start(size: int = MEMORY, flags=(), env=None, master_flags=None):
        pool = cluster(nodes=0, master_flags=master_flags)
        managers.append(ServiceManager(pool.folder))
        node = KeptNode("node", pool.folder, pool.master.addr, size, managers[-1], flags, env)
        pool.nodes.append(node)
        node.start()
        pool.wait_segments(1)
        return pool, node

    yield start
    for manager in managers:
        manager.close()


def put_all(store, keys, size: int = MIB, version: int = 0) -> None:
    for key in keys:
        assert store.put(key, value(key, size, version)) == 0, f"{key}: {store.last_error()}"


def versions(store, keys) -> list[int | None]:
    """What is read of each: a version, None for wrong bytes, and -1 for no object."""
    return [version_of(key, got) if (got := store.get(key)) else -1 for key in keys]


def wait_read(store, keys) -> None:
    wait_for("all objects there", lambda: store.batch_is_exist(keys) == [1] * len(keys), 10)


def wait_open(pool) -> None:
    wait_for("the segment open", lambda: pool.segments() and pool.metric("mooncake_segments_closed") == 0, 15)


def end(node: KeptNode, number: int) -> None:
    node.signal(number)
    node.process.wait(15)


def restart(node: KeptNode, number: int) -> None:
    end(node, number)
    node.start()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_a_node_that_ends_serves_all_that_it_held_when_it_is_back(kept, number):
    pool, node = kept()
    store, far = pool.store(), pool.process(env={"MC_SHM": "0"})
    keys = [f"k{index}" for index in range(24)]
    put_all(store, keys)
    segment = node.segment
    for round_ in range(1, 4):
        restart(node, number)
        wait_read(store, keys)
        assert versions(store, keys) == [0] * len(keys)
        assert [version_of(key, far.call("get", key)) for key in keys] == [0] * len(keys)
        assert (node.segment, pool.segments()) == (segment, [segment])
        wait_open(pool)
        # And goes on.
        more = [f"round {round_}/{index}" for index in range(4)]
        put_all(store, more)
        keys = [*keys, *more]
    assert versions(store, keys) == [0] * len(keys)


def rounds_under_load(kept, rounds: int) -> None:
    """Two writers and a reader go on while the node is restarted again and again; nothing that was put is lost."""
    pool, node = kept()
    keys = [f"stays/{index}" for index in range(16)]
    store = pool.store()
    put_all(store, keys, 256 * KIB)
    over, wrong, done = threading.Event(), [], {}

    def write(name: str, env: dict[str, str]) -> None:
        peer = pool.process(env=env)
        for number in range(1 << 30):
            if over.is_set():
                return
            key = f"{name}/{number % 64}"
            if number >= 64:
                peer.call("remove", key, True)
                done.pop(key, None)
            if peer.call("put", key, value(key, 64 * KIB, number)) == 0:
                done[key] = number

    def read() -> None:
        peer = pool.process()
        while not over.is_set():
            for key in keys:
                got = peer.call("get", key)
                if got and version_of(key, got) != 0:
                    wrong.append(key)

    threads = [threading.Thread(target=write, args=("near", {})), threading.Thread(target=read)]
    threads.append(threading.Thread(target=write, args=("far", {"MC_SHM": "0"})))
    for thread in threads:
        thread.start()
    try:
        for round_ in range(rounds):
            time.sleep(0.3)
            restart(node, [signal.SIGKILL, signal.SIGTERM][round_ % 2])
            wait_for("all objects there", lambda: store.batch_is_exist(keys) == [1] * len(keys), 10)
            wait_open(pool)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert wrong == []
    assert versions(store, keys) == [0] * len(keys)
    assert len(done) > 64
    found = {key: version_of(key, got) if (got := store.get(key)) else -1 for key in done}
    assert found == done


def test_restarts_under_load_lose_nothing(kept):
    rounds_under_load(kept, 4)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_restarts_under_load_lose_nothing(kept):
    rounds_under_load(kept, 100)


def test_a_writer_that_stands_still_keeps_placement_closed_and_spoils_nothing(kept):
    pool, node = kept()
    writer, store = pool.process(), pool.store()
    keys = [f"k{index}" for index in range(8)]
    # By a process that has mapped the memory to write it.
    for key in keys:
        assert writer.call("put", key, value(key, MIB)) == 0
    os.kill(writer.pid, signal.SIGSTOP)
    try:
        restart(node, signal.SIGKILL)
        wait_for("all objects there", lambda: store.batch_is_exist(keys) == [1] * len(keys), 10)
        assert versions(store, keys) == [0] * len(keys)
        # It may write where it was given room before.
        time.sleep(1)
        assert pool.metric("mooncake_segments_closed") == 1
        assert store.put("new", value("new", MIB)) != 0
    finally:
        os.kill(writer.pid, signal.SIGCONT)
    # It says now that the process before has ended, which is no word about this one.
    wait_open(pool)
    put_all(store, ["new"])
    assert [version_of(key, writer.call("get", key)) for key in keys] == [0] * len(keys)
    assert writer.call("put", "again", value("again", MIB)) == 0, writer.call("last_error")
    assert versions(store, [*keys, "new", "again"]) == [0] * (len(keys) + 2)


def test_a_view_stays_as_it_is_over_a_restart_and_longer_than_its_object(kept):
    pool, node = kept()
    store = pool.store()
    put_all(store, ["seen"])
    view = store.get_buffer("seen")
    restart(node, signal.SIGKILL)
    wait_for("the object there", lambda: store.is_exist("seen") == 1, 10)
    wait_open(pool)
    assert store.remove("seen", True) == 0
    # Three times what the memory holds.
    for number in range(3 * MEMORY // MIB):
        assert store.put(f"other {number}", value(f"other {number}", MIB)) == 0, store.last_error()
    assert version_of("seen", memoryview(view)) == 0


def test_a_master_that_is_started_again_in_the_gap_waits_for_the_next_process(kept):
    pool, node = kept()
    store = pool.store()
    keys = [f"k{index}" for index in range(8)]
    put_all(store, keys)
    end(node, signal.SIGKILL)
    pool.master.kill()
    pool.master.start()
    node.start()
    wait_for("all objects there", lambda: store.batch_is_exist(keys) == [1] * len(keys), 15)
    assert versions(store, keys) == [0] * len(keys)
    wait_open(pool)
    put_all(store, ["new"])


def test_of_two_successors_one_serves_and_the_other_takes_over_when_that_ends(kept):
    pool, node = kept()
    store = pool.store()
    keys = [f"k{index}" for index in range(8)]
    put_all(store, keys)
    end(node, signal.SIGKILL)
    node.start()
    second = KeptNode("second", pool.folder, pool.master.addr, MEMORY, node.manager)
    pool.nodes.append(second)
    second.launch()
    time.sleep(1)
    assert second.ready not in second.output(), "the other one has not ended"
    assert versions(store, keys) == [0] * len(keys)
    node.kill()
    second.wait_ready(lambda: second.ready in second.output())
    wait_for("all objects there", lambda: store.batch_is_exist(keys) == [1] * len(keys), 10)
    assert versions(store, keys) == [0] * len(keys)


def spoil_bytes(manager: ServiceManager) -> None:
    state = manager.descriptor(STATE)
    for copy in (0, 64 * KIB):
        os.pwrite(state, b"\xff", copy + 33)


def crc32c(data: bytes, table=[]) -> int:  # noqa: B006
    if not table:
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
            table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def write_as_a_later_version(manager: ServiceManager) -> None:
    state = manager.descriptor(STATE)
    for copy in (0, 64 * KIB):
        head = bytearray(os.pread(state, 24, copy))
        if head[:6] == b"MCKEPT":
            (length,) = struct.unpack_from("<I", head, 12)
            struct.pack_into("<I", head, 8, 2)
            body = os.pread(state, length, copy + 32)
            os.pwrite(state, bytes(head) + struct.pack("<I", crc32c(bytes(head) + body)), copy)


@pytest.mark.parametrize("spoil", [spoil_bytes, write_as_a_later_version], ids=["wrong bytes", "a later version"])
def test_a_state_that_cannot_be_read_means_new_memory(kept, spoil):
    pool, node = kept(flags=["--keep_ms=3000"])
    store = pool.store()
    put_all(store, ["before"])
    end(node, signal.SIGKILL)
    before = node.manager.names()
    spoil(node.manager)
    node.start()
    assert "is not taken over" in node.output()
    # The memory of before goes back to the host, and its objects when their time is over.
    wait_for("new memory held", lambda: len(node.manager.names()) == 3 and node.manager.names() != before, 5)
    assert store.is_exist("before") == 0
    put_all(store, ["after"])
    restart(node, signal.SIGKILL)
    wait_for("the object there", lambda: store.is_exist("after") == 1, 10)
    assert versions(store, ["after"]) == [0]
    wait_for("the session of before over", lambda: len(pool.segments() or []) == 1, 10)


def test_what_could_not_be_taken_over_ends_at_once(kept):
    pool, node = kept()
    store = pool.store()
    put_all(store, ["before"])
    end(node, signal.SIGKILL)
    node.manager.drop("mooncake-data")
    node.start()
    assert "its descriptors are not held" in node.output()
    assert store.is_exist("before") == 0
    put_all(store, ["before"], version=1)
    assert versions(store, ["before"]) == [1]
    assert pool.metric("mooncake_sessions_bereft") == 0


def test_without_a_next_process_the_objects_are_gone_after_its_time(kept):
    pool, node = kept(flags=["--keep_ms=1500"])
    store = pool.store()
    put_all(store, ["k"])
    end(node, signal.SIGKILL)
    ended = time.monotonic()
    wait_for("the segment hidden", lambda: pool.segments() == [], 5)
    wait_for("the session over", lambda: pool.metric("mooncake_sessions_bereft") == 0, 10)
    assert time.monotonic() - ended > 1.2
    node.start()
    assert "the master keeps nothing" in node.output()
    assert store.is_exist("k") == 0
    put_all(store, ["k"], version=1)
    assert versions(store, ["k"]) == [1]


def test_the_master_waits_for_a_next_process_as_long_as_the_last_one_asked(kept):
    pool, node = kept(flags=["--keep_ms=60000"])
    store = pool.store()
    put_all(store, ["k"])
    end(node, signal.SIGTERM)
    node.command[node.command.index("--keep_ms=60000")] = "--keep_ms=1000"
    node.start()
    wait_for("its own time to be said", lambda: "is_kept=true seconds=1\n" in node.output(), 5)
    assert versions(store, ["k"]) == [0]
    end(node, signal.SIGKILL)
    wait_for("the segment hidden", lambda: pool.segments() == [], 5)
    wait_for("the session over", lambda: pool.metric("mooncake_sessions_bereft") == 0, 10)


def test_memory_is_taken_over_though_the_master_takes_no_tiers_any_more(kept, tmp_path):
    path = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(tmp_path / "tiers")}
    pool, node = kept(flags=["--enable_offload"], env=path)
    store = pool.store()
    keys = [f"k{number}" for number in range(8)]
    put_all(store, keys)
    pool.master.kill()
    pool.master.command.append("--enable_offload=false")
    pool.master.start()
    pool.wait_segments(1)
    end(node, signal.SIGTERM)
    before = len(node.output())
    node.start()
    pool.wait_segments(1)
    wait_for("the next process to have it", lambda: versions(store, keys) == [0] * 8, 10)
    wait_for("why it has no tier", lambda: "enable_offload=false" in node.output()[before:], 5)


def test_a_node_that_is_interrupted_closes(kept):
    pool, node = kept()
    store = pool.store()
    put_all(store, ["k"])
    end(node, signal.SIGINT)
    assert store.is_exist("k") == 0
    assert pool.segments() == []
    wait_for("nothing held", lambda: node.manager.names() == [], 5)


def test_without_anything_that_holds_the_memory_the_flag_is_refused(cluster, monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    pool = cluster(nodes=0)
    log = pool.folder / "refused.out"
    command = [binary(), "client", "--keep", f"--master_server_address={pool.master.addr}"]
    refused = Program("refused", command, log).launch()
    assert refused.process.wait(10) == 1
    assert "nothing holds the memory over a restart" in refused.output()


@pytest.fixture
def keeper(cluster):
    """A master, a keeper, and a node whose memory that holds."""
    started: list[Program] = []

    def start(flags=()):
        pool = cluster(nodes=0)
        socket = pool.folder / "keeper"
        held = Program("keeper", [binary(), "keeper", f"--socket={socket}"], pool.folder / "keeper.out", "keeper ready")
        started.append(held)
        held.start()
        node = pool.add_node(MEMORY, ["--keep", f"--keeper={socket}", *flags])
        return pool, held, node

    yield start
    for one in started:
        one.terminate()


def said(node, text: str) -> int:
    return node.output().count(text)


def test_a_keeper_holds_the_memory_from_one_process_to_the_next(keeper):
    pool, held, node = keeper()
    store = pool.store()
    keys = [f"k{index}" for index in range(8)]
    put_all(store, keys)
    for number in (signal.SIGKILL, signal.SIGTERM):
        end(node, number)
        node.start()
        wait_for("all objects there", lambda: store.batch_is_exist(keys) == [1] * len(keys), 10)
        assert versions(store, keys) == [0] * len(keys)
    assert held.alive


def test_a_keeper_serves_one_process_at_a_time(keeper):
    pool, _, node = keeper()
    socket = pool.folder / "keeper"
    put_all(pool.store(), ["k"])
    second = Program("second", [*node.command[:-1], f"--keeper={socket}"], pool.folder / "second.out", node.ready)
    second.launch()
    time.sleep(1)
    assert node.ready not in second.output()
    assert second.alive
    second.kill()


def test_a_keeper_that_ends_is_told_to_the_master_and_the_next_one_holds_the_memory_again(keeper):
    pool, held, node = keeper()
    store = pool.store()
    put_all(store, ["k"])
    held.kill()
    wait_for("the node to say so", lambda: said(node, "is_kept=false") == 1, 10)
    held.start()
    wait_for("the memory held again", lambda: said(node, "is_kept=true") == 2, 10)
    end(node, signal.SIGKILL)
    node.start()
    wait_for("the object there", lambda: store.is_exist("k") == 1, 10)
    assert versions(store, ["k"]) == [0]
    # Without one the end of the process is the end of its objects.
    held.kill()
    wait_for("the node to say so", lambda: said(node, "is_kept=false") == 2, 10)
    node.kill()
    wait_for("the segment gone", lambda: pool.segments() == [] and pool.metric("mooncake_sessions_bereft") == 0, 5)


def test_what_is_kept_is_given_back_where_node_and_keeper_end(keeper):
    pool, held, node = keeper(["--keep_ms=1000"])
    reader = pool.store()
    put_all(reader, ["k"])
    held.kill()
    node.kill()
    wait_for("the session over", lambda: pool.segments() == [] and pool.metric("mooncake_sessions_bereft") == 0, 10)
    assert reader.is_exist("k") == 0


def test_a_node_whose_keeper_has_ended_closes_when_it_is_terminated(keeper):
    pool, held, node = keeper()
    put_all(pool.store(), ["k"])
    held.kill()
    wait_for("the node to say so", lambda: said(node, "is_kept=false") == 1, 10)
    closed = pool.metric("mooncake_sessions_closed_total")
    end(node, signal.SIGTERM)
    assert pool.segments() == []
    assert (pool.metric("mooncake_sessions_closed_total"), pool.metric("mooncake_sessions_bereft")) == (closed + 1, 0)


def test_a_keeper_that_stands_still_holds_up_neither_calls_nor_the_session_nor_the_end(keeper):
    pool, held, node = keeper()
    store = pool.store()
    put_all(store, ["k"])
    os.kill(held.pid, signal.SIGSTOP)
    try:
        for number in range(80):
            put_all(store, [f"more/{number}"], KIB)
            time.sleep(0.1)
        wait_for("the node to say so", lambda: said(node, "is_kept=false") == 1, 10)
        assert pool.metric("mooncake_sessions_lost_total") == 0
        began = time.monotonic()
        end(node, signal.SIGTERM)
        assert time.monotonic() - began < 12
        assert pool.segments() == []
    finally:
        os.kill(held.pid, signal.SIGCONT)
