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
