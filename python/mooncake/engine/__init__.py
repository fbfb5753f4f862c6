"""The transfer engine: peers read and write each other's registered memory."""

from __future__ import annotations

import enum

from mooncake import _native

__all__ = ["Read", "TransferEngine", "TransferNotify", "TransferOpcode", "Write"]

TransferNotify = _native.TransferNotify


class TransferOpcode(enum.IntEnum):
    """Which way bytes go; both spellings."""

    Read = 0
    Write = 1
    READ = 0
    WRITE = 1


Read, Write = TransferOpcode.Read, TransferOpcode.Write


class TransferEngine(_native.TransferEngine):
    """One engine: a segment of registered memory, and transfers to and from those of peers."""

    TransferOpcode = TransferOpcode
