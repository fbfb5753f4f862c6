"""Replays a slice of a published request trace through a pool, with faults.

A master, two storage nodes, two prefill engines and a decode engine run as
separate processes. For each request a prefill engine looks the prompt's
512-token blocks up with one call, loads the prefix that it finds and stores
what is missing; the decode engine then loads the same blocks. Half-way a
storage node and then the master are killed with SIGKILL and started again
while traffic goes on. Every block's bytes derive from its hash, and every byte
that comes back is compared.

    make demo            or, with the wheel, numpy and rich installed:  PYTHONPATH=testing python demo/replay.py

Exit status 0 only if bytes were verified, none was wrong, and the restarted
master still knew its objects.
"""

import argparse
import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path

from blocks import key_of
from faults import Faults

from pool import Installation, Pool, PoolError, Program

HERE = Path(__file__).resolve().parent


class Engines:
    """The engine processes, and which requests each has in hand."""

    # A second request waits in the pipe so that an engine never idles.
    IN_HAND = 2

    def __init__(self, options, pool, folder):
        self.selector = selectors.DefaultSelector()
        self.programs = {}
        self.in_hand = {}
        self.answered_at = {}
        self.partial = {}
        roles = [("prefill", f"prefill-{n}") for n in range(options.prefill)] + [("decode", "decode-0")]
        for role, name in roles:
            program = Program(
                name,
                [
                    sys.executable,
                    HERE / "engine.py",
                    f"--role={role}",
                    f"--master={pool.master.addr}",
                    f"--block-bytes={options.block_kib << 10}",
                    f"--slots={options.longest}",
                    f"--seed={options.seed}",
                ],
                folder / f"{name}.log",
                ends_with_parent=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ).start()
            self.programs[name] = program
            self.in_hand[name] = 0
            self.partial[name] = b""
            self.selector.register(program.process.stdout, selectors.EVENT_READ, name)
        for name in self.programs:
            while not self._read(name):
                pass

    def _read(self, name):
        """The whole answers among what has arrived from an engine; waits for some bytes."""
        program = self.programs[name]
        arrived = os.read(program.process.stdout.fileno(), 1 << 20)
        if not arrived:
            raise PoolError(f"engine {name} ended:\n{program.last_lines()}")
        self.answered_at[name] = time.monotonic()
        *lines, self.partial[name] = (self.partial[name] + arrived).split(b"\n")
        return [json.loads(line) for line in lines]

    def idle(self, role):
        """Engines of a role that can take a request, the least busy first."""
        names = [n for n in self.programs if n.startswith(role) and self.in_hand[n] < self.IN_HAND]
        return sorted(names, key=self.in_hand.get)

    def busy(self):
        return any(self.in_hand.values())

    def give(self, name, request):
        if not self.in_hand[name]:
            self.answered_at[name] = time.monotonic()
        self.in_hand[name] += 1
        pipe = self.programs[name].process.stdin
        pipe.write(json.dumps(request).encode() + b"\n")
        pipe.flush()

    def answers(self, seconds):
        """Yields (engine, answer) for what arrives within `seconds`."""
        for ready, _ in self.selector.select(seconds):
            name = ready.data
            for answer in self._read(name):
                self.in_hand[name] -= 1
                yield name, answer
        for name, since in self.answered_at.items():
            if self.in_hand[name] and time.monotonic() - since > 30:
                raise PoolError(f"engine {name} has not answered for 30 s:\n{self.programs[name].last_lines()}")

    @contextlib.contextmanager
    def held(self):
        """Stands all engines still for a moment: nothing is put, and so nothing evicted, inside."""
        for program in self.programs.values():
            program.process.send_signal(signal.SIGSTOP)
        # What they had asked of the master is done by then.
        time.sleep(0.05)
        try:
            yield
        finally:
            for program in self.programs.values():
                program.process.send_signal(signal.SIGCONT)

    def stop(self):
        for program in self.programs.values():
            program.process.stdin.close()
        for program in self.programs.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.process.wait(5)
            program.kill()


