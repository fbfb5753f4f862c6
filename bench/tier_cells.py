"""The cells of a tier: what its disk can do by fio, and what writes to it, reads of it and a restart make of that.

Everything lies on the file system of this checkout: of a disk that is slower or faster elsewhere, `BENCH_TIER` names a
folder there. An implementation without tiers of its own is left out.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import floors
from rig import ROOT, Rig, RigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Small, so that most of what is put lies on the disk alone.
MEMORY = 512 * MIB
# What is read: objects of a size, keys of a batch.
SHAPES = {"32 x 1 MiB": (MIB, 32), "256 x 64 KiB": (64 * KIB, 256)}
READ_BYTES = 2 * GIB
# Seconds of writing, and bytes of a tier that is taken over; the second of each with --full.
WRITING = {False: 8, True: 60}
TAKEN_OVER = {False: (GIB, 4 * GIB), True: (8 * GIB, 32 * GIB)}
# Puts a second that leave the disk and both processors time, for what demotion costs those that do not wait for it.
PACED = 200
# How often a read and what it is compared with are measured in one repeat.
IN_TURN = 4
WRITE, READ_MIB, READ_KIB = "disk write 1 MiB, QD 8", "disk read 1 MiB, QD 32", "disk read 64 KiB, QD 32"
FLOORS = {"32 x 1 MiB": READ_MIB, "256 x 64 KiB": READ_KIB}
ONE, ONE_P99 = "disk read 1 MiB, QD 1, p50", "disk read 1 MiB, QD 1, p99"
# Between an existence query and the load of what it found.
PAUSE = 0.2
FROM_DISK, MISSED = "tier load 200 ms after is_exist, from the disk", "tier load 200 ms after is_exist, misses"
# What the fastest tier adds to a read: a copy, two messages, two sums.
ADDED_US = 250
# What the rival reads and writes by.
URING = "MOONCAKE_OFFLOAD_USE_URING"
# For the memory that fio has under way, from 2 MiB on (glibc 2.35 or later): in small pages a disk is up to twice as
# slow, by where these happen to lie.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# How the disk is read and written where io_uring is not to be had, as in most containers.
THREADS, BY_THREADS = {"MC_TIER_ENGINE": "threads"}, ", by threads"


def expectations(expected):
    """What each cell has to reach; `expected` makes one."""
    cells = {cell: expected("GB/s") for cell in (WRITE, *FLOORS.values())}
    cells |= {f"{cell}, TCP": expected("GB/s") for cell in FLOORS.values()}
    cells |= {cell: expected("us", lower_is_better=True) for cell in (ONE, ONE_P99)}
    cells["tier demotion 1 MiB"] = expected("GB/s", floor=WRITE, share=0.80)
    cells[f"tier demotion 1 MiB{BY_THREADS}"] = expected("GB/s", floor="tier demotion 1 MiB", share=0.70)
    cells["tier demotion, objects lost unwritten"] = expected("", limit=0, lower_is_better=True)
    for (shape, floor), share in zip(FLOORS.items(), (0.80, 0.70), strict=True):
        cells[f"tier batch get {shape}"] = expected("GB/s", rival=2, floor=floor, share=share, any_of=True)
        cells[f"tier batch get {shape}, TCP"] = expected("GB/s", floor=f"{floor}, TCP", share=0.65)
        cells[f"tier batch get {shape}{BY_THREADS}"] = expected("GB/s", floor=f"tier batch get {shape}", share=0.70)
    cells["tier get 1 MiB, p50"] = expected("us", lower_is_better=True)
    cells["tier get 1 MiB, p50 beyond the disk's"] = expected("us", limit=ADDED_US, lower_is_better=True)
    cells["tier get 1 MiB, p99"] = expected("us", floor=ONE_P99, share=2, lower_is_better=True)
    cells[FROM_DISK] = expected("%", limit=5, lower_is_better=True)
    cells[MISSED] = expected("", limit=0, lower_is_better=True)
    cells["tier put until on disk, p99"] = expected("ms", limit=1_000, lower_is_better=True)
    for op in ("put", "get"):
        plain = f"{op} 1 MiB, {PACED} puts/s, p50"
        cells[plain] = expected("us", lower_is_better=True)
        cells[f"{plain}, demoting"] = expected("us", floor=plain, share=1.15, lower_is_better=True)
    for size in sorted({*TAKEN_OVER[False], *TAKEN_OVER[True]}):
        cells[_back(size)] = expected("s", limit=1, lower_is_better=True)
    return cells


def _back(size):
    return f"tier of {size // GIB} GiB back after a kill"


def measure(implementation, seconds, record, full):
    """All cells of one implementation; `record` takes each figure. Yields behind each group; one that fails leaves the
    others to be measured."""
    ours, failures = implementation.installation.is_ours, []
    reads = _reads if ours else _better_reads
    groups = [lambda folder, shape=shape: reads(implementation, seconds, record, folder, shape) for shape in SHAPES]
    if not implementation.by_tcp:
        groups.append(lambda folder: _until_on_disk(implementation, record, folder))
        if ours:
            groups.append(lambda folder: _demotion(implementation, record, folder, WRITING[full]))
            groups.append(
                lambda folder: _demotion(_by_threads(implementation), record, folder, WRITING[full], BY_THREADS)
            )
            groups.append(lambda folder: _looked_up(implementation, record, folder))
            for _ in range(IN_TURN // 2):
                groups.append(lambda folder: _paced(implementation, record, None))
                groups.append(lambda folder: _paced(implementation, record, folder))
            for size in TAKEN_OVER[full]:
                groups.append(lambda folder, size=size: _taken_over(implementation, record, folder, size))
    for group in groups:
        try:
            with _folder() as folder:
                group(folder)
        except RigError as error:
            failures.append(str(error))
        yield
    if failures:
        raise RigError("; ".join(failures))


@contextlib.contextmanager
def _folder():
    above = Path(os.environ.get("BENCH_TIER", ROOT / "target" / "bench"))
    above.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="tier-", dir=above))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Disk:
    """The disk by itself, past the page cache, in files that were preallocated. Others use it too, on a machine that is
    shared: it is measured in turn with what goes through a tier."""

    def __init__(self, folder):
        self.program = floors.installed("fio", "the floor of a disk")
        self.file = folder / "fio"

    @classmethod
    def of(cls, implementation, folder):
        """None where there is nothing to measure it with, or nothing to compare it to."""
        if not implementation.installation.is_ours:
            return None
        try:
            return cls(folder)
        except floors.NoFloor as reason:
            print(f"  {reason}", flush=True)
            return None

    def write(self, seconds=0):
        """GB/s, of so many seconds at least. Each pass writes a new file, as a log does: what was written before is
        written again up to twice as fast, as its blocks are known to have been."""
        end, written, spent = time.monotonic() + seconds, 0, 0
        while not written or time.monotonic() < end:
            self.file.unlink(missing_ok=True)
            done = self._run("write", MIB, 8)
            written, spent = written + done["io_bytes"], spent + done["runtime"] / 1e3
        return written / 1e9 / spent

    def read(self, size, depth):
        """GB/s, and microseconds of the median and of the slowest hundredth."""
        if not self.file.exists():
            self.write()
        done = self._run("randread", size, depth, "--time_based", "--runtime=1")
        times = done["clat_ns"]["percentile"]
        return done["bw_bytes"] / 1e9, *(times[f"{percent}.000000"] / 1e3 for percent in (50, 99))

    def _run(self, rw, size, depth, *more):
        command = [self.program, "--name=floor", f"--filename={self.file}", "--size=2G", "--direct=1"]
        command += ["--ioengine=libaio", "--fallocate=native", "--output-format=json", f"--rw={rw}", f"--bs={size}"]
        command += [f"--iodepth={depth}", *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | HUGE_PAGES)
        if done.returncode != 0:
            raise RigError(f"fio: {done.stderr.strip()[-400:]}")
        return json.loads(done.stdout)["jobs"][0]["write" if rw == "write" else "read"]


def _fill(client, prefix, size, count, keep_all=True):
    """Puts them, each again until it is taken: an implementation that refuses is given time."""
    filled = client.ask("fill", prefix=prefix, size=size, count=count, seconds=120)
    if filled["left"] and keep_all:
        raise RigError(f"{filled['left']} of {count} objects of {size} bytes were refused for two minutes")
    return filled


def _reads(implementation, seconds, record, folder, shape):
    """Batches of what the disk alone has, right behind what the disk does by itself."""
    suffix, (size, batch) = ", TCP" if implementation.by_tcp else "", SHAPES[shape]
    rig = Rig(implementation, MEMORY, tier=folder)
    try:
        client = rig.client("client")
        prefix, keys = f"cold{size}", READ_BYTES // size
        _fill(client, prefix, size, keys)
        _rests(rig)
        # The last of them are in memory still.
        cold = _on_disk_alone(client, prefix, keys, batch, size)
        disk = _Disk.of(implementation, folder)
        by_threads = rig.client("threads", environment=THREADS) if disk and not suffix else None
        how = {"prefix": prefix, "size": size, "keys": cold, "seconds": seconds}

        def batches(client, cell):
            read = _timed(client, shape, "batch_get_into", batch=batch, **how)
            record(cell, read["moved"] / 1e9 / read["seconds"])

        for _ in range(IN_TURN):
            if disk:
                record(FLOORS[shape] + suffix, disk.read(size, 32)[0])
            batches(client, f"tier batch get {shape}{suffix}")
            if by_threads:
                batches(by_threads, f"tier batch get {shape}{BY_THREADS}")
            if size == MIB and not suffix:
                one = _timed(client, "get", "get_into", **how)
                record("tier get 1 MiB, p50", one["p50_us"])
                record("tier get 1 MiB, p99", one["p99_us"])
                if disk:
                    _, p50, p99 = disk.read(size, 1)
                    record(ONE, p50)
                    record(ONE_P99, p99)
                    record("tier get 1 MiB, p50 beyond the disk's", one["p50_us"] - p50)
    finally:
        rig.stop()


def _better_reads(implementation, seconds, record, folder, shape):
    """The same of one that reads by threads unless it is told to use io_uring: the better of both counts."""
    read, failures = [], []
    for uring in ("false", "true"):
        environment, figures = implementation.environment | {URING: uring}, []
        told = replace(implementation, environment=environment)
        own = folder / f"uring-{uring}"
        own.mkdir()
        try:
            _reads(told, seconds, lambda *figure, figures=figures: figures.append(figure), own, shape)
        except RigError as error:
            failures.append(f"{URING}={uring}: {error}")
            print(f"    {implementation.name}, {shape}: {failures[-1]}", flush=True)
        else:
            rate = statistics.median(figure for cell, figure in figures if cell.startswith("tier batch get"))
            print(f"    {implementation.name}, {URING}={uring}: {shape} {rate:.2f} GB/s", flush=True)
            read.append((rate, figures))
        shutil.rmtree(own, ignore_errors=True)
    if not read:
        raise RigError("; ".join(failures))
    for figure in max(read, key=lambda one: one[0])[1]:
        record(*figure)


def _looked_up(implementation, record, folder):
    """Batches of what the disk alone has, looked for 200 ms before they are read."""
    rig = Rig(implementation, MEMORY, tier=folder, prefetch=True)
    try:
        client = rig.client("client")
        count = READ_BYTES // MIB
        _fill(client, "cold", MIB, count)
        _rests(rig)
        cold = count - 2 * MEMORY // MIB
        asked = client.ask("looked_up", prefix="cold", size=MIB, keys=cold, batch=32, seconds=15, pause=PAUSE)
        record(FROM_DISK, 100 * asked["from_disk"] / asked["read"])
        record(MISSED, asked["missed"])
    finally:
        rig.stop()


def _rests(rig, timeout=60):
    """Waits until the owner writes nothing any more: what is read next has the disk for itself."""
    io, end, before = Path(f"/proc/{rig.owner.pid}/io"), time.monotonic() + timeout, None
    while time.monotonic() < end:
        now = next(line for line in io.read_text().splitlines() if line.startswith("write_bytes"))
        if now == before:
            return
        before = now
        time.sleep(1.5)


def _on_disk_alone(client, prefix, keys, batch, size):
    """How many of the first objects are to be read, whole batches, once the tier has them and memory does not."""
    cold = (keys - 2 * MEMORY // size) // batch * batch
    end = time.monotonic() + 90
    while True:
        answer = client.ask("alive", prefix=prefix, count=cold)
        if answer["alive"] == cold:
            return cold
        if time.monotonic() > end:
            raise RigError(f"{answer['alive']} of {cold} objects are there: the others came to no tier")
        time.sleep(0.5)


def _timed(client, name, op, **how):
    result = client.ask("run", op=op, **how)
    if result["failed"] or result["wrong"] or not result["count"]:
        raise RigError(f"{name}: of {result['count']} calls {result['failed']} failed, {result['wrong']} were wrong")
    return result


def _until_on_disk(implementation, record, folder):
    rig = Rig(implementation, MEMORY, tier=folder)
    try:
        client = rig.client("client")
        # At least two, of an implementation that looks every ten seconds.
        record("tier put until on disk, p99", client.ask("put_to_disk", prefix="one", size=MIB, seconds=15)["p99_ms"])
    finally:
        rig.stop()


def _by_threads(implementation):
    return replace(implementation, environment=implementation.environment | THREADS)


def _demotion(implementation, record, folder, seconds, suffix=""):
    """A writer that is faster than the disk: what comes to the disk in that time."""
    rig = Rig(implementation, MEMORY, tier=folder)
    try:
        client = rig.client("client")
        disk = None if suffix else _Disk.of(implementation, folder)
        # As long before as behind it: some disks are faster for a moment.
        if disk:
            record(WRITE, disk.write(seconds // 2))
        # Files, windows and rates as they are in the middle of a run.
        _timed(client, "warm up", "put_from", prefix="warm", size=MIB, seconds=2)
        written = rig.master.metric("mooncake_tier_written_bytes_total")
        begin = time.perf_counter()
        _timed(client, "put_from", "put_from", prefix="hot", size=MIB, seconds=seconds)
        spent = time.perf_counter() - begin
        written = rig.master.metric("mooncake_tier_written_bytes_total") - written
        record(f"tier demotion 1 MiB{suffix}", written / 1e9 / spent)
        if not suffix:
            lost = rig.master.metric("mooncake_evicted_unwritten_objects_total")
            record("tier demotion, objects lost unwritten", lost)
        if disk:
            _rests(rig)
            record(WRITE, disk.write(seconds // 2))
    finally:
        rig.stop()


def _paced(implementation, record, folder, seconds=4):
    """Puts at a pace that the disk keeps up with, and gets from memory in between."""
    suffix = ", demoting" if folder else ""
    rig = Rig(implementation, 2 * GIB, tier=folder)
    try:
        client, reader = rig.client("client"), rig.client("reader")
        _timed(client, "warm up", "put_from", prefix="warm", size=MIB, seconds=10, most=1_200)
        client.ask("remove_all")
        _timed(client, "put_from", "put_from", prefix="hot", size=MIB, seconds=10, most=64)
        how = {"size": MIB, "seconds": seconds, "pause": 1 / PACED}
        client.send("run", op="put_from", prefix="paced", most=1_200, **how)
        got = _timed(reader, "get_into", "get_into", prefix="hot", keys=64, **how)
        put = client.receive()
        for op, result in (("put", put), ("get", got)):
            record(f"{op} 1 MiB, {PACED} puts/s, p50{suffix}", result["p50_us"])
    finally:
        rig.stop()


def _taken_over(implementation, record, folder, size):
    """From the start of an owner whose predecessor was killed to the last of its objects."""
    rig = Rig(implementation, MEMORY, tier=folder)
    try:
        client = rig.client("client")
        count = size // (64 * KIB)
        _fill(client, "kept", 64 * KIB, count)
        end = time.monotonic() + 30
        # Not by mooncake_tier_ordered_bytes: it is 0 for a moment before the last orders are given.
        while (kept := int(rig.master.metric("file_cache_nums_"))) < count:
            lost = int(rig.master.metric("mooncake_evicted_unwritten_objects_total"))
            if lost or time.monotonic() > end:
                raise RigError(f"the tier has {kept} of {count} objects, and {lost} left memory unwritten")
            time.sleep(0.05)
        rig.owner.program.kill()
        rig.clients.remove(rig.owner)
        begin = time.perf_counter()
        rig.owner = rig.client("heir", MEMORY, 64 * MIB, tier=True)
        while rig.master.metric("file_cache_nums_") < kept:
            if time.perf_counter() - begin > 60:
                raise RigError("the tier did not come back within a minute")
            time.sleep(0.005)
        record(_back(size), time.perf_counter() - begin)
        if (alive := client.ask("alive", prefix="kept", count=count)["alive"]) < count:
            raise RigError(f"{alive} of {count} objects are there again")
        _timed(client, "get", "get_into", prefix="kept", size=64 * KIB, keys=count, seconds=1)
    finally:
        rig.stop()
