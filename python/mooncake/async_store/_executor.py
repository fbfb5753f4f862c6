"""The few threads that carry out the calls of all event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from mooncake import _native

# Most calls that become one batch: a long batch keeps those that come later waiting.
_MOST_TOGETHER = 256

# A batch of this many calls, and how long its thread has the queue for itself.
# Threads that work on short batches at the same time spend more on fighting for
# the interpreter than they gain; long batches (large values, slow peers) run side by side.
_MANY = 32
_TURN_S = 0.02

# How often an idle worker looks whether the store is still there, which may go without a close.
_LOOK_UP_S = 1.0


def _closed() -> RuntimeError:
    return RuntimeError("the store is closed; set up a new one")


class Call:
    """One call: what to do, and the future that waits for it."""

    __slots__ = (
        "args",
        "code",
        "future",
        "kind",
        "kwargs",
        "loop",
        "name",
        "reason",
        "shared",
        "state",
        "take_back",
        "wanted",
        "watchers",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, kind: str | None, args: tuple, kwargs: dict):
        self.loop = loop
        self.future = loop.create_future()
        self.name = name
        # Calls of the same kind may become one batch; None: alone.
        self.kind = kind
        self.args = args
        self.kwargs = kwargs
        self.state = "waiting"
        # False once its caller has been cancelled.
        self.wanted = True
        # What it is carried out with.
        self.shared: _Shared | None = None
        # What is to be done with a result that nobody hears of, in any thread.
        self.take_back: Callable[[Any], None] | None = None
        # Why it failed.
        self.reason, self.code = "", 0
        # Who waits until no thread works on it any more; hardly any call has one.
        self.watchers: list[asyncio.Future] | None = None

    def withdraw(self) -> bool:
        """True if no thread has begun it, and now none will. One that runs is interrupted if nobody wants it now."""
        with _STATE:
            if self.state == "waiting":
                self.state = "withdrawn"
            elif self.wanted and self.shared is not None:
                self.shared.lose_one()
            self.wanted = False
            return self.state == "withdrawn"

    def is_unheard(self, result: Any) -> None:
        """Its caller does not hear of this result, which is taken back, once."""
        take_back, self.take_back = self.take_back, None
        if take_back is not None:
            take_back(result)

    def refuse(self) -> None:
        """Its answer when the store is closed; in the thread of its loop."""
        if not self.future.done():
            self.future.set_exception(_closed())

    def when_over(self, future: asyncio.Future) -> None:
        """Sets a future of the same loop once no thread works on it any more."""
        with _STATE:
            if self.state != "over":
                self.watchers = [*(self.watchers or ()), future]
                return
        future.set_result(None)


class _Shared:
    """What calls have in common that one call of the store carries out: it ends when nobody wants them."""

    __slots__ = ("_wanted", "interrupt")

    def __init__(self, calls: list[Call]):
        self.interrupt = _native._Interrupt()
        with _STATE:
            self._wanted = 0
            for call in calls:
                call.shared = self
                self._wanted += call.wanted
            if self._wanted == 0:
                self.interrupt.set()

    def lose_one(self) -> None:
        self._wanted -= 1
        if self._wanted == 0:
            self.interrupt.set()


# Guards the states of calls; held for a few instructions only.
_STATE = threading.Lock()


class _Worker(threading.Thread):
    """One of the threads, and the bell that it waits for."""

    def __init__(self, number: int, run: Callable[[_Worker], None]):
        super().__init__(name=f"mooncake-async-{number}", daemon=True)
        self._target_run = run
        self._bell = threading.Lock()
        self._bell.acquire()

    def run(self) -> None:
        self._target_run(self)

    def wait(self, seconds: float) -> None:
        self._bell.acquire(timeout=seconds)

    def ring(self) -> None:
        """Under the executor's lock. Rung twice before anybody listens, it is heard once."""
        if self._bell.locked():
            self._bell.release()


