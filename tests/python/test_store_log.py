"""The store says which way bytes go, and no more than was asked for: to Python's logging, or else on stderr."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLIENT = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
assert store.put("logged", b"v") == 0 and store.get("logged") == b"v"
assert store.remove("logged", True) == 0
store.close()
"""


COUNTED = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
assert store.put("counted", b"v") == 0 and store.remove("counted", True) == 0
time.sleep(1.5)
store.close()
"""


TWICE = """
import sys
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore
for _ in range(2):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    store.close()
"""


MISTAKEN = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
assert store.batch_put_from([f"mistaken-{i}" for i in range(100)], [4096] * 100, [64] * 100) == [-600] * 100
assert "0x1000" in store.last_error()
store.close()
"""


def said(cluster, monkeypatch, client: str = CLIENT, **env: str) -> str:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-c", client, cluster.master.addr], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(("shm", "path"), [("1", "shm"), ("0", "tcp")])
def test_the_path_to_each_peer_is_reported_with_its_reason(shared_cluster, monkeypatch, shm, path):
    monkeypatch.delenv("MC_LOG_LEVEL", raising=False)
    lines = said(shared_cluster, monkeypatch, MC_SHM=shm).splitlines()
    links = [line for line in lines if f"path={path}" in line]
    assert len(links) == 1, lines
    assert shared_cluster.nodes[0].segment in links[0]
    assert "reason=" in links[0]


def test_a_level_silences_it(shared_cluster, monkeypatch):
    assert said(shared_cluster, monkeypatch, MC_LOG_LEVEL="WARNING") == ""


def test_what_was_counted_is_told_as_often_as_asked(shared_cluster, monkeypatch):
    monkeypatch.delenv("MC_LOG_LEVEL", raising=False)
    lines = said(shared_cluster, monkeypatch, COUNTED, MC_STORE_CLIENT_METRIC_INTERVAL="1").splitlines()
    told = [line for line in lines if "Client Metrics: " in line]
    assert len(told) == 1, lines
    assert "Put: 1 " in told[0]


def test_a_report_that_is_never_due_harms_nothing(shared_cluster, monkeypatch):
    told = said(shared_cluster, monkeypatch, MC_STORE_CLIENT_METRIC_INTERVAL=str(2**64 - 1), MC_LOG_LEVEL="WARNING")
    assert told == ""


def test_a_callers_mistake_is_told_to_the_caller_only(shared_cluster, monkeypatch):
    assert said(shared_cluster, monkeypatch, MISTAKEN, MC_LOG_LEVEL="WARNING") == ""


def test_a_level_that_is_none_is_named(shared_cluster, monkeypatch):
    assert 'MC_LOG_LEVEL="loud"' in said(shared_cluster, monkeypatch, MC_LOG_LEVEL="loud")


def test_variables_that_do_nothing_here_are_told_once_a_process(shared_cluster, monkeypatch):
    given = {"MC_TRANSFER_TIMEOUT": "60", "MC_GID_INDEX": "3", "MC_DATA_TIMEOUT_MS": "3000"}
    given |= {"MOONCAKE_BUCKET_MAX_TOTAL_SIZE": "1", "MOONCAKE_NOBODY_KNOWS": "1"}
    lines = said(shared_cluster, monkeypatch, TWICE, **given)
    assert lines.count("MC_TRANSFER_TIMEOUT has no effect: MC_DATA_TIMEOUT_MS") == 1
    assert lines.count("MC_GID_INDEX has no effect: RDMA is of transfer engines alone in this version\n") == 1
    assert lines.count("MOONCAKE_BUCKET_MAX_TOTAL_SIZE has no effect: a tier has files of its own") == 1
    assert lines.count("without effect: MOONCAKE_NOBODY_KNOWS\n") == 1


LOGGED = """
import logging, os, sys, threading
from mooncake.store import MooncakeDistributedStore

class Kept(logging.Handler):
    def emit(self, record):
        kept.append((record.name, record.levelname, record.getMessage(), record.threadName))

kept = []
def use():
    before = len(kept)
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, sys.argv[2], "", sys.argv[1]) == 0
    assert store.put("logged", b"v") == 0 and store.get("logged") == b"v"
    assert store.remove("logged", True) == 0
    store.close()
"""


def test_lines_are_those_of_a_logger_of_python(shared_cluster):
    script = (
        LOGGED
        + """
handler = Kept()
logging.getLogger("mooncake").addHandler(handler)
logging.getLogger("mooncake").setLevel(logging.INFO)
use()
import atexit
def check():
    links = [one for one in kept if "path=" in one[2]]
    assert [one[:2] for one in links] == [("mooncake", "INFO")], kept
    assert any(one[1] == "WARNING" and "rdma" in one[2] for one in kept), kept
    print("checked", flush=True)
# Runs behind the hook of the library, which hands over what is left.
atexit._run_exitfuncs()
check()
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", script, shared_cluster.master.addr, "rdma"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "checked\n"
    assert done.stderr == ""


def test_the_level_is_read_anew_at_each_setup(shared_cluster, monkeypatch):
    monkeypatch.delenv("MC_LOG_LEVEL", raising=False)
    script = (
        LOGGED
        + """
for level in ("ERROR", "INFO", None):
    os.environ.pop("MC_LOG_LEVEL", None)
    if level:
        os.environ["MC_LOG_LEVEL"] = level
    print(f"-- {level}", file=sys.stderr, flush=True)
    use()
    threading.Event().wait(0.3)
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", script, shared_cluster.master.addr, "tcp"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    silent, said, default = (part.count("path=") for part in done.stderr.split("-- ")[1:])
    assert (silent, said, default) == (0, 1, 1), done.stderr


def test_an_application_that_configures_logging_has_all_lines_there(shared_cluster, tmp_path, monkeypatch):
    monkeypatch.delenv("MC_LOG_LEVEL", raising=False)
    path = tmp_path / "app.log"
    script = f"import logging; logging.basicConfig(filename={str(path)!r}, level=logging.INFO)\n" + LOGGED + "use()\n"
    done = subprocess.run(
        [sys.executable, "-c", script, shared_cluster.master.addr, "tcp"], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_text().count("INFO:mooncake:link ") == 1


def test_a_storage_node_says_what_it_was_told_and_where(cluster):
    node = cluster(nodes=1, env={"MC_DATA_TIMEOUT_MS": "2500"}).nodes[0]
    assert f"global_segment_size={node.size} (command line)" in node.output()
    assert "MC_DATA_TIMEOUT_MS=2500 (environment)" in node.output()
