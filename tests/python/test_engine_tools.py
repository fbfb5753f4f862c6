"""The tools of the transfer engine: benches of two processes, paths to peers, and the devices near memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from pool import binary

LAST = re.compile(r"Test completed: duration [\d.]+, batch count (\d+), throughput ([\d.]+) (\w+)/s")


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [binary(), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})


def bench(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run("engine-bench", *args, **env)


def sweep(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run("engine-sweep", "--duration=0.05", *args, **env)


@contextlib.contextmanager
def started(*args: str, **env: str):
    """A target, and the first line that it prints."""
    process = subprocess.Popen(
        [binary(), *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **env}
    )
    yield process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    process.stdout.close()


@pytest.fixture
def target():
    with started("engine-bench", "--mode=target", "--buffer_size=64MB") as said:
        assert said.startswith("transfer_engine_bench --segment_id=127.0.0.1:"), said
        yield said.split("=")[1].strip()


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
    wrong = [("operation", "erase"), ("threads", "0"), ("report_unit", "furlong"), ("segment_id", "")]
    for flag, value in [*wrong, ("protocol", "nonsense"), ("use_vram", "true"), ("gpu_id", "first")]:
        done = bench(f"--segment_id={target}", f"--{flag}={value}", "--buffer_size=64MB")
        assert done.returncode != 0
        assert f"--{flag}={value}" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["engine-bench", "--mode=bogus"], "--mode=bogus: expected initiator or target"),
        (["engine-bench"], "--segment_id=NAME is needed"),
        (["engine-bench", "--segment_id=127.0.0.1:1", "--report_unit=furlong"], "--report_unit=furlong"),
        (["engine-sweep", "--target_seg_name=127.0.0.1:1", "--total_buffer_size=1"], "--total_buffer_size=1"),
        (["show-link"], "--segment_id=NAME[,NAME] is needed"),
    ],
)
def test_a_tool_that_cannot_do_what_it_is_told_opens_nothing(args, said):
    """Had it tried to listen, it would have said that this host has no such address."""
    done = run(*args, MC_TE_BIND_ADDRESS="192.0.2.1")
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def listens_on(pid: int) -> set[str]:
    """Addresses that a process listens on by TCP."""
    opened = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    tables = [Path("/proc/net", name).read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in opened}


@pytest.mark.parametrize("args", [["engine-bench", "--mode=target", "--buffer_size=1MB"], ["engine-sweep"]])
def test_a_tool_listens_on_the_host_of_its_name_alone(args):
    command = [binary(), *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as target:
        target.stdout.readline()
        assert listens_on(target.pid) == {"0100007F"}
        target.send_signal(signal.SIGINT)
        assert "listens on" not in target.communicate(timeout=10)[1]


@pytest.fixture
def known_as(tmp_path):
    """Starts a command for which one more host's name leads to an address."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not make mount namespaces")

    def command(name: str, address: str, *args: str) -> list[str]:
        hosts = tmp_path / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{address} {name}\n")
        return ["unshare", "-rm", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts), *args]

    return command


