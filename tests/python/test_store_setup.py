"""`setup` in its three forms, again and again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest

from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from pool import free_port, wait_for

POSITIONAL = ("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "")


@pytest.fixture
def fresh():
    made = MooncakeDistributedStore()
    yield made
    made.close()


def works(store: MooncakeDistributedStore) -> bool:
    return store.put("probe", b"1") == 0 and store.get("probe") == b"1" and store.remove("probe", True) == 0


def test_seven_positional_arguments(shared_cluster, fresh):
    assert fresh.setup(*POSITIONAL, shared_cluster.master.addr) == 0
    assert works(fresh)


def test_all_names_as_keywords(shared_cluster, fresh):
    code = fresh.setup(
        local_hostname="127.0.0.1",
        metadata_server="P2PHANDSHAKE",
        global_segment_size=0,
        local_buffer_size=16 << 20,
        protocol="tcp",
        rdma_devices="",
        master_server_addr=shared_cluster.master.addr,
        engine=None,
        enable_ssd_offload=False,
        ssd_offload_path="",
        tenant_id="default",
        enable_client_http_server=False,
        client_http_port=9300,
    )
    assert code == 0
    assert works(fresh)


@pytest.mark.parametrize(
    "address",
    ["master_server_addr", "master_server_address", "mooncake_master_server_addr", "mooncake_master_server_address"],
)
def test_a_dict_of_strings_with_every_spelling_of_the_master(shared_cluster, fresh, address):
    config = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": "0",
        "local_buffer_size": "16 MB",
        "protocol": "tcp",
        "device_name": "",
        "mooncake_prefer_local_alloc": "False",
        address: shared_cluster.master.addr,
    }
    assert fresh.setup(config) == 0, fresh.last_error()
    assert works(fresh)


def test_the_dict_may_have_a_name(shared_cluster, fresh):
    config = {"local_hostname": "127.0.0.1", "metadata_server": "", "master_server_addr": shared_cluster.master.addr}
    assert fresh.setup(config=config) == 0


def test_keys_of_the_dict_that_mean_nothing_are_told(shared_cluster):
    source = f"""
from mooncake.store import MooncakeDistributedStore
config = {{
    "local_hostname": "127.0.0.1", "metadata_server": "", "master_server_addr": {shared_cluster.master.addr!r},
    "global_segment_size": 0, "device_name": "", "mooncake_local_buffer_size": "1MB", "local_bufer_size": 1, "x": 2,
}}
for _ in range(2):
    s = MooncakeDistributedStore()
    assert s.setup(config) == 0, s.last_error()
    s.close()
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = [line.split(" WARN ")[-1].strip() for line in done.stderr.splitlines() if "no setting" in line]
    assert told == [
        'setup: "local_bufer_size" is no setting and has no effect; did you mean "local_buffer_size"?',
        'setup: "x" is no setting and has no effect',
    ], done.stderr


def test_an_empty_alias_does_not_hide_the_other(shared_cluster, fresh):
    config = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": 0,
        "master_server_addr": "",
        "master_server_address": shared_cluster.master.addr,
    }
    assert fresh.setup(config) == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"global_segment_size": "4 XB"}, "4 XB"),
        ({"global_segment_size": "-1"}, "-1"),
        ({"global_segment_size": "1000"}, "1000"),
        ({"local_buffer_size": "2TB"}, "1 TiB"),
        ({"local_hostname": ""}, "local_hostname"),
        ({"local_hostname": None, "metadata_server": None}, ""),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_name(fresh, change, named):
    config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": "127.0.0.1:1"}
    assert fresh.setup({**config, **change}) < 0
    assert named in fresh.last_error()


@pytest.mark.parametrize("given", ["positional", "dict"])
def test_a_second_master_is_refused_with_the_reason(shared_cluster, fresh, given):
    masters = f"{shared_cluster.master.addr},127.0.0.1:{free_port()}"
    if given == "dict":
        code = fresh.setup({"local_hostname": "h", "metadata_server": "", "master_server_addr": masters})
    else:
        code = fresh.setup(*POSITIONAL, masters)
    assert code == -600
    assert masters.replace(",", ", ") in fresh.last_error()
    assert "no standby" in fresh.last_error()


