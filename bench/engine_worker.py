"""A transfer engine under measurement, driven by JSON lines; only the engine's call is timed."""

import time
import zlib

import numpy as np
from worker import Worker, serve

CHUNK = 1 << 20


class EngineWorker(Worker):
    def __init__(self):
        super().__init__()
        self.engine = self.memory = self.peer = self.remote = None

    # ---- commands

    def setup(self, size, host="127.0.0.1"):
        """An engine that lends `size` bytes, touched; under which name and where."""
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        code = self.engine.initialize(host, "P2PHANDSHAKE", "tcp", "")
        if code != 0:
            raise RuntimeError(f"initialize returned {code}")
        self.touch(size)
        code = self.engine.register_memory(self.memory.ctypes.data, size)
        if code != 0:
            raise RuntimeError(f"register_memory returned {code}")
        return {"name": f"{host}:{self.engine.get_rpc_port()}", "address": self.memory.ctypes.data}

    def touch(self, size):
        self.memory = np.ones(size, dtype=np.uint8)

    def meet(self, name, address):
        """The far end of what is measured; its first transfer is not."""
        self.peer, self.remote = name, address
        code = self.engine.transfer_sync_write(name, self.memory.ctypes.data, address, 4096)
        if code != 0:
            raise RuntimeError(f"the first transfer_sync_write returned {code}")
        return {}

    def fill(self, seed):
        """Bytes that are others in every place, as a whole number of chunks."""
        part = np.random.default_rng(seed).integers(0, 256, CHUNK, dtype=np.uint8)
        for number, chunk in enumerate(self.memory.reshape(-1, CHUNK)):
            np.add(part, np.uint8(number % 251), out=chunk)
        return {}

    def checksum(self, at, size):
        return {"checksum": zlib.crc32(self.memory[at : at + size])}

    def run(self, **how):
        before = time.process_time()
        result = super().run(prefix="", **how)
        return {**result, "cpu_s": time.process_time() - before}

    # ---- operations: as the store worker's

    def op_write(self, thread, threads, prefix, size, keys, batch):
        return self.moving("write", thread, threads, size, batch)

    def op_read(self, thread, threads, prefix, size, keys, batch):
        return self.moving("read", thread, threads, size, batch)

    def moving(self, word, thread, threads, size, batch):
        """One request or batch after the other through this thread's part of the memory, the same at both ends."""
        span = size * batch
        slots = max(1, self.memory.nbytes // span // threads)
        here, there = (base + thread * slots * span for base in (self.memory.ctypes.data, self.remote))
        peer = self.peer
        if batch == 1:
            one = getattr(self.engine, f"transfer_sync_{word}")
            return (
                lambda i: one(peer, here + i % slots * span, there + i % slots * span, size),
                lambda code: code == 0,
                lambda n: 0,
            )
        many, sizes = getattr(self.engine, f"batch_transfer_sync_{word}"), [size] * batch
        places = [
            ([here + at + n * size for n in range(batch)], [there + at + n * size for n in range(batch)])
            for at in range(0, slots * span, span)
        ]
        return lambda i: many(peer, *places[i % slots], sizes), lambda code: code == 0, lambda n: 0


if __name__ == "__main__":
    serve(EngineWorker())