def address_for_peers() -> str:
    """The address of this machine that leads to others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError as error:
            pytest.skip(f"this machine has no address that others could reach: {error}")
        return probe.getsockname()[0]


def test_a_tool_named_by_its_host_listens_where_that_name_leads(known_as):
    address = address_for_peers()
    tool = [binary(), "engine-bench", "--mode=target", "--buffer_size=1MB", "--local_server_name=storage-7"]
    with subprocess.Popen(known_as("storage-7", address, *tool), stdout=subprocess.PIPE, text=True) as target:
        name = target.stdout.readline().split("=")[1].strip()
        assert listens_on(target.pid) == {socket.inet_aton(address)[::-1].hex().upper()}
        few = ("--threads=1", "--batch_size=1", "--duration=0.1", "--buffer_size=1MB", f"--segment_id={name}")
        done = subprocess.run(known_as("storage-7", address, binary(), "engine-bench", *few), capture_output=True)
        assert done.returncode == 0, done.stderr
        target.send_signal(signal.SIGINT)


@pytest.mark.parametrize("address", ["127.0.1.1", "192.0.2.200"], ids=["this host alone", "another host"])
def test_a_tool_whose_name_leads_peers_elsewhere_listens_on_all_addresses_and_says_so(known_as, address):
    tool = [binary(), "engine-bench", "--mode=target", "--buffer_size=1MB", "--local_server_name=storage-7"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(known_as("storage-7", address, *tool), **pipes) as target:
        target.stdout.readline()
        assert listens_on(target.pid) == {"0" * 32}
        target.send_signal(signal.SIGINT)
        said = target.communicate(timeout=10)[1]
    assert '"storage-7" leads to no address' in said
    assert "MC_TE_BIND_ADDRESS" in said


def test_a_bench_without_a_gpus_memory_takes_the_flags_and_asked_for_one_says_what_is_missing(target):
    few = (f"--segment_id={target}", "--threads=1", "--duration=0.1", "--buffer_size=64MB")
    for protocol in ("tcp", "rdma"):
        done = bench(*few, "--use_vram=false", "--gpu_id=0", "--init_mem=true", f"--protocol={protocol}")
        assert done.returncode == 0, done.stderr
        assert LAST.fullmatch(done.stderr.strip().splitlines()[-1])
        assert "--gpu_id has no effect" in done.stderr
    assert "memory of a GPU" in bench(*few, "--use_vram").stderr


def test_a_sweep_goes_through_every_size_that_fits_the_memory(target):
    """By the line that a target of its own prints, and with another tool's target, too."""
    sizes = ("--start_block_size=4096", "--max_block_size=16384", "--max_batch_size=2", "--max_num_threads=2")
    with started("engine-sweep", "--total_buffer_size=49152") as said:
        program, *flags = said.split()
        assert program == "tebench"
        done = sweep(*flags, *sizes, "--check_consistency", "--op_type=mix")
    assert done.returncode == 0, done.stderr
    head, *lines, last = done.stdout.splitlines()
    assert head.split() == ["block", "batch", "threads", *"GB/s avg us p50 us p99 us p999 us".split()]
    assert max(map(len, [head, *lines])) < 80
    # Two threads with two requests of 16 KiB each do not fit.
    swept = [tuple(map(int, line.split()[:3])) for line in lines]
    every = [(block, batch, threads) for threads in (1, 2) for batch in (1, 2) for block in (4096, 8192, 16_384)]
    assert swept == [one for one in every if one != (16_384, 2, 2)]
    for line in lines:
        rate, average, p50, p99, p999 = map(float, line.split()[3:])
        assert rate > 0
        assert 0 < p50 <= p99 <= p999
        assert average <= p999
    assert last.startswith("mix by same host")
    assert last.endswith("what was written came back as it was")

    done = sweep(f"--target_seg_name={target}", *sizes, "--total_buffer_size=8192", "--op_type=write")
    assert len(done.stdout.splitlines()) == 2 + 4, done.stdout


def test_a_sweep_seeds_bytes_that_another_one_verifies_over_several_targets():
    few = ("--start_block_size=4096", "--max_block_size=8192", "--max_batch_size=4", "--max_num_threads=2")
    with (
        started("engine-bench", "--mode=target", "--buffer_size=1MB") as one,
        started("engine-bench", "--mode=target", "--buffer_size=1MB") as other,
    ):
        names = [line.split("=")[1].strip() for line in (one, other)]
        both = (f"--target_seg_name={','.join(names)}", *few)
        unseeded = sweep(*both, "--op_type=read_verify")
        assert (unseeded.returncode, "bytes came back changed" in unseeded.stderr) == (1, True)
        assert sweep(*both, "--op_type=write_seed").returncode == 0
        verified = sweep(*both, "--op_type=read_verify")
        assert verified.returncode == 0, verified.stderr
        assert len(verified.stdout.splitlines()) == 2 + 12
        # Of each target what its threads have, by the first two blocks.
        small = sweep(*both, "--op_type=read", "--target_range_size=8192")
        assert len(small.stdout.splitlines()) == 2 + 4, small.stdout


@pytest.mark.parametrize(("path", "shm"), [("same host", "1"), ("tcp", "0")])
def test_a_sweep_as_json_has_what_its_table_has(target, path, shm):
    done = sweep(f"--target_seg_name={target}", "--max_block_size=8192", "--json", "--check_consistency", MC_SHM=shm)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["target"], said["op_type"], said["path"]) == (target, "read", path)
    assert [(cell["block_size"], cell["batch_size"], cell["threads"]) for cell in said["cells"]] == [
        (4096, 1, 1),
        (8192, 1, 1),
    ]
    for cell in said["cells"]:
        assert cell["checked"]
        moved = cell["batches"] * cell["batch_size"] * cell["block_size"]
        assert cell["gb_per_s"] == pytest.approx(moved / 1e9 / cell["seconds"])
        assert cell["latency_us"]["p50"] <= cell["latency_us"]["p999"]


