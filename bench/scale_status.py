"""What the page of a master of a large pool costs: `GET /status`, by a master that has read the log of such a pool.

The log's 1,000 clients are away, each with its segment, and all of them are told.
"""

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from statistics import median

from rig import ROOT, RigError

from pool import free_port

# Answers that are timed, and how often a page asks, seconds.
ANSWERS, EVERY_S = 50, 2.0
# For the log of ten million objects.
START_S = 60

CELLS = {
    "status": "GET /status of a large pool, 1,000 clients, p50",
    "page": "a page that shows it, of the master's processor time",
}


def measure(programs, log):
    """Milliseconds of an answer, and the share of a core that a page which is looked at takes."""
    pages = free_port()
    flags = ["--rpc_address=127.0.0.1", f"--rpc_port={free_port()}", "--metrics_host=127.0.0.1"]
    command = [programs / "mooncake", "master", f"--wal_dir={log}", f"--metrics_port={pages}", *flags]
    master = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{pages}/status"
        told = _served(master, url)
        took, before = [], _on_processors(master.pid)
        for _ in range(ANSWERS):
            begin = time.perf_counter()
            size = len(urllib.request.urlopen(url, timeout=10).read())
            took.append(1e3 * (time.perf_counter() - begin))
        # Asked one behind the other: what the master does anyway is little of that time.
        busy = _on_processors(master.pid) - before
        page = 100 * busy / ANSWERS / EVERY_S
        print(
            f"    /status: {told['memory']['memory_objects']:,} objects, {len(told['clients']):,} clients,"
            f" {size:,} bytes: {median(took):.1f} ms, {max(took):.1f} at most; a page takes {page:.2f} % of a core",
            flush=True,
        )
        return {CELLS["status"]: median(took), CELLS["page"]: page}
    finally:
        master.kill()
        master.communicate()


def _served(master, url):
    """What it says once it has read its log."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and master.poll() is None:
        try:
            told = json.load(urllib.request.urlopen(url, timeout=10))
            if told["state"] == "serving":
                return told
        except OSError:
            pass
        time.sleep(0.1)
    master.kill()
    raise RigError(f"the master does not serve that log: {master.communicate()[1][-400:]}")


def _on_processors(pid):
    """Seconds of all its threads, as the scheduler counts them: the clock's ticks are no measure of short turns."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def expectations(expected):
    return {
        CELLS["status"]: expected("ms", limit=10, lower_is_better=True),
        CELLS["page"]: expected("% of a core", limit=1, lower_is_better=True),
    }
