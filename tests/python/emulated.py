"""Commands in an emulated machine with a kernel of its own: testing/machine/run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MACHINE = ROOT / "testing" / "machine"


def needs_machine() -> None:
    """Skips the test, with the reason, where there is no emulator and none can be had."""
    done = subprocess.run([MACHINE / "prepare"], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip() or "no emulated machine")


class Machine:
    """One that runs a command. Its output goes to a file."""

    def __init__(self, log: Path, command: list[str], *options: str, timeout: int = 600):
        self.log = log
        words = [MACHINE / "run", "--timeout", str(timeout), *options, "--", *command]
        with log.open("ab") as out:
            # In a group of its own, so that all of the emulator is killed at once.
            self.process = subprocess.Popen(
                [str(word) for word in words], cwd=ROOT, stdout=out, stderr=out, start_new_session=True
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def cut_power(self) -> None:
        """As if its plug was pulled."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def result(self, timeout: float = 600.0) -> int:
        """The status of the command."""
        try:
            return self.process.wait(timeout)
        finally:
            if self.is_running:
                self.cut_power()


def python(script: str) -> list[str]:
    """A script of tests/python, run as tests are."""
    paths = os.pathsep.join(str(ROOT / part) for part in ("testing", "tests/python"))
    return [
        "env",
        f"PYTHONPATH={paths}",
        "PYTHONDONTWRITEBYTECODE=1",
        sys.executable,
        str(ROOT / "tests/python" / script),
    ]
