"""Where the pool's programs come from: this project's binary, or another implementation with Mooncake's names."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def binary(python: str | None = None) -> str:
    """The native binary under test: MOONCAKE_BIN, or the one beside this interpreter; or that of another wheel's."""
    if python is not None:
        return str(Path(python).parent / "mooncake")
    return os.environ.get("MOONCAKE_BIN") or str(Path(sys.executable).parent / "mooncake")


class Installation:
    """The master and the storage node of one folder; without a folder, of the binary under test.

    Only this project's programs say the lines that tests wait for, and only its master writes a log.
    """

    def __init__(self, folder: Path | str | None = None):
        own = binary() if folder is None else str(Path(folder) / "mooncake")
        self.is_ours = folder is None or Path(own).exists()
        self._prefix = [own] if self.is_ours else None
        self._folder = folder

    @classmethod
    def of(cls, python: str | None) -> Installation:
        """The wheel in this interpreter's environment, or the binary under test."""
        return cls(None if python is None else Path(python).parent)

    def command(self, program: str) -> list[str]:
        """How `master` or `client` is started."""
        if self.is_ours:
            return [*self._prefix, program]
        return [str(Path(self._folder) / f"mooncake_{program}")]
