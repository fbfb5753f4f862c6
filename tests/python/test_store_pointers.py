"""A pointer that is not memory of the caller is an answer, never a signal."""

from __future__ import annotations

import pytest

# Each runs in a process of its own: a signal must not take the test run with it.
WILD = {
    "null": "(0, 4096)",
    "first page": "(8, 4096)",
    "kernel": "(0xFFFF_8000_0000_0000, 4096)",
    "not canonical": "(0x8000_0000_0000_0000, 4096)",
    "device-like": "(0x7F12_3400_0000 | 1 << 60, 1 << 20)",
    "wraps around": "((1 << 64) - 4096, 8192)",
    "larger than memory": "(addressof(data), 1 << 62)",
    "unmapped": "(unmapped(), 4096)",
    "mapped, then unmapped": "(half_unmapped(), 8192)",
    "no access": "(no_access(), 4096)",
}

PRELUDE = """
import ctypes, mmap
from ctypes import addressof
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
data = ctypes.create_string_buffer(8192)
def pages(n, prot=3):
    return libc.mmap(None, n * 4096, prot, 0x22, -1, 0)
def unmapped():
    at = pages(1); libc.munmap(at, 4096); return at
def half_unmapped():
    at = pages(2); libc.munmap(at + 4096, 4096); return at
def no_access():
    return pages(1, 0)
def read_only():
    return pages(1, 1)
"""


@pytest.fixture(scope="module")
def victim(shared_cluster):
    peer = shared_cluster.process()
    yield peer
    peer.kill()


@pytest.mark.parametrize("name", WILD)
def test_wild_pointers_are_refused(victim, name):
    result = victim.call(
        "run",
        PRELUDE
        + f"""
at, size = {WILD[name]}
assert store.put('large', b'v' * 8192) == 0
result = dict(
    put=store.put_from('wild', at, size), reason=store.last_error(),
    batch=store.batch_put_from(['wild', 'good'], [at, addressof(data)], [size, 64]),
    multi=store.batch_put_from_multi_buffers(['wild'], [[addressof(data), at]], [[64, size]]),
    get=store.get_into('large', at, size),
    register=store.register_buffer(at, size),
    exists=store.batch_is_exist(['wild', 'good']))
store.remove_all(True)
""",
    )
    assert result["put"] in (-600, -200), result
    assert result["reason"]
    assert result["batch"][0] in (-600, -200)
    assert result["batch"][1] == 0
    assert result["multi"][0] in (-600, -200)
    if name != "larger than memory":  # the buffer is larger than the object, and the object fits into what is there
        assert result["get"] == -600
    assert result["register"] == -600
    assert result["exists"] == [0, 1]


def test_a_registered_buffer_that_was_freed_is_refused(victim):
    result = victim.call(
        "run",
        PRELUDE
        + """
at = pages(2)
assert store.register_buffer(at, 8192) == 0
ctypes.memset(at, 65, 8192)
assert store.put_from('before', at, 8192) == 0
libc.munmap(at, 8192)
result = [store.put_from('freed', at, 8192), store.last_error(), store.get_into('before', at, 8192),
          store.unregister_buffer(at), store.get('before') == b'A' * 8192]
store.remove_all(True)
""",
    )
    assert result[0] == -600
    assert result[1]
    assert result[2] == -600
    assert result[3:] == [0, True]


def test_reading_into_read_only_memory_is_refused(victim):
    result = victim.call(
        "run",
        PRELUDE
        + """
at = read_only()
assert store.put('k', b'v' * 4096) == 0
result = [store.get_into('k', at, 4096), store.last_error(), store.put_from('zeros', at, 4096)]
assert store.register_buffer(at, 4096) == 0
result += [store.get_into('k', at, 4096), store.put_from('zeros again', at, 4096), store.unregister_buffer(at)]
store.remove_all(True)
""",
    )
    assert result[0] == -600
    assert result[1]
    assert result[2:] == [0, -600, 0, 0]


def test_a_failed_put_leaves_the_key_free(victim):
    result = victim.call(
        "run",
        PRELUDE
        + """
result = [store.put_from('k', unmapped(), 1 << 20), store.put('k', b'fine'), store.get('k')]
store.remove_all(True)
""",
    )
    assert result == [-600, 0, b"fine"]


def test_sizes_that_add_up_to_more_than_can_be_counted_are_a_wrong_argument(store):
    for sizes in [(2**64 - 1, 1), (2**63, 2**63)]:
        assert store.put_from_with_metadata("k", 4096, 4096, *sizes) == -600
        assert "add up" in store.last_error()
        assert store.batch_put_from_multi_buffers(["k"], [[4096, 4096]], [list(sizes)]) == [-600]
    assert store.is_exist("k") == 0


# Two pages, of which the first is registered; `canary` is what nobody may touch. The object has one page.
REGISTERED = (
    PRELUDE
    + """
at = pages(2)
ctypes.memset(at, 0xCC, 8192)
assert store.put('page', b'v' * 4096) == 0 and store.put('four', b'v' * 4) == 0
assert store.register_buffer(at, 4096) == 0
def canary():
    return ctypes.string_at(at, 8192) == b'\\xcc' * 8192
def ended(got):
    assert store.unregister_buffer(at) == 0
    store.remove_all(True)
    return got
"""
)

