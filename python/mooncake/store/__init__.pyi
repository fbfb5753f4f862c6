import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, SupportsIndex, overload

from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Buffer

from mooncake.mooncake_config import MooncakeConfig

__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "bind_to_numa_node",
    "get_alloc_func_addr",
    "get_free_func_addr",
]

class ObjectDataType:
    """What an object holds; a label only."""

    __members__: ClassVar[dict[str, ObjectDataType]]
    UNKNOWN: ClassVar[ObjectDataType]
    KVCACHE: ClassVar[ObjectDataType]
    TENSOR: ClassVar[ObjectDataType]
    WEIGHT: ClassVar[ObjectDataType]
    SAMPLE: ClassVar[ObjectDataType]
    ACTIVATION: ClassVar[ObjectDataType]
    GRADIENT: ClassVar[ObjectDataType]
    OPTIMIZER_STATE: ClassVar[ObjectDataType]
    METADATA: ClassVar[ObjectDataType]
    GENERAL: ClassVar[ObjectDataType]
    def __init__(self, value: SupportsIndex) -> None:
        """The member of that number; ValueError if there is none."""
    @property
    def name(self) -> str:
        """The name without the class."""
    @property
    def value(self) -> int:
        """The number."""
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

class SoftPinAction:
    """What a put does to an object's soft pin."""

    __members__: ClassVar[dict[str, SoftPinAction]]
    PRESERVE: ClassVar[SoftPinAction]
    ENABLE: ClassVar[SoftPinAction]
    DISABLE: ClassVar[SoftPinAction]
    def __init__(self, value: SupportsIndex) -> None:
        """The member of that number; ValueError if there is none."""
    @property
    def name(self) -> str:
        """The name without the class."""
    @property
    def value(self) -> int:
        """The number."""
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

class ReplicaStatus:
    """How far a replica is."""

    __members__: ClassVar[dict[str, ReplicaStatus]]
    UNDEFINED: ClassVar[ReplicaStatus]
    INITIALIZED: ClassVar[ReplicaStatus]
    PROCESSING: ClassVar[ReplicaStatus]
    COMPLETE: ClassVar[ReplicaStatus]
    REMOVED: ClassVar[ReplicaStatus]
    FAILED: ClassVar[ReplicaStatus]
    def __init__(self, value: SupportsIndex) -> None:
        """The member of that number; ValueError if there is none."""
    @property
    def name(self) -> str:
        """The name without the class."""
    @property
    def value(self) -> int:
        """The number."""
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

class TaskType:
    """What a task does with a replica."""

    __members__: ClassVar[dict[str, TaskType]]
    REPLICA_COPY: ClassVar[TaskType]
    REPLICA_MOVE: ClassVar[TaskType]
    def __init__(self, value: SupportsIndex) -> None:
        """The member of that number; ValueError if there is none."""
    @property
    def name(self) -> str:
        """The name without the class."""
    @property
    def value(self) -> int:
        """The number."""
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

class TaskStatus:
    """How far a task is."""

    __members__: ClassVar[dict[str, TaskStatus]]
    PENDING: ClassVar[TaskStatus]
    PROCESSING: ClassVar[TaskStatus]
    FAILED: ClassVar[TaskStatus]
    SUCCESS: ClassVar[TaskStatus]
    def __init__(self, value: SupportsIndex) -> None:
        """The member of that number; ValueError if there is none."""
    @property
    def name(self) -> str:
        """The name without the class."""
    @property
    def value(self) -> int:
        """The number."""
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

UNKNOWN: ObjectDataType
KVCACHE: ObjectDataType
TENSOR: ObjectDataType
WEIGHT: ObjectDataType
SAMPLE: ObjectDataType
ACTIVATION: ObjectDataType
GRADIENT: ObjectDataType
OPTIMIZER_STATE: ObjectDataType
METADATA: ObjectDataType
GENERAL: ObjectDataType
UNDEFINED: ReplicaStatus
INITIALIZED: ReplicaStatus
COMPLETE: ReplicaStatus
REMOVED: ReplicaStatus
REPLICA_COPY: TaskType
REPLICA_MOVE: TaskType
PENDING: TaskStatus
PROCESSING: TaskStatus
FAILED: TaskStatus
SUCCESS: TaskStatus

