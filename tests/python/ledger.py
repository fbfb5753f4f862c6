"""What the writers of a pool were told about each key, in a file that all processes of a test share.

A key has one writer at a time, whose versions only grow. So a reader can tell apart, of any value that it gets: bytes
that were never written, a version that nobody has begun to write yet, and a *resurrected* one, which was removed or
replaced, and that was acknowledged, before the read began.

What nobody was told the end of (an error, a killed writer) may be so or not, and may even become so a moment later, as
the request may lie in the queue of a process that stands still. Such a version is excused until its key has been
removed or replaced `SETTLES` after it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

# Longer than any process stands still, and than any call takes.
SETTLES = 20.0
# Versions of a key that are excused at a time.
EXCUSED = 8

# One word each; the excused versions and the times of their ends come behind.
_BEGUN, _BUSY, _FLOOR, _SWEPT, _SINCE = range(5)
_FIRST = 5


class Ledger:
    """Numbers of each key; a number is one word, so that no process sees half of one."""

    def __init__(self, file: Path, keys: Sequence[str]):
        self.keys = list(keys)
        self._row = {key: number for number, key in enumerate(self.keys)}
        shape = (len(self.keys), _FIRST + 2 * EXCUSED)
        file = Path(file)
        self._words = np.memmap(file, dtype=np.uint64, mode="r+" if file.exists() else "w+", shape=shape)

    # ------------------------------------------------------------ the writer of a key

    def takes_over(self, keys: Sequence[str]) -> None:
        """Its last writer was killed, perhaps in the middle of something."""
        for key in keys:
            if self._words[self._row[key], _BUSY]:
                self.is_unsure(key)

    def may_write(self, key: str) -> bool:
        """Whether there is room to note one more version whose end is not known."""
        return 0 in self._words[self._row[key], _FIRST : _FIRST + EXCUSED]

    def begins(self, key: str) -> int:
        """The version that is written next."""
        row = self._words[self._row[key]]
        row[_SINCE] = time.monotonic_ns()
        # In this order: whoever finds that it was begun finds that it is busy, or has ended.
        row[_BUSY] = row[_BEGUN] + np.uint64(1)
        row[_BEGUN] = row[_BUSY]
        return int(row[_BEGUN])

    def is_stored(self, key: str, replaces: bool) -> None:
        """The write was acknowledged; one that replaces has ended every earlier version."""
        row = self._words[self._row[key]]
        if replaces:
            self._ends(row, int(row[_BEGUN]), int(row[_SINCE]))
        row[_BUSY] = 0

    def is_unsure(self, key: str) -> None:
        """The write came to an end, or to none, that says nothing of whether it is there."""
        row = self._words[self._row[key]]
        free = int(np.flatnonzero(row[_FIRST : _FIRST + EXCUSED] == 0)[0])
        row[_FIRST + EXCUSED + free] = time.monotonic_ns()
        row[_FIRST + free] = row[_BUSY]
        row[_BUSY] = 0

    def is_removed(self, key: str, since: int) -> None:
        """That nothing of the key is there was acknowledged to its writer, who had asked at that time."""
        row = self._words[self._row[key]]
        self._ends(row, int(row[_BEGUN]) + 1, since)

    def _ends(self, row: np.ndarray, floor: int, since: int) -> None:
        """Every version below the floor has ended, as a call says that began then."""
        row[_FLOOR] = floor
        settled = since - int(SETTLES * 1e9)
        for nth in range(_FIRST, _FIRST + EXCUSED):
            if row[nth] and row[nth] < floor and int(row[nth + EXCUSED]) < settled:
                row[nth] = 0

    # ------------------------------------------------------------ a caller that removes everything

    def before_sweep(self) -> np.ndarray:
        """What a removal of all keys that begins now ends: the versions below these."""
        # In this order: what begins in between is not taken for what has ended.
        above = self._words[:, _BEGUN].copy() + np.uint64(1)
        busy = self._words[:, _BUSY].copy()
        return np.where(busy == 0, above, np.minimum(busy, above))

    def is_swept(self, floors: np.ndarray) -> None:
        """It was acknowledged."""
        self._words[:, _SWEPT] = np.maximum(self._words[:, _SWEPT], floors)

    # ------------------------------------------------------------ readers

    def before_read(self, key: str) -> tuple[int, set[int]]:
        """The lowest version that a read which begins now may give, and those below that are excused."""
        row = self._words[self._row[key]]
        floor = max(int(row[_FLOOR]), int(row[_SWEPT]))
        return floor, self._excused(row)

    def wrong(self, key: str, version: int, before: tuple[int, set[int]]) -> str | None:
        """Why a read that began with that must not have given this version; None if it may."""
        row = self._words[self._row[key]]
        if version > int(row[_BEGUN]):
            return f"version {version} of the future: the last one begun is {int(row[_BEGUN])}"
        floor, excused = before
        if version >= floor or version in excused or version in self._excused(row):
            return None
        return f"resurrected: version {version}, and everything below {floor} was removed or replaced before the read"

    def _excused(self, row: np.ndarray) -> set[int]:
        return {int(version) for version in row[_FIRST : _FIRST + EXCUSED] if version}
