"""What the page of a master of a large pool costs: `GET /status`, by a master that has read the log of such a pool.

The log's 1,000 clients are away, each with its segment, and all of them are told.
"""

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from statistics import median

from rig import ROOT, RigError

from pool import free_port

# Answers that are timed, and for how long one is asked for each two seconds, as the page does.
ANSWERS, WATCHED_S, EVERY_S = 50, 20, 2.0
# For the log of ten million objects.
START_S = 60
# Percent of a core that a master takes which does nothing else, and how long it is waited for.
QUIET, SETTLED_S = 2.0, 180
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")

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
    began = time.monotonic()
    try:
        url = f"http://127.0.0.1:{pages}/status"
        told = _served(master, url)
        took = []
        for _ in range(ANSWERS):
            begin = time.perf_counter()
            size = len(urllib.request.urlopen(url, timeout=10).read())
            took.append(1e3 * (time.perf_counter() - begin))
        # What it does behind a start is no part of it.
        while _share(master.pid, None, 4.0) > QUIET and time.monotonic() - began < SETTLED_S:
            pass
        idle, watched = (_share(master.pid, url if is_watched else None) for is_watched in (False, True))
        print(
            f"    /status: {told['memory']['memory_objects']:,} objects, {len(told['clients']):,} clients,"
            f" {size:,} bytes: {median(took):.1f} ms, {max(took):.1f} at most;"
            f" {watched:.2f} % of a core with a page, {idle:.2f} without",
            flush=True,
        )
        return {CELLS["status"]: median(took), CELLS["page"]: watched - idle}
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


def _share(pid, url, watched_s=WATCHED_S):
    """Percent of a core that it takes while somebody looks at the page, or nobody does."""
    before, begin = _ticks(pid), time.monotonic()
    while time.monotonic() - begin < watched_s:
        if url:
            urllib.request.urlopen(url, timeout=10).read()
        time.sleep(EVERY_S)
    return 100 * (_ticks(pid) - before) / TICKS_A_SECOND / (time.monotonic() - begin)


def _ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def expectations(expected):
    return {
        CELLS["status"]: expected("ms", limit=10, lower_is_better=True),
        CELLS["page"]: expected("% of a core", limit=1, lower_is_better=True),
    }
