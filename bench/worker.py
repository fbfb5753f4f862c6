"""A store client under measurement, driven by JSON lines.

Runs under the interpreter of the implementation that it measures and uses only
what every implementation of `mooncake.store` has. Only the store's call is
timed; values are made before and compared after it.
"""

import asyncio
import json
import os
import sys
import threading
import time

import numpy as np
from layers import LAYERS, Layers, contents

# Different contents per size, so that a get that returns the wrong object is seen.
VARIANTS = 8
PAGE = 4096


class Worker:
    def __init__(self):
        self.store = None
        self.arena = None
        self.contents = {}

    # ---- contents

    def values(self, size):
        """The same bytes in every process for a size and variant."""
        if size not in self.contents:
            made = np.random.default_rng(size).integers(0, 256, (VARIANTS, size), dtype=np.uint8)
            self.contents[size] = [made[v].tobytes() for v in range(VARIANTS)]
        return self.contents[size]

    def slots(self, size, count):
        """Addresses of `count` registered slots of `size` bytes."""
        if self.arena is None or self.arena.nbytes < size * count:
            if self.arena is not None:
                self.store.unregister_buffer(self.arena.ctypes.data)
            memory = np.ones(size * count + PAGE, dtype=np.uint8)
            # As engines' caches lie, which are pinned or of a device.
            start = -memory.ctypes.data % PAGE
            self.arena = memory[start : start + size * count]
            code = self.store.register_buffer(self.arena.ctypes.data, self.arena.nbytes)
            if code != 0:
                raise RuntimeError(f"register_buffer returned {code}")
        return [self.arena.ctypes.data + i * size for i in range(count)]

    def slot(self, size, index):
        return self.arena[index * size : (index + 1) * size]

    # ---- commands

    def setup(self, master, segment, buffer, host="127.0.0.1", tier=None):
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        kept = (None, True, tier) if tier else ()
        start = time.perf_counter()
        code = self.store.setup(host, "P2PHANDSHAKE", segment, buffer, "tcp", "", master, *kept)
        seconds = time.perf_counter() - start
        if code != 0:
            raise RuntimeError(f"setup returned {code}")
        return {"seconds": seconds}

    def setup_async(self, master):
        """As `setup`, of the asyncio form."""
        from mooncake.async_store import MooncakeDistributedStoreAsync

        self.store = MooncakeDistributedStoreAsync()
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 256 << 20, "tcp", "", master)
        if code != 0:
            raise RuntimeError(f"setup returned {code}")
        return {}

    def setup_dummy(self, node):
        """Through the storage node of this host at that port."""
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        code = self.store.setup_dummy(256 << 20, 256 << 20, f"127.0.0.1:{node}")
        if code != 0:
            raise RuntimeError(f"setup_dummy returned {code}")
        return {}

    def has_torch(self):
        try:
            import torch  # noqa: F401
        except ImportError:
            return {"torch": False}
        return {"torch": True}

    def has(self, name):
        """Whether the implementation has a call."""
        return {"there": hasattr(self.store, name)}

    def close(self):
        start = time.perf_counter()
        self.store.close()
        return {"seconds": time.perf_counter() - start}

    def remove_all(self):
        start = time.perf_counter()
        removed = self.store.remove_all(True)
        return {"removed": removed, "seconds": time.perf_counter() - start}

    def alive(self, prefix, count, batch=1_000):
        found = 0
        for at in range(0, count, batch):
            keys = [f"{prefix}-{i}" for i in range(at, min(at + batch, count))]
            found += sum(code == 1 for code in self.store.batch_is_exist(keys))
        return {"alive": found}

    def looked_up(self, prefix, size, keys, batch, seconds, pause):
        """Asks whether a batch of keys exists and reads it after a pause, one batch after the other."""
        read = missed = from_disk = 0
        places, sizes, end = self.slots(size, batch), [size] * batch, time.monotonic() + seconds
        for at in range(0, keys - batch + 1, batch):
            if time.monotonic() > end:
                break
            names = [f"{prefix}-{i}" for i in range(at, at + batch)]
            self.store.batch_is_exist(names)
            time.sleep(pause)
            before = self.store.get_offload_rpc_read_count()
            missed += sum(length != size for length in self.store.batch_get_into(names, places, sizes))
            from_disk += self.store.get_offload_rpc_read_count() - before
            read += batch
        return {"read": read, "missed": missed, "from_disk": from_disk}

    def put_small(self, prefix, count, size, batch, first=0):
        """Stores `count` small objects with put_batch, from a number on."""
        values = self.values(size)
        failed = 0
        spent = 0.0
        for at in range(first, first + count, batch):
            numbers = range(at, min(at + batch, first + count))
            keys = [f"{prefix}-{i}" for i in numbers]
            parts = [values[i % VARIANTS] for i in numbers]
            start = time.perf_counter()
            code = self.store.put_batch(keys, parts)
            spent += time.perf_counter() - start
            failed += code != 0
        return {"seconds": spent, "failed": failed, "count": count}

    def fill(self, prefix, size, count, seconds):
        """Puts so many objects, each again until it is taken; how many are left when the time is over."""
        values, put, end, refused = self.values(size), self.store.put, time.monotonic() + seconds, 0
        for i in range(count):
            while put(f"{prefix}-{i}", values[i % VARIANTS]) != 0:
                refused += 1
                if time.monotonic() > end:
                    return {"left": count - i, "refused": refused}
                time.sleep(0.02)
        return {"left": 0, "refused": refused}

    def put_to_disk(self, prefix, size, seconds):
        """Milliseconds from each put to the moment when the object has a replica on a disk, at rest in between."""
        values, times, end, i = self.values(size), [], time.monotonic() + seconds, 0
        while time.monotonic() < end:
            key, began = f"{prefix}-{i}", time.monotonic()
            if self.store.put(key, values[i % VARIANTS]) != 0:
                raise RuntimeError(f"put of {key} was refused")
            while not any(replica.is_local_disk_replica() for replica in self.store.get_replica_desc(key)):
                if time.monotonic() - began > 60:
                    raise RuntimeError(f"{key} came to no disk within a minute")
                time.sleep(0.001)
            times.append((time.monotonic() - began) * 1e3)
            i += 1
            time.sleep(0.01)
        return {"p99_ms": sorted(times)[int(len(times) * 0.99)], "count": len(times)}

    def read_small(self, prefix, numbers, size):
        """How many of these objects that put_small has stored have their values."""
        values = self.values(size)
        return {"right": sum(self.store.get(f"{prefix}-{i}") == values[i % VARIANTS] for i in numbers)}

    def run(self, op, start_at=None, threads=1, **how):
        """Runs one timed cell: `op` over and over until the seconds or the operations are used up."""
        loops = [self.loop(op, thread, threads, **how) for thread in range(threads)]
        if start_at is not None:
            time.sleep(max(0.0, start_at - time.monotonic()))
        if threads == 1:
            results = [loops[0]()]
        else:
            results = [None] * threads
            barrier = threading.Barrier(threads)

            def one(number):
                barrier.wait()
                results[number] = loops[number]()

            running = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
        latencies = sorted(t for result in results for t in result["latencies"])
        started = min(result["started"] for result in results)
        ended = max(result["ended"] for result in results)
        return {
            "count": len(latencies),
            "moved": sum(result["moved"] for result in results),
            "failed": sum(result["failed"] for result in results),
            "wrong": sum(result["wrong"] for result in results),
            "started": started,
            "ended": ended,
            "seconds": (ended - started) / 1e9,
            "p50_us": latencies[len(latencies) // 2] / 1e3 if latencies else None,
            "p99_us": latencies[int(len(latencies) * 0.99)] / 1e3 if latencies else None,
        }

    def loop(self, op, thread, threads, seconds, prefix, size=0, keys=0, most=1 << 30, batch=1, first=0, pause=0):
        """The timed loop of one thread, ready to be started: at most so many operations, from number `first` on.

        Between two of them it rests for `pause` seconds, which no latency has in it.
        """
        call, good, check = getattr(self, f"op_{op}")(thread, threads, prefix, size, keys, batch)

        def timed():
            latencies, moved, failed, index = [], 0, 0, first
            now = time.monotonic_ns
            started = now()
            deadline = started + int(seconds * 1e9)
            ended = started
            while index < first + most and ended < deadline:
                begin = now()
                result = call(index)
                ended = now()
                latencies.append(ended - begin)
                if good(result):
                    moved += size * batch
                else:
                    failed += 1
                index += 1
                if pause:
                    time.sleep(pause)
            return {
                "latencies": latencies,
                "moved": moved,
                "failed": failed,
                "wrong": check(index),
                "started": started,
                "ended": ended,
            }

        return timed

    def run_layers(self, prefix, size, batch, sets, seconds):
        """Median times of `Layers`, of objects that `op_put_multi` has put."""
        layers = Layers(self.store, self.layers(size, batch), size // LAYERS, prefix, sets)
        medians = layers.measure(seconds)
        for operation in (layers.get_multi, layers.get_ranges):
            self.arena[:] = 0
            operation(0)
            if not np.array_equal(self.arena, contents(size, batch)):
                raise RuntimeError(f"{operation.__name__}: wrong bytes")
        return medians

    # ---- operations: each returns (call by index, is the result good, how many wrong results)

    def op_put(self, thread, threads, prefix, size, keys, batch):
        values, put = self.values(size), self.store.put
        return lambda i: put(f"{prefix}-{i}", values[i % VARIANTS]), lambda code: code == 0, lambda n: 0

    def op_get(self, thread, threads, prefix, size, keys, batch):
        values, get = self.values(size), self.store.get
        last = {}

        def call(i):
            value = last["value"] = get(f"{prefix}-{i % keys}")
            last["index"] = i % keys
            return value

        return call, lambda value: len(value) == size, lambda n: int(last["value"] != values[last["index"] % VARIANTS])

    def op_put_from(self, thread, threads, prefix, size, keys, batch):
        places, put = self.slots(size, VARIANTS), self.store.put_from
        for variant, value in enumerate(self.values(size)):
            self.slot(size, variant)[:] = np.frombuffer(value, dtype=np.uint8)
        return lambda i: put(f"{prefix}-{i}", places[i % VARIANTS], size), lambda code: code == 0, lambda n: 0

    def op_get_into(self, thread, threads, prefix, size, keys, batch):
        # Each thread has two slots of its own.
        places, get = self.slots(size, 2 * threads), self.store.get_into
        mine = [2 * thread, 2 * thread + 1]
        first = thread * 7

        def check(done):
            wrong = 0
            for i in range(max(0, done - 2), done):
                want = np.frombuffer(self.values(size)[(first + i) % keys % VARIANTS], dtype=np.uint8)
                wrong += not np.array_equal(self.slot(size, mine[i % 2]), want)
            return wrong

        return (
            lambda i: get(f"{prefix}-{(first + i) % keys}", places[mine[i % 2]], size),
            lambda code: code == size,
            check,
        )

    def op_put_multi(self, thread, threads, prefix, size, keys, batch):
        """vLLM's call: `batch` keys, each gathered from LAYERS buffers that lie apart."""
        places, piece = self.layers(size, batch), size // LAYERS
        self.arena[:] = contents(size, batch)
        sizes, put = [[piece] * LAYERS] * batch, self.store.batch_put_from_multi_buffers
        return (
            lambda i: put([f"{prefix}-{i}-{block}" for block in range(batch)], places, sizes),
            lambda codes: all(code == 0 for code in codes),
            lambda n: 0,
        )

    def op_get_multi(self, thread, threads, prefix, size, keys, batch):
        places, piece = self.layers(size, batch), size // LAYERS
        self.arena[:] = 0
        sizes, get = [[piece] * LAYERS] * batch, self.store.batch_get_into_multi_buffers
        return (
            lambda i: get([f"{prefix}-{i % keys}-{block}" for block in range(batch)], places, sizes),
            lambda codes: all(code == size for code in codes),
            lambda n: int(n > 0 and not np.array_equal(self.arena, contents(size, batch))),
        )

    def layers(self, size, batch):
        """Addresses as an engine's KV cache has them: one registered array per layer, a block of it for each key."""
        piece = size // LAYERS
        slots = self.slots(piece, LAYERS * batch)
        return [[slots[layer * batch + block] for layer in range(LAYERS)] for block in range(batch)]

    def op_async_get(self, thread, threads, prefix, size, keys, batch):
        """`batch` gets in flight at once, each awaited by itself."""
        names, store = [f"{prefix}-{i}" for i in range(batch)], self.store
        loop = asyncio.new_event_loop()

        async def together():
            return await asyncio.gather(*(store.async_get(name) for name in names))

        return (
            lambda i: loop.run_until_complete(together()),
            lambda values: all(len(value) == size for value in values),
            lambda n: 0,
        )

    def op_get_batch(self, thread, threads, prefix, size, keys, batch):
        names, get = [f"{prefix}-{i}" for i in range(batch)], self.store.get_batch
        return lambda i: get(names), lambda values: all(len(value) == size for value in values), lambda n: 0

    def op_batch_get_into(self, thread, threads, prefix, size, keys, batch):
        """The keys of `op_get_batch`, to memory that the caller keeps; of more keys one batch after the other."""
        batches = [[f"{prefix}-{at + i}" for i in range(batch)] for at in range(0, max(keys, batch), batch)]
        places, sizes, get = self.slots(size, batch), [size] * batch, self.store.batch_get_into
        values = self.values(size)

        def wrong(done):
            first = (done - 1) % len(batches) * batch
            wants = (np.frombuffer(values[(first + i) % VARIANTS], dtype=np.uint8) for i in range(batch if done else 0))
            return sum(not np.array_equal(self.slot(size, i), want) for i, want in enumerate(wants))

        return (
            lambda i: get(batches[i % len(batches)], places, sizes),
            lambda sizes: all(o == size for o in sizes),
            wrong,
        )

    def op_put_tensor(self, thread, threads, prefix, size, keys, batch):
        import torch

        tensors = [torch.frombuffer(bytearray(value), dtype=torch.uint8) for value in self.values(size)]
        put = self.store.put_tensor
        return lambda i: put(f"{prefix}-{i}", tensors[i % VARIANTS]), lambda code: code == 0, lambda n: 0

    def op_get_tensor(self, thread, threads, prefix, size, keys, batch):
        last, get = {}, self.store.get_tensor

        def call(i):
            last["index"] = i % keys
            tensor = last["tensor"] = get(f"{prefix}-{i % keys}")
            return tensor

        def check(n):
            return int(n > 0 and last["tensor"].numpy().tobytes() != self.values(size)[last["index"] % VARIANTS])

        return call, lambda tensor: tensor is not None and tensor.numel() == size, check

    def op_is_exist(self, thread, threads, prefix, size, keys, batch):
        names, ask = [f"{prefix}-{i}" for i in range(keys)], self.store.is_exist
        return lambda i: ask(names[i * 7 % keys]), lambda code: code == 1, lambda n: 0

    def op_batch_is_exist(self, thread, threads, prefix, size, keys, batch):
        lists = [[f"{prefix}-{(start * 131 + i) % keys}" for i in range(batch)] for start in range(8)]
        ask = self.store.batch_is_exist
        return lambda i: ask(lists[i % 8]), lambda codes: all(code == 1 for code in codes), lambda n: 0


def serve(worker):
    """Answers lines until there are no more."""
    # Libraries print: the answers keep the real standard output to themselves.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # Behind the environment's own: torch, if it lacks that.
    sys.path.extend(filter(None, [os.environ.get("BENCH_PACKAGES")]))
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(worker, command.pop("do"))(**command)
        except Exception as error:  # Reported to the driver, which decides.
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)


if __name__ == "__main__":
    serve(Worker())