def test_an_engine_is_accepted_with_one_line(shared_cluster):
    source = f"""
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore
engine = TransferEngine()
for engine, protocol in ((engine.get_engine(), "rdma"), (engine, "tcp")):
    s = MooncakeDistributedStore()
    assert s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, protocol, "", {shared_cluster.master.addr!r}, engine) == 0
    assert s.put("k", b"v") == 0 and s.remove("k", True) == 0
    s.close()
engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
assert s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", {shared_cluster.master.addr!r}, engine=engine) == 0
assert s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", {shared_cluster.master.addr!r},
               engine=engine.get_engine()) == 0
assert s.put("k", b"v") == 0 and s.remove("k", True) == 0
s.close()
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("engine: ") == 1


def test_an_engine_in_a_dict_is_accepted_with_the_same_line(shared_cluster):
    names = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "local_buffer_size": 1 << 20}
    source = f"""
from mooncake.store import MooncakeDistributedStore
for engine in (None, object()):
    s = MooncakeDistributedStore()
    names = {names!r} | {{"master_server_addr": {shared_cluster.master.addr!r}, "global_segment_size": 0}}
    assert s.setup(names | {{"engine": engine}}) == 0, s.last_error()
    s.close()
    print("set up")
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("engine: ") == 1


def test_a_dict_without_required_names_is_refused(fresh):
    assert fresh.setup({"local_hostname": "127.0.0.1"}) == -600
    assert fresh.setup({}) == -600
    assert "metadata_server" in fresh.last_error()


def test_an_unknown_keyword_is_named_by_a_type_error(fresh):
    with pytest.raises(TypeError, match="frobnicate"):
        fresh.setup(*POSITIONAL, "127.0.0.1:1", frobnicate=True)


def test_missing_and_doubled_arguments_are_type_errors(fresh):
    with pytest.raises(TypeError, match="master_server_addr"):
        fresh.setup(*POSITIONAL)
    with pytest.raises(TypeError, match="protocol"):
        fresh.setup(*POSITIONAL, "127.0.0.1:1", protocol="tcp")
    with pytest.raises(TypeError):
        fresh.setup()
    with pytest.raises(TypeError):
        fresh.setup("127.0.0.1")
    with pytest.raises(TypeError):
        fresh.setup(config="127.0.0.1")
    for wrong in (-1, 1.5, "16MB", None):
        with pytest.raises(TypeError, match="global_segment_size"):
            fresh.setup("127.0.0.1", "P2PHANDSHAKE", wrong, 0, "tcp", "", "127.0.0.1:1")


def test_ports_that_are_not_the_masters_are_named_as_what_they_are(cluster, fresh):
    pool = cluster()
    lending = pool.store(segment=16 << 20)
    metrics = f"127.0.0.1:{pool.master.metrics_port}"
    for wrong, what in (
        (metrics, f"{metrics} speaks HTTP"),
        (pool.nodes[0].addr, f"is the port of a storage node and not the master: its master is {pool.master.addr}"),
        (pool.nodes[0].segment, f"{pool.nodes[0].segment} is the data port of a storage node"),
        (lending.get_hostname(), f"{lending.get_hostname()} is the data port of a storage node"),
    ):
        began = time.monotonic()
        assert fresh.setup(*POSITIONAL, wrong) == -900
        assert what in fresh.last_error()
        assert time.monotonic() - began < 2, "no try of it could come to another end"


def test_an_absent_master_is_said_at_once(fresh):
    started = time.monotonic()
    assert fresh.setup(*POSITIONAL, f"127.0.0.1:{free_port()}") == -900
    assert time.monotonic() - started < 3
    assert "mooncake_master" in fresh.last_error()
    assert fresh.health_check() == 1


