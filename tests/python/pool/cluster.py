"""A master, storage nodes and client processes."""

from __future__ import annotations

import shutil
import sys
import time
import urllib.request
from pathlib import Path

from pool.daemon import Daemon, binary, free_port, wait_for
from pool.peer import Peer


class Master(Daemon):
    """A `mooncake master` on ports and a log folder of its own; `kill` and `start` keep both."""

    def __init__(self, folder: Path, flags: list[str], env: dict[str, str] | None = None, python: str | None = None):
        self.port, self.metrics_port = free_port(), free_port()
        self.folder = folder / "log"
        command = [
            binary(python),
            "master",
            "--rpc_address=127.0.0.1",
            f"--rpc_port={self.port}",
            "--metrics_host=127.0.0.1",
            f"--metrics_port={self.metrics_port}",
            f"--wal_dir={self.folder}",
            *flags,
        ]
        ready = f"Master service started on port {self.port}"
        super().__init__("master", command, folder / "master.out", ready, env)

    def become(self, python: str | None) -> None:
        """The next start is of the wheel of this interpreter."""
        self.command[0] = binary(python)

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.port}"

    def http(self, path: str, data: bytes | None = None, timeout: float = 5.0) -> str:
        """Body of a GET, or of a POST when there is data."""
        url = f"http://127.0.0.1:{self.metrics_port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=timeout) as answer:
            return answer.read().decode()

    def metric(self, name: str) -> float:
        """A value of /metrics, labels ignored and summed."""
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in self.http("/metrics").splitlines()
            if line.split("{")[0].split(" ")[0] == name
        ]
        assert values, f"no metric {name}"
        return sum(values)

    def copy_log(self, to: Path) -> Path:
        """Copies its log to a new folder while the master stands still."""
        self.stop()
        try:
            return Path(shutil.copytree(self.folder, to))
        finally:
            self.cont()

    def put_back(self, copy: Path) -> None:
        """Its log is that copy from here on. The master must not be running."""
        shutil.rmtree(self.folder)
        shutil.copytree(copy, self.folder)

    def forget(self, folder: Path | None = None) -> None:
        """Removes what lies outside of its folder, or of another one that it was given: the witnesses of its logs."""
        for file in (folder or self.folder).glob("*/log-*.wal"):
            log_id = int.from_bytes(file.read_bytes()[16:24], "little")
            Path(f"/dev/shm/mooncake-log-{log_id:016x}").unlink(missing_ok=True)


class Node(Daemon):
    """A `mooncake client` that lends memory."""

    def __init__(
        self,
        index: int,
        folder: Path,
        master: str,
        size: int,
        flags: list[str],
        env: dict[str, str],
        python: str | None = None,
    ):
        self.size = size
        command = [
            binary(python),
            "client",
            f"--master_server_address={master}",
            "--metadata_server=P2PHANDSHAKE",
            "--host=127.0.0.1",
            f"--port={free_port()}",
            f"--global_segment_size={size}",
            *flags,
        ]
        super().__init__(f"node {index}", command, folder / f"node-{index}.out", "Mooncake client ready", env)

    @property
    def segment(self) -> str:
        """Name of its segment, as `preferred_segment` takes it."""
        line = [x for x in self.output().splitlines() if self.ready in x][-1]
        return line.split("segment ")[1].split()[0].rstrip(",:")


class Cluster:
    """What one test started; `end` leaves nothing of it.

    Where a `python` can be given, it is the interpreter of another wheel's environment.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.master: Master | None = None
        self.nodes: list[Node] = []
        self.peers: list[Peer] = []
        self.stores: list = []
        # A test that spoils bytes, or takes the end of a log away under them, says so.
        self.spoils_replicas = False

    def begin(
        self,
        nodes: int = 1,
        node_bytes: int = 64 << 20,
        master_flags: list[str] | None = None,
        node_flags: list[str] | None = None,
        env: dict[str, str] | None = None,
        python: str | None = None,
    ) -> None:
        """Starts the master, then the nodes; returns when all are ready."""
        self.master = Master(self.folder, master_flags or [], env, python)
        self.master.start()
        for _ in range(nodes):
            self.add_node(node_bytes, node_flags or [], env or {}, python)

    def add_node(
        self,
        size: int,
        flags: list[str] | None = None,
        env: dict[str, str] | None = None,
        python: str | None = None,
    ) -> Node:
        """One more storage node."""
        node = Node(len(self.nodes), self.folder, self.master.addr, size, flags or [], env or {}, python)
        self.nodes.append(node)
        node.start()
        return node

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

    def segments(self) -> list[str]:
        """Names of the segments that the master has Live."""
        return self.master.http("/get_all_segments").split()

    def wait_segments(self, count: int, timeout: float = 10.0) -> None:
        wait_for(f"{count} segments", lambda: len(self.segments()) == count, timeout)

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

    def _comes_to_rest(self, patience: float = 10.0) -> None:
        """With every client gone nothing stays in quarantine, and no segment closed."""
        if self.master is None or not self.master.alive:
            return
        for process in (self.master, *self.nodes):
            process.cont()

        def held() -> list[str]:
            names = ("mooncake_quarantined_bytes", "mooncake_segments_closed")
            return [f"{name} {value:.0f}" for name in names if (value := self.master.metric(name))]

        end = time.monotonic() + patience
        while found := held():
            assert time.monotonic() < end, f"{', '.join(found)} after {patience} s, though every client is gone"
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
