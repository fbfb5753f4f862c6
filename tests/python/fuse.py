"""The least that is a FUSE file system: one empty folder, served by a thread of the test. Root alone mounts it."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import subprocess
import threading
from pathlib import Path

import pytest

_GETATTR, _OPENDIR, _STATFS, _INIT, _RELEASEDIR, _READDIR = 3, 27, 17, 26, 29, 28
_FORGET = (2, 42)
_HEADER = struct.Struct("<IIQQIIII")
_libc = ctypes.CDLL(None, use_errno=True)


class EmptyFuse:
    def __init__(self, path: Path):
        path.mkdir()
        self.path = path
        try:
            self._device = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            pytest.skip(f"no FUSE here: {error}")
        options = f"fd={self._device},rootmode=40755,user_id={os.geteuid()},group_id={os.getegid()},allow_other"
        if _libc.mount(b"empty", os.fsencode(path), b"fuse.empty", 0, options.encode()) != 0:
            os.close(self._device)
            pytest.skip(f"FUSE cannot be mounted here: {os.strerror(ctypes.get_errno())}")
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=False)
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError:
                return  # It was unmounted.
            _, opcode, unique, *_ = _HEADER.unpack_from(request)
            if opcode in _FORGET:
                continue
            answer = self._answer(opcode)
            error = 0 if answer is not None else -38
            answer = answer or b""
            try:
                os.write(self._device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)
            except OSError:
                return

    def _answer(self, opcode: int) -> bytes | None:
        """None: it can do no such thing."""
        if opcode == _INIT:
            return struct.pack("<IIIIHHI", 7, 31, 0, 0, 16, 12, 1 << 17) + bytes(40)
        if opcode == _GETATTR:
            about = (1, 0, 0, 0, 0, 0, 0, 0, 0, stat.S_IFDIR | 0o755, 2, os.geteuid(), os.getegid(), 0, 4096, 0)
            return struct.pack("<QII", 1, 0, 0) + struct.pack("<QQQQQQIIIIIIIIII", *about)
        if opcode == _STATFS:
            return struct.pack("<QQQQQIIII", 1 << 20, 1 << 20, 1 << 20, 100, 100, 4096, 255, 4096, 0) + bytes(24)
        if opcode == _OPENDIR:
            return struct.pack("<QII", 0, 0, 0)
        if opcode in (_READDIR, _RELEASEDIR):
            return b""
        return None
