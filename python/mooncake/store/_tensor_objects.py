"""Writing and reading the objects that tensors are, many at a time."""

from __future__ import annotations

import copy
import ctypes
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from mooncake import _native
from mooncake.store import _tensor_memory as memory
from mooncake.store._parallelism import Refused
from mooncake.store._tensor_header import HEADER_SIZE, BadHeader, Header, decode, decode_head

INVALID_PARAMS = -600


def refuse(store: Any, name: str, reason: object) -> int:
    """-600, with the reason in `last_error()`."""
    return _native._fail(store, INVALID_PARAMS, f"{name}: {reason}")


def is_set_up(store: Any) -> bool:
    """Set up and not closed."""
    return _native._local_buffer_size(store) is not None


class Writes:
    """Objects of one call, to be written together.

    What cannot be written has its code from the start; the rest gets it from `run`.
    """

    def __init__(self, store: Any, name: str, keys: int, config: Any, replace: bool):
        self._store, self._name, self._replace = store, name, replace
        self._config = config
        self._groups = None if config is None else config.group_ids
        self.codes: list[int] = [0] * keys
        self._names: list[Any] = []
        self._items: list[memory.Pieces | bytes] = []
        self._index: list[int] = []
        self._reason: tuple[int, str] | None = None
        if self._groups is not None and len(self._groups) != keys:
            for at in range(keys):
                self.refuse(at, f"group_ids has {len(self._groups)} entries for {keys} keys")

    def add(self, index: int, name: Any, item: memory.Pieces | bytes) -> None:
        """One more object for the key at that place of the call: pieces, or bytes as they are."""
        self._names.append(name)
        self._items.append(item)
        self._index.append(index)

    def refuse(self, index: int, reason: object) -> None:
        self._fail(index, INVALID_PARAMS, f"{self._name}: {reason}")

    def attempt(self, index: int, prepare: Callable[[], None]) -> None:
        """Prepares the objects of one key; what makes no sense is that key's -600."""
        before = len(self._names)
        try:
            prepare()
        except (Refused, BadHeader) as reason:
            del self._names[before:], self._items[before:], self._index[before:]
            self.refuse(index, reason)

    def run(self) -> list[int]:
        """Writes what was added so far; the codes of the keys."""
        names, items, index = self._names, self._items, self._index
        self._names, self._items, self._index = [], [], []
        # Manifests last, so that what they tell of is there. What belongs to a key that failed is not written.
        for kind in ("held", "foreign", "plain"):
            part = [at for at, item in enumerate(items) if _kind(item) == kind and self.codes[index[at]] == 0]
            if part:
                self._write([names[at] for at in part], [items[at] for at in part], [index[at] for at in part], kind)
        if self._reason is not None:
            _native._fail(self._store, *self._reason)
        return self.codes

    def _write(self, names: list, items: list, index: list[int], kind: str) -> None:
        config, store = self._config_for(index), self._store
        heads = [item if isinstance(item, bytes) else item.header.encode() for item in items]
        if kind != "foreign":
            tensors = [None if isinstance(item, bytes) else item.owner for item in items]
            codes = _native._put_tensors(store, self._name, names, heads, tensors, config, self._replace)
        else:
            put = store._batch_upsert_from_multi_buffers if self._replace else store.batch_put_from_multi_buffers
            held = memory.Headers(heads)
            ranges = [[head, *item.pieces] for head, item in zip(held.at, items, strict=True)]
            codes = put(
                names, [[at for at, _ in one] for one in ranges], [[size for _, size in one] for one in ranges], config
            )
        reason = store.last_error()
        for key, code in zip(index, codes, strict=True):
            if code != 0:
                self._fail(key, code, reason)

    def _config_for(self, index: list[int]) -> Any:
        if self._groups is None:
            return self._config
        config = copy.copy(self._config)
        config.group_ids = [self._groups[key] for key in index]
        return config

    def _fail(self, index: int, code: int, reason: str) -> None:
        if self.codes[index] == 0:
            self.codes[index] = code
            self._reason = self._reason or (code, reason)


def _kind(item: memory.Pieces | bytes) -> str:
    if isinstance(item, bytes):
        return "plain"
    return "held" if item.held else "foreign"


def read(store: Any, name: str, keys: Sequence[Any]) -> list[tuple[Header, bytearray] | None]:
    """Headers and whole objects; None for what is missing or no tensor."""
    found: list[tuple[Header, bytearray] | None] = []
    for key, array in zip(keys, _native._get_bytearrays(store, name, keys), strict=True):
        try:
            found.append(None if array is None else (decode(array, len(array)), array))
        except BadHeader as reason:
            refuse(store, name, f"{key!r}: {reason}")
            found.append(None)
    return found


def read_headers(store: Any, name: str, keys: Sequence[Any]) -> list[Header | int]:
    """Headers alone, with one look-up for all; the code of what is missing or no tensor."""
    room = ctypes.create_string_buffer(HEADER_SIZE * len(keys))
    places = [[at * HEADER_SIZE] for at in range(len(keys))]
    starts, sizes = [[0]] * len(keys), [[HEADER_SIZE]] * len(keys)
    [codes] = store.get_into_ranges([ctypes.addressof(room)], [list(keys)], [places], [starts], [sizes])
    found: list[Header | int] = []
    problem = None
    for key, [place], [code] in zip(keys, places, codes, strict=True):
        try:
            found.append(code if code < 0 else decode_head(room[place : place + HEADER_SIZE]))
        except BadHeader as reason:
            problem = problem or f"{key!r}: {reason}"
            found.append(INVALID_PARAMS)
    if problem is not None:
        refuse(store, name, problem)
    return found


