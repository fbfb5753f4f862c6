"""The disk of tests/faulty_disk: it fails, lies and stands still under the tiers of processes that preload it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).resolve().parents[1] / "faulty_disk" / "faulty_disk.c"

# In the order of the library's own.
FAULTS = (
    "read_fails",
    "write_fails",
    "sync_fails",
    "no_space",
    "read_flipped",
    "write_flipped",
    "misdirected",
    "read_short",
    "stands",
)
ALWAYS = 1_000_000


def build(folder: Path) -> Path:
    """The library, to be preloaded."""
    built = folder / "faulty_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(built), str(SOURCE), "-ldl"], check=True)
    return built


class FaultyDisk:
    """One disk. Processes with `env` share it; `is_having` says what it does from now on."""

    def __init__(self, library: Path, table: Path):
        self.library, self.table = library, table
        self._numbers = np.memmap(table, dtype=np.uint64, mode="w+", shape=(2, len(FAULTS)))

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "MOONCAKE_FAULTY_DISK": str(self.table)}

    def is_having(self, **chances: int) -> None:
        """Of a million operations so many end like that, of the faults that are not named none."""
        assert set(chances) <= set(FAULTS), chances
        self._numbers[0] = [chances.get(fault, 0) for fault in FAULTS]

    def counts(self) -> dict[str, int]:
        """How often each fault has happened."""
        return {fault: int(count) for fault, count in zip(FAULTS, self._numbers[1], strict=True)}
