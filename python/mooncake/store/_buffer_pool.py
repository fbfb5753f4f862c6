"""Registered memory by the piece: leased, given back, used again."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from typing import Any

from mooncake import _native

_PAGE = 4096
_ALLOCATOR = _native.MooncakeHostMemAllocator()


class BufferPool:
    """Buffers of registered memory for the zero-copy calls of a store.

    At most `max_bytes` are leased at a time (0: twice the store's local buffer;
    never less than the local buffer). Buffers that were given back are kept and
    leased again. All methods may be called from several threads.
    """

    def __init__(
        self,
        store: Any,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8 << 20,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ):
        local = _native._local_buffer_size(store)
        if not local:
            raise RuntimeError("BufferPool: the store is not set up, or has a local_buffer_size of 0")
        for name, value in (("max_bytes", max_bytes), ("min_size_class", min_size_class)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"BufferPool: {name}={value!r}: a number of bytes is needed")
        # Regions come in whole pages and grow by size classes, so that most can be used again. The size of the largest
        # class, of regions and their alignment were the reference's way to that.
        del max_size_class, alignment, max_regions, prewarm_size, prewarm_count
        self._store = store
        self._capacity = max(max_bytes, local) if max_bytes else 2 * local
        self._least = max(min_size_class, _PAGE)
        self._block = block_on_exhaustion
        self._timeout = default_timeout
        self._free: dict[int, list[int]] = {}
        self._owned = 0
        self._leased = 0
        self._active = 0
        self._closed = False
        self._changed = threading.Condition()

    def acquire(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """A buffer of `size` bytes, registered. RuntimeError when there is none (in time)."""
        if not isinstance(size, int):
            raise TypeError(f"size: an int is needed, not {type(size).__name__}")
        if size <= 0:
            raise RuntimeError(f"BufferPool: {size} is not a size of a buffer")
        region = self._class_of(size)
        if size > self._capacity:
            raise RuntimeError(f"buffer of {size} bytes exceeds the pool's capacity of {self._capacity} bytes")
        region = min(region, -(-self._capacity // _PAGE) * _PAGE)
        block = self._block if block is None else block
        timeout = self._timeout if timeout is None else timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                if self._leased == 0 or self._leased + region <= self._capacity:
                    return self._lease(size, region)
                if not block:
                    raise RuntimeError(
                        f"buffer pool is exhausted: {self._leased} of {self._capacity} bytes are leased, {size} wanted"
                    )
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError(f"timed out waiting for buffer of {size} bytes")
                # An endless wait could not be interrupted.
                self._changed.wait(0.5 if left is None else min(left, 0.5))

    buffer = acquire

    def prewarm(self, size: int, count: int) -> None:
        """Does nothing: buffers are made when they are first leased."""

    def close(self) -> None:
        """Gives all memory back. RuntimeError while buffers are leased."""
        with self._changed:
            if self._active:
                raise RuntimeError(f"buffer pool has {self._active} active leases; release them first")
            self._closed = True
            self._drop_free(0)
            self._changed.notify_all()

    def __enter__(self) -> BufferPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._active == 0:
            self.close()

    def _class_of(self, size: int) -> int:
        """Powers of two and the middles between them: at most a third is unused."""
        region = self._least
        while region < size:
            if size <= region + region // 2:
                region += region // 2
                break
            region *= 2
        return -(-region // _PAGE) * _PAGE

    def _lease(self, size: int, region: int) -> BufferLease:
        kept = self._free.get(region)
        if kept:
            address = kept.pop()
        else:
            # What is kept of other sizes makes room first.
            self._drop_free(max(self._capacity - region, 0))
            address = _ALLOCATOR.alloc(region)
            if self._store.register_buffer(address, region) != 0:
                _ALLOCATOR.free(address)
                raise RuntimeError(f"BufferPool: {region} bytes cannot be registered: {self._store.last_error()}")
            self._owned += region
        self._leased += region
        self._active += 1
        return BufferLease(self, address, size, region)

    def _give_back(self, address: int, region: int) -> None:
        with self._changed:
            self._leased -= region
            self._active -= 1
            self._free.setdefault(region, []).append(address)
            self._changed.notify()

    def _drop_free(self, most: int) -> None:
        """Frees kept buffers until at most so many bytes are owned, or none is kept."""
        for region, kept in self._free.items():
            while kept and self._owned > most:
                address = kept.pop()
                self._store.unregister_buffer(address)
                _ALLOCATOR.free(address)
                self._owned -= region


class BufferLease:
    """A buffer until `release`, or until the end of a `with`."""

    def __init__(self, pool: BufferPool, address: int, size: int, region: int):
        self._pool, self._address, self._size, self._region = pool, address, size, region
        self._memory: Any = None
        self._exports: memoryview | None = None

    @property
    def ptr(self) -> int:
        """Address of the first byte."""
        self._check()
        return self._address

    @property
    def size(self) -> int:
        """Bytes asked for."""
        return self._size

    @property
    def buffer(self) -> memoryview:
        """The bytes, writable. Views of it must be gone before the release."""
        self._check()
        if self._exports is None:
            if self._memory is None:
                self._memory = (ctypes.c_ubyte * self._size).from_address(self._address)
            self._exports = memoryview(self._memory).cast("B")
        return self._exports

    def release(self) -> None:
        """Gives the buffer back; again, it does nothing. RuntimeError while there are views of `buffer`."""
        if self._pool is None:
            return
        if self._exports is not None:
            try:
                self._exports.release()
            except BufferError as error:
                raise RuntimeError(f"buffer lease has exported views: {error}") from None
            self._exports = None
        # Views that are parts of it hold on to the memory's object; two references are ours.
        if self._memory is not None and sys.getrefcount(self._memory) > 2:
            raise RuntimeError("buffer lease has exported views of parts of it")
        self._memory = None
        pool, self._pool = self._pool, None
        pool._give_back(self._address, self._region)

    def __len__(self) -> int:
        return self._size

    def __enter__(self) -> BufferLease:
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        # A view that outlives its lease keeps the memory for good, rather than having it change under it.
        if getattr(self, "_pool", None) is not None:
            with contextlib.suppress(RuntimeError):
                self.release()

    def _check(self) -> None:
        if self._pool is None:
            raise RuntimeError("buffer lease was released")


#: What `buffer` gives.
BufferLeaseView = memoryview
RegisteredBufferPool, RegisteredBufferLease, RegisteredBufferLeaseView = BufferPool, BufferLease, BufferLeaseView
