"""The bytes before a tensor's data, and the manifest beside its shards.

A tensor's object is a header of 304 bytes and the raw contiguous data, little
endian; Mooncake reads and writes the same. Nothing here needs torch.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

MAGIC, VERSION, HEADER_SIZE = 0x4D4F4F4E, 1, 304
MANIFEST_MAGIC, MANIFEST_VERSION, MANIFEST_SIZE = 0x574D414E, 1, 96
MOST_DIMS, MOST_AXES = 8, 4
# Parts of a tensor along an axis: each has a name of its own, which whoever wants the whole has to make.
MOST_PARTS = 1 << 16
FULL, SHARD = 0, 1

#: Name of the torch type and its size in bytes, by its code.
DTYPES: tuple[tuple[str, int], ...] = (
    ("float32", 4), ("float64", 8), ("int8", 1), ("uint8", 1), ("int16", 2), ("uint16", 2), ("int32", 4),
    ("uint32", 4), ("int64", 8), ("uint64", 8), ("bool", 1), ("float16", 2), ("bfloat16", 2), ("float8_e4m3fn", 1),
    ("float8_e5m2", 1),
)  # fmt: skip
CODES: dict[str, int] = {name: code for code, (name, _) in enumerate(DTYPES)}
#: Codes of the kinds of axes.
KINDS = ("dp", "tp", "ep", "pp")

_PREFIX = struct.Struct("<IHHiiIIQQ")
_SHAPE = struct.Struct("<8q")
_COUNT = struct.Struct("<II")
_AXIS = struct.Struct("<iiiiiiq")
_MANIFEST = struct.Struct("<IHHiiiii4x")
assert _PREFIX.size + 2 * _SHAPE.size + _COUNT.size + MOST_AXES * _AXIS.size == HEADER_SIZE
assert _MANIFEST.size + _SHAPE.size == MANIFEST_SIZE

_MOST_BYTES = (1 << 63) - 1


class BadHeader(ValueError):
    """These bytes are no tensor; the text says why."""


class Axis(NamedTuple):
    """Where a shard lies along one kind of parallelism."""

    kind: int
    index: int
    rank: int
    count: int
    split_dim: int
    #: The expert or the stage.
    member: int = 0
    #: Extent of the shard along the split dimension.
    extent: int = 0


@dataclass(frozen=True)
class Header:
    """What a tensor is: its own shape, and that of the whole that it is a shard of."""

    dtype: int
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    axes: tuple[Axis, ...] = ()
    kind: int = FULL

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]

    @property
    def total_bytes(self) -> int:
        return HEADER_SIZE + self.data_bytes

    def axis(self, kind: str) -> Axis | None:
        """Its axis of that kind."""
        return next((axis for axis in self.axes if KINDS[axis.kind] == kind), None)

    def encode(self) -> bytes:
        """The 304 bytes."""
        ndim = len(self.shape)
        axes = b"".join(_AXIS.pack(*axis) for axis in self.axes)
        return b"".join((
            _PREFIX.pack(MAGIC, VERSION, HEADER_SIZE, self.dtype, ndim, self.kind, 0, HEADER_SIZE, self.data_bytes),
            _shape_bytes(self.global_shape),
            _shape_bytes(self.shape),
            _COUNT.pack(len(self.axes), 0),
            axes.ljust(MOST_AXES * _AXIS.size, b"\0"),
        ))  # fmt: skip


def full(dtype: int, shape: tuple[int, ...]) -> Header:
    """A whole tensor's header."""
    return Header(dtype, shape, shape)


def decode(data: bytes | bytearray | memoryview, total: int) -> Header:
    """The header of an object of `total` bytes; BadHeader for anything that does not fit together."""
    if total < HEADER_SIZE or len(data) < HEADER_SIZE:
        raise BadHeader(f"{total} bytes, a tensor's header alone has {HEADER_SIZE}")
    magic, version, size, dtype, ndim, kind, _flags, offset, data_bytes = _PREFIX.unpack_from(data, 0)
    if magic != MAGIC:
        raise BadHeader(f"magic {magic:#010x} in place of {MAGIC:#010x}: it was not stored as a tensor")
    if (version, size, offset) != (VERSION, HEADER_SIZE, HEADER_SIZE):
        raise BadHeader(f"version {version} with a header of {size} bytes and data at {offset} is not known here")
    if not 0 <= dtype < len(DTYPES):
        raise BadHeader(f"dtype code {dtype}")
    if not 0 <= ndim <= MOST_DIMS:
        raise BadHeader(f"{ndim} dimensions")
    if kind not in (FULL, SHARD):
        raise BadHeader(f"layout {kind}")
    at = _PREFIX.size
    global_shape = _shape(_SHAPE.unpack_from(data, at), ndim)
    shape = _shape(_SHAPE.unpack_from(data, at + _SHAPE.size), ndim)
    at += 2 * _SHAPE.size
    count, _ = _COUNT.unpack_from(data, at)
    if count > MOST_AXES:
        raise BadHeader(f"{count} axes")
    at += _COUNT.size
    axes = tuple(Axis(*_AXIS.unpack_from(data, at + index * _AXIS.size)) for index in range(count))
    header = Header(dtype, shape, global_shape, axes, kind)
    _check(header)
    if header.data_bytes != data_bytes or total != HEADER_SIZE + data_bytes:
        raise BadHeader(
            f"{total - HEADER_SIZE} bytes of data, {data_bytes} announced, {header.data_bytes} for "
            f"{DTYPES[dtype][0]} of shape {list(shape)}"
        )
    return header


