"""docs/tutorial.md is a program: its blocks run in order, and print what the page says."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/tutorial.md"
# The address that the page has for the master.
MASTER = "127.0.0.1:50051"
# Where the page has its reader end a node by a key of the terminal.
NODE_ENDS = "<!-- The test ends the first storage node here. -->"


@dataclass
class Block:
    line: int
    language: str
    info: str
    source: str

    @property
    def where(self) -> str:
        return f"{PAGE.name}:{self.line}"


def blocks() -> list[Block]:
    """The page's blocks of code, and its mark, in order."""
    text = PAGE.read_text()
    found = re.finditer(rf"^```(\w+) ?(.*)\n((?:.*\n)*?)```$|^{re.escape(NODE_ENDS)}$", text, re.MULTILINE)
    return [
        Block(text.count("\n", 0, match.start()) + 1, match[1] or "mark", match[2] or "", match[3] or "")
        for match in found
    ]


def agree(printed: str, claimed: str) -> bool:
    """Whether each line is the claimed one; `...` stands for anything."""
    pattern = "\n".join(".*".join(re.escape(part) for part in line.split("...")) for line in claimed.splitlines())
    return re.fullmatch(pattern, printed.rstrip("\n")) is not None


def flags(source: str) -> dict[str, str]:
    """The flags of a block that starts a process."""
    return dict(word.removeprefix("--").split("=") for word in source.split() if word.startswith("--"))


class Reader:
    """Does what the page says."""

    def __init__(self, cluster, folder: Path):
        self.cluster, self.folder, self.pool = cluster, folder, None
        self.names: dict[str, object] = {"__name__": "tutorial"}

    def run(self, block: Block) -> str:
        """What the block prints."""
        source = block.source if self.pool is None else block.source.replace(MASTER, self.pool.master.addr)
        match block.language, block.info:
            case "sh", "master":
                self.pool = self.cluster(nodes=0)
                self.same_flags(block, self.pool.master.command, flags(source))
            case "sh", "node":
                given = flags(source)
                node = self.pool.add_node(given["global_segment_size"])
                self.same_flags(block, node.command, given)
            case "mark", _:
                assert self.pool.nodes[0].terminate() == 0
            case "sh", "":
                command = [sys.executable, *source.split()[1:]]
                return subprocess.run(
                    command, cwd=self.folder, check=True, capture_output=True, text=True, timeout=30
                ).stdout
            case "python", info if info.endswith(".py"):
                (self.folder / info).write_text(source)
            case "python", _:
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile("\n" * block.line + source, PAGE.name, "exec"), self.names)
                return printed.getvalue()
            case other:
                raise AssertionError(f"{block.where}: nothing is done with {other}")
        return ""

    def same_flags(self, block: Block, command: list[str], given: dict[str, str]) -> None:
        for name, value in given.items():
            assert f"--{name}={value}" in command, f"{block.where}: the test starts it otherwise: {command}"


def read(reader: Reader, without: tuple[str, ...]) -> None:
    """Runs every block and compares, but for those that need what is not there."""
    page = blocks()
    assert len(page) > 30
    for block, following in zip(page, [*page[1:], None], strict=True):
        if block.language == "text" or block.info.removeprefix("needs=") in without:
            continue
        claimed = following.source if following is not None and following.language == "text" else ""
        printed = reader.run(block)
        assert agree(printed, claimed), f"{block.where} prints\n{printed}and the page says\n{claimed}"


def test_every_block_prints_what_the_page_says(cluster, tmp_path):
    read(Reader(cluster, tmp_path), without=("torch",))


def test_so_do_its_blocks_for_torch(cluster, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed here: `make e2e` runs this with its own")
    read(Reader(cluster, tmp_path), without=())