class Executor:
    """Threads of one store, started when there is work for them."""

    def __init__(self, store: Any, threads: int, run_batch: Callable[[str, Any, list[tuple]], list[Any]]):
        if not isinstance(threads, int):
            raise TypeError(f"threads={threads!r}: an int is needed, not {type(threads).__name__}")
        if threads < 1:
            raise ValueError(f"threads={threads}: at least one is needed")
        self._store = weakref.ref(store)
        self._limit = threads
        self._run_batch = run_batch
        self._workers: list[_Worker] = []
        # Those that wait for work.
        self._idle: list[_Worker] = []
        self._queue: deque[Call] = deque()
        # Calls that a worker takes at once: its part of what waited when calls came last.
        self._share = 1
        # Who took many calls last, and when: the others leave the queue to it for a while.
        self._taker: _Worker | None = None
        self._taken = 0.0
        # Calls of a loop's present turn; each loop touches its own entry only.
        self._gathered: dict[asyncio.AbstractEventLoop, list[Call]] = {}
        self._ended = False
        self._lock = threading.Lock()
        self._process = os.getpid()

    def take(self, call: Call) -> None:
        """Queues a call, together with all others of the same turn of its loop."""
        if self._ended:
            raise _closed()
        gathered = self._gathered.get(call.loop)
        if gathered is None:
            # A loop that was closed in the very turn of its calls does not come back for them.
            for closed in [loop for loop in list(self._gathered) if loop.is_closed()]:
                self._gathered.pop(closed, None)
            # Workers that wake up while the loop still makes calls would only fight with it for the interpreter.
            gathered = self._gathered[call.loop] = []
            call.loop.call_soon(self._queue_up, call.loop)
        gathered.append(call)

    def take_at_once(self, call: Call) -> None:
        """The same from any thread, whether its loop goes on or not."""
        with self._lock:
            if self._ended:
                raise _closed()
            self._queue.append(call)
            self._call_one()

    def _queue_up(self, loop: asyncio.AbstractEventLoop) -> None:
        calls = self._gathered.pop(loop)
        with self._lock:
            if not self._ended:
                self._queue.extend(calls)
                self._share = min(_MOST_TOGETHER, -(-len(self._queue) // self._limit))
                self._call_one()
                return
        for call in calls:
            if call.withdraw():
                call.refuse()

    def _call_one(self) -> None:
        """Another worker for the queue, if there is one. Each calls the next."""
        if self._idle:
            # What it allocated for its results before is warm.
            worker = self._taker if self._taker in self._idle else self._idle[-1]
            self._idle.remove(worker)
            worker.ring()
        elif len(self._workers) < self._limit:
            worker = _Worker(len(self._workers), self._work)
            self._workers.append(worker)
            worker.start()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process whose executor it is."""
        return os.getpid() != self._process

    @property
    def ended(self) -> bool:
        return self._ended

    def end(self) -> None:
        """No more calls: those that wait fail, those that run are waited for."""
        with self._lock:
            self._ended = True
            waiting, self._queue = list(self._queue), deque()
            for worker in self._idle:
                worker.ring()
            self._idle.clear()
        for call in waiting:
            if call.withdraw():
                with contextlib.suppress(RuntimeError):
                    call.loop.call_soon_threadsafe(call.refuse)
        for worker in self._workers:
            if worker is not threading.current_thread():
                worker.join()

    def _work(self, me: _Worker) -> None:
        while True:
            with self._lock:
                if me in self._idle:
                    # Nobody rang.
                    self._idle.remove(me)
                if self._ended:
                    return
                pause = self._pause(me)
                calls = self._next(me) if pause == 0 else []
                if not calls:
                    self._idle.append(me)
            if calls:
                store = self._store()
                self._carry_out(store, calls)
                # A store that nobody else holds may go.
                del store, calls
            elif self._store() is None:
                # Without a close; its calls have ended, for each holds it.
                return
            else:
                me.wait(pause)

    def _pause(self, me: _Worker) -> float:
        """Seconds until this worker may take from the queue; 0: now."""
        if not self._queue:
            return _LOOK_UP_S
        if len(self._queue) < _MANY or self._taker is me:
            return 0
        return max(0, self._taken + _TURN_S - time.monotonic())

    def _next(self, me: _Worker) -> list[Call]:
        """The next calls of one kind, a fair share of them."""
        calls: list[Call] = []
        queue, most = self._queue, self._share
        kind = queue[0].kind
        with _STATE:
            while queue and len(calls) < most and queue[0].kind == kind:
                call = queue.popleft()
                if call.state == "waiting":
                    call.state = "running"
                    calls.append(call)
                if kind is None:
                    break
        if len(calls) >= _MANY:
            self._taker, self._taken = me, time.monotonic()
        if self._queue:
            self._call_one()
        return calls

    def _carry_out(self, store: Any, calls: list[Call]) -> None:
        outcomes: list[tuple[Call, Any, BaseException | None]]
        _native._begin(store)
        try:
            with _Shared(calls).interrupt:
                if calls[0].kind is None or len(calls) == 1:
                    call = calls[0]
                    results = [getattr(store, call.name)(*call.args, **call.kwargs)]
                else:
                    results = self._run_batch(calls[0].kind, store, [call.args for call in calls])
            _note_reason(store.last_error(), _native._last_code(store), calls, results)
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
        loop, ready, unheard = None, [], []
        with _STATE:
            for outcome in outcomes:
                call = outcome[0]
                call.state = "over"
                if call.take_back is not None and not call.wanted and outcome[2] is None:
                    unheard.append(outcome)
                if call.loop is not loop:
                    loop = call.loop
                    ready = by_loop.setdefault(loop, [])
                ready.append(outcome)
        # Its loop may not come to it any more.
        for call, result, _ in unheard:
            call.is_unheard(result)
        for loop, ready in by_loop.items():
            # A loop that was closed meanwhile has nobody who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, ready)


def _note_reason(reason: str, code: int, calls: list[Call], results: list[Any]) -> None:
    """Whose reason it is: the first failure's, and theirs that failed alike."""
    if len(calls) == 1:
        calls[0].reason, calls[0].code = reason, code
    elif reason:
        failed = [(call, result) for call, result in zip(calls, results, strict=True) if _is_failure(result)]
        for call, result in failed:
            if result == failed[0][1]:
                call.reason, call.code = reason, code


def _is_failure(result: Any) -> bool:
    return result is None or (type(result) is int and result < 0) or (type(result) is bytes and not result)


def _settle(ready: list[tuple[Call, Any, BaseException | None]]) -> None:
    for call, result, error in ready:
        for watcher in call.watchers or ():
            if not watcher.done():
                watcher.set_result(None)
        future = call.future
        if future.done():
            if error is None:
                call.is_unheard(result)
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
