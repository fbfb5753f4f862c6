"""The distributed store: objects by key, in the memory of many processes."""

from mooncake import _clash

_clash.refuse()

from mooncake._native import (  # noqa: E402  (after the check, which must come first)
    BufferHandle,
    MooncakeDistributedStore,
    ObjectDataType,
    ReplicateConfig,
    SoftPinAction,
)

__all__ = ["BufferHandle", "MooncakeDistributedStore", "ObjectDataType", "ReplicateConfig", "SoftPinAction"]
