"""The engine, with what is easier said in Python."""

from __future__ import annotations

import contextlib

from mooncake import _native
from mooncake.engine._opcode import TransferOpcode


class TransferEngine(_native.TransferEngine):
    """One engine: a segment of registered memory, and transfers to and from those of peers."""

    TransferOpcode = TransferOpcode

    def __enter__(self) -> TransferEngine:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    async def wait_async(self, batch_id: int, timeout: float | None = None) -> int:
        """As ``wait``, for an event loop. A wait that is cancelled leaves the batch: it can be waited for again."""
        import asyncio

        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def end() -> None:
            if not done.done():
                done.set_result(None)

        def tell() -> None:
            # A loop that was closed meanwhile has nobody who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(end)

        number = self._when_done(batch_id, tell)
        if number < 0:
            return number
        try:
            async with asyncio.timeout(timeout):
                await done
        except TimeoutError:
            return -2
        finally:
            self._forget(batch_id, number)
        return self.wait(batch_id, 0)
