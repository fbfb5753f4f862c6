import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import ClassVar, Self, SupportsIndex

from torch import Tensor
from typing_extensions import Buffer

__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "CoroRPCInterface",
    "InnerTransferEngine",
    "Read",
    "ReceivedData",
    "ReceivedTensor",
    "RpcInterface",
    "SharedSegment",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
    "create_rpc_client",
    "create_rpc_server",
]

SUPPORT_CUDA: bool
SUPPORT_EFA: bool
SUPPORT_HIP: bool
SUPPORT_INTRA_NVLINK: bool
SUPPORT_MNNVL: bool
SUPPORT_MUSA: bool

class TransferOpcode(int):
    __members__: ClassVar[dict[str, TransferOpcode]]
    Read: ClassVar[TransferOpcode]
    Write: ClassVar[TransferOpcode]
    READ: ClassVar[TransferOpcode]
    WRITE: ClassVar[TransferOpcode]
    def __init__(self, value: SupportsIndex) -> None:
        """The member of that number; ValueError if there is none."""
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

Read: TransferOpcode
Write: TransferOpcode

class TransferNotify:
    name: str
    msg: str
    def __init__(self, name: str = ..., msg: str = ...) -> None:
        """A message; both texts, or neither: they are empty then."""

class InnerTransferEngine:
    """An engine as others hold it: it goes on while they do."""

