"""A disk with a cache of its own, as drives have: what was not flushed is lost with the power, in any part.

It serves one emulated machine at a time, by NBD at a Unix socket, and keeps a raw image. Writes go to a second file
beside the image; a flush brings them to the image. `lose_power` brings an arbitrary part of the others there instead,
block by block, which is what a drive may have got to the medium by then.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import struct
import threading
from itertools import pairwise
from pathlib import Path

BLOCK = 4096

_MAGIC, _OPTION_MAGIC, _REPLY_MAGIC = b"NBDMAGIC", b"IHAVEOPT", 0x3E889045565A9
_REQUEST, _ANSWER = 0x25609513, 0x67446698
_FIXED_NEWSTYLE, _NO_ZEROES = 1, 2
_HAS_FLAGS, _HAS_FLUSH = 1, 4
_OPTION_NAME, _OPTION_ABORT, _OPTION_INFO, _OPTION_GO = 1, 2, 6, 7
_ACK, _INFO, _UNKNOWN = 1, 3, 0x80000001
_READ, _WRITE, _END, _FLUSH = range(4)
_INVALID = 22


class VolatileDisk:
    """The image, and the thread that serves it."""

    def __init__(self, image: Path, size: int):
        assert size % BLOCK == 0, size
        self.image, self.size = Path(image), size
        self.socket = self.image.with_suffix(".socket")
        with self.image.open("wb") as file:
            file.truncate(size)
        self._cached = self.image.with_suffix(".cached")
        shutil.copyfile(self.image, self._cached)
        os.truncate(self._cached, size)
        self._medium = os.open(self.image, os.O_RDWR)
        self._newest = os.open(self._cached, os.O_RDWR)
        # Numbers of blocks that the medium does not have yet.
        self._dirty: set[int] = set()
        self.flushes = self.written = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen(1)
        self._peer: socket.socket | None = None
        self._idle = threading.Event()
        self._idle.set()
        self.failure: BaseException | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def drive(self) -> str:
        """As testing/machine/run takes it."""
        return f"nbd:unix:{self.socket}"

    def lose_power(self, dice: random.Random) -> int:
        """After the machine was killed: how many blocks were lost."""
        assert self._idle.wait(30), "the machine is still there"
        assert self.failure is None, self.failure
        kept = dice.choice([0.0, 0.1, 0.5, 0.9])
        landed = {block for block in self._dirty if dice.random() < kept}
        self._copy(landed, self._newest, self._medium)
        lost = self._dirty - landed
        self._copy(lost, self._medium, self._newest)
        self._dirty.clear()
        return len(lost)

    def close(self) -> None:
        self._listener.close()
        for fd in (self._medium, self._newest):
            os.close(fd)
        for file in (self.image, self._cached, self.socket):
            file.unlink(missing_ok=True)

    # ------------------------------------------------------------ what it does with blocks

    def _flush(self) -> None:
        self._copy(self._dirty, self._newest, self._medium)
        self._dirty.clear()
        self.flushes += 1

    @staticmethod
    def _copy(blocks: set[int], source: int, target: int) -> None:
        """In runs of blocks that lie side by side."""
        ordered = sorted(blocks)
        ends = [n for n, (one, two) in enumerate(pairwise(ordered)) if two != one + 1]
        first = 0
        for last in [*ends, len(ordered) - 1] if ordered else []:
            offset, length = ordered[first] * BLOCK, (last - first + 1) * BLOCK
            while length:
                data = os.pread(source, min(length, 1 << 20), offset)
                os.pwrite(target, data, offset)
                offset, length = offset + len(data), length - len(data)
            first = last + 1

    def _write(self, offset: int, data: bytes) -> None:
        os.pwrite(self._newest, data, offset)
        self._dirty.update(range(offset // BLOCK, (offset + len(data) + BLOCK - 1) // BLOCK))
        self.written += len(data)

    # ------------------------------------------------------------ NBD

    def _serve(self) -> None:
        while True:
            try:
                self._peer, _ = self._listener.accept()
            except OSError:
                return  # It was closed.
            self._idle.clear()
            try:
                with self._peer:
                    if self._agree():
                        while self._answer():
                            pass
            except OSError:
                pass  # The machine was killed.
            except BaseException as failure:
                self.failure = failure
                raise
            finally:
                self._idle.set()

    def _take(self, length: int) -> bytes:
        taken = bytearray()
        while len(taken) < length:
            if not (more := self._peer.recv(min(length - len(taken), 1 << 20))):
                raise ConnectionError
            taken += more
        return bytes(taken)

    def _say(self, option: int, kind: int, data: bytes = b"") -> None:
        self._peer.sendall(struct.pack(">QIII", _REPLY_MAGIC, option, kind, len(data)) + data)

    def _agree(self) -> bool:
        """What the two speak; False if the other one leaves."""
        self._peer.sendall(_MAGIC + _OPTION_MAGIC + struct.pack(">H", _FIXED_NEWSTYLE | _NO_ZEROES))
        flags = struct.unpack(">I", self._take(4))[0]
        about = struct.pack(">QH", self.size, _HAS_FLAGS | _HAS_FLUSH)
        while True:
            magic, option, length = struct.unpack(">8sII", self._take(16))
            assert magic == _OPTION_MAGIC, magic
            self._take(length)
            if option == _OPTION_NAME:
                self._peer.sendall(about + (b"" if flags & _NO_ZEROES else bytes(124)))
                return True
            if option in (_OPTION_INFO, _OPTION_GO):
                self._say(option, _INFO, struct.pack(">H", 0) + about)
                self._say(option, _INFO, struct.pack(">HIII", 3, BLOCK, BLOCK, 32 << 20))
                self._say(option, _ACK)
                if option == _OPTION_GO:
                    return True
            elif option == _OPTION_ABORT:
                self._say(option, _ACK)
                return False
            else:
                self._say(option, _UNKNOWN)

    def _answer(self) -> bool:
        """One request; False if there are no more."""
        magic, _, kind, handle, offset, length = struct.unpack(">IHHQQI", self._take(28))
        assert magic == _REQUEST, hex(magic)
        data, error = b"", 0
        if kind == _READ:
            data = os.pread(self._newest, length, offset)
        elif kind == _WRITE:
            self._write(offset, self._take(length))
        elif kind == _FLUSH:
            self._flush()
        elif kind == _END:
            return False
        else:
            error = _INVALID
        self._peer.sendall(struct.pack(">IIQ", _ANSWER, error, handle) + data)
        return True
