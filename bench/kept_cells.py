"""The cells of a storage node whose memory is kept: how soon its objects are there again, beside making memory anew."""

import contextlib
import json
import signal
import time

from rig import Rig, RigError
from tier_cells import GIB, MIB

from pool import KeptNode, ServiceManager

# Bytes of the node's memory; the second one with --full.
SIZE = {False: GIB, True: 8 * GIB}
# Most seconds from the start of the next process to the last object.
BACK_S = 0.5


def expectations(expected):
    """What each cell has to reach; `expected` makes one."""
    cells = {}
    for size in SIZE.values():
        cells[_populated(size)] = expected("s", lower_is_better=True)
        for end in (signal.SIGTERM, signal.SIGKILL):
            cells[_back(size, end)] = expected("s", limit=BACK_S, lower_is_better=True)
    return cells


def _populated(size):
    return f"memory of a node, {size // GIB} GiB, made"


def _back(size, end):
    return f"kept node of {size // GIB} GiB back after {end.name}"


def measure(implementation, record, full):
    """All cells of one implementation; `record` takes each figure."""
    size = SIZE[full]
    rig = Rig(implementation)
    manager = ServiceManager(rig.folder)
    node = KeptNode(
        "kept",
        rig.folder,
        rig.master.addr,
        size,
        manager,
        env=implementation.environment,
        installation=implementation.installation,
    )
    try:
        begin = time.perf_counter()
        node.launch()
        _until(lambda: _populated_bytes(rig) >= size, "the node's memory", 60)
        record(_populated(size), time.perf_counter() - begin)
        client = rig.client("client")
        # Nearly all of it: nothing is evicted.
        count = size * 9 // 10 // MIB
        if client.ask("fill", prefix="kept", size=MIB, count=count, seconds=60)["left"]:
            raise RigError("the node did not take its objects")
        _until(lambda: "memory is kept" in node.output(), "that the memory is held", 10)
        for end in (signal.SIGTERM, signal.SIGKILL):
            node.signal(end)
            node.process.wait(30)
            begin = time.perf_counter()
            node.launch()
            _until(lambda: client.ask("alive", prefix="kept", count=count)["alive"] == count, "the objects", 30)
            record(_back(size, end), time.perf_counter() - begin)
            read = client.ask("run", op="get_into", prefix="kept", size=MIB, keys=count, seconds=2)
            if read["failed"] or read["wrong"]:
                raise RigError(f"behind {end.name} {read['failed']} reads failed, {read['wrong']} were wrong")
            # The next process is to be held as well.
            _until(lambda: rig.master.metric("mooncake_segments_closed") == 0, "the segment to take objects", 30)
    finally:
        node.kill()
        manager.close()
        rig.stop()


def _populated_bytes(rig):
    # It reads its log at first, however little it has.
    with contextlib.suppress(OSError):
        return sum(one["populated_bytes"] for one in json.loads(rig.master.http("/get_segments_detail"))["segments"])
    return 0


def _until(holds, what, seconds):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise RigError(f"not there within {seconds} s: {what}")
        time.sleep(0.002)
