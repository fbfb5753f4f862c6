"""Exceptions for those who want them beside the integer codes of the store.

``checked(store)`` is the same store with every failure raised, and every miss of ``get``, ``get_buffer``,
``get_tensor`` and ``get_array``::

    from mooncake.errors import NoSpace, checked

    try:
        checked(store).put("key", value)
    except NoSpace as full:
        print(full.code, full)
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, overload

from mooncake import _native

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from mooncake.async_store import MooncakeDistributedStoreAsync
    from mooncake.store import BufferHandle, MooncakeDistributedStore

    class CheckedStore(MooncakeDistributedStore):
        """What `checked` makes of a store, for those who check types."""

        def get_buffer(self, key: str | bytes, /) -> BufferHandle: ...
        def get_tensor(self, key: str | bytes) -> Tensor: ...
        def get_array(self, key: str | bytes) -> NDArray[Any]: ...

    class CheckedStoreAsync(MooncakeDistributedStoreAsync):
        """What `checked` makes of an asynchronous store."""

        def get_buffer(self, key: str | bytes, /) -> BufferHandle: ...
        def get_tensor(self, key: str | bytes) -> Tensor: ...
        def get_array(self, key: str | bytes) -> NDArray[Any]: ...
        async def async_get_buffer(self, key: str | bytes, /) -> BufferHandle: ...
        async def async_get_tensor(self, key: str | bytes) -> Tensor: ...
        async def async_get_array(self, key: str | bytes) -> NDArray[Any]: ...


class StoreError(Exception):
    """A call failed; ``code`` is the integer that the plain call returns."""

    def __init__(self, code: int, reason: str = "", key: str | bytes | None = None):
        self.code = code
        self.reason = reason
        #: The key that failed, of a batch the first of them.
        self.key = key
        what = reason or "no reason is known"
        super().__init__(f"{what} (code {code})" if key is None else f"{key!r}: {what} (code {code})")

    def __reduce__(self) -> tuple[type[StoreError], tuple[int, str, str | bytes | None]]:
        # As processes hand it on: what it was made of, not its text.
        return type(self), (self.code, self.reason, self.key)


class InternalError(StoreError):
    """-1: a defect; please report it."""


class NoSpace(StoreError):
    """-200: the pool has no room for the object."""


class InvalidKey(StoreError):
    """-400: no object can have this key."""


class InvalidParams(StoreError):
    """-600: the arguments make no sense, or the store is not set up."""


class Forked(StoreError):
    """-601: this process was forked from the one that set the store up."""


class NotReady(StoreError):
    """-703: another put of the key is under way."""


class NotFound(StoreError, KeyError):
    """-704: no such object."""

    __str__ = Exception.__str__


class AlreadyExists(StoreError):
    """-705: the object that a put session was to make is there."""


class Protected(StoreError):
    """-706: looked up a moment ago."""


class SessionOver(StoreError):
    """-707: the get or put session of the key is over: what it looked up or reserved is its own no more."""


class TransferFailed(StoreError):
    """-800: the bytes could not be moved."""


class ChecksumMismatch(TransferFailed):
    """-801: the bytes that arrived are not the object's."""


class MasterUnreachable(StoreError, ConnectionError):
    """-900: no master answers, or it refused the call."""


class Timeout(StoreError, TimeoutError):
    """-901: it took too long."""


class NotSupported(StoreError):
    """-1012: not in this version, or not in the version of the master."""


class TiersNotAllowed(StoreError):
    """-1300: the store was to have a tier, and the master was started with --enable_offload=false."""


class FileMissing(StoreError, FileNotFoundError):
    """-1100: the file is not there, or the tensor that was to be saved in it."""

    __str__ = Exception.__str__


class FileUnreadable(StoreError, OSError):
    """-1102: the file has no tensors that can be read."""

    __str__ = Exception.__str__


class FileUnwritable(StoreError, OSError):
    """-1103: the file cannot be written."""

    __str__ = Exception.__str__


NOT_FOUND = -704

# Calls that answer a miss, or a failure, with a value: none that could be stored is empty.
_MISSES: dict[str, bytes | None] = {"get": b"", "get_buffer": None, "get_tensor": None, "get_array": None}

# The one table of codes is the native module's.
BY_CODE: dict[int, type[StoreError]] = {
    number: globals()[exception] for number, _, exception, _ in _native._error_codes() if exception
}


def error(code: int, reason: str = "", key: str | bytes | None = None) -> StoreError:
    """The exception of a code."""
    if code == NOT_FOUND and not reason:
        reason = "no such object"
    return BY_CODE.get(code, StoreError)(code, reason, key)


