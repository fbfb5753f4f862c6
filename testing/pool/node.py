"""The storage node."""

from __future__ import annotations

from pathlib import Path

from pool.installation import Installation
from pool.ports import HOST, free_port
from pool.program import Program


class Node(Program):
    """A client without a program of its own, which lends memory."""

    def __init__(
        self,
        name: str,
        folder: Path,
        master: str,
        size: int,
        flags: list[str] | None = None,
        env: dict[str, str] | None = None,
        installation: Installation | None = None,
        ends_with_parent: bool = False,
    ):
        installation = installation or Installation()
        self.size, self.port = size, free_port()
        command = [
            *installation.command("client"),
            f"--master_server_address={master}",
            "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp",
            f"--host={HOST}",
            f"--port={self.port}",
            f"--global_segment_size={size}",
            *(flags or []),
        ]
        # Of another implementation the master alone says when the node's segment is there: `Pool.wait_segments`.
        ready = "Mooncake client ready" if installation.is_ours else None
        super().__init__(name, command, folder / f"{name}.out", ready, env, ends_with_parent)

    @property
    def addr(self) -> str:
        """Where it serves the processes of its host."""
        return f"{HOST}:{self.port}"

    @property
    def segment(self) -> str:
        """Name of its segment, as `preferred_segment` takes it."""
        line = [x for x in self.output().splitlines() if self.ready in x][-1]
        return line.split("segment ")[1].split()[0].rstrip(",:")
