"""What engines call in `mooncake.engine`, recorded from them (`e2e/record.py`) and made again without them.

Each of the recorded engines is a process here, too; every answer and every byte is compared.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_process import EngineProcess

RECORDED = sorted((Path(__file__).parent / "transfer_calls").glob("*.jsonl"))
PATHS = {"same host": {}, "tcp": {"MC_SHM": "0"}}

# Memory of which only what is used becomes pages, as an engine's KV cache is registered whole.
RESERVE = """
import mmap
area = mmap.mmap(-1, size)
globals().setdefault("areas", []).append(area)
result = ctypes.addressof(ctypes.c_char.from_buffer(area))
"""
# How many of these bytes are not zero.
DIRTY = "result = sum(map(bool, ctypes.string_at(addr, size)))"


class Replay:
    """The engines of a recorded conversation, their memory, and which of it has been written by peers."""

    def __init__(self, engines: list[EngineProcess], seed: int):
        self.engines, self.seed = engines, seed
        self.buffers: list[list[tuple[int, int]]] = [[] for _ in engines]
        self.ports = [0 for _ in engines]

    def call(self, line: dict) -> None:
        name, number, args = line["call"], line["engine"], line["args"]
        engine = self.engines[number]
        if name == "batch_register_memory":
            addresses = []
            for (_, nth, offset), size in zip(*args, strict=True):
                assert (nth, offset) == (len(self.buffers[number]), 0)
                addresses.append(engine.run(RESERVE, size=size))
                self.buffers[number].append((addresses[-1], size))
            assert engine.call(name, addresses, args[1]) == line["returns"]
        elif name == "get_rpc_port":
            self.ports[number] = engine.call(name)
            assert 0 < self.ports[number] < 65_536
        elif name == "batch_transfer_sync_write":
            self.write(number, *args, line["returns"])
        else:
            assert engine.call(name, *args) == line["returns"], line

    def write(self, number: int, session: str, here: list, there: list, sizes: list, returns: int) -> None:
        """Makes the write, and finds its bytes, and no others, at the other end."""
        nth = int(session.removeprefix("ENGINE "))
        one, two = self.engines[number], self.engines[nth]
        sources, sinks = self.places(number, here), self.places(nth, there)
        for addr, size in zip(sources, sizes, strict=True):
            one.write(addr, self.seed ^ addr, size)
        for addr, size in zip(sinks, sizes, strict=True):
            two.run("ctypes.memset(addr, 0, size)", addr=addr, size=size)
        before = self.dirty_around(two, nth, there, sizes)

        peer = f"127.0.0.1:{self.ports[nth]}"
        assert one.call("batch_transfer_sync_write", peer, sources, sinks, sizes) == returns
        for source, sink, size in zip(sources, sinks, sizes, strict=True):
            assert two.holds(sink, self.seed ^ source, size)
        assert self.dirty_around(two, nth, there, sizes) == before

    def places(self, number: int, places: list) -> list[int]:
        return [self.buffers[number][nth][0] + offset for _, nth, offset in places]

    def dirty_around(self, engine: EngineProcess, number: int, places: list, sizes: list) -> list[int]:
        """Bytes that are not zero in the page before and the page after each range, but for other ranges."""
        taken = [(nth, offset, offset + size) for (_, nth, offset), size in zip(places, sizes, strict=True)]
        counts = []
        for nth, start, end in taken:
            base, size = self.buffers[number][nth]
            for at in (start - 4096, end):
                free = not any(other == nth and first < at + 4096 and at < last for other, first, last in taken)
                if free and at >= 0 and at + 4096 <= size:
                    counts.append(engine.run(DIRTY, addr=base + at, size=4096))
        assert counts, "every range is between others"
        return counts


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_an_engines_transfers_get_the_answers_and_bytes_that_it_relies_on(file, path, seed):
    head, *calls = [json.loads(line) for line in file.read_text().splitlines()]
    assert head["engine"]
    engines = []
    try:
        for _ in range(1 + max(line["engine"] for line in calls)):
            engines.append(EngineProcess(env=PATHS[path]))
        replay = Replay(engines, seed)
        for line in calls:
            replay.call(line)
        writers = {line["engine"] for line in calls if line["call"] == "batch_transfer_sync_write"}
        for number in writers:
            links = json.loads(engines[number].call("show_links", json=True))["peers"]
            assert [link["path"] for link in links] == [path]
    finally:
        for engine in engines:
            engine.kill()


def test_what_each_engine_relies_on_is_recorded():
    calls = {
        file.stem: {json.loads(line).get("call") for line in file.read_text().splitlines()[1:]} for file in RECORDED
    }
    made = {"initialize", "get_rpc_port", "batch_register_memory", "batch_transfer_sync_write"}
    assert calls == {"vllm_prefill_decode": made, "sglang_prefill_decode": made}
