"""Measures this pool beside the published Mooncake wheel, and both beside the machine's own limits.

    python bench/compare.py [--quick] [--cells data,tcp,engines,...] [--json FILE]
    python bench/compare.py --against WHEEL [--no-rival] ...

Run with the interpreter of an environment that holds our wheel and numpy. The
rival gets an environment of its own under target/bench. Implementations are
measured in turn, repeat by repeat, and the table shows medians: figures of
different runs, or of different machines, do not compare.

With --against, an earlier wheel of ours ("before") is measured in the same run.
Both pools are there at once and are measured in turn, an eighth of a cell at a
time; who is first changes from repeat to repeat, and a ratio is the median of
those of neighbours in time. The parts processes, memory and proxy measure the
whole host and are run one after the other. A second table says of each rate
whether it is at least 0.95 of the earlier wheel's, and of the p50 of put and
get of 4 KiB and of is_exist whether it is at most 1.05 of it. Cells that miss
are measured again with more repeats (--again), and those count. The exit status
is 1 if one still misses. `packaging/wheel_of.sh REVISION` makes and names the
wheel of an earlier revision:

    bench/run.sh --no-rival --against "$(packaging/wheel_of.sh 49e5191)"
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import against
import floors
from cells import Session, expectations
from floors import MEMCPY, STREAM
from rig import ROOT, Implementation

import rival
from pool import PoolError, free_port

OURS, TCP, RIVAL = "ours", "ours-tcp", "rival"
# The second rival, of the engine alone; by the best way that it finds, and by TCP.
NIXL, NIXL_TCP = "nixl", "nixl-tcp"
# What can be asked for, in the order of a run: methods of a session.
PARTS = ("data", "tcp", "engines", "dummy", "processes", "memory", "engine_transfers", "proxy", "tier", "kept", "scale")
# Which implementations a part is for, if not for ours and the rival. The rival's only path is TCP.
MEASURED = {
    "tcp": (TCP,),
    "dummy": (OURS,),
    "engine_transfers": (OURS, TCP, RIVAL, NIXL, NIXL_TCP),
    "proxy": (OURS,),
    "tier": (OURS, TCP, RIVAL),
    "kept": (OURS,),
    "scale": (OURS,),
}
# A row's ratios, by whom they are to.
RATIOS = {"rival": "ratio", "nixl": "ratio to nixl"}
# Parts that take long, and repeat by themselves what chance may spoil.
ONCE = ("memory", "scale")


class Figures:
    """Every measured figure, by implementation and cell."""

    def __init__(self):
        self.all = {}
        self.part_of = {}
        self.failures = []

    def add(self, name, cell, value, part=None):
        self.all.setdefault(name, {}).setdefault(cell, []).append(value)
        self.part_of[cell] = part

    def median(self, name, cell):
        values = self.all.get(name, {}).get(cell)
        return statistics.median(values) if values else None

    def floor(self, cell):
        """What the machine can do: of a stream the best that was seen, as it says what the kernel can do at all."""
        values = self.all.get("floor", {}).get(cell)
        return max(values) if values and cell == STREAM else self.median("floor", cell)


def measure(options, implementations, figures, beside=None, only=None):
    """All parts that are asked for, or the cells of `only`, so often.

    Each implementation is measured by itself, or in turn with the one of `beside` that goes by its name.
    """
    for repeat in range(options.repeats):
        print(f"repeat {repeat + 1} of {options.repeats}", flush=True)
        if only is None:
            _floors(figures)
        for part in options.cells:
            if part in ONCE and repeat > 0:
                continue
            for one in implementations:
                if one.name in MEASURED.get(part, (OURS, RIVAL)):
                    together = [one, *filter(None, [(beside or {}).get(one.name)])]
                    # Who is second finds the machine as the first has left it.
                    _part(options, part, together if repeat % 2 == 0 else together[::-1], figures, only)


def _floors(figures):
    figures.add("floor", MEMCPY, floors.memcpy_gbps())
    try:
        figures.add("floor", STREAM, floors.stream_gbps(floors.iperf3(), free_port()))
    except floors.NoFloor as reason:
        print(f"  {reason}", flush=True)


def _part(options, part, implementations, figures, only):
    """One repeat of a part, of one implementation or of two that are stepped in turn."""
    steps = {}
    for one in implementations:

        def record(cell, value, name=one.name):
            if only is None or cell in only:
                figures.add(name, cell, value, part)

        slices = against.SLICES if options.against else 1
        session = Session(one, options.seconds, record, options.objects, only, options.full, slices)
        steps[one.name] = getattr(session, part)()

    def failed(name, error):
        if not isinstance(error, PoolError):
            raise error
        figures.failures.append(f"{name}, {part}: {error}")
        print(f"  {name} {part} FAILED: {error}", flush=True)

    begin, before = time.monotonic(), len(figures.failures)
    against.in_turn(steps, list(steps), failed)
    if len(figures.failures) == before:
        print(f"  {' and '.join(steps)} {part}: {time.monotonic() - begin:.0f} s", flush=True)


def again(options, figures, implementations, beside, cells):
    """Measures these cells of both wheels once more, with more repeats."""
    only = frozenset(cells)
    wanted = {figures.part_of[cell] for cell in cells}
    parts = [part for part in PARTS if part in wanted]
    more = argparse.Namespace(**vars(options) | {"repeats": options.again, "cells": parts})
    print(f"again, {options.again} repeats: {'; '.join(cells)}", flush=True)
    found = Figures()
    ours = [one for one in implementations if one.name in beside]
    measure(more, ours, found, beside, only)
    return found


def judge(figures):
    """One row per cell: ours, the rivals, ratios to them, floor, share, what is expected and whether it is met."""
    rows = []
    for cell, expected in expectations().items():
        is_tcp = cell.endswith(", TCP")
        ours = figures.median(TCP if is_tcp else OURS, cell)
        # The rival has one path: its plain cell is its TCP cell.
        theirs = {
            "rival": figures.median(RIVAL, cell.removesuffix(", TCP")),
            "nixl": figures.median(NIXL_TCP if is_tcp else NIXL, cell),
        }
        row = {"cell": cell, "unit": expected.unit, "ours": ours, **theirs, "expected": [], "met": []}
        if ours is None and not any(theirs.values()):
            # Not of the parts that were asked for.
            continue
        if ours is None:
            rows.append(row)
            continue
        for name, value in theirs.items():
            bar = getattr(expected, name)
            ratio = row[RATIOS[name]] = ours / value if value else None
            if bar is None:
                continue
            row["expected"].append(f"{'<=' if expected.lower_is_better else '>='} {bar:g}x {name}")
            if ratio is not None:
                row["met"].append(ratio <= bar if expected.lower_is_better else ratio >= bar)
        if expected.floor:
            floor = figures.floor(expected.floor) or figures.median(TCP if is_tcp else OURS, expected.floor)
            row["floor"], row["floor_name"] = floor, expected.floor
            row["expected"].append(
                f"{'<=' if expected.lower_is_better else '>='} {expected.share:.0%} of {expected.floor}"
            )
            if floor:
                row["share"] = share = ours / floor
                row["met"].append(share <= expected.share if expected.lower_is_better else share >= expected.share)
        if expected.limit is not None:
            sign = "<=" if expected.lower_is_better else ">="
            row["expected"].append(f"{sign} {expected.limit:,g} {expected.unit}".strip())
            row["met"].append(ours <= expected.limit if expected.lower_is_better else ours >= expected.limit)
        if expected.any_of and row["met"]:
            row["expected"], row["met"] = [" or ".join(row["expected"])], [any(row["met"])]
        rows.append(row)
    return rows


def short(value):
    if value is None:
        return "-"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def markdown(rows):
    lines = [
        "| cell | unit | ours | rival | ratio | nixl | ratio | floor | share | expected | met |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        met = "-" if not row["met"] else "yes" if all(row["met"]) else "**no**"
        share = f"{row['share']:.0%}" if row.get("share") is not None else "-"
        to_rival, to_nixl = (f"{row[ratio]:.2f}" if row.get(ratio) is not None else "-" for ratio in RATIOS.values())
        lines.append(
            f"| {row['cell']} | {row['unit']} | {short(row['ours'])} | {short(row['rival'])} | {to_rival}"
            f" | {short(row['nixl'])} | {to_nixl}"
            f" | {short(row.get('floor'))} | {share} | {', '.join(row['expected'])} | {met} |"
        )
    return "\n".join(lines)


def parts(text):
    """The parts that a list with commas names."""
    wanted = [part.strip() for part in text.split(",")]
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no such cells: {', '.join(map(repr, unknown))}; there are {', '.join(PARTS)}"
        )
    return wanted


def wheel(text):
    """The path of a wheel that is there."""
    path = Path(text).resolve()
    if not path.is_file() or path.suffix != ".whl":
        raise argparse.ArgumentTypeError(
            f"{text} is no wheel; `packaging/wheel_of.sh REVISION` makes one of an earlier revision"
        )
    return path


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short cells, once unless --repeats says otherwise")
    parser.add_argument("--cells", type=parts, default=list(PARTS), help=f"of {','.join(PARTS)}; all by default")
    parser.add_argument("--repeats", type=int, help="5, with --quick 1; an even number with --against")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a timed cell")
    parser.add_argument("--objects", type=int, default=200_000, help="objects of the memory cell")
    parser.add_argument(
        "--full",
        action="store_true",
        help="the largest pools: 10 M objects in scale, 32 GiB in tier, 8 GiB in kept; long, and much memory and disk",
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment with our wheel")
    parser.add_argument("--rival-python", help="interpreter of an environment with the rival's wheel")
    parser.add_argument("--nixl-python", help="the same with NIXL's, the engine's second rival")
    parser.add_argument("--packages", help="a folder with torch, for the tensor cells")
    parser.add_argument("--no-rival", action="store_true")
    parser.add_argument("--against", type=wheel, metavar="WHEEL", help="an earlier wheel of ours, measured in turn")
    parser.add_argument(
        "--again", type=int, metavar="N", help="repeats of a cell that misses with --against: 16, with --quick none"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "target" / "bench" / "compare.json")
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 5)
    if options.again is None:
        options.again = 0 if options.quick else 16
    if options.against:
        # Whichever of two is first in a repeat touches its memory first: each is so as often as the other.
        options.repeats += options.repeats % 2
        options.again += options.again % 2
    if options.quick:
        options.seconds = min(options.seconds, 0.2)
    return options


def rivals(options, packages):
    """Those that there are; of the others it is said why they are not there."""
    if options.no_rival:
        print("no rival in this run: switched off", flush=True)
        return []
    found, folder = [], ROOT / "target" / "bench"
    try:
        theirs = options.rival_python or rival.prepare(folder / "rival")
        found.append(Implementation(RIVAL, theirs, packages))
    except rival.NoRival as reason:
        print(f"no rival in this run: {reason}", flush=True)
    if "engine_transfers" in options.cells:
        try:
            theirs = options.nixl_python or rival.prepare(folder / "nixl", rival.NIXL)
            worker = {"engine_worker": "nixl_worker.py"}
            found.append(Implementation(NIXL, theirs, **worker))
            found.append(Implementation(NIXL_TCP, theirs, {"UCX_TLS": "tcp,self"}, by_tcp=True, **worker))
        except rival.NoRival as reason:
            print(f"no NIXL in this run: {reason}", flush=True)
    return found


def main():
    options = parse()
    packages = {"BENCH_PACKAGES": options.packages} if options.packages else {}
    implementations = [
        Implementation(OURS, options.python, packages),
        Implementation(TCP, options.python, packages | {"MC_SHM": "0"}, by_tcp=True),
    ]
    beside = {}
    if options.against:
        try:
            python = against.prepare(options.against, ROOT / "target" / "bench", options.python)
        except against.NoWheel as reason:
            print(f"cannot measure against {options.against}: {reason}", file=sys.stderr)
            return 1
        beside = against.implementations(python, implementations)
        print(f"before: {options.against.name}, sha256 {against.digest(options.against)[:12]}", flush=True)
    implementations += rivals(options, packages)

    figures = Figures()
    begin, load = time.monotonic(), os.getloadavg()[0]
    measure(options, implementations, figures, beside)
    kept, more = [], None
    if beside:
        kept = against.judge(expectations(), figures)
        if options.again and (cells := against.missed(kept)):
            print(against.markdown(kept, short), flush=True)
            more = again(options, figures, implementations, beside, cells)
            figures.failures += more.failures
            kept = against.judge(expectations(), figures, more)
    rows = judge(figures)
    print(markdown(rows))
    if kept:
        print(f"\n{against.markdown(kept, short)}")
    print("\nfloors, GB/s: " + ", ".join(f"{c} {short(figures.floor(c))}" for c in figures.all["floor"]))
    print(f"{time.monotonic() - begin:.0f} s, {os.cpu_count()} CPUs, load {load:.1f} -> {os.getloadavg()[0]:.1f}")
    for failure in figures.failures:
        print(f"FAILED: {failure}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "load": [load, os.getloadavg()[0]],
        "repeats": options.repeats,
        "seconds": options.seconds,
        "rows": rows,
        "figures": figures.all,
        "failures": figures.failures,
    }
    if beside:
        report["against"] = {
            "wheel": options.against.name,
            "sha256": against.digest(options.against),
            "rows": kept,
            "missed": against.missed(kept),
            "again": more.all if more else {},
        }
    options.json.write_text(json.dumps(report, indent=1))
    print(f"all figures are in {options.json}")
    if kept:
        missed = against.missed(kept)
        print(f"against {options.against.name}: " + (f"MISSED: {'; '.join(missed)}" if missed else "all kept"))
    # A cell that misses its mark is a figure to look at, not a failed run; a cell without a figure is, and one that
    # has become slower.
    return 1 if figures.failures or against.missed(kept) else 0


if __name__ == "__main__":
    sys.exit(main())
