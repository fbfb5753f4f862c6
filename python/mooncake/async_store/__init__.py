"""The store for asyncio: ``async_NAME`` for every method of the store.

Thousands of calls may be in flight. A few threads carry them out, and calls of
the same kind that wait at the same time become one batch, so that many small
calls cost little more than one large one. Results come back to the event loop
with one wake-up for all that is ready.

A call that is cancelled before a thread has taken it is never made. One that runs
is interrupted; if it works on memory of yours (puts of anything but ``bytes``,
tensors, the calls by address), its cancellation ends only when nothing touches
that memory any more: a put stores what was there before, or nothing. Lists and
configs are read when the call is made. ``last_error()`` after an ``await`` is
that call's; ``close()`` lets calls that no thread has taken yet fail with a
``RuntimeError``.
"""

from __future__ import annotations

from mooncake.async_store._calls import MooncakeDistributedStoreAsync

__all__ = ["MooncakeDistributedStoreAsync"]
