"""Byte strings and tensors from process to process over TCP, beside the engine and independent of it."""

from __future__ import annotations

import json
import operator
import socket
import threading
import time
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any

from mooncake.engine._rpc_frames import (
    BYTES,
    ELEMENT,
    LONGEST_BODY,
    STEP_BYTES,
    TENSOR,
    Incoming,
    Refused,
    start_of,
    tensor_head,
)
from mooncake.engine._rpc_server import Server

if TYPE_CHECKING:
    import asyncio

# Threads of a server that calls callbacks, where nobody says how many.
_THREADS = 8
# Seconds, some days: sockets take no time that is much longer.
_LONGEST = 1e6


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
        self._listen_address, self._threads = "", _THREADS
        self._server: Server | None = None
        self._on_data: Callable[[ReceivedData], object] | None = None
        self._on_tensor: Callable[[ReceivedTensor], object] | None = None
        self._unhandled = 0

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
        timeout, pool_size = _seconds(timeout_seconds), _count("pool_size", pool_size)
        if timeout is None or pool_size < 0:
            return False
        self._timeout, self._pool_size, self._client = timeout, pool_size, True
        return True

    def initialize_server(self, listen_address: str, thread_count: int = 8, timeout_seconds: int = 30) -> bool:
        """Prepares receiving at ``host:port``; port 0 takes a free one. ``thread_count``: most callbacks at a time; 8
        if it is 0."""
        timeout, thread_count = _seconds(timeout_seconds), _count("thread_count", thread_count)
        if timeout is None or thread_count < 0 or _split(listen_address) is None:
            return False
        self._timeout, self._listen_address = timeout, listen_address
        self._threads = thread_count or _THREADS
        return True

    def start_server(self) -> bool:
        """Receives, and returns once the server is stopped; False at once if it cannot begin."""
        started = self._start()
        if started is None:
            return False
        started.wait()
        return True

    def start_server_async(self) -> bool:
        """Begins to receive, and returns."""
        return self._start() is not None

    def _start(self) -> Server | None:
        with self._lock:
            where = _split(self._listen_address)
            if where is None or self._server is not None:
                return None
            family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
            try:
                listener = socket.create_server(where, family=family, backlog=128)
            except (OSError, UnicodeError, TypeError):
                # The last two: a host that no name can be.
                return None
            self._server = Server(listener, self._timeout, self._threads, self._deliver)
            return self._server

    def stop_server(self) -> None:
        """Receives no more; connections are closed. What is kept for sending is closed, too."""
        with self._lock:
            server, self._server = self._server, None
            kept = [one for kept in self._idle.values() for one in kept]
            self._idle.clear()
        if server is not None:
            server.stop()
        for connection in kept:
            connection.close()

    @property
    def local_port(self) -> int:
        """The port that it listens at; 0 if it does not."""
        server = self._server
        return server.port if server is not None else 0

    @property
    def unhandled(self) -> int:
        """Messages that came while there was no callback for their kind: taken, answered with 0, and dropped."""
        return self._unhandled

    def set_data_receive_callback(self, callback: Callable[[ReceivedData], object], /) -> None:
        """Called in a thread of the server for each message of bytes, before its sender's call returns."""
        self._on_data = _callable(callback)

    def set_tensor_receive_callback(self, callback: Callable[[ReceivedTensor], object], /) -> None:
        """The same for each tensor."""
        self._on_tensor = _callable(callback)

    # ------------------------------------------------------------ sending

    def send_data(self, target_address: str, data: bytes | bytearray | memoryview | str) -> int:
        """0 once the receiver's callback has returned, or it has taken the bytes and has no callback; else -1."""
        return self._send(target_address, BYTES, b"", _body(data))

    def send_tensor(self, target_address: str, tensor: Any) -> int:
        """The same for a torch tensor, of the processor or of a device."""
        return self._send(target_address, TENSOR, *_tensor_message(tensor))

    def send_data_async(
        self, target_address: str, data: bytes | bytearray | memoryview | str, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[int]:
        """As ``send_data``, as a future of the loop."""
        return loop.run_in_executor(None, self._send, target_address, BYTES, b"", _body(data))

    def send_tensor_async(
        self, target_address: str, tensor: Any, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[int]:
        """As ``send_tensor``, as a future of the loop."""
        return loop.run_in_executor(None, self._send, target_address, TENSOR, *_tensor_message(tensor))

    def _send(self, target: str, kind: int, head: bytes, body: memoryview) -> int:
        where = _split(target)
        if not self._client or where is None or len(body) > LONGEST_BODY:
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
                _send_all(connection, start_of(kind, head, len(body)), deadline)
                _send_all(connection, body, deadline)
                status = _receive_answer(connection, deadline)
            except (OSError, UnicodeError, Refused):
                # A UnicodeError: a host that no name can be.
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

    def _deliver(self, source: str, kind: int, head: bytes, body: bytearray) -> None:
        if kind == BYTES:
            self._hand_over(self._on_data, ReceivedData(source, body))
        else:
            dtype, shape = tensor_head(head, len(body))
            self._hand_over(self._on_tensor, ReceivedTensor(source, dtype, shape, body))

    def _hand_over(self, callback: Callable[[Any], object] | None, received: ReceivedData | ReceivedTensor) -> None:
        if callback is not None:
            callback(received)
            return
        # Mooncake tells the sender that its message arrived; the receiver can see that it dropped some.
        with self._lock:
            self._unhandled += 1


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


# ---------------------------------------------------------------- the sender's connection


def _receive_answer(connection: socket.socket, deadline: float) -> bytes:
    answer = Incoming(answer=True)
    while answer.missing:
        _set_timeout(connection, deadline)
        got = connection.recv(min(STEP_BYTES, answer.missing))
        if not got:
            raise Refused("ended within a message")
        answer.take(got)
    return bytes(answer.head)


def _send_all(connection: socket.socket, data: bytes | memoryview, deadline: float) -> None:
    rest = memoryview(data)
    while rest:
        _set_timeout(connection, deadline)
        rest = rest[connection.send(rest[:STEP_BYTES]) :]


def _set_timeout(connection: socket.socket, deadline: float) -> None:
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


# ---------------------------------------------------------------- arguments


def _split(address: str) -> tuple[str, int] | None:
    if not isinstance(address, str):
        raise TypeError(f"an address is a str, not {type(address).__name__}")
    host, _, port = address.rpartition(":")
    # The resolver would end a host at its first NUL, and mean another one.
    if not host or "\0" in host or not (port.isascii() and port.isdigit() and len(port) <= 5) or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)


def _seconds(given: Any) -> float | None:
    """A time for one message; None if nothing could be done in it."""
    if not isinstance(given, Real):
        raise TypeError(f"timeout_seconds: a number is needed, not {type(given).__name__}")
    return float(min(given, _LONGEST)) if given > 0 else None


def _count(name: str, given: Any) -> int:
    try:
        return operator.index(given)
    except TypeError:
        raise TypeError(f"{name}: an int is needed, not {type(given).__name__}") from None


def _body(data: Any) -> memoryview:
    if isinstance(data, str):
        data = data.encode()
    view = memoryview(data)
    return (view if view.c_contiguous else memoryview(bytes(view))).cast("B") if view.nbytes else memoryview(b"")


def _callable(callback: Any) -> Any:
    if not callable(callback):
        raise TypeError(f"a callable is needed, not {type(callback).__name__}")
    return callback


def _tensor_message(tensor: Any) -> tuple[bytes, memoryview]:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch tensor is needed, not {type(tensor).__name__}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ELEMENT or tensor.layout is not torch.strided:
        raise TypeError(f"tensors of {tensor.dtype} ({tensor.layout}) cannot be sent")
    head = json.dumps({"dtype": dtype, "shape": list(tensor.shape)}).encode()
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return head, memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")
