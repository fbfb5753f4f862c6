"""Folders of tiers, as operators arrange and remove them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from test_tiers import MEMORY, MIB, put_all, versions

from pool import binary, wait_for

pytestmark = pytest.mark.timeout(90)

NODE_FLAGS = ["--enable_offload"]


@pytest.fixture
def with_folders(cluster, tmp_path):
    """Starts a master, and nodes of 32 MiB with these variables; their tiers lie below one folder unless these say
    otherwise."""

    def start(nodes: int = 1, tiers: int | None = None, **env: str):
        folder = tmp_path / "tiers"
        env = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(folder), **env}
        pool = cluster(nodes=nodes, node_bytes=MEMORY, node_flags=NODE_FLAGS, env=env)
        mounted = nodes if tiers is None else tiers
        wait_for("tiers to be mounted", lambda: pool.metric("mooncake_tiers_live") == mounted)
        return pool, folder

    return start


def tier(pool, *args: str) -> subprocess.CompletedProcess[str]:
    where = f"--metrics_address=127.0.0.1:{pool.master.metrics_port}"
    return subprocess.run([binary(), "tier", *args, where], capture_output=True, text=True, timeout=40, check=False)


def listed(pool) -> list[dict]:
    done = tier(pool, "list", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["tiers"]


def uuids(folder: Path) -> set[str]:
    return {path.name.removeprefix("mooncake-") for path in folder.glob("mooncake-*")}


def test_a_tier_in_use_is_forgotten_and_its_owner_begins_another(with_folders):
    pool, folder = with_folders()
    store = pool.store()
    keys = [f"k{number}" for number in range(80)]
    put_all(store, keys, MIB)
    wait_for("all to be written", lambda: pool.metric("file_cache_nums_") == len(keys))
    [before] = listed(pool)
    assert (before["state"], before["records"], before["object_bytes"]) == ("LIVE", len(keys), len(keys) * MIB)
    assert before["capacity_bytes"] > 0
    assert uuids(folder) == {before["uuid"]}
    table = tier(pool, "list").stdout.splitlines()
    assert len(table) == 2
    assert before["uuid"] in table[1]
    assert " live " in table[1]
    assert before["owner"] in table[1]

    unknown = tier(pool, "forget", "0" * 32)
    assert (unknown.returncode, f"known: {before['uuid']}" in unknown.stderr) == (1, True), unknown.stderr
    assert "32 hexadecimal digits" in tier(pool, "forget", "k&uuid=all").stderr
    assert len(listed(pool)) == 1

    done = tier(pool, "forget", before["uuid"])
    assert (done.returncode, done.stdout) == (0, f"forgotten: {before['uuid']}, with {len(keys)} objects\n")
    wait_for("another tier", lambda: [one["state"] for one in listed(pool)] == ["LIVE"])
    [after] = listed(pool)
    assert after["uuid"] != before["uuid"]
    assert uuids(folder) == {before["uuid"], after["uuid"]}
    # What memory has is there, and is written again; what only that tier had is not.
    read = versions(store, keys)
    assert None not in read
    assert read[:40] == [-1] * 40
    assert read[-16:] == [0] * 16
    put_all(store, [f"new{number}" for number in range(80)], MIB)
    assert versions(store, [f"new{number}" for number in range(80)]) == [0] * 80
    # Nothing of it comes back with the next processes.
    for process in (pool.master, pool.nodes[0]):
        process.kill()
        process.start()
        wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)
        assert {one["uuid"] for one in listed(pool)} == {after["uuid"]}
        assert versions(store, keys[:40]) == [-1] * 40
    assert (folder / f"mooncake-{before['uuid']}" / "unknown").exists(), "it is deleted a day later"


def test_tiers_whose_owner_is_away_are_forgotten_with_all_others(with_folders):
    pool, _ = with_folders()
    store = pool.store()
    keys = [f"k{number}" for number in range(40)]
    put_all(store, keys, MIB)
    wait_for("all to be written", lambda: pool.metric("file_cache_nums_") == len(keys))
    pool.nodes[0].kill()
    wait_for("the tier to be hidden", lambda: [one["state"] for one in listed(pool)] == ["HIDDEN"])
    done = tier(pool, "forget", "all")
    assert (done.returncode, done.stdout.count("forgotten: ")) == (0, 1)
    assert listed(pool) == []
    assert tier(pool, "list").stdout == "no tiers\n"
    assert (tier(pool, "forget", "all").stdout, tier(pool, "forget", "0" * 32).returncode) == ("no tiers\n", 1)
    pool.nodes[0].start()
    wait_for("another tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    assert versions(store, keys) == [-1] * len(keys)
