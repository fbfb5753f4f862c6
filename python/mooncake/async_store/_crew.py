"""The few threads that carry out the calls of all event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

# Most calls that become one batch: a long batch keeps those that come later waiting.
_MOST_TOGETHER = 256


class Call:
    """One call: what to do, and the future that waits for it."""

    __slots__ = ("args", "future", "kind", "kwargs", "loop", "name", "state", "watchers")

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, kind: str | None, args: tuple, kwargs: dict):
        self.loop = loop
        self.future = loop.create_future()
        self.name = name
        # Calls of the same kind may become one batch; None: alone.
        self.kind = kind
        self.args = args
        self.kwargs = kwargs
        self.state = "waiting"
        self.watchers: list[asyncio.Future] = []

    def withdraw(self) -> bool:
        """True if no thread has begun it, and now none will."""
        with _STATE:
            if self.state == "waiting":
                self.state = "withdrawn"
            return self.state == "withdrawn"

    def begin(self) -> bool:
        with _STATE:
            if self.state != "waiting":
                return False
            self.state = "running"
            return True

    def when_over(self, future: asyncio.Future) -> None:
        """Sets a future of the same loop once no thread works on it any more."""
        with _STATE:
            if self.state != "over":
                self.watchers.append(future)
                return
        future.set_result(None)


# Guards the states of calls; held for a few instructions only.
_STATE = threading.Lock()


class Crew:
    """Threads of one store, started with the first call."""

    def __init__(self, store: Any, threads: int, run_batch: Callable[[str, Any, list[tuple]], list[Any]]):
        if threads < 1:
            raise ValueError(f"threads={threads}: at least one is needed")
        self._store = weakref.ref(store)
        self._limit = threads
        self._run_batch = run_batch
        self._threads: list[threading.Thread] = []
        self._queue: deque[Call] = deque()
        self._idle = 0
        self._ended = False
        self._wake = threading.Condition()

    def take(self, call: Call) -> None:
        """Queues a call."""
        with self._wake:
            if self._ended:
                raise RuntimeError("the store is closed; set up a new one")
            self._queue.append(call)
            if self._idle:
                self._wake.notify()
            elif len(self._threads) < self._limit:
                thread = threading.Thread(target=self._run, name=f"mooncake-async-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    @property
    def ended(self) -> bool:
        return self._ended

    def end(self) -> None:
        """No more calls: those that wait are cancelled, those that run are waited for."""
        with self._wake:
            self._ended = True
            waiting, self._queue = list(self._queue), deque()
            self._wake.notify_all()
        for call in waiting:
            if call.withdraw():
                with contextlib.suppress(RuntimeError):
                    call.loop.call_soon_threadsafe(call.future.cancel)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while (calls := self._next()) is not None:
            store = self._store()
            self._carry_out(store, calls)
            # A store that nobody else holds may go.
            del store, calls

    def _next(self) -> list[Call] | None:
        """The next calls of one kind, a fair share of them; None at the end."""
        with self._wake:
            while True:
                while not self._queue and not self._ended and self._store() is not None:
                    self._idle += 1
                    # Looks up now and then: the store may have gone without a close.
                    self._wake.wait(1.0)
                    self._idle -= 1
                if not self._queue:
                    return None
                share = min(_MOST_TOGETHER, -(-len(self._queue) // self._limit))
                kind = self._queue[0].kind
                calls = []
                while self._queue and len(calls) < share and self._queue[0].kind == kind:
                    call = self._queue.popleft()
                    if call.begin():
                        calls.append(call)
                    if kind is None:
                        break
                if self._queue and self._idle:
                    self._wake.notify()
                if calls:
                    return calls

    def _carry_out(self, store: Any, calls: list[Call]) -> None:
        outcomes: list[tuple[Call, Any, BaseException | None]]
        try:
            if calls[0].kind is None or len(calls) == 1:
                call = calls[0]
                results = [getattr(store, call.name)(*call.args, **call.kwargs)]
            else:
                results = self._run_batch(calls[0].kind, store, [call.args for call in calls])
            outcomes = [(call, result, None) for call, result in zip(calls, results, strict=True)]
        except BaseException as error:
            if len(calls) > 1 and isinstance(error, Exception):
                # An argument of one of them is wrong: that one alone is to hear of it.
                for call in calls:
                    self._carry_out(store, [call])
                return
            outcomes = [(call, None, error) for call in calls]
        self._deliver(outcomes)

    def _deliver(self, outcomes: list[tuple[Call, Any, BaseException | None]]) -> None:
        """One wake-up a loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list] = {}
        with _STATE:
            for outcome in outcomes:
                outcome[0].state = "over"
                by_loop.setdefault(outcome[0].loop, []).append(outcome)
        for loop, ready in by_loop.items():
            # A loop that was closed meanwhile has nobody who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, ready)


def _settle(ready: list[tuple[Call, Any, BaseException | None]]) -> None:
    for call, result, error in ready:
        for watcher in call.watchers:
            if not watcher.done():
                watcher.set_result(None)
        if call.future.done():
            continue
        if error is None:
            call.future.set_result(result)
        else:
            call.future.set_exception(error)
