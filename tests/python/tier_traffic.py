"""Verified traffic over tiers of one client process: what the random-fault test of tiers runs in its peers.

Each writer has keys of its own and notes in the ledger what it was told; readers take all keys in all ways. What they
get must be one whole write of its key that no acknowledged call had ended before they asked. Anything else is noted in
a file at once, so that it is known even if the process is killed.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
from contents import value, version_of
from ledger import Ledger

from mooncake.store import ReplicateConfig

WRITERS = ("write-a", "write-b", "write-c")
READERS = ("read-a", "read-b", "read-c")
ROLES = WRITERS + READERS
# More than memory has room for, and with the versions of a minute more than the tiers.
KEYS_EACH = 110
SIZES = (4 << 10, 40 << 10, 200 << 10, 1 << 20, 5 << 18, 5 << 19)
KEYS = [f"{writer}/{number}/" for writer in WRITERS for number in range(KEYS_EACH)]
BATCH = 5


def size_of(key: str) -> int:
    return SIZES[int(key.split("/")[1]) % len(SIZES)]


def keys_of(writer: str) -> list[str]:
    return [key for key in KEYS if key.startswith(writer)]


class Calls:
    """Since when each process waits for an answer, so that one that never gets it is seen from outside."""

    def __init__(self, folder: Path):
        file = Path(folder) / "calls"
        self._words = np.memmap(file, dtype=np.uint64, mode="r+" if file.exists() else "w+", shape=(len(ROLES), 2))

    def begins(self, role: str, is_put: bool) -> None:
        row = self._words[ROLES.index(role)]
        row[1] = is_put
        row[0] = time.monotonic_ns()

    def ends(self, role: str) -> None:
        self._words[ROLES.index(role), 0] = 0

    def waits(self, role: str) -> tuple[float, bool] | None:
        """Since when (of the monotonic clock), and whether for a put; None if for nothing."""
        since, is_put = self._words[ROLES.index(role)]
        return (since / 1e9, bool(is_put)) if since else None


class Notes:
    """What one process saw, in files of a folder."""

    def __init__(self, store, folder: str, role: str):
        self._store, self._role = store, role
        self._wrong = Path(folder) / "wrong"
        self._counts = Path(folder) / f"counts-{os.getpid()}"
        self._written = 0.0
        self.ledger = Ledger(Path(folder) / "ledger", KEYS)
        self.counts: Counter[str] = Counter()
        self._calls = Calls(Path(folder))

    def call(self, name: str, *args):
        """What the store's method says."""
        self._calls.begins(self._role, "put" in name or "upsert" in name)
        try:
            return getattr(self._store, name)(*args)
        finally:
            self._calls.ends(self._role)

    def check(self, key: str, got, before, how: str) -> None:
        """Counts a value that came, and writes down one that is wrong."""
        if len(got) == 0:
            self.counts["missing"] += 1
            time.sleep(0.001)  # A pool that is away answers at once: misses must not drown everything else.
        else:
            version = version_of(key, got)
            why = what_it_is(key, bytes(got)) if version is None else self.ledger.wrong(key, version, before)
            if why is None:
                self.counts["right"] += 1
            else:
                self.note(f"{how} {key}: {why}")
        if time.monotonic() - self._written > 0.1:
            self.counts["from tiers"] = self._store.get_offload_rpc_read_count()
            self._counts.write_text(json.dumps(self.counts))
            self._written = time.monotonic()

    def note(self, what: str) -> None:
        with self._wrong.open("a") as file:
            file.write(f"{time.monotonic():.3f} {self._role} (pid {os.getpid()}) {what}\n")


def what_it_is(key: str, got: bytes) -> str:
    """Of wrong bytes: another key's, or of nobody."""
    for other in KEYS:
        if (version := version_of(other, got)) is not None:
            return f"bytes of {other}, version {version}"
    return f"wrong bytes: {len(got)} of {size_of(key)}, head {got[:16].hex()}"


def counts(folder: Path) -> Counter[str]:
    """What all processes counted, those that were killed too."""
    total: Counter[str] = Counter()
    for file in folder.glob("counts-*"):
        # A process that is killed while it writes leaves an empty file.
        total += Counter(json.loads(file.read_text() or "{}"))
    return total


