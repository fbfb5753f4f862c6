"""Byte strings and tensors from process to process over TCP, beside the engine and independent of it.

One frame for each message, and one frame of 8 bytes back when the receiver has taken it::

    "MCRP", version 1, kind (0 bytes, 1 tensor, 255 answer), 2 bytes 0, u64 length of the head, u64 length of the body

All integers are little endian. The head of a tensor is JSON: its dtype by name and its shape; nothing that comes from
the network is ever executed or unpickled.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

_FRAME = struct.Struct("<4sBB2xQQ")
_MAGIC, _VERSION = b"MCRP", 1
_BYTES, _TENSOR, _ANSWER = 0, 1, 255
_LONGEST_HEAD = 4096
_LONGEST_BODY = 4 << 30
_MOST_DIMENSIONS = 64
# Of messages that are under way at one server, so that no crowd fills its memory.
_MOST_UNDER_WAY = 8 << 30
_MOST_CONNECTIONS = 1024
_STEP = 1 << 20

# Bytes of one element of each kind of tensor.
_ELEMENT = {
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


class _Refused(Exception):
    """The other side says what cannot be understood, or too much of it."""


class ReceivedData:
    """Bytes that have come, and from where."""

    def __init__(self, source_address: str, data: bytearray):
        self._source_address, self._data = source_address, data

    @property
    def source_address(self) -> str:
        """``host:port`` of the sender's end of the connection."""
        return self._source_address

    @property
    def data_size(self) -> int:
        """Bytes."""
        return len(self._data)

    def get_bytes(self) -> bytes:
        """A copy."""
        return bytes(self._data)

    def get_memory_view(self) -> memoryview:
        """The bytes themselves, to be read."""
        return memoryview(self._data).toreadonly()


class ReceivedTensor:
    """A tensor that has come, and from where."""

    def __init__(self, source_address: str, dtype: str, shape: list[int], data: bytearray):
        self._source_address, self._dtype, self._shape, self._data = source_address, dtype, shape, data

    @property
    def source_address(self) -> str:
        """``host:port`` of the sender's end of the connection."""
        return self._source_address

    @property
    def dtype(self) -> str:
        """Name of the elements' type, as torch has it: ``float32``."""
        return self._dtype

    @property
    def shape(self) -> list[int]:
        """Its dimensions."""
        return list(self._shape)

    @property
    def total_bytes(self) -> int:
        """Bytes of all elements."""
        return len(self._data)

    def get_data_size(self) -> int:
        """Bytes of all elements."""
        return len(self._data)

    def get_data_as_bytes(self) -> bytes:
        """A copy of the elements, in row-major order."""
        return bytes(self._data)

    def get_memory_view(self) -> memoryview:
        """The elements themselves, to be read."""
        return memoryview(self._data).toreadonly()

    def to_tensor(self) -> Any:
        """A torch tensor over the elements, without a copy: it and this object share them."""
        import torch

        kind = getattr(torch, self._dtype)
        if not self._data:
            return torch.empty(self._shape, dtype=kind)
        return torch.frombuffer(self._data, dtype=kind).reshape(self._shape)