class TransferEngine:
    TransferOpcode: type[TransferOpcode]
    def __init__(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    # Beginning and end.
    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, /) -> int:
        """0 or -1. ``metadata_server``: ``P2PHANDSHAKE``, ``http://...`` or ``https://...``. ``device_name``: the
        network devices of the topology, with commas between them; all if it is empty."""
    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str, /
    ) -> int:
        """As ``initialize``; ``metadata_type`` is the scheme of a server that names none."""
    def close(self) -> int:
        """Ends the engine, and calls of other threads with it; 0, also twice. Memory that it was lent, or that a
        transfer was given, is the caller's again. -4 where somebody is still at such memory after some 10 s: it may
        be called again."""
    def get_rpc_port(self) -> int: ...
    def get_local_server_name(self) -> str:
        """The name that peers know it by; "" before ``initialize``."""
    def get_engine(self) -> InnerTransferEngine | None: ...
    def get_engine_ptr(self) -> int:
        """0, with the reason in `last_error()`: there is no engine of C++ at any address."""
    def get_local_topology(self, device_name: str | None = None) -> str: ...
    def last_error(self) -> str:
        """Why the last call of this thread failed, or ""."""

    # Memory.
    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """0 or a negative code: -7 for a range that overlaps another."""
    def unregister_memory(self, buffer_addr: int, /) -> int:
        """0 once nobody touches the memory any more, or a negative code: -4 if somebody still does after 10 s. It
        takes no new requests then, and a repeat waits again."""
    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int: ...
    def batch_unregister_memory(self, buffer_addresses: Sequence[int], /) -> int: ...
    def allocate_managed_buffer(self, length: int, /) -> int:
        """Address of registered memory; 0 if there is none."""
    def free_managed_buffer(self, buffer_addr: int, length: int, /) -> int:
        """0, or a negative code: the memory stays, and may be given back again."""
    def write_bytes_to_buffer(self, dest_address: int, data: bytes | str, length: int, /) -> int: ...
    def read_bytes_from_buffer(self, source_address: int, length: int, /) -> bytes: ...

    # Peers.
    def get_first_buffer_address(self, segment_name: str, /) -> int: ...
    def send_probe(self, peer_server_name: str) -> int: ...
    def send_notify(self, target_hostname: str, notify: TransferNotify) -> int:
        """0 once the peer has the message."""
    def get_notifies(self) -> list[TransferNotify]: ...
    def warmup_efa_segment(self, segment_name: str) -> int: ...
    def show_links(self, json: bool = False) -> str:
        """How bytes go to each peer and why, what has gone, and the topology."""

    # Transfers that the caller waits for: 0 or -1.
    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int: ...
    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int: ...
    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int: ...
    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int: ...
    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int: ...
    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int: ...

    # Transfers in the background: a batch id, 0 on failure.
    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int: ...
    def transfer_submit_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int: ...
    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int: ...
    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int: ...
    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        transport_hint: str = "",
    ) -> int: ...

    # Behind what is queued on a stream of CUDA's (0: the default one) when they are called. They return once all is in
    # place; RuntimeError says why it is not.
    def transfer_write_on_cuda(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None: ...
    def transfer_read_on_cuda(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None: ...
    def batch_transfer_write_on_cuda(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None: ...
    def batch_transfer_read_on_cuda(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None: ...

    # Batches.
    def transfer_check_status(self, batch_id: int, /) -> int:
        """1 done and freed, 0 under way, -1 failed and freed or no batch, -2 timed out and not freed."""
    def get_batch_transfer_status(self, batch_ids: Sequence[int], /) -> int:
        """Waits: 0 when all are done, -1 when one has failed. They are freed."""
    def wait(self, batch_id: int, timeout: float | None = None) -> int:
        """0 done and freed, -1 failed and freed or no batch, -2 not done after ``timeout`` seconds."""
    async def wait_async(self, batch_id: int, timeout: float | None = None) -> int:
        """As ``wait``, for an event loop."""

class SharedSegment:
    """Memory that the ranks of a group on one host have in common; there as long as this is."""

    @staticmethod
    def create(
        name: str,
        size: int,
        world_size: int,
        rank_id: int,
        owner_rank: int = 0,
        device_id: int = 0,
        mmap: bool = True,
        host_register: bool = False,
    ) -> tuple[SharedSegment, bytes]:
        """The first step: the segment, and the bytes that the other ranks need; RuntimeError if there is none."""
    @staticmethod
    def supported(mmap: bool = True, host_register: bool = False) -> bool: ...
    def complete(self, blobs: Sequence[bytes]) -> None:
        """The second step: the bytes of all ranks, by rank; RuntimeError if they do not fit together."""
    def ready(self) -> bool: ...
    def base_addr(self) -> int:
        """In this process; 0 before there is an address."""
    def device_addr(self) -> int:
        """0: no device has an address of its own for it."""
    def size(self) -> int: ...

class ReceivedData:
    @property
    def source_address(self) -> str: ...
    @property
    def data_size(self) -> int: ...
    def get_bytes(self) -> bytes: ...
    def get_memory_view(self) -> memoryview: ...

class ReceivedTensor:
    @property
    def source_address(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def total_bytes(self) -> int: ...
    def get_data_size(self) -> int: ...
    def get_data_as_bytes(self) -> bytes: ...
    def get_memory_view(self) -> memoryview: ...
    def to_tensor(self) -> Tensor:
        """Over the received elements, without a copy."""

class RpcInterface:
    def __init__(self) -> None: ...
    def initialize(
        self, listen_address: str = "", thread_count: int = 0, timeout_seconds: int = 30, pool_size: int = 100
    ) -> bool: ...
    def initialize_client(self, pool_size: int = 100, timeout_seconds: int = 30) -> bool: ...
    def initialize_server(self, listen_address: str, thread_count: int = 8, timeout_seconds: int = 30) -> bool: ...
    def start_server(self) -> bool:
        """Receives, and returns once the server is stopped; False at once if it cannot begin."""
    def start_server_async(self) -> bool:
        """Begins to receive, and returns."""
    def stop_server(self) -> None: ...
    @property
    def local_port(self) -> int: ...
    @property
    def unhandled(self) -> int:
        """Messages that came while there was no callback for their kind: taken, answered with 0, and dropped."""
    def set_data_receive_callback(self, callback: Callable[[ReceivedData], object], /) -> None: ...
    def set_tensor_receive_callback(self, callback: Callable[[ReceivedTensor], object], /) -> None: ...
    def send_data(self, target_address: str, data: Buffer | str) -> int: ...
    def send_tensor(self, target_address: str, tensor: Tensor) -> int: ...
    def send_data_async(
        self, target_address: str, data: Buffer | str, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[int]: ...
    def send_tensor_async(
        self, target_address: str, tensor: Tensor, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[int]: ...

CoroRPCInterface = RpcInterface

def create_rpc_client(local_rank: int = 0, world_size: int = 1) -> RpcInterface: ...
def create_rpc_server(local_rank: int = 0, world_size: int = 1) -> RpcInterface: ...
