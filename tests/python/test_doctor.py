"""`mooncake doctor`: each check against a broken example that needs no root, by the real binary."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool import binary, free_port

NOWHERE = "--master=127.0.0.1:1"
AREAS = ["master", "addresses", "shared memory", "limits", "clock", "state", "installation"]


@functools.cache
def version() -> str:
    """Of the binary that is looked at."""
    said = subprocess.run([binary(), "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    return said.split()[-1]


def wheel(of: str) -> str:
    return f"pip install --force-reinstall --no-deps PATH/mooncake_rs-{of}-*.whl"


def run(*args: str, program: str | None = None, **options) -> subprocess.CompletedProcess:
    env = {**os.environ, **options.pop("env", {})}
    command = [program or binary(), "doctor", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, **options)


class Report:
    """What it says as JSON."""

    def __init__(self, *args: str, **options):
        done = run(*args, "--json", **options)
        assert done.stderr == ""
        self.code = done.returncode
        self.said = json.loads(done.stdout)
        assert self.code == (1 if self.said["worst"] == "error" else 0)

    def all(self, check: str) -> list[dict]:
        return [finding for finding in self.said["findings"] if finding["check"] == check]

    def told(self, check: str, *says: str) -> None:
        """That there is one finding of a check with these in it, however bad it is on this machine."""
        [finding] = self.all(check)
        text = f"{finding['message']}\n{finding['remedy']}"
        assert all(part in text for part in says), f"{says} in {text}"
        assert finding["remedy"] or finding["severity"] not in ("error", "warning"), finding

    def one(self, check: str, severity: str, *says: str) -> dict:
        """The one finding of a check: so bad, with these in it. For checks of what the test sets, and no others."""
        self.told(check, *says)
        [finding] = self.all(check)
        assert finding["severity"] == severity, finding
        return finding


@contextlib.contextmanager
def pages(status: dict, ahead: float = 0.0) -> Iterator[str]:
    """A master's pages that say what they are told to, with a clock that is ahead by so many seconds; their address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({**status, "time_ms": int((time.time() + ahead) * 1000)}).encode()
            self.send_response(200 if self.path == "/status" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def status(**more) -> dict:
    """What a master says that is well."""
    told = {
        "version": version(), "state": "serving", "host": socket.gethostname(), "pid": 1, "problems": [], "clients": [],
        "rpc_address": "127.0.0.1:50051", "http_address": "127.0.0.1:9003",
        "log": {"state": "on", "bytes": 4096},
    }  # fmt: skip
    return {**told, **more}


def client(name: str, **more) -> dict:
    told = {
        "name": name, "host": socket.gethostname(), "user": "kv", "program": "vllm", "pid": 2**22 + 1, "state": "ok",
        "software": f"mooncake-client {version()}", "segments": 1, "lent_bytes": 1 << 20, "tiers": 0,
        "paths": ["tcp", "shm"],
    }  # fmt: skip
    return {**told, **more}


def test_a_pool_that_is_well_is_told_so_and_nothing_of_it_changes(cluster):
    c = cluster(nodes=1)
    [node] = c.nodes
    before = c.segments()
    report = Report(f"--master={c.master.addr}")
    # On a machine that is busy its round trip may be a warning, and that it stood still.
    report.told("answers", f"{c.master.addr} answers in")
    errors = [finding for finding in report.said["findings"] if finding["severity"] == "error"]
    assert not [finding for finding in errors if finding["area"] == "master"], errors
    report.one("member_versions", "ok")
    report.one("members", "ok", "1 of 1")
    report.one("peer", "ok", f"(mooncake {node.pid}): shared memory")
    report.one("clock", "ok")
    report.one("log", "ok")
    report.told("folder", f"the master's log lies in {c.master.folder}")
    report.told("lent_memory", "64.0 MB")
    assert {finding["area"] for finding in report.said["findings"]} == set(AREAS)
    text = run(f"--master={c.master.addr}").stdout
    assert "\n  ok  " in text
    assert "\x1b" not in text
    positions = [text.index(f"\n{area}\n") for area in AREAS]
    assert positions == sorted(positions)
    # No member logs a peer that came and said nothing, and none came.
    assert c.segments() == before
    assert "data lane closed" not in node.output()
    # What the environment says reaches the checks.
    off = Report(f"--master={c.master.addr}", env={"MC_SHM": "0"})
    off.one("switch", "warning", "MC_SHM=0", "unset MC_SHM")
    off.one("peer", "skipped", "by TCP")


def test_what_is_no_masters_control_port_is_told_apart(cluster):
    c = cluster(nodes=1)
    [node] = c.nodes
    http_port = Report(f"--master=127.0.0.1:{c.master.metrics_port}")
    http_port.one("answers", "error", "speaks HTTP", "--master=127.0.0.1:50051", "/status")
    assert http_port.code == 1
    Report(f"--master={node.addr}").one("answers", "error", f"mooncake doctor --master={c.master.addr}")
    data = node.segment.partition(" ")[0]
    Report(f"--master={data}").one("answers", "error", "data port", "pass the control port")


def test_without_a_master_that_is_the_error_and_this_machine_is_looked_at():
    report = Report(NOWHERE)
    assert report.code == 1
    report.one("answers", "error", "127.0.0.1:1", "mooncake_master --rpc_address=127.0.0.1 --rpc_port=1")
    for check in ("pages", "peers", "clock", "log"):
        report.one(check, "skipped")
    machine = ["own_address", "data_ports", "memory", "memfd", "pidfd", "locked_memory", "io_uring", "numa", "dev_shm"]
    for check in [*machine, "folder", "litter", "clash", "package", "path", "variables"]:
        report.told(check)
    text = run(NOWHERE).stdout
    assert "\n  x   master 127.0.0.1:1 does not answer" in text
    assert "\n      -> start it there" in text
    assert re.match(r"\d+ errors?, \d+ warnings?; ", text.splitlines()[-1])
    # The variable names it as well as the flag.
    Report(env={"MOONCAKE_MASTER": "nonsense"}).one("answers", "error", "nonsense", "--master=HOST:PORT")


def test_a_master_that_does_not_answer_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        report = Report(f"--master=127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - started < 6
    report.one("answers", "error", "mooncake_master")


def test_a_master_that_reads_its_log_is_waited_for():
    # As a master says it that has yet to read its log: it has nothing else to tell.
    with pages({"version": version(), "state": "recovering", "problems": [], "uptime_seconds": 1.5}) as address:
        report = Report(NOWHERE, f"--metrics_address={address}")
    report.one("answers", "warning", "127.0.0.1:1", "reads its log", "wait; mooncake status --watch")
    report.one("state", "warning", "wait")


def test_other_versions_problems_and_members_that_nobody_reaches_are_told():
    clients = [
        client("127.0.0.1:1", host="elsewhere\x1b[2J", software="mooncake-client 0.0.7"),
        client("127.0.0.1:2"),
        client("192.0.2.7:12300", host="h7", lent_bytes=0),
        # Of one that the master does not hear itself, the master's own problem tells; and this one it has from its log.
        client("127.0.0.1:3", host="", software="", state="away"),
    ]
    problem = {"code": "log_lost", "severity": "error", "message": "the log is lost", "remedy": "free space"}
    told = status(version="9.9.9", clients=clients, problems=[problem], rpc_address="0.0.0.0:50051")
    told["log"]["state"] = "lost"
    with pages(told) as address:
        report = Report(NOWHERE, f"--metrics_address={address}")
        text = run(NOWHERE, f"--metrics_address={address}").stdout
    report.one("version", "warning", "9.9.9", version(), wheel("VERSION"))
    report.one(
        "member_versions", "warning", "1 of 0.0.7 (127.0.0.1:1 on elsewhere", f"2 of {version()}", wheel("VERSION")
    )
    report.one("log_lost", "error", "the log is lost", "free space")
    assert report.all("log") == []
    report.one("loopback_members", "error", "127.0.0.1:1", "--host=ADDRESS")
    members = report.one("members", "error", "1 of 2", "127.0.0.1:2", "refused", "12300-14300")
    assert "127.0.0.1:3" not in members["message"]
    report.one("open_ports", "ok", "0.0.0.0:50051", "--rpc_address")
    report.one("own_address", "warning", "127.0.0.1", "--host=ADDRESS")
    assert "\x1b" not in text


def test_a_page_of_something_else_is_no_masters():
    with pages({"clients": []}) as address:
        Report(NOWHERE, f"--metrics_address={address}").one("pages", "warning", address, "update the master")
    nothing = f"127.0.0.1:{free_port()}"
    Report(NOWHERE, f"--metrics_address={nothing}").one("pages", "error", nothing, "--metrics_address=HOST:PORT")


def test_pages_that_are_not_reached_are_a_warning_where_the_control_port_answers(cluster):
    nothing = f"127.0.0.1:{free_port()}"
    report = Report(f"--master={cluster(nodes=0).master.addr}", f"--metrics_address={nothing}")
    report.one("pages", "warning", nothing, "--metrics_address=HOST:PORT")
    report.told("answers", "answers in")


@pytest.mark.parametrize(("seconds", "severity", "says"), [
    (-150, "warning", "2 min ahead of"), (3630, "warning", "60 min behind"), (0, "ok", "apart"),
])  # fmt: skip
def test_a_clock_that_is_far_off_is_told(seconds, severity, says):
    with pages(status(), ahead=seconds) as address:
        Report(NOWHERE, f"--metrics_address={address}").one("clock", severity, says)


@pytest.mark.parametrize(("limit", "severity"), [(128, "error"), (1500, "warning")])
def test_too_few_descriptors_are_told(limit, severity):
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    report = Report(NOWHERE, preexec_fn=lower)
    report.one("open_files", severity, f"at most {limit:,}", "LimitNOFILE=65536")


def test_limits_that_no_segment_survives_are_told():
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))

    report = Report(NOWHERE, preexec_fn=lower)
    report.one("file_size", "warning", "RLIMIT_FSIZE is 1.0 GB", "ulimit -f unlimited")
    report.one("address_space", "warning", "RLIMIT_AS is 64.0 GB")