class Totals:
    """What the engines reported, added up."""

    def __init__(self):
        self.requests = 0
        self.by_role = {"prefill": Counter(), "decode": Counter()}
        self.errors = Counter()
        self.last_error = ""
        self.lookups, self.loads, self.puts = [], [], []

    def add(self, name, answer):
        counts = Counter(answer["counts"])
        self.by_role[name.rsplit("-", 1)[0]] += counts
        self.errors += Counter(answer["errors"])
        self.last_error = answer["last_error"] or self.last_error
        self.lookups.append(answer["lookup_s"])
        if counts["loaded"]:
            self.loads.append(answer["load_s"])
        if counts["stored"]:
            self.puts.append(answer["put_s"])

    def sum(self, what):
        return sum(counts[what] for counts in self.by_role.values())


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def human(count):
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} B"


def rate(count, seconds):
    return f"{count / 1e9 / seconds:.2f} GB/s" if seconds else "-"


def milliseconds(values):
    return f"{quantile(values, 0.5) * 1e3:.2f} / {quantile(values, 0.99) * 1e3:.2f} ms"


def read_trace(path, count, longest):
    """The requests to replay: number and block hashes of each."""
    requests = []
    with open(path) as lines:
        for line in lines:
            blocks = json.loads(line)["hash_ids"]
            if blocks and len(blocks) <= longest:
                requests.append({"number": len(requests), "blocks": blocks})
            if len(requests) == count:
                break
    return requests


