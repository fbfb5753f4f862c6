"""`mooncake simulate` says how much memory a pool needs for a trace, and says it of the trace that it was given."""

from __future__ import annotations

import heapq
import json
import math
import subprocess
import xml.etree.ElementTree as ET
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path

import pytest

from pool import binary

EXCERPT = Path(__file__).resolve().parents[2] / "demo" / "trace" / "conversation_excerpt.jsonl"
SVG = "{http://www.w3.org/2000/svg}"
BLOCK = 64 << 20


def simulate(*args: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess:
    command = [binary(), "simulate", *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=20)


@pytest.fixture(scope="module")
def requests() -> list[list[int]]:
    return [json.loads(line)["hash_ids"] for line in EXCERPT.read_text().splitlines()]


@pytest.fixture(scope="module")
def told() -> dict:
    done = simulate(EXCERPT, "--json")
    assert done.returncode == 0, done.stderr
    # Nothing is said beside it where nobody looks on.
    assert done.stderr == ""
    return json.loads(done.stdout)


def least_recently_used(requests: list[list[int]], room: int) -> int:
    """Blocks that lead prompts and are found, by nothing but the order of use."""
    pool: OrderedDict[int, None] = OrderedDict()
    found = 0
    for blocks in requests:
        found += next((nth for nth, block in enumerate(blocks) if block not in pool), len(blocks))
        for block in blocks:
            pool[block] = None
            pool.move_to_end(block)
        while len(pool) > room:
            pool.popitem(last=False)
    return found


def clairvoyant(requests: list[list[int]], room: int) -> int:
    """Blocks found by a pool that keeps those that come back soonest."""
    following: list[dict[int, int]] = []
    last: dict[int, int] = {}
    for nth in reversed(range(len(requests))):
        following.append({block: last.get(block, -1) for block in requests[nth]})
        last.update(dict.fromkeys(requests[nth], nth))
    held: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    found = 0
    for blocks, comes_back in zip(requests, reversed(following), strict=True):
        found += sum(held.pop(block, None) is not None for block in blocks)
        for block, again in comes_back.items():
            if again >= 0:
                held[block] = again
                heapq.heappush(heap, (-again, block))
        while len(held) > room:
            again, block = heapq.heappop(heap)
            if held.get(block) == -again:
                del held[block]
    return found


def test_the_trace_is_counted_and_every_size_finds_what_it_can(told, requests):
    blocks = sum(map(len, requests))
    distinct = len({block for request in requests for block in request})
    assert (told["requests"], told["blocks"], told["distinct_blocks"]) == (len(requests), blocks, distinct)
    assert told["distinct_bytes"] == distinct * BLOCK
    # Where nothing leaves, each block is missing once.
    assert told["possible"]["found_blocks"] == blocks - distinct
    sizes = told["sizes"]
    assert [size["room_blocks"] for size in sizes] == [
        math.ceil(distinct * share / 100) for share in (1, 2, 3, 5, 8, 12, 20, 35, 60, 100)
    ]
    for size in sizes:
        assert size["capacity_bytes"] == size["room_blocks"] * BLOCK
        assert size["found_blocks"] <= size["any_blocks"] <= size["best_blocks"] <= blocks - distinct
        assert size["hit_ratio"] == pytest.approx(size["found_blocks"] / blocks)
        assert size["not_stored_blocks"] == 0
    for smaller, larger in pairwise(sizes):
        assert smaller["best_blocks"] <= larger["best_blocks"]
        assert smaller["found_blocks"] <= larger["found_blocks"] + blocks // 500
    assert sizes[-1]["found_blocks"] == blocks - distinct


def test_the_bound_is_beladys_and_the_pool_evicts_what_was_used_least_recently(told, requests):
    blocks = sum(map(len, requests))
    for size in told["sizes"][::3]:
        assert size["best_blocks"] == clairvoyant(requests, size["room_blocks"])
        # Look-ups protect for two seconds, of which plain LRU knows nothing.
        assert size["hit_ratio"] == pytest.approx(least_recently_used(requests, size["room_blocks"]) / blocks, abs=0.01)


def test_the_least_memory_is_between_the_sizes_around_it(told):
    goal = 0.95 * told["possible"]["found_blocks"]
    least = told["target"]["least"]
    assert told["target"]["share"] == 0.95
    assert least["found_blocks"] >= goal
    enough = [size["capacity_bytes"] for size in told["sizes"] if size["found_blocks"] >= goal]
    assert least["capacity_bytes"] <= min(enough)
    for size in told["sizes"]:
        assert size["found_blocks"] >= goal or size["capacity_bytes"] < least["capacity_bytes"]


def test_the_table_has_a_line_for_each_size_and_the_chart_a_point(tmp_path):
    chart = tmp_path / "chart.svg"
    done = simulate(EXCERPT, "--capacity=32GB,128GB,512GB", f"--svg={chart}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("conversation_excerpt.jsonl: 1,000 requests in 7 min ask for 12,183 blocks, 9,180 of")
    begins = ["MEMORY", "32.0 GB", "128 GB", "512 GB"]
    rows = [line for line in lines if any(line.strip().startswith(begin) for begin in begins)]
    assert len(rows) == len(begins)
    assert all(len(line) <= 100 for line in lines), done.stdout
    assert lines[-1].startswith("With ")
    assert lines[-1].endswith(" of what is possible (24.6 %).")

    svg = ET.fromstring(chart.read_text())
    assert len(svg.findall(f"{SVG}polyline")) == 2
    assert len(svg.findall(f"{SVG}circle")) == 4
    words = [element.text for element in svg.iter(f"{SVG}text")]
    assert "memory for all blocks: 24.6 %" in words
    assert "64 GB" in words
    assert "http" not in chart.read_text().replace("http://www.w3.org/2000/svg", "")


def test_more_bytes_a_block_are_fewer_blocks():
    trace = "".join(json.dumps({"timestamp": nth * 9_000, "hash_ids": [nth % 3]}) + "\n" for nth in range(9))
    for size, room, found, best in (("1GB", 2, 0, 4), ("512MB", 3, 6, 6)):
        done = simulate("-", f"--block_size={size}", "--capacity=2GB", "--json", stdin=trace)
        told = json.loads(done.stdout)
        [only] = told["sizes"]
        # Round and round: with less room than the circle LRU finds nothing.
        assert (only["room_blocks"], only["found_blocks"], only["best_blocks"]) == (room, found, best)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "EOF while parsing"),
        ('{"timestamp": 1}', "missing field `hash_ids`"),
        ('{"timestamp": 1, "hash_ids": ["a"]}', "expected a JSON number"),
        ('{"timestamp": -1, "hash_ids": [1]}', "the timestamp -1 is no time"),
        ('{"timestamp": 0, "hash_ids": [1]}', "comes behind 1"),
    ],
)
def test_a_line_that_is_no_request_is_named_with_what_was_expected(line, what):
    done = simulate("-", stdin=f'{{"timestamp": 1, "hash_ids": [1]}}\n{line}\n')
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("mooncake simulate: -: line 2: ")
    assert what in done.stderr
    assert 'as in {"timestamp": 3000, "hash_ids": [0, 1, 2]}' in done.stderr


def test_what_is_no_trace_and_no_place_for_a_chart_is_said(tmp_path):
    missing = simulate(tmp_path / "none.jsonl")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "none.jsonl: No such file" in missing.stderr
    nowhere = simulate(EXCERPT, f"--svg={tmp_path}/none/chart.svg")
    assert nowhere.returncode == 1
    assert "--svg=" in nowhere.stderr
    assert "No such file" in nowhere.stderr
