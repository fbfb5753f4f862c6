"""What engines call, recorded from them (`e2e/record.py`) and made again without them: every answer, every byte.

`vllm_ascend_layers` alone is not recorded: vllm-ascend runs on NPUs only, and its calls are written down from what its
source does for two chunks of a prompt, a request that is aborted and a block that never got its last layer.

Mooncake 0.3.13.post1, asked the same, gave the same answers to all but `sglang_standalone`, `sglang_linker` and
`vllm_ascend_layers`, which were not tried; LMCache's `setup` needs the key `master_server_addr` there.
"""

from __future__ import annotations

import ctypes
import json
import mmap
from pathlib import Path

import numpy as np
import pytest

from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator, ReplicateConfig
from pool import free_port, wait_for

RECORDED = sorted((Path(__file__).parent / "engine_calls").glob("*.jsonl"))
PUTS = {"put_from", "batch_put_from", "batch_put_from_multi_buffers"}
GETS = {"get_into", "batch_get_into", "batch_get_into_multi_buffers"}
PARTS = {"batch_get_into_multi_buffer_ranges"}
PUT_PARTS = {"batch_put_from_multi_buffer_ranges"}


# Bytes of a memory that an engine names without having it registered.
UNREGISTERED = 64 << 10


class Replay:
    """The stores and the memory of a recorded conversation, and what the pool must hold by now."""

    def __init__(self, master: str, node: str, seed: int):
        self.names = {"MASTER": master, "NODE": node}
        self.random = np.random.default_rng(seed)
        self.stores: dict[int, MooncakeDistributedStore] = {}
        self.memory: dict[tuple[str, int], ctypes.Array] = {}
        self.allocator, self.standalone = MooncakeHostMemAllocator(), False
        self.objects: dict[str, bytes] = {}
        # Those that put sessions fill.
        self.filled: dict[str, bytearray] = {}

    def call(self, line: dict) -> None:
        """Makes one call and compares what it returned, wrote and read."""
        store = self.stores.setdefault(line["store"], MooncakeDistributedStore())
        name = line["call"]
        self.standalone |= name == "setup_dummy"
        if name == "register_buffer":
            (kind, number, _), size = line["args"]
            self.memory[kind, number] = self._allocate(size)
        pieces = _pieces(*line["args"][:3]) if name in PUTS | GETS | PARTS | PUT_PARTS else {}
        for at, size in [part for parts in pieces.values() for part in parts]:
            self._fill(at, self.random.bytes(size) if name in PUTS | PUT_PARTS else bytes(size))

        args = [self._given(value) for value in line["args"]]
        returned = getattr(store, name)(*args, **line.get("kwargs", {}))
        if name == "remove_all":
            # Without force it leaves what was looked up a moment ago.
            removed = [returned]
            while sum(removed) < line["returns"]:
                wait_for("more objects can be removed", lambda: removed.append(store.remove_all(*args)) or removed[-1])
            assert sum(removed) == line["returns"]
            self.objects.clear()
            return
        assert _plain(returned) == line["returns"], (name, line["args"])
        codes = returned if isinstance(returned, list) else [returned]
        assert bool not in {type(code) for code in codes}, "engines ask for `== 1` and `type(x) is int`"

        if name in PUTS:
            for (key, parts), code in zip(pieces.items(), codes, strict=True):
                if code == 0:
                    self.objects.setdefault(key, self._content(parts))
        elif name in GETS:
            for (key, parts), count in zip(pieces.items(), codes, strict=True):
                got = self._content(parts)
                assert got == (self.objects[key] if count >= 0 else bytes(len(got))), key
        elif name in PARTS:
            for (key, parts), offsets, count in zip(pieces.items(), line["args"][3], codes, strict=True):
                whole, got = self.objects.get(key, b""), self._content(parts)
                there = b"".join(whole[at : at + size] for (_, size), at in zip(parts, offsets, strict=True))
                assert got == (there if count >= 0 else bytes(len(got))), key
        elif name in PUT_PARTS:
            for (key, parts), offsets, count in zip(pieces.items(), line["args"][3], codes, strict=True):
                for part, at in zip(parts, offsets, strict=True):
                    assert count >= 0, key
                    self.filled[key][at : at + part[1]] = self._content([part])
        elif name == "batch_put_session_start":
            for key, size, code in zip(args[0], args[1], codes, strict=True):
                if code == 0:
                    self.filled[key] = bytearray(size)
        elif name in ("batch_put_session_end", "batch_put_session_revoke"):
            for key in [key for key, code in zip(args[0], codes, strict=True) if code == 0]:
                whole = bytes(self.filled.pop(key))
                if name == "batch_put_session_end":
                    self.objects[key] = whole
        elif name in ("put", "put_parts"):
            self.objects.setdefault(args[0], b"".join(args[1:]))
        elif name in ("get", "batch_get_buffer"):
            keys = args[0] if isinstance(args[0], list) else [args[0]]
            for key, found in zip(keys, codes, strict=True):
                assert found is None or bytes(found) == self.objects[key], key

    def _allocate(self, size: int) -> ctypes.Array:
        """As an engine does: from the store's allocator where a storage node is to see the memory."""
        if self.standalone:
            address = self.allocator.alloc(size)
            assert address, size
            return (ctypes.c_char * size).from_address(address)
        return (ctypes.c_char * size).from_buffer(mmap.mmap(-1, size))

    def _fill(self, at, data: bytes) -> None:
        kind, number, offset = at
        if (kind, number) not in self.memory:
            self.memory[kind, number] = self._allocate(max(UNREGISTERED, len(data)))
        self.memory[kind, number][offset : offset + len(data)] = data

    def _content(self, parts) -> bytes:
        return b"".join(self.memory[kind, number][start : start + size] for (kind, number, start), size in parts)

    def _given(self, value):
        """An argument as the engine gave it, with this run's addresses."""
        if isinstance(value, str):
            return self.names.get(value, value)
        if isinstance(value, dict) and "ReplicateConfig" in value:
            config = ReplicateConfig()
            for name, setting in value["ReplicateConfig"].items():
                setattr(config, name, setting)
            return config
        if isinstance(value, dict):
            return {key: self._given(one) for key, one in value.items()}
        if isinstance(value, list):
            if value[:1] == ["bytes"]:
                return self.random.bytes(value[1])
            if value[:1] in (["buffer"], ["memory"]):
                return ctypes.addressof(self.memory[value[0], value[1]]) + value[2]
            return [self._given(one) for one in value]
        return value


