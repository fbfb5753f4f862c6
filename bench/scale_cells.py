"""The cells of a pool of millions of objects: how long one operation keeps all others from the master's core."""

import json
import os
import subprocess

from rig import ROOT, RigError

OBJECTS = 10_000_000
# The longest that anybody has to wait for the core, microseconds of the holder's time on its processor.
LONGEST_US = 1_000
# What clients of this version do not send, and the control: no hold at all, but what the machine adds to one.
OLDER_CLIENT, MACHINE = "of an older client", "(the machine"


def measure(record, runs):
    """Builds the measuring program, runs it and prints what each operation took; the longest are the cells.

    Every bad case is played that often, and the longest hold of an operation is what each of the runs had at the same
    place, which takes out a moment in which the machine itself stood still. The longest of any run is beside it.
    """
    program = _built()
    asked = [program, "--objects", str(OBJECTS), "--runs", str(runs), "--json"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise RigError(f"{' '.join(map(str, asked))} ended with {told.returncode}: {told.stderr.strip()[-400:]}")
    figures = json.loads(told.stdout)
    print(f"    {'us':<52} {'holds':>6} {'mean':>7} {'99.9 %':>7} {'longest':>7} {'single':>7} {'waited':>7}")
    for figure in figures:
        longer = "" if figure["cpu_us"] <= LONGEST_US else "  longer than it may"
        print(
            f"    {figure['operation']:<52} {figure['count']:>6} {figure['mean_us']:>7,.0f} {figure['p999_us']:>7,.0f}"
            f" {figure['cpu_us']:>7,.0f} {figure['single_us']:>7,.0f} {figure['wall_us']:>7,.0f}{longer}",
            flush=True,
        )
    for cell, value in cells(figures).items():
        record(cell, value)


def cells(figures):
    """What of the figures is held to a bar: the holds of clients of this version, not the machine's own."""
    held = [figure for figure in figures if not is_beside(figure["operation"])]
    return {
        "longest hold of the core, 10 M objects": max(figure["cpu_us"] for figure in held),
        "operations that hold it longer": sum(figure["cpu_us"] > LONGEST_US for figure in held),
    }


def is_beside(operation):
    return OLDER_CLIENT in operation or operation.startswith(MACHINE)


def expectations(expected):
    return {
        "longest hold of the core, 10 M objects": expected("us", limit=LONGEST_US, lower_is_better=True),
        "operations that hold it longer": expected("", limit=0, lower_is_better=True),
    }


def _built():
    built = subprocess.run(
        ["cargo", "build", "--quiet", "--release", "--locked", "-p", "mooncake-scale"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        raise RigError(f"mooncake-scale is not built: {built.stderr.strip()[-400:]}")
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / "mooncake-scale"
