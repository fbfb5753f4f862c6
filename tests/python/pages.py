"""Pages of the documents whose blocks of code run, and print what the page says.

A block of `text` is what the block before it prints; `...` in it stands for anything. `python FILE.py` is written to
that file, `sh` runs it, `sh master` and `sh node` start a process, `sh terminal` is typed in a shell that stays, and
`python needs=torch` runs where torch is.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pool import free_port, wait_for

DOCUMENTS = Path(__file__).parents[2] / "docs"
# The address that pages have for the master.
MASTER = "127.0.0.1:50051"
# Where a page has its reader end a node by a key of the terminal, or take some time.
MARKS = {
    "<!-- The test ends the first storage node here. -->": lambda pool: ended(pool.nodes[0]),
    "<!-- The test ends the second storage node here. -->": lambda pool: ended(pool.nodes[1]),
    "<!-- The test waits for the tier here. -->": lambda pool: wait_for(
        "a tier", lambda: pool.metric("mooncake_tiers_live") == 1
    ),
    "<!-- The test waits until the tier is away. -->": lambda pool: wait_for(
        "no tier", lambda: pool.metric("mooncake_tiers_live") == 0
    ),
    "<!-- The test waits for the disk here. -->": lambda pool: wait_for(
        "all to be written", lambda: pool.metric("file_cache_nums_") == 200
    ),
}
# What differs from one run to the next.
VARIES = re.compile(r"\b[0-9a-f]{32}\b|(?<=127\.0\.0\.1:)\d+|\b\d+(?= ?%)")


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
    marks = "|".join(re.escape(mark) for mark in MARKS)
    found = re.finditer(rf"^```(\w+) ?(.*)\n((?:.*\n)*?)```$|^(?:{marks})$", text, re.MULTILINE)
    return [
        Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match[1] or "mark",
            match[2] if match[1] else match[0],
            match[3] or "",
        )
        for match in found
    ]


def ended(node) -> None:
    assert node.terminate() == 0


def agree(printed: str, claimed: str) -> bool:
    """Whether each line is the claimed one."""
    pattern = "\n".join(".*".join(re.escape(part) for part in line.split("...")) for line in claimed.splitlines())
    return re.fullmatch(pattern, printed.rstrip("\n")) is not None


def flags(source: str) -> dict[str, str]:
    """The flags of a block that starts a process."""
    return dict(word.removeprefix("--").split("=") for word in source.split() if word.startswith("--"))


class Terminal:
    """A shell that goes on from block to block, with programs in its background."""

    DONE = "-- done --"

    def __init__(self, folder: Path):
        env = {**os.environ, "HOME": str(folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.errors = (folder / "terminal.err").open("w")
        self.shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=folder,
            env=env,
            text=True,
            start_new_session=True,
        )

    def type(self, source: str) -> str:
        """What the lines print before the shell is ready for others."""
        self.shell.stdin.write(f"{source}\necho '{self.DONE}'\n")
        self.shell.stdin.flush()
        printed = ""
        while (line := self.shell.stdout.readline()) not in ("", f"{self.DONE}\n"):
            printed += line
        return printed

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.wait()
        self.shell.stdin.close()
        self.shell.stdout.close()
        self.errors.close()


class Reader:
    """Does what a page says. A page that starts no pool gets one."""

    def __init__(self, cluster, folder: Path, pool=None):
        self.cluster, self.folder, self.pool = cluster, folder, pool
        self.names: dict[str, object] = {"__name__": "page"}
        self.terminal: Terminal | None = None
        self.at_end = contextlib.ExitStack()

    def read(self, page: str, without: tuple[str, ...] = ()) -> None:
        """Runs every block and compares, but for those that need what is not there."""
        all_blocks = blocks(page)
        with contextlib.ExitStack() as at_end:
            self.at_end = at_end
            self.read_blocks(all_blocks, without)

    def read_blocks(self, all_blocks: list[Block], without: tuple[str, ...]) -> None:
        for block, following in zip(all_blocks, [*all_blocks[1:], None], strict=True):
            if block.language == "text" or block.info.removeprefix("needs=") in without:
                continue
            claimed = following.source if following is not None and following.language == "text" else ""
            printed = self.run(block)
            if block.info == "terminal":
                printed, claimed = VARIES.sub("(varies)", printed), VARIES.sub("(varies)", claimed)
            assert agree(printed, claimed), f"{block.where} prints\n{printed[:2000]}\nand the page says\n{claimed}"

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
            case "mark", mark:
                MARKS[mark](self.pool)
            case "sh", "terminal":
                if self.terminal is None:
                    self.terminal = Terminal(self.folder)
                    self.at_end.callback(self.terminal.end)
                source = source.replace("mooncake_client ", f"mooncake_client --port={free_port()} ")
                # What it says in the background is no answer to what is typed.
                source = re.sub(" &$", " >>node.log &", source, flags=re.MULTILINE)
                master = self.pool.master.addr
                return self.terminal.type(re.sub("(mooncake tier .*)", rf"\1 --master={master}", source))
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
