"""Coroutines: the store for asyncio. Calls that wait together become one batch, and no call blocks the event loop.

This file is not called asyncio.py: Python would then import it instead of its own module.
"""

from __future__ import annotations

import argparse
import asyncio
import os

from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.errors import NotFound, checked

PAGES = 1000
KEYS = [f"examples/coroutines/{number}" for number in range(PAGES)]


async def compute(page: bytes) -> int:
    """The work of an engine on one page."""
    await asyncio.sleep(0.001)
    return len(page)


async def run(master: str) -> None:
    # connect() is no coroutine: it waits for the master. Call it before the loop has other work.
    store = MooncakeDistributedStoreAsync.connect(master, global_segment_size=64 << 20)

    # checked() raises an exception where the plain store returns a negative code, or b"" for a miss.
    async with checked(store) as pool:
        # Make one call per object. The store joins those that wait into few requests of many keys, so there is no need
        # to collect keys for put_batch.
        await asyncio.gather(*(pool.async_put(key, b"page %d" % number) for number, key in enumerate(KEYS)))
        pages = await asyncio.gather(*(pool.async_get(key) for key in KEYS))
        print(f"{len(pages)} pages, the last one is {pages[-1]!r}")

        # Read ahead: the next page loads while the engine computes this one.
        computed = 0
        loading = asyncio.create_task(pool.async_get(KEYS[0]))
        for following in [*KEYS[1:10], None]:
            page = await loading
            if following is not None:
                loading = asyncio.create_task(pool.async_get(following))
            computed += await compute(page)
        print(f"read ahead: {computed} bytes of 10 pages computed")

        # A pool is a cache, so every read may miss. With return_exceptions a miss does not hide the other results.
        await pool.async_remove(KEYS[0])
        found = await asyncio.gather(*(pool.async_get(key) for key in KEYS[:3]), return_exceptions=True)
        print(f"after a removal: {['a miss' if isinstance(one, NotFound) else one for one in found]}")

        # Every call has a deadline of its own; asyncio sets a shorter one by cancelling the call. A cancelled
        # async_put_from or async_get_into ends once nothing touches your memory any more.
        async with asyncio.timeout(5):
            there = await pool.async_batch_is_exist(KEYS)
        print(f"{sum(there)} of {PAGES} are there")

        # Every method has a coroutine: async_ and its name. By force: a look-up protects an object for 2 s.
        removed = await pool.async_batch_remove(KEYS[1:], force=True)
        print(f"{len(removed)} removed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", default=os.environ.get("MOONCAKE_MASTER", "127.0.0.1:50051"))
    asyncio.run(run(parser.parse_args().master))


if __name__ == "__main__":
    main()