def decode_head(data: bytes | bytearray | memoryview) -> Header:
    """The header of an object whose size is not known: it is what the header says."""
    announced = _PREFIX.unpack_from(data, 0)[-1]
    return decode(data, HEADER_SIZE + announced)


def _check(header: Header) -> None:
    if header.kind == FULL and (header.shape != header.global_shape or header.axes):
        raise BadHeader(f"a whole tensor of shape {list(header.shape)} that is a part of {list(header.global_shape)}")
    if header.kind == SHARD and not header.axes:
        raise BadHeader("a shard without an axis")
    for axis in header.axes:
        if not 0 <= axis.kind < len(KINDS) or not 0 <= axis.rank < axis.count <= MOST_PARTS:
            raise BadHeader(f"axis of kind {axis.kind} with rank {axis.rank} of {axis.count}")
        if not -1 <= axis.split_dim < len(header.shape):
            raise BadHeader(f"split dimension {axis.split_dim} of {len(header.shape)}")
    if any(part > whole for part, whole in zip(header.shape, header.global_shape, strict=True)):
        raise BadHeader(f"shape {list(header.shape)} of a part of {list(header.global_shape)}")


@dataclass(frozen=True)
class Manifest:
    """How many shards a tensor was cut into, along which dimension."""

    dtype: int
    global_shape: tuple[int, ...]
    split_dim: int
    shard_count: int

    def encode(self) -> bytes:
        """The 96 bytes."""
        head = (MANIFEST_MAGIC, MANIFEST_VERSION, MANIFEST_SIZE, self.dtype, len(self.global_shape), self.split_dim)
        return _MANIFEST.pack(*head, self.shard_count, 0) + _shape_bytes(self.global_shape)


def decode_manifest(data: bytes | bytearray | memoryview) -> Manifest:
    """The manifest; BadHeader for anything else."""
    if len(data) != MANIFEST_SIZE:
        raise BadHeader(f"{len(data)} bytes, a manifest has {MANIFEST_SIZE}")
    magic, version, size, dtype, ndim, split_dim, count, _ = _MANIFEST.unpack_from(data, 0)
    if (magic, version, size) != (MANIFEST_MAGIC, MANIFEST_VERSION, MANIFEST_SIZE):
        raise BadHeader(f"magic {magic:#010x}, version {version} and size {size} are not a manifest's")
    if not (0 <= dtype < len(DTYPES) and 0 < ndim <= MOST_DIMS and 0 <= split_dim < ndim and 0 < count <= MOST_PARTS):
        raise BadHeader(f"dtype code {dtype}, {ndim} dimensions, split along {split_dim} into {count}")
    shape = _shape(_SHAPE.unpack_from(data, _MANIFEST.size), ndim)
    if shape[split_dim] % count:
        raise BadHeader(f"{shape[split_dim]} rows in {count} shards")
    return Manifest(dtype, shape, split_dim, count)


def _shape_bytes(shape: tuple[int, ...]) -> bytes:
    return _SHAPE.pack(*shape, *(-1,) * (MOST_DIMS - len(shape)))


def _shape(raw: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    if any(extent < 0 for extent in raw[:ndim]) or any(extent != -1 for extent in raw[ndim:]):
        raise BadHeader(f"shape {list(raw)} of {ndim} dimensions")
    # Strides are computed as if nothing were empty.
    if math.prod(max(extent, 1) for extent in raw[:ndim]) > _MOST_BYTES:
        raise BadHeader(f"shape {list(raw[:ndim])} is larger than any memory")
    return raw[:ndim]
