"""Cutting tensors into shards, and making tensors of shards again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mooncake import _native
from mooncake.store import _tensor_memory as memory
from mooncake.store import _tensor_objects as objects
from mooncake.store._parallelism import (
    ParallelAxis,
    Refused,
    Writer,
    is_at,
    parallelism_manifest_key,
    shard_header,
    shard_key,
    shard_range,
    tp_axes,
    tp_axis,
    with_tp,
    writer_key,
    writer_manifest_key,
)
from mooncake.store._tensor_header import DTYPES, FULL, HEADER_SIZE, BadHeader, Header, Manifest, decode_manifest

Axes = tuple[ParallelAxis, ...]


def cut(tensor: Any, axes: Axes) -> memory.Pieces:
    """The shard of a whole tensor that belongs to the tensor-parallel coordinate of `axes`."""
    dtype, axis = memory.check(tensor), tp_axis(axes)
    assert axis is not None
    whole = tuple(tensor.shape)
    start, extent = shard_range(whole, axis.rank, axis.size, axis.split_dim)
    part = tensor.narrow(axis.split_dim, start, extent)
    return memory.of_tensor(part, shard_header(dtype, tuple(part.shape), whole, axes))


def cut_memory(header: Header, address: int, axes: Axes) -> memory.Pieces:
    """As `cut`, of a whole object in the caller's memory."""
    axis = tp_axis(axes)
    assert axis is not None
    if header.kind != FULL:
        raise Refused("the buffer holds a shard already, and not the one that is named")
    whole, split_dim = header.shape, axis.split_dim
    start, extent = shard_range(whole, axis.rank, axis.size, split_dim)
    shape = (*whole[:split_dim], extent, *whole[split_dim + 1 :])
    row = math.prod(whole[split_dim + 1 :]) * DTYPES[header.dtype][1]
    first, step, length = address + HEADER_SIZE + start * row, whole[split_dim] * row, extent * row
    slices = math.prod(whole[:split_dim]) if length else 0
    pieces = [(first + at * step, length) for at in range(slices)]
    return memory.Pieces(shard_header(header.dtype, shape, whole, axes), pieces, None, False)


def manifest_of(header: Header, axis: ParallelAxis | Writer) -> bytes:
    """The manifest that belongs to a shard."""
    return Manifest(header.dtype, header.global_shape, axis.split_dim, axis.size).encode()


def as_writer(writer: Writer) -> Axes:
    """Writers' shards have a tensor-parallel coordinate in their headers."""
    return tp_axes(writer.rank, writer.size, writer.split_dim)


def find_shard(store: Any, name: str, key: Any, axes: Axes) -> tuple[Header, Any] | None:
    """The shard at that place: as it lies there, or made of others."""
    return _shard_at(store, name, shard_key(key, axes), axes) or make_shard(store, name, key, axes)


def make_shard(store: Any, name: str, key: Any, axes: Axes) -> tuple[Header, Any] | None:
    """The shard at that place when it does not lie there by its own name: a writer's, or made of others."""
    if is_plain_tp(axes):
        axis = axes[0]
        # Where no dimension is named, the manifest tells of it; without a manifest it is the first.
        writer = Writer(axis.rank, axis.size, axis.split_dim or 0)
        found = _shard_at(store, name, writer_key(key, writer), axes)
        if found is not None:
            return found
    axis = tp_axis(axes)
    return None if axis is None else _assemble(store, name, key, axes, axis)


def _shard_at(store: Any, name: str, place: Any, axes: Axes) -> tuple[Header, Any] | None:
    found = objects.read(store, name, [place])[0]
    return (found[0], memory.to_tensor(*found)) if found is not None and is_at(found[0], axes) else None


def find_full(store: Any, name: str, key: Any, axes: Axes | None) -> tuple[Header, Any] | None:
    """The whole tensor: made of shards where there is a manifest, as it lies there otherwise."""
    if axes is not None and tp_axis(axes) is None:
        found = objects.read(store, name, [shard_key(key, axes)])[0]
        return None if found is None else (found[0], memory.to_tensor(*found))
    made = _assemble(store, name, key, axes, None)
    if made is not None or axes is not None:
        return made
    found = objects.read(store, name, [key])[0]
    return None if found is None else (found[0], memory.to_tensor(*found))


def is_plain_tp(axes: Axes) -> bool:
    return len(axes) == 1 and axes[0].kind == "tp"


