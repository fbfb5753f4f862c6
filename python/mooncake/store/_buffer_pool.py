"""Registered memory by the piece: leased, given back, used again."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from numbers import Real
from typing import Any

from mooncake import _native

_PAGE = 4096
_ALLOCATOR = _native.MooncakeHostMemAllocator()


class BufferPool:
    """Buffers of registered memory for the zero-copy calls of a store.

    At most `max_bytes` are leased at a time (0: twice the store's local buffer;
    never less than the local buffer), in at most `max_regions` regions. Buffers
    that were given back are kept and leased again, but for those above
    `max_size_class`: these are leased as well, and count as the regions of that
    size that they would fill. All methods may be called from several threads.
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
        # A checked store wraps the one whose calls these are; the pool raises what fails by itself.
        store = getattr(store, "_store", store)
        local = _native._local_buffer_size(store)
        if not local:
            raise RuntimeError("BufferPool: the store is not set up, or has a local_buffer_size of 0")
        for name, value in (("max_bytes", max_bytes), ("min_size_class", min_size_class)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"BufferPool: {name}={value!r}: a number of bytes is needed")
        for name, value in (("max_size_class", max_size_class), ("max_regions", max_regions)):
            if value is not None and (not isinstance(value, int) or value <= 0):
                raise ValueError(f"BufferPool: {name}={value!r}: a positive number is needed, or None")
        if not isinstance(alignment, int) or not 8 <= alignment < 1 << 64 or alignment & (alignment - 1):
            raise RuntimeError(f"BufferPool: alignment={alignment!r} is no power of two from 8 to 2**63")
        timeout = _seconds("BufferPool: default_timeout", default_timeout)
        if timeout is not None and timeout < 0:
            raise ValueError(f"BufferPool: default_timeout={default_timeout!r}: seconds are needed, or None")
        # Buffers begin at a page, whatever the alignment, and are made when they are first leased.
        del prewarm_size, prewarm_count
        self._store = store
        self._capacity = max(max_bytes, local) if max_bytes else 2 * local
        self._least = _whole_pages(max(min_size_class, _PAGE))
        self._most_regions = max_regions
        self._largest = None if max_size_class is None else max(_whole_pages(max_size_class), self._least)
        self._block = block_on_exhaustion
        self._timeout = timeout
        self._free: dict[int, list[int]] = {}
        self._owned = 0
        self._leased = 0
        self._regions = 0
        self._active = 0
        self._closed = False
        self._changed = threading.Condition()

    def acquire(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """A buffer of `size` bytes, registered. RuntimeError when there is none, or none within `timeout` seconds."""
        if not isinstance(size, int):
            raise TypeError(f"size: an int is needed, not {type(size).__name__}")
        if size < 0:
            raise RuntimeError(f"BufferPool: {size} is not a size of a buffer")
        timeout = self._timeout if timeout is None else _seconds("timeout", timeout)
        if size > self._capacity:
            raise RuntimeError(f"buffer of {size} bytes exceeds the pool's capacity of {self._capacity} bytes")
        region = min(self._class_of(size), _whole_pages(self._capacity))
        regions = self._regions_of(region)
        if self._most_regions is not None and regions > self._most_regions:
            raise RuntimeError(
                f"buffer of {size} bytes exceeds the pool's capacity of {self._most_regions} regions of "
                f"{self._largest} bytes"
            )
        block = self._block if block is None else block
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                room = self._leased == 0 or self._leased + region <= self._capacity
                if room and (self._most_regions is None or self._regions + regions <= self._most_regions):
                    return self._lease(size, region)
                if not block:
                    raise RuntimeError(f"buffer pool is exhausted: {self._state()}, {size} bytes wanted")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError(f"timed out waiting for buffer of {size} bytes: {self._state()}")
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
        """Powers of two and the middles between them: at most a third is unused. Above the largest, whole pages."""
        if self._largest is not None and size > self._largest:
            return _whole_pages(size)
        region = self._least
        while region < size:
            if size <= region + region // 2:
                region += region // 2
                break
            region *= 2
        region = _whole_pages(region)
        return region if self._largest is None else min(region, self._largest)

    def _regions_of(self, region: int) -> int:
        return 1 if self._largest is None else -(-region // self._largest)

    def _state(self) -> str:
        regions = "" if self._most_regions is None else f" and {self._regions} of {self._most_regions} regions"
        return f"{self._leased} of {self._capacity} bytes{regions} are leased"

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
        self._regions += self._regions_of(region)
        self._active += 1
        return BufferLease(self, address, size, region)

    def _give_back(self, address: int, region: int) -> None:
        with self._changed:
            self._leased -= region
            self._regions -= self._regions_of(region)
            self._active -= 1
            if self._largest is None or region <= self._largest:
                self._free.setdefault(region, []).append(address)
            else:
                self._free_region(address, region)
            # What came back may be enough for several who wait, and not for the first of them.
            self._changed.notify_all()

    def _drop_free(self, most: int) -> None:
        """Frees kept buffers until at most so many bytes are owned, or none is kept."""
        for region, kept in self._free.items():
            while kept and self._owned > most:
                self._free_region(kept.pop(), region)

    def _free_region(self, address: int, region: int) -> None:
        self._store.unregister_buffer(address)
        _ALLOCATOR.free(address)
        self._owned -= region


def _seconds(name: str, given: Any) -> float | None:
    """A time that can be waited for, or None for no end; negative is what is left of a time that is over."""
    if given is None:
        return None
    if not isinstance(given, Real):
        raise TypeError(f"{name}={given!r}: seconds are needed, or None, not {type(given).__name__}")
    if given != given:
        raise ValueError(f"{name}={given!r}: seconds are needed, or None")
    # Longer than a clock goes is no end, too.
    return None if given > threading.TIMEOUT_MAX else float(given)


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


class BufferLease:
    """A buffer until `release`, or until the end of a `with`."""

    def __init__(self, pool: BufferPool, address: int, size: int, region: int):
        self._pool, self._address, self._size, self._region = pool, address, size, region
        self._memory: Any = None

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
        if self._size == 0:
            return memoryview(bytearray())
        if self._memory is None:
            self._memory = (ctypes.c_ubyte * self._size).from_address(self._address)
        return memoryview(self._memory).cast("B")

    def release(self) -> None:
        """Gives the buffer back; again, it does nothing. RuntimeError while there are views of `buffer`."""
        if self._pool is None:
            return
        # Every view, and every part of one, holds on to the memory's object; two references are ours.
        if self._memory is not None and sys.getrefcount(self._memory) > 2:
            raise RuntimeError("buffer lease has exported views; drop or release them first")
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
