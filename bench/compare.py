"""Measures this pool beside the published Mooncake wheel, and both beside the machine's own limits.

    python bench/compare.py [--quick] [--cells data,tcp,engines,...] [--json FILE]

Run with the interpreter of an environment that holds our wheel and numpy. The
rival gets an environment of its own under target/bench. Implementations are
measured in turn, repeat by repeat, and the table shows medians: figures of
different runs, or of different machines, do not compare.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import floors
import rival
from cells import Session, expectations
from rig import ROOT, Implementation, RigError

OURS, TCP, RIVAL = "ours", "ours-tcp", "rival"
# What can be asked for, in the order of a run: methods of a session.
PARTS = ("data", "tcp", "engines", "dummy", "processes", "memory", "engine_transfers", "proxy")
# Which implementations a part is for, if not for ours and the rival. The rival's only path is TCP.
MEASURED = {"tcp": (TCP,), "dummy": (OURS,), "engine_transfers": (OURS, TCP, RIVAL), "proxy": (OURS,)}


class Figures:
    """Every measured figure, by implementation and cell."""

    def __init__(self):
        self.all = {}
        self.failures = []

    def add(self, name, cell, value):
        self.all.setdefault(name, {}).setdefault(cell, []).append(value)

    def median(self, name, cell):
        values = self.all.get(name, {}).get(cell)
        return statistics.median(values) if values else None


def measure(options, implementations, figures):
    for repeat in range(options.repeats):
        print(f"repeat {repeat + 1} of {options.repeats}", flush=True)
        figures.add("floor", "memcpy", floors.memcpy_gbps())
        figures.add("floor", "loopback", floors.loopback_gbps(1 << 20))
        for part in options.cells:
            if part == "memory" and repeat > 0:
                continue
            for one in implementations:
                if one.name not in MEASURED.get(part, (OURS, RIVAL)):
                    continue
                begin = time.monotonic()
                session = Session(one, options.seconds, lambda c, v, n=one.name: figures.add(n, c, v), options.objects)
                try:
                    getattr(session, part)()
                except RigError as error:
                    figures.failures.append(f"{one.name}, {part}: {error}")
                    print(f"  {one.name} {part} FAILED: {error}", flush=True)
                else:
                    print(f"  {one.name} {part}: {time.monotonic() - begin:.0f} s", flush=True)


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
    parser.add_argument("--json", type=Path, default=ROOT / "target" / "bench" / "compare.json")
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 5)
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
    measure(options, implementations, figures)
    rows = judge(figures)
    print(markdown(rows))
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
    options.json.write_text(json.dumps(report, indent=1))
    print(f"all figures are in {options.json}")
    # A cell that misses its mark is a figure to look at, not a failed run; a cell without a figure is.
    return 1 if figures.failures else 0


if __name__ == "__main__":
    sys.exit(main())