def test_a_sweep_that_pauses_makes_fewer_batches(target):
    few = ("--max_block_size=4096", "--duration=0.3", "--json", f"--target_seg_name={target}")
    paused = json.loads(run("engine-sweep", *few, "--request_interval_us=100000").stdout)["cells"][0]
    assert 1 <= paused["batches"] <= 4


def test_a_sweep_whose_target_dies_keeps_what_it_has_measured():
    command = [binary(), "engine-bench", "--mode=target", "--buffer_size=64MB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as dies:
        name = dies.stdout.readline().split("=")[1].strip()
        flags = ("--duration=1", "--max_block_size=64MB", "--json", f"--target_seg_name={name}")
        process = subprocess.Popen(
            [binary(), "engine-sweep", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        # A warm-up and a second each: the first cell has ended, and not nearly all.
        time.sleep(3.5)
        dies.kill()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    said = json.loads(out)
    assert said["error"]
    assert said["error"] in err
    assert 1 <= len(said["cells"]) < 15
    assert said["cells"][0]["gb_per_s"] > 0


def test_a_sweep_names_what_is_wrong(target):
    wrong = [
        ("op_type", "erase"),
        ("start_batch_size", "0"),
        ("metadata_type", "etcd"),
        ("start_block_size", "4 XB"),
        ("total_buffer_size", "1024"),
        ("target_offset", str(2**64 - 1)),
        ("target_seg_name", "127.0.0.1:1"),
    ]
    for flag, value in wrong:
        done = sweep(f"--target_seg_name={target}", f"--{flag}={value}")
        assert done.returncode == 1, (flag, done.stdout)
        assert value in done.stderr, done.stderr
    # Beyond what the target lends: refused by it, and said.
    done = sweep(f"--target_seg_name={target}", "--max_block_size=4096", f"--target_offset={1 << 40}")
    assert done.returncode == 1
    assert "a batch ended as" in done.stderr, done.stderr


def test_links_are_shown_with_their_reasons(target):
    def shown(*args: str, **env: str) -> str:
        done = run("show-link", *args, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    head, line = shown(f"--segment_id={target}").splitlines()
    assert head.split() == ["peer", "path", "bytes", "requests", "failed", "why"]
    assert line.split()[:3] == [target, "same", "host"]
    said = json.loads(shown(f"--segment_id={target}", "--json", MC_SHM="0"))
    assert [(peer["peer"], peer["path"]) for peer in said["peers"]] == [(target, "tcp")]
    assert said["peers"][0]["reason"]
    assert "cpu:0" in said["topology"]
    assert json.loads(shown("--json"))["peers"] == []
    assert json.loads(shown("--discover_only", "--segment_id=127.0.0.1:1"))["peers"] == [], "Mooncake's flag"
    assert run("show-link", "--segment_id=127.0.0.1:1").stdout == "", "no table without a peer"
    # One that is not there is named, and hides no other.
    for names, there in [("127.0.0.1:1", []), (f"127.0.0.1:1,{target}", [target])]:
        done = run("show-link", f"--segment_id={names}", "--json")
        assert done.returncode == 1
        assert "127.0.0.1:1" in done.stderr
        assert [peer["peer"] for peer in json.loads(done.stdout)["peers"]] == there


def test_the_topology_is_shown_as_the_engine_sees_it(tmp_path):
    def dump(*args: str) -> subprocess.CompletedProcess[str]:
        command = [binary(), "topology-dump", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=10)

    head, _, shown = dump().stdout.partition(": ")
    assert head == "Local topology [te/discover]"
    assert json.loads(dump("--json").stdout) == json.loads(shown)
    assert "cpu:0" in json.loads(shown)
    matrix = {"cpu:0": [["mlx5_0"], []]}
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps(matrix))
    assert json.loads(dump(f"--custom-topo-json={path}").stdout.partition("]: ")[2]) == matrix
    path.write_text("[]")
    assert dump(f"--custom-topo-json={path}").returncode == 1
    assert str(tmp_path / "none") in dump(f"--custom-topo-json={tmp_path / 'none'}").stderr
