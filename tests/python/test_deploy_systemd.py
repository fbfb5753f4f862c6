"""The units of deploy/systemd are what systemd takes, and allow what the programs do."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from manifests import signal_children

from pool import Program, binary, free_port

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))

CLIENT = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
value = bytes(3 << 20)
assert store.put("key", value) == 0, store.last_error()
assert store.get("key") == value
"""


def run(*command: str) -> subprocess.CompletedProcess:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def setting(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


@pytest.fixture
def installed(tmp_path) -> list[Path]:
    """The units with the commands of this environment."""
    units = []
    for unit in SERVICES:
        units.append(tmp_path / unit.name)
        units[-1].write_text(unit.read_text().replace("/opt/mooncake/bin", str(Path(binary()).parent)))
    return units


def test_systemd_takes_them(installed):
    done = run("systemd-analyze", "verify", "--recursive-errors=no", *map(str, installed))
    said = [line for line in done.stderr.splitlines() if "mooncake" in line]
    assert (done.returncode, said) == (0, [])


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
def test_they_are_shut_in(unit):
    done = run("systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=20", str(unit))
    assert done.returncode == 0, done.stdout[-2000:]


def expand(group: str) -> set[str]:
    """The system calls of a group, through the groups in it."""
    names = set()
    for line in run("systemd-analyze", "syscall-filter", group).stdout.splitlines()[1:]:
        name = line.strip()
        if name.startswith("@"):
            names |= expand(name)
        elif name and not name.startswith("#"):
            names.add(name)
    return names


def allowed(unit: Path) -> set[str]:
    names: set[str] = set()
    for rule in setting(unit, "SystemCallFilter"):
        for group in rule.lstrip("~").split():
            names = names - expand(group) if rule.startswith("~") else names | expand(group)
    return names


def traced(name: str, tmp_path: Path, ready: str, *command: str) -> Program:
    if shutil.which("strace") is None:
        pytest.skip("no strace here")
    trace = ["strace", "-f", "-qq", "-e", "signal=none", "-o", str(tmp_path / f"{name}.strace")]
    return Program(name, [*trace, *command], tmp_path / f"{name}.out", ready)


def end(daemon: Program) -> None:
    """SIGTERM to the traced process: strace ends when that has ended, and would leave it behind if it ended first."""
    if daemon.process is None:
        return
    signal_children(daemon, signal.SIGTERM)
    try:
        daemon.process.wait(15)
    except subprocess.TimeoutExpired:
        signal_children(daemon, signal.SIGKILL)
        daemon.kill()
        raise


def calls(name: str, tmp_path: Path) -> set[str]:
    return set(re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed)", (tmp_path / f"{name}.strace").read_text(), re.M))


def test_their_system_calls_are_allowed(tmp_path):
    """Where systemd itself cannot be run: everything that the programs ask of the kernel is in the filter."""
    port, state = free_port(), tmp_path / "state"
    flags = ["--rpc_address=127.0.0.1", f"--rpc_port={port}", "--metrics_host=127.0.0.1", "--metrics_port=0"]
    master = [binary(), "master", *flags, f"--wal_dir={state}"]
    node = [binary(), "client", f"--flagfile={UNITS / 'node.flags'}", f"--master_server_address=127.0.0.1:{port}"]
    lent = ["--global_segment_size=32MB", f"--port={free_port()}"]
    daemons = [
        traced("master", tmp_path, f"Master service started on port {port}", *master),
        traced("node", tmp_path, "Mooncake client ready", *node, *lent),
        traced("metadata", tmp_path, "server started", binary(), "metadata-server", "--host=127.0.0.1", "--port=0"),
    ]
    with ExitStack() as ends:
        for daemon in daemons:
            ends.callback(end, daemon)
            daemon.start(timeout=30)
        for shm in ("1", "0"):
            done = run("env", f"MC_SHM={shm}", sys.executable, "-c", CLIENT, f"127.0.0.1:{port}")
            assert done.returncode == 0, done.stderr
    for name, unit in zip(("master", "node", "metadata"), ("master", "node", "http-metadata-server"), strict=True):
        used = calls(name, tmp_path)
        assert "execve" in used
        assert len(used) > 30
        assert used - allowed(UNITS / f"mooncake-{unit}.service") == set()


def test_shared_memory_is_not_shut_out():
    """What hides processes of one host from each other is not used."""
    for unit in SERVICES:
        for name in ("PrivateNetwork", "PrivateUsers", "ProcSubset", "PrivateIPC"):
            assert setting(unit, name) == [], unit.name
    master, node = (UNITS / f"mooncake-{name}.service" for name in ("master", "node"))
    assert setting(master, "User") == setting(node, "User") == ["mooncake"]


def test_the_files_of_settings_are_valid():
    done = run(binary(), "master", f"--config_path={UNITS / 'master.yaml'}", "--check_config")
    assert done.returncode == 0, done.stderr
    in_force = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if len(line.split()) == 3}
    assert in_force["rpc_address"] == in_force["metrics_host"] == "127.0.0.1"
