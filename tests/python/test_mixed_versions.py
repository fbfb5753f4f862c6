"""Masters, owners and clients of an earlier wheel beside those of today's, as they meet while a pool is updated.

The earlier wheel is that of MOONCAKE_OLD_WHEEL, or of build/wheels/49e5191; `make test-long` makes it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from contents import value, version_of

from pool import Installation, wait_for

pytestmark = [pytest.mark.mixed, pytest.mark.timeout(120)]

KIB, MIB = 1 << 10, 1 << 20
ROOT = Path(__file__).resolve().parents[2]
FIRST = "49e5191"
KINDS = ("old", "new")
PATHS = {"shared memory": {}, "TCP": {"MC_SHM": "0"}}
# All that is mixed in any way once both kinds of clients are there: a master and an owner.
ROLES = list(itertools.product(KINDS, KINDS))
# After a restart all processes run: what they have to agree on first takes some of these.
SOON = 15.0
HOLD = (
    "served.view = store.get_buffer(key); import hashlib; result = hashlib.sha256(memoryview(served.view)).hexdigest()"
)
LOOK = "import hashlib; result = hashlib.sha256(memoryview(served.view)).hexdigest()"
LET_GO = "served.view = None"
PUT_TWICE = """
from mooncake.store import ReplicateConfig
config = ReplicateConfig()
config.replica_num = 2
result = store.put(key, data, config)
"""


def old_wheel() -> Path | None:
    if given := os.environ.get("MOONCAKE_OLD_WHEEL"):
        return Path(given)
    return next((ROOT / "build" / "wheels" / FIRST).glob("*.whl"), None)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, str]:
    """Interpreters, by the wheel that they import."""
    wheel = old_wheel()
    if wheel is None:
        pytest.skip(f"there is no wheel of {FIRST}: `make wheel-of REV={FIRST}` makes one, `make test-long` does, too")
    folder = tmp_path_factory.mktemp("old") / "venv"
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    # The runner's pip works on another environment: much quicker than installing pip there.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", wheel], check=True, timeout=60)
    return {"old": str(python), "new": sys.executable}


class Mixed:
    """A pool with a client of each kind."""

    def __init__(self, pool, wheels: dict[str, str], owners, env: dict[str, str], node_bytes: int):
        self.pool, self.wheels, self.env = pool, wheels, env
        # What an old process has mapped of a new owner takes nothing in a raised epoch: that process cannot say that
        # the master knows its views.
        self.kept_closed = owners.count("new") if env == PATHS["shared memory"] else 0
        for owner in owners:
            pool.add_node(node_bytes, env=env, python=wheels[owner])
        self.clients = {kind: pool.process(env=env, python=wheels[kind]) for kind in KINDS}

    def pairs(self):
        """Who writes and who reads: each for the other and for itself."""
        return itertools.product(self.clients.items(), repeat=2)

    def restart(self, kind: str, keep_witness: bool = True) -> None:
        """SIGKILL to the master, and a start with that wheel's; without the witness the epoch is raised."""
        self.pool.master.kill()
        if not keep_witness:
            self.pool.master.forget()
        self.pool.master.become(Installation.of(self.wheels[kind]))
        before = self.pool.master.output()
        self.pool.master.start()
        said = self.pool.master.output()[len(before) :]
        assert ("the epoch is raised" in said) is not keep_witness, said

    def put_all(self, prefix: str, count: int, size: int) -> list[str]:
        """Keys of which each kind of client has written a half."""
        keys = [f"{prefix}{number}" for number in range(count)]
        for number, key in enumerate(keys):
            client = self.clients[KINDS[number % 2]]
            code = client.call("put", key, value(key, size))
            assert code == 0, f"{key}: {code} {client.call('last_error')}"
        return keys

    def present(self, keys: list[str]) -> int:
        """Asserts that nobody gets wrong bytes; how many keys everybody gets."""
        found = 0
        for key in keys:
            got = [client.call("get", key) for client in self.clients.values()]
            assert all(not one or version_of(key, one) == 0 for one in got), f"{key} has wrong bytes"
            found += all(got)
        return found

    def wait_present(self, keys: list[str], timeout: float) -> None:
        def there() -> bool:
            return all(set(client.call("batch_is_exist", keys)) == {1} for client in self.clients.values())

        wait_for("all objects", there, timeout)
        assert self.present(keys) == len(keys)

    def start_old_again(self) -> None:
        """The old client lets go of everything, and another one takes its place."""
        self.clients["old"].call("close")
        wait_for("what it kept closed", lambda: self.pool.master.metric("mooncake_segments_closed") == 0, SOON)
        self.clients["old"] = self.pool.process(env=self.env, python=self.wheels["old"])

    def wait_usable(self, closed: int = 0) -> None:
        """Waits until all owners' memory but so much takes puts again, and each kind of client puts."""
        self.pool.wait_segments(len(self.pool.nodes), SOON)
        wait_for("open segments", lambda: self.pool.master.metric("mooncake_segments_closed") == closed, SOON)
        for kind, client in self.clients.items():
            wait_for(f"a put of the {kind} client", lambda c=client: c.call("put", "probe", b"p") == 0, SOON)
            client.call("remove", "probe", True)


