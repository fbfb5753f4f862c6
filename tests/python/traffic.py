"""Verified traffic of one client process: what the random-fault test runs in its peers.

Writers remove and put keys again, each write with a new version; readers take
whatever is there. A value must be one whole write of its own key: anything
else is noted in a file at once, so that it is known even if the process is killed.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

from contents import value, version_of

from mooncake.store import ReplicateConfig

KEYS = [f"key{number}" for number in range(48)]
SIZES = [64 << 10, 256 << 10, 1 << 20, 3 << 20]


def size_of(key: str) -> int:
    return SIZES[int(key[3:]) % len(SIZES)]


class Notes:
    """What one process saw, in files of a folder."""

    def __init__(self, folder: str):
        self._wrong = Path(folder) / "wrong-bytes"
        self._counts = Path(folder) / f"counts-{os.getpid()}"
        self._written = 0.0
        self.counts: Counter[str] = Counter()

    def check(self, key: str, got, how: str) -> None:
        """Counts a value that came, and writes down one that is wrong."""
        if len(got) == 0:
            self.counts["missing"] += 1
            time.sleep(0.001)  # A pool that is away answers at once: misses must not drown everything else.
        elif version_of(key, got) is not None:
            self.counts["right"] += 1
        else:
            with self._wrong.open("a") as file:
                file.write(f"{os.getpid()} {how} {key}: {len(got)} bytes, head {bytes(got[:16]).hex()}\n")
        if time.monotonic() - self._written > 0.1:
            self._counts.write_text(json.dumps(self.counts))
            self._written = time.monotonic()


def counts(folder: Path) -> Counter[str]:
    """What all processes counted, those that were killed too."""
    total: Counter[str] = Counter()
    for file in folder.glob("counts-*"):
        # A process that is killed while it writes leaves an empty file.
        total += Counter(json.loads(file.read_text() or "{}"))
    return total


def read(store, folder: str, until: float, seed: int) -> None:
    """Gets keys in all ways that a reader has."""
    dice, notes = random.Random(seed), Notes(folder)
    while time.time() < until:
        key = dice.choice(KEYS)
        if dice.random() < 0.3:
            view = store.get_buffer(key)
            got = b"" if view is None else memoryview(view)
            if view is not None and dice.random() < 0.2:
                time.sleep(0.05)  # A view is right for as long as it is held.
        else:
            got = store.get(key)
        notes.check(key, got, "read")
        del got


def write(store, folder: str, until: float, seed: int) -> None:
    """Puts keys, removes some, and reads its own successful puts back."""
    dice, notes = random.Random(seed), Notes(folder)
    version = dice.getrandbits(40) << 16
    while time.time() < until:
        key = dice.choice(KEYS)
        version += 1
        if dice.random() < 0.1:
            store.remove(key, True)
        config = ReplicateConfig()
        config.replica_num = dice.choice([1, 1, 2])
        code = store.put(key, value(key, size_of(key), version), config)
        notes.counts["stored" if code == 0 else "failed"] += 1
        if code == 0:
            notes.check(key, store.get(key), "read back")
        else:
            time.sleep(0.005)
