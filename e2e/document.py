"""The commands and files of a page of docs/, run as they are written.

A fence says what its block is: a language and then a name. Blocks of "sh" are commands; every other named block is
the file of that name. Blocks without a name are not run.
"""

import os
import re
import subprocess
from pathlib import Path

from demo.pool import HOST, PoolError, Program
from rig import until
from server import CPU_OPTIONS, ENVIRONMENT, START_LIMIT_S, descendants, end_processes, healthy

DOCS = Path(__file__).resolve().parent.parent / "docs"
_FENCE = re.compile(r"^```(\w+) ([\w.-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_LIMIT_S = 300


class Document:
    """One page, in a folder of its own. `used` is checked by `unused`, so that no block can rot unseen."""

    def __init__(self, name, rig, folder):
        self.folder = folder
        self.commands, self.servers, self.used = {}, {}, set()
        for language, block, text in _FENCE.findall((DOCS / name).read_text()):
            if language == "sh":
                self.commands[block] = text
            else:
                (folder / block).write_text(text)
        programs = folder / "bin"
        programs.mkdir()
        # What a machine without a GPU needs in addition.
        vllm = programs / "vllm"
        vllm.write_text(f'#!/bin/sh\nexec {rig.python.parent}/vllm "$@" {" ".join(CPU_OPTIONS)}\n')
        vllm.chmod(0o755)
        path = os.pathsep.join([str(programs), str(rig.python.parent), os.environ["PATH"]])
        # The master must not find the log of one that this machine runs in earnest.
        state = str(folder / "state")
        self.environment = {**ENVIRONMENT, "PATH": path, "MODEL": str(rig.model), "MOONCAKE_STATE_DIR": state}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in reversed(list(self.servers)):
            self.end(name)

    def text(self, name):
        self.used.add(name)
        return self.commands[name]

    def unused(self):
        return sorted(set(self.commands) - self.used)

    def run(self, name):
        """What a command printed; it must succeed."""
        done = subprocess.run(
            ["bash", "-euc", self.text(name)],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise PoolError(f"{name} ended with {done.returncode}: {done.stderr.strip()[-600:]}")
        return done.stdout

    def start(self, name, ready):
        """Starts what goes on until `end`, and waits until `ready()`."""
        command = ["bash", "-euc", f"cd {self.folder}; {self.text(name)}"]
        server = self.servers[name] = Program(name, command, self.folder / f"{name}.log", self.environment)
        until(
            f"{name} is ready", lambda: ready() or not server.running(), patience=START_LIMIT_S
        )
        if not server.running():
            raise PoolError(f"{name} ended:\n{server.last_lines(30)}")

    def end(self, name):
        server = self.servers.pop(name)
        family = descendants(server.pid)
        # The shell has become its last command, or waits for it.
        end_processes(family)
        server.stop(patience=30)

    def serve(self, name, port):
        """Starts a vLLM server that listens on `port`."""
        self.start(name, lambda: healthy(port))


def address(port):
    return f"{HOST}:{port}"
