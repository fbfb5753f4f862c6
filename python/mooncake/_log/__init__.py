"""Lines of the native library in Python's `logging`, as those of the logger `mooncake`.

Where nobody has configured logging they go to stderr, with time and level; otherwise they are the application's.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

logger = logging.getLogger("mooncake")

# What MC_LOG_LEVEL has set, so that it is taken back when the variable is gone.
_of_the_variable = logging.NOTSET


class _Stderr(logging.StreamHandler[TextIO]):
    """Whatever `sys.stderr` is at the moment: that of a notebook is its cell's."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.removesuffix("ING")
        return f"{record.stamp} {level:>5} {record.getMessage()}"  # type: ignore[attr-defined]


_stderr = _Stderr()


def begin(variable: int | None) -> int:
    """The level from which on lines are worth making. `variable`: what MC_LOG_LEVEL says, if it is set."""
    global _of_the_variable
    if variable is not None:
        logger.setLevel(variable)
    elif logger.level == _of_the_variable:
        logger.setLevel(logging.NOTSET)
    _of_the_variable = variable if variable is not None else logging.NOTSET
    if logger.level == logging.NOTSET and not logger.hasHandlers():
        return logging.INFO
    return logger.getEffectiveLevel()


def emit(level: int, created: float, stamp: str, text: str) -> None:
    """One line, as of the time when it was said."""
    configured = logger.hasHandlers()
    if configured and not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(logger.name, level, "mooncake", 0, text, (), None, extra={"stamp": stamp})
    record.created, record.msecs = created, created % 1 * 1000
    if configured:
        logger.handle(record)
    else:
        _stderr.handle(record)
