"""The host of a tier loses power, again and again: in an emulated machine, whose disk loses what was not flushed."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from emulated import ROOT, Machine, needs_machine, python
from volatile_disk import VolatileDisk

CUTS = int(os.environ.get("MOONCAKE_POWER_CUTS") or 12)

pytestmark = [pytest.mark.timeout(300 + 120 * CUTS), pytest.mark.slow, pytest.mark.long]

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def machine():
    needs_machine()
    if shutil.which("mkfs.ext4", path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
        pytest.skip("no mkfs.ext4 (Debian: e2fsprogs)")


@pytest.fixture
def disks(tmp_path):
    """Each loses what it was not told to flush itself."""
    made = [VolatileDisk(tmp_path / f"disk-{nth}.raw", 1 << 30) for nth in range(2)]
    yield made
    for one in made:
        one.close()


def boot(tmp_path: Path, disks: list[VolatileDisk], command: str, is_new: bool) -> Machine:
    """With disks at /mnt/0 and so on, whose file systems the first boot makes; after that their journals mend them."""
    script, options = "set -e", ["--share", str(tmp_path / "shared")]
    for nth, disk in enumerate(disks):
        device = f"/dev/vd{'ab'[nth]}"
        make = f"mkfs.ext4 -q {device}; " if is_new else ""
        script += f"; {make}mkdir -p /mnt/{nth}; mount {device} /mnt/{nth}"
        options += ["--disk", disk.drive]
    return Machine(tmp_path / "machine.out", ["sh", "-c", f"{script}; {command}"], *options)


def wait(machine: Machine, seconds: float, is_over) -> None:
    """Until so many seconds have passed since it was over, as the machine's shared files say."""
    end = time.monotonic() + 240
    while not is_over():
        assert machine.is_running, f"it ended with {machine.process.returncode}:\n{machine.output()[-4000:]}"
        assert time.monotonic() < end, f"it stands still:\n{machine.output()[-4000:]}"
        time.sleep(0.05)
    time.sleep(seconds)


def test_what_the_superblock_calls_synced_is_whole_after_each_cut_and_nothing_else_is_read(tmp_path, disks, seed):
    disk = disks[0]
    dice = random.Random(seed)
    shutil.which("cargo") or pytest.skip("the owner of records is built with cargo, which is not here")
    build = ["cargo", "build", "--quiet", "--locked", "-p", "mooncake-tier", "--example", "power_cut"]
    subprocess.run(build, cwd=ROOT, check=True, timeout=600)
    program = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "debug/examples/power_cut"
    shared = tmp_path / "shared"
    shared.mkdir()
    told, found = shared / "told", shared / "found"
    told.write_text("")
    first, whole, lost_blocks, lost_records, most = 1, 0, 0, 0, 0
    for cut in range(CUTS):
        found.unlink(missing_ok=True)
        before = told.stat().st_size
        write = f"exec {program} write /mnt/0/tier {first} >>{told}"
        check = f"{program} check /mnt/0/tier <{told} >{found}.part; mv {found}.part {found}"
        machine = boot(tmp_path, [disk], f"{check}; {write}" if cut else write, is_new=not cut)
        wait(machine, dice.uniform(0.1, 6.0), lambda size=before: told.stat().st_size > size + 500)
        machine.cut_power()
        lost_blocks += disk.lose_power(dice)
        said = told.read_text()[before:]
        if cut:
            *records, last = found.read_text().splitlines()
            match = re.fullmatch(r"found (\d+) (\d+) (\d+) (\d+)", last)
            assert match, last
            whole, lost, _, synced_to = map(int, match.groups())
            assert whole == len(records)
            lost_records, most = lost_records + lost, max(most, synced_to)
            said = "".join(f"{record}\n" for record in records) + said
        # Of the next writer's lines none is the end of one that the cut has left.
        told.write_text(said[: said.rindex("\n") + 1])
        first += 100_000
    print(
        f"{CUTS} cuts, {disk.flushes} flushes of {disk.written // MIB} MiB; {lost_blocks} blocks and {lost_records} "
        f"records were lost, {whole} are whole"
    )
    assert most > 0, "nothing was ever synced"
    assert lost_blocks > 0, "no cut has lost anything"
    assert whole > 20


class Told:
    """What a pool was told of each key before its power was cut, and what the next one may read."""

    def __init__(self, is_durable: bool):
        self.is_durable = is_durable
        self.newest: dict[str, int] = {}
        self.floor: dict[str, int] = {}
        self.unsure: dict[str, set[int]] = {}
        self.settled: dict[str, int] = {}
        self.reads = {"right": 0, "missing": 0}

    def hears(self, lines: list[str]) -> None:
        """Of one boot: its reads come first."""
        for line in lines:
            what, key, *rest = line.split(" ")
            version = int(rest[0]) if rest and rest[0] != "None" else None
            match what:
                case "read":
                    self.is_read(key, version)
                case "has-read":
                    self.settled.clear()
                case "begins":
                    self.newest[key] = version
                    self.unsure.setdefault(key, set()).add(version)
                case "stored":
                    if self.is_durable:
                        self.unsure[key] = set()
                        self.floor[key] = version
                case "removed":
                    if self.is_durable:
                        self.unsure[key] = set()
                        self.floor[key] = self.newest.get(key, 0) + 1
                case "swept":  # On the disk before it was answered, however the log is kept.
                    self.unsure[key] = set()
                    self.floor[key] = self.newest.get(key, 0) + 1
                case "settled":
                    self.settled[key] = self.newest[key]

    def is_read(self, key: str, version: int | None) -> None:
        assert version is not None, f"wrong bytes of {key}"
        if version == -1:
            assert key not in self.settled or not self.is_durable, f"{key} was synced, and is gone"
            self.reads["missing"] += 1
            return
        self.reads["right"] += 1
        assert version <= self.newest.get(key, 0), f"{key}: version {version} was never written"
        is_swept = key.startswith("swept/")
        if self.is_durable or is_swept:
            allowed = version >= self.floor.get(key, 0) or version in self.unsure.get(key, ())
            assert allowed, f"{key}: version {version} is back, and all below {self.floor[key]} had ended"


@pytest.mark.parametrize("wal", ["fsync", "on"])
def test_a_pool_serves_after_each_cut_what_was_synced_and_nothing_that_was_removed(tmp_path, disks, seed, wal):
    dice = random.Random(seed)
    shared = tmp_path / "shared"
    shared.mkdir()
    told, lost_blocks = Told(is_durable=wal == "fsync"), [0, 0]
    for cut in range(max(CUTS // 2, 2)):
        file = shared / f"told-{cut}"
        command = " ".join([*python("power_cut_pool.py"), "/mnt/0/tiers", "/mnt/1/pool", str(file), str(cut), wal])
        machine = boot(tmp_path, disks, f"exec {command}", is_new=not cut)
        wait(machine, dice.uniform(0, 5), lambda file=file: file.exists() and "ready" in file.read_text())
        machine.cut_power()
        lost_blocks = [lost + disk.lose_power(dice) for lost, disk in zip(lost_blocks, disks, strict=True)]
        # The last line may have been cut off.
        told.hears(file.read_text().split("\n")[:-1])
    flushes = " and ".join(f"{disk.flushes} flushes of {disk.written // MIB} MiB" for disk in disks)
    print(f"--wal={wal}: of tier and log {flushes}, {lost_blocks} blocks lost; reads {told.reads}")
    assert lost_blocks[0] > 0, "no cut has lost anything of the tier's disk"
    assert told.reads["right"] > 8
