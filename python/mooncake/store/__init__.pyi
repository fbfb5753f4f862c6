from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, overload

from typing_extensions import Buffer

__all__ = ["BufferHandle", "MooncakeDistributedStore", "ObjectDataType", "ReplicateConfig", "SoftPinAction"]

class ObjectDataType:
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
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...

class SoftPinAction:
    PRESERVE: ClassVar[SoftPinAction]
    ENABLE: ClassVar[SoftPinAction]
    DISABLE: ClassVar[SoftPinAction]
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...

class ReplicateConfig:
    """How an object is placed and kept. Read when a call is made."""

    replica_num: int
    nof_replica_num: int
    dfs_replica_num: int
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: int | None
    with_hard_pin: bool
    preferred_segments: Sequence[str]
    preferred_segment: str
    preferred_nof_segments: Sequence[str]
    prefer_alloc_in_same_node: bool
    data_type: ObjectDataType
    group_ids: Sequence[str] | None
    def __init__(self) -> None: ...

class BufferHandle(Buffer):
    """Bytes of an object in place, read-only; unchanged for as long as this lives."""

    def ptr(self) -> int: ...
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class MooncakeDistributedStore:
    """A client of the pool. Calls may be made from several threads at once.

    Integers below 0 are the reference's error codes; `last_error()` says why in words.
    """

    def __init__(self) -> None: ...
    @overload
    def setup(self, config: Mapping[str, Any]) -> int: ...
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
        engine: None = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
    ) -> int:
        """0, or a negative code. An earlier setup of this object is closed first."""
    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int: ...
    def close(self) -> int: ...
    def health_check(self) -> int:
        """0 healthy, 1 not set up or closed, 2 the master does not answer."""
    def get_hostname(self) -> str:
        """Name of this client and of its segment: "host:port"; "" when not set up."""
    def last_error(self) -> str:
        """Why the last call of this thread failed; "" when it did not."""
    def put(self, key: str | bytes, value: Buffer, config: ReplicateConfig | None = None) -> int:
        """0 when stored, or when the key is there already; an empty value is refused with -600."""
    def put_parts(self, key: str | bytes, *parts: Buffer, config: ReplicateConfig | None = None) -> int:
        """Stores the concatenation; 0 without storing when it is empty."""
    def put_batch(
        self, keys: Sequence[str | bytes], values: Sequence[Buffer], config: ReplicateConfig | None = None
    ) -> int:
        """0, or the first failure's code; of a key given twice the first value is stored."""
    def upsert(self, key: str | bytes, value: Buffer, config: ReplicateConfig | None = None) -> int:
        """As `put`, but replaces a value that is there; the old one is read until the new one is whole."""
    def upsert_parts(self, key: str | bytes, *parts: Buffer, config: ReplicateConfig | None = None) -> int: ...
    def upsert_batch(
        self, keys: Sequence[str | bytes], values: Sequence[Buffer], config: ReplicateConfig | None = None
    ) -> int: ...
    def upsert_from(
        self, key: str | bytes, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int: ...
    def batch_upsert_from(
        self,
        keys: Sequence[str | bytes],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]: ...
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
    def get_batch(self, keys: Sequence[str | bytes], /) -> list[bytes]: ...
    def get_buffer(self, key: str | bytes, /) -> BufferHandle | None: ...
    def batch_get_buffer(self, keys: Sequence[str | bytes], /) -> list[BufferHandle | None]: ...
    def is_exist(self, key: str | bytes, /) -> int:
        """1 or 0; protects what it found for a moment. 0 with a reason when the master does not answer."""
    def batch_is_exist(self, keys: Sequence[str | bytes]) -> list[int]: ...
    def get_size(self, key: str | bytes, /) -> int: ...
    def remove(self, key: str | bytes, force: bool = False) -> int: ...
    def remove_all(self, force: bool = False) -> int: ...
    def batch_remove(self, keys: Sequence[str | bytes], force: bool = False) -> list[int]: ...
    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Host memory, or memory of a CUDA device: addresses in a registered range are used without a question."""
    def unregister_buffer(self, buffer_ptr: int) -> int: ...
    def put_from(self, key: str | bytes, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int: ...
    def get_into(self, key: str | bytes, buffer_ptr: int, size: int) -> int:
        """Bytes read, or a negative code; -600 when the buffer is smaller than the object."""
    def batch_put_from(
        self,
        keys: Sequence[str | bytes],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]: ...
    def batch_get_into(
        self, keys: Sequence[str | bytes], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]: ...
    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str | bytes],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Stores the concatenation of each key's pieces."""
    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str | bytes],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]: ...
