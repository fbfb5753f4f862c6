"""Replays the same requests twice: against memory alone, and with a disk behind it.

Memory has room for a twentieth of what the requests store, the disk for half of
it. Half-way the storage node is killed with SIGKILL and started again: without
a disk its cache is gone, with one it is back. A prefill engine looks up, loads
and stores as in replay.py, and compares every byte. The table shows what share
of the blocks was found, the picture how that went over time.

    make demo            or, with the wheel, numpy and rich installed:  PYTHONPATH=testing python demo/tier.py

Exit status 0 only if no byte was wrong and the disk found what memory could not.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import chart
from replay import HERE, Engines, Totals, human, read_trace

from pool import Installation, Pool, PoolError

# What storage nodes are given in.
STEP = 16 << 20
# Requests whose hits are one point of the picture.
WINDOW = 50


class Run:
    """What one replay came to."""

    def __init__(self, name):
        self.name = name
        self.totals = Totals()
        # Of each window, hits and blocks asked for.
        self.windows = []
        self.killed_at = None
        self.known_before = self.known_after = 0
        self.back_s = 0.0
        self.lost_unwritten = 0

    @property
    def share(self):
        counts = self.totals.by_role["prefill"]
        return 100 * counts["hits"] / max(1, counts["asked"])

    def add(self, name, answer):
        self.totals.add(name, answer)
        self.totals.requests += 1
        at = answer["number"] // WINDOW
        while len(self.windows) <= at:
            self.windows.append([0, 0])
        self.windows[at][0] += answer["counts"].get("hits", 0)
        self.windows[at][1] += answer["counts"]["asked"]


def kill_and_start(pool, run, console):
    """The node ends without a word and comes back; how many objects it has brought with it."""
    node = pool.nodes[0]
    run.known_before = len(pool.keys() or ())
    node.kill()
    began = time.monotonic()
    node.start()
    known = -1
    while time.monotonic() - began < 10:
        now = len(pool.keys() or ())
        if now == known:
            break
        known, run.back_s = now, time.monotonic() - began
        time.sleep(0.25)
    run.known_after = known
    console.print(f"  SIGKILL {node.name}, started again: {known:,} of {run.known_before:,} objects are there")


def replay(options, console, requests, memory, disk):
    """All requests through one engine, one after the other."""
    run = Run("memory and disk" if disk else "memory alone")
    folder = Path(tempfile.mkdtemp(prefix="mooncake-demo-"))
    pool, engines = Pool(folder), None
    try:
        flags, env = [], {}
        if disk:
            where = Path(options.disk or folder) / "tier"
            flags = ["--enable_offload"]
            env = {
                "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(where),
                "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(disk),
            }
        pool.begin(node_bytes=memory, node_flags=flags, env=env, installation=Installation(options.programs))
        pool.wait_segments(1)
        pool.wait_populated()
        engines = Engines(options, pool, folder)
        [engine] = engines.idle("prefill")
        from rich.progress import track

        for request in track(requests, description=run.name.ljust(16), console=console, transient=True):
            if request["number"] == len(requests) // 2:
                run.killed_at = request["number"]
                kill_and_start(pool, run, console)
            engines.give(engine, request)
            while engines.in_hand[engine]:
                for name, answer in engines.answers(0.5):
                    run.add(name, answer)
        run.lost_unwritten = pool.metric("mooncake_evicted_unwritten_objects_total")
        return run
    finally:
        if engines is not None:
            engines.stop()
        pool.end()
        if disk and options.disk:
            shutil.rmtree(Path(options.disk) / "tier", ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def table(runs, distinct_bytes):
    from rich.table import Table

    shown = Table(title="the same requests without and with a disk")
    shown.add_column("")
    for run in runs:
        shown.add_column(run.name, justify="right")

    def row(name, of):
        shown.add_row(name, *(of(run) for run in runs))

    half = len(runs[0].windows) // 2

    def share(windows):
        return f"{100 * sum(hits for hits, _ in windows) / max(1, sum(asked for _, asked in windows)):.1f} %"

    row("blocks found (prefix)", lambda run: f"{run.share:.1f} %")
    row("before the node was killed", lambda run: share(run.windows[:half]))
    row("after it came back", lambda run: share(run.windows[half:]))
    row("objects before, and back with the node", lambda run: f"{run.known_before:,}, {run.known_after:,}")
    row("seconds until they were back", lambda run: f"{run.back_s:.1f}" if run.known_after else "-")
    row("evicted before they were on the disk", lambda run: f"{run.lost_unwritten:,}" if run is runs[1] else "-")
    row("bytes verified", lambda run: human(run.totals.sum("verified")))
    row("wrong bytes", lambda run: str(run.totals.sum("wrong")))
    shown.caption = f"{human(distinct_bytes)} of distinct blocks"
    return shown


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default=HERE / "trace" / "conversation_excerpt.jsonl")
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--longest", type=int, default=32, help="leave prompts of more blocks out")
    parser.add_argument("--block-kib", type=int, default=256, help="bytes of a 512-token block")
    parser.add_argument("--memory", type=float, default=0.05, help="share of the distinct blocks that memory holds")
    parser.add_argument("--disk-share", type=float, default=0.5, help="share of them that the disk holds")
    parser.add_argument("--disk", help="a folder on the disk to be used; the one of temporary files otherwise")
    parser.add_argument("--svg", default=HERE.parent / "target" / "demo" / "tier.svg", help="where the picture goes")
    parser.add_argument("--seed", type=int, default=20250221)
    parser.add_argument(
        "--programs", default=Path(sys.executable).parent, help="folder of mooncake_master, mooncake_client"
    )
    options = parser.parse_args()
    options.prefill = 1
    return options


def main():
    options = parse()
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        sys.exit("the demo needs the package rich: pip install -r demo/requirements.txt")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    requests = read_trace(options.trace, options.requests, options.longest)
    distinct = len({block for request in requests for block in request["blocks"]}) * options.block_kib << 10
    memory = max(STEP, int(distinct * options.memory) // STEP * STEP)
    disk = max(128 << 20, int(distinct * options.disk_share))
    console.print(
        f"\n{len(requests):,} requests once more: {human(distinct)} of blocks into {human(memory)} of memory,"
        f" then with {human(disk)} of disk behind it"
    )
    try:
        runs = [replay(options, console, requests, memory, room) for room in (None, disk)]
    except PoolError as error:
        console.print(f"FAILED: {error}", style="bold red", markup=False)
        return 1
    console.print(table(runs, distinct))
    picture = Path(options.svg)
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(
        chart.lines(
            title=f"Blocks found, of {human(distinct)}: {human(memory)} of memory, {human(disk)} of disk",
            series={run.name: [100 * hits / max(1, asked) for hits, asked in run.windows] for run in runs},
            step=WINDOW,
            x="requests",
            y="% of the blocks of a prompt",
            mark=(runs[0].killed_at, "node killed, started again"),
        )
    )
    console.print(f"the picture: {picture}")
    alone, both = runs
    problems = []
    if any(run.totals.sum("wrong") for run in runs):
        problems.append("wrong bytes were read")
    if not both.totals.sum("verified"):
        problems.append("nothing was verified")
    if both.share <= alone.share:
        problems.append(f"a disk found no more: {both.share:.1f} % beside {alone.share:.1f} %")
    if not both.known_after:
        problems.append("the node came back without its cache")
    for problem in problems:
        console.print(f"FAILED: {problem}", style="bold red", markup=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