class Checked:
    """A store whose failures are exceptions. Everything else is the store's own."""

    def __init__(self, store: Any):
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name.removeprefix("async_") in ("health_check", "last_error", "get_hostname") or not callable(found):
            return found
        if name.startswith("async_"):

            @functools.wraps(found)
            async def later(*args: Any, **kwargs: Any) -> Any:
                # The caller may change its own lists meanwhile.
                args = tuple(list(arg) if type(arg) is list else arg for arg in args)
                kwargs = {name: list(arg) if type(arg) is list else arg for name, arg in kwargs.items()}
                result = await found(*args, **kwargs)
                try:
                    return self._judge(name, result, args, kwargs)
                except StoreError:
                    if keys := _started(name, result, args, kwargs):
                        await self._store._revoke_unheard(keys)
                    raise

            return later

        @functools.wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            try:
                return self._judge(name, result, args, kwargs)
            except StoreError:
                if keys := _started(name, result, args, kwargs):
                    self._store.batch_put_session_revoke(keys)
                raise

        return call

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._store)})

    def __enter__(self) -> Checked:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    async def __aenter__(self) -> Checked:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.async_close()

    def __contains__(self, key: str | bytes) -> bool:
        return key in self._store

    def __repr__(self) -> str:
        return f"checked({self._store!r})"

    def _judge(self, name: str, result: Any, args: tuple, kwargs: dict) -> Any:
        call = name.removeprefix("async_")
        # An array is no miss, and compared with one it is as many answers as it has elements.
        if call in _MISSES and type(result) is type(_MISSES[call]) and result == _MISSES[call]:
            code = _native._last_code(self._store) or NOT_FOUND
            raise error(code, self._store.last_error(), _key_at((), [*args, *kwargs.values()]))
        # The calls for segments return several things.
        failure = _failure(result.get("ret", 0) if isinstance(result, dict) else result)
        if failure is not None:
            code, path = failure
            raise error(code, self._store.last_error(), _key_at(path, [*args, *kwargs.values()]))
        return result


def _started(name: str, result: Any, args: tuple, kwargs: dict) -> list[str | bytes]:
    """Keys whose put sessions a call has started, of which its caller hears an exception only."""
    return started_keys(result, args, kwargs) if name.removeprefix("async_") == "batch_put_session_start" else []


def started_keys(codes: list[int], args: tuple, kwargs: dict) -> list[str | bytes]:
    """Keys whose put sessions a ``batch_put_session_start`` with these arguments has started."""
    keys = args[0] if args else kwargs["keys"]
    return [key for key, code in zip(keys, codes, strict=True) if code == 0]


def _failure(result: Any) -> tuple[int, tuple[int, ...]] | None:
    """The first negative code of a result, and where it is in lists of lists."""
    if type(result) is int:
        return (result, ()) if result < 0 else None
    if type(result) is list:
        for index, one in enumerate(result):
            found = _failure(one)
            if found is not None:
                return found[0], (index, *found[1])
    return None


def _key_at(path: tuple[int, ...], args: list[Any]) -> str | bytes | None:
    """The key that a place in the result belongs to: the first argument with a text there."""
    if not path:
        return args[0] if args and isinstance(args[0], (str, bytes)) else None
    for arg in args:
        for index in path:
            if not isinstance(arg, (list, tuple)) or index >= len(arg):
                break
            arg = arg[index]
            if isinstance(arg, (str, bytes)):
                return arg
    return None


@overload
def checked(store: MooncakeDistributedStoreAsync) -> CheckedStoreAsync: ...
@overload
def checked(store: MooncakeDistributedStore) -> CheckedStore: ...
def checked(store: Any) -> Any:
    """The store, raising ``StoreError`` where it would return a negative code; its coroutines too.

    A miss of ``get``, ``get_buffer``, ``get_tensor`` or ``get_array`` is raised as ``NotFound``; batches keep
    ``b""`` and ``None``.
    """
    return Checked(store)


def reference_page() -> str:
    """``docs/error-codes.md``, made from the table."""
    lines = [
        "# Error codes",
        "",
        "Made from the table in `crates/mooncake-codes/src/lib.rs` by `make reference`. Calls return these integers, "
        "batches a list of them; `last_error()` of the store says in words what happened. "
        "`mooncake.errors.checked(store)` raises the exceptions, all of them kinds of `mooncake.errors.StoreError`, "
        "with `.code` and `.reason`. Names are those of Mooncake. The master's HTTP pages use the same numbers in "
        "`error_code`.",
        "",
        "| code | name | exception | meaning |",
        "|---|---|---|---|",
    ]
    for number, name, exception, meaning in _native._error_codes():
        shown = f"`{exception}`" if exception else ""
        lines.append(f"| {number} | `{name}` | {shown} | {meaning} |")
    return "\n".join(lines) + "\n"
