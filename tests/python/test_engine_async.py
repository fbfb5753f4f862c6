"""Batches as awaitables: no thread for each, no bytes lost when nobody waits any more."""

from __future__ import annotations

import pytest
from engine_process import EngineProcess

pytestmark = pytest.mark.timeout(60)

PRELUDE = """
import asyncio
async def batches(count, size):
    return [engine.transfer_submit_write(name, here + at * size, there + at * size, size) for at in range(count)]
"""


@pytest.fixture(params=[{}, {"MC_SHM": "0"}], ids=["same host", "tcp"])
def pair(request):
    made = [EngineProcess(env=request.param), EngineProcess(env=request.param)]
    one, two = made
    one.begin()
    yield one, two, two.begin()
    for engine in made:
        engine.kill()


def test_many_batches_are_awaited_at_once_without_threads_for_them(pair):
    one, two, name = pair
    count, size = 500, 4096
    here, there = one.buffer(count * size), two.buffer(count * size)
    one.write(here, 1, count * size)
    source = """
async def main():
    ids = await batches(count, size)
    before = threading.active_count()
    waits = [asyncio.ensure_future(engine.wait_async(batch)) for batch in ids]
    await asyncio.sleep(0)
    most = threading.active_count() - before
    return [sorted(set(await asyncio.gather(*waits))), most, await engine.wait_async(ids[0]), engine.last_error()]
result = asyncio.run(main())
"""
    codes, threads, again, why = one.run(PRELUDE + source, name=name, here=here, there=there, count=count, size=size)
    assert (codes, threads, again) == ([0], 0, -1)
    assert "batch" in why
    assert two.holds(there, 1, count * size)


def test_failures_timeouts_and_batches_that_are_none_have_the_codes_of_wait(pair):
    one, _two, name = pair
    here = one.buffer(4096)
    source = """
async def main():
    failed = engine.transfer_submit_write(name, here, 1 << 40, 10)
    return [await engine.wait_async(failed), await engine.wait_async(failed), await engine.wait_async(0, timeout=1)]
result = asyncio.run(main())
"""
    assert one.run(PRELUDE + source, name=name, here=here) == [-1, -1, -1]


def test_a_wait_that_is_cancelled_or_over_leaves_the_batch_to_be_waited_for_again():
    one, two = EngineProcess(env={"MC_SHM": "0"}), EngineProcess(env={"MC_SHM": "0"})
    try:
        one.begin()
        name = two.begin()
        size = 32 << 20
        here, there = one.buffer(size), two.buffer(size)
        one.write(here, 1, size)
        assert one.call("transfer_sync_write", name, here, there, 1) == 0
        two.freeze()
        source = """
async def main():
    [batch] = await batches(1, size)
    over = await engine.wait_async(batch, timeout=0.05)
    wait = asyncio.ensure_future(engine.wait_async(batch))
    await asyncio.sleep(0.05)
    wait.cancel()
    try:
        await wait
        return "not cancelled"
    except asyncio.CancelledError:
        pass
    early = engine.transfer_check_status(batch)
    # A loop that has ended meanwhile is not told, and nothing breaks.
    return batch, over, early
async def again():
    return await engine.wait_async(batch, 20)
batch, over, early = asyncio.run(main())
async def leave():
    asyncio.ensure_future(engine.wait_async(batch))
    await asyncio.sleep(0.01)
asyncio.run(leave())
os.kill(pid, 18)
result = over, early, asyncio.run(again())
"""
        given = {"name": name, "here": here, "there": there, "size": size, "pid": two.process.pid}
        assert one.run(PRELUDE + source, **given) == [-2, 0, 0]
        assert two.holds(there, 1, size)
    finally:
        two.thaw()
        one.kill()
        two.kill()


def test_closing_the_engine_ends_what_is_awaited(pair):
    one, two, name = pair
    here, there = one.buffer(64 << 20), two.buffer(64 << 20)
    source = """
async def main():
    ids = await batches(8, 8 << 20)
    waits = [asyncio.ensure_future(engine.wait_async(batch)) for batch in ids]
    await asyncio.sleep(0)
    engine.close()
    return await asyncio.wait_for(asyncio.gather(*waits), 10)
codes = asyncio.run(main())
result = set(codes) <= {0, -1}
"""
    assert one.run(PRELUDE + source, name=name, here=here, there=there)