def test_variables_that_stop_a_store_and_unknown_ones_are_told_and_no_value_is(tmp_path):
    secret = "kept-to-itself"
    env = {"MC_SHM": "maybe", "MC_SHMM": secret, "MOONCAKE_AWS_SECRET_ACCESS_KEY": secret, "MC_IB_TC": secret}
    report = Report(NOWHERE, env=env)
    report.one("variables", "error", "MC_SHM", "maybe", "docs/settings.md")
    report.one("unknown_variables", "warning", "MC_SHMM")
    assert any("MOONCAKE_AWS_SECRET_ACCESS_KEY" in finding["message"] for finding in report.all("idle_variables"))
    assert secret not in json.dumps(report.said)
    assert secret not in run(NOWHERE, env=env).stdout
    ring = Report(NOWHERE, env={"MOONCAKE_RAISE_DESCRIPTORS": "0"})
    assert "MOONCAKE_RAISE_DESCRIPTORS=0" in ring.all("open_files")[0]["message"]


def test_huge_pages_that_are_not_there_are_told():
    free = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("HugePages_Free:")]
    if free and int(free[0].split()[1]):
        pytest.skip("this host has huge pages")
    report = Report(NOWHERE, env={"MC_STORE_USE_HUGEPAGE": "1"})
    report.one("huge_pages", "error", "vm.nr_hugepages", "unset MC_STORE_USE_HUGEPAGE")


