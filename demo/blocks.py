"""Contents of a KV block, made from its hash, and the check of what came back.

A block is a fixed random pattern XORed with a 64-bit number made from the
block's hash. So every 8-byte word depends on both the block and its place in
it: a byte of another block, of an older object in the same memory or from
another offset is found wherever it is.
"""

import numpy as np

_MASK = (1 << 64) - 1


def _mix(value):
    """One step of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Blocks:
    """The contents of all blocks of one run."""

    def __init__(self, block_bytes, seed):
        self.block_bytes = block_bytes
        self.seed = seed
        self.pattern = np.random.default_rng(seed).integers(0, 1 << 64, block_bytes // 8, dtype=np.uint64)
        self._scratch = np.empty_like(self.pattern)

    def _number(self, block):
        return np.uint64(_mix(block ^ _mix(self.seed)))

    def fill(self, block, target):
        """Writes the block's contents into `target`, an array of uint64."""
        np.bitwise_xor(self.pattern, self._number(block), out=target)

    def wrong_bytes(self, block, got):
        """How many bytes of `got` (bytes-like) are not the block's."""
        if len(memoryview(got).cast("B")) != self.block_bytes:
            return self.block_bytes
        words = np.frombuffer(got, dtype=np.uint64)
        np.bitwise_xor(words, self._number(block), out=self._scratch)
        if np.array_equal(self._scratch, self.pattern):
            return 0
        return int(np.count_nonzero(self._scratch.view(np.uint8) != self.pattern.view(np.uint8)))


def key_of(block):
    """The key under which an engine would store the block."""
    return f"demo/model@tp_rank:0@pp_rank:0@{_mix(block):016x}"
