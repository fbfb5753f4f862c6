"""A master, storage nodes and client processes of one test."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from peer import Peer

from pool import Installation, Node, Pool


class Cluster(Pool):
    """What one test started; `end` leaves nothing of it.

    Where a `python` can be given, it is the interpreter of another wheel's environment.
    """

    def __init__(self, folder: Path):
        super().__init__(folder, ends_with_parent=False)
        self.peers: list[Peer] = []
        self.stores: list = []
        # A test that spoils bytes, or takes the end of a log away under them, says so.
        self.spoils_replicas = False

    def begin(self, *, python: str | None = None, **options) -> None:
        """Starts the master, then the nodes; returns when all are ready."""
        super().begin(installation=Installation.of(python), **options)

    def add_node(
        self,
        size: int,
        flags: list[str] | None = None,
        env: dict[str, str] | None = None,
        installation: Installation | None = None,
        python: str | None = None,
    ) -> Node:
        """One more storage node."""
        return super().add_node(size, flags, env, installation or Installation.of(python))

    def store(self, segment: int = 0, buffer: int = 64 << 20, hostname: str = "127.0.0.1", protocol: str = "tcp"):
        """A store object in this process, set up."""
        from mooncake.store import MooncakeDistributedStore

        made = MooncakeDistributedStore()
        code = made.setup(hostname, "P2PHANDSHAKE", segment, buffer, protocol, "", self.master.addr)
        assert code == 0, f"setup: {code} {made.last_error()}"
        self.stores.append(made)
        return made

    def process(
        self,
        segment: int = 0,
        buffer: int = 64 << 20,
        env: dict[str, str] | None = None,
        python: str | None = None,
        wrapper: list[str] | None = None,
    ) -> Peer:
        """A store in a process of its own, started by the wrapper, set up."""
        log = self.folder / f"peer-{len(self.peers)}.out"
        peer = Peer(f"peer {len(self.peers)}", log, env, [*(wrapper or []), python or sys.executable])
        self.peers.append(peer)
        code = peer.call("setup", "127.0.0.1", "P2PHANDSHAKE", segment, buffer, "tcp", "", self.master.addr)
        assert code == 0, f"setup: {code} {peer.call('last_error')}"
        return peer

    def end(self) -> None:
        """Ends every process that was started here, and looks at what they have left behind."""
        for store in self.stores:
            store.close()
        for peer in self.peers:
            peer.kill()
        try:
            self._comes_to_rest()
            self._none_was_reported()
        finally:
            for node in self.nodes:
                node.kill()
            if self.master is not None:
                self.master.kill()
                self.master.forget()
        self._none_was_bad()

    def _comes_to_rest(self, timeout: float = 10.0) -> None:
        """With every client gone nothing stays in quarantine, and no segment closed."""
        if self.master is None or not self.master.alive:
            return
        for process in (self.master, *self.nodes):
            process.cont()

        def held() -> list[str]:
            names = ("mooncake_quarantined_bytes", "mooncake_segments_closed")
            return [f"{name} {value:.0f}" for name in names if (value := self.master.metric(name))]

        end = time.monotonic() + timeout
        while found := held():
            assert time.monotonic() < end, f"{', '.join(found)} after {timeout} s, though every client is gone"
            time.sleep(0.02)

    def _none_was_reported(self) -> None:
        """Checksums turn wrong bytes into a miss, which hides them from a test, and not from the reader."""
        if self.spoils_replicas or self.master is None or not self.master.alive:
            return
        reported = self.master.metric("mooncake_bad_replica_reports_total")
        assert not reported, f"readers found {reported:.0f} replicas bad"

    def _none_was_bad(self) -> None:
        """As their owners say, who hear of it also from masters that were killed since."""
        if self.spoils_replicas:
            return
        for owner in (*self.nodes, *self.peers):
            bad = [line for line in owner.output().splitlines() if "a replica in this segment is bad" in line]
            assert not bad, f"{owner.name}: {bad[0]} ({len(bad)} such lines)"