class MooncakeHostMemAllocator:
    """Shared memory by the piece, populated: what is registered as a whole."""

    def __init__(self) -> None: ...
    def alloc(self, size: int) -> int:
        """Address of that many bytes, zero and populated; RuntimeError says why there are none."""
    def free(self, ptr: int) -> int:
        """0, or -600 for what `alloc` did not give.

        Unregister it first. What is still registered is no memory any more, and its addresses are nobody else's until
        it is unregistered.
        """

def bind_to_numa_node(node: int) -> None:
    """Runs the calling thread on a NUMA node and prefers its memory; warnings in the log, never an error."""

def get_alloc_func_addr() -> int:
    """Address of `void *(size_t)`: memory in huge pages where there are any."""

def get_free_func_addr() -> int:
    """Address of `void (void *)`, for what the other gave."""

def _serialize_tensor(tensor: Tensor) -> tuple[bytes, int, int, Tensor]:
    """Header, address and bytes of the data, and the tensor that keeps it there."""

def _deserialize_tensor(data: Buffer) -> Tensor: ...
def _tensor_metadata_size() -> int: ...
def _get_pyclient_from_wrapper(wrapper: MooncakeDistributedStore) -> MooncakeDistributedStore | None: ...

class BufferPool:
    """Buffers of registered memory for the zero-copy calls of a store.

    At most `max_bytes` are leased at a time (0: twice the store's local buffer; never less than the local buffer), in
    at most `max_regions` regions. Buffers that were given back are kept and leased again, but for those above
    `max_size_class`: these are leased as well, and count as the regions of that size that they would fill. All methods
    may be called from several threads.
    """

    def __init__(
        self,
        store: MooncakeDistributedStore,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8388608,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None: ...
    def acquire(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """A buffer of `size` bytes, registered. RuntimeError when there is none, or none within `timeout` seconds."""
    def buffer(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """A buffer of `size` bytes, registered. RuntimeError when there is none, or none within `timeout` seconds."""
    def prewarm(self, size: int, count: int) -> None:
        """Does nothing: buffers are made when they are first leased."""
    def close(self) -> None:
        """Gives all memory back. RuntimeError while buffers are leased."""
    def __enter__(self) -> BufferPool: ...
    def __exit__(self, *_: object) -> None: ...

class BufferLease:
    """A buffer until `release`, or until the end of a `with`."""

    @property
    def ptr(self) -> int:
        """Address of the first byte."""
    @property
    def size(self) -> int:
        """Bytes asked for."""
    @property
    def buffer(self) -> memoryview:
        """The bytes, writable. Views of it must be gone before the release."""
    def release(self) -> None:
        """Gives the buffer back; again, it does nothing. RuntimeError while there are views of `buffer`."""
    def __len__(self) -> int: ...
    def __enter__(self) -> BufferLease: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

BufferLeaseView = memoryview
RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
RegisteredBufferLeaseView = BufferLeaseView

@dataclass(eq=False)
class ParallelAxis:
    """One coordinate of a shard: the `rank` among `size` of a `kind`, "dp", "tp", "ep" or "pp".

    "tp" needs a `split_dim`, the dimension that is cut, and no other has one; "ep" needs an `expert_id`, "pp" a
    `stage_id`.
    """

    kind: str = ""
    rank: int = 0
    size: int = 1
    split_dim: int | None = None
    expert_id: int | None = None
    stage_id: int | None = None

@dataclass(eq=False)
class TensorParallelism:
    """Where a shard lies in its tensor: up to four `axes` of different kinds."""

    axes: list[ParallelAxis] = field(default_factory=list)

@dataclass(eq=False)
class ReadTarget:
    """What a read gives: `mode` is "as_stored", "shard", which needs the `parallelism`, or "full".

    RuntimeError for any other.
    """

    mode: str = "as_stored"
    parallelism: TensorParallelism | None = None

class _WriterPartition(Protocol):
    rank: int
    size: int
    split_dim: int

class ReplicateConfig:
    """How an object is placed and kept. Read when a call is made; one object may be used by several threads and changed
    between calls.
    """

    replica_num: int
    """Replicas in memory, each on another client: 1, the default, to 64."""
    nof_replica_num: int
    """Replicas on segments of NVMe over fabrics. There are none in this version: -600 unless it is 0."""
    dfs_replica_num: int
    """Replicas on a shared file system, 0 or 1. There are none in this version: -600 unless it is 0."""
    soft_pin_action: SoftPinAction
    """What a put does to the object's soft pin, which eviction passes over while it finds others."""
    soft_pin_ttl_ms: int | None
    """How long a soft pin lasts, in milliseconds; None: 30 minutes."""
    with_hard_pin: bool
    """Never evicted."""
    preferred_segments: Sequence[str]
    """Segments to try first, by name: `get_hostname()` of their clients."""
    preferred_segment: str
    """One such name, as older programs give it."""
    preferred_nof_segments: Sequence[str]
    """Names of segments of NVMe over fabrics. There are none in this version."""
    prefer_alloc_in_same_node: bool
    """The writer's own host is tried first: for `batch_put_from_multi_buffers` and put sessions, with one replica."""
    data_type: ObjectDataType
    """What the object holds; a label only."""
    group_ids: Sequence[str] | None
    """A group for each key of the call; None: no groups."""
    def __init__(self) -> None: ...

class BufferHandle(Buffer):
    """Holds an object's bytes: the pinned segment memory itself, or a private copy where they cannot be borrowed. They
    do not change, whatever happens to the object or to the store meanwhile.
    """

    def ptr(self) -> int:
        """Address of the first byte."""
    def size(self) -> int:
        """Length in bytes."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@dataclass(unsafe_hash=True)
class Descriptor:
    """Memory that holds a replica: `size` bytes of the segment named `transport_endpoint`.

    `buffer_address` is the offset of the first one: peers address memory by segment and offset, never by an address.
    """

    size: int = 0
    buffer_address: int = 0
    transport_endpoint: str = ""

class MemoryDescriptor:
    """A replica in memory; where, `buffer_descriptor` tells."""

    @property
    def buffer_descriptor(self) -> Descriptor: ...

class DiskDescriptor:
    """A replica of `object_size` bytes on a file system that clients share; other objects are in the file, too."""

    @property
    def file_path(self) -> str: ...
    @property
    def object_size(self) -> int: ...

class ReplicaDescriptor:
    """One replica of an object: its number, `id`, and how far it is, `status`."""

    @property
    def id(self) -> int: ...
    @property
    def status(self) -> ReplicaStatus: ...
    def is_memory_replica(self) -> bool:
        """Whether it lies in the memory of a client."""
    def is_disk_replica(self) -> bool:
        """Whether it lies on a file system that clients share (the master's `root_fs_dir`)."""
    def is_local_disk_replica(self) -> bool:
        """Whether it lies on the tier of a client: on a disk of its host."""
    def get_memory_descriptor(self) -> MemoryDescriptor:
        """The segment that it lies in, and where. RuntimeError for a replica on a tier."""
    def get_disk_descriptor(self) -> DiskDescriptor:
        """The file that has it. RuntimeError for a replica that is on no shared file system."""

class MooncakeDistributedStore:
    """A client of the pool. Calls may be made from several threads at once.

    Integers below 0 are Mooncake's error codes; `last_error()` says why in words.
    """

    def __init__(self) -> None: ...
    @classmethod
    def connect(
        cls,
        master: str = "127.0.0.1:50051",
        *,
        local_hostname: str | None = None,
        global_segment_size: int = 0,
        local_buffer_size: int = 1 << 30,
    ) -> Self:
        """A store that is set up with the master at "host:port"; raises `mooncake.errors.StoreError` otherwise.

        It lends `global_segment_size` bytes to the pool. `local_hostname` is how peers reach this process; without one
        it is this host's address on the way to the master. `local_buffer_size` bounds what it borrows.
        """
    def __enter__(self) -> Self:
        """This store, which the end of the `with` closes."""
    def __exit__(self, *_: object) -> None: ...
    def __contains__(self, key: str | bytes) -> bool:
        """Whether an object of that key is there, as of `is_exist`."""
    @overload
    def setup(self, config: Mapping[str, Any] | MooncakeConfig) -> int: ...
    @overload
    def setup(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int,
        local_buffer_size: int,
        protocol: str,
        rdma_devices: str,
        master_server_addr: str,
        engine: object = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
    ) -> int:
        """0, or a negative code. An earlier setup of this object is closed first, also when this one then fails.

        `local_hostname` is how peers reach this process, `global_segment_size` what it lends to the pool, in bytes, and
        `local_buffer_size` bounds what it borrows; 0: it only lends. `master_server_addr` is "host:port". With
        `enable_ssd_offload` the store keeps a tier below `ssd_offload_path`: docs/tiers.md. The other arguments are
        accepted for Mooncake's sake. A dict, or a `MooncakeConfig`, may have all of it.

        With `enable_client_http_server` this client serves /health, /metrics and /metrics/summary on 127.0.0.1, at
        `client_http_port`, from 1 to 65535. A port that is taken is a warning of the logger `mooncake`, and no failure.
        """
    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """A client of the pool that a storage node of this host, at "host:port", belongs to: 0, or -1.

        Everything works as after `setup`; nothing passes through the node. `mem_pool_size` has no meaning.
        """
    def close(self) -> int:
        """0. Ends the session with the master; memory that this client lent leaves the pool. Views stay valid."""
    def health_check(self) -> int:
        """0 healthy, 1 not set up or closed, 2 the master does not answer."""
    def get_hostname(self) -> str:
        """Name of this client and of its segment: "host:port"; "" when not set up."""
    def last_error(self) -> str:
        """Why the last call of this thread failed; "" when it did not."""
    def put(self, key: str | bytes, value: Buffer, config: ReplicateConfig | None = None) -> int:
        """0 when stored, or when the key is there already; an empty value is refused with -600.

        The value must not change before the call returns: the object could not be read then.
        """
    def put_parts(self, key: str | bytes, *parts: Buffer, config: ReplicateConfig | None = None) -> int:
        """Stores the concatenation; 0 without storing when it is empty."""
    def put_batch(
        self, keys: Sequence[str | bytes], values: Sequence[Buffer], config: ReplicateConfig | None = None
    ) -> int:
        """0, or the first failure's code; of a key given twice the first value is stored."""
    def upsert(self, key: str | bytes, value: Buffer, config: ReplicateConfig | None = None) -> int:
        """As `put`, but replaces a value that is there; the old one is read until the new one is whole."""
    def upsert_parts(self, key: str | bytes, *parts: Buffer, config: ReplicateConfig | None = None) -> int:
        """As `put_parts`, and replaces what is there."""
    def upsert_batch(
        self, keys: Sequence[str | bytes], values: Sequence[Buffer], config: ReplicateConfig | None = None
    ) -> int:
        """As `put_batch`, and replaces what is there."""
    def upsert_from(self, key: str | bytes, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """As `put_from`, and replaces what is there."""
    def batch_upsert_from(
        self,
        keys: Sequence[str | bytes],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As `batch_put_from`, and replaces what is there."""
    def put_from_with_metadata(
        self,
        key: str | bytes,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """The object is the metadata, then the data."""
    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """How many objects were removed whose key contains a match, or a negative code."""
    def get_replica_desc(self, key: str | bytes) -> list[ReplicaDescriptor]:
        """Where the replicas of an object lie; [] when it is missing. Protects it for a moment, as `is_exist` does."""
    def batch_get_replica_desc(self, keys: Sequence[str | bytes]) -> dict[str | bytes, list[ReplicaDescriptor]]:
        """The replicas of each object that is there, by key. Protects what it found for a moment."""
    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> dict[str, Any]:
        """Lends more memory to the pool: {"ret": 0 or a code, "segment_ids": [...], "allocated_size": bytes}."""
    def mount_segment(
        self, path: str | PathLike[str], size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Lends a part of a file, or of a shared-memory object: {"ret": 0 or a code, "segment_ids": [...]}."""
    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Takes segments back, 0 or a code. They are read for `grace_period_seconds` still, and take nothing new."""
    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """As `unmount_segment`, of what `allocate_and_mount_segment` gave."""
    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """Waits for the grace, then leaves this store's tier, if it has one: 0 or a code. What lies there stays."""
    def get_offload_rpc_read_count(self) -> int:
        """Reads of this store that tiers, which are folders on disks, have answered."""
    def batch_replica_clear(self, keys: Sequence[str | bytes], segment_name: str = "") -> list[str | bytes]:
        """Drops the replicas of these objects on the segment of that name, or all of them without one.

        The keys of which some were dropped. Objects that are pinned, under a view, looked up a moment ago or being
        replaced keep theirs; `last_error()` says why of the first.
        """
    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str | bytes]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]:
        """Fragments of objects into buffers: bytes read for each, or its code."""
    def get(self, key: str | bytes, /) -> bytes:
        """The value; b"" when it is missing or cannot be read."""
    def get_batch(self, keys: Sequence[str | bytes], /) -> list[bytes]:
        """The values, in the order of the keys; b"" for those that are missing or cannot be read."""
    def get_buffer(self, key: str | bytes, /) -> BufferHandle | None:
        """A read-only view of the value where it lies, pinned and verified; None when it is missing.

        It stays valid across removal, eviction and `close`, and holds its space in the pool until it is gone.
        """
    def batch_get_buffer(self, keys: Sequence[str | bytes], /) -> list[BufferHandle | None]:
        """A view of each value; None for those that are missing."""
    def is_exist(self, key: str | bytes, /) -> int:
        """1 or 0; protects what it found for a moment. 0 with a reason where no master answers, -601 after a fork."""
    def batch_is_exist(self, keys: Sequence[str | bytes]) -> list[int]:
        """1 or 0 per key, as of `is_exist`; protects what it found for a moment."""
    def get_size(self, key: str | bytes, /) -> int:
        """Bytes of the value, or a code: -704 when it is missing. Protects it for a moment."""
    def remove(self, key: str | bytes, force: bool = False) -> int:
        """0, or a code: -704 when it is missing, -703 while it is put, -706 when it was looked up in the last 2 s.

        With `force` an object that was looked up is removed all the same.
        """
    def remove_all(self, force: bool = False) -> int:
        """How many objects were removed. Those that were looked up in the last 2 s stay, unless `force` is given."""
    def batch_remove(self, keys: Sequence[str | bytes], force: bool = False) -> list[int]:
        """A code per key, as of `remove`."""
    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Host memory, or memory of a CUDA device: addresses in a registered range are used without a question."""
    def unregister_buffer(self, buffer_ptr: int) -> int:
        """0, or a code. Nothing uses the memory any more when it returns."""
    def put_from(self, key: str | bytes, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """Stores memory: 0, or a code. It may be registered or not, and must not change before the call returns."""
    def get_into(self, key: str | bytes, buffer_ptr: int, size: int) -> int:
        """Bytes read, or a negative code; -600 when the buffer is smaller than the object."""
    def batch_put_from(
        self,
        keys: Sequence[str | bytes],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """A code per key, as of `put_from`."""
    def batch_get_into(
        self, keys: Sequence[str | bytes], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Bytes read, or a code, per key."""
    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str | bytes],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Stores the concatenation of each key's pieces, which must not change before the call returns."""
    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str | bytes],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Reads each object into pieces of memory, in order: bytes read, or a code, per key."""
    def batch_get_session_start(self, keys: Sequence[str | bytes]) -> list[int]:
        """Looks objects up once, to be read in parts; protects them for a moment, as `is_exist`, and holds nothing."""
    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str | bytes],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Bytes read per key, asking no master; -707 once it is elsewhere, -704 while its owner stands still."""
    def batch_get_session_end(self, keys: Sequence[str | bytes]) -> int:
        """0: a start of each key needs what was looked up no more; the last end forgets it. -600: no setup."""
    def batch_put_session_start(
        self, keys: Sequence[str | bytes], sizes: Sequence[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """Reserves room, for ten minutes at most, that any threads fill in parts; -705 for what is there already."""
    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str | bytes],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Bytes written per key, in any order; -707 once the session is over, as when its memory's owner is gone.

        The memory must not change before the call returns.
        """
    def batch_put_session_end(self, keys: Sequence[str | bytes]) -> list[int]:
        """0 per key, which is an object then; -600 and still open where `last_error()` names bytes never written."""
    def batch_put_session_revoke(self, keys: Sequence[str | bytes]) -> list[int]:
        """A key with 0 never becomes an object; -600 where its end has made it one, -707 where it was lost."""
    def init_all(self, protocol: str, device_name: str, mount_segment_size: int = 16777216, /) -> int:
        """`setup` with everything on this host and the master at its usual port."""
    def alloc_from_mem_pool(self, size: int, /) -> int:
        """After `setup_dummy` the address of memory that lives as long as this object; 0 otherwise, or without room."""
    def put_array(self, key: str | bytes, array: NDArray[Any], config: ReplicateConfig | None = None) -> int:
        """0, or a code. A numpy array is stored as the tensor that it is: `get_tensor` reads it too."""
    def get_array(self, key: str | bytes) -> NDArray[Any] | None:
        """The array, or tensor, in memory of its own; None when it is missing, none, or of a type unknown to numpy."""
    def put_tensor(self, key: str | bytes, tensor: Tensor) -> int:
        """0, or a negative code; -600 for what is no tensor that can be stored."""
    def batch_put_tensor(self, keys: Sequence[str | bytes], tensors_list: Sequence[Tensor]) -> list[int]:
        """A code per key, as of `put_tensor`."""
    def pub_tensor(self, key: str | bytes, tensor: Tensor, config: ReplicateConfig | None = None) -> int:
        """`put_tensor` with a config."""
    def batch_pub_tensor(
        self, keys: Sequence[str | bytes], tensors_list: Sequence[Tensor], config: ReplicateConfig | None = None
    ) -> list[int]:
        """A code per key, as of `pub_tensor`."""
    def put_tensor_from(self, key: str | bytes, buffer_ptr: int, size: int) -> int:
        """Stores an object, header and data, that lies ready in memory."""
    def batch_put_tensor_from(
        self, keys: Sequence[str | bytes], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """A code per key, as of `put_tensor_from`."""
    def upsert_tensor(self, key: str | bytes, tensor: Tensor) -> int:
        """As `put_tensor`, and replaces what is there."""
    def batch_upsert_tensor(self, keys: Sequence[str | bytes], tensors_list: Sequence[Tensor]) -> list[int]:
        """A code per key, as of `upsert_tensor`."""
    def upsert_pub_tensor(self, key: str | bytes, tensor: Tensor, config: ReplicateConfig | None = None) -> int:
        """As `pub_tensor`, and replaces what is there."""
    def batch_upsert_pub_tensor(
        self, keys: Sequence[str | bytes], tensors_list: Sequence[Tensor], config: ReplicateConfig | None = None
    ) -> list[int]:
        """A code per key, as of `upsert_pub_tensor`."""
    def upsert_tensor_from(self, key: str | bytes, buffer_ptr: int, size: int) -> int:
        """As `put_tensor_from`, and replaces what is there."""
    def batch_upsert_tensor_from(
        self, keys: Sequence[str | bytes], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """A code per key, as of `upsert_tensor_from`."""
    def get_tensor(self, key: str | bytes) -> Tensor | None:
        """The tensor, in host memory of its own; None when it is missing or is no tensor."""
    def batch_get_tensor(self, keys: Sequence[str | bytes]) -> list[Tensor | None]:
        """The tensors; None for those that are missing or are none."""
    def get_tensor_into(self, key: str | bytes, buffer_ptr: int, size: int) -> Tensor | None:
        """A tensor on the caller's memory, where header and data are written."""
    def batch_get_tensor_into(
        self, keys: Sequence[str | bytes], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[Tensor | int | None]:
        """As `get_tensor_into`, per key; -600 for all where the arguments make no sense."""
    def get_tensor_into_cuda(self, key: str | bytes, tensor: Tensor) -> int:
        """Bytes read into a contiguous tensor of the same type and size, on any device."""
    def batch_get_tensor_into_cuda(self, keys: Sequence[str | bytes], tensors_list: Sequence[Tensor]) -> list[int]:
        """Bytes read, or a code, per key, as of `get_tensor_into_cuda`."""
    def put_tensor_with_tp(
        self, key: str | bytes, tensor: Tensor, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Cuts a whole tensor and stores the shards of all ranks."""
    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str | bytes],
        tensors_list: Sequence[Tensor],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """A code per key, as of `put_tensor_with_tp`."""
    def pub_tensor_with_tp(
        self,
        key: str | bytes,
        tensor: Tensor,
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """`put_tensor_with_tp` with a config."""
    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str | bytes],
        tensors_list: Sequence[Tensor],
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """A code per key, as of `pub_tensor_with_tp`."""
    def put_tensor_with_tp_from(
        self, key: str | bytes, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """As `put_tensor_with_tp`, of an object that lies ready in memory."""
    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[str | bytes],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """A code per key, as of `put_tensor_with_tp_from`."""
    def get_tensor_with_tp(
        self, key: str | bytes, tp_rank: int = 0, tp_size: int = 1, split_dim: int | None = None
    ) -> Tensor | None:
        """The shard of that rank along `split_dim`; without one, along the dimension that is stored."""
    def batch_get_tensor_with_tp(
        self, base_keys: Sequence[str | bytes], tp_rank: int = 0, tp_size: int = 1
    ) -> list[Tensor | None]:
        """What is stored for just that rank and size, however it was cut, per key; None for those that are missing."""
    def get_tensor_with_tp_into(
        self,
        key: str | bytes,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int | None = None,
    ) -> Tensor | None:
        """As `get_tensor_with_tp`, on the caller's memory."""
    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str | bytes],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Tensor | int | None]:
        """As `batch_get_tensor_with_tp`, on the caller's memory."""
    def put_tensor_with_parallelism(
        self,
        key: str | bytes,
        tensor: Tensor,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: _WriterPartition | None = None,
    ) -> int:
        """With a tp axis alone the tensor is the shard; with further axes, or a writer, it is the whole."""
    def put_tensor_with_parallelism_from(
        self,
        key: str | bytes,
        buffer_ptr: int,
        size: int,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: _WriterPartition | None = None,
    ) -> int:
        """As `put_tensor_with_parallelism`, of an object that lies ready in memory."""
    def batch_put_tensor_with_parallelism(
        self,
        keys: Sequence[str | bytes],
        tensors_list: Sequence[Tensor],
        parallelisms: Sequence[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Sequence[_WriterPartition | None] | None = None,
    ) -> list[int]:
        """A code per key, as of `put_tensor_with_parallelism`."""
    def batch_put_tensor_with_parallelism_from(
        self,
        keys: Sequence[str | bytes],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Sequence[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Sequence[_WriterPartition | None] | None = None,
    ) -> list[int]:
        """A code per key, as of `put_tensor_with_parallelism_from`."""
    def upsert_tensor_with_parallelism(
        self,
        key: str | bytes,
        tensor: Tensor,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: _WriterPartition | None = None,
    ) -> int:
        """As `put_tensor_with_parallelism`, and replaces what is there."""
    def upsert_tensor_with_parallelism_from(
        self,
        key: str | bytes,
        buffer_ptr: int,
        size: int,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: _WriterPartition | None = None,
    ) -> int:
        """As `put_tensor_with_parallelism_from`, and replaces what is there."""
    def batch_upsert_tensor_with_parallelism(
        self,
        keys: Sequence[str | bytes],
        tensors_list: Sequence[Tensor],
        parallelisms: Sequence[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Sequence[_WriterPartition | None] | None = None,
    ) -> list[int]:
        """A code per key, as of `upsert_tensor_with_parallelism`."""
    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: Sequence[str | bytes],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Sequence[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Sequence[_WriterPartition | None] | None = None,
    ) -> list[int]:
        """A code per key, as of `upsert_tensor_with_parallelism_from`."""
    def get_tensor_with_parallelism(self, key: str | bytes, target: ReadTarget | None = None) -> Tensor | None:
        """As stored, as any shard, or whole: put together from what is there."""
    def batch_get_tensor_with_parallelism(
        self, keys: Sequence[str | bytes], targets: Sequence[ReadTarget | None] | None = None
    ) -> list[Tensor | None]:
        """The tensors, as of `get_tensor_with_parallelism`; None for those that cannot be made."""
    def get_tensor_with_parallelism_into(
        self, key: str | bytes, buffer_ptr: int, size: int, target: ReadTarget | None = None
    ) -> Tensor | None:
        """As `get_tensor_with_parallelism`, on the caller's memory."""
    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Sequence[str | bytes],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        targets: Sequence[ReadTarget | None] | None = None,
    ) -> list[Tensor | int | None]:
        """As `get_tensor_with_parallelism_into`, per key; -600 for all where the arguments make no sense."""
    def save_tensor_to_safetensor(self, key: str | bytes, file_name: str | os.PathLike[str] | None = None) -> int:
        """Writes a stored tensor to a file, `KEY.safetensors` without a name: 0, or a code."""
    def load_tensor_from_safetensor(
        self, key: str | None = None, file_name: str | os.PathLike[str] | None = None
    ) -> Tensor | None:
        """The tensor of that name in the file, or the first; it is stored too."""
