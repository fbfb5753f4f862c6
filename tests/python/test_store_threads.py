"""One store object is called by many threads at once, and says so of nothing."""

from __future__ import annotations

import threading

import numpy as np

from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from pool import wait_for


def together(count: int, work) -> None:
    """Runs work(i) in threads; the first exception of any is raised."""
    failures: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    if failures:
        raise failures[0]


def test_every_call_at_once_from_many_threads(store):
    def work(t: int) -> None:
        buffer = np.zeros(4096, dtype=np.uint8)
        assert store.register_buffer(buffer.ctypes.data, buffer.nbytes) == 0
        for i in range(30):
            key, value = f"{t}-{i}", bytes([t]) * 4096
            assert store.put(key, value) == 0
            assert store.is_exist(key) == 1
            assert store.get(key) == value
            assert store.get_into(key, buffer.ctypes.data, 4096) == 4096
            assert buffer.tobytes() == value
            assert bytes(store.get_buffer(key)) == value
            assert store.batch_is_exist([key, "no"]) == [1, 0]
            assert store.remove(key, True) == 0
        assert store.unregister_buffer(buffer.ctypes.data) == 0

    together(8, work)


def test_one_config_is_used_and_changed_by_several_threads(store):
    config = ReplicateConfig()

    def work(t: int) -> None:
        for i in range(50):
            config.group_ids = None
            config.preferred_segment = f"nowhere-{t}"
            code = store.put(f"{t}-{i}", b"v", config)
            assert code == 0, store.last_error()

    together(6, work)


def test_two_threads_that_put_one_key_both_succeed(store):
    def work(t: int) -> None:
        for i in range(40):
            assert store.put(f"contended-{i}", b"same value") == 0, store.last_error()

    together(6, work)
    assert store.batch_is_exist([f"contended-{i}" for i in range(40)]) == [1] * 40


def test_each_thread_has_its_own_last_error(store):
    barrier = threading.Barrier(2, timeout=10)

    def work(t: int) -> None:
        for _ in range(20):
            assert store.put("" if t else "k", b"v") == (-400 if t else 0)
            barrier.wait()
            assert (store.last_error() != "") == bool(t)
            barrier.wait()

    together(2, work)


def test_a_thread_that_called_nothing_sees_the_newest_error(store):
    seen: list[str] = []

    def fails() -> None:
        store.put("", b"v")

    together(1, lambda _: fails())
    together(1, lambda _: seen.append(store.last_error()))
    assert "65536" in seen[0]


def test_the_gil_is_free_while_a_call_waits(cluster):
    c = cluster(nodes=1)
    s = c.store()
    c.master.stop()
    ticks = 0
    waiting = threading.Thread(target=s.is_exist, args=("k",))
    waiting.start()
    while waiting.is_alive():
        ticks += 1
        waiting.join(0.001)
    c.master.cont()
    assert ticks > 20


def test_close_under_running_calls_is_safe(shared_cluster):
    for _ in range(5):
        s = shared_cluster.store(segment=4 << 20)
        stop = threading.Event()

        def work(_, s=s, stop=stop) -> None:
            while not stop.is_set():
                assert s.put("x", b"v" * 100_000) <= 0
                assert s.get("x") in (b"", b"v" * 100_000)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        s.close()
        stop.set()
        for t in threads:
            t.join(10)
            assert not t.is_alive()
        assert s.put("y", b"v") == -600


def test_a_dropped_store_closes_itself(shared_cluster):
    before = len(shared_cluster.segments())
    made = MooncakeDistributedStore()
    assert made.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 20, 0, "tcp", "", shared_cluster.master.addr) == 0
    assert len(shared_cluster.segments()) == before + 1
    del made
    assert len(shared_cluster.segments()) == before


def test_setups_that_race_leave_one_session_and_a_close_leaves_none(cluster):
    c = cluster(nodes=0)
    store = MooncakeDistributedStore()

    def setup(_: int) -> None:
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 4 << 20, 16 << 20, "tcp", "", c.master.addr) == 0

    together(8, setup)
    assert store.put("k", b"v") == 0
    wait_for("the replaced sessions to be over", lambda: len(c.segments()) == 1)
    assert store.close() == 0
    wait_for("the last session to be over", lambda: c.segments() == [])


def test_closing_ends_the_session_and_begins_no_other(cluster):
    c = cluster(nodes=1)
    nodes = c.master.metric("mooncake_sessions")
    for _ in range(20):
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", c.master.addr) == 0
        assert store.is_exist("k") == 0
        assert store.close() == 0
        assert c.master.metric("mooncake_sessions") == nodes