# What runs out of the buffer by four bytes, or by as many as no address space has, and what each call says of it.
RUNS_OUT = {
    "get_into": ("store.get_into('page', at + 4, 4096)", -600),
    "get_into, of a smaller object": ("store.get_into('four', at, 4100)", -600),
    "get_into, around": ("store.get_into('page', at, 2**64 - 1)", -600),
    "put_from": ("store.put_from('new', at + 4, 4096)", -600),
    "put_from, around": ("store.put_from('new', at + 4095, 2**64 - 2)", -600),
    "upsert_from": ("store.upsert_from('page', at + 4, 4096)", -600),
    "batch_put_from": ("store.batch_put_from(['new', 'good'], [at + 4, at], [4096, 8])", [-600, 0]),
    "batch_upsert_from": ("store.batch_upsert_from(['page', 'good'], [at + 4, at], [4096, 8])", [-600, 0]),
    "batch_get_into": ("store.batch_get_into(['page'] * 2, [at + 4, at + 4095], [4096, 2])", [-600, -600]),
    "put_from_with_metadata": ("store.put_from_with_metadata('new', at, at + 4092, 64, 8)", -600),
    "put_from_with_metadata, the data": ("store.put_from_with_metadata('new', at + 4, at, 4096, 8)", -600),
    "put, multi-buffers": (
        "store.batch_put_from_multi_buffers(['new', 'good'], [[at, at + 4092], [at]], [[64, 8], [64]])",
        [-600, 0],
    ),
    "get, multi-buffers": (
        "store.batch_get_into_multi_buffers(['page'], [[at, at + 2052]], [[2048, 2048]])",
        [-600],
    ),
    "get_into_ranges": (
        "store.get_into_ranges([at], [['page', 'page']], [[[4, 4095], [4092]]], [[[0, 0], [0]]], [[[4096, 2], [8]]])",
        [[[-600, -600], [-600]]],
    ),
    "get_into_ranges, around": (
        "store.get_into_ranges([at], [['page']], [[[1]]], [[[0]]], [[[2**64 - 1]]])",
        [[[-600]]],
    ),
}


@pytest.mark.parametrize("name", RUNS_OUT)
def test_what_runs_out_of_a_registered_buffer_is_refused_before_a_byte_moves(victim, name):
    call, wanted = RUNS_OUT[name]
    got, reason, whole, page, new = victim.call(
        "run",
        REGISTERED
        + f"""
got = {call}
reason = store.last_error()
result = ended((got, reason, canary(), store.get('page') == b'v' * 4096, store.is_exist('new')))
""",
    )
    assert got == wanted
    assert "registered range of 4096 bytes" in reason, reason
    assert whole, "written"
    assert page
    assert new == 0


def test_of_a_call_for_several_only_what_runs_out_is_refused(victim):
    got, middle, behind = victim.call(
        "run",
        REGISTERED
        + """
got = [
    store.batch_get_into(['four', 'page', 'four', 'missing'], [at, at + 4, at + 4092, at], [4, 4096, 4, 4]),
    store.get_into_ranges([at], [['page', 'missing']], [[[8, 4090, 16], [0]]], [[[0, 0, 0], [0]]], [[[4, 8, 4], [4]]]),
    store.batch_get_into_multi_buffers(['four', 'four'], [[at + 24, at + 4095], [at + 32, at + 40]], [[2, 2], [2, 2]]),
]
memory = ctypes.string_at(at, 8192)
rest = bytearray(memory)
for first, count in [(0, 4), (4092, 4), (8, 4), (16, 4), (32, 2), (40, 2)]:
    assert rest[first:first + count] == b'v' * count, first
    rest[first:first + count] = b'\\xcc' * count
result = ended((got, bytes(rest[:4096]) == b'\\xcc' * 4096, memory[4096:] == b'\\xcc' * 4096))
""",
    )
    assert got == [[4, -600, 4, -704], [[[4, -600, 4], [-704]]], [-600, 4]]
    assert middle
    assert behind


def test_buffers_that_touch_or_overlap_are_one(victim):
    result = victim.call(
        "run",
        REGISTERED
        + """
assert store.register_buffer(at + 4096, 2048) == 0 and store.register_buffer(at + 4000, 3000) == 0
got = [store.get_into('page', at + 2900, 4096), store.put_from('new', at, 6996),
       store.get_into('page', at + 2905, 4096), ctypes.string_at(at + 6996, 1196) == b'\\xcc' * 1196]
for start in (at + 4096, at + 4000):
    assert store.unregister_buffer(start) == 0
# Memory that begins outside of all has no end that anybody knows of.
got += [store.get_into('page', at + 4096, 4096), store.put_from('outside', at + 4096, 4096)]
result = ended(got)
""",
    )
    assert result == [4096, 0, -600, True, 4096, 0]


def test_what_was_unregistered_is_memory_as_any_other(victim):
    result = victim.call(
        "run",
        REGISTERED
        + """
refused = store.get_into('page', at + 4, 4096)
assert store.unregister_buffer(at) == 0
got = (refused, store.get_into('page', at + 4, 4096), store.put_from('new', at + 4, 4096),
       store.get('new') == b'v' * 4096)
store.remove_all(True)
result = got
""",
    )
    assert result == (-600, 4096, 0, True)
