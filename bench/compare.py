"""Measures this pool beside the published Mooncake wheel, and both beside the machine's own limits.

    python bench/compare.py [--quick] [--cells data,tcp,engines,...] [--json FILE]
    python bench/compare.py --against WHEEL [--no-rival] ...

Run with the interpreter of an environment that holds our wheel and numpy. The
rival gets an environment of its own under target/bench. Implementations are
measured in turn, repeat by repeat, and the table shows medians: figures of
different runs, or of different machines, do not compare.

With --against, an earlier wheel of ours ("before") is measured in the same run.
Both pools are there at once and are measured cell by cell in turn; who is first
changes from repeat to repeat. The parts processes, memory and proxy measure the
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
import rival
from cells import Session, expectations
from rig import ROOT, Implementation, RigError

OURS, TCP, RIVAL = "ours", "ours-tcp", "rival"
# What can be asked for, in the order of a run: methods of a session.
PARTS = ("data", "tcp", "engines", "dummy", "processes", "memory", "engine_transfers", "proxy", "scale")
# Which implementations a part is for, if not for ours and the rival. The rival's only path is TCP.
MEASURED = {"tcp": (TCP,), "dummy": (OURS,), "engine_transfers": (OURS, TCP, RIVAL), "proxy": (OURS,), "scale": (OURS,)}
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


def measure(options, implementations, figures, beside=None, only=None):
    """All parts that are asked for, or the cells of `only`, so often.

    Each implementation is measured by itself, or in turn with the one of `beside` that goes by its name.
    """
    for repeat in range(options.repeats):
        print(f"repeat {repeat + 1} of {options.repeats}", flush=True)
        if only is None:
            figures.add("floor", "memcpy", floors.memcpy_gbps())
            figures.add("floor", "loopback", floors.loopback_gbps(1 << 20))
        for part in options.cells:
            if part in ONCE and repeat > 0:
                continue
            for one in implementations:
                if one.name in MEASURED.get(part, (OURS, RIVAL)):
                    together = [one, *filter(None, [(beside or {}).get(one.name)])]
                    # Who is second finds the machine as the first has left it.
                    _part(options, part, together if repeat % 2 == 0 else together[::-1], figures, only)


def _part(options, part, implementations, figures, only):
    """One repeat of a part, of one implementation or of two that are stepped in turn."""
    steps = {}
    for one in implementations:

        def record(cell, value, name=one.name):
            if only is None or cell in only:
                figures.add(name, cell, value, part)

        steps[one.name] = getattr(Session(one, options.seconds, record, options.objects, only), part)()

    def failed(name, error):
        if not isinstance(error, RigError):
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
    """One row per cell: ours, rival, ratio, floor, share, what is expected and whether it is met."""
    rows = []
    for cell, expected in expectations().items():
        is_tcp = cell.endswith(", TCP")
        ours = figures.median(TCP if is_tcp else OURS, cell)
        # The rival has one path: its plain cell is its TCP cell.
        theirs = figures.median(RIVAL, cell.removesuffix(", TCP"))
        row = {"cell": cell, "unit": expected.unit, "ours": ours, "rival": theirs, "expected": [], "met": []}
        if ours is None and theirs is None:
            # Not of the parts that were asked for.
            continue
        if ours is None:
            rows.append(row)
            continue
        if theirs:
            row["ratio"] = ours / theirs
        if expected.rival is not None:
            sign = "<=" if expected.lower_is_better else ">="
            row["expected"].append(f"{sign} {expected.rival:g}x rival")
            if theirs:
                met = row["ratio"] <= expected.rival if expected.lower_is_better else row["ratio"] >= expected.rival
                row["met"].append(met)
        if expected.floor:
            floor = figures.median("floor", expected.floor) or figures.median(OURS, expected.floor)
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
        "| cell | unit | ours | rival | ratio | floor | share | expected | met |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        met = "-" if not row["met"] else "yes" if all(row["met"]) else "**no**"
        share = f"{row['share']:.0%}" if row.get("share") is not None else "-"
        ratio = f"{row['ratio']:.2f}" if row.get("ratio") is not None else "-"
        lines.append(
            f"| {row['cell']} | {row['unit']} | {short(row['ours'])} | {short(row['rival'])} | {ratio}"
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
    parser.add_argument("--repeats", type=int, help="5, with --quick 1")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a timed cell")
    parser.add_argument("--objects", type=int, default=200_000, help="objects of the memory cell")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment with our wheel")
    parser.add_argument("--rival-python", help="interpreter of an environment with the rival's wheel")
    parser.add_argument("--packages", help="a folder with torch, for the tensor cells")
    parser.add_argument("--no-rival", action="store_true")
    parser.add_argument("--against", type=wheel, metavar="WHEEL", help="an earlier wheel of ours, measured in turn")
    parser.add_argument(
        "--again", type=int, metavar="N", help="repeats of a cell that misses with --against: 15, with --quick none"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "target" / "bench" / "compare.json")
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 5)
    if options.again is None:
        options.again = 0 if options.quick else 15
    if options.quick:
        options.seconds = min(options.seconds, 0.2)
    return options


def main():
    options = parse()
    flags = ["--wal_dir={folder}/state"]
    packages = {"BENCH_PACKAGES": options.packages} if options.packages else {}
    implementations = [
        Implementation(OURS, options.python, packages, flags),
        Implementation(TCP, options.python, packages | {"MC_SHM": "0"}, flags),
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
    why_alone = "switched off"
    if not options.no_rival:
        try:
            theirs = options.rival_python or rival.prepare(ROOT / "target" / "bench" / "rival")
            implementations.append(Implementation(RIVAL, theirs, packages))
        except rival.NoRival as reason:
            why_alone = str(reason)
    if len(implementations) == 2:
        print(f"no rival in this run: {why_alone}", flush=True)

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
    print("\nfloors, GB/s: " + ", ".join(f"{c} {short(figures.median('floor', c))}" for c in figures.all["floor"]))
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