class RpcInterface:
    """A sender, a receiver, or both. Calls give False or -1 where they fail; wrong types are TypeErrors."""

    def __init__(self) -> None:
        self._timeout = 30.0
        self._pool_size = 100
        self._client = False
        self._lock = threading.Lock()
        self._idle: dict[str, list[socket.socket]] = {}
        self._listen_address = ""
        self._listener: socket.socket | None = None
        self._accepting = threading.Thread()
        # With whether a message has come by it, and since when it is waited for; nothing while one is dealt with.
        self._connections: dict[socket.socket, tuple[bool, float] | None] = {}
        self._under_way = 0
        self._on_data: Callable[[ReceivedData], object] | None = None
        self._on_tensor: Callable[[ReceivedTensor], object] | None = None

    # ------------------------------------------------------------ beginning and end

    def initialize(
        self, listen_address: str = "", thread_count: int = 0, timeout_seconds: int = 30, pool_size: int = 100
    ) -> bool:
        """Prepares sending, and receiving if there is an address to listen at."""
        if not self.initialize_client(pool_size, timeout_seconds):
            return False
        return not listen_address or self.initialize_server(listen_address, thread_count, timeout_seconds)

    def initialize_client(self, pool_size: int = 100, timeout_seconds: int = 30) -> bool:
        """Prepares sending. ``pool_size``: most connections that are kept for each receiver."""
        if timeout_seconds <= 0 or pool_size < 0:
            return False
        self._timeout, self._pool_size, self._client = float(timeout_seconds), pool_size, True
        return True

    def initialize_server(self, listen_address: str, thread_count: int = 8, timeout_seconds: int = 30) -> bool:
        """Prepares receiving at ``host:port``; port 0 takes a free one. Each connection has a thread, whatever
        ``thread_count`` says."""
        del thread_count
        if timeout_seconds <= 0 or _split(listen_address) is None:
            return False
        self._timeout, self._listen_address = float(timeout_seconds), listen_address
        return True

    def start_server(self) -> bool:
        """Receives, and returns once the server is stopped; False at once if it cannot begin."""
        if not self.start_server_async():
            return False
        self._accepting.join()
        return True

    def start_server_async(self) -> bool:
        """Begins to receive, and returns."""
        with self._lock:
            where = _split(self._listen_address)
            if where is None or self._listener is not None:
                return False
            family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
            try:
                self._listener = socket.create_server(where, family=family, backlog=128)
            except OSError:
                return False
            arguments = (self._listener,)
            self._accepting = threading.Thread(target=self._accept, args=arguments, name="mooncake-rpc", daemon=True)
            self._accepting.start()
        return True

    def stop_server(self) -> None:
        """Receives no more; connections are closed. What is kept for sending is closed, too."""
        with self._lock:
            listener, self._listener = self._listener, None
            open_ones = [*self._connections, *(one for kept in self._idle.values() for one in kept)]
            self._idle.clear()
        if listener is not None:
            # Closing alone does not wake the thread that accepts.
            _end(listener)
        for connection in open_ones:
            _end(connection)

    @property
    def local_port(self) -> int:
        """The port that it listens at; 0 if it does not."""
        listener = self._listener
        return listener.getsockname()[1] if listener is not None else 0

    def set_data_receive_callback(self, callback: Callable[[ReceivedData], object], /) -> None:
        """Called in a thread of the server for each message of bytes, before its sender's call returns."""
        self._on_data = _callable(callback)

    def set_tensor_receive_callback(self, callback: Callable[[ReceivedTensor], object], /) -> None:
        """The same for each tensor."""
        self._on_tensor = _callable(callback)

    # ------------------------------------------------------------ sending

    def send_data(self, target_address: str, data: bytes | bytearray | memoryview | str) -> int:
        """0 once the receiver's callback has returned, else -1."""
        return self._send(target_address, _BYTES, b"", _body(data))

    def send_tensor(self, target_address: str, tensor: Any) -> int:
        """The same for a torch tensor, of the processor or of a device."""
        return self._send(target_address, _TENSOR, *_tensor_message(tensor))

    def send_data_async(
        self, target_address: str, data: bytes | bytearray | memoryview | str, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[int]:
        """As ``send_data``, as a future of the loop."""
        return loop.run_in_executor(None, self._send, target_address, _BYTES, b"", _body(data))

    def send_tensor_async(
        self, target_address: str, tensor: Any, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[int]:
        """As ``send_tensor``, as a future of the loop."""
        return loop.run_in_executor(None, self._send, target_address, _TENSOR, *_tensor_message(tensor))

    def _send(self, target: str, kind: int, head: bytes, body: memoryview) -> int:
        where = _split(target)
        if not self._client or where is None or len(body) > _LONGEST_BODY:
            return -1
        deadline = time.monotonic() + self._timeout
        while True:
            with self._lock:
                kept = self._idle.get(target)
                connection = kept.pop() if kept else None
            try:
                if connection is None:
                    connection = socket.create_connection(where, timeout=self._timeout)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                elif _has_ended(connection):
                    # Its receiver went away while it was idle: nothing was sent on it yet.
                    connection.close()
                    continue
                _send_all(connection, _FRAME.pack(_MAGIC, _VERSION, kind, len(head), len(body)) + head, deadline)
                _send_all(connection, body, deadline)
                _, status, _ = _receive_frame(connection, deadline, answer=True)
            except (OSError, _Refused):
                if connection is not None:
                    connection.close()
                return -1
            with self._lock:
                kept = self._idle.setdefault(target, [])
                if len(kept) < self._pool_size:
                    kept.append(connection)
                    connection = None
            if connection is not None:
                connection.close()
            return 0 if status == b"ok" else -1

    # ------------------------------------------------------------ receiving

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError:
                if self._listener is not listener:
                    return
                time.sleep(0.05)  # Out of descriptors: they come back.
                continue
            with self._lock:
                room = self._listener is listener and self._make_room()
                if room:
                    self._connections[connection] = (False, time.monotonic())
            if not room:
                connection.close()
                continue
            source = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
            arguments = (connection, source)
            threading.Thread(target=self._serve, args=arguments, name="mooncake-rpc", daemon=True).start()

    def _make_room(self) -> bool:
        """Where there are too many connections the one goes that has been waited for longest, first of those by which
        nothing has come yet: so a crowd that says nothing shuts nobody out."""
        if len(self._connections) < _MOST_CONNECTIONS:
            return True
        waited_for = [(standing, one) for one, standing in self._connections.items() if standing is not None]
        if not waited_for:
            return False
        _, longest = min(waited_for, key=lambda entry: entry[0])
        del self._connections[longest]
        # Its thread closes it.
        with contextlib.suppress(OSError):
            longest.shutdown(socket.SHUT_RDWR)
        return True

    def _stands(self, connection: socket.socket, standing: tuple[bool, float] | None) -> None:
        with self._lock:
            if connection not in self._connections:
                raise _Refused("too many connections")
            self._connections[connection] = standing

    def _serve(self, connection: socket.socket, source: str) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            known = False
            while True:
                # A sender keeps its connection for the next message as long as it likes.
                connection.settimeout(None)
                if not connection.recv(1, socket.MSG_PEEK):
                    return
                if known:
                    self._stands(connection, None)
                kind, head, body = self._receive(connection)
                self._stands(connection, None)
                try:
                    status = b"ok" if self._deliver(source, kind, head, body) else b"refused"
                except Exception:  # The callback's own matter: told as an unhandled one of a thread is.
                    threading.excepthook(threading.ExceptHookArgs((*_current(), threading.current_thread())))
                    status = b"failed"
                answer = _FRAME.pack(_MAGIC, _VERSION, _ANSWER, len(status), 0) + status
                _send_all(connection, answer, time.monotonic() + self._timeout)
                known = True
                self._stands(connection, (known, time.monotonic()))
        except (OSError, _Refused):
            return
        finally:
            with self._lock:
                self._connections.pop(connection, None)
            connection.close()

    def _receive(self, connection: socket.socket) -> tuple[int, bytes, bytearray]:
        deadline = time.monotonic() + self._timeout
        reserved = 0

        def reserve(length: int) -> None:
            nonlocal reserved
            with self._lock:
                if self._under_way + length > _MOST_UNDER_WAY:
                    raise _Refused("too much is under way")
                self._under_way += length
                reserved += length

        try:
            return _receive_frame(connection, deadline, reserve=reserve)
        finally:
            with self._lock:
                self._under_way -= reserved

    def _deliver(self, source: str, kind: int, head: bytes, body: bytearray) -> bool:
        if kind == _BYTES:
            if self._on_data is None:
                return False
            self._on_data(ReceivedData(source, body))
            return True
        dtype, shape = _tensor_head(head, len(body))
        if self._on_tensor is None:
            return False
        self._on_tensor(ReceivedTensor(source, dtype, shape, body))
        return True


def create_rpc_client(local_rank: int = 0, world_size: int = 1) -> RpcInterface:
    """A sender."""
    del local_rank, world_size
    made = RpcInterface()
    made.initialize_client()
    return made


def create_rpc_server(local_rank: int = 0, world_size: int = 1) -> RpcInterface:
    """A receiver at 0.0.0.0:8080, once it is started; another ``initialize_server`` says where else."""
    del local_rank, world_size
    made = RpcInterface()
    made.initialize("0.0.0.0:8080")
    return made


# ---------------------------------------------------------------- frames


def _receive_frame(
    connection: socket.socket,
    deadline: float,
    answer: bool = False,
    reserve: Callable[[int], None] = lambda _length: None,
) -> tuple[int, bytes, bytearray]:
    fixed = _receive_exactly(connection, _FRAME.size, deadline)
    magic, version, kind, head_length, body_length = _FRAME.unpack(fixed)
    wanted = (_ANSWER,) if answer else (_BYTES, _TENSOR)
    longest_body = 0 if answer else _LONGEST_BODY
    if magic != _MAGIC or version != _VERSION or kind not in wanted:
        raise _Refused("no message of this protocol")
    if head_length > _LONGEST_HEAD or body_length > longest_body:
        raise _Refused("longer than allowed")
    head = bytes(_receive_exactly(connection, head_length, deadline))
    if kind == _TENSOR:
        _tensor_head(head, body_length)  # Before its bytes are waited for.
    return kind, head, _receive_exactly(connection, body_length, deadline, reserve)


def _receive_exactly(
    connection: socket.socket, length: int, deadline: float, reserve: Callable[[int], None] = lambda _length: None
) -> bytearray:
    """Grows as bytes come: a sender takes no more memory than it sends, and none of others by what it promises."""
    data = bytearray()
    while len(data) < length:
        _patience(connection, deadline)
        got = connection.recv(min(_STEP, length - len(data)))
        if not got:
            raise _Refused("ended within a message")
        reserve(len(got))
        data += got
    return data


def _send_all(connection: socket.socket, data: bytes | memoryview, deadline: float) -> None:
    rest = memoryview(data)
    while rest:
        _patience(connection, deadline)
        rest = rest[connection.send(rest[:_STEP]) :]


def _patience(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection on which nothing is expected."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


# ---------------------------------------------------------------- arguments


def _split(address: str) -> tuple[str, int] | None:
    if not isinstance(address, str):
        raise TypeError(f"an address is a str, not {type(address).__name__}")
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)


def _body(data: Any) -> memoryview:
    if isinstance(data, str):
        data = data.encode()
    view = memoryview(data)
    return (view if view.contiguous else memoryview(bytes(view))).cast("B") if view.nbytes else memoryview(b"")


def _callable(callback: Any) -> Any:
    if not callable(callback):
        raise TypeError(f"a callable is needed, not {type(callback).__name__}")
    return callback


def _tensor_message(tensor: Any) -> tuple[bytes, memoryview]:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch tensor is needed, not {type(tensor).__name__}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _ELEMENT or tensor.layout is not torch.strided:
        raise TypeError(f"tensors of {tensor.dtype} ({tensor.layout}) cannot be sent")
    head = json.dumps({"dtype": dtype, "shape": list(tensor.shape)}).encode()
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return head, memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")


def _tensor_head(head: bytes, length: int) -> tuple[str, list[int]]:
    try:
        fields = json.loads(head)
        dtype, shape = fields["dtype"], fields["shape"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _Refused("no head of a tensor") from error
    known = isinstance(dtype, str) and dtype in _ELEMENT and isinstance(shape, list) and len(shape) <= _MOST_DIMENSIONS
    if not known or not all(type(size) is int and 0 <= size <= _LONGEST_BODY for size in shape):
        raise _Refused("no head of a tensor")
    if math.prod(shape) * _ELEMENT[dtype] != length:
        raise _Refused("a tensor of another size than its bytes")
    return dtype, shape


def _current() -> tuple[Any, Any, Any]:
    import sys

    return sys.exc_info()
