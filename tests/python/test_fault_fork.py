"""A child that was forked from a process with a store: its calls are refused, its parent goes on."""

from __future__ import annotations

import pytest
from contents import value, version_of

pytestmark = pytest.mark.timeout(60)

FORK_AND_CALL = """
import os, signal
child = os.fork()
if child == 0:
    signal.alarm(20)  # A child that hangs must not outlive its test.
    ok = False
    try:
        refused = store.put("from the child", b"x" * 5000)
        read = store.get("k")
        asked = store.is_exist("k")
        ok = refused < 0 and read == b"" and asked != 1 and "fork" in store.last_error().lower()
        view = served.view
        del served.view, view  # Ending a handle does nothing here.
        store.close()
    finally:
        os._exit(0 if ok else 1)
_, status = os.waitpid(child, 0)
result = os.waitstatus_to_exitcode(status)
"""
FORK_AND_SETUP = """
import os, signal
child = os.fork()
if child == 0:
    signal.alarm(20)  # A child that hangs must not outlive its test.
    ok = False
    try:
        from mooncake.store import MooncakeDistributedStore
        mine = MooncakeDistributedStore()
        code = mine.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 24, "tcp", "", master)
        ok = code != 0 and "fork" in mine.last_error().lower()
    finally:
        os._exit(0 if ok else 1)
_, status = os.waitpid(child, 0)
result = os.waitstatus_to_exitcode(status)
"""


def test_calls_of_the_child_are_refused_and_the_parent_goes_on(cluster):
    pool = cluster()
    peer = pool.process(segment=64 << 20)
    assert peer.call("put", "k", value("k", 1 << 20)) == 0
    peer.call("run", "served.view = store.get_buffer('k')")
    assert peer.call("run", FORK_AND_CALL) == 0
    assert version_of("k", peer.call("get", "k")) == 0
    assert version_of("k", peer.call("run", "result = bytes(memoryview(served.view))")) == 0
    assert peer.call("put", "l", value("l", 1 << 20)) == 0
    assert peer.call("is_exist", "from the child") == 0


def test_a_child_is_told_that_it_cannot_have_a_store(cluster):
    pool = cluster()
    peer = pool.process()
    assert peer.call("run", FORK_AND_SETUP, master=pool.master.addr) == 0
    assert peer.call("health_check") == 0
