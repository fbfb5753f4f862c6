"""Ctrl-C ends any call within 100 ms; the module leaves signals and the process as it found them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize(
    "call", ["is_exist('k')", "get('k')", "put('k', b'v')", "remove_all()", "batch_is_exist(['k'])"]
)
def test_ctrl_c_ends_a_call_that_waits_for_a_frozen_master(cluster, call):
    c = cluster(nodes=1, env={"MC_LOOKUP_TIMEOUT_MS": "10000"})
    source = f"""
import os, signal, sys, time
from mooncake.store import MooncakeDistributedStore
# A test run in the background of a script begins with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
s = MooncakeDistributedStore()
assert s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", {c.master.addr!r}) == 0
print("set up", flush=True)
sys.stdin.readline()
print("calling", flush=True)
try:
    s.{call}
    print("returned", s.last_error())
except KeyboardInterrupt:
    print("interrupted", time.time())
os._exit(0)
"""
    env = {**os.environ, "MC_LOOKUP_TIMEOUT_MS": "10000", "MC_PUT_TIMEOUT_MS": "20000"}
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    try:
        assert process.stdout.readline() == "set up\n"
        c.master.stop()
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "calling\n"
        time.sleep(0.15)
        sent = time.time()
        process.send_signal(signal.SIGINT)
        word, at = process.stdout.readline().split()
        assert word == "interrupted"
        assert float(at) - sent < 0.25  # 100 ms, and what a loaded machine adds
    finally:
        process.kill()
        process.wait()
        c.master.cont()


def test_importing_and_using_it_changes_no_signal_handler(shared_cluster):
    source = f"""
import signal
def handlers():
    with open("/proc/self/status") as f:
        lines = [line.split() for line in f if line.startswith(("SigCgt", "SigIgn", "SigBlk"))]
    # 32 and 33 are the C library's own, taken with the first thread.
    return [(name, int(mask, 16) & ~(3 << 31)) for name, mask in lines]
before = handlers()
from mooncake.store import MooncakeDistributedStore
s = MooncakeDistributedStore()
assert s.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 20, 1 << 20, "tcp", "", {shared_cluster.master.addr!r}) == 0
assert s.put("signal", b"v") == 0 and s.get("signal") == b"v"
assert handlers() == before, (before, handlers())
s.remove_all(True)
s.close()
"""
    # Which way the bytes went, to the segment that they were put in, is said at "info".
    env = {**os.environ, "MC_LOG_LEVEL": "WARNING"}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_process_that_forgets_close_takes_its_segment_with_it(shared_cluster):
    source = f"""
from mooncake.store import MooncakeDistributedStore
s = MooncakeDistributedStore()
assert s.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 20, 1 << 20, "tcp", "", {shared_cluster.master.addr!r}) == 0
"""
    before = shared_cluster.segments()
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert shared_cluster.segments() == before


def test_a_forked_child_is_refused_with_a_reason(shared_cluster):
    s = shared_cluster.store()
    assert s.put("parent", b"v") == 0
    handle = s.get_buffer("parent")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = f"{s.put('child', b'v')} {s.is_exist('parent')} {len(s.get('parent'))} {s.last_error()}"
            del handle
            s.close()
            os.write(write, answer.encode())
        finally:
            os._exit(0)
    os.close(write)
    answer = os.read(read, 4096).decode()
    os.close(read)
    assert os.waitpid(pid, 0)[1] == 0
    code, exists, length, reason = answer.split(" ", 3)
    assert (code, exists, length) == ("-601", "-601", "0")
    assert "fork" in reason
    assert bytes(handle) == b"v"
    assert s.get("parent") == b"v"
    assert s.remove("parent", True) == 0
