"""A pool with a tier on a disk that dm-flakey makes worse step by step: what test_machine_disks.py runs in the machine.

flakey_pool.py DEVICE SEED
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from contents import value, version_of
from power_cut_pool import SLOW

from mooncake.store import MooncakeDistributedStore
from pool import Pool, wait_for

MIB = 1 << 20
KEYS = [f"key/{number}" for number in range(80)]
SIZES = (4 << 10, 48 << 10, 256 << 10, 1 << 20)
# As the target takes them: up for so many seconds, down for so many, and what goes wrong while it is down.
STEPS = {
    "bytes of reads change": "1 1 5 corrupt_bio_byte 1000 r 170 0",
    "bytes of writes change": "1 1 5 corrupt_bio_byte 5000 w 85 0",
    "writes are lost": "1 1 1 drop_writes",
    "writes fail": "1 1 1 error_writes",
    "everything fails": "1 2",
    "nothing fails": "3600 0",
}
STEP_SECONDS = 12.0


def dmsetup(*words: str) -> None:
    subprocess.run(["dmsetup", "--noudevsync", "--noudevrules", *words], check=True, timeout=60)


class Traffic:
    def __init__(self, device: str, seed: int):
        self.device, self.dice = device, random.Random(seed)
        self.sectors = subprocess.check_output(["blockdev", "--getsz", device], text=True).strip()
        self.floor, self.newest = dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS, 0)
        self.counts: Counter[str] = Counter()

    def table(self, what: str) -> str:
        return f"0 {self.sectors} flakey {self.device} 0 {what}"

    def begin(self) -> None:
        subprocess.run(["mkfs.ext4", "-q", self.device], check=True)
        dmsetup("create", "flaky", "--table", self.table("3600 0"))
        disk = Path("/mnt/disk")
        disk.mkdir(parents=True)
        subprocess.run(["mount", "/dev/dm-0", disk], check=True)
        os.environ.update(SLOW)
        (memory := Path("/run/pool")).mkdir()
        self.pool = Pool(memory)
        env = {
            "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(disk / "tiers"),
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(192 * MIB),
        }
        self.pool.begin(1, 20 * MIB, [], ["--enable_offload"], env)
        self.store = MooncakeDistributedStore()
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", self.pool.master.addr)
        assert code == 0, self.store.last_error()
        wait_for("the tier", lambda: self.pool.metric("mooncake_tiers_live") == 1, 60, 0.1)

    def goes_on(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            key = self.dice.choice(KEYS)
            if self.dice.random() < 0.5:
                self.newest[key] += 1
                size = SIZES[KEYS.index(key) % len(SIZES)]
                code = self.store.upsert(key, value(key, size, self.newest[key]))
                assert code == 0, f"a put has failed because of a disk: {code} {self.store.last_error()}"
                self.floor[key] = self.newest[key]
                self.counts["stored"] += 1
            elif got := self.store.get(key):
                version = version_of(key, got)
                assert version is not None, f"wrong bytes of {key}"
                assert self.floor[key] <= version <= self.newest[key], f"{key}: version {version} is back"
                self.counts["right"] += 1
            else:
                self.counts["missing"] += 1

    def run(self) -> None:
        self.begin()
        self.goes_on(STEP_SECONDS)
        for step, table in STEPS.items():
            dmsetup("suspend", "--nolockfs", "flaky")
            dmsetup("reload", "flaky", "--table", self.table(table))
            dmsetup("resume", "flaky")
            self.goes_on(STEP_SECONDS)
            refusing = self.pool.metric("mooncake_tiers_refusing")
            print(f"{step}: {dict(self.counts)}, refusing {refusing}", flush=True)
        print(f"read from the tier: {self.store.get_offload_rpc_read_count()}", flush=True)
        for line in self.pool.nodes[0].output().splitlines():
            if "WARN" in line or "ERROR" in line:
                print(f"node: {line}", flush=True)
        self.store.close()
        self.pool.end()


if __name__ == "__main__":
    Traffic(sys.argv[1], int(sys.argv[2])).run()
