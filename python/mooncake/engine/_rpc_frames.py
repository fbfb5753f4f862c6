"""What goes between two ``RpcInterface``: a frame for each message, and one back when the receiver has taken it::

    "MCRP", version 1, kind (0 bytes, 1 tensor, 255 answer), 2 bytes 0, u64 length of the head, u64 length of the body

All integers are little endian. The head of a tensor is JSON: its dtype by name and its shape; nothing that comes from
the network is ever executed or unpickled.
"""

from __future__ import annotations

import json
import math
import struct

FRAME = struct.Struct("<4sBB2xQQ")
MAGIC, VERSION = b"MCRP", 1
BYTES, TENSOR, ANSWER = 0, 1, 255
LONGEST_HEAD = 4096
LONGEST_BODY = 4 << 30
MOST_DIMENSIONS = 64
# Bytes of one system call.
STEP_BYTES = 1 << 20

# Bytes of one element of each kind of tensor.
ELEMENT = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
}


class Refused(Exception):
    """The other side says what cannot be understood, or too much of it."""


def start_of(kind: int, head: bytes, body_length: int) -> bytes:
    """All of a frame but its body."""
    return FRAME.pack(MAGIC, VERSION, kind, len(head), body_length) + head


class Incoming:
    """A message as its bytes come. It grows with them: a sender takes no more memory than it sends."""

    __slots__ = ("_parts", "_wanted", "body", "head", "kind", "missing")

    def __init__(self, answer: bool = False):
        self._wanted = (ANSWER,) if answer else (BYTES, TENSOR)
        self.kind, self.head, self.body = -1, bytearray(), bytearray()
        # What is coming, one after the other, each with its length; the lengths of the last two are in the first.
        self._parts: list[tuple[bytearray, int]] = [(bytearray(), FRAME.size)]
        # Bytes of the part that is coming; 0 when the message is complete.
        self.missing = FRAME.size

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.head) + len(self.body)

    def take(self, data: bytes) -> None:
        """Takes the next bytes, at most ``missing``. Refused if they cannot be meant."""
        part, _ = self._parts[0]
        part += data
        self.missing -= len(data)
        while self.missing == 0 and self._parts:
            part, _ = self._parts.pop(0)
            if self.kind < 0:
                self._begin(part)
            elif part is self.head and self.kind == TENSOR:
                tensor_head(bytes(part), self._parts[0][1])  # Before its bytes are waited for.
            self.missing = self._parts[0][1] if self._parts else 0

    def _begin(self, fixed: bytearray) -> None:
        magic, version, kind, head_length, body_length = FRAME.unpack(fixed)
        if magic != MAGIC or version != VERSION or kind not in self._wanted:
            raise Refused("no message of this protocol")
        if head_length > LONGEST_HEAD or body_length > (0 if kind == ANSWER else LONGEST_BODY):
            raise Refused("longer than allowed")
        self.kind = kind
        self._parts = [(self.head, head_length), (self.body, body_length)]


def tensor_head(head: bytes, length: int) -> tuple[str, list[int]]:
    """The name of the elements' type and the shape; Refused if that is no tensor of so many bytes."""
    try:
        fields = json.loads(head)
        dtype, shape = fields["dtype"], fields["shape"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Refused("no head of a tensor") from error
    known = isinstance(dtype, str) and dtype in ELEMENT and isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS
    if not known or not all(type(size) is int and 0 <= size <= LONGEST_BODY for size in shape):
        raise Refused("no head of a tensor")
    if math.prod(shape) * ELEMENT[dtype] != length:
        raise Refused("a tensor of another size than its bytes")
    return dtype, shape
