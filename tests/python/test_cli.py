"""The commands, as existing scripts call them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import Cluster

from mooncake.store import MooncakeDistributedStore
from pool import Master, Program, binary, free_port, wait_for

PROGRAMS = {
    "master": "mooncake_master",
    "client": "mooncake_client",
    "metadata-server": "mooncake_http_metadata_server",
    "engine-bench": "transfer_engine_bench",
    "engine-sweep": "tebench",
    "show-link": "show_link",
    "topology-dump": "transfer_engine_topology_dump",
    "proxy": "mooncake_proxy",
}


def run(*args: str, timeout: float = 20, **options) -> subprocess.CompletedProcess:
    return subprocess.run(args, capture_output=True, text=True, timeout=timeout, **options)


@pytest.mark.parametrize("word", ["help", "--help", "-h"])
def test_help_lists_the_commands(word):
    done = run(binary(), word)
    assert done.returncode == 0
    assert "mooncake master" in done.stdout
    assert "mooncake client" in done.stdout


@pytest.mark.parametrize("command", ["master", "client"])
def test_each_command_lists_its_flags_and_its_version(command):
    done = run(binary(), command, "--help")
    assert done.returncode == 0
    assert ("rpc_port" if command == "master" else "global_segment_size") in done.stdout
    assert run(binary(), command, "--version").stdout.startswith(f"mooncake_{command} ")
    assert run(binary(), "version").stdout.startswith("mooncake ")


def test_errors_begin_with_the_name_of_the_program():
    for command, name in PROGRAMS.items():
        done = run(binary(), command, "--no_such_flag")
        assert done.returncode == 1
        assert done.stderr.startswith(f"{name}: unknown flag --no_such_flag"), done.stderr


def test_a_word_that_is_no_command_is_named():
    done = run(binary(), "serve")
    assert done.returncode == 2
    assert "serve" in done.stderr
    assert run(binary()).returncode == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["version", "now"], 'mooncake version: unexpected argument "now"; did you mean mooncake version?'),
        (["--version", "master"], 'unexpected argument "master"; did you mean mooncake master --version?'),
        (["-V", "state"], 'unexpected argument "state"; did you mean mooncake version?'),
        (["help", "me"], 'mooncake help: unexpected argument "me"; did you mean mooncake help?'),
        (["--help", "client"], 'unexpected argument "client"; did you mean mooncake client --help?'),
        (["-h", "state"], 'unexpected argument "state"; did you mean mooncake state --help?'),
        (["state", "help", "gc"], 'mooncake state: unexpected argument "gc". mooncake state ls lists'),
    ],
)
def test_a_stray_word_behind_what_takes_none_is_refused_with_what_was_meant(args, said):
    done = run(binary(), *args)
    assert done.returncode != 0
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("word", ["help", "status", "10.0.0.5:50051"])
@pytest.mark.parametrize("command", PROGRAMS)
def test_a_stray_word_starts_nothing(command, word, tmp_path):
    env = {**os.environ, "MOONCAKE_STATE_DIR": str(tmp_path)}
    done = run(binary(), command, word, env=env)
    assert done.returncode == 1
    assert f'{PROGRAMS[command]}: unexpected argument "{word}"' in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--global_segment_size=4 XB"], "4 XB"),
        (["--global_segment_size=0"], "global_segment_size"),
        (["--globalsegmentsize=1"], "did you mean"),
        (["--enable_offlod"], "did you mean --enable_offload"),
        (["--master_server_address=nowhere:99999"], '"nowhere:99999" is not host:port'),
    ],
)
def test_a_storage_node_refuses_what_it_cannot_do(args, said):
    done = run(binary(), "client", *args)
    assert done.returncode == 1
    assert said in done.stderr


def test_flags_without_a_meaning_are_accepted_with_one_line(cluster):
    c = cluster(nodes=0)
    flags = ["--threads=4", "--tenant_id", "default", "--start_offload_rpc_server", "--device_names="]
    node = c.add_node(16 << 20, flags)
    assert node.output().count("flag --threads has no effect") == 1
    assert c.segments() == [node.segment]


def test_a_storage_node_leaves_in_order_at_sigterm(cluster):
    c = cluster(nodes=1)
    assert len(c.segments()) == 1
    started = time.monotonic()
    assert c.nodes[0].terminate() == 0
    assert time.monotonic() - started < 2
    assert c.segments() == []


def test_the_master_says_who_left_and_what_was_lost_with_whom(cluster):
    c = cluster(nodes=2)
    stays, dies = c.nodes
    assert stays.terminate() == 0
    dies.kill()
    wait_for("the loss", lambda: "client lost" in c.master.output())
    said = c.master.output().splitlines()
    [left] = [line for line in said if "client left" in line]
    assert f'name="{stays.segment.partition(" ")[0]}"' in left
    assert any("segment unmounted" in line and stays.segment.partition(" ")[0] in line for line in said)
    [lost] = [line for line in said if "client lost" in line]
    assert "WARN" in lost
    assert f'name="{dies.segment.partition(" ")[0]}"' in lost
    assert f'reason="its process is gone" segments=1 lent={dies.size} ' in lost


def test_a_storage_node_that_listens_on_a_network_says_that_nobody_is_asked_who_he_is(tmp_path):
    for host, is_told in [("0.0.0.0", True), ("127.0.0.1", False)]:
        nowhere = ["--master_server_address=127.0.0.1:1", "--global_segment_size=16MB", "--port=0"]
        node = Program("node", [binary(), "client", f"--host={host}", *nowhere], tmp_path / host, "trying again")
        node.start()
        assert ("NO AUTHENTICATION: --host=0.0.0.0" in node.output()) == is_told
        node.kill()


def test_a_storage_node_waits_for_its_master_and_comes_back_to_it(cluster, tmp_path):
    c = Cluster(tmp_path)
    try:
        c.master = Master(tmp_path, [])
        node = Program(
            "early node",
            [binary(), "client", f"--master_server_address={c.master.addr}", "--host=127.0.0.1",
             "--global_segment_size=16MB"],
            tmp_path / "early.out",
            "trying again",
        )  # fmt: skip
        c.nodes.append(node)
        node.start()
        c.master.start()
        wait_for("segment", lambda: len(c.segments()) == 1)
        segment = c.segments()
        c.master.kill()
        c.master.start()
        wait_for("segment again", lambda: c.segments() == segment)
    finally:
        c.end()


def test_a_node_that_waits_for_its_master_says_so_once_and_says_when_it_is_back(cluster):
    c = cluster(nodes=1)
    [node] = c.nodes
    c.master.kill()
    wait_for("the loss", lambda: "not reconnected yet; still trying" in node.output())
    c.master.start()
    wait_for("the session", lambda: "session resumed" in node.output())
    said = node.output().splitlines()
    [lost] = [line for line in said if "connection to the master lost" in line]
    assert "anchor" not in lost
    # Once a minute, and at once where there is another reason.
    waits = [line for line in said if "still trying" in line]
    reasons = [line.partition("reason=")[2] for line in waits]
    assert len(set(reasons)) == len(reasons), waits
    assert all("WARN" in line and f"master={c.master.addr}" in line and "seconds=" in line for line in waits)
    [back] = [line for line in said if "session resumed" in line]
    assert f"master={c.master.addr}" in back
    assert said.index(back) > said.index(waits[-1])


def test_a_second_storage_node_of_a_host_is_told_of_the_first_before_it_lends_anything(cluster):
    c = cluster(nodes=0)
    port = free_port()
    c.add_node(16 << 20, [f"--port={port}"])
    segments = c.segments()
    flags = [f"--master_server_address={c.master.addr}", "--host=127.0.0.1", "--global_segment_size=16MB"]
    done = run(binary(), "client", *flags, f"--port={port}")
    assert done.returncode == 1
    asked = "another storage node on this host? --port=0 takes any free port"
    assert f"flag --port={port}: Address already in use (os error 98); {asked}" in done.stderr
    # Neither a session nor memory was made.
    assert c.segments() == segments
    assert c.master.output().count("client connected") == 1


def test_a_folder_for_logs_that_was_made_is_named(tmp_path):
    folder = tmp_path / "not" / "there"
    for nth in range(2):
        master = Master(tmp_path, [f"--log_dir={folder}"])
        master.start()
        master.kill()
        said = f"--log_dir={folder}: there was no such folder, it was made"
        assert master.output().count(said) == 1, f"start {nth}"
        assert list(folder.iterdir())


def test_a_node_on_the_wildcard_is_named_by_a_real_address(cluster):
    c = cluster(nodes=0)
    node = c.add_node(16 << 20, ["--host=0.0.0.0"])
    assert node.segment.startswith("127.0.0.1:")
    s = c.store()
    assert s.put("k", b"v") == 0
    assert s.get("k") == b"v"


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_master_ends_in_order(tmp_path, stop):
    master = Master(tmp_path, [])
    master.start()
    try:
        assert "HTTP metrics server started on port" in master.output()
        master.signal(stop)
        assert master.process.wait(5) == 0
    finally:
        master.kill()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("mooncake.cli", "mooncake_master"),
        ("mooncake.cli_client", "mooncake_client"),
        ("mooncake.cli_bench", "transfer_engine_bench"),
        ("mooncake.transfer_engine_topology_dump", "transfer_engine_topology_dump"),
    ],
)
def test_python_entry_points_become_the_binary(module, name):
    if "MOONCAKE_BIN" in os.environ:
        pytest.skip("needs the installed wheel")
    done = run(sys.executable, "-m", module, "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name} ")


@pytest.mark.parametrize("command", ["mooncake_master", "mooncake_client"])
def test_shims_keep_the_process_id_and_pass_everything(command, tmp_path):
    shim = Path(binary()).parent / command
    if not shim.exists():
        pytest.skip("needs the installed wheel")
    assert run(str(shim), "--version").stdout.startswith(command)
    # Called through a link from elsewhere it still finds the binary.
    link = tmp_path / command
    link.symlink_to(shim)
    assert run(str(link), "--version").stdout.startswith(command)
    if command == "mooncake_master":
        port = free_port()
        flags = ["--rpc_address=127.0.0.1", "--rpc_port", str(port), "--metrics_port=0", "--wal=off"]
        daemon = Program("shim", [str(shim), *flags], tmp_path / "out", f"Master service started on port {port}")
        daemon.start()
        assert "mooncake" in Path(f"/proc/{daemon.pid}/cmdline").read_text().split("\0")[0]
        assert daemon.terminate() == 0


def test_arguments_that_are_no_text_are_named_and_nothing_panics():
    for command in ("master", "client"):
        done = subprocess.run([binary(), command, b"--no\xff=1"], capture_output=True, timeout=20)
        assert done.returncode == 1
        assert b"unknown flag" in done.stderr
        assert b"panicked" not in done.stderr


def test_the_lines_that_scripts_wait_for_do_not_depend_on_the_clients_log_level(tmp_path):
    master = Master(tmp_path, [], {"MC_LOG_LEVEL": "ERROR"})
    try:
        master.start()
    finally:
        master.kill()
    assert "Master service started on port" in master.output()


def test_the_line_that_says_that_a_node_is_ready_has_the_time_as_those_around_it_have(cluster):
    c = cluster(nodes=1, node_flags=["--minloglevel=2", "--enable_http_server", "--http_port=0"])
    for words in ("HTTP server started on port", "Mooncake client ready: segment"):
        assert re.search(
            rf"^\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{6}}Z  INFO {words}", c.nodes[0].output(), re.MULTILINE
        )


def test_the_master_forgets_the_process_of_a_client_with_its_session(cluster):
    c = cluster(nodes=0)

    def open_files() -> int:
        return len(os.listdir(f"/proc/{c.master.pid}/fd"))

    before = open_files()
    for _ in range(100):
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", c.master.addr) == 0
        assert store.put("k", b"v") == -200
        assert store.close() == 0
    wait_for("the descriptors to be closed", lambda: open_files() < before + 20, timeout=2)