def replay(options, console, pool, engines, requests):
    """Drives all requests through the engines; returns the totals and the faults' outcome."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    totals = Totals()
    waiting = {"prefill": deque(requests), "decode": deque()}
    faults = Faults(pool, engines, pool.nodes[1], lambda text: console.print(f"  {text}"))
    end = time.monotonic() + options.limit
    columns = [
        TextColumn("replay"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    ]
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("replay", total=len(requests), now="")
        while waiting["prefill"] or waiting["decode"] or engines.busy() or not faults.finished:
            if time.monotonic() > end:
                raise PoolError(f"not finished after {options.limit} s ({totals.requests} of {len(requests)} requests)")
            for role, queue in waiting.items():
                for name in engines.idle(role):
                    if queue:
                        engines.give(name, queue.popleft())
            for name, answer in engines.answers(0.02):
                totals.add(name, answer)
                faults.stored(key_of(block) for block in answer["stored"])
                if name.startswith("prefill"):
                    waiting["decode"].append(requests[answer["number"]])
                else:
                    totals.requests += 1
                    verified, wrong = totals.sum("verified"), totals.sum("wrong")
                    progress.update(
                        bar, completed=totals.requests, now=f"{human(verified)} verified, {wrong} wrong bytes"
                    )
            if totals.requests >= len(requests) // 2:
                faults.start()
            faults.step()
    return totals, faults.outcome


def sweep(engines, requests, longest):
    """Reads every object that the pool still has, so that nothing it holds goes unchecked."""
    blocks = sorted({block for request in requests for block in request["blocks"]})
    batches = deque(
        {"number": number, "blocks": blocks[at : at + longest]}
        for number, at in enumerate(range(0, len(blocks), longest))
    )
    totals = Totals()
    while batches or engines.busy():
        for name in engines.idle("decode"):
            if batches:
                engines.give(name, batches.popleft())
        for name, answer in engines.answers(0.02):
            totals.add(name, answer)
    return totals


def table(options, pool, totals, outcome, swept, seconds):
    from rich.table import Table

    prefill, decode = totals.by_role["prefill"], totals.by_role["decode"]
    wrong = totals.sum("wrong") + swept.sum("wrong")
    errors = ", ".join(f"{what} x {count}" for what, count in sorted(totals.errors.items())) or "none"
    rows = [
        ("requests", f"{totals.requests:,} in {seconds:.1f} s"),
        ("blocks looked up by prefill engines", f"{prefill['asked']:,} of {options.block_kib} KiB"),
        ("block hits (prefix)", f"{prefill['hits']:,} ({100 * prefill['hits'] / max(1, prefill['asked']):.1f} %)"),
        ("blocks read by the decode engine", f"{decode['hits']:,}"),
        ("stored", f"{human(totals.sum('stored'))}, {rate(totals.sum('stored'), sum(totals.puts))} inside the calls"),
        ("loaded", f"{human(totals.sum('loaded'))}, {rate(totals.sum('loaded'), sum(totals.loads))} inside the calls"),
        ("p50 / p99 of a request's look-up", milliseconds(totals.lookups)),
        ("p50 / p99 of a request's load", milliseconds(totals.loads)),
        ("p50 / p99 of a request's put", milliseconds(totals.puts)),
        ("objects known before the master was killed", f"{outcome.known_before:,}"),
        (
            "objects still known after its restart",
            f"{outcome.known_after:,} after {outcome.known_after_s:.1f} s; {outcome.evicted_since:,} evicted by then",
        ),
        ("objects read in the final sweep", f"{swept.by_role['decode']['hits']:,}"),
        ("errors seen by the engines", errors),
        ("bytes verified", f"{totals.sum('verified') + swept.sum('verified'):,}"),
        ("wrong bytes", str(wrong)),
        ("metrics", f"{pool.master.url}/metrics"),
    ]
    shown = Table(title=f"trace replay, seed {options.seed}", show_header=False)
    shown.add_column()
    shown.add_column(overflow="fold")
    for name, value in rows:
        style = ("green" if value == "0" else "bold red") if name == "wrong bytes" else None
        shown.add_row(name, value, style=style)
    return shown


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default=HERE / "trace" / "conversation_excerpt.jsonl")
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--longest", type=int, default=32, help="leave prompts of more blocks out")
    parser.add_argument("--block-kib", type=int, default=256, help="bytes of a 512-token block")
    parser.add_argument("--node-mib", type=int, default=896, help="memory of each storage node")
    parser.add_argument("--prefill", type=int, default=2, help="prefill engines")
    parser.add_argument("--seed", type=int, default=20250221)
    parser.add_argument("--limit", type=float, default=100, help="give up after so many seconds")
    parser.add_argument(
        "--programs", default=Path(sys.executable).parent, help="folder of mooncake_master, mooncake_client"
    )
    parser.add_argument("--hold", action="store_true", help="keep the pool running at the end, until Enter")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and state")
    return parser.parse_args()


def run(options, console, folder):
    requests = read_trace(options.trace, options.requests, options.longest)
    distinct = len({block for request in requests for block in request["blocks"]})
    console.print(
        f"{len(requests):,} requests, {distinct:,} distinct blocks of {options.block_kib} KiB"
        f" = {human(distinct * options.block_kib << 10)}, into 2 x {options.node_mib} MiB; seed {options.seed}"
    )
    pool = Pool(folder)
    engines = None
    try:
        pool.begin(nodes=2, node_bytes=options.node_mib << 20, installation=Installation(options.programs))
        pool.wait_segments(2)
        pool.wait_populated()
        master = pool.master
        console.print(f"master on {master.addr}, metrics on {master.url}/metrics, logs in {folder}")
        engines = Engines(options, pool, folder)
        started = time.monotonic()
        totals, outcome = replay(options, console, pool, engines, requests)
        seconds = time.monotonic() - started
        swept = sweep(engines, requests, options.longest)
        console.print(table(options, pool, totals, outcome, swept, seconds))
        if totals.last_error:
            console.print(f"last error that an engine saw: {totals.last_error}")
        summary = pool.ask("/metrics/summary")
        if summary:
            console.print(f"master: {summary.strip()}")
        if options.hold:
            console.input("the pool keeps running; Enter ends it ")
        problems = []
        if totals.sum("wrong") + swept.sum("wrong"):
            problems.append("wrong bytes were read")
        if not totals.sum("verified"):
            problems.append("nothing was verified")
        lost = outcome.known_before - outcome.known_after - outcome.evicted_since
        if not outcome.known_after or lost > 0:
            problems.append(f"the restarted master had forgotten {lost} objects that it did not evict")
        if not swept.by_role["decode"]["hits"]:
            problems.append("no object could be read at the end")
        return problems
    finally:
        if engines is not None:
            engines.stop()
        pool.end()


def main():
    options = parse()
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        sys.exit("the demo needs the package rich: pip install -r demo/requirements.txt")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    # A terminated demo must not leave its processes behind: `finally` blocks run on SystemExit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="mooncake-demo-"))
    keep = options.keep
    try:
        problems = run(options, console, folder)
    except PoolError as error:
        keep, problems = True, [str(error)]
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    for problem in problems:
        console.print(f"FAILED: {problem}", style="bold red", markup=False)
    if problems and keep:
        console.print(f"logs are in {folder}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
