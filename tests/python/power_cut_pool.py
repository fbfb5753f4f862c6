"""A pool with a tier on a disk whose power is cut: what test_machine_power_cuts.py runs in the machine.

    power_cut_pool.py TIERS LOG TOLD ROUND WAL

Says in the file TOLD what its calls were told, a line each: `begins KEY VERSION` before a write, `stored KEY VERSION`
and `removed KEY` behind one, `settled KEY VERSION` of what has been on the disk for a while; and what it reads of what
earlier rounds have left, `read KEY VERSION`, with -1 for a miss and None for wrong bytes.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from contents import value, version_of

from mooncake.store import MooncakeDistributedStore
from pool import Pool, wait_for

MIB = 1 << 20
SIZES = (4 << 10, 48 << 10, 256 << 10, 1 << 20)
SETTLED = [f"settled/{number}" for number in range(8)]
SWEPT = [f"swept/{number}" for number in range(8)]
CHANGED = [f"changed/{number}" for number in range(24)]
# A machine without hardware help is slow.
SLOW = {"MC_LOOKUP_TIMEOUT_MS": "10000", "MC_DATA_TIMEOUT_MS": "30000", "MC_PUT_TIMEOUT_MS": "60000"}


def size_of(key: str) -> int:
    return SIZES[int(key.split("/")[1]) % len(SIZES)]


class Round:
    def __init__(self, tiers: str, log: Path, told: Path, number: int, wal: str):
        self.number, self.versions = number, number << 20
        self.told = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        env = {
            "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": tiers,
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(256 * MIB),
            **SLOW,
        }
        os.environ.update(SLOW)
        log.mkdir(exist_ok=True)
        self.pool = Pool(log)
        self.pool.begin(0, master_flags=[f"--wal={wal}"], env=env)
        self.pool.add_node(24 * MIB, ["--enable_offload"], env)
        self.store = MooncakeDistributedStore()
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", self.pool.master.addr)
        assert code == 0, self.store.last_error()
        wait_for("the tier", lambda: self.pool.metric("mooncake_tiers_live") == 1, 120, 0.1)

    def say(self, *words) -> None:
        """One write to a file of the host, which is there whatever becomes of this machine."""
        os.write(self.told, (" ".join(map(str, words)) + "\n").encode())

    def read_all(self) -> None:
        for key in (*SETTLED, *SWEPT, *CHANGED):
            got = self.store.get(key)
            self.say("read", key, version_of(key, got) if got else -1)
        self.say("has-read", self.number)

    def write(self, name: str, key: str) -> bool:
        self.versions += 1
        self.say("begins", key, self.versions)
        code = getattr(self.store, name)(key, value(key, size_of(key), self.versions))
        self.say("stored" if code == 0 else "unsure", key, self.versions)
        return code == 0

    def remove(self, key: str) -> bool:
        code = self.store.remove(key, True)
        if code in (0, -704):
            self.say("removed", key)
        return code in (0, -704)

    def settle(self) -> None:
        """Some objects are on the tier for longer than it takes to sync them."""
        for key in SETTLED:
            if not (self.remove(key) and self.write("put", key)):
                raise AssertionError(f"{key}: {self.store.last_error()}")
        for key in SWEPT:
            self.write("upsert", key)

        def are_written() -> bool:
            described = self.store.batch_get_replica_desc(SETTLED)
            return all(any(one.is_local_disk_replica() for one in described.get(key, [])) for key in SETTLED)

        wait_for("objects on the tier", are_written, 60, 0.1)
        time.sleep(4)
        for key in SETTLED:
            self.say("settled", key)
        if self.store.remove_by_regex("^swept/", True) >= 0:
            for key in SWEPT:
                self.say("swept", key)

    def change_for_ever(self) -> None:
        dice = random.Random(self.number)
        self.say("ready", self.number)
        while True:
            key = dice.choice(CHANGED)
            act = dice.random()
            if act < 0.5:
                self.write("upsert", key)
            elif self.remove(key) and act < 0.8:
                self.write("put", key)


def main() -> None:
    tiers, log, told, number, wal = sys.argv[1:]
    one = Round(tiers, Path(log), Path(told), int(number), wal)
    one.read_all()
    one.settle()
    one.change_for_ever()


if __name__ == "__main__":
    main()
