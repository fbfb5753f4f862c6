"""The disk under the master's log stands still: no client is taken for dead, and what waits is done when it goes on."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from contents import value, version_of
from device import has_compiler

from pool import wait_for

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not has_compiler(), reason="the slow disk is a library in C, and there is no compiler"),
]

KIB, MIB = 1 << 10, 1 << 20
SOURCE = Path(__file__).resolve().parents[1] / "slow_disk" / "slow_disk.c"

# Longer than the 2 s after which who says nothing is away.
STANDS = 3.5

HOLD = "served.views = [store.get_buffer(key) for key in keys]; result = all(served.views)"
LET_GO = "served.views = None"


@pytest.fixture
def disk(cluster, tmp_path):
    """A cluster of two nodes, and the file that has its master's disk stand still while it is there."""
    stands, library = tmp_path / "stands", tmp_path / "slow_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    env = {"LD_PRELOAD": str(library), "MOONCAKE_DISK_STANDS": str(stands)}
    yield cluster(nodes=2, node_bytes=64 * MIB, env=env), stands
    stands.unlink(missing_ok=True)


def test_no_client_is_lost_and_what_waits_for_it_is_done_when_it_goes_on(disk):
    pool, stands = disk
    readers, writers = [pool.process() for _ in range(2)], [pool.process() for _ in range(2)]
    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        assert writers[0].call("put", key, value(key, 256 * KIB)) == 0
    for reader in readers:
        assert reader.call("run", HOLD, keys=keys)

    stands.touch()
    began = time.monotonic()
    gives_up = writers[0].start("put", "early", value("early", KIB))
    for reader in readers:  # Their next beats change something, which is to be in the log.
        reader.call("run", LET_GO)
    waits = None
    while time.monotonic() - began < STANDS:
        assert pool.master.metric("mooncake_sessions_away") == 0
        gave_up = gives_up.done  # Not before its deadline of 3 s.
        assert not gave_up or time.monotonic() - began > 2.5, "the disk did not stand still"
        if waits is None and time.monotonic() - began > STANDS - 1.0:
            waits = writers[1].start("put", "late", value("late", KIB))
        time.sleep(0.1)
    assert not waits.done, "the disk did not stand still"
    stands.unlink()

    assert waits.result() == 0, writers[1].call("last_error")
    for reader in readers:
        for key in [*keys, "late"]:
            assert version_of(key, reader.call("get", key)) == 0, reader.call("last_error")
    wait_for("the views are over", lambda: pool.master.metric("mooncake_pinned_bytes") == 0, 5.0)
    gives_up.result()  # Whatever became of it: it can be put again.
    wait_for("a put", lambda: writers[0].call("put", "early", value("early", KIB)) == 0, 5.0)
    for never in ["sessions_lost", "sessions_resumed", "segments_gone"]:
        assert pool.master.metric(f"mooncake_{never}_total") == 0, never
