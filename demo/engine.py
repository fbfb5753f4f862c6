"""One engine process of the replay: a prefill engine writes, a decode engine reads.

Started by replay.py. Reads requests as JSON lines from standard input and
answers each with one JSON line; ends at the end of its input.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter

import numpy as np
from blocks import Blocks, key_of

# Every so many requests an engine borrows views instead of copying.
BORROW_EVERY = 4


class Engine:
    """A store client, its registered buffers and what it does with a request."""

    def __init__(self, options):
        # Imported here so that a broken installation is reported as this engine's failure.
        from mooncake.store import MooncakeDistributedStore

        self.blocks = Blocks(options.block_bytes, options.seed)
        self.slot = options.block_bytes
        self.role = options.role
        self.store = MooncakeDistributedStore()
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 256 << 20, "tcp", "", options.master)
        if code != 0:
            raise SystemExit(f"setup failed with {code}: {self.last_error()}")
        self.arena = np.zeros((options.slots, self.slot // 8), dtype=np.uint64)
        code = self.store.register_buffer(self.arena.ctypes.data, self.arena.nbytes)
        if code != 0:
            raise SystemExit(f"register_buffer failed with {code}: {self.last_error()}")

    def last_error(self):
        report = getattr(self.store, "last_error", None)
        return report() if callable(report) else ""

    def address(self, slot):
        return self.arena.ctypes.data + slot * self.slot

    def serve(self, request):
        """Handles one request and returns what happened as a dictionary."""
        answer = Counter()
        errors = Counter()
        blocks = request["blocks"]
        start = time.perf_counter()
        found = self.store.batch_is_exist([key_of(block) for block in blocks])
        lookup_s = time.perf_counter() - start
        for code in found:
            if code < 0:
                errors[f"lookup {code}"] += 1

        if self.role == "prefill":
            # An engine can use a prefix only: it stops at the first block that is missing.
            prefix = next((i for i, code in enumerate(found) if code != 1), len(found))
            wanted = list(range(prefix))
        else:
            wanted = [i for i, code in enumerate(found) if code == 1]
        load_s = 0.0
        missed = []
        if wanted:
            borrow = self.role == "decode" or request["number"] % BORROW_EVERY == 0
            load = self.borrow if borrow else self.copy
            load_s, missed = load([blocks[i] for i in wanted], answer, errors)

        store_s, stored = 0.0, []
        if self.role == "prefill":
            absent = [b for i, b in enumerate(blocks) if found[i] != 1] + missed
            if absent:
                store_s, stored = self.put(absent, answer, errors)
        answer["asked"] = len(blocks)
        answer["hits"] = len(wanted) - len(missed)
        return {
            "number": request["number"],
            "counts": answer,
            "errors": errors,
            "stored": stored,
            "lookup_s": lookup_s,
            "load_s": load_s,
            "put_s": store_s,
            "last_error": self.last_error() if errors else "",
        }

    def copy(self, blocks, answer, errors):
        """Loads blocks into the registered buffers and checks every byte."""
        self.arena[: len(blocks)] = 0
        keys = [key_of(block) for block in blocks]
        places = [self.address(i) for i in range(len(blocks))]
        start = time.perf_counter()
        sizes = self.store.batch_get_into(keys, places, [self.slot] * len(blocks))
        seconds = time.perf_counter() - start
        missed = []
        for i, (block, size) in enumerate(zip(blocks, sizes, strict=True)):
            if size < 0:
                errors[f"get {size}"] += 1
                missed.append(block)
                continue
            self.check(block, self.arena[i], answer)
        return seconds, missed

    def borrow(self, blocks, answer, errors):
        """Loads blocks as pinned views of the pool's own memory."""
        start = time.perf_counter()
        views = self.store.batch_get_buffer([key_of(block) for block in blocks])
        seconds = time.perf_counter() - start
        missed = []
        for block, view in zip(blocks, views, strict=True):
            if view is None:
                errors["view missing"] += 1
                missed.append(block)
                continue
            self.check(block, view, answer)
        return seconds, missed

    def check(self, block, got, answer):
        answer["verified"] += self.slot
        answer["wrong"] += self.blocks.wrong_bytes(block, got)
        answer["loaded"] += self.slot

    def put(self, blocks, answer, errors):
        """Makes the blocks, as a model would, and stores them with one call."""
        for i, block in enumerate(blocks):
            self.blocks.fill(block, self.arena[i])
        keys = [key_of(block) for block in blocks]
        places = [self.address(i) for i in range(len(blocks))]
        start = time.perf_counter()
        codes = self.store.batch_put_from(keys, places, [self.slot] * len(blocks))
        seconds = time.perf_counter() - start
        stored = []
        for block, code in zip(blocks, codes, strict=True):
            if code == 0:
                answer["stored"] += self.slot
                stored.append(block)
            else:
                errors[f"put {code}"] += 1
        if not stored:
            # The pool is away. A model would compute meanwhile.
            time.sleep(0.05)
        return seconds, stored


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=["prefill", "decode"], required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--block-bytes", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    # A library may print: the answers keep the real standard output to themselves, everything else goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = Engine(options)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(engine.serve(json.loads(line))) + "\n")
    engine.store.close()


if __name__ == "__main__":
    main()