def test_data_ports_that_are_all_taken_are_told_unless_members_of_this_host_have_them():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        env = {"MC_STORE_CLIENT_MIN_PORT": str(port), "MC_STORE_CLIENT_MAX_PORT": str(port)}
        says = f"0 of 1 data ports ({port}-{port})"
        Report(NOWHERE, env=env).one("data_ports", "warning", says, "is not known", "MAX_PORT")
        with pages(status()) as address:
            Report(NOWHERE, f"--metrics_address={address}", env=env).one("data_ports", "error", says, "MAX_PORT")
        with pages(status(clients=[client(f"127.0.0.1:{port}")])) as address:
            report = Report(NOWHERE, f"--metrics_address={address}", env=env)
        report.one("data_ports", "ok", says, "members of this host have all of them")
        report.one("members", "ok", "1 of 1")


def test_a_state_folder_that_cannot_be_used_is_told(tmp_path):
    def of(folder: Path, *says: str) -> None:
        report = Report(NOWHERE, env={"MOONCAKE_STATE_DIR": str(folder)})
        report.one("folder", "warning", str(folder), *says)

    # How much room is left there is this machine's.
    missing = Report(NOWHERE, env={"MOONCAKE_STATE_DIR": str(tmp_path / "missing")})
    missing.told("folder", str(tmp_path / "missing"), "made when it starts")
    assert not (tmp_path / "missing").exists()
    file = tmp_path / "file"
    file.write_text("")
    of(file / "below", "is no folder", "MOONCAKE_STATE_DIR=FOLDER")
    if os.geteuid() != 0:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        of(closed, "cannot be written")


