"""Values that say which key and which write they belong to, so that any wrong byte shows."""

from __future__ import annotations

import hashlib
import struct

import numpy as np

_HEADER = struct.Struct("<QQ")
_MOST = 64 << 20
_pattern = np.random.default_rng(7).integers(0, 1 << 64, (1 << 20) // 8, dtype=np.uint64)


def _number(key: str, version: int) -> np.uint64:
    digest = hashlib.blake2b(f"{version}/{key}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def value(key: str, size: int, version: int = 0) -> bytes:
    """`size` bytes (a multiple of 8, 16 at least) of this write of this key: a header, then a pattern in every word."""
    assert size % 8 == 0, size
    assert _HEADER.size <= size <= _MOST, size
    words = np.resize(_pattern, size // 8) ^ _number(key, version)
    # The pattern repeats each MiB; the place in the value does not.
    words ^= np.arange(size // 8, dtype=np.uint64) >> np.uint64(17)
    words[:2] = (version, size)
    return words.tobytes()


def version_of(key: str, got: bytes | memoryview) -> int | None:
    """The version of the write that these bytes are, whole and unmixed; None when they are not."""
    got = bytes(got)
    if len(got) < _HEADER.size:
        return None
    version, size = _HEADER.unpack_from(got)
    if size != len(got):
        return None
    return version if got == value(key, size, version) else None
