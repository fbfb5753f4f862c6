"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


class PoolError(AssertionError):
    """A process of the pool did not do what was asked of it."""


def wait_for(what: str, condition: Callable[[], object], timeout: float = 10.0, step: float = 0.01):
    """The first true value of ``condition``; a PoolError that names ``what`` when there is none in time."""
    end = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() > end:
            raise PoolError(f"{what}: not within {timeout} s")
        time.sleep(step)


def wait_stopped(name: str, pid: int) -> None:
    """Returns when none of its threads runs any more: one takes the signal, the others stop a moment later."""

    def stands(task: Path) -> bool:
        try:
            return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
        except (FileNotFoundError, ProcessLookupError):
            return True

    tasks = Path(f"/proc/{pid}/task")
    wait_for(f"{name} stopped", lambda: all(stands(task) for task in tasks.iterdir()), 10, 0.001)
