"""numpy arrays, as the same objects that tensors are: what one of them wrote the other reads."""

from __future__ import annotations

import sys
from typing import Any

from mooncake.store import _tensor_objects as objects
from mooncake.store._entry import entries
from mooncake.store._parallelism import Refused
from mooncake.store._tensor_header import CODES, DTYPES, HEADER_SIZE, MOST_DIMS, Header, full
from mooncake.store._tensor_objects import refuse


@entries
class ArrayCalls:
    """The calls of a store for arrays."""

    __slots__ = ()

    def put_array(self, key, array, config=None):
        try:
            header, data = _of_array(array)
        except Refused as reason:
            objects.check_key(key)
            return refuse(self, "put_array", reason)
        return self.put_parts(key, header.encode(), data, config=config)

    def get_array(self, key):
        objects.check_key(key)
        [found] = objects.read(self, "get_array", [key])
        try:
            return None if found is None else _to_array(*found)
        except Refused as reason:
            refuse(self, "get_array", f"{key!r}: {reason}")
            return None


def _of_array(array: Any) -> tuple[Header, Any]:
    """The header, and the elements in row-major order and this machine's byte order."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.ndarray):
        raise Refused(f"a numpy array is needed, not {type(array).__name__}")
    code = CODES.get(array.dtype.name)
    if code is None:
        raise Refused(f"{array.dtype} cannot be stored; there are {', '.join(CODES)}")
    if array.ndim > MOST_DIMS:
        raise Refused(f"{array.ndim} dimensions, at most {MOST_DIMS} can be stored")
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    return full(code, tuple(array.shape)), native.reshape(-1).view(numpy.uint8)


def _to_array(header: Header, data: Any) -> Any:
    import numpy

    name = DTYPES[header.dtype][0]
    try:
        dtype = numpy.dtype(name)
    except TypeError:
        raise Refused(f"numpy has no {name}; get_tensor gives it") from None
    if not header.data_bytes:
        return numpy.empty(header.shape, dtype)
    return numpy.frombuffer(data, dtype, offset=HEADER_SIZE).reshape(header.shape)