class Environment:
    """The folders of a Python environment with this binary in it, and no Python."""

    def __init__(self, folder: Path):
        self.bin = folder / "bin"
        self.packages = folder / "lib/python3.11/site-packages"
        self.bin.mkdir(parents=True)
        self.packages.mkdir(parents=True)
        self.binary = self.bin / "mooncake"
        try:
            self.binary.hardlink_to(Path(binary()).resolve())
        except OSError:
            shutil.copy(binary(), self.binary)

    def command(self, name: str) -> None:
        path = self.bin / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)


def test_another_distribution_another_version_and_another_path_are_told(tmp_path):
    own, other = Environment(tmp_path / "own"), Environment(tmp_path / "other")
    for environment in (own, other):
        environment.command("mooncake_master")
        environment.command("mooncake_client")
    (own.packages / "mooncake_rs-9.9.9.dist-info").mkdir()

    def report(*folders: Path, **env: str) -> Report:
        path = os.pathsep.join(str(folder) for folder in folders)
        return Report(NOWHERE, program=str(own.binary), env={"PATH": path, "MOONCAKE_ALLOW_CLASH": "", **env})

    well = report(own.bin, other.bin)
    well.one("path", "ok", str(own.binary))
    well.one("clash", "ok")
    well.one("package", "warning", version(), "9.9.9", wheel(version()))
    report(other.bin, own.bin).one("path", "warning", f"mooncake_master is {other.bin}", f"PATH={own.bin}:$PATH")
    report(tmp_path).one("path", "ok", "leads to none")
    (own.packages / "mooncake_transfer_engine_cuda13-0.3.13.dist-info").mkdir()
    clash = report(own.bin).one("clash", "error", "mooncake-transfer-engine-cuda13")
    assert clash["remedy"] == f"pip uninstall -y mooncake-transfer-engine-cuda13 mooncake-rs && {wheel(version())}"


def test_what_a_master_says_is_wrong_is_told_with_its_remedy(cluster):
    report = Report(f"--master={cluster(nodes=0, master_flags=['--wal=off']).master.addr}")
    report.one("no_memory", "error", "every put fails", "mooncake_client --master_server_address=")
    report.one("log", "warning", "--wal=on")
    report.one("folder", "skipped")
    assert report.code == 1


def test_help_says_what_it_does_and_a_wrong_flag_looks_at_nothing():
    said = run("--help").stdout
    assert "mooncake doctor [--master=HOST:PORT] [--json]" in said
    done = run("--no_such_flag")
    assert (done.returncode, done.stdout) == (1, "")
    assert "mooncake doctor: unknown flag --no_such_flag" in done.stderr
