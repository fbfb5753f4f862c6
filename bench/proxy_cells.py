"""The proxy's cells: what it adds to a request, memory of many streams, requests a second beside one in Python.

The instances are mock ones that answer at once, so that a figure is the proxy's own. The proxy has one core, the load
and the instances have the others. Direct and proxied requests are sent in turn.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from rig import ROOT, RigError, memory_kib

from pool import HOST, Program, free_port

RATE = 500
STREAMS = 1_000
CLIENTS = 64
STREAM_S = 8
PYTHON = "Python proxy requests/s"
MEMORY = "proxy memory, 1,000 streams"
ADDED = ("direct", "proxy adds", "Python proxy adds")


def expectations(expected):
    """What each cell has to reach; `expected` makes one."""
    return {
        "proxy adds, p50": expected("us", limit=500, lower_is_better=True),
        "proxy adds, p99": expected("us", limit=5_000, lower_is_better=True),
        "direct, p50": expected("us"),
        "direct, p99": expected("us"),
        "Python proxy adds, p50": expected("us"),
        "Python proxy adds, p99": expected("us"),
        MEMORY: expected("MiB", limit=200, lower_is_better=True),
        "proxy requests/s": expected("1/s", floor=PYTHON, share=5),
        PYTHON: expected("1/s"),
    }


def measure(implementation, seconds, record, wants):
    """The cells that are wanted; `record` takes each figure."""
    load = _load_program()
    proxy_core, *other_cores = sorted(os.sched_getaffinity(0))
    if not other_cores:
        raise RigError("the proxy and its load need a core each")
    seconds = max(2.0, 6 * seconds)
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="mooncake-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)

        def start(name, command, cores, port=None):
            command = ["taskset", "-c", ",".join(map(str, cores)), *command]
            program = Program(name, command, folder / f"{name}.log", port, ends_with_parent=True)
            stack.callback(program.kill)
            return program.start(step=0.05)

        def ask(*arguments):
            command = ["taskset", "-c", ",".join(map(str, other_cores)), load, *arguments]
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RigError(f"{arguments}: {done.stderr}")
            result = json.loads(done.stdout)
            if result["failed"] or not result["count"]:
                raise RigError(f"{arguments}: {result}")
            return result

        mocks = []
        for name in ("prefill", "decode"):
            program = start(name, [load, "mock"], other_cores)
            mocks.append(_first_line(program))
        ours_port, python_port = free_port(), free_port()
        flags = [f"--port={ours_port}", "--model=tiny", "--prefill", mocks[0], "--decode", mocks[1]]
        ours = start("proxy", [implementation.programs / "mooncake_proxy", *flags], [proxy_core], ours_port)
        yardstick = [implementation.python, ROOT / "bench" / "python_proxy.py", python_port, *mocks]
        start("python-proxy", yardstick, [proxy_core], python_port)

        urls = {"direct": mocks[1], "proxy": f"{HOST}:{ours_port}", "Python proxy": f"{HOST}:{python_port}"}
        urls = {name: f"http://{where}/v1/completions" for name, where in urls.items()}
        if wants(*(f"{what}, {which}" for what in ADDED for which in ("p50", "p99"))):
            took = {name: [] for name in urls}
            for _ in range(3):
                for name, url in urls.items():
                    took[name].append(ask("paced", url, RATE, seconds / 2))
            for which in ("p50", "p99"):
                medians = {name: statistics.median(one[f"{which}_us"] for one in all_) for name, all_ in took.items()}
                record(f"direct, {which}", medians["direct"])
                for name in ("proxy", "Python proxy"):
                    record(f"{name} adds, {which}", medians[name] - medians["direct"])

        for name in ("proxy", "Python proxy"):
            record(f"{name} requests/s", ask("closed", urls[name], CLIENTS, seconds)["rate"])
        if not wants(MEMORY):
            return
        begin = time.monotonic()
        ask("streams", urls["proxy"], STREAMS, STREAM_S)
        if time.monotonic() - begin < STREAM_S / 2:
            raise RigError("the streams were not there at the same time")
        # Of the whole run, in which there were never more streams than these.
        record(MEMORY, memory_kib(ours.pid, "VmHWM") / 1024)


def _load_program():
    """Built where cargo is; it is part of no package."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    command = ["cargo", "build", "--quiet", "--release", "--locked", "-p", "mooncake-proxy", "--example", "proxy_load"]
    try:
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RigError(f"{' '.join(command)}: {getattr(error, 'stderr', error)}") from error
    return target / "release" / "examples" / "proxy_load"


def _first_line(program):
    program.wait_ready(lambda: program.output().endswith("\n"), 10)
    return program.output().split("\n")[0]
