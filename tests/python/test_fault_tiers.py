"""Anything may be killed or frozen, and disks may do their worst, while verified traffic runs over tiers.

No wrong byte is read, nothing that was removed or replaced comes back, and every call has its answer in time.
MOONCAKE_TIER_FAULT_SECONDS says for how long: `make test-long` takes an hour.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import time
from collections import Counter
from pathlib import Path

import faulty_disk
import pytest
import tier_traffic
from contents import value, version_of
from device import has_compiler
from faulty_disk import ALWAYS, FaultyDisk
from ledger import Ledger
from peer import PeerGone

from pool import wait_for

MIB = 1 << 20
BLOCK = 4096
SECONDS = float(os.environ.get("MOONCAKE_TIER_FAULT_SECONDS") or 12)

pytestmark = [
    pytest.mark.timeout(SECONDS + 180),
    pytest.mark.slow,
    pytest.mark.skipif(not has_compiler(), reason="the faulty disk is a library in C, and there is no compiler"),
]

NODE_BYTES = 40 * MIB
# Of each tier, and of both below their one path: less than what is written within seconds.
TIER_BYTES, BOTH_BYTES = 160 * MIB, 288 * MIB
# 5 s for a put's waits (MC_PUT_TIMEOUT_MS), 3 s without a byte moved, two questions of 0.5 s, and a machine that has
# much else to do.
PUT_LIMIT = 15.0
# A batch may ask several replicas in turn, each of which may take 3 s without a byte.
READ_LIMIT = 45.0

RUN = "import tier_traffic; getattr(tier_traffic, what)(store, folder, role, until, seed)"

# Of a million operations.
DISK_FAULTS = (
    {"read_fails": 200_000},
    {"read_fails": ALWAYS},
    {"write_fails": 30_000},
    {"write_fails": ALWAYS},
    {"sync_fails": 300_000},
    {"no_space": 100_000},
    {"read_flipped": 50_000},
    {"write_flipped": 20_000},
    {"misdirected": 20_000},
    {"read_short": 50_000},
    {"stands": ALWAYS},
    {"stands": 10_000, "read_fails": 50_000, "write_fails": 5_000, "read_flipped": 20_000, "misdirected": 5_000},
)


class Chaos:
    """The pool, its clients under traffic, and the dice."""

    def __init__(self, pool, folder: Path, tiers: Path, disk: FaultyDisk, seed: int):
        self.pool, self.dice, self.folder, self.tiers, self.disk = pool, random.Random(seed), folder, tiers, disk
        self.began, self.until = time.time(), time.time() + SECONDS
        self.clients: dict[str, tuple] = {}
        self.frozen: dict[str, tuple[float, object]] = {}
        # When each process last began to run: an answer is not waited for while it stands still.
        self.runs_since: dict[str, float] = {}
        self.disk_until: float | None = None
        self.neighbour_until: float | None = None
        self.said: list[str] = []
        self.acts = 0
        self.longest = {"put": 0.0, "read": 0.0}
        # In what state the tiers were, looked at every few seconds.
        self.looked_at, self.looks = 0.0, Counter()
        self.ledger = Ledger(folder / "ledger", tier_traffic.KEYS)
        self.calls = tier_traffic.Calls(folder)
        self.sweeper = pool.store()
        for role in tier_traffic.ROLES:
            self.join(role)

    def say(self, what: str) -> None:
        self.said.append(f"{time.monotonic():.3f} {what}")

    def join(self, role: str) -> None:
        """A client process for this role; it may take a few tries while the master is away."""
        env = {
            # One of each kind moves its bytes by TCP, one reads the faulty disk, and some have stamps alone.
            "MC_SHM": "0" if role.endswith("-b") else "1",
            "MOONCAKE_STORE_CHECKSUM": self.dice.choice(["0", "1"]),
            **(self.disk.env if role.endswith("-a") else {}),
        }
        last = None
        for _ in range(10):
            try:
                peer = self.pool.process(env=env)
                break
            except (AssertionError, PeerGone, TimeoutError) as error:
                last = error
                time.sleep(0.1)
        else:
            raise AssertionError(f"{role} cannot join: {last}")
        self.calls.ends(role)
        self.runs_since[role] = time.monotonic()
        pending = peer.start(
            "run",
            RUN,
            what=role.split("-")[0],
            role=role,
            folder=str(self.folder),
            until=self.until,
            seed=self.dice.getrandbits(32),
        )
        self.clients[role] = (peer, pending)

    # ------------------------------------------------------------ faults

    def act(self) -> None:
        """One fault, or the end of some."""
        self.end_what_is_over()
        # In a short storm the dice may leave the disk alone, or fail it for good at once: a little of it comes first.
        if SECONDS < 60 and sum(self.disk.counts().values()) <= SECONDS / 2:
            self.spoil_reads_and_writes()
            return
        act = self.dice.choices(
            [self.stop_a_process, self.spoil_the_disk, self.flip_bits, self.fill_the_disk, self.remove_all],
            [60, 22, 10, 7, 1],
        )[0]
        self.acts += 1
        if self.acts % 3 == 0 and self.disk_until is None:
            act = self.spoil_the_disk
        act()

    def end_what_is_over(self) -> None:
        now = time.monotonic()
        for name in [name for name, (end, _) in self.frozen.items() if now >= end]:
            self.thaw(name)
        if self.disk_until is not None and now >= self.disk_until:
            self.mend_the_disk()
        if self.neighbour_until is not None and now >= self.neighbour_until:
            self.make_room()

    def processes(self) -> dict:
        named = {"master": self.pool.master, **{f"node-{n}": node for n, node in enumerate(self.pool.nodes)}}
        named.update({role: peer for role, (peer, _) in self.clients.items()})
        return named

    def stop_a_process(self) -> None:
        # Of the pool itself one at a time, so that there is traffic between the faults.
        clients = set(self.clients) - set(self.frozen)
        pool = set() if set(self.frozen) - set(self.clients) else set(self.processes()) - set(self.clients)
        group = pool if pool and self.dice.random() < 0.5 else clients or pool
        if not group:
            return
        name = self.dice.choice(sorted(group))
        process = self.processes()[name]
        if self.dice.random() < 0.5:
            seconds = self.dice.choice([0.1, 0.6, 2.5])
            self.say(f"freeze {name} for {seconds} s")
            process.stop()
            self.frozen[name] = (time.monotonic() + seconds, process)
            return
        if name.startswith("node") and self.dice.random() < 0.2:
            self.say(f"terminate {name}")
            process.terminate()
        else:
            self.say(f"kill {name}")
            process.kill()
        time.sleep(self.dice.choice([0.0, 0.0, 0.3, 1.0]))
        if name in self.clients:
            self.thaw("master")  # A process sets up only with a master that answers.
            self.join(name)
            return
        if name.startswith("node"):
            self.mend_the_disk()  # And a node only with a disk that does.
            self.thaw("master")
        process.start()

    def spoil_the_disk(self) -> None:
        faults = self.dice.choice(DISK_FAULTS)
        seconds = self.dice.choice([0.2, 1.0, 3.0, 3.0 if SECONDS < 60 else 12.0])
        self.say(f"disk: {faults} for {seconds} s")
        self.disk.is_having(**faults)
        self.disk_until = time.monotonic() + seconds

    def spoil_reads_and_writes(self) -> None:
        self.say("disk: reads and writes fail until enough have")
        self.disk.is_having(read_fails=50_000, read_flipped=20_000, write_fails=30_000)
        self.disk_until = self.disk_until or time.monotonic()

    def flip_bits(self) -> None:
        """On the medium, behind the back of all: of records, and of one copy of a superblock."""
        files = sorted(self.tiers.glob("mooncake-*/*.records"))
        for _ in range(self.dice.choice([1, 4, 16])):
            if files:
                self.flip_a_bit(self.dice.choice(files), None)
        if self.dice.random() < 0.2 and (supers := sorted(self.tiers.glob("mooncake-*/super"))):
            self.flip_a_bit(self.dice.choice(supers), 4096)

    def flip_a_bit(self, path: Path, within: int | None) -> None:
        # It may be given up meanwhile.
        with (
            contextlib.suppress(FileNotFoundError),
            open(path, "r+b", buffering=0, opener=past_the_cache) as file,
            mmap.mmap(-1, BLOCK) as block,
        ):
            size = within or os.fstat(file.fileno()).st_size
            at = self.dice.randrange(size) if size else 0
            start = at - at % BLOCK
            if os.preadv(file.fileno(), [block], start) == BLOCK:
                block[at - start] ^= 1 << self.dice.randrange(8)
                os.pwritev(file.fileno(), [block], start)
                os.fdatasync(file.fileno())
                self.say(f"flip {path.parent.name[:13]}/{path.name} at {at}")

    def fill_the_disk(self) -> None:
        """A folder that no owner has takes most, or all, of what is allowed below the path."""
        left_over = self.tiers / "mooncake-left-over"
        left_over.mkdir(mode=0o700, exist_ok=True)
        size = self.dice.choice([100, 200, 300]) * MIB
        with (left_over / f"{7:016x}.records").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        self.say(f"another folder has {size // MIB} MiB")
        self.neighbour_until = time.monotonic() + self.dice.choice([0.5, 2.0, 4.0])

    def remove_all(self) -> None:
        floors = self.ledger.before_sweep()
        removed = self.sweeper.remove_all(True)
        self.say(f"remove_all: {removed}")
        if removed >= 0:
            self.ledger.is_swept(floors)

    # ------------------------------------------------------------ their ends

    def thaw(self, name: str) -> None:
        if name in self.frozen:
            self.frozen.pop(name)[1].cont()
            self.runs_since[name] = time.monotonic()
            self.say(f"thaw {name}")

    def mend_the_disk(self) -> None:
        if self.disk_until is not None:
            self.disk.is_having()
            self.disk_until = None
            self.say("disk: good")

    def make_room(self) -> None:
        if self.neighbour_until is not None:
            (self.tiers / "mooncake-left-over" / f"{7:016x}.records").unlink()
            self.neighbour_until = None
            self.say("the other folder is gone")

    def finish(self) -> None:
        """Everything goes on until the traffic is over; a client that is stuck fails here."""
        for name in list(self.frozen):
            self.thaw(name)
        self.mend_the_disk()
        self.make_room()
        for _, pending in self.clients.values():
            pending.result(timeout=READ_LIMIT)

    # ------------------------------------------------------------ what must hold

    def wrong(self) -> str:
        notes = self.folder / "wrong"
        return notes.read_text() if notes.exists() else ""

    def look_at_tiers(self) -> None:
        """Whether they are in use between the faults: one that is not written for a minute shows little."""
        if time.monotonic() - self.looked_at < 3 or "master" in self.frozen:
            return
        self.looked_at = time.monotonic()
        live, refusing = (self.pool.metric(f"mooncake_tiers_{state}") for state in ("live", "refusing"))
        self.looks[f"{live - refusing} of 2 written"] += 1

    def check(self) -> None:
        assert not self.wrong(), self.wrong()
        self.look_at_tiers()
        now = time.monotonic()
        for role, (peer, pending) in self.clients.items():
            if pending.done:
                pending.result()
                assert time.time() >= self.until, f"{role} has ended"
            waits = self.calls.waits(role)
            if waits is None or role in self.frozen:
                continue
            since, is_put = waits
            waited = now - max(since, self.runs_since[role])
            kind, limit = ("put", PUT_LIMIT) if is_put else ("read", READ_LIMIT)
            self.longest[kind] = max(self.longest[kind], waited)
            assert waited < limit, f"{role} (pid {peer.pid}) is stuck in a {kind} for {waited:.1f} s"


def test_no_wrong_byte_no_key_comes_back_and_no_call_is_stuck(cluster, tmp_path, seed, found):
    tiers = tmp_path / "tiers"
    tiers.mkdir()
    disk = FaultyDisk(faulty_disk.build(tmp_path), tmp_path / "disk")
    pool = cluster(nodes=0, master_flags=["--promotion_on_hit", "--promotion_admission_threshold=2"])
    pool.spoils_replicas = True
    env = {
        "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(tiers),
        "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(TIER_BYTES),
        "MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES": str(BOTH_BYTES),
        "MOONCAKE_OFFLOAD_CLOSE_SECONDS": "1",
    }
    # The other one goes by io_uring, where that can be had.
    for faulty in (disk.env, {}):
        pool.add_node(NODE_BYTES, ["--enable_offload"], {**env, **faulty})
    wait_for("two tiers", lambda: pool.metric("mooncake_tiers_live") == 2, 20)
    chaos = Chaos(pool, tmp_path, tiers, disk, seed)
    told = time.time()
    try:
        while time.time() < chaos.until - 1:
            time.sleep(chaos.dice.uniform(0.05, 0.6))
            chaos.act()
            chaos.check()
            if time.time() - told > 60:
                told = time.time()
                print(f"{told - chaos.began:.0f} s: {len(chaos.said)} acts, {dict(tier_traffic.counts(tmp_path))}")
        chaos.finish()
        chaos.check()
    except BaseException:
        print("\n".join(chaos.said[-60:]))
        raise
    counts = tier_traffic.counts(tmp_path)
    print(f"{SECONDS:.0f} s, {len(chaos.said)} acts; {dict(counts)}; the disk: {disk.counts()}")
    waits = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in chaos.longest.items())
    print(f"longest waits: {waits}; tiers: {dict(chaos.looks)}")
    assert counts["right"] > 20 * SECONDS, "there was hardly any traffic between the faults"
    assert counts["stored"] > 5 * SECONDS
    assert counts["from tiers"] > SECONDS, "hardly anything was read from a tier"
    assert sum(disk.counts().values()) > SECONDS / 2, "the disk hardly failed"
    assert all(node.alive for node in pool.nodes)
    assert pool.master.alive

    pool.wait_segments(2, 15)
    nothing_comes_back_with_the_next_processes(pool, chaos)
    every_key_can_be_put(pool.store(), chaos.ledger)
    found(
        f"seed {seed}: {len(chaos.said)} acts in {SECONDS:.0f} s, {counts['stored']} values stored, {counts['right']} "
        f"read right, {counts['from tiers']} of them from tiers, {counts['missing']} misses; 0 wrong, 0 came back, "
        f"0 stuck; longest waits: {waits}"
    )


def past_the_cache(name: str, flags: int) -> int:
    """As owners write: a page of the cache that collides with what one writes is an error of all who have the file."""
    return os.open(name, flags | os.O_DIRECT)


def nothing_comes_back_with_the_next_processes(pool, chaos: Chaos) -> None:
    """What the last calls have left is read right, twice, and what is removed then is not there any more."""
    store = pool.store()
    for _ in range(2):
        states = [chaos.ledger.before_read(key) for key in tier_traffic.KEYS]
        for key, state in zip(tier_traffic.KEYS, states, strict=True):
            if got := store.get(key):
                version = version_of(key, got)
                assert version is not None, tier_traffic.what_it_is(key, got)
                why = chaos.ledger.wrong(key, version, state)
                assert why is None, f"{key}: {why}"
        for process in (pool.master, *pool.nodes):
            process.kill()
        for process in (pool.master, *pool.nodes):
            process.start()
        wait_for("tiers", lambda: pool.metric("mooncake_tiers_live") == 2, 30)
    assert store.remove_all(True) >= 0
    assert not any(store.get_batch(tier_traffic.KEYS))
    for process in (pool.master, *pool.nodes):
        process.kill()
        process.start()
    wait_for("tiers", lambda: pool.metric("mooncake_tiers_live") == 2, 30)
    assert not any(store.get_batch(tier_traffic.KEYS))


def every_key_can_be_put(store, ledger: Ledger) -> None:
    for key in tier_traffic.KEYS:
        wait_for(f"{key} to be removable", lambda key=key: store.remove(key, True) in (0, -704), 3.0)
        begin = time.monotonic()
        version = ledger.begins(key)
        code = store.put(key, value(key, tier_traffic.size_of(key), version))
        assert code == 0, f"{key} is stuck: {store.last_error()}"
        assert time.monotonic() - begin < 5.0
        assert version_of(key, store.get(key)) == version, store.last_error()
