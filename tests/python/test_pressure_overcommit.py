"""A pool of 1 GiB takes 3 GiB: no put fails, whatever the sizes, looked up before or not, and without retries."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from contents import version_of

pytestmark = [pytest.mark.timeout(90), pytest.mark.slow]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
POOL, PUT = GIB, 3 * GIB


def sizes(kind: str, seed: int) -> list[int]:
    """Sizes that add up to 3 GiB."""
    if kind != "mixed":
        return [int(kind) * MIB] * (PUT // (int(kind) * MIB))
    dice, chosen, left = random.Random(seed), [], PUT
    while left > 0:
        # Evenly spread over the powers of two, so that small and large ones mix.
        size = min(int(4 * KIB * 2 ** dice.uniform(0, 12)) // 16 * 16, 16 * MIB, max(left, 4 * KIB))
        chosen.append(size)
        left -= size
    return chosen


@pytest.mark.parametrize("looked_up", [False, True], ids=["", "each looked up just before"])
@pytest.mark.parametrize("kind", ["1", "16", "mixed"])
def test_no_put_fails(cluster, kind, looked_up, seed):
    pool = cluster(node_bytes=POOL)
    store = pool.store()
    # A word of each page is rewritten for each object: making 3 GiB of new bytes would take longer than putting them.
    buffer = np.random.default_rng(seed).integers(0, 1 << 64, 16 * MIB // 8, dtype=np.uint64)
    assert store.register_buffer(buffer.ctypes.data, buffer.nbytes) == 0
    failed, longest = [], 0.0
    plan = sizes(kind, seed)
    begin = time.monotonic()
    for number, size in enumerate(plan):
        buffer[: size // 8 : 512] = number
        start = time.monotonic()
        code = store.put_from(f"k{number}", buffer.ctypes.data, size)
        longest = max(longest, time.monotonic() - start)
        if code != 0:
            failed.append((number, code, store.last_error()))
        elif looked_up:
            assert store.is_exist(f"k{number}") == 1
    print(f"{len(plan)} puts of {sum(plan) / GIB:.1f} GiB in {time.monotonic() - begin:.1f} s, longest {longest:.2f} s")
    assert not failed, f"{len(failed)} of {len(plan)} failed, the first: {failed[0]}"
    assert longest < 2.5

    # The pool is full of the newest objects, and they are right.
    present = [n for n in range(len(plan)) if store.is_exist(f"k{n}") == 1]
    assert len(plan) - 1 in present
    assert sum(plan[n] for n in present) > POOL * 0.8
    checked = np.empty(16 * MIB // 8, dtype=np.uint64)
    for number in present[:: max(1, len(present) // 40)]:
        size = plan[number]
        assert store.get_into(f"k{number}", checked.ctypes.data, size) == size, store.last_error()
        buffer[: size // 8 : 512] = number
        assert np.array_equal(checked[: size // 8], buffer[: size // 8])
    assert store.unregister_buffer(buffer.ctypes.data) == 0


def test_two_writers_overcommit_together(cluster):
    pool = cluster(nodes=2, node_bytes=64 * MIB)
    writers = [pool.process(), pool.process()]
    source = """
from contents import value
result = [store.put(f'{who}{n}', value(f'{who}{n}', 1 << 20)) for n in range(200)]
"""
    pending = [one.start("run", source, who=who) for one, who in zip(writers, "ab", strict=True)]
    for one in pending:
        assert set(one.result(timeout=60)) == {0}
    store = pool.store()
    kept = [f"{who}{n}" for who in "ab" for n in range(200) if store.is_exist(f"{who}{n}") == 1]
    assert len(kept) > 90
    for key in kept[::7]:
        got = store.get(key)
        assert not got or version_of(key, got) == 0