@pytest.fixture
def mixed(cluster, wheels):
    """Starts a pool with a master and owners of these kinds, and a client of each."""

    def start(master: str, owners, path: str = "shared memory", node_bytes: int = 64 * MIB) -> Mixed:
        pool = cluster(nodes=0, env=PATHS[path], python=wheels[master])
        return Mixed(pool, wheels, owners, PATHS[path], node_bytes)

    return start


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("master", "owner"), ROLES, ids=[f"{m} master, {o} owner" for m, o in ROLES])
def test_every_call_works_between_any_two(mixed, master, owner, path):
    pool = mixed(master, [owner], path)
    rooms = {kind: client.call("arena", 4 * MIB) for kind, client in pool.clients.items()}
    for (writer, one), (reader, other) in pool.pairs():
        tag = f"{writer}-{reader}"
        for size in (16, 4 * KIB, 3 * MIB):
            key = f"{tag}-{size}"
            assert one.call("put", key, value(key, size)) == 0, one.call("last_error")
            assert other.call("is_exist", key) == 1
            assert other.call("get_size", key) == size
            assert version_of(key, other.call("get", key)) == 0, other.call("last_error")
            assert version_of(key, other.call("get_buffer", key)) == 0
            assert other.call("get_into", key, rooms[reader], size) == size
            assert version_of(key, other.call("peek", size)) == 0
        keys = [f"{tag}-batch-{number}" for number in range(20)]
        assert one.call("put_batch", keys, [value(key, 64 * KIB) for key in keys]) == 0
        assert other.call("batch_is_exist", keys) == [1] * len(keys)
        assert all(version_of(key, got) == 0 for key, got in zip(keys, other.call("get_batch", keys), strict=True))

        key = keys[0]
        digest = other.call("run", HOLD, key=key)
        assert digest == hashlib.sha256(value(key, 64 * KIB)).hexdigest()
        assert one.call("upsert", key, value(key, 128 * KIB, 1)) == 0
        assert version_of(key, other.call("get", key)) == 1
        assert other.call("remove", keys[1], True) == 0
        assert one.call("is_exist", keys[1]) == 0
        assert one.call("get", keys[1]) == b""
        # Three times the pool's memory goes past the view.
        pool.put_all(f"{tag}-over", 48, 4 * MIB)
        assert other.call("run", LOOK) == digest
        other.call("run", LET_GO)
        assert one.call("remove_all", True) >= 0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("lost", KINDS)
def test_an_object_with_owners_of_both_kinds_outlives_either(mixed, lost, path):
    pool = mixed("new", KINDS, path)
    keys = [f"twice-{writer}-{reader}" for writer, reader in itertools.product(KINDS, KINDS)]
    for key, ((_, one), (_, other)) in zip(keys, pool.pairs(), strict=True):
        assert one.call("run", PUT_TWICE, key=key, data=value(key, MIB)) == 0, one.call("last_error")
        assert version_of(key, other.call("get", key)) == 0
    pool.pool.nodes[KINDS.index(lost)].kill()
    wait_for("the other replicas", lambda: pool.present(keys) == len(keys), 5.0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("before", "after"), [("old", "new"), ("new", "old")])
def test_a_killed_master_is_followed_by_one_of_the_other_wheel_on_the_same_log(mixed, before, after, path):
    pool = mixed(before, KINDS, path)
    keys = pool.put_all("kept", 40, 256 * KIB)
    digests = {kind: client.call("run", HOLD, key=keys[0]) for kind, client in pool.clients.items()}
    pool.restart(after)
    pool.wait_present(keys, 5.0)
    more = pool.put_all("more", 40, 256 * KIB)
    assert pool.present(keys + more) == 80
    # And back: what the second has written is read by the first.
    pool.restart(before)
    pool.wait_present(keys + more, 5.0)
    pool.put_all("over", 48, 4 * MIB)
    pool.present(keys + more)
    for kind, client in pool.clients.items():
        assert client.call("run", LOOK) == digests[kind], f"the {kind} client's view has changed"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("before", "after"), [("old", "new"), ("new", "old"), ("new", "new")])
