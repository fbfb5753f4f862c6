"""The programs of examples/ run as their page says, print what happens, and leave nothing behind in the pool."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from test_c_library import run

from pool import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = (EXAMPLES / "README.md").read_text()
FILES = sorted(file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".c"))
MIB = 1 << 20


@pytest.fixture(params=[0, 1], ids=["an empty pool", "beside another node"])
def pool(request, cluster):
    """A pool that is, in the end, as it was before: no objects, no views, and no segments but its own."""
    made = cluster(nodes=request.param)
    yield made
    assert made.keys() == set()
    wait_for("no segments of the example", lambda: len(made.segments()) == request.param)
    wait_for("no views of the example", lambda: made.metric("mooncake_pins") == 0)


def printed(name: str, pool) -> list[str]:
    """The lines of an example that ends with status 0. It learns of the master in either way."""
    master = pool.master.addr
    flags, variable = (["--master", master], "127.0.0.1:1") if pool.nodes else ([], master)
    env = {**os.environ, "MOONCAKE_MASTER": variable}
    return run(sys.executable, EXAMPLES / name, *flags, env=env).splitlines()


def test_an_object_with_two_replicas_outlives_a_node(pool):
    assert printed("replicas.py", pool) == [
        "examples/replicas/once: 1 replica(s)",
        "examples/replicas/twice: 2 replica(s)",
        "killed the first node",
        "examples/replicas/once: a miss; compute it again",
        "examples/replicas/twice: b'two copies'",
        "examples/replicas/twice: 1 replica(s)",
    ]
    assert pool.metric("mooncake_puts_committed_total") == 2
    wait_for("the end of both nodes", lambda: pool.metric("mooncake_segments_gone_total") == 2)


def test_a_view_keeps_its_memory_until_its_last_slice_is_gone(pool):
    lines = printed("views.py", pool)
    assert lines[:3] + lines[4:] == [
        "put: here",
        f"a view of {24 * MIB} bytes, read-only: True",
        "removed: True, the view says b'mooncake'",
        "no view is left, put: here",
        "the store is closed, the view says b'mooncake'",
    ]
    if pool.nodes:
        assert lines[3] == f"a slice is left, put: no room: it went to {pool.nodes[0].segment}"
    else:
        assert re.fullmatch(f"a slice is left, put: no room: .* {24 * MIB} bytes are under views of .*", lines[3])
        assert pool.metric("mooncake_put_full_total") >= 1
    assert pool.metric("mooncake_pins_taken_total") == 2


def test_coroutines_make_few_requests_of_many_calls(pool):
    assert printed("coroutines.py", pool) == [
        "1000 pages, the last one is b'page 999'",
        "read ahead: 60 bytes of 10 pages computed",
        "after a removal: ['a miss', b'page 1', b'page 2']",
        "999 of 1000 are there",
        "999 removed",
    ]
    assert pool.metric("mooncake_puts_committed_total") == 1000
    requests = ("master_put_start_requests_total", "master_batch_put_start_requests_total")
    assert sum(map(pool.metric, requests)) < 100


def test_arrays_come_back_whole_in_pages_and_as_a_view(pool):
    assert printed("arrays.py", pool) == [
        "whole: float16 (3, 4), row 1 is [4.0, 5.0, 6.0, 7.0]",
        "pages: 8 read into the cache in reverse order, equal: True",
        "view: without a copy: True, writable: False",
        "view: equal to page 3: True",
    ]
    assert pool.metric("mooncake_puts_committed_total") == 9
    assert pool.metric("mooncake_pins_taken_total") == 1


def test_a_target_in_c_is_built_by_the_lines_of_the_page_and_used_from_python(tmp_path):
    if not (Path(sys.prefix) / "lib/libtransfer_engine.so").exists():
        pytest.skip("needs the installed wheel")
    run("cc", "--version")  # skips where there is no compiler
    (tmp_path / "examples").symlink_to(EXAMPLES)
    lines = PAGE.split("```sh\n")[-1].split("```")[0].replace("cc ", "cc -Wall -Wextra -Werror ")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert re.fullmatch(
        rf"target 127\.0\.0\.1:\d+ lends {MIB} bytes\n"
        "read: 'hello from C'\n"
        "the target found: 'hello from Python'\n"
        "the target has ended with 0\n",
        run("bash", "-euc", lines, cwd=tmp_path, env=env),
    )


def test_the_page_names_each_example_and_each_is_short():
    assert sorted(re.findall(r"\]\((\w+\.(?:py|c))\)", PAGE)) == FILES
    for name in FILES:
        assert len((EXAMPLES / name).read_text().splitlines()) <= 80, name
