"""A master and its storage nodes."""

from __future__ import annotations

import json
from pathlib import Path

from pool.installation import Installation
from pool.master import Master, remove_witnesses
from pool.node import Node
from pool.waiting import PoolError, wait_for


class Pool:
    """A master and its storage nodes, with everything that they keep in one folder. `end` leaves nothing of it."""

    def __init__(self, folder: Path, ends_with_parent: bool = True):
        self.folder = Path(folder)
        self.ends_with_parent = ends_with_parent
        self.master: Master | None = None
        self.nodes: list[Node] = []

    def begin(
        self,
        nodes: int = 1,
        node_bytes: int = 64 << 20,
        master_flags: list[str] | None = None,
        node_flags: list[str] | None = None,
        env: dict[str, str] | None = None,
        installation: Installation | None = None,
    ) -> None:
        """Starts the master, then the nodes; returns when all are ready."""
        self.master = Master(self.folder, master_flags, env, installation, self.ends_with_parent)
        self.master.start()
        for _ in range(nodes):
            self.add_node(node_bytes, node_flags, env, installation)
        if installation is not None and not installation.is_ours:
            self.wait_segments(nodes)

    def add_node(
        self,
        size: int,
        flags: list[str] | None = None,
        env: dict[str, str] | None = None,
        installation: Installation | None = None,
    ) -> Node:
        """One more storage node."""
        name = f"node-{len(self.nodes)}"
        node = Node(name, self.folder, self.master.addr, size, flags, env, installation, self.ends_with_parent)
        self.nodes.append(node)
        node.start()
        return node

    def ask(self, path: str, timeout: float = 2.0) -> str | None:
        """Body of one page of the master's HTTP port; None while it does not answer."""
        try:
            return self.master.http(path, timeout=timeout)
        except OSError:
            return None

    def keys(self) -> set[str] | None:
        """The keys that the master lists, or None while it does not answer."""
        body = self.ask("/get_all_keys")
        return None if body is None else set(body.split("\n")) - {""}

    def segments(self) -> list[str] | None:
        """Names of the segments that the master has Live, or None while it does not answer."""
        body = self.ask("/get_all_segments")
        return None if body is None else body.split()

    def metric(self, name: str) -> int:
        """A number of /metrics; 0 when there is no answer or no such metric."""
        try:
            return int(self.master.metric(name))
        except (OSError, AssertionError):
            return 0

    def wait_segments(self, count: int, timeout: float = 15.0) -> None:
        """Waits until the master lists so many."""

        def are_listed() -> bool:
            listed = self.segments()
            return listed is not None and len(listed) == count

        try:
            wait_for(f"{count} segments", are_listed, timeout)
        except PoolError as e:
            logs = "\n".join(
                f"{one.name}{'' if one.alive else f', ended with {one.process.returncode}'}:\n{one.last_lines()}"
                for one in (self.master, *self.nodes)
            )
            raise PoolError(f"{e}; the master lists {self.segments()}\n{logs}") from None

    def wait_populated(self, timeout: float = 20.0) -> None:
        """Waits until all lent memory is there, so that no measured put waits for the kernel to make it.

        A master that does not tell how far its segments are is not waited for.
        """

        def is_populated() -> bool:
            listed = json.loads(self.ask("/get_segments_detail") or "{}").get("segments", [])
            return listed and all(one.get("populated_bytes", one["size_bytes"]) >= one["size_bytes"] for one in listed)

        wait_for("the nodes' memory populated", is_populated, timeout, 0.05)

    def end(self) -> None:
        """Ends every process that was started here."""
        for one in (*self.nodes, *([self.master] if self.master else [])):
            one.terminate(5)
        remove_witnesses(self.folder)