def _assemble(store: Any, name: str, key: Any, axes: Axes | None, want: ParallelAxis | None) -> Any:
    """Header and tensor of `want`, or of the whole, from stored shards. A `want` that names no dimension is cut
    along the one that the shards are cut along."""
    problem = None
    for manifest, places in _sources(store, name, key, axes):
        whole, stored = manifest.global_shape, manifest.split_dim
        try:
            if want is None:
                return Header(manifest.dtype, whole, whole), _join(store, name, manifest, places, 0, whole[stored])
            split_dim = stored if want.split_dim is None else want.split_dim
            start, extent = shard_range(whole, want.rank, want.size, split_dim)
            if split_dim == stored:
                tensor = _join(store, name, manifest, places, start, extent)
            else:
                tensor = _join(store, name, manifest, places, 0, whole[stored])
                tensor = tensor.narrow(split_dim, start, extent).contiguous()
            place = with_tp(axes, want.rank, want.size, split_dim)
            return shard_header(manifest.dtype, tuple(tensor.shape), whole, place), tensor
        except Refused as reason:
            problem = problem or reason
    if problem is not None:
        objects.refuse(store, name, f"{key!r}: {problem}")
    return None


def _sources(store: Any, name: str, key: Any, axes: Axes | None):
    """Manifests with the names of their shards, the most telling first."""
    plain = axes is None or is_plain_tp(axes)
    place = axes or tp_axes(0, 1, 0)
    kept = [parallelism_manifest_key(key)]
    if plain:
        kept.insert(0, writer_manifest_key(key))
    manifests = [_manifest(array) for array in _native._get_bytearrays(store, name, kept)]
    if plain and (manifest := manifests.pop(0)) is not None:
        count, split_dim = manifest.shard_count, manifest.split_dim
        yield manifest, [writer_key(key, Writer(rank, count, split_dim)) for rank in range(count)]
    if (manifest := manifests.pop()) is None:
        # Written by the calls that leave no manifest: the first shard tells.
        axis = tp_axis(place)
        first = shard_key(key, with_tp(place, 0, axis.size, axis.split_dim))
        found = objects.read(store, "", [first])[0]
        own = None if found is None else found[0].axis("tp")
        if own is None or own.split_dim < 0:
            return
        manifest = Manifest(found[0].dtype, found[0].global_shape, own.split_dim, own.count)
    count, split_dim = manifest.shard_count, manifest.split_dim
    yield manifest, [shard_key(key, with_tp(place, rank, count, split_dim)) for rank in range(count)]


def _manifest(array: bytearray | None) -> Manifest | None:
    try:
        return None if array is None else decode_manifest(array)
    except BadHeader:
        return None


def _join(store: Any, name: str, manifest: Manifest, places: Sequence[Any], start: int, extent: int) -> Any:
    """The part `start .. start + extent` along the dimension that the shards were cut along."""
    dim, count = manifest.split_dim, manifest.shard_count
    each = manifest.global_shape[dim] // count
    end = start + extent
    ranks = [rank for rank in range(count) if rank * each < end and (rank + 1) * each > start] if each else [0]
    read = objects.read(store, name, [places[rank] for rank in ranks])
    shape = list(manifest.global_shape)
    shape[dim] = each
    for rank, found in zip(ranks, read, strict=True):
        if found is None:
            raise Refused(f"shard {places[rank]!r} is missing")
        header = found[0]
        own = header.axis("tp")
        place = None if own is None else (own.rank, own.count, own.split_dim)
        if place != (rank, count, dim) or (header.dtype, list(header.shape)) != (manifest.dtype, shape):
            raise Refused(f"shard {places[rank]!r} is not the one that its manifest tells of")
    shape[dim] = extent
    if len(ranks) == 1 and extent == each:
        return memory.to_tensor(*read[0])
    joined = memory.empty(manifest.dtype, tuple(shape))
    for rank, found in zip(ranks, read, strict=True):
        first, last = max(start, rank * each), min(end, (rank + 1) * each)
        part = memory.to_tensor(*found).narrow(dim, first - rank * each, last - first)
        joined.narrow(dim, first - start, last - first).copy_(part)
    return joined


def deliver(store: Any, name: str, key: Any, made: tuple[Header, Any] | None, address: int, size: int) -> Any:
    """Writes a tensor that was made of shards to the caller's memory, with its header."""
    if made is None:
        return None
    header, tensor = made
    if header.total_bytes > size:
        objects.refuse(store, name, f"{key!r}: {header.total_bytes} bytes, the buffer has {size}")
        return None
    try:
        _native._poke(store, address, size, memory.as_object(header, tensor))
    except ValueError as reason:
        objects.refuse(store, name, f"{key!r}: {reason}")
        return None
    return memory.at_address(header, address)


def of_shard(tensor: Any, axes: Axes) -> memory.Pieces:
    """A tensor that is a shard already. Along its tensor-parallel axis the whole is as many times larger."""
    dtype, axis, shape = memory.check(tensor), tp_axis(axes), tuple(tensor.shape)
    header = shard_header(dtype, shape, shape, axes)
    if axis is not None:
        whole = list(shape)
        whole[axis.split_dim] *= axis.size
        header = replace(header, global_shape=tuple(whole))
    return memory.of_tensor(tensor, header)
