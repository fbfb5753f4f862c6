"""Between torch's tensors and memory. The only module here that imports torch, when it is called."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any

from mooncake.store._parallelism import Refused
from mooncake.store._tensor_header import CODES, DTYPES, HEADER_SIZE, MOST_DIMS, Header, full

#: What has all that tensors need.
INSTALL_TORCH = "pip install 'mooncake-rs[torch]'"


@functools.cache
def _torch_types() -> tuple[Any, ...]:
    import torch

    # What an older torch does not have stays out of reach.
    return tuple(getattr(torch, name, None) for name, _ in DTYPES)


@functools.cache
def _codes() -> dict[Any, int]:
    return {dtype: code for code, dtype in enumerate(_torch_types()) if dtype is not None}


@dataclass
class Pieces:
    """What becomes one object: a header and memory that `owner` keeps."""

    header: Header
    pieces: list[tuple[int, int]]
    owner: Any
    #: The owner is a contiguous tensor of the host with just these bytes.
    held: bool


def check(tensor: Any) -> int:
    """The dtype code of a tensor that can be stored."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise Refused(f"a torch tensor is needed, not {type(tensor).__name__}{_instead(tensor)}")
    code = _codes().get(tensor.dtype)
    if code is None:
        raise Refused(f"{tensor.dtype} cannot be stored; there are {', '.join(CODES)}")
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise Refused(f"a tensor of layout {tensor.layout} on {tensor.device} has no data to store")
    if tensor.dim() > MOST_DIMS:
        raise Refused(f"{tensor.dim()} dimensions, at most {MOST_DIMS} can be stored")
    return code


def _instead(value: Any) -> str:
    """What may help whoever has no tensor."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return "; put_array takes arrays"
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        return ", and torch is not installed here"
    return ""


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        raise Refused(f"torch is not installed here: {INSTALL_TORCH}; get_array gives a numpy array") from None
    return torch


def _in_reach(device: str, cuda: str | None) -> bool:
    """Whether its memory is used in place. A torch for ROCm calls its devices "cuda" too, but has no CUDA."""
    return device == "cpu" or (device == "cuda" and cuda is not None)


def of_tensor(tensor: Any, header: Header | None = None) -> Pieces:
    """A tensor as an object, with the header of a whole tensor if none is given."""
    code = check(tensor)
    tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if not _in_reach(tensor.device.type, sys.modules["torch"].version.cuda):
        tensor = tensor.cpu()
    tensor = tensor.contiguous()
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:
        raise Refused(f"a tensor without memory: {error}") from None
    on_host = tensor.device.type == "cpu"
    wait_for_kernels([tensor])
    header = header or full(code, tuple(tensor.shape))
    size = tensor.numel() * tensor.element_size()
    assert size == header.data_bytes, (size, header)
    return Pieces(header, [(address, size)] if size else [], tensor, on_host)


def wait_for_kernels(tensors: list[Any]) -> None:
    """Until what is queued on the current streams of their devices has run: it may read or write them."""
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        sys.modules["torch"].cuda.current_stream(device).synchronize()


def to_tensor(header: Header, memory: Any) -> Any:
    """A tensor on the memory of a whole object, which it keeps."""
    torch = _torch()
    dtype = _torch_types()[header.dtype]
    if dtype is None:
        raise Refused(f"this torch has no {DTYPES[header.dtype][0]}")
    count = header.data_bytes // DTYPES[header.dtype][1]
    if count == 0:
        return torch.empty(header.shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=HEADER_SIZE).reshape(header.shape)


def at_address(header: Header, address: int) -> Any:
    """A tensor on the caller's memory, where an object was written just now."""
    return to_tensor(header, (ctypes.c_char * header.total_bytes).from_address(address))


def empty(dtype: int, shape: tuple[int, ...]) -> Any:
    """A new tensor, uninitialised."""
    torch = _torch()
    return torch.empty(shape, dtype=_torch_types()[dtype])


def as_object(header: Header, tensor: Any) -> bytearray:
    """The object's bytes."""
    whole = bytearray(header.total_bytes)
    whole[:HEADER_SIZE] = header.encode()
    if header.data_bytes:
        to_tensor(header, whole).copy_(tensor)
    return whole


class Headers:
    """Encoded headers in memory, one after another."""

    def __init__(self, encoded: list[bytes]):
        self._memory = ctypes.create_string_buffer(b"".join(encoded))
        ends = 0
        #: Address and size of each.
        self.at: list[tuple[int, int]] = []
        for one in encoded:
            self.at.append((ctypes.addressof(self._memory) + ends, len(one)))
            ends += len(one)
