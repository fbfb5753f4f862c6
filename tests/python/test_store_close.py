"""Closing a store leaves nothing of it with the master, whatever was going on."""

from __future__ import annotations

import threading
import time

from mooncake.store import MooncakeDistributedStore
from pool import wait_for


def nothing_left(c, nodes: int) -> bool:
    names = ("mooncake_sessions", "mooncake_sessions_away", "mooncake_pinned_bytes")
    return [c.master.metric(name) for name in names] == [nodes, 0, 0]


def opened(c) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 32 << 20, "tcp", "", c.master.addr) == 0
    return store


def test_calls_that_are_cut_off_by_a_close_leave_no_pins(cluster):
    c = cluster(nodes=1, node_bytes=16 << 20)
    writer = opened(c)
    assert writer.put_batch([f"t{i}" for i in range(100)], [bytes(100_000)] * 100) == 0
    for turn in range(40):
        store = opened(c)

        def borrow(store=store, turn=turn) -> None:
            i = 0
            while (handle := store.get_buffer(f"t{(turn * 7 + i) % 100}")) is not None:
                i += 1
                del handle

        crowd = [threading.Thread(target=borrow) for _ in range(3)]
        for thread in crowd:
            thread.start()
        time.sleep(0.01)
        store.close()
        for thread in crowd:
            thread.join()
        del store
    wait_for("the master to hold nothing", lambda: nothing_left(c, 2))
    assert writer.remove_all(True) == 100
    assert writer.put("large", bytes(15 << 20)) == 0, writer.last_error()
    writer.close()


def test_a_view_that_ends_while_the_master_is_away_is_told_once_it_is_back(cluster):
    c = cluster(nodes=1, node_bytes=16 << 20)
    store = opened(c)
    assert store.put("k", bytes(1 << 20)) == 0
    view = store.get_buffer("k")
    assert view is not None
    c.master.kill()
    store.close()
    del view
    c.master.start()
    wait_for("the master to hold nothing", lambda: nothing_left(c, 1))


def test_a_store_that_is_closed_while_the_master_stands_still_is_over_when_it_goes_on(cluster):
    c = cluster(nodes=1, node_bytes=16 << 20)
    store = opened(c)
    assert store.put("k", b"v") == 0
    c.master.stop()
    begun = time.monotonic()
    store.close()
    assert time.monotonic() - begun < 2
    c.master.cont()
    wait_for("the session to be over", lambda: nothing_left(c, 1))