def test_the_pool_goes_on_in_a_raised_epoch_while_all_processes_run(mixed, before, after, path):
    pool = mixed(before, KINDS, path)
    keys = pool.put_all("kept", 40, 256 * KIB)
    pool.restart(after, keep_witness=False)
    pool.wait_present(keys, 5.0)
    pool.wait_usable(pool.kept_closed)
    new = pool.put_all("new", 48, 256 * KIB)
    pool.start_old_again()
    pool.wait_usable()
    newer = pool.put_all("newer", 48, 256 * KIB)
    pool.present(keys)
    assert pool.present(new + newer) == 96


@pytest.mark.parametrize("after", KINDS)
def test_in_a_raised_epoch_newer_owners_wait_for_the_end_of_older_clients(mixed, after):
    pool = mixed("new", ["new", "new"])
    keys = pool.put_all("kept", 40, 256 * KIB)
    pool.restart(after, keep_witness=False)
    pool.wait_present(keys, 5.0)
    wait_for("closed segments", lambda: pool.pool.master.metric("mooncake_segments_closed") == pool.kept_closed, SOON)
    assert pool.clients["new"].call("put", "probe", b"p") != 0
    pool.start_old_again()
    pool.wait_usable()
    newer = pool.put_all("newer", 40, 256 * KIB)
    assert pool.present(keys + newer) == 80


@pytest.mark.parametrize(("before", "after"), [("old", "new"), ("new", "old"), ("new", "new")])
def test_views_of_both_kinds_stay_what_they_are_in_a_raised_epoch(mixed, before, after):
    pool = mixed(before, KINDS)
    keys = pool.put_all("kept", 40, 256 * KIB)
    digests = {kind: client.call("run", HOLD, key=keys[0]) for kind, client in pool.clients.items()}
    pool.restart(after, keep_witness=False)
    pool.wait_present(keys, 5.0)
    if after == "new":
        wait_for("a put", lambda: pool.clients["new"].call("put", "probe", b"p") == 0, SOON)
        pool.put_all("over", 48, 4 * MIB)
    else:
        # An old master does not say which views it knows: to be safe the new client keeps closed what it maps.
        assert pool.clients["new"].call("put", "over", value("over", 4 * MIB)) != 0
    pool.present(keys)
    for kind, client in pool.clients.items():
        assert client.call("run", LOOK) == digests[kind], f"the {kind} client's view has changed"
        client.call("run", LET_GO)
    pool.wait_usable(pool.kept_closed)
    pool.start_old_again()
    pool.wait_usable()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_masters_of_both_kinds_follow_each_other_round_after_round(mixed, seed):
    dice, rounds, kept, raised = random.Random(seed), 40, 0, 0
    pool = mixed("old", KINDS, node_bytes=256 * MIB)
    keys = pool.put_all("first-", 40, 256 * KIB)
    for number in range(rounds):
        keep_witness = dice.random() < 0.7
        raised += not keep_witness
        pool.restart(dice.choice(KINDS), keep_witness)
        if not keep_witness:
            pool.wait_usable(pool.kept_closed)
            pool.start_old_again()
        pool.wait_usable()
        pool.wait_present(keys, 5.0)
        kept += len(keys)
        keys = pool.put_all(f"round{number}-", 40, 256 * KIB)
    print(f"{rounds} restarts, {raised} raised epochs, {kept} objects kept")


@pytest.mark.parametrize("path", PATHS)
def test_an_older_client_sees_what_memory_has_of_a_pool_with_tiers_and_replaces_the_rest(
    cluster, wheels, tmp_path, path
):
    env = {**PATHS[path], "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(tmp_path / "tiers")}
    pool = cluster(node_bytes=16 * MIB, node_flags=["--enable_offload"], env=env)
    wait_for("a tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    clients = {kind: pool.process(env=PATHS[path], python=wheels[kind]) for kind in KINDS}
    keys = [f"key{number}" for number in range(48)]
    for number, key in enumerate(keys):
        client = clients[KINDS[number % 2]]
        assert client.call("put", key, value(key, MIB)) == 0, client.call("last_error")
    wait_for("all of them on the disk", lambda: pool.metric("file_cache_nums_") == len(keys))
    # `get` asks for no copy to memory, as an existence query does.
    assert all(version_of(key, clients["new"].call("get", key)) == 0 for key in keys)
    got = {key: clients["old"].call("get", key) for key in keys}
    assert all(not one or version_of(key, one) == 0 for key, one in got.items())
    hidden = [key for key, one in got.items() if not one]
    assert len(hidden) >= len(keys) - 16
    gone = hidden[0]
    assert clients["old"].call("is_exist", gone) == 0
    assert clients["old"].call("put", gone, value(gone, MIB, 1)) == 0, clients["old"].call("last_error")
    for client in clients.values():
        assert version_of(gone, client.call("get", gone)) == 1
    # What it removes, of whatever there is, is gone for both.
    assert clients["old"].call("remove_all", True) >= 0
    assert clients["new"].call("batch_is_exist", keys) == [0] * len(keys)
