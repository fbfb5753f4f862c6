"""The cells: what is measured, in which unit, and what is expected of it."""

import time
from dataclasses import dataclass
from pathlib import Path

import engine_cells
import kept_cells
import proxy_cells
import scale_cells
import tier_cells
from floors import MEMCPY, STREAM
from rig import Rig, RigError, memory_kib
from worker import LAYERS

MIB = 1 << 20
POOL = 2 << 30
# New keys per cell: half of the pool, so that no cell measures eviction.
CELL_BYTES = 1 << 30
# Keys of one multi-buffer call.
BLOCKS = 64
# Samples of batch_is_exist in one repeat.
BATCH_QUERY_SAMPLES = 4


# Cells of what `Layers` measures, by its operations.
LAYER_CELLS = {
    "get_multi": "get_multi beside get_ranges",
    "get_ranges": "get_ranges 64 x 32 x 64 KiB",
    "copy_layer": "copy of a layer of 64 x 64 KiB, p50",
    "get_layer": "get of a layer of 64 x 64 KiB, p50",
    "copy_layer_again": "copy of a layer of 64 x 64 KiB, cached, p50",
    "get_layer_again": "get of a layer of 64 x 64 KiB, cached, p50",
    "put_multi": "put_multi beside put_ranges",
    "put_ranges": "put_ranges 64 x 32 x 64 KiB",
    "put_layer": "put of a layer of 64 x 64 KiB, p50",
}


@dataclass(frozen=True)
class Expected:
    """What a cell has to reach: ratios to the rivals, and a share of a floor or an absolute limit."""

    unit: str
    rival: float = None
    nixl: float = None
    floor: str = None
    share: float = None
    limit: float = None
    lower_is_better: bool = False
    # One of the ratios and shares is enough: a rival that is as fast as the machine leaves no room.
    any_of: bool = False


def expectations():
    cells = {}
    for mib, share in ((1, 0.55), (4, 0.60), (16, 0.60)):
        cells[f"put_from {mib} MiB"] = Expected("GB/s", rival=3, floor=MEMCPY, share=0.70)
        cells[f"get_into {mib} MiB"] = Expected("GB/s", rival=3, floor=MEMCPY, share=share)
    for mib in (1, 4, 16):
        cells[f"put {mib} MiB"] = Expected("GB/s", rival=2)
        cells[f"get {mib} MiB"] = Expected("GB/s", rival=2)
    for mib in (1, 4, 16):
        for op in ("put_from", "get_into"):
            cells[f"{op} {mib} MiB, TCP"] = Expected("GB/s", rival=1.6, floor=STREAM, share=0.90)
    for how in ("4 threads", "8 threads", "4 processes"):
        cells[f"get_into 1 MiB, {how}"] = Expected("GB/s", rival=4, floor="get_into 1 MiB", share=0.85)
    for kib in (16, 64):
        cells[f"put_multi 64 x 32 x {kib} KiB"] = Expected("GB/s", rival=3)
        cells[f"get_multi 64 x 32 x {kib} KiB"] = Expected("GB/s", rival=3)
    # In turn with each other, in one process.
    for op in ("get", "put"):
        cells[f"{op}_multi beside {op}_ranges"] = Expected("GB/s")
        cells[f"{op}_ranges 64 x 32 x 64 KiB"] = Expected("GB/s", floor=f"{op}_multi beside {op}_ranges", share=0.90)
    cells["put of a layer of 64 x 64 KiB, p50"] = Expected("us", lower_is_better=True)
    # A layer that is loaded lies in no cache. The same one over and over, in a cache, shows what a call costs beside
    # the copy.
    for cached in ("", ", cached"):
        copy, get = (f"{op} of a layer of 64 x 64 KiB{cached}, p50" for op in ("copy", "get"))
        cells[copy] = Expected("us", lower_is_better=True)
        cells[get] = Expected("us", floor=copy, share=1.2, lower_is_better=True)
    cells["put_tensor 64 MiB"] = Expected("GB/s", rival=2)
    cells["get_tensor 64 MiB"] = Expected("GB/s", rival=2)
    # New memory for each value: the kernel's faults for it cost three times the copy (docs/where-the-time-goes.md).
    cells["batch_get_into 1,000 x 64 KiB"] = Expected("GB/s")
    cells["get_batch 1,000 x 64 KiB"] = Expected("GB/s", floor="batch_get_into 1,000 x 64 KiB", share=0.2)
    cells["async_get 1,000 x 64 KiB"] = Expected("GB/s", rival=3, floor="get_batch 1,000 x 64 KiB", share=0.4)
    cells["get_into 1 MiB, p50"] = Expected("us", lower_is_better=True)
    cells["get_into 1 MiB by a dummy, p50"] = Expected(
        "us", floor="get_into 1 MiB, p50", share=1.3, lower_is_better=True
    )
    cells["put 4 KiB, p50"] = Expected("us", rival=0.6, lower_is_better=True)
    cells["get 4 KiB, p50"] = Expected("us", rival=0.6, lower_is_better=True)
    cells["is_exist, p50"] = Expected("us", rival=0.6, lower_is_better=True)
    cells["is_exist, 8 clients"] = Expected("ops/s", rival=1.6)
    cells["batch_is_exist(1000)"] = Expected("keys/s", rival=2.5)
    cells["put_batch of 64 B"] = Expected("objects/s", rival=4)
    cells["master memory per object"] = Expected("B", limit=220, lower_is_better=True)
    cells["objects alive of 200,000"] = Expected("", limit=200_000)
    cells["master memory kept after remove_all"] = Expected("% of growth", limit=25, lower_is_better=True)
    cells["setup with 1 GiB"] = Expected("ms", limit=50, lower_is_better=True)
    cells["close with 1 GiB"] = Expected("ms", limit=100, lower_is_better=True)
    cells["close until memory is back"] = Expected("ms", limit=200, lower_is_better=True)
    cells["master start"] = Expected("ms", limit=100, lower_is_better=True)
    parts = (engine_cells, kept_cells, proxy_cells, scale_cells, tier_cells)
    return cells | {cell: mark for part in parts for cell, mark in part.expectations(Expected).items()}


