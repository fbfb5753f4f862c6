"""The transfer engine's cells: two processes, one of which writes to the other and reads from it.

Beside the rival of all cells these have a second one, NIXL with its UCX backend.
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from floors import MEMCPY, STREAM
from rig import Client, RigError

KIB, MIB = 1 << 10, 1 << 20
# At each end. More than the processors' caches hold, so that every byte comes from memory.
WINDOW = 256 * MIB
# Bytes of a request, requests of a batch, threads.
SHAPES = {
    "4 KiB": (4 * KIB, 1, 1),
    "64 KiB": (64 * KIB, 1, 1),
    "1 MiB": (MIB, 1, 1),
    "64 MiB": (64 * MIB, 1, 1),
    "32 x 64 KiB": (64 * KIB, 32, 1),
    "1 MiB, 4 threads": (MIB, 1, 4),
}
# So short that the time of one says more than the rate.
SHORT = ("4 KiB", "64 KiB")


def expectations(expected):
    """What each cell has to reach; `expected` makes one.

    Of several threads and of batches, that is the path within the host's; over TCP they are measured only.
    """
    cells = {}
    for op in ("write", "read"):
        for shape in SHAPES:
            within, tcp = {}, {}
            if shape in ("1 MiB", "64 MiB"):
                within = {"rival": 3, "floor": MEMCPY, "share": 0.60}
                tcp = {"rival": 1.6, "floor": STREAM, "share": 0.70}
            elif shape == "32 x 64 KiB":
                within = {"rival": 3}
            elif shape == "1 MiB, 4 threads":
                within = {"rival": 5, "floor": f"engine {op} 1 MiB", "share": 0.85}
            cells[f"engine {op} {shape}"] = expected("GB/s", **within)
            cells[f"engine {op} {shape}, TCP"] = expected("GB/s", **tcp)
        for shape in SHORT:
            for suffix in ("", ", TCP"):
                bars = {"rival": 0.8} if shape == "4 KiB" else {}
                if (op, suffix) == ("write", ""):
                    bars["nixl"] = 1
                cells[f"engine {op} {shape}, p50{suffix}"] = expected("us", **bars, lower_is_better=True)
        for shape in ("1 MiB", "64 MiB"):
            cells[f"engine {op} {shape}, CPU, TCP"] = expected("s/GB", rival=0.6, lower_is_better=True)
    return cells


def measure(implementation, seconds, record, wants, slices=1):
    """The cells of one implementation that are wanted; `record` takes each figure.

    Each cell is cut into so many slices, with a yield behind each.
    """
    suffix = ", TCP" if implementation.by_tcp else ""
    with _pair(implementation) as (initiator, target):
        for number, (shape, how) in enumerate(SHAPES.items()):
            for op in ("write", "read"):
                cell = f"engine {op} {shape}"
                if not wants(f"{cell}{suffix}", f"{cell}, CPU{suffix}", f"{cell}, p50{suffix}"):
                    continue

                def sample(result, cell=cell, shape=shape):
                    if result["failed"]:
                        raise RigError(f"{cell}: {result['failed']} calls failed")
                    record(f"{cell}{suffix}", result["moved"] / 1e9 / result["seconds"])
                    if shape in SHORT:
                        record(f"{cell}, p50{suffix}", result["p50_us"])

                whole = yield from _cell(initiator, target, op, how, seconds, slices, sample, seed=number)
                if not whole["same"]:
                    raise RigError(f"{cell}: bytes differ")
                record(f"{cell}, CPU{suffix}", whole["cpu_s"] / (whole["moved"] / 1e9))


def _cell(initiator, target, op, how, seconds, slices, sample, seed):
    """One cell, slice by slice; `sample` takes the result of each. What all of them moved, and whether it is right."""
    size, batch, threads = how
    source, sink = (initiator, target) if op == "write" else (target, initiator)
    source.ask("fill", seed=seed)
    sink.ask("fill", seed=1_000 + seed)
    count, whole = 0, {"moved": 0, "cpu_s": 0.0}
    for _ in range(slices):
        before = _cpu_s(target.pid)
        arguments = {"op": op, "size": size, "batch": batch, "threads": threads, "seconds": seconds / slices}
        result = initiator.ask("run", first=count // threads, **arguments)
        count += result["count"]
        whole["moved"] += result["moved"]
        whole["cpu_s"] += result["cpu_s"] + _cpu_s(target.pid) - before
        sample(result)
        yield
    # Of several threads, only the first request of each is known to have been made.
    span = size * batch
    right = span if threads > 1 else min(whole["moved"], WINDOW // span * span)
    places = [{"at": thread * (WINDOW // threads), "size": right} for thread in range(threads)]
    whole["same"] = all(source.ask("checksum", **place) == sink.ask("checksum", **place) for place in places)
    return whole


@contextlib.contextmanager
def _pair(implementation):
    folder = Path(tempfile.mkdtemp(prefix="mooncake-bench-"))
    ends = []
    try:
        for name in ("initiator", "target"):
            ends.append(Client(implementation, folder, name, implementation.engine_worker))
        initiator, target = ends
        initiator.ask("setup", size=WINDOW)
        initiator.ask("meet", **target.ask("setup", size=WINDOW))
        yield initiator, target
    finally:
        for end in ends:
            end.stop()
        # What a failure needs of the logs is in its message.
        shutil.rmtree(folder, ignore_errors=True)


def _cpu_s(pid):
    """Seconds of processors that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
