"""An earlier wheel of ours beside the one of today, in one run: its environment, and what of it is to be kept."""

import contextlib
import hashlib
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import proxy_cells

BEFORE, BEFORE_TCP = "before", "before-tcp"
# Of a timed cell, measured in turn: what a noisy neighbour takes for a tenth of a second, it takes from both.
SLICES = 8
# Of today's wheel against the earlier one, medians of one run. Other cells are shown without a verdict.
RATES = ("GB/s", "ops/s", "keys/s", "objects/s", "1/s")
RATE_KEPT = 0.95
LATENCIES = ("put 4 KiB, p50", "get 4 KiB, p50", "is_exist, p50")
LATENCY_KEPT = 1.05
# The yardstick's own figure is the same program's in both.
WITHOUT = (proxy_cells.PYTHON,)


class NoWheel(Exception):
    """Why the earlier wheel cannot be measured."""


def digest(wheel):
    return hashlib.sha256(Path(wheel).read_bytes()).hexdigest()


def prepare(wheel, folder, python):
    """An environment below `folder` with this wheel and what else is installed at `python`, made once per wheel.

    Returns its interpreter.
    """
    made = Path(folder) / f"wheel-{digest(wheel)[:12]}"
    theirs, whole = made / "bin" / "python", made / "whole"
    versions = "import numpy, aiohttp; print(f'numpy=={numpy.__version__}', f'aiohttp=={aiohttp.__version__}')"
    others = _run(python, "-c", versions)
    if not whole.exists() or whole.read_text() != others:
        shutil.rmtree(made, ignore_errors=True)
        _run(python, "-m", "venv", "--without-pip", made)
        # The runner's pip works on another environment: much quicker than installing pip there.
        install = [sys.executable, "-m", "pip", "--python", theirs, "install", "-q", "--disable-pip-version-check"]
        _run(*install, "--no-deps", wheel)
        _run(*install, *others.split())
        _run(theirs, "-c", "import numpy, mooncake.store")
        whole.write_text(others)
    return str(theirs)


def _run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise NoWheel(f"{' '.join(map(str, command))}: {done.stderr.strip()[-400:]}")
    return done.stdout.strip()


def implementations(python, today):
    """The earlier wheel's implementations, by the name of today's that each is measured beside."""
    return {
        one.name: replace(one, name=name, python=python) for one, name in zip(today, (BEFORE, BEFORE_TCP), strict=True)
    }


def in_turn(steps, order, failed):
    """Runs generators step by step in turn, in this order, each to its end; `failed` takes the name and the error of
    one that ends with an error of `Exception`, and the others go on without it."""
    running = {name: steps[name] for name in order}
    with contextlib.ExitStack() as stack:
        for one in running.values():
            stack.callback(one.close)
        while running:
            for name, one in list(running.items()):
                try:
                    next(one)
                except StopIteration:
                    del running[name]
                except Exception as error:
                    del running[name]
                    failed(name, error)


def kept(cell, unit, ratio):
    """What a cell's ratio to the earlier wheel has to be, and whether it is; twice None where it may be anything."""
    if cell in LATENCIES:
        return f"<= {LATENCY_KEPT}", ratio is not None and ratio <= LATENCY_KEPT
    if unit in RATES and cell not in WITHOUT:
        return f">= {RATE_KEPT}", ratio is not None and ratio >= RATE_KEPT
    return None, None


def ratio_of(ours, before):
    """Ours to the earlier wheel's: the median of the ratios of neighbours in time, if each sample has its neighbour.

    A machine that is fast for one half of a run and slow for the other has a median anywhere between.
    """
    if not ours or not all(before):
        return None
    if len(ours) == len(before):
        return statistics.median(one / other for one, other in zip(ours, before, strict=True))
    return statistics.median(ours) / statistics.median(before) if before else None


def judge(cells, figures, again=None):
    """One row per cell that was measured with both wheels; of `cells`, expectations by name.

    Where `again` has figures of a cell, those count.
    """
    rows = []
    for cell, expected in cells.items():
        names = ("ours-tcp", BEFORE_TCP) if cell.endswith(", TCP") else ("ours", BEFORE)
        counts = again if again and any(again.median(name, cell) is not None for name in names) else figures
        ours, before = (counts.median(name, cell) for name in names)
        if ours is None and before is None:
            continue
        ratio = ratio_of(*(counts.all.get(name, {}).get(cell, []) for name in names))
        # What the earlier wheel cannot do is compared with nothing.
        must, met = (None, None) if before is None else kept(cell, expected.unit, ratio)
        samples = min(len(counts.all.get(name, {}).get(cell, [])) for name in names)
        rows.append(
            {
                "cell": cell,
                "unit": expected.unit,
                "ours": ours,
                "before": before,
                "ratio": ratio,
                "samples": samples,
                "must": must,
                "met": met,
            }
        )
    return rows


def missed(rows):
    """The cells that are not what they have to be."""
    return [row["cell"] for row in rows if row["met"] is False]


def markdown(rows, short):
    lines = ["| cell | unit | ours | before | ratio | samples | must be | met |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        ratio = f"{row['ratio']:.3f}" if row["ratio"] is not None else "-"
        met = {None: "-", True: "yes", False: "**no**"}[row["met"]]
        lines.append(
            f"| {row['cell']} | {row['unit']} | {short(row['ours'])} | {short(row['before'])} | {ratio}"
            f" | {row['samples']} | {row['must'] or '-'} | {met} |"
        )
    return "\n".join(lines)
