"""The commands and files of a page of docs/, run as they are written.

A fence says what its block is: a language and then a name. Blocks of "sh" are commands; every other named block is
the file of that name. Blocks without a name are not run.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

from environment import Unavailable
from server import CPU_OPTIONS, ENVIRONMENT, START_LIMIT_S, end_group, healthy

from pool import HOST, PoolError, Program, remove_witnesses

DOCS = Path(__file__).resolve().parent.parent / "docs"
_FENCE = re.compile(r"^```(\w+) ([\w.-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_LIMIT_S = 300
# Control and HTTP of the master.
POOL_PORTS = (50051, 9003)


@contextlib.contextmanager
def document(name, rig):
    """A page of docs/ in a folder of its own, which is kept for its logs; what it started ends."""
    page = Document(name, rig, rig.new_folder())
    try:
        yield page
    finally:
        for server in reversed(list(page.servers)):
            page.end(server)
        remove_witnesses(page.folder)


class Document:
    """One page. `unused` names the commands that nobody ran, so that none can rot unseen."""

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
        vllm.write_text(f'#!/bin/sh\nexec {rig.python} {rig.python.parent}/vllm "$@" {" ".join(CPU_OPTIONS)}\n')
        vllm.chmod(0o755)
        path = os.pathsep.join([str(programs), str(rig.python.parent), os.environ["PATH"]])
        # The master must not find the log of one that this machine runs in earnest.
        state = str(folder / "state")
        self.environment = {**ENVIRONMENT, "PATH": path, "MODEL": str(rig.model), "MOONCAKE_STATE_DIR": state}

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
        log = self.folder / f"{name}.log"
        server = Program(name, command, log, env=self.environment, ends_with_parent=True, start_new_session=True)
        self.servers[name] = server.start()
        server.wait_ready(ready, START_LIMIT_S, step=0.05)

    def end(self, name):
        """Control-C."""
        end_group(self.servers.pop(name), signal.SIGINT)

    def start_pool(self):
        """The master and the storage node, on Mooncake's own ports."""
        for port in POOL_PORTS:
            if _listens(port):
                raise Unavailable(f"something listens on port {port}, which the page uses")
        self.start("master", lambda: _listens(POOL_PORTS[0]))
        self.start("node", lambda: self.segments() == 1)

    def segments(self):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{HOST}:9003/get_all_segments") as answer:
            return len(answer.read().split())
        return 0

    def keys(self):
        with urllib.request.urlopen(f"http://{HOST}:9003/get_all_keys") as answer:
            return len(answer.read().split())

    def serve(self, name, port):
        """Starts a vLLM server."""
        self.start(name, lambda: healthy(port))


def _listens(port):
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False