def tensor(store: Any, name: str, found: tuple[Header, bytearray] | None) -> Any:
    """The tensor of what `read` found."""
    try:
        return None if found is None else memory.to_tensor(*found)
    except Refused as reason:
        refuse(store, name, reason)
        return None


def unsigned(value: Any, what: str) -> int:
    """An address or a size; TypeError for what cannot be one."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise TypeError(f"{what}: {value!r} is not an integer between 0 and 2**64 - 1")
    return number


def header_at(store: Any, address: int, size: int) -> Header:
    """The header of an object of that size in the caller's memory; BadHeader when it is none, or may not be touched."""
    address, size = unsigned(address, "buffer_ptr"), unsigned(size, "size")
    try:
        data = _native._peek(store, address, size, HEADER_SIZE)
    except ValueError as reason:
        raise BadHeader(str(reason)) from None
    return decode(data, size)


def tensor_at(store: Any, name: str, key: Any, address: int, code: int) -> Any:
    """The tensor that a get has just written to the caller's memory, or None when it has not."""
    if code < 0:
        return None
    try:
        return memory.at_address(header_at(store, address, code), address)
    except (BadHeader, Refused) as reason:
        refuse(store, name, f"{key!r}: {reason}")
        return None


def as_list(value: Any, what: str) -> list[Any]:
    """A list of its own; TypeError for what is none, as of the other batch calls."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (str, bytes, bytearray, dict, set)) or not isinstance(value, Sequence):
        raise TypeError(f"{what}: a list is needed, not {type(value).__name__}")
    return list(value)


def check_config(config: Any, published: bool) -> None:
    """Refused for what `pub_*` does not take; TypeError for what is no config."""
    if config is None:
        return
    if not isinstance(config, _native.ReplicateConfig):
        raise TypeError(f"config: a ReplicateConfig is needed, not {type(config).__name__}")
    named = list(config.preferred_segments)
    if published and named and len(named) != config.replica_num:
        raise Refused(f"{len(named)} preferred_segments for {config.replica_num} replicas")


def write_each(
    store: Any, name: str, keys: Any, config: Any, replace: bool, prepare: Callable, *columns: Any, published=False
) -> list[int]:
    """`prepare(writes, index, key, *row)` for each key, then one write of all that it added."""
    keys = as_list(keys, "keys")
    lists = [as_list(column, "a list beside keys") for column in columns]
    if any(len(column) != len(keys) for column in lists):
        lengths = ", ".join(str(len(column)) for column in lists)
        return [refuse(store, name, f"{len(keys)} keys beside lists of {lengths}")] * len(keys)
    try:
        check_config(config, published)
    except Refused as reason:
        return [refuse(store, name, reason)] * len(keys)
    writes = Writes(store, name, len(keys), config, replace)
    for index, (key, *row) in enumerate(zip(keys, *lists, strict=True)):
        check_key(key)
        if writes.codes[index] == 0:
            writes.attempt(index, functools.partial(prepare, writes, index, key, *row))
    return writes.run()


def check_key(key: Any) -> None:
    """Keys are str or bytes, as everywhere."""
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"key: str or bytes is needed, not {type(key).__name__}")


def put_from(store, name, keys, buffer_ptrs, sizes, config, replace) -> list[int]:
    """Stores objects that lie ready in the caller's memory."""

    def prepare(writes, index, key, buffer_ptr, size):
        header = header_at(store, buffer_ptr, size)
        data = [(buffer_ptr + HEADER_SIZE, header.data_bytes)] if header.data_bytes else []
        writes.add(index, key, memory.Pieces(header, data, None, False))

    return write_each(store, name, keys, config, replace, prepare, buffer_ptrs, sizes)


def get_into(store, name, keys, objects_named, buffer_ptrs, sizes, accept=None) -> list[Any]:
    """Tensors in the caller's memory; -600 for all when the arguments make no sense."""
    keys, names = as_list(keys, "keys"), as_list(objects_named, "keys")
    if not is_set_up(store):
        return [refuse(store, name, "the store is not set up, or was closed; call setup() first")] * len(keys)
    buffer_ptrs, sizes = as_list(buffer_ptrs, "buffer_ptrs"), as_list(sizes, "sizes")
    if not len(keys) == len(buffer_ptrs) == len(sizes):
        reason = f"{len(keys)} keys, {len(buffer_ptrs)} buffer_ptrs and {len(sizes)} sizes: one of each a key"
        return [refuse(store, name, reason)] * len(keys)
    codes = store.batch_get_into(names, buffer_ptrs, sizes)
    made = []
    for key, address, code in zip(keys, buffer_ptrs, codes, strict=True):
        if code >= 0 and accept is not None:
            try:
                accept(header_at(store, address, code))
            except (BadHeader, Refused) as reason:
                code = refuse(store, name, f"{key!r}: {reason}")
        made.append(tensor_at(store, name, key, address, code))
    return made
