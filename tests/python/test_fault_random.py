"""Anything may be killed or frozen at any time while verified traffic runs: no wrong byte, no stuck key."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import traffic
from contents import value, version_of
from peer import PeerGone

from pool import wait_for

pytestmark = [pytest.mark.timeout(150), pytest.mark.slow, pytest.mark.usefixtures("checksums")]

MIB = 1 << 20
SECONDS = 14.0
RUN = "import traffic; getattr(traffic, role)(store, folder, until, seed)"


class Chaos:
    """The pool, its clients under traffic, and the dice."""

    def __init__(self, pool, folder: Path, seed: int):
        self.pool, self.dice = pool, random.Random(seed)
        self.folder = folder
        self.until = time.time() + SECONDS
        self.clients: dict[str, tuple] = {}
        self.frozen: dict[str, tuple[float, object]] = {}
        self.said: list[str] = []
        for role in ("write-a", "write-b", "read-a", "read-b"):
            self.join(role)

    def join(self, role: str) -> None:
        """A client process for this role; it may take a few tries while the master is away."""
        last = None
        for _ in range(10):
            try:
                # One of each kind moves its bytes by TCP.
                peer = self.pool.process(env={"MC_SHM": "0" if role.endswith("-b") else "1"})
                break
            except (AssertionError, PeerGone, TimeoutError) as error:
                last = error
                time.sleep(0.1)
        else:
            raise AssertionError(f"{role} cannot join: {last}")
        pending = peer.start(
            "run",
            RUN,
            role=role.split("-")[0],
            folder=str(self.folder),
            until=self.until,
            seed=self.dice.getrandbits(32),
        )
        self.clients[role] = (peer, pending)

    def processes(self) -> dict:
        named = {"master": self.pool.master, **{f"node-{n}": node for n, node in enumerate(self.pool.nodes)}}
        named.update({role: peer for role, (peer, _) in self.clients.items()})
        return named

    def act(self) -> None:
        """One fault, or the end of one."""
        now = time.monotonic()
        for name in [name for name, (end, _) in self.frozen.items() if now >= end]:
            self.thaw(name)
        # Of the pool itself one at a time, so that there is traffic between the faults.
        clients = set(self.clients) - set(self.frozen)
        pool = set() if set(self.frozen) - set(self.clients) else set(self.processes()) - set(self.clients)
        group = pool if pool and self.dice.random() < 0.6 else clients or pool
        if not group:
            return
        name = self.dice.choice(sorted(group))
        process = self.processes()[name]
        if self.dice.random() < 0.5:
            seconds = self.dice.choice([0.1, 0.6, 2.5])
            self.said.append(f"freeze {name} for {seconds} s")
            process.stop()
            self.frozen[name] = (now + seconds, process)
            return
        self.said.append(f"kill {name}")
        process.kill()
        time.sleep(self.dice.choice([0.0, 0.0, 0.3, 1.0]))
        if name in self.clients:
            self.thaw("master")  # A process sets up only with a master that answers.
            self.join(name)
        else:
            process.start()

    def thaw(self, name: str) -> None:
        if name in self.frozen:
            self.frozen.pop(name)[1].cont()
            self.said.append(f"thaw {name}")

    def finish(self) -> None:
        """Everything goes on until the traffic is over; a client that is stuck fails here."""
        for name in list(self.frozen):
            self.thaw(name)
        for _, pending in self.clients.values():
            pending.result(timeout=30)

    def wrong(self) -> str:
        notes = self.folder / "wrong-bytes"
        return notes.read_text() if notes.exists() else ""


def test_no_wrong_byte_and_no_stuck_key(cluster, tmp_path, seed):
    pool = cluster(nodes=2, node_bytes=48 * MIB)  # Less than the traffic wants, so that it evicts as well.
    chaos = Chaos(pool, tmp_path, seed)
    try:
        while time.time() < chaos.until - 1:
            time.sleep(chaos.dice.uniform(0.2, 0.8))
            chaos.act()
            assert not chaos.wrong(), chaos.wrong()
        chaos.finish()
    finally:
        print("\n".join(chaos.said))
    counts = traffic.counts(tmp_path)
    print(dict(counts))
    assert not chaos.wrong(), chaos.wrong()
    assert counts["right"] > 300, "there was hardly any traffic between the faults"
    assert counts["stored"] > 60
    assert all(node.alive for node in pool.nodes)
    assert pool.master.alive

    pool.wait_segments(2, 15)
    store = pool.store()
    for key in traffic.KEYS:
        wait_for(f"{key} to be removable", lambda key=key: store.remove(key, True) in (0, -704), 3.0)
        begin = time.monotonic()
        assert store.put(key, value(key, traffic.size_of(key), 1)) == 0, f"{key} is stuck: {store.last_error()}"
        assert time.monotonic() - begin < 2.0
        assert version_of(key, store.get(key)) == 1, store.last_error()
    # All the space is usable again: what nobody holds any more must not stay in quarantine.
    assert store.remove_all(True) >= 0
    wait_for("all space", lambda: fills(store, 2 * 48 - 8), 10.0, 0.5)


def fills(store, mebibytes: int) -> bool:
    """Whether so many MiB can be there at once, hard evidence that nothing holds space."""
    store.remove_all(True)
    keys = [f"fill{number}" for number in range(mebibytes)]
    if any(store.put(key, value(key, MIB)) != 0 for key in keys):
        return False
    return all(version_of(key, store.get(key)) == 0 for key in keys)
