"""Where an engine listens: on what it was told; and whoever opens it to a network is warned."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)

BEGIN = """
import socket, sys
from mooncake.engine import TransferEngine
engines = [TransferEngine() for _ in range(2)]
for engine in engines:
    assert engine.initialize(sys.argv[1], "P2PHANDSHAKE", "tcp", "") == 0, engine.last_error()
for host in ("127.0.0.1", "127.0.0.2", "::1"):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        if one.connect_ex((host, engines[0].get_rpc_port())) == 0:
            print(host)
print(engines[0].get_rpc_port())
"""


def begun(name: str, **env: str) -> tuple[list[str], int, str]:
    """The addresses at which the first of two engines is met, its port, and what the process said of its own accord."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MC_")}
    command = [sys.executable, "-c", BEGIN, name]
    done = subprocess.run(command, capture_output=True, text=True, env={**clean, **env}, timeout=50)
    assert done.returncode == 0, done.stderr
    *met, port = done.stdout.split()
    return met, int(port), done.stderr


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_an_engine_that_listens_on_all_addresses_says_so_once_and_how_to_change_it(name):
    met, port, said = begun(name)
    assert {"127.0.0.1", "127.0.0.2"} <= set(met)
    warnings = [line for line in said.splitlines() if "WARN" in line]
    assert len(warnings) == 1, "two engines, one warning"
    for part in ("all addresses", name, "without authentication", str(port), "MC_TE_BIND_ADDRESS"):
        assert part in warnings[0]


@pytest.mark.parametrize("variable", ["MC_TE_BIND_ADDRESS", "MC_TCP_BIND_ADDRESS"])
def test_an_engine_that_is_told_loopback_is_there_alone_and_warns_of_nothing(variable):
    met, _, said = begun("127.0.0.1", **{variable: "127.0.0.1"})
    assert met == ["127.0.0.1"]
    assert "WARN" not in said


def test_variables_that_mean_nothing_here_are_named_and_ports_out_of_rule_are_those_of_the_default():
    unknown = {"MC_NOBODY_KNOWS": "1", "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": "2"}
    ports = {"MC_MIN_RPC_PORT": "40000", "MC_TCP_SLICE_SIZE": "4096", "MC_MAX_SGE": "2", "MC_DATA_TIMEOUT_MS": "3000"}
    _, port, said = begun("127.0.0.1", **ports, **unknown)
    assert 15_000 <= port <= 17_000
    warning = next(line for line in said.splitlines() if "MC_MIN_RPC_PORT 40000" in line)
    assert "WARN" in warning
    assert "15000 to 17000" in warning
    assert "MC_TCP_SLICE_SIZE has no effect: nothing is cut for TCP" in said
    assert "MC_MAX_SGE has no effect" in said
    assert "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT has no effect: a tier has files of its own" in said
    assert "without effect: MC_NOBODY_KNOWS" in said
    assert "MC_DATA_TIMEOUT_MS" not in said, "a store reads it"
