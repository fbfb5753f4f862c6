"""Tensors as objects: put, get, publish, replace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from mooncake import _native
from mooncake.store import _tensor_memory as memory
from mooncake.store import _tensor_objects as objects
from mooncake.store._parallelism import Refused
from mooncake.store._tensor_header import HEADER_SIZE, BadHeader, decode
from mooncake.store._tensor_objects import INVALID_PARAMS, Writes, refuse


class TensorCalls:
    """The tensor calls of a store that need no sharding."""

    __slots__ = ()

    # ------------------------------------------------------------------ put

    def put_tensor(self, key, tensor):
        return _put(self, "put_tensor", [key], [tensor], None, False)[0]

    def batch_put_tensor(self, keys, tensors_list):
        return _put(self, "batch_put_tensor", keys, tensors_list, None, False)

    def pub_tensor(self, key, tensor, config=None):
        return _put(self, "pub_tensor", [key], [tensor], config, False, published=True)[0]

    def batch_pub_tensor(self, keys, tensors_list, config=None):
        return _put(self, "batch_pub_tensor", keys, tensors_list, config, False, published=True)

    def put_tensor_from(self, key, buffer_ptr, size):
        return put_from(self, "put_tensor_from", [key], [buffer_ptr], [size], None, False)[0]

    def batch_put_tensor_from(self, keys, buffer_ptrs, sizes):
        return put_from(self, "batch_put_tensor_from", keys, buffer_ptrs, sizes, None, False)

    # --------------------------------------------------------------- upsert

    def upsert_tensor(self, key, tensor):
        return _put(self, "upsert_tensor", [key], [tensor], None, True)[0]

    def batch_upsert_tensor(self, keys, tensors_list):
        return _put(self, "batch_upsert_tensor", keys, tensors_list, None, True)

    def upsert_pub_tensor(self, key, tensor, config=None):
        return _put(self, "upsert_pub_tensor", [key], [tensor], config, True, published=True)[0]

    def batch_upsert_pub_tensor(self, keys, tensors_list, config=None):
        return _put(self, "batch_upsert_pub_tensor", keys, tensors_list, config, True, published=True)

    def upsert_tensor_from(self, key, buffer_ptr, size):
        return put_from(self, "upsert_tensor_from", [key], [buffer_ptr], [size], None, True)[0]

    def batch_upsert_tensor_from(self, keys, buffer_ptrs, sizes):
        return put_from(self, "batch_upsert_tensor_from", keys, buffer_ptrs, sizes, None, True)

    # ------------------------------------------------------------------ get

    def get_tensor(self, key):
        return objects.tensor(self, "get_tensor", objects.read(self, "get_tensor", [key])[0])

    def batch_get_tensor(self, keys):
        name = "batch_get_tensor"
        return [objects.tensor(self, name, found) for found in objects.read(self, name, as_list(keys, "keys"))]

    def get_tensor_into(self, key, buffer_ptr, size):
        code = self.get_into(key, buffer_ptr, size)
        return objects.tensor_at(self, "get_tensor_into", key, int(buffer_ptr), code)

    def batch_get_tensor_into(self, keys, buffer_ptrs, sizes):
        return get_into(self, "batch_get_tensor_into", keys, keys, buffer_ptrs, sizes)

    def get_tensor_into_cuda(self, key, tensor):
        return self.batch_get_tensor_into_cuda([key], [tensor])[0]

    def batch_get_tensor_into_cuda(self, keys, tensors_list):
        name = "batch_get_tensor_into_cuda"
        keys, tensors = as_list(keys, "keys"), as_list(tensors_list, "tensors_list")
        if len(keys) != len(tensors):
            return [refuse(self, name, f"{len(keys)} keys and {len(tensors)} tensors")] * len(keys)
        codes = [INVALID_PARAMS] * len(keys)
        chosen, reasons = [], []
        for at, tensor in enumerate(tensors):
            try:
                memory.check(tensor)
                if not tensor.is_contiguous():
                    raise Refused("the tensor is not contiguous")
                chosen.append(at)
            except Refused as reason:
                reasons.append(f"{keys[at]!r}: {reason}")
        heads = memory.Headers([bytes(HEADER_SIZE)] * len(chosen))
        wanted = [tensors[at] for at in chosen]
        lengths = [tensor.numel() * tensor.element_size() for tensor in wanted]
        got = self.batch_get_into_multi_buffers(
            [keys[at] for at in chosen],
            [[head, tensor.data_ptr()] for (head, _), tensor in zip(heads.at, wanted, strict=True)],
            [[HEADER_SIZE, length] for length in lengths],
        )
        # Only now: a call begins without a reason.
        for reason in reasons[:1]:
            refuse(self, name, reason)
        for at, code, (head, _), tensor, length in zip(chosen, got, heads.at, wanted, lengths, strict=True):
            codes[at] = code
            if code < 0:
                continue
            try:
                header = decode(_native._peek(head, HEADER_SIZE), code)
                if header.dtype != memory.check(tensor) or header.data_bytes != length:
                    raise BadHeader(f"{header} does not fit a {tensor.dtype} of {length} bytes")
                codes[at] = length
            except BadHeader as reason:
                codes[at] = refuse(self, name, f"{keys[at]!r}: {reason}")
        return codes


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


def _put(store, name, keys, tensors, config, replace, published=False) -> list[int]:
    def prepare(writes, index, key, tensor):
        writes.add(index, key, memory.of_tensor(tensor))

    return write_each(store, name, keys, config, replace, prepare, tensors, published=published)


def put_from(store, name, keys, buffer_ptrs, sizes, config, replace) -> list[int]:
    """Stores objects that lie ready in the caller's memory."""

    def prepare(writes, index, key, buffer_ptr, size):
        header = objects.header_at(buffer_ptr, size)
        data = [(buffer_ptr + HEADER_SIZE, header.data_bytes)] if header.data_bytes else []
        writes.add(index, key, memory.Pieces(header, data, None, False))

    return write_each(store, name, keys, config, replace, prepare, buffer_ptrs, sizes)


def get_into(store, name, keys, objects_named, buffer_ptrs, sizes, accept=None) -> list[Any]:
    """Tensors in the caller's memory; -600 for all when the arguments make no sense."""
    keys, names = as_list(keys, "keys"), as_list(objects_named, "keys")
    if not objects.is_set_up(store):
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
                accept(objects.header_at(address, code))
            except (BadHeader, Refused) as reason:
                code = refuse(store, name, f"{key!r}: {reason}")
        made.append(objects.tensor_at(store, name, key, address, code))
    return made
