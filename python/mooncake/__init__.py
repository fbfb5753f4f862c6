"""Mooncake: a distributed KV-cache pool for LLM inference.

``mooncake.store`` has the store, ``mooncake.engine`` the transfer engine; ``mooncake_master``
and ``mooncake_client`` are the commands. Importing does nothing but look for a distribution
of Mooncake itself, whose files would be mixed with ours.
"""

from typing import TYPE_CHECKING

from mooncake import _clash

_clash.refuse()

if TYPE_CHECKING:
    from mooncake.buffer_pool import (
        BufferLease,
        BufferLeaseView,
        BufferPool,
        RegisteredBufferLease,
        RegisteredBufferLeaseView,
        RegisteredBufferPool,
    )

    __version__: str

__all__ = [
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from mooncake import _native

        return _native.__version__
    if name in __all__:
        from mooncake import buffer_pool

        return getattr(buffer_pool, name)
    raise AttributeError(f"module 'mooncake' has no attribute {name!r}")
