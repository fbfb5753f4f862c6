"""The cells of a pool of very many objects: how long one operation keeps all others from the master's core, what memory
the master takes, how long a restart and a compaction take, what idle clients cost, and what clients see of all that.

The core's cells come from programs of `mooncake-scale`: core and log of a large pool in one process, without memory
behind the segments. Those of `scale_pool` have a real master, an owner and a client.
"""

import json
import os
import subprocess
import tempfile

import scale_pool
import scale_status
from rig import ROOT, RigError

# Objects of a pool, by whether it is to be as large as it may: else as large as a laptop has memory for.
OBJECTS = {True: 10_000_000, False: 1_000_000}
# Times that a large pool goes through all its bad cases. The longest hold of an operation is what each of the runs had
# at the same place, which takes out a moment in which the machine itself stood still; the longest of any is beside it.
RUNS = 3
SESSIONS, SECONDS = 1_000, 20
# The longest that anybody has to wait for the core, microseconds of the holder's time on its processor.
LONGEST_US = 1_000
# What the master may take of memory for 10 M objects, whatever it does.
MEMORY_MB = 1_600
# What clients of this version do not send, and the control: no hold at all, but what the machine adds to one.
OLDER_CLIENT, MACHINE = "of an older client", "(the machine"


def measure(implementation, record, full):
    """All of them, one after the other; `full`: with 10 M objects."""
    programs, objects = _built(), OBJECTS[full]
    print(f"    {objects:,} objects, 1,000 segments", flush=True)
    for cells in (_holds, _memory, _compaction, _tiers):
        _record(record, cells(programs, objects))
    _record(record, _beats(programs))
    scale_pool.measure(implementation, record, objects)


def _record(record, cells):
    for cell, value in cells.items():
        record(cell, value)


def _holds(programs, objects):
    # With a log, as every master has: what a record costs before it is written is part of each hold.
    with tempfile.TemporaryDirectory(prefix="mooncake-bench-") as folder:
        figures = _told(programs, "mooncake-scale", "--objects", objects, "--runs", RUNS, "--log", folder)
    print(f"    {'us':<60} {'holds':>6} {'mean':>7} {'99.9 %':>7} {'longest':>7} {'single':>7} {'waited':>7}")
    for figure in figures:
        longer = "" if figure["cpu_us"] <= LONGEST_US else "  longer than it may"
        print(
            f"    {figure['operation']:<60} {figure['count']:>6} {figure['mean_us']:>7,.0f} {figure['p999_us']:>7,.0f}"
            f" {figure['cpu_us']:>7,.0f} {figure['single_us']:>7,.0f} {figure['wall_us']:>7,.0f}{longer}",
            flush=True,
        )
    return cells(figures)


def cells(figures):
    """What of the holds is held to a bar: those of clients of this version, not the machine's own."""
    held = [figure for figure in figures if not is_beside(figure["operation"])]
    return {
        "longest hold of the core": max(figure["cpu_us"] for figure in held),
        "operations that hold it longer": sum(figure["cpu_us"] > LONGEST_US for figure in held),
    }


def is_beside(operation):
    return OLDER_CLIENT in operation or operation.startswith(MACHINE)


def _memory(programs, objects):
    with tempfile.TemporaryDirectory(prefix="mooncake-bench-") as folder:
        phases = _told(programs, "mooncake-scale", "--objects", objects, "--memory", "--log", folder)
        status = scale_status.measure(programs, folder)
    for phase in phases:
        print(
            f"    {phase['phase']:<32} {phase['objects']:>10,} objects {phase['rss_mb']:>8,.0f} MB,"
            f" {phase['peak_mb']:>6,.0f} at most, {phase['thousands_a_second']:>7,.0f},000/s, {phase['seconds']:.1f} s",
            flush=True,
        )
    return memory_cells(phases) | status


def memory_cells(phases):
    """What is held to a bar of a pool's life, by the names of its phases."""
    by_name = {phase["phase"]: phase for phase in phases}
    first, last = by_name["filling, the first tenth"], by_name["filling"]
    behind = by_name["a restart behind a snapshot"]
    return {
        "memory of core and log, most": max(phase["peak_mb"] for phase in phases),
        "rate of puts in the core at the last tenth": last["thousands_a_second"] / first["thousands_a_second"] * 100,
        "log read back, a snapshot": behind["seconds"],
        "log read back, without a snapshot": by_name["a restart without one"]["seconds"],
        "memory behind a log that was read back": behind["rss_mb"],
    }


