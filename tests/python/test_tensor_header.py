"""A tensor's header and a manifest are Mooncake's, byte by byte; what does not fit together is refused."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake.store import _tensor_header as th
from mooncake.store import _tensor_metadata_size
from mooncake.store._parallelism import ParallelAxis, shard_header

# float32 [2, 3], whole.
GOLDEN_FULL = bytes.fromhex(
    "4e4f4f4d" "0100" "3001" "00000000" "02000000" "00000000" "00000000" "3001000000000000" "1800000000000000"
    "0200000000000000" "0300000000000000" + "ffffffffffffffff" * 6
    + "0200000000000000" "0300000000000000" + "ffffffffffffffff" * 6
    + "00000000" "00000000" + "00" * 128
)  # fmt: skip

# bfloat16 [4, 2], the second of four shards along dimension 1 of [4, 8], in pipeline stage 3 of 5.
GOLDEN_SHARD = bytes.fromhex(
    "4e4f4f4d" "0100" "3001" "0c000000" "02000000" "01000000" "00000000" "3001000000000000" "1000000000000000"
    "0400000000000000" "0800000000000000" + "ffffffffffffffff" * 6
    + "0400000000000000" "0200000000000000" + "ffffffffffffffff" * 6
    + "02000000" "00000000"
    + "01000000" "00000000" "01000000" "04000000" "01000000" "00000000" "0200000000000000"
    + "03000000" "01000000" "02000000" "05000000" "ffffffff" "03000000" "0000000000000000"
    + "00" * 64
)  # fmt: skip

# Manifest of four shards along dimension 1 of a float16 [4, 8].
GOLDEN_MANIFEST = bytes.fromhex(
    "4e414d57" "0100" "6000" "0b000000" "02000000" "01000000" "04000000" "00000000" "00000000"
    "0400000000000000" "0800000000000000" + "ffffffffffffffff" * 6
)  # fmt: skip

AXES = (ParallelAxis("tp", 1, 4, 1), ParallelAxis("pp", 2, 5, stage_id=3))


def test_the_sizes_are_the_references():
    assert _tensor_metadata_size() == len(GOLDEN_FULL) == len(GOLDEN_SHARD) == 304
    assert len(GOLDEN_MANIFEST) == 96


def test_a_whole_tensors_header_is_these_bytes():
    header = th.full(0, (2, 3))
    assert header.encode() == GOLDEN_FULL
    assert th.decode(GOLDEN_FULL, 304 + 24) == header


def test_a_shards_header_is_these_bytes():
    header = shard_header(12, (4, 2), (4, 8), AXES)
    assert header.encode() == GOLDEN_SHARD
    assert th.decode(GOLDEN_SHARD, 304 + 16) == header
    assert header.axis("tp").extent == 2
    assert header.axis("ep") is None


def test_a_manifest_is_these_bytes():
    manifest = th.Manifest(11, (4, 8), 1, 4)
    assert manifest.encode() == GOLDEN_MANIFEST
    assert th.decode_manifest(GOLDEN_MANIFEST) == manifest


def test_the_codes_of_the_types_are_the_references():
    names = "float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool float16 bfloat16".split()
    names += ["float8_e4m3fn", "float8_e5m2"]
    assert [name for name, _ in th.DTYPES] == names


@st.composite
def headers(draw):
    dtype = draw(st.integers(0, len(th.DTYPES) - 1))
    whole = tuple(draw(st.lists(st.integers(0, 40), max_size=8)))
    kinds = draw(st.lists(st.sampled_from(["dp", "ep", "pp"]), max_size=3, unique=True))
    axes = []
    for kind in kinds:
        size = draw(st.integers(1, 9))
        own = {"expert_id": 7} if kind == "ep" else {"stage_id": 2} if kind == "pp" else {}
        axes.append(ParallelAxis(kind, draw(st.integers(0, size - 1)), size, **own))
    shape = whole
    if whole and draw(st.booleans()):
        dim = draw(st.integers(0, len(whole) - 1))
        size = draw(st.sampled_from([n for n in range(1, 41) if whole[dim] % n == 0]))
        shape = (*whole[:dim], whole[dim] // size, *whole[dim + 1 :])
        axes.append(ParallelAxis("tp", draw(st.integers(0, size - 1)), size, dim))
    return shard_header(dtype, shape, whole, tuple(axes)) if axes else th.full(dtype, whole)


@given(headers())
def test_what_is_written_is_read_again(header):
    data = header.encode()
    assert len(data) == 304
    assert th.decode(data, header.total_bytes) == header
    for total in (header.total_bytes - 1, header.total_bytes + 1, 0, 303):
        with pytest.raises(th.BadHeader):
            th.decode(data, total)


@given(st.binary(min_size=0, max_size=400))
def test_noise_is_refused(data):
    for reader in (lambda: th.decode(data, len(data)), lambda: th.decode_manifest(data)):
        with pytest.raises(th.BadHeader):
            reader()


@given(headers(), st.integers(0, 303), st.integers(1, 255))
def test_a_header_with_a_changed_byte_is_refused_or_describes_as_many_bytes(header, at, change):
    data = bytearray(header.encode())
    data[at] ^= change
    try:
        read = th.decode(data, header.total_bytes)
    except th.BadHeader:
        return
    assert read.total_bytes == header.total_bytes
    assert math.prod(read.shape) * th.DTYPES[read.dtype][1] == header.data_bytes


@pytest.mark.parametrize(
    ("offset", "layout", "value"),
    [
        (0, "<I", 0x4D4F4F4F), (4, "<H", 2), (6, "<H", 303), (8, "<i", 15), (8, "<i", -1), (12, "<i", 9),
        (12, "<i", -1), (16, "<I", 2), (24, "<Q", 296), (32, "<Q", 25), (40, "<q", -1), (40, "<q", 3),
        (104, "<q", 1 << 62), (168, "<I", 5), (120, "<q", 4),
    ],
)  # fmt: skip
def test_each_field_is_checked(offset, layout, value):
    data = bytearray(GOLDEN_FULL)
    struct.pack_into(layout, data, offset, value)
    with pytest.raises(th.BadHeader):
        th.decode(data, 304 + 24)


@pytest.mark.parametrize(
    ("offset", "layout", "value"),
    [
        (0, "<I", 0), (4, "<H", 2), (6, "<H", 95), (8, "<i", 15), (12, "<i", 0), (12, "<i", 9), (16, "<i", 2),
        (16, "<i", -1), (20, "<i", 0), (20, "<i", 3), (32, "<q", -1), (48, "<q", 0),
    ],
)  # fmt: skip
def test_each_field_of_a_manifest_is_checked(offset, layout, value):
    data = bytearray(GOLDEN_MANIFEST)
    struct.pack_into(layout, data, offset, value)
    with pytest.raises(th.BadHeader):
        th.decode_manifest(data)


def test_a_manifest_of_more_parts_than_can_be_named_is_refused():
    for rows, parts in ((0, 1 << 30), (1 << 20, 1 << 20)):
        data = bytearray(GOLDEN_MANIFEST)
        struct.pack_into("<q", data, 40, rows)
        struct.pack_into("<i", data, 20, parts)
        with pytest.raises(th.BadHeader, match=str(parts)):
            th.decode_manifest(data)


def test_an_empty_tensor_of_extents_that_no_stride_can_span_is_refused():
    data = bytearray(GOLDEN_FULL)
    struct.pack_into("<i", data, 12, 3)
    struct.pack_into("<Q", data, 32, 0)
    for shape in (40, 104):
        struct.pack_into("<3q", data, shape, 0, (1 << 63) - 1, (1 << 63) - 1)
    with pytest.raises(th.BadHeader, match="memory"):
        th.decode(data, 304)