@pytest.mark.parametrize(
    "metadata", ["http://127.0.0.1:8080/metadata", "etcd://127.0.0.1:2379", "redis://127.0.0.1", ""]
)
def test_metadata_services_are_accepted_with_one_line(shared_cluster, metadata):
    source = f"""
from mooncake.store import MooncakeDistributedStore
for _ in range(2):
    s = MooncakeDistributedStore()
    assert s.setup("127.0.0.1", {metadata!r}, 0, 1 << 20, "tcp", "", {shared_cluster.master.addr!r}) == 0
    s.close()
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("metadata server") == (1 if metadata else 0)


def test_a_name_without_a_port_gets_one_of_the_range(shared_cluster, fresh, monkeypatch):
    monkeypatch.setenv("MC_STORE_CLIENT_MIN_PORT", "13900")
    monkeypatch.setenv("MC_STORE_CLIENT_MAX_PORT", "13999")
    assert fresh.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 20, 0, "tcp", "", shared_cluster.master.addr) == 0
    name = fresh.get_hostname()
    assert re.fullmatch(r"127\.0\.0\.1:139\d\d", name)
    assert name in shared_cluster.segments()


def test_a_name_with_a_port_is_taken_as_it_is_or_refused(shared_cluster, fresh):
    name = f"127.0.0.1:{free_port()}"
    assert fresh.setup(name, "P2PHANDSHAKE", 1 << 20, 0, "tcp", "", shared_cluster.master.addr) == 0
    assert fresh.get_hostname() == name
    other = MooncakeDistributedStore()
    assert other.setup(name, "P2PHANDSHAKE", 1 << 20, 0, "tcp", "", shared_cluster.master.addr) == -600
    assert name in other.last_error()


def test_setup_after_close_and_setup_twice(shared_cluster, fresh):
    for _ in range(3):
        assert fresh.setup(*POSITIONAL, shared_cluster.master.addr) == 0
        assert works(fresh)
        assert fresh.close() == 0
        assert fresh.close() == 0
        assert fresh.put("k", b"v") == -600
        assert fresh.health_check() == 1
    before = len(shared_cluster.segments())
    for _ in range(3):
        assert fresh.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 20, 1 << 20, "tcp", "", shared_cluster.master.addr) == 0
    wait_for("only the last segment", lambda: len(shared_cluster.segments()) == before + 1)
    assert works(fresh)


def test_a_second_setup_that_fails_leaves_the_store_closed_and_says_so(shared_cluster, fresh):
    assert fresh.setup(*POSITIONAL, shared_cluster.master.addr) == 0
    assert fresh.setup("", *POSITIONAL[1:], shared_cluster.master.addr) == -600
    assert works(fresh), "what is refused for its arguments changes nothing"
    assert fresh.setup(*POSITIONAL, f"127.0.0.1:{free_port()}") == -900
    assert "what was set up before is closed" in fresh.last_error()
    assert fresh.put("k", b"v") == -600
    assert fresh.setup(*POSITIONAL, shared_cluster.master.addr) == 0
    assert works(fresh)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MC_SHM", os.fsdecode(b"\xff")),
        ("MC_STORE_CLIENT_BIND_ADDRESS", "256.1.1.1"),
        ("MC_LOOKUP_TIMEOUT_MS", "0"),
    ],
)
def test_variables_that_mean_nothing_are_refused_by_name(shared_cluster, fresh, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert fresh.setup(*POSITIONAL, shared_cluster.master.addr) == -600
    assert f"{name}=" in fresh.last_error()


@pytest.mark.parametrize("value", ["0", "false", ""])
def test_huge_pages_are_not_taken_when_the_variable_says_no(shared_cluster, fresh, monkeypatch, value):
    monkeypatch.setenv("MC_STORE_USE_HUGEPAGE", value)
    assert fresh.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 20, 0, "tcp", "", shared_cluster.master.addr) == 0


def test_two_stores_of_one_process_are_two_replica_hosts(cluster):
    c = cluster(nodes=0)
    a, b = c.store(segment=32 << 20), c.store(segment=32 << 20)
    assert a.get_hostname() != b.get_hostname()
    config = ReplicateConfig()
    config.replica_num = 2
    value = b"twice" * 1000
    assert a.put("k", value, config) == 0
    assert b.get("k") == value
    a.close()
    assert b.get("k") == value


def test_fewer_clients_than_replicas_store_fewer(store):
    config = ReplicateConfig()
    config.replica_num = 5
    assert store.put("k", b"v", config) == 0
    assert store.get("k") == b"v"


def test_local_buffer_of_zero_is_storage_only(cluster):
    c = cluster(nodes=0)
    lender = c.store(segment=32 << 20, buffer=0)
    other = c.store()
    assert other.put("k", b"v") == 0
    assert lender.put("k2", b"v") == -600
    assert "local_buffer_size" in lender.last_error()
    assert lender.put_batch(["k2"], [b"v"]) == lender.put_parts("k2", b"v") == -600
    assert lender.get("k") == b""
    assert lender.get_buffer("k") is None
    assert lender.is_exist("k") == 1


def test_health_says_whether_the_master_answers(cluster):
    c = cluster(nodes=1)
    s = c.store()
    assert s.health_check() == 0
    c.master.kill()
    wait_for("unhealthy", lambda: s.health_check() == 2, 5)
    c.master.start()
    wait_for("healthy", lambda: s.health_check() == 0, 5)
    s.close()
    assert s.health_check() == 1


def test_an_unreachable_master_means_absent_with_a_reason(cluster):
    """Engines take any other number than 0 for "it is there"."""
    c = cluster(nodes=1)
    s = c.store()
    assert s.put("k", b"v") == 0
    c.master.kill()
    assert s.is_exist("k") == 0
    assert s.last_error() != ""
    assert s.batch_is_exist(["k", "l"]) == [0, 0]
    assert s.put("l", b"v") in (-900, -901)
    assert s.get("k") == b""
