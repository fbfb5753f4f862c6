"""Tensors as objects: put, get, publish, replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mooncake import _native
from mooncake.store import _tensor_memory as memory
from mooncake.store import _tensor_objects as objects
from mooncake.store._entry import entries
from mooncake.store._parallelism import Refused
from mooncake.store._tensor_header import DTYPES, HEADER_SIZE, BadHeader, Header, decode
from mooncake.store._tensor_objects import INVALID_PARAMS, as_list, get_into, put_from, refuse, write_each


@entries
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
        found = get_into(self, "get_tensor_into", [key], [key], [buffer_ptr], [size])[0]
        # Of many, a refusal is a code each.
        return None if isinstance(found, int) else found

    def batch_get_tensor_into(self, keys, buffer_ptrs, sizes):
        return get_into(self, "batch_get_tensor_into", keys, keys, buffer_ptrs, sizes)

    def get_tensor_into_cuda(self, key, tensor):
        return self.batch_get_tensor_into_cuda([key], [tensor])[0]

    def batch_get_tensor_into_cuda(self, keys, tensors_list):
        name = "batch_get_tensor_into_cuda"
        keys, tensors = as_list(keys, "keys"), as_list(tensors_list, "tensors_list")
        if len(keys) != len(tensors):
            return [refuse(self, name, f"{len(keys)} keys and {len(tensors)} tensors")] * len(keys)
        return _Filling(self, name, keys, tensors).run()


class _Filling:
    """Tensors that are to hold what is stored: one is touched only when the object's header fits it."""

    def __init__(self, store: Any, name: str, keys: list[Any], tensors: list[Any]):
        self._store, self._name, self._keys, self._tensors = store, name, keys, tensors
        self._codes = [INVALID_PARAMS] * len(keys)
        self._reason = ""

    def run(self) -> list[int]:
        chosen = [at for at in range(len(self._keys)) if self._accept(at, self._check_tensor, at)]
        for at, header in zip(list(chosen), self._headers(chosen), strict=True):
            if isinstance(header, int) or not self._accept(at, self._check_header, at, header):
                chosen.remove(at)
        if chosen:
            self._fill(chosen)
        if self._reason:
            _native._fail(self._store, INVALID_PARAMS, self._reason)
        return self._codes

    def _accept(self, at: int, check: Callable[..., None], *args: Any) -> bool:
        try:
            check(*args)
            return True
        except (Refused, BadHeader) as reason:
            self._codes[at] = INVALID_PARAMS
            self._reason = self._reason or f"{self._name}: {self._keys[at]!r}: {reason}"
            return False

    def _check_tensor(self, at: int) -> None:
        memory.check(self._tensors[at])
        if not self._tensors[at].is_contiguous():
            raise Refused("the tensor is not contiguous")

    def _check_header(self, at: int, header: Header) -> None:
        tensor = self._tensors[at]
        if header.dtype != memory.check(tensor) or header.shape != tuple(tensor.shape):
            raise BadHeader(
                f"a {DTYPES[header.dtype][0]} of shape {list(header.shape)} is stored, "
                f"which does not fit a {tensor.dtype} of shape {list(tensor.shape)}"
            )

    def _check_bytes(self, at: int, head: bytes, size: int) -> None:
        self._check_header(at, decode(head, size))

    def _headers(self, chosen: list[int]) -> list[Header | int]:
        found = objects.read_headers(self._store, self._name, [self._keys[at] for at in chosen]) if chosen else []
        for at, header in zip(chosen, found, strict=True):
            if isinstance(header, int):
                self._codes[at] = header
                self._reason = self._reason or self._store.last_error()
        return found

    def _fill(self, chosen: list[int]) -> None:
        tensors = [self._tensors[at] for at in chosen]
        heads = memory.Headers([bytes(HEADER_SIZE)] * len(chosen))
        lengths = [tensor.numel() * tensor.element_size() for tensor in tensors]
        memory.wait_for_kernels(tensors)
        codes = self._store.batch_get_into_multi_buffers(
            [self._keys[at] for at in chosen],
            [[head, tensor.data_ptr()] for (head, _), tensor in zip(heads.at, tensors, strict=True)],
            [[HEADER_SIZE, length] for length in lengths],
        )
        reason = self._store.last_error()
        for at, code, (head, _), length in zip(chosen, codes, heads.at, lengths, strict=True):
            self._codes[at] = code if code < 0 else length
            if code < 0:
                self._reason = self._reason or reason
            else:
                # It may have been replaced since its header was looked at.
                written = _native._peek(self._store, head, HEADER_SIZE, HEADER_SIZE)
                self._accept(at, self._check_bytes, at, written, code)


def _put(store, name, keys, tensors, config, replace, published=False) -> list[int]:
    def prepare(writes, index, key, tensor):
        writes.add(index, key, memory.of_tensor(tensor))

    return write_each(store, name, keys, config, replace, prepare, tensors, published=published)
