"""The commands that look at a pool, and use it, from a shell."""

from __future__ import annotations

import json
import os
import pty
import select
import socket
import subprocess
import termios
import time
from pathlib import Path

import pytest

from pool import binary, free_port

MIB = 1 << 20


@pytest.fixture
def pool(cluster):
    """A pool of one node, and its commands: what one printed, and its exit code."""
    c = cluster(nodes=1, node_bytes=64 * MIB)

    def run(*args: str, stdin: bytes | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        environment = os.environ | {"MOONCAKE_MASTER": c.master.addr} | (env or {})
        return subprocess.run([binary(), *args], input=stdin, capture_output=True, timeout=30, env=environment)

    c.run = run
    return c


def test_a_value_goes_in_and_comes_out_by_pipes_and_files(pool, tmp_path: Path):
    value = os.urandom(3 * MIB + 5)
    path, back = tmp_path / "value", tmp_path / "back"
    path.write_bytes(value)
    assert pool.run("put", "model/a", str(path)).returncode == 0
    assert pool.run("put", "model/b", stdin=b"from a pipe").returncode == 0
    assert pool.run("get", "model/a", str(back)).returncode == 0
    assert back.read_bytes() == value
    got = pool.run("get", "model/b")
    assert (got.returncode, got.stdout) == (0, b"from a pipe")
    assert pool.store().get("model/b") == b"from a pipe", "it outlives the command that stored it"


def test_what_is_there_stays_unless_it_is_to_be_replaced(pool):
    assert pool.run("put", "k", stdin=b"first").returncode == 0
    again = pool.run("put", "k", stdin=b"second")
    assert (again.returncode, b"--replace" in again.stderr) == (0, True)
    assert pool.run("get", "k").stdout == b"first"
    assert pool.run("put", "k", "--replace", stdin=b"third").returncode == 0
    assert pool.run("get", "k").stdout == b"third"
    assert pool.run("put", "k", stdin=b"").returncode == 1


def test_objects_are_listed_told_and_removed(pool):
    for key in ("a/1", "a/2", "a.3", "odd\x01%41"):
        assert pool.run("put", key, stdin=b"v" * 100).returncode == 0
    listed = pool.run("ls", "a/").stdout.decode().splitlines()
    assert listed[0].split() == ["SIZE", "AGE", "KEEPS", "WHERE", "KEY"]
    assert sorted(line.split()[-1] for line in listed[1:]) == ["a/1", "a/2"]
    assert all(line.startswith("    100 B") and pool.nodes[0].segment in line for line in listed[1:])
    (odd,) = json.loads(pool.run("ls", "odd", "--json").stdout)["objects"]
    assert odd["key"] == "odd%01%2541"
    assert pool.run("get", odd["key"], "--encoded").stdout == b"v" * 100
    assert b"100 B (100 bytes)" in pool.run("stat", odd["key"], "--encoded").stdout
    missing = pool.run("stat", "none")
    assert (missing.returncode, b"no such object" in missing.stderr) == (1, True)
    few = pool.run("ls", "--limit=1")
    assert (len(few.stdout.splitlines()), b"--limit=0" in few.stderr) == (2, True)

    gone = pool.run("rm", "a/1", "none")
    assert (gone.returncode, gone.stderr.count(b"no such object")) == (1, 1)
    assert pool.run("rm", "--prefix=a/").stderr == b"removed 1\n", "a prefix is no pattern"
    assert pool.run("put", "<a", stdin=b"v").returncode == 0
    assert pool.run("rm", "--prefix=<").stderr == b"removed 1\n"
    assert {one["key"] for one in json.loads(pool.run("ls", "--json").stdout)["objects"]} == {"a.3", "odd%01%2541"}


def test_what_was_looked_up_a_moment_ago_is_removed_by_force_alone(pool):
    store = pool.store()
    assert store.put("k", b"v") == 0
    assert store.is_exist("k") == 1
    spared = pool.run("rm", "k")
    assert (spared.returncode, b"--force" in spared.stderr) == (1, True)
    spared = pool.run("rm", "--prefix=k")
    assert (spared.returncode, spared.stderr.splitlines()[-1]) == (1, b"removed 0")
    assert pool.run("rm", "k", "--force").returncode == 0
    assert store.is_exist("k") == 0


def test_status_says_how_the_pool_is_by_its_text_and_its_exit_code(pool):
    assert pool.run("put", "k", stdin=b"v" * MIB).returncode == 0
    done = pool.run("status")
    text = done.stdout.decode()
    assert done.returncode == 0, text
    assert text.startswith("mooncake_cluster  serving  version ")
    assert "1.0 MB of 64.0 MB" in text
    assert pool.nodes[0].segment in text
    assert "\x1b" not in text, "the output is no terminal"
    assert json.loads(pool.run("status", "--json").stdout)["memory"]["objects"] == 1
    pool.nodes[0].kill()
    pool.wait_segments(0)
    ill = pool.run("status")
    assert (ill.returncode, b"error: no client lends memory" in ill.stdout) == (1, True)


def test_a_master_that_cannot_be_asked_is_named_with_what_to_do(pool):
    nobody = f"127.0.0.1:{free_port()}"
    done = pool.run("status", f"--master={nobody}")
    assert (done.returncode, nobody.encode() in done.stderr, b"--master" in done.stderr) == (2, True, True)
    pages = pool.run("status", f"--master=127.0.0.1:{pool.master.metrics_port}")
    assert (pages.returncode, b"speaks HTTP" in pages.stderr) == (2, True)
    assert pool.run("ls", env={"MOONCAKE_MASTER": nobody}).returncode == 1
    named = pool.run("status", f"--metrics_address=127.0.0.1:{pool.master.metrics_port}", f"--master={nobody}")
    assert named.returncode == 0, "the pages' own address is enough"


def test_one_that_asks_where_the_pages_are_is_no_client(pool):
    before = pool.master.metric("mooncake_sessions_opened_total")
    assert pool.run("status").returncode == 0
    assert pool.run("ls").returncode == 0
    assert pool.master.metric("mooncake_sessions_opened_total") == before
    assert pool.master.metric("mooncake_refusals_total") == 0


def test_commands_that_go_on_end_with_their_reader(pool):
    watch = f"{binary()} status --watch | head -1"
    environment = os.environ | {"MOONCAKE_MASTER": pool.master.addr}
    done = subprocess.run(["bash", "-c", watch], capture_output=True, timeout=20, env=environment)
    assert done.stdout.startswith(b"mooncake_cluster  serving")


def test_a_watch_goes_on_while_the_master_is_away(pool):
    environment = os.environ | {"MOONCAKE_MASTER": pool.master.addr}
    watch = subprocess.Popen([binary(), "status", "--watch"], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert "serving" in watch.stdout.readline()
        pool.master.kill()
        assert any("does not answer" in line or "no answer" in line for line in watch.stdout)
        pool.master.start()
        assert any("serving" in line for line in watch.stdout)
    finally:
        watch.kill()
        watch.communicate()


def test_top_leaves_the_terminal_as_it_was_however_it_ends(pool):
    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    environment = os.environ | {"MOONCAKE_MASTER": pool.master.addr, "TERM": "xterm"}
    top = subprocess.Popen([binary(), "top"], stdin=follower, stdout=follower, stderr=follower, env=environment)
    until = time.monotonic() + 15
    while termios.tcgetattr(follower) == before and time.monotonic() < until:
        if select.select([leader], [], [], 0.1)[0]:
            os.read(leader, 1 << 16)
    assert termios.tcgetattr(follower) != before
    top.terminate()
    while top.poll() is None and time.monotonic() < until:
        if select.select([leader], [], [], 0.1)[0]:
            os.read(leader, 1 << 16)
    assert top.wait(1) == 0
    assert termios.tcgetattr(follower) == before
    os.close(follower)
    os.close(leader)


def test_pages_of_another_master_are_not_changed(pool, cluster):
    other = cluster(nodes=0)
    named = f"--metrics_address=127.0.0.1:{other.master.metrics_port}"
    assert pool.run("tier", "forget", "all", named).returncode == 0, "who names an address means it"
    assert pool.run("tier", "forget", "all").returncode == 0


def test_bench_stores_reads_and_leaves_nothing(pool):
    done = pool.run("bench", "--count=8", "--size=256KB", "--threads=2", "--batch=4", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [call["call"] for call in told["calls"]] == ["put", "is_exist", "get"]
    assert told["objects"] == 16
    assert all(call["objects_per_second"] > 0 and call["p50_us"] <= call["p99_us"] for call in told["calls"])
    assert json.loads(pool.run("ls", "--json").stdout)["objects"] == []
    table = pool.run("bench", "--count=2").stdout.decode()
    assert [line.split()[0] for line in table.splitlines()[3:]] == ["put", "is_exist", "get", "floor"]


def test_bench_says_where_the_pool_is_too_small(pool):
    done = pool.run("bench", "--count=100", "--size=4MB")
    assert done.returncode == 1
    assert b"--lend" in done.stderr or b"no room" in done.stderr
    assert json.loads(pool.run("ls", "--json").stdout)["objects"] == []


def test_top_shows_the_pool_on_a_terminal_until_q(pool):
    leader, follower = pty.openpty()
    subprocess.run(["stty", "rows", "30", "cols", "120"], stdin=follower, check=True)
    environment = os.environ | {"MOONCAKE_MASTER": pool.master.addr, "TERM": "xterm"}
    top = subprocess.Popen([binary(), "top"], stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    shown, until = b"", time.monotonic() + 15
    while pool.nodes[0].segment.encode() not in shown and time.monotonic() < until:
        if select.select([leader], [], [], 0.1)[0]:
            shown += os.read(leader, 1 << 16)
    assert pool.nodes[0].segment.encode() in shown, shown[-2000:]
    assert b"mooncake_cluster" in shown
    os.write(leader, b"q")
    while select.select([leader], [], [], 1)[0]:
        try:
            if not os.read(leader, 1 << 16):
                break
        except OSError:
            break
    assert top.wait(10) == 0
    os.close(leader)
    alone = pool.run("top")
    assert (alone.returncode, b"mooncake status" in alone.stderr) == (1, True)


def test_codes_are_explained_and_scripts_and_pages_of_the_manual_are_made(pool):
    told = pool.run("explain", "-706").stdout.decode()
    assert told.startswith("-706 OBJECT_HAS_LEASE: ")
    assert "  -> " in told
    assert pool.run("explain", "-7").returncode == 1
    for shell in ("bash", "zsh"):
        script = pool.run("completions", shell).stdout
        assert subprocess.run(["bash", "-n"], input=script).returncode == 0
    assert b"mooncake" in pool.run("completions", "fish").stdout
    assert pool.run("completions", "tcsh").returncode == 1
    assert pool.run("man", "mooncake_master").stdout.startswith(b".TH MOONCAKE_MASTER 1")


@pytest.mark.parametrize("named", ["TERM", "NO_COLOR"])
def test_log_lines_have_colours_on_a_terminal_alone(named: str, tmp_path: Path):
    leader, follower = pty.openpty()
    command = [binary(), "master", "--rpc_port=0", "--metrics_port=0", f"--log_dir={tmp_path}"]
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    env |= {"NO_COLOR": "1"} if named == "NO_COLOR" else {}
    master = subprocess.Popen(command, stdout=follower, stderr=follower, env=env)
    os.close(follower)
    try:
        shown, until = b"", time.monotonic() + 15
        while b"Master service started" not in shown and time.monotonic() < until:
            if select.select([leader], [], [], 0.1)[0]:
                shown += os.read(leader, 1 << 16)
        assert b"Master service started" in shown
        assert (b"\x1b[" in shown) == (named == "TERM"), shown
        assert b"\x1b[" not in (tmp_path / "mooncake_master").read_bytes()
    finally:
        master.terminate()
        assert master.wait(10) == 0
        os.close(leader)


def test_log_lines_are_json_where_that_is_asked_for(cluster):
    c = cluster(nodes=0, master_flags=["--log_format=json"])
    lines = [json.loads(line) for line in c.master.output().splitlines() if line]
    assert all({"timestamp", "level", "message"} <= line.keys() for line in lines), lines
    assert any(line["message"].startswith("Master service started") for line in lines)


def test_a_watchdog_hears_that_the_master_and_a_node_go_on(cluster, tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        c = cluster(nodes=0, env=env)
        heard = [manager.recv(64) for _ in range(3)]
        assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        c.master.stop()
        manager.settimeout(1)
        with pytest.raises(TimeoutError):
            _ = [manager.recv(64) for _ in range(5)]
        c.master.cont()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "of-a-node"))
        manager.settimeout(10)
        c.add_node(64 * MIB, env=env | {"NOTIFY_SOCKET": str(tmp_path / "of-a-node")})
        assert [manager.recv(64) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
