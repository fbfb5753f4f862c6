"""Tensors that the ranks of a group on one host have in common: one copy, at an address of its own in each rank."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from mooncake.engine import SharedSegment as _Segment

__all__ = ["SharedSegment", "SharedSegmentError", "create_shared_segment", "shared_segment_supported"]

# Every tensor begins with a page.
_ALIGNMENT = 4096


class SharedSegmentError(RuntimeError):
    """Why there is no segment, or no such tensor in it. All ranks of a group get the same."""


class _Block(NamedTuple):
    count: int
    shape: tuple[int, ...]
    dtype: Any
    size: int


class SharedSegment:
    """One rank's share. The memory is there as long as this or one of its tensors is."""

    def __init__(self, segment: _Segment, blocks: dict[str, _Block]):
        self._segment = segment
        self._blocks = blocks

    def tensors(self, block: str) -> list[Any]:
        """The tensors of a block, by number: views of the memory that all ranks have."""
        import torch

        try:
            wanted = self._blocks[block]
        except KeyError:
            raise SharedSegmentError(f"there is no block {block!r} in this segment") from None
        made = []
        for addr in self._addresses(block):
            memory = (ctypes.c_uint8 * wanted.size).from_address(addr)
            # A tensor keeps what it was made from, and with it the segment.
            memory.segment = self._segment
            made.append(torch.frombuffer(memory, dtype=wanted.dtype).view(wanted.shape))
        return made

    def base_addr(self) -> int:
        return self._segment.base_addr()

    def total_size(self) -> int:
        return self._segment.size()

    def _addresses(self, block: str) -> range:
        offset, stride = 0, _stride(self._blocks)
        for name, other in self._blocks.items():
            if name == block:
                break
            offset += _whole_pages(other.size)
        begin = self.base_addr() + offset
        return range(begin, begin + stride * self._blocks[block].count, stride)


def shared_segment_supported(mmap: bool = True, host_register: bool = False) -> bool:
    return _Segment.supported(mmap, host_register)


def create_shared_segment(
    name: str,
    blocks: Mapping[str, Mapping[str, Any]],
    world_size: int,
    rank_id: int,
    owner_rank: int = 0,
    device_id: int | None = None,
    comm_group: Any = None,
    mmap: bool = True,
    host_register: bool = False,
    *,
    tp_group: Any = None,
) -> SharedSegment:
    """Makes a segment together with the other ranks of ``comm_group``, who call this with the same arguments.

    ``blocks``: by name, ``count`` tensors of ``shape`` and ``dtype``. The group is one of ``torch.distributed``, or has
    one as ``cpu_group``; a rank alone needs none. SharedSegmentError, in all ranks, if one of them could not.
    """
    if comm_group is not None and tp_group is not None and comm_group is not tp_group:
        raise SharedSegmentError("tp_group is another name of comm_group: one of them, or the same twice")
    group = comm_group if comm_group is not None else tp_group
    group = getattr(group, "cpu_group", group)
    if world_size > 1 and group is None:
        raise SharedSegmentError(f"{world_size} ranks need a comm_group")
    if not shared_segment_supported(mmap, host_register):
        raise SharedSegmentError("this version has mmap=True, host_register=False only")
    wanted = {block: _block(block, blocks[block]) for block in sorted(blocks)}
    if not wanted:
        raise SharedSegmentError("a segment has one block at least")
    # With the layout in its name, ranks that disagree on that are told.
    layout = ";".join(f"{block}:{one.count}:{one.shape}:{one.dtype}" for block, one in wanted.items())
    size = _stride(wanted) * max(one.count for one in wanted.values())

    segment, error, blob = None, "", b""
    try:
        segment, blob = _Segment.create(
            f"{name}|{layout}", size, world_size, rank_id, owner_rank, device_id or 0, mmap, host_register
        )
    except RuntimeError as failed:
        error = str(failed)
    told = _gather((error, blob), world_size, group)
    _raise_first(told)
    try:
        segment.complete([blob for _, blob in told])
    except RuntimeError as failed:
        error = str(failed)
    _raise_first(_gather((error, b""), world_size, group))
    return SharedSegment(segment, wanted)


def _block(name: str, given: Mapping[str, Any]) -> _Block:
    try:
        count, dtype = operator.index(given["count"]), given["dtype"]
        shape = tuple(operator.index(length) for length in given["shape"])
        item = dtype.itemsize
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SharedSegmentError(f"block {name!r} needs a count, a shape and a dtype of torch") from error
    if count <= 0 or not shape or min(shape) <= 0:
        raise SharedSegmentError(f"block {name!r} has no elements: {count} tensors of shape {shape}")
    return _Block(count, shape, dtype, item * math.prod(shape))


def _whole_pages(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _stride(blocks: Mapping[str, _Block]) -> int:
    """From a tensor to the next of its block: one of each block lies between."""
    return sum(_whole_pages(block.size) for block in blocks.values())


def _gather(mine: tuple[str, bytes], world_size: int, group: Any) -> list[tuple[str, bytes]]:
    if world_size == 1:
        return [mine]
    import torch.distributed

    told: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(told, mine, group=group)
    return told


def _raise_first(told: list[tuple[str, bytes]]) -> None:
    errors = [f"rank {rank}: {error}" for rank, (error, _) in enumerate(told) if error]
    if errors:
        raise SharedSegmentError("; ".join(errors))
