"""The tools of the transfer engine: a bench of two processes, and the devices near memory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest

from pool import binary

LAST = re.compile(r"Test completed: duration [\d.]+, batch count (\d+), throughput ([\d.]+) (\w+)/s")


def bench(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [binary(), "engine-bench", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})


@pytest.fixture
def target():
    command = [binary(), "engine-bench", "--mode=target", "--buffer_size=64MB"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    said = process.stdout.readline()
    assert said.startswith("transfer_engine_bench --segment_id=127.0.0.1:"), said
    yield said.split("=")[1].strip()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    process.stdout.close()


@pytest.mark.parametrize("operation", ["read", "write"])
@pytest.mark.parametrize("shm", ["1", "0"])
def test_a_bench_of_two_processes_ends_with_what_it_reached(target, operation, shm):
    few = ("--threads=2", "--batch_size=8", "--duration=0.3", "--buffer_size=64MB", "--report_unit=MiB")
    done = bench(f"--segment_id={target}", f"--operation={operation}", *few, MC_SHM=shm)
    assert done.returncode == 0, done.stderr
    count, rate, unit = LAST.fullmatch(done.stderr.strip().splitlines()[-1]).groups()
    assert int(count) > 0
    assert float(rate) > 1
    assert unit == "MiB"


def test_defaults_are_taken_and_what_is_wrong_is_named(target):
    done = bench(f"--segment_id={target}", "--duration=0.2", "--block_size=4KB", "--buffer_size=64MB")
    assert LAST.fullmatch(done.stderr.strip().splitlines()[-1]), done.stderr
    for flag, value in [("operation", "erase"), ("threads", "0"), ("report_unit", "furlong"), ("segment_id", "")]:
        done = bench(f"--segment_id={target}", f"--{flag}={value}", "--buffer_size=64MB")
        assert done.returncode == 1
        assert f"--{flag}={value}" in done.stderr


def test_the_topology_is_shown_as_the_engine_sees_it(tmp_path):
    def dump(*args: str) -> subprocess.CompletedProcess[str]:
        command = [binary(), "topology-dump", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=10)

    head, _, shown = dump().stdout.partition(": ")
    assert head == "Local topology [te/discover]"
    assert "cpu:0" in json.loads(shown)
    matrix = {"cpu:0": [["mlx5_0"], []]}
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps(matrix))
    assert json.loads(dump(f"--custom-topo-json={path}").stdout.partition("]: ")[2]) == matrix
    path.write_text("[]")
    assert dump(f"--custom-topo-json={path}").returncode == 1
    assert str(tmp_path / "none") in dump(f"--custom-topo-json={tmp_path / 'none'}").stderr