def _tiers(programs, objects):
    told = {}
    for places in ("memory", "both", "tier"):
        with tempfile.TemporaryDirectory(prefix="mooncake-bench-") as folder:
            arguments = ("--objects", objects, "--places", places, "--log", folder)
            told[places] = {phase["phase"]: phase for phase in _told(programs, "mooncake-scale", *arguments)}
    return tier_cells(told)


def tier_cells(told):
    """What is held to a bar of the phases of pools, by where their objects lie."""
    bytes_ = {places: phases["filling"]["bytes_an_object"] for places, phases in told.items()}
    behind = {places: phases["a restart behind a snapshot"]["seconds"] for places, phases in told.items()}
    return {
        "object in memory, short key": bytes_["memory"],
        "object on a tier, short key": bytes_["tier"],
        "object in memory and on a tier, short key": bytes_["both"],
        "log of a tier read back, of one of memory": behind["tier"] / behind["memory"] * 100,
    }


def _compaction(programs, objects):
    with tempfile.TemporaryDirectory(prefix="mooncake-bench-") as folder:
        told = _told(programs, "mooncake-scale", "--objects", objects, "--compaction", "--log", folder)
    print(
        f"    a compaction: {told['seconds']:.1f} s, {told['slices']:,} slices, keys put a second"
        f" {told['put_before']:,.0f} before it and {told['put_beside']:,.0f} beside it",
        flush=True,
    )
    return {
        "compaction, longest hold of the core": told["longest_slice_us"],
        "compaction, memory at the peak": told["resident_most"] * 1.048576,
        "compaction, memory above the level before": told["resident_most"] - told["resident_before"],
    }


def _beats(programs):
    told = _told(programs, "mooncake-beats", "--sessions", SESSIONS, "--seconds", SECONDS)
    return {"1,000 clients that beat": told["share_of_a_core"]}


def expectations(expected):
    return {
        "longest hold of the core": expected("us", limit=LONGEST_US, lower_is_better=True),
        "operations that hold it longer": expected("", limit=0, lower_is_better=True),
        "memory of core and log, most": expected("MB", limit=MEMORY_MB, lower_is_better=True),
        "rate of puts in the core at the last tenth": expected("% of the first", limit=80),
        "log read back, a snapshot": expected("s", limit=10, lower_is_better=True),
        "log read back, without a snapshot": expected("s", lower_is_better=True),
        "memory behind a log that was read back": expected("MB", limit=MEMORY_MB, lower_is_better=True),
        "compaction, longest hold of the core": expected("us", limit=LONGEST_US, lower_is_better=True),
        "compaction, memory at the peak": expected("MB", limit=MEMORY_MB, lower_is_better=True),
        "compaction, memory above the level before": expected("MiB", limit=80, lower_is_better=True),
        "object in memory, short key": expected("B", lower_is_better=True),
        "object on a tier, short key": expected("B", limit=180, lower_is_better=True),
        "object in memory and on a tier, short key": expected("B", limit=200, lower_is_better=True),
        "log of a tier read back, of one of memory": expected("%", limit=130, lower_is_better=True),
        "1,000 clients that beat": expected("% of a core", limit=5, lower_is_better=True),
        **scale_status.expectations(expected),
        **scale_pool.expectations(expected, MEMORY_MB),
    }


def _told(programs, name, *arguments):
    asked = [str(part) for part in (programs / name, *arguments, "--json")]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise RigError(f"{' '.join(asked)} ended with {told.returncode}: {told.stderr.strip()[-400:]}")
    return json.loads(told.stdout)


def _built():
    """The folder of the measuring programs, and of the master that one of them starts."""
    built = subprocess.run(
        ["cargo", "build", "--quiet", "--release", "--locked", "-p", "mooncake-scale", "-p", "mooncake-cli"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        raise RigError(f"mooncake-scale is not built: {built.stderr.strip()[-400:]}")
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
