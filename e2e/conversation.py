"""A client in a process of its own: one line of JSON a call, one line an answer."""

import json
import selectors
import subprocess
import time

from server import ENVIRONMENT

from pool import PoolError, Program

ANSWER_LIMIT_S = 180


class Conversation:
    """Calls of the client by name: `client.put(0, 8)`."""

    def __init__(self, python, script, arguments, folder, name, environment=None):
        self.program = Program(
            name,
            [python, script, *arguments],
            folder / f"{name}.log",
            env={**ENVIRONMENT, **(environment or {})},
            ends_with_parent=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ).start()
        self.rest = b""

    def __enter__(self):
        try:
            self._answer()
        except BaseException:
            self.program.kill()
            raise
        return self

    def __exit__(self, *_):
        self.program.terminate(5)

    def __getattr__(self, name):
        def call(*arguments):
            self.program.process.stdin.write(json.dumps([name, *arguments]).encode() + b"\n")
            self.program.process.stdin.flush()
            return self._answer()

        return call

    def _answer(self):
        pipe = self.program.process.stdout
        end = time.monotonic() + ANSWER_LIMIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self.rest:
                piece = pipe.read1(65_536) if selector.select(max(0, end - time.monotonic())) else b""
                if not piece:
                    raise PoolError(f"{self.program.name} gives no answer:\n{self.program.last_lines(30)}")
                self.rest += piece
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)