def _pieces(keys, addresses, sizes) -> dict[str, list]:
    """Where each object of a call lies: (address, size) of its pieces."""
    if isinstance(keys, str):
        keys, addresses, sizes = [keys], [addresses], [sizes]
    several = [
        (at, size) if isinstance(size, list) else ([at], [size]) for at, size in zip(addresses, sizes, strict=True)
    ]
    return {key: list(zip(*pieces, strict=True)) for key, pieces in zip(keys, several, strict=True)}


def _plain(value):
    """An answer as it was recorded: of values only the length."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (int, str)):
        return value
    return ["bytes" if isinstance(value, bytes) else "view", len(memoryview(value))]


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_an_engines_calls_get_the_answers_and_bytes_that_it_relies_on(cluster, file, seed):
    c = cluster(nodes=0)
    port = free_port()
    c.add_node(64 << 20, [f"--port={port}"])
    replay = Replay(c.master.addr, f"127.0.0.1:{port}", seed)
    engine, *calls = [json.loads(line) for line in file.read_text().splitlines()]
    assert engine["engine"]
    for line in calls:
        replay.call(line)
    assert {"setup", "setup_dummy"} & {line["call"] for line in calls}


def test_what_each_engine_relies_on_is_recorded():
    recorded = {
        file.stem: {json.loads(line).get("call") for line in file.read_text().splitlines()} for file in RECORDED
    }
    assert recorded["vllm"] >= {"batch_put_from_multi_buffers", "batch_get_into_multi_buffers", "remove_all"}
    assert recorded["vllm_groups"] >= {"batch_put_from_multi_buffers", "batch_get_into_multi_buffers"}
    assert recorded["lmcache_metadata"] >= {"put_parts", "batch_get_buffer", "is_exist", "batch_is_exist"}
    assert recorded["lmcache_zero_copy"] >= {"batch_put_from", "put_from", "batch_get_into", "unregister_buffer"}
    assert recorded["sglang_mha"] >= {"put", "get", "batch_put_from", "batch_get_into", "remove_all"}
    assert recorded["sglang_mla"] >= {"batch_put_from_multi_buffers", "batch_get_into_multi_buffers"}
    assert recorded["sglang_groups"] >= {"batch_put_from", "batch_get_into"}
    assert recorded["sglang_linker"] >= {
        "batch_put_from_multi_buffers",
        "batch_get_session_start",
        "batch_get_into_multi_buffer_ranges",
        "batch_get_session_end",
    }
    assert recorded["vllm_ascend_layers"] >= {
        "batch_put_session_start",
        "batch_put_from_multi_buffer_ranges",
        "batch_put_session_end",
        "batch_put_session_revoke",
        "batch_get_session_start",
        "batch_get_into_multi_buffer_ranges",
        "batch_get_session_end",
    }
    assert recorded["sglang_standalone"] >= {"setup_dummy", "batch_put_from", "batch_get_into"}
