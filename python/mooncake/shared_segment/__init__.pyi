from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["SharedSegment", "SharedSegmentError", "create_shared_segment", "shared_segment_supported"]

class SharedSegmentError(RuntimeError):
    """Why there is no segment, or no such tensor in it. All ranks of a group get the same."""

class SharedSegment:
    """One rank's share. The memory is there as long as this or one of its tensors is."""

    def tensors(self, block: str) -> list[Tensor]:
        """The tensors of a block, by number: views of the memory that all ranks have."""
    def base_addr(self) -> int: ...
    def total_size(self) -> int: ...

def shared_segment_supported(mmap: bool = True, host_register: bool = False) -> bool: ...
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
    """Makes a segment together with the other ranks, who call this with the same arguments; SharedSegmentError, in all
    ranks, if one of them could not."""
