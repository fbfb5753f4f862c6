"""docs/tutorial.md is a program, and the examples and signatures of docs/python-api.md hold."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from pages import Reader, blocks

STUB = Path(__file__).parents[2] / "python/mooncake/store/__init__.pyi"
TUTORIAL, API = "tutorial.md", "python-api.md"
NO_TORCH = "torch is not installed here: `make e2e` runs this with its own"


def test_every_block_of_the_tutorial_prints_what_it_says(cluster, tmp_path):
    Reader(cluster, tmp_path).read(TUTORIAL, without=("torch",))


def test_so_do_the_examples_of_the_api(cluster, tmp_path):
    pool = cluster(nodes=1)
    reader = Reader(cluster, tmp_path, pool)
    reader.read(API, without=("torch",))
    reader.names["store"].close()


@pytest.mark.parametrize("page", [TUTORIAL, API])
def test_so_do_their_blocks_for_torch(cluster, tmp_path, page):
    pytest.importorskip("torch", reason=NO_TORCH)
    reader = Reader(cluster, tmp_path, cluster(nodes=1) if page == API else None)
    reader.read(page)
    reader.names["store"].close()


def plain(method: ast.FunctionDef) -> str:
    """A signature without types of arguments and without the object itself."""
    given = method.args
    for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, [given.vararg])):
        arg.annotation = None
    for args in (given.posonlyargs, given.args):
        if args and args[0].arg in ("self", "cls"):
            del args[0]
    return f"{method.name}({ast.unparse(given)}) -> {ast.unparse(method.returns)}"


def said() -> set[str]:
    """The signatures of the page."""
    found = set()
    for block in blocks(API):
        if block.info != "signatures":
            continue
        text = ""
        for line in block.source.splitlines():
            text += line.partition(" #")[0].strip() + " "
            if " -> " in text:
                found.add(plain(ast.parse(f"def {text}: ...").body[0]))
                text = ""
    return found


def test_the_page_has_every_signature_of_the_stub():
    tree = ast.parse(STUB.read_text())
    store = next(node for node in tree.body if getattr(node, "name", "") == "MooncakeDistributedStore")
    methods = [node for node in store.body if isinstance(node, ast.FunctionDef)]
    assert said() == {plain(method) for method in methods if not method.name.startswith("_")}
