"""Where objects lie, and segments that come and go while the store is set up."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from mooncake._native import ReplicaStatus
from mooncake.store._entry import entries


@dataclass(unsafe_hash=True, slots=True)
class Descriptor:
    """Memory that holds a replica: `size` bytes of the segment named `transport_endpoint`.

    `buffer_address` is the offset of the first one: peers address memory by segment and offset, never by an address.
    """

    size: int = 0
    buffer_address: int = 0
    transport_endpoint: str = ""


@dataclass(frozen=True, slots=True)
class MemoryDescriptor:
    """A replica in memory; where, `buffer_descriptor` tells."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class DiskDescriptor:
    """A replica of `object_size` bytes on a file system that clients share; other objects are in the file, too."""

    file_path: str
    object_size: int


@dataclass(frozen=True, slots=True)
class ReplicaDescriptor:
    """One replica of an object: its number, `id`, and how far it is, `status`."""

    id: int
    status: ReplicaStatus
    _memory: MemoryDescriptor | None
    _disk: DiskDescriptor | None

    def is_memory_replica(self) -> bool:
        """Whether it lies in the memory of a client."""
        return self._memory is not None

    def is_disk_replica(self) -> bool:
        """Whether it lies on a file system that clients share (the master's `root_fs_dir`)."""
        return self._disk is not None

    def is_local_disk_replica(self) -> bool:
        """Whether it lies on the tier of a client: on a disk of its host."""
        return self._memory is None and self._disk is None

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """The segment that it lies in, and where. RuntimeError for a replica on a tier."""
        if self._disk is not None:
            raise RuntimeError("this replica is on a shared file system: ask get_disk_descriptor()")
        if self._memory is None:
            raise RuntimeError("this replica is on a client's disk: is_local_disk_replica()")
        return self._memory

    def get_disk_descriptor(self) -> DiskDescriptor:
        """The file that has it. RuntimeError for a replica that is on no shared file system."""
        if self._disk is not None:
            return self._disk
        if self._memory is None:
            raise RuntimeError("this replica is on a client's disk, in no file of its own: is_local_disk_replica()")
        raise RuntimeError("this replica is in memory: ask get_memory_descriptor()")


def _descriptors(replicas: list[tuple[int, int, int, str, bool, str]]) -> list[ReplicaDescriptor]:
    def one(number: int, size: int, address: int, endpoint: str, is_memory: bool, file_path: str) -> ReplicaDescriptor:
        memory = MemoryDescriptor(Descriptor(size, address, endpoint)) if is_memory else None
        disk = DiskDescriptor(file_path, size) if file_path else None
        return ReplicaDescriptor(number, ReplicaStatus.COMPLETE, memory, disk)

    return [one(*replica) for replica in replicas]


@entries
class PlacementCalls:
    """Calls of a store about replicas and segments."""

    __slots__ = ()

    def get_replica_desc(self, key: str | bytes) -> list[ReplicaDescriptor]:
        """The replicas of an object; none when it is not there."""
        return _descriptors(self._describe([key])[0] or [])

    def batch_get_replica_desc(self, keys: list[str | bytes]) -> dict[Any, list[ReplicaDescriptor]]:
        """The replicas of the objects that are there."""
        found = self._describe(keys)
        return {key: _descriptors(replicas) for key, replicas in zip(keys, found, strict=True) if replicas}

    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> dict[str, Any]:
        """Gives the pool more memory, in steps of 16 MiB."""
        _texts(protocol=protocol, location=location)
        code, ids, size = self._mount_memory(size)
        return {"ret": code, "segment_ids": ids, "allocated_size": size}

    def mount_segment(
        self, path: str | os.PathLike[str], size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Gives the pool part of a file or of an object in /dev/shm; what it holds is overwritten."""
        _texts(protocol=protocol, location=location)
        code, ids, _ = self._mount_file(path, size, offset)
        return {"ret": code, "segment_ids": ids}

    def unmount_segment(self, segment_ids: list[str], grace_period_seconds: int = 0) -> int:
        """Takes segments back; for the time of the grace what they hold can still be read."""
        return self._unmount(segment_ids, grace_period_seconds)

    def unmount_and_free_segment(self, segment_ids: list[str], grace_period_seconds: int = 0) -> int:
        """As `unmount_segment`: memory that was allocated is given back to the host either way."""
        return self._unmount(segment_ids, grace_period_seconds)


def _texts(**given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, str):
            raise TypeError(f"{name}: a str is needed, not {type(value).__name__}")
