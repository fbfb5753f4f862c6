"""Calls as users of a type checker write them: mypy accepts them, and refuses just the lines marked `# refused`."""

from __future__ import annotations

import asyncio

import mooncake
from mooncake import BufferPool
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.errors import checked
from mooncake.store import BufferHandle, MooncakeDistributedStore

version: str = mooncake.__version__


def plain(store: MooncakeDistributedStore) -> None:
    code: int = store.put("k", b"v")
    store.put("k", 5)  # refused
    view: BufferHandle = store.get_buffer("k")  # refused
    raising = checked(store)
    found: BufferHandle = raising.get_buffer("k")
    raising.put("k", 5)  # refused
    pool = BufferPool(raising)
    address: int = pool.acquire(4096).ptr
    print(code, view, found, address)


async def later(store: MooncakeDistributedStoreAsync) -> None:
    await store.async_put("k", 5)  # refused
    await store.async_batch_put_session_start(["a"], 5)  # refused
    started: list[int] = await store.async_batch_put_session_start(["a"], [5])
    view: BufferHandle = await store.async_get_buffer("k")  # refused
    raising = checked(store)
    found: BufferHandle = await raising.async_get_buffer("k")
    await raising.async_put("k", 5)  # refused
    async with store as same:
        print(started, view, found, await same.async_put("k", b"v"))


asyncio.run(later(MooncakeDistributedStoreAsync(threads=2)))
