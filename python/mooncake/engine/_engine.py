"""The engine, with what is easier said in Python."""

from __future__ import annotations

import contextlib
import json

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

    def show_links(self, json: bool = False) -> str:
        """How bytes go to each peer and why, what has gone, and which network devices are near which memory."""
        peers = self._links()
        if json:
            # No network device is opened for itself: TCP goes by whatever the system routes it.
            return _json({"local_nics": [], "topology": _parsed(self.get_local_topology()), "peers": peers})
        lines = [f"{self.get_local_server_name() or 'not initialized'}: {len(peers)} peers"]
        for link in peers:
            reason = f" ({link['reason']})" if link["reason"] else ""
            gone = f"{link['bytes']} bytes in {link['requests']} requests, {link['failed']} calls failed"
            lines.append(f"  {link['peer']}: {link['path']}{reason}; {gone}")
        return "\n".join(lines)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True)


def _parsed(text: str) -> object:
    return json.loads(text)