class Session:
    """The cells of one repeat of one implementation; `record` takes each figure.

    Each part yields behind each of its cells, so that two sessions can be measured cell by cell in turn: while one of
    them is measured, the other's processes wait for their next command. Parts that measure the whole host (`Shmem`,
    cores that a proxy has for itself) yield at their end only. With `only`, a part measures these cells and what they
    need; it may measure others beside them. Each timed cell is cut into so many slices, each a figure of its own with a
    yield behind it: the shorter the turns, the more alike is the machine that both find.
    """

    def __init__(self, implementation, seconds, record, small_objects, only=None, full=False, slices=1):
        self.implementation = implementation
        self.seconds = seconds
        self.record = record
        self.small_objects = small_objects
        self.only = only
        self.full = full
        self.slices = slices

    def _wants(self, *cells):
        return self.only is None or not self.only.isdisjoint(cells)

    def _timed(self, client, name, op, **how):
        result = client.ask("run", op=op, **{"seconds": self.seconds} | how)
        if result["failed"] or result["wrong"]:
            raise RigError(f"{name}: {result['failed']} calls failed, {result['wrong']} results were wrong")
        return result

    def _samples(self, client, name, op, record, most=1 << 30, **how):
        """The slices of a timed cell; `record` takes the result of each. How many operations there were in all."""
        done = 0
        for _ in range(self.slices):
            each = {"seconds": self.seconds / self.slices, "most": max(1, most // self.slices), "first": done}
            result = self._timed(client, name, op, **how | each)
            record(result)
            done += result["count"]
            yield
        return done

    def _rate(self, cell):
        return lambda result: self.record(cell, result["moved"] / 1e9 / result["seconds"])

    def _p50(self, cell):
        return lambda result: self.record(cell, result["p50_us"])

    def _pair(self, client, put, get, mib, suffix=""):
        """A put cell of new keys, then a get cell over the same keys."""
        size, prefix = mib * MIB, f"{put}{mib}{suffix}"
        put_cell, get_cell = (f"{op} {mib} MiB{suffix}" for op in (put, get))
        if not self._wants(put_cell, get_cell):
            return
        how = {"prefix": prefix, "size": size}
        stored = yield from self._samples(client, put, put, self._rate(put_cell), most=CELL_BYTES // size, **how)
        if self._wants(get_cell):
            yield from self._samples(client, get, get, self._rate(get_cell), keys=stored, **how)
        client.ask("remove_all")

    def _warm_up(self, client):
        """Every page of the pool is touched once before anything is timed."""
        for turn in range(2):
            client.ask(
                "run", op="put_from", seconds=20, prefix=f"warm{turn}", size=4 * MIB, most=POOL * 4 // 5 // (4 * MIB)
            )
            client.ask("remove_all")

    def data(self):
        rig = Rig(self.implementation, POOL)
        try:
            client = rig.client("client")
            self._warm_up(client)
            yield
            for mib in (1, 4, 16):
                yield from self._pair(client, "put_from", "get_into", mib)
            for mib in (1, 4, 16):
                yield from self._pair(client, "put", "get", mib)
            yield from self._small(client)
            yield from self._many_readers(rig, client)
            yield from self._queries(rig, client)
        finally:
            rig.stop()

    def _small(self, client):
        if not self._wants("put 4 KiB, p50", "get 4 KiB, p50"):
            return
        put, get = "put 4 KiB, p50", "get 4 KiB, p50"
        how = {"prefix": "small", "size": 4096}
        stored = yield from self._samples(client, put, "put", self._p50(put), most=20_000, **how)
        yield from self._samples(client, get, "get", self._p50(get), keys=stored, **how)
        client.ask("remove_all")

    def _many_readers(self, rig, client):
        cells = [f"get_into 1 MiB, {how}" for how in ("4 threads", "8 threads", "4 processes")]
        if not self._wants(*cells):
            return
        stored = self._timed(client, "put_from", "put_from", prefix="many", size=MIB, most=256)
        how = {"op": "get_into", "prefix": "many", "size": MIB, "keys": stored["count"]}
        for threads in (4, 8):
            cell = f"get_into 1 MiB, {threads} threads"
            yield from self._samples(client, cell, record=self._rate(cell), threads=threads, **how)
        readers = [client] + [rig.client(f"reader-{n}", buffer_bytes=64 << 20) for n in range(3)]
        for reader in readers:
            # Their own first look at the memory is not part of the cell.
            reader.ask("run", seconds=5, most=256, **how)
        yield
        for _ in range(self.slices):
            self._rate("get_into 1 MiB, 4 processes")(rig.together(readers, seconds=self.seconds / self.slices, **how))
            yield
        client.ask("remove_all")

    def _queries(self, rig, client):
        many = "is_exist, 8 clients"
        if not self._wants("put_batch of 64 B", "is_exist, p50", "batch_is_exist(1000)", many):
            return
        count = 20_000
        each = count // self.slices
        for first in range(0, each * self.slices, each):
            made = client.ask("put_small", prefix="query", count=each, size=64, batch=500, first=first)
            if made["failed"]:
                raise RigError(f"put_batch: {made['failed']} batches failed")
            self.record("put_batch of 64 B", each / made["seconds"])
            yield
        one = "is_exist, p50"
        yield from self._samples(client, one, "is_exist", self._p50(one), prefix="query", keys=count)
        # One sample says little: with client and master on two cores the rate of the same wheel halves and doubles.
        for _ in range(BATCH_QUERY_SAMPLES):
            asked = self._timed(client, "batch_is_exist", "batch_is_exist", prefix="query", keys=count, batch=1_000)
            self.record("batch_is_exist(1000)", asked["count"] * 1_000 / asked["seconds"])
            yield
        if not self._wants(many):
            return
        askers = [one for one in rig.clients if one is not rig.owner]
        askers += [rig.client(f"asker-{n}", buffer_bytes=16 << 20) for n in range(8 - len(askers))]
        yield
        for _ in range(self.slices):
            asked = rig.together(askers, op="is_exist", seconds=self.seconds / self.slices, prefix="query", keys=count)
            self.record(many, asked["count"] / asked["seconds"])
            yield

    def scale(self):
        """A pool of very many objects, of 10 M if all of it is asked for."""
        scale_cells.measure(self.implementation, self.record, self.full)
        yield

    def tier(self):
        """A tier behind the memory, beside its disk."""
        yield from tier_cells.measure(self.implementation, self.seconds, self.record, self.full)

    def kept(self):
        """A storage node whose memory outlives its process."""
        kept_cells.measure(self.implementation, self.record, self.full)
        yield

    def engines(self):
        """The calls of inference engines: vLLM's multi-buffer batches, tensors, asyncio."""
        rig = Rig(self.implementation, POOL)
        try:
            client = rig.client("client")
            self._warm_up(client)
            yield
            for kib in (16, 64):
                size, shape = kib * 1024 * LAYERS, f"{BLOCKS} x {LAYERS} x {kib} KiB"
                layers = LAYER_CELLS.values() if kib == 64 else ()
                if not self._wants(f"put_multi {shape}", f"get_multi {shape}", *layers):
                    continue
                how = {"prefix": f"multi{kib}", "size": size, "batch": BLOCKS}
                put, get = f"put_multi {shape}", f"get_multi {shape}"
                most = CELL_BYTES // (size * BLOCKS)
                stored = yield from self._samples(client, put, "put_multi", self._rate(put), most=most, **how)
                yield from self._samples(client, get, "get_multi", self._rate(get), keys=stored, **how)
                if kib == 64:
                    yield from self._layers(client, shape, stored, how)
                client.ask("remove_all")
            if client.ask("has_torch")["torch"]:
                yield from self._pair(client, "put_tensor", "get_tensor", 64)
            else:
                print(f"  {self.implementation.name}: no tensor cells, its environment has no torch", flush=True)
            yield from self._asynchronous(rig, client)
        finally:
            rig.stop()

    def _layers(self, client, shape, keys, how):
        """What was stored by the multi-buffer call, loaded layer by layer in sessions, and stored so."""
        if not client.ask("has", name="batch_get_session_start")["there"]:
            return
        medians = client.ask("run_layers", sets=min(keys, 3), seconds=self.seconds * 4, **how)
        moved = how["size"] * how["batch"]
        for operation, cell in LAYER_CELLS.items():
            if operation in medians:
                seconds = medians[operation]
                self.record(cell, seconds * 1e6 if cell.endswith("p50") else moved / 1e9 / seconds)
        yield

    def _asynchronous(self, rig, client):
        if not self._wants(*(f"{op} 1,000 x 64 KiB" for op in ("batch_get_into", "get_batch", "async_get"))):
            return
        many = {"prefix": "async", "size": 64 << 10}
        self._timed(client, "put", "put", most=1_000, **many | {"seconds": 60})
        result = self._timed(client, "batch_get_into", "batch_get_into", batch=1_000, **many)
        self.record("batch_get_into 1,000 x 64 KiB", result["moved"] / 1e9 / result["seconds"])
        yield
        reader = rig.bare_client("asynchronous")
        reader.ask("setup_async", master=rig.master.addr)
        for op in ("get_batch", "async_get"):
            result = self._timed(reader, op, op, batch=1_000, **many)
            self.record(f"{op} 1,000 x 64 KiB", result["moved"] / 1e9 / result["seconds"])
            yield

    def engine_transfers(self):
        """The transfer engine, without a pool."""
        yield from engine_cells.measure(self.implementation, self.seconds, self.record, self._wants, self.slices)

    def proxy(self):
        """The proxy before mock instances, beside one in Python."""
        proxy_cells.measure(self.implementation, self.seconds, self.record, self._wants)
        yield

    def dummy(self):
        """A client of its own against one that a storage node of the host introduces to the pool."""
        rig = Rig(self.implementation)
        try:
            port = rig.node(1 << 30)
            real, dummy = rig.client("client"), rig.bare_client("dummy")
            rig.until(lambda: dummy.ask("setup_dummy", node=port))
            stored = self._timed(real, "put_from", "put_from", prefix="one", size=MIB, most=256)
            for client, suffix in ((real, ""), (dummy, " by a dummy")):
                how = {"prefix": "one", "size": MIB, "keys": stored["count"]}
                self._timed(client, "first look", "get_into", **how)
                result = self._timed(client, "get_into", "get_into", **how)
                self.record(f"get_into 1 MiB{suffix}, p50", result["p50_us"])
                yield
        finally:
            rig.stop()

    def tcp(self):
        """The zero-copy cells again; `implementation` has shared memory switched off."""
        rig = Rig(self.implementation, POOL)
        try:
            client = rig.client("client")
            self._warm_up(client)
            yield
            for mib in (1, 4, 16):
                yield from self._pair(client, "put_from", "get_into", mib, ", TCP")
        finally:
            rig.stop()

    def processes(self):
        rig = Rig(self.implementation)
        try:
            self.record("master start", rig.start_s * 1e3)
            before = shmem_kib()
            owner = rig.client("owner", 1 << 30, 64 << 20)
            self.record("setup with 1 GiB", owner.setup_s * 1e3)
            writer = rig.client("writer")
            writer.ask("run", op="put_from", seconds=5, prefix="fill", size=4 * MIB, most=200)
            # What the readers map must not keep the owner's memory.
            begin = time.perf_counter()
            closed = owner.ask("close")["seconds"]
            while shmem_kib() - before > 64 << 10 and time.perf_counter() - begin < 10:
                time.sleep(0.002)
            self.record("close with 1 GiB", closed * 1e3)
            self.record("close until memory is back", (time.perf_counter() - begin) * 1e3)
        finally:
            rig.stop()
        yield

    def memory(self):
        count = self.small_objects
        rig = Rig(self.implementation, 512 << 20)
        try:
            client = rig.client("client", buffer_bytes=64 << 20)
            client.ask("put_small", prefix="first", count=500, size=64, batch=500)
            time.sleep(1)
            before = memory_kib(rig.master.pid, "VmRSS")
            client.ask("put_small", prefix="mass", count=count, size=64, batch=500)
            time.sleep(1)
            grown = memory_kib(rig.master.pid, "VmRSS") - before
            alive = client.ask("alive", prefix="mass", count=count)["alive"]
            client.ask("remove_all")
            time.sleep(2)
            kept = memory_kib(rig.master.pid, "VmRSS") - before
            self.record("master memory per object", grown * 1024 / count)
            self.record("objects alive of 200,000", alive)
            self.record("master memory kept after remove_all", 100 * max(0, kept) / max(1, grown))
        finally:
            rig.stop()
        yield


def shmem_kib():
    """`Shmem` of /proc/meminfo, KiB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1])
    raise RigError("/proc/meminfo has no line Shmem")
