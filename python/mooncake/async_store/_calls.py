"""Which calls there are, which of them become batches, and how they are awaited."""

from __future__ import annotations

import asyncio
import copy
import functools
import re
from collections.abc import Callable
from typing import Any

from mooncake import _native
from mooncake.async_store._executor import Call, Executor
from mooncake.errors import started_keys
from mooncake.store import MooncakeDistributedStore, ParallelAxis, ReadTarget, ReplicateConfig, TensorParallelism

# Calls that read or write memory of their caller while they run.
_ON_MEMORY = re.compile(r"(batch_)?(put|pub|upsert)(?!_session).*|.*_into(_.*)?|(un)?register_buffer")


def _may_touch_memory(name: str, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a call that runs works on memory that its caller may change: `bytes` never do."""
    if not _ON_MEMORY.fullmatch(name):
        return False
    return not all(map(_is_constant, (*args, *kwargs.values())))


def _is_constant(arg: Any) -> bool:
    if isinstance(arg, (list, tuple)):
        return all(map(_is_constant, arg))
    return arg is None or isinstance(arg, (str, bytes, ReplicateConfig))


def _own(arg: Any) -> Any:
    """The argument as it is now: a thread comes to it later."""
    if isinstance(arg, (list, tuple)):
        return [_own(one) if isinstance(one, _CHANGEABLE) else one for one in arg]
    if isinstance(arg, dict):
        return {name: _own(value) for name, value in arg.items()}
    return copy.deepcopy(arg) if isinstance(arg, (ParallelAxis, TensorParallelism, ReadTarget)) else copy.copy(arg)


_CHANGEABLE = (list, tuple, dict, ReplicateConfig, ParallelAxis, TensorParallelism, ReadTarget)


def _one_by_one(batch: str) -> Callable[[Any, list[tuple]], list[Any]]:
    """Calls of one key as one call of the batch form: each argument becomes a list."""

    def run(store: Any, calls: list[tuple]) -> list[Any]:
        return getattr(store, batch)(*(list(column) for column in zip(*calls, strict=True)))

    return run


# What calls of one kind, waiting together, become. Only those without options: the rest goes one by one.
_BATCHES: dict[str, tuple[int, Callable[[Any, list[tuple]], list[Any]]]] = {
    "get": (1, _one_by_one("get_batch")),
    "get_buffer": (1, _one_by_one("batch_get_buffer")),
    "is_exist": (1, _one_by_one("batch_is_exist")),
    "remove": (1, _one_by_one("batch_remove")),
    "put": (2, _one_by_one("_put_each")),
    "put_from": (3, _one_by_one("batch_put_from")),
    "get_into": (3, _one_by_one("batch_get_into")),
    "put_tensor": (2, _one_by_one("batch_put_tensor")),
    "get_tensor": (1, _one_by_one("batch_get_tensor")),
}


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A store whose methods are also coroutines, by the name ``async_NAME``.

    ``threads`` carry the calls out; calls of any number wait for them. All event
    loops and threads of the process may use one store.
    """

    def __init__(self, *, threads: int = 4):
        super().__init__()
        self._threads = threads
        self._executor = Executor(self, threads, run_batch)

    def setup(self, *args: Any, **kwargs: Any) -> int:
        if self._executor.ended:
            self._executor = Executor(self, self._threads, run_batch)
        return super().setup(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Only for what the class does not have: the first use makes it.
        if name.startswith("async_"):
            method = getattr(type(self), name.removeprefix("async_"), None)
            if callable(method):
                made = functools.partial(_call, self, name.removeprefix("async_"))
                functools.update_wrapper(made, method)
                self.__dict__[name] = made
                return made
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        names = list(super().__dir__())
        calls = (
            name for name in names if not name.startswith(("_", "async_")) and callable(getattr(type(self), name, None))
        )
        return [*names, *(f"async_{name}" for name in calls)]

    async def __aenter__(self) -> MooncakeDistributedStoreAsync:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.async_close()

    async def _revoke_unheard(self, keys: list[str | bytes]) -> None:
        """Revokes put sessions whose caller hears an exception only, and goes on with that if it is cancelled."""
        await asyncio.shield(_revoke(self._executor, asyncio.get_running_loop(), keys))

    def close(self) -> int:
        """Waits for the calls in flight, then closes. Those that no thread has taken yet fail with a RuntimeError."""
        if not self._executor.forked:
            self._executor.end()
        return super().close()


async def _call(store: MooncakeDistributedStoreAsync, name: str, /, *args: Any, **kwargs: Any) -> Any:
    executor = store._executor
    if name == "last_error" or executor.forked:
        # In a forked child its threads are the parent's: every call is refused there, at once.
        return getattr(store, name)(*args, **kwargs)
    batch = _BATCHES.get(name)
    kind = name if batch is not None and batch[0] == len(args) and not kwargs else None
    if kind is None:
        args = tuple(_own(arg) if isinstance(arg, _CHANGEABLE) else arg for arg in args)
        kwargs = {name: _own(arg) if isinstance(arg, _CHANGEABLE) else arg for name, arg in kwargs.items()}
    call = Call(asyncio.get_running_loop(), name, kind, args, kwargs)
    if name == "batch_put_session_start":
        call.take_back = functools.partial(_take_back, executor, call)
    executor.take(call)
    try:
        result = await call.future
    except asyncio.CancelledError:
        is_withdrawn, future = call.withdraw(), call.future
        if future.done() and not future.cancelled() and future.exception() is None:
            call.is_unheard(future.result())
        if not is_withdrawn and _may_touch_memory(name, args, kwargs):
            await _until_left_alone(call)
        raise
    # For this thread it is the call made last, wherever it was carried out.
    if call.reason:
        _native._fail(store, call.code, call.reason)
    else:
        _native._begin(store)
    return result


def _take_back(executor: Executor, call: Call, codes: list[int]) -> None:
    """Revokes the put sessions that a call has started whose caller was cancelled."""
    if keys := started_keys(codes, call.args, call.kwargs):
        _revoke(executor, call.loop, keys)


def _revoke(executor: Executor, loop: asyncio.AbstractEventLoop, keys: list[str | bytes]) -> asyncio.Future:
    """Revokes put sessions, whoever still waits for that."""
    call = Call(loop, "batch_put_session_revoke", None, (keys,), {})
    # A store that closes takes all of them back.
    try:
        executor.take_at_once(call)
    except RuntimeError:
        call.future.set_result(None)
    return call.future


async def _until_left_alone(call: Call) -> None:
    """Waits, however often it is cancelled, until no thread works on the call's memory."""
    over = asyncio.get_running_loop().create_future()
    call.when_over(over)
    while not over.done():
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError:
            continue


def run_batch(kind: str, store: Any, calls: list[tuple]) -> list[Any]:
    """Carries out calls of one kind with one call of the store."""
    return _BATCHES[kind][1](store, calls)
