"""Pages of the documents whose blocks of code run, and print what the page says.

A block of `text` is what the block before it prints; `...` in it stands for anything. `python FILE.py` is written to
that file, `sh` runs it, `sh master` and `sh node` start a process, and `python needs=torch` runs where torch is.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DOCUMENTS = Path(__file__).parents[2] / "docs"
# The address that pages have for the master.
MASTER = "127.0.0.1:50051"
# Where a page has its reader end a node by a key of the terminal.
NODE_ENDS = "<!-- The test ends the first storage node here. -->"


@dataclass
class Block:
    page: str
    line: int
    language: str
    info: str
    source: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """The page's blocks of code, and its marks, in order."""
    text = (DOCUMENTS / page).read_text()
    found = re.finditer(rf"^```(\w+) ?(.*)\n((?:.*\n)*?)```$|^{re.escape(NODE_ENDS)}$", text, re.MULTILINE)
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[1] or "mark", match[2] or "", match[3] or "")
        for match in found
    ]


def agree(printed: str, claimed: str) -> bool:
    """Whether each line is the claimed one."""
    pattern = "\n".join(".*".join(re.escape(part) for part in line.split("...")) for line in claimed.splitlines())
    return re.fullmatch(pattern, printed.rstrip("\n")) is not None


def flags(source: str) -> dict[str, str]:
    """The flags of a block that starts a process."""
    return dict(word.removeprefix("--").split("=") for word in source.split() if word.startswith("--"))


class Reader:
    """Does what a page says. A page that starts no pool gets one."""

    def __init__(self, cluster, folder: Path, pool=None):
        self.cluster, self.folder, self.pool = cluster, folder, pool
        self.names: dict[str, object] = {"__name__": "page"}

    def read(self, page: str, without: tuple[str, ...] = ()) -> None:
        """Runs every block and compares, but for those that need what is not there."""
        all_blocks = blocks(page)
        for block, following in zip(all_blocks, [*all_blocks[1:], None], strict=True):
            if block.language == "text" or block.info.removeprefix("needs=") in without:
                continue
            claimed = following.source if following is not None and following.language == "text" else ""
            printed = self.run(block)
            assert agree(printed, claimed), f"{block.where} prints\n{printed}and the page says\n{claimed}"

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
            case "python", "signatures":
                pass
            case "python", _:
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile("\n" * block.line + source, block.page, "exec"), self.names)
                return printed.getvalue()
            case other:
                raise AssertionError(f"{block.where}: nothing is done with {other}")
        return ""

    def same_flags(self, block: Block, command: list[str], given: dict[str, str]) -> None:
        for name, value in given.items():
            assert f"--{name}={value}" in command, f"{block.where}: the test starts it otherwise: {command}"
