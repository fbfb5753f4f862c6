"""What the machine itself can do, measured beside the store: a copy, and one loopback stream."""

import json
import os
import shutil
import statistics
import subprocess
import time

import numpy as np

# Names of the floors: one thread that copies, and one TCP stream.
MEMCPY, STREAM = "memcpy", "iperf3"

# iperf3 sends no larger pieces. It sends and receives one and the same buffer over and over, and sums nothing.
MOST_AT_ONCE = 1 << 20


class NoFloor(Exception):
    """A floor cannot be measured here."""


def memcpy_gbps(seconds=0.4, size=64 << 20):
    """One thread copying between two warm buffers of 64 MiB; median of the copies."""
    source, target = np.ones(size, dtype=np.uint8), np.ones(size, dtype=np.uint8)
    rates = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        np.copyto(target, source)
        rates.append(size / 1e9 / (time.perf_counter() - begin))
    return statistics.median(rates)


def iperf3():
    return installed("iperf3", "the floor of one TCP stream")


def installed(program, purpose):
    """The path of a program, which is installed if it is not there."""
    if found := shutil.which(program):
        return found
    print(f"{program}, for {purpose}, is not there: installing Debian's", flush=True)
    command = ["apt-get", "install", "-y", "-q", program]
    try:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        subprocess.run(
            command, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, check=True, timeout=300, **quiet
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise NoFloor(
            f"not measured, {purpose}: `{' '.join(command)}` failed, install {program} by hand ({' '.join(said)})"
        ) from None
    if found := shutil.which(program):
        return found
    raise NoFloor(f"not measured, {purpose}: {program} is installed and not on the PATH")


def stream_gbps(program, port, size=MOST_AT_ONCE, seconds=1.0):
    """One TCP stream between two processes of iperf3 inside this host, GB/s as received.

    Reno, which the store's lanes ask for inside a host, too: a system that paces by default would halve it.
    """
    server = subprocess.Popen([program, "-s", "-1", "-B", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL)
    try:
        length = str(min(size, MOST_AT_ONCE))
        command = [program, "-c", "127.0.0.1", "-p", str(port), "-l", length, "-t", str(seconds), "-C", "reno", "-J"]
        until = time.monotonic() + 10
        while True:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
            answer = json.loads(ran.stdout or "{}")
            if ran.returncode == 0 and "sum_received" in answer.get("end", {}):
                received = answer["end"]["sum_received"]
                return received["bytes"] / received["seconds"] / 1e9
            # The server does not say when it listens.
            if time.monotonic() > until:
                raise NoFloor(f"no floor for TCP: iperf3: {answer.get('error', ran.stderr.strip())}")
            time.sleep(0.05)
    finally:
        server.kill()
        server.wait()
