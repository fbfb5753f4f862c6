"""The master."""

from __future__ import annotations

import shutil
import urllib.request
from pathlib import Path

from pool.installation import Installation
from pool.ports import HOST, free_port
from pool.program import Program


class Master(Program):
    """A master on ports and a log folder of its own; `kill` and `start` keep both."""

    def __init__(
        self,
        folder: Path,
        flags: list[str] | None = None,
        env: dict[str, str] | None = None,
        installation: Installation | None = None,
        ends_with_parent: bool = False,
    ):
        installation = installation or Installation()
        self.port, self.metrics_port = free_port(), free_port()
        self.folder = folder / "log"
        command = [
            *installation.command("master"),
            f"--rpc_address={HOST}",
            f"--rpc_port={self.port}",
            f"--metrics_host={HOST}",
            f"--metrics_port={self.metrics_port}",
            *([f"--wal_dir={self.folder}"] if installation.is_ours else []),
            *(flags or []),
        ]
        ready = f"Master service started on port {self.port}" if installation.is_ours else self.port
        super().__init__("master", command, folder / "master.out", ready, env, ends_with_parent)

    def become(self, installation: Installation) -> None:
        """The next start is of this installation, one of ours."""
        self.command[0] = installation.command("master")[0]

    @property
    def addr(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """Its HTTP port."""
        return f"http://{HOST}:{self.metrics_port}"

    def http(self, path: str, data: bytes | None = None, timeout: float = 5.0) -> str:
        """Body of a GET, or of a POST when there is data."""
        request = urllib.request.Request(self.url + path, data=data)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.read().decode(errors="surrogateescape")

    def metric(self, name: str, **labels: str) -> float:
        """A value of /metrics, summed over its labels but for those that are given."""
        given = [f'{label}="{value}"' for label, value in labels.items()]
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in self.http("/metrics").splitlines()
            if line.split("{")[0].split(" ")[0] == name and all(pair in line for pair in given)
        ]
        assert values, f"no metric {name} {given}"
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
        """Removes the witnesses of the logs in its folder, or in another one that it was given."""
        remove_witnesses(folder or self.folder)


def remove_witnesses(folder: Path) -> None:
    """Removes the witnesses of the logs below a folder: the one thing of a master that lies elsewhere."""
    for file in Path(folder).rglob("log-*.wal"):
        log_id = int.from_bytes(file.read_bytes()[16:24], "little")
        Path(f"/dev/shm/mooncake-log-{log_id:016x}").unlink(missing_ok=True)
