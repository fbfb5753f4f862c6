"""The store for asyncio: ``async_NAME`` for every method of the store.

Thousands of calls may be in flight. A few threads carry them out, and calls of
the same kind that wait at the same time become one batch, so that many small
calls cost little more than one large one. Results come back to the event loop
with one wake-up for all that is ready.

A call that is cancelled before a thread has taken it is never made. One that
works on memory of yours (``async_put_from``, ``async_get_into`` and their batch
forms) ends its cancellation only when nothing touches that memory any more;
the others end at once, and whatever they were doing goes on or fails by itself.
"""

from __future__ import annotations

from mooncake.async_store._calls import MooncakeDistributedStoreAsync

__all__ = ["MooncakeDistributedStoreAsync"]
