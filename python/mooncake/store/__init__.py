"""The distributed store: objects by key, in the memory of many processes."""

from mooncake import _clash

_clash.refuse()

from mooncake._native import (  # noqa: E402  (after the check, which must come first)
    BufferHandle,
    MooncakeHostMemAllocator,
    ObjectDataType,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
    TaskStatus,
    TaskType,
    get_alloc_func_addr,
    get_free_func_addr,
)
from mooncake.store._buffer_pool import (  # noqa: E402
    BufferLease,
    BufferLeaseView,
    BufferPool,
    RegisteredBufferLease,
    RegisteredBufferLeaseView,
    RegisteredBufferPool,
)
from mooncake.store._numa import bind_to_numa_node  # noqa: E402
from mooncake.store._parallelism import ParallelAxis, ReadTarget, TensorParallelism  # noqa: E402
from mooncake.store._placement import (  # noqa: E402
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    ReplicaDescriptor,
)
from mooncake.store._store import (  # noqa: E402
    MooncakeDistributedStore,
    _deserialize_tensor,  # noqa: F401
    _get_pyclient_from_wrapper,  # noqa: F401
    _serialize_tensor,  # noqa: F401
    _tensor_metadata_size,  # noqa: F401
)

# The members by themselves, as Mooncake exports them: of two with the same name the later one.
UNKNOWN, KVCACHE, TENSOR = ObjectDataType.UNKNOWN, ObjectDataType.KVCACHE, ObjectDataType.TENSOR
WEIGHT, SAMPLE, ACTIVATION = ObjectDataType.WEIGHT, ObjectDataType.SAMPLE, ObjectDataType.ACTIVATION
GRADIENT, OPTIMIZER_STATE = ObjectDataType.GRADIENT, ObjectDataType.OPTIMIZER_STATE
METADATA, GENERAL = ObjectDataType.METADATA, ObjectDataType.GENERAL
UNDEFINED, INITIALIZED = ReplicaStatus.UNDEFINED, ReplicaStatus.INITIALIZED
COMPLETE, REMOVED = ReplicaStatus.COMPLETE, ReplicaStatus.REMOVED
REPLICA_COPY, REPLICA_MOVE = TaskType.REPLICA_COPY, TaskType.REPLICA_MOVE
PENDING, PROCESSING = TaskStatus.PENDING, TaskStatus.PROCESSING
FAILED, SUCCESS = TaskStatus.FAILED, TaskStatus.SUCCESS

__all__ = [
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
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
