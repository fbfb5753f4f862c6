"""The store as Python sees it: the native calls and those that are written in Python."""

from __future__ import annotations

import socket
from typing import Any, Self

from mooncake import _native
from mooncake.store._arrays import ArrayCalls
from mooncake.store._entry import DOCS
from mooncake.store._placement import PlacementCalls
from mooncake.store._tensor_files import TensorFileCalls
from mooncake.store._tensor_header import HEADER_SIZE, decode
from mooncake.store._tensor_parallel import TensorParallelCalls
from mooncake.store._tensors import TensorCalls


class MooncakeDistributedStore(
    _native.MooncakeDistributedStore, PlacementCalls, TensorCalls, TensorParallelCalls, TensorFileCalls, ArrayCalls
):
    __doc__ = DOCS["MooncakeDistributedStore"]
    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any):
        # What a subclass's own __init__ takes passes through here.
        if cls is MooncakeDistributedStore and (args or kwargs):
            given = len(args) + len(kwargs)
            raise TypeError(f"MooncakeDistributedStore() takes no arguments, {given} given")
        return super().__new__(cls)

    @classmethod
    def connect(
        cls,
        master: str = "127.0.0.1:50051",
        *,
        local_hostname: str | None = None,
        global_segment_size: int = 0,
        local_buffer_size: int = 1 << 30,
    ) -> Self:
        from mooncake.errors import error

        if not isinstance(master, str):
            raise TypeError(f'master: a str "host:port" is needed, not {type(master).__name__}')
        made = cls()
        hostname = _own_address(master) if local_hostname is None else local_hostname
        code = made.setup(hostname, "P2PHANDSHAKE", global_segment_size, local_buffer_size, "tcp", "", master)
        if code != 0:
            raise error(code, made.last_error())
        return made

    def __enter__(self) -> Self:
        """This store, which the end of the `with` closes."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, key: str | bytes) -> bool:
        """Whether an object of that key is there, as of `is_exist`."""
        return self.is_exist(key) == 1

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int = 16 << 20, /) -> int:
        nowhere = "127.0.0.1:2379"
        master = "127.0.0.1:50051"
        return self.setup("localhost:12345", nowhere, mount_segment_size, 1 << 30, protocol, device_name, master)


MooncakeDistributedStore.__module__ = "mooncake.store"
for _name in ("connect", "init_all"):
    _method = vars(MooncakeDistributedStore)[_name]
    getattr(_method, "__func__", _method).__doc__ = DOCS[_name]


def _own_address(master: str) -> str:
    """This host's address on the way to the master; connecting a datagram socket sends nothing."""
    host, _, port = master.rpartition(":")
    try:
        family, kind, number, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.connect(address)
            return probe.getsockname()[0]
    except (OSError, ValueError):
        # The setup says what is wrong with the address.
        return "127.0.0.1"


def _tensor_metadata_size() -> int:
    """Bytes before a tensor's data."""
    return HEADER_SIZE


def _serialize_tensor(tensor: Any) -> tuple[bytes, int, int, Any]:
    """Header, address and size of the data, and what keeps it there."""
    from mooncake.store import _tensor_memory

    made = _tensor_memory.of_tensor(tensor)
    return made.header.encode(), made.owner.data_ptr(), made.header.data_bytes, made.owner


def _deserialize_tensor(data: Any) -> Any:
    """The tensor of an object's bytes, on a copy of them."""
    from mooncake.store import _tensor_memory

    whole = bytearray(data)
    return _tensor_memory.to_tensor(decode(whole, len(whole)), whole)


def _get_pyclient_from_wrapper(wrapper: Any) -> Any:
    """What other native parts of Mooncake reach a client by: here the store itself; None before setup."""
    if not isinstance(wrapper, _native.MooncakeDistributedStore):
        raise TypeError(f"a MooncakeDistributedStore is needed, not {type(wrapper).__name__}")
    return wrapper if _native._local_buffer_size(wrapper) is not None else None
