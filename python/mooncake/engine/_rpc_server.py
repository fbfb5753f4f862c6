"""The receiving end of ``RpcInterface``.

One thread has all connections and takes their bytes as they come; few others do what is to be done with a message. So
neither a crowd that says nothing nor one that dawdles keeps anybody waiting: the first message has a deadline, and each
other one from its first byte. Where there are too many connections the one goes that has stood still for the longest,
those that have not been served yet before the others.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from mooncake.engine._rpc_frames import ANSWER, STEP_BYTES, Incoming, Refused, start_of

_MOST_CONNECTIONS = 1024
# Of messages that are under way, so that no crowd fills the memory.
_MOST_UNDER_WAY = 8 << 30
# System calls for one connection before the others have their turn.
_TURN = 16
# Between two looks at the deadlines.
_LOOK = 0.25


class _Connection:
    __slots__ = ("busy", "due", "incoming", "moved", "served", "socket", "source")

    def __init__(self, connection: socket.socket, source: str, timeout: float):
        self.socket, self.source = connection, source
        self.incoming = Incoming()
        self.moved = time.monotonic()
        # None: between two messages, for as long as its sender likes.
        self.due: float | None = self.moved + timeout
        # A message of it is complete and not answered yet.
        self.busy = False
        self.served = False


class Server:
    """Begins to receive at a listener, which is its own from now on. ``deliver`` is given each message, in one of
    ``threads`` threads at most."""

    def __init__(
        self,
        listener: socket.socket,
        timeout: float,
        threads: int,
        deliver: Callable[[str, int, bytes, bytearray], None],
    ):
        self._listener, self._timeout, self._most_threads, self._deliver = listener, timeout, threads, deliver
        listener.setblocking(False)
        self.port: int = listener.getsockname()[1]
        self._stopping = False
        self._connections: set[_Connection] = set()
        self._under_way = 0
        self._messages: queue.SimpleQueue[_Connection | None] = queue.SimpleQueue()
        # Connections whose messages have been answered, or that are to be closed for it.
        self._done: deque[tuple[_Connection, bool]] = deque()
        self._threads, self._undone = 0, 0
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="mooncake-rpc", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Returns when it has been stopped."""
        self._thread.join()

    def stop(self) -> None:
        """Receives no more; connections are closed."""
        self._stopping = True
        self._wake()
        self._thread.join()

    # ------------------------------------------------------------ the thread that has the connections

    def _run(self) -> None:
        looked = 0.0
        try:
            while not self._stopping:
                waits = any(one.due is not None for one in self._connections)
                for key, _ in self._selector.select(_LOOK if waits else None):
                    if key.data is not None:
                        # It may have made room for another one since.
                        if key.data in self._connections:
                            self._read(key.data)
                    elif key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._take_back()
                now = time.monotonic()
                if now - looked >= _LOOK:
                    looked = now
                    for one in [one for one in self._connections if one.due is not None and one.due < now]:
                        self._close(one)
        finally:
            self._selector.close()
            for one in [self._listener, self._woken, self._waker, *(one.socket for one in self._connections)]:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            for _ in range(self._threads):
                self._messages.put(None)

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors: they come back.
            if not self._make_room():
                time.sleep(0.05)
            return
        if len(self._connections) >= _MOST_CONNECTIONS and not self._make_room():
            connection.close()
            return
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            connection.close()
            return
        source = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        made = _Connection(connection, source, self._timeout)
        self._connections.add(made)
        self._selector.register(connection, selectors.EVENT_READ, made)

    def _make_room(self) -> bool:
        """Closes the connection that is missed least; false if all are being served."""
        idle = (one for one in self._connections if not one.busy)
        stillest = min(idle, key=lambda one: (one.served, one.moved), default=None)
        if stillest is not None:
            self._close(stillest)
        return stillest is not None

    def _read(self, one: _Connection) -> None:
        try:
            for _ in range(_TURN):
                data = one.socket.recv(min(STEP_BYTES, one.incoming.missing))
                if not data:
                    self._close(one)
                    return
                one.moved = time.monotonic()
                if one.due is None:
                    one.due = one.moved + self._timeout
                before = one.incoming.size
                one.incoming.take(data)
                self._under_way += one.incoming.size - before
                if one.incoming.missing == 0:
                    self._selector.unregister(one.socket)
                    one.busy, one.due = True, None
                    self._hand_over(one)
                    return
                if self._under_way > _MOST_UNDER_WAY:
                    raise Refused("too much is under way")
        except BlockingIOError:
            return
        except (OSError, Refused):
            self._close(one)

    def _take_back(self) -> None:
        """Connections whose messages were answered go on."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        while self._done:
            one, goes_on = self._done.popleft()
            self._undone -= 1
            one.busy, one.served = False, True
            if not goes_on:
                self._close(one)
                continue
            self._under_way -= one.incoming.size
            one.incoming, one.moved = Incoming(), time.monotonic()
            self._selector.register(one.socket, selectors.EVENT_READ, one)

    def _close(self, one: _Connection) -> None:
        self._under_way -= one.incoming.size
        self._connections.discard(one)
        with contextlib.suppress(KeyError):
            self._selector.unregister(one.socket)
        one.socket.close()

    def _hand_over(self, one: _Connection) -> None:
        self._messages.put(one)
        self._undone += 1
        if self._undone > self._threads and self._threads < self._most_threads:
            # Where no thread is to be had, those that there are do it.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._serve, name="mooncake-rpc", daemon=True).start()
                self._threads += 1

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    # ------------------------------------------------------------ the threads that deliver

    def _serve(self) -> None:
        while (one := self._messages.get()) is not None:
            message = one.incoming
            try:
                self._deliver(one.source, message.kind, bytes(message.head), message.body)
                status: bytes | None = b"ok"
            except Refused:
                status = None
            except BaseException:
                # The callback's own matter, a SystemExit too: told as an unhandled one of a thread is. The thread has
                # other messages to serve, and this one's sender waits.
                status = b"failed"
                with contextlib.suppress(BaseException):
                    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            self._done.append((one, status is not None and _answer(one.socket, status)))
            self._wake()
            del one, message


def _answer(connection: socket.socket, status: bytes) -> bool:
    """Whether it could be said: a sender that reads its answers has room for one."""
    answer = start_of(ANSWER, status, 0)
    try:
        return connection.send(answer) == len(answer)
    except OSError:
        return False