def read(store, folder: str, role: str, until: float, seed: int) -> None:
    """Gets keys in all ways that a reader has."""
    dice, notes = random.Random(seed), Notes(store, folder, role)
    while time.time() < until:
        keys = dice.sample(KEYS, BATCH)
        how = dice.choice(["get", "get", "get_buffer", "get_batch", "after is_exist"])
        if how == "after is_exist":
            # They are copied to memory meanwhile.
            notes.call("batch_is_exist", keys)
            time.sleep(0.05)
        elif how != "get_batch":
            keys = keys[:1]
        before = [notes.ledger.before_read(key) for key in keys]
        if how == "get_buffer":
            view = notes.call("get_buffer", keys[0])
            if view is not None and dice.random() < 0.2:
                time.sleep(0.05)  # A view is right for as long as it is held.
            got = [b"" if view is None else memoryview(view)]
        elif how == "get":
            got = [notes.call("get", keys[0])]
        else:
            got = notes.call("get_batch", keys) or [b""] * len(keys)
        for key, one, state in zip(keys, got, before, strict=True):
            notes.check(key, one, state, how)
        got = view = one = None


class Writer:
    """The writer of some keys; it may take them over from one that was killed."""

    def __init__(self, store, folder: str, role: str, seed: int):
        self.dice, self.notes, self.role = random.Random(seed), Notes(store, folder, role), role
        self.ledger, self.keys = self.notes.ledger, keys_of(role)
        self.ledger.takes_over(self.keys)

    def once(self) -> None:
        keys = self.dice.sample(self.keys, BATCH)
        act = self.dice.choices(
            [self.replace, self.put_again, self.remove, self.replace_many, self.put_many, self.remove_matches],
            [40, 35, 8, 8, 8, 0.05],
        )[0]
        act(keys)
        if self.dice.random() < 0.3:
            before = self.ledger.before_read(keys[0])
            self.notes.check(keys[0], self.notes.call("get", keys[0]), before, "read back")

    def replace(self, keys: list[str]) -> None:
        self._write("upsert", keys[0])

    def put_again(self, keys: list[str]) -> None:
        self.remove(keys)
        self._write("put", keys[0])

    def remove(self, keys: list[str]) -> None:
        since = time.monotonic_ns()
        self._is_removed(keys[0], self.notes.call("remove", keys[0], True), since)

    def replace_many(self, keys: list[str]) -> None:
        self._write_many("upsert_batch", keys)

    def put_many(self, keys: list[str]) -> None:
        since = time.monotonic_ns()
        codes = self.notes.call("batch_remove", keys, True)
        for key, code in zip(keys, codes, strict=True):
            self._is_removed(key, code, since)
        self._write_many("put_batch", keys)

    def remove_matches(self, _: list[str]) -> None:
        since = time.monotonic_ns()
        if self.notes.call("remove_by_regex", f"^{self.role}/", True) >= 0:
            self.notes.counts["all of a writer removed"] += 1
            for key in self.keys:
                self.ledger.is_removed(key, since)

    def _is_removed(self, key: str, code: int, since: int) -> None:
        if code in (0, -704):
            self.ledger.is_removed(key, since)
            self.notes.counts["removed"] += code == 0

    def _write(self, name: str, key: str) -> None:
        if not self.ledger.may_write(key):
            # Its last writes came to no end that is known: a removal settles them, some time after.
            return self.remove([key])
        version = self.ledger.begins(key)
        code = self.notes.call(name, key, value(key, size_of(key), version), self._config())
        self._wrote(name, [key], code)

    def _write_many(self, name: str, keys: list[str]) -> None:
        keys = [key for key in keys if self.ledger.may_write(key)]
        if not keys:
            return
        values = [value(key, size_of(key), self.ledger.begins(key)) for key in keys]
        self._wrote(name, keys, self.notes.call(name, keys, values, self._config()))

    def _wrote(self, name: str, keys: list[str], code: int) -> None:
        for key in keys:
            if code == 0:
                self.ledger.is_stored(key, replaces=name.startswith("upsert"))
            else:
                self.ledger.is_unsure(key)
        self.notes.counts["stored" if code == 0 else f"failed with {code}"] += len(keys)
        if code != 0:
            time.sleep(0.005)

    def _config(self) -> ReplicateConfig:
        config = ReplicateConfig()
        config.replica_num = self.dice.choice([1, 1, 1, 2])
        return config


def write(store, folder: str, role: str, until: float, seed: int) -> None:
    """Puts, replaces and removes its own keys, and reads some back."""
    writer = Writer(store, folder, role, seed)
    while time.time() < until:
        writer.once()
        # Room for the others on a machine of two processors, and for the disk.
        time.sleep(0.004)
