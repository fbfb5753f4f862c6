"""The cells of a large pool as its client sees it: a master, an owner and a client, each in a process of its own."""

import time
from statistics import median

from rig import Rig, RigError, memory_kib

# Keys have 64 bytes, or some fewer: a number follows.
PREFIX = "many".ljust(56, "-")
# Keys of one put_batch.
BATCH = 5_000
# Objects whose puts are timed at once, if there are so many, and how often: a compaction beside one of them, or a busy
# host, is not what the cell is about.
TIMED, TIMES = 200_000, 5
# Every object takes one granule; the owner lends a few more.
GRANULE, SPARE = 1 << 10, 64 << 20
# Objects of a tenth of which no cache of a usual processor holds the index, so that the rates compare.
MANY = 10_000_000
# A pool of usual size, that a killed master is to have back at once, and how often it is killed.
FEW, FEW_TIMES = 200_000, 5
# For a client that waits for a master that reads its log.
TIMEOUT_S = 120


FEW_CELL = f"master of {FEW:,} objects killed, first and last key read back"


def measure(implementation, record, objects):
    """Fills it, kills the master, starts it again, and reads the first and the last key back."""
    record(FEW_CELL, _back_with_few(implementation))
    timed = min(TIMED, objects // 10 // TIMES)
    rig = Rig(implementation, objects * GRANULE + SPARE)
    try:
        client = rig.client("client", buffer_bytes=64 << 20)
        first = median(_put(client, turn * timed, timed) for turn in range(TIMES))
        begun, behind = TIMES * timed, objects - TIMES * timed
        _put(client, begun, behind - begun)
        last = median(_put(client, behind + turn * timed, timed) for turn in range(TIMES))
        print(f"    put_batch of {BATCH:,}: {first:,.0f} keys a second at the first tenth, {last:,.0f} at the last")
        record(_rate_cell(objects), 100 * last / first)
        record("master's memory, most", memory_kib(rig.master.pid, "VmHWM") * 1.024e-3)
        seconds = _killed(rig, client, objects)
        record("master killed, first and last key read back", seconds)
        record("master's memory behind a restart", memory_kib(rig.master.pid, "VmRSS") * 1.024e-3)
        record("master's memory behind a restart, most", memory_kib(rig.master.pid, "VmHWM") * 1.024e-3)
    finally:
        rig.stop()


def _back_with_few(implementation):
    """Median of what `_killed` says of a pool of usual size."""
    rig = Rig(implementation, FEW * GRANULE + SPARE)
    try:
        client = rig.client("client", buffer_bytes=64 << 20)
        _put(client, 0, FEW)
        return median(_killed(rig, client, FEW) for _ in range(FEW_TIMES))
    finally:
        rig.stop()


def _put(client, first, count):
    """Keys put a second."""
    if count <= 0:
        return 0.0
    put = client.ask("put_small", prefix=PREFIX, first=first, count=count, size=64, batch=BATCH)
    if put["failed"]:
        raise RigError(f"put_batch: {put['failed']} batches failed behind {first:,} objects")
    return count / put["seconds"]


def _rate_cell(objects):
    return "rate of put_batch at the tenth million" if objects >= MANY else "rate of put_batch at the last tenth"


def _killed(rig, client, objects):
    """Seconds from the new master's start until a client has read the first and the last key."""
    ends = [0, objects - 1]
    if client.ask("read_small", prefix=PREFIX, numbers=ends, size=64)["right"] != 2:
        raise RigError("the first or the last key is not there before the master is killed")
    rig.master.kill()
    begin = time.monotonic()
    rig.start_master_again()
    while client.ask("read_small", prefix=PREFIX, numbers=ends, size=64)["right"] != 2:
        if time.monotonic() - begin > TIMEOUT_S:
            raise RigError(f"not back {TIMEOUT_S} s behind a kill:\n{rig.master.last_lines()}")
        time.sleep(0.02)
    return time.monotonic() - begin


def expectations(expected, memory_mb):
    return {
        FEW_CELL: expected("s", limit=0.6, lower_is_better=True),
        "rate of put_batch at the tenth million": expected("% of the first", limit=80),
        "rate of put_batch at the last tenth": expected("% of the first"),
        "master's memory, most": expected("MB", limit=memory_mb, lower_is_better=True),
        "master killed, first and last key read back": expected("s", limit=10, lower_is_better=True),
        "master's memory behind a restart": expected("MB", limit=memory_mb, lower_is_better=True),
        "master's memory behind a restart, most": expected("MB", limit=memory_mb, lower_is_better=True),
    }
