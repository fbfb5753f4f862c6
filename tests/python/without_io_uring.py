"""Runs a command in which io_uring cannot be had, as in many containers: without_io_uring.py ERRNO COMMAND..."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_IO_URING_SETUP = 425  # On every architecture.
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid(errno: int) -> None:
    """From here on, for this process and its children, the kernel answers with that error."""
    steps = [
        (_LOAD, 0, 0, 0),
        (_IF_EQUAL, 0, 1, _IO_URING_SETUP),
        (_RETURN, 0, 0, _ERRNO | errno),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(steps), code)
    for call in ((_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, ctypes.byref(program))):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
