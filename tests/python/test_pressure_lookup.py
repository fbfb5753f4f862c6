"""A load that follows its look-up within a second does not miss, whatever others put meanwhile."""

from __future__ import annotations

import time

import pytest
from contents import value, version_of

pytestmark = pytest.mark.timeout(60)

MIB = 1 << 20
FULL_SPEED = """
import time
from contents import value
data, number, codes = value("other", 1 << 20), 0, set()
served.fill(data)
end = time.monotonic() + seconds
# More than the pool holds, however slow the machine is.
while time.monotonic() < end or (number <= 700 and time.monotonic() < end + 15):
    codes.add(store.put_from(f"other{number}", place, 1 << 20)); number += 1
result = number, sorted(codes)
"""


def test_a_quarter_of_the_pool_looked_up_is_still_there_a_second_later(cluster):
    pool = cluster(node_bytes=512 * MIB)
    loader, other = pool.process(), pool.process()
    place = other.call("arena", MIB)
    store = pool.store()
    for turn in range(2):
        keys = [f"turn{turn}-{number}" for number in range(128)]
        for key in keys:
            assert store.put(key, value(key, MIB)) == 0, store.last_error()
        pending = other.start("run", FULL_SPEED, place=place, seconds=2.5)
        # The writer must not have evicted them before they are looked up: that would be nobody's failure.
        found = loader.call("batch_is_exist", keys)
        looked_up = time.monotonic()
        assert found.count(1) > 100, "the other client was faster than the look-up"
        time.sleep(max(0.0, looked_up + 0.95 - time.monotonic()))
        wanted = [key for key, code in zip(keys, found, strict=True) if code == 1]
        got = loader.call("get_batch", wanted)
        misses = [key for key, data in zip(wanted, got, strict=True) if version_of(key, data) != 0]
        assert not misses, f"{len(misses)} of {len(wanted)} loads missed: {loader.call('last_error')}"
        number, codes = pending.result(timeout=20)
        assert codes == [0]
        assert number > 700, "the other client did not put the pool under pressure"
