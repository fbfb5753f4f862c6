"""The master is frozen with SIGSTOP: one bounded wait, then calls fail at once, and recover when it goes on."""

from __future__ import annotations

import time

import pytest
from contents import value

from pool import wait_for

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("frozen_for", [0.0, 4.0], ids=["shortly", "for longer than sessions may be silent"])
def test_one_bounded_wait_then_none_and_success_within_a_second_after(cluster, frozen_for):
    pool = cluster()
    store = pool.store()
    assert store.put("k", value("k", 1 << 20)) == 0
    assert store.is_exist("k") == 1

    pool.master.stop()
    try:
        begin = time.monotonic()
        assert store.is_exist("k") == 0
        assert time.monotonic() - begin < 0.8
        begin = time.monotonic()
        for _ in range(100):
            assert store.is_exist("k") == 0
        assert time.monotonic() - begin < 0.05
        assert store.put("l", b"x") == -900
        assert "master" in store.last_error().lower()
        time.sleep(frozen_for)
    finally:
        pool.master.cont()
    begin = time.monotonic()
    wait_for("is_exist to say 1 again", lambda: store.is_exist("k") == 1, 1.0)
    wait_for("the object", lambda: store.get("k") == value("k", 1 << 20), 1.0 - (time.monotonic() - begin))
    assert store.put("l", b"x") == 0, store.last_error()
