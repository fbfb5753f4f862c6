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
    """Read from a peer, or write to it: as Mooncake's code spells it, and as its documentation does."""

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
    """A message of a peer."""

    name: str
    msg: str
    def __init__(self, name: str = ..., msg: str = ...) -> None:
        """A message; both texts, or neither: they are empty then."""

class InnerTransferEngine:
    """An engine as others hold it: it goes on while they do."""

class TransferEngine:
    """One engine: a segment of registered memory, and transfers to and from those of peers."""

    TransferOpcode: type[TransferOpcode]
    def __init__(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    # Beginning and end.
    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, /) -> int:
        """0, or -1 and a reason. `metadata_server`: `P2PHANDSHAKE`, or a URL of `http://` or `https://`. `protocol`:
        `tcp`; or `rdma`, with `tcp` in its place where there is no device, and a warning. `device_name`: the devices
        that the topology is to have, with commas between them; all if it is empty.
        """
    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str, /
    ) -> int:
        """As `initialize`; `metadata_type` is the scheme of a `metadata_server` that has none."""
    def close(self) -> int:
        """Ends the engine: peers are served no more, calls of other threads fail, and memory that it was lent, or that
        a transfer was given, is the caller's again. 0, also twice; -4 while a peer is still at such memory after some
        10 s: then it may be called again.
        """
    def get_rpc_port(self) -> int:
        """Port of the engine's handshakes: with the host's name before it, the name that peers know it by."""
    def get_local_server_name(self) -> str:
        """The name that peers know it by; "" before `initialize`."""
    def get_engine(self) -> InnerTransferEngine | None:
        """The engine itself, for those that share it; None, with the reason in `last_error()`, before `initialize`."""
    def get_engine_ptr(self) -> int:
        """0, with the reason in `last_error()`: who asks for the address of an engine of C++ would use it as one."""
    def get_local_topology(self, device_name: str | None = None) -> str:
        """Which network devices are near which memory, as JSON; also before `initialize`. `device_name`: those that
        count, with commas between them; all if there is none.
        """
    def last_error(self) -> str:
        """Why the last call of this thread failed, or ""."""

    # Memory.
    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Lends a range to peers. 0, or a negative code: -7 for a range that overlaps another."""
    def unregister_memory(self, buffer_addr: int, /) -> int:
        """Takes a range back. 0 once no peer touches it any more, or a negative code: -4 if one still does after 10 s.
        The range takes no new requests then, and a repeat waits again.
        """
    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """Lends ranges, all or none. 0, or a negative code."""
    def batch_unregister_memory(self, buffer_addresses: Sequence[int], /) -> int:
        """Gives ranges up. 0, or the code of the first that failed; the others are given up all the same."""
    def allocate_managed_buffer(self, length: int, /) -> int:
        """Memory that is registered already; 0 if there is none."""
    def free_managed_buffer(self, buffer_addr: int, length: int, /) -> int:
        """Takes back what `allocate_managed_buffer` gave. 0, or a negative code: what it did not give is left alone,
        and what somebody is still at stays, and may be given back again.
        """
    def write_bytes_to_buffer(self, dest_address: int, data: bytes | str, length: int, /) -> int:
        """Copies bytes to an address of this process. 0, or a negative code where there is no memory."""
    def read_bytes_from_buffer(self, source_address: int, length: int, /) -> bytes:
        """Copies bytes from an address of this process; b"" where there is no memory."""

    # Peers.
    def get_first_buffer_address(self, segment_name: str, /) -> int:
        """Address of the first buffer that a segment has; 0 if none."""
    def send_probe(self, peer_server_name: str) -> int:
        """0 if an engine answers under that name."""
    def send_notify(self, target_hostname: str, notify: TransferNotify) -> int:
        """Leaves a message with a peer. 0 once it has it."""
    def get_notifies(self) -> list[TransferNotify]:
        """Messages that peers have left, oldest first."""
    def warmup_efa_segment(self, segment_name: str) -> int:
        """0: there are no paths that would have to be warmed up."""
    def show_links(self, json: bool = False) -> str:
        """How bytes go to each peer and why, what has gone, and which network devices are near which memory."""

    # Transfers that the caller waits for: 0 or -1.
    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """From here to the peer. 0, or -1."""
    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """From the peer to here. 0, or -1."""
    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """One way or the other. 0, or -1."""
    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Many from here to the peer. 0, or -1."""
    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Many from the peer to here. 0, or -1."""
    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Many one way or the other. 0, or -1."""

    # Transfers in the background: a batch id, 0 on failure.
    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """One range from here to the peer in the background: a batch id, 0 on failure."""
    def transfer_submit_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """One range from the peer to here in the background: a batch id, 0 on failure."""
    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """As `batch_transfer_sync_write`, in the background: a batch id, 0 on failure."""
    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """As `batch_transfer_sync_read`, in the background: a batch id, 0 on failure."""
    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        transport_hint: str = "",
    ) -> int:
        """As `batch_transfer_sync`, in the background: a batch id, 0 on failure."""

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
    ) -> None:
        """From here to the peer, behind all that was queued on the stream before. RuntimeError if it failed."""
    def transfer_read_on_cuda(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None:
        """From the peer to here, behind all that was queued on the stream before. RuntimeError if it failed."""
    def batch_transfer_write_on_cuda(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None:
        """Many from here to the peer, behind all that was queued on the stream before. RuntimeError if one failed."""
    def batch_transfer_read_on_cuda(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None:
        """Many from the peer to here, behind all that was queued on the stream before. RuntimeError if one failed."""

    # Batches.
    def transfer_check_status(self, batch_id: int, /) -> int:
        """How far a batch is: 1 done (and freed), 0 under way, -1 failed (and freed), -2 timed out (and not freed)."""
    def get_batch_transfer_status(self, batch_ids: Sequence[int], /) -> int:
        """Waits for batches. 0 when all are done, -1 when one has failed or timed out. They are freed."""
    def wait(self, batch_id: int, timeout: float | None = None) -> int:
        """Waits for one batch, at most `timeout` seconds (none: until its deadline). 0 done, -1 failed: it is freed; -2
        not done in that time: it goes on.
        """
    async def wait_async(self, batch_id: int, timeout: float | None = None) -> int:
        """As ``wait``, for an event loop."""

class SharedSegment:
    """One rank's share. Its memory is there as long as this is."""

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
        """The first step: the segment, and the bytes that the other ranks need of this one. All ranks give the same
        name, size, number and owner. RuntimeError says why there is none.
        """
    @staticmethod
    def supported(mmap: bool = True, host_register: bool = False) -> bool:
        """Whether this version can do so."""
    def complete(self, blobs: Sequence[bytes]) -> None:
        """The second step: the bytes of all ranks, by rank. RuntimeError if they do not fit together, or the owner is
        gone.
        """
    def ready(self) -> bool:
        """Whether both steps are done."""
    def base_addr(self) -> int:
        """First address in this process; 0 before there is one."""
    def device_addr(self) -> int:
        """0: no device has an address of its own for it."""
    def size(self) -> int:
        """Bytes."""

class ReceivedData:
    """Bytes that have come, and from where."""

    @property
    def source_address(self) -> str:
        """``host:port`` of the sender's end of the connection."""
    @property
    def data_size(self) -> int:
        """Bytes."""
    def get_bytes(self) -> bytes:
        """A copy."""
    def get_memory_view(self) -> memoryview:
        """The bytes themselves, to be read."""

class ReceivedTensor:
    """A tensor that has come, and from where."""

    @property
    def source_address(self) -> str:
        """``host:port`` of the sender's end of the connection."""
    @property
    def dtype(self) -> str:
        """Name of the elements' type, as torch has it: ``float32``."""
    @property
    def shape(self) -> list[int]:
        """Its dimensions."""
    @property
    def total_bytes(self) -> int:
        """Bytes of all elements."""
    def get_data_size(self) -> int:
        """Bytes of all elements."""
    def get_data_as_bytes(self) -> bytes:
        """A copy of the elements, in row-major order."""
    def get_memory_view(self) -> memoryview:
        """The elements themselves, to be read."""
    def to_tensor(self) -> Tensor:
        """A torch tensor over the elements, without a copy: it and this object share them."""

class RpcInterface:
    """A sender, a receiver, or both. Calls give False or -1 where they fail; wrong types are TypeErrors."""

    def __init__(self) -> None: ...
    def initialize(
        self, listen_address: str = "", thread_count: int = 0, timeout_seconds: int = 30, pool_size: int = 100
    ) -> bool:
        """Prepares sending, and receiving if there is an address to listen at."""
    def initialize_client(self, pool_size: int = 100, timeout_seconds: int = 30) -> bool:
        """Prepares sending. ``pool_size``: most connections that are kept for each receiver."""
    def initialize_server(self, listen_address: str, thread_count: int = 8, timeout_seconds: int = 30) -> bool:
        """Prepares receiving at ``host:port``; port 0 takes a free one. ``thread_count``: most callbacks at a time; 8
        if it is 0.
        """
    def start_server(self) -> bool:
        """Receives, and returns once the server is stopped; False at once if it cannot begin."""
    def start_server_async(self) -> bool:
        """Begins to receive, and returns."""
    def stop_server(self) -> None:
        """Receives no more; connections are closed. What is kept for sending is closed, too."""
    @property
    def local_port(self) -> int:
        """The port that it listens at; 0 if it does not."""
    @property
    def unhandled(self) -> int:
        """Messages that came while there was no callback for their kind: taken, answered with 0, and dropped."""
    def set_data_receive_callback(self, callback: Callable[[ReceivedData], object], /) -> None:
        """Called in a thread of the server for each message of bytes, before its sender's call returns."""
    def set_tensor_receive_callback(self, callback: Callable[[ReceivedTensor], object], /) -> None:
        """The same for each tensor."""
    def send_data(self, target_address: str, data: Buffer | str) -> int:
        """0 once the receiver's callback has returned, or it has taken the bytes and has no callback; else -1."""
    def send_tensor(self, target_address: str, tensor: Tensor) -> int:
        """The same for a torch tensor, of the processor or of a device."""
    def send_data_async(
        self, target_address: str, data: Buffer | str, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[int]:
        """As ``send_data``, as a future of the loop."""
    def send_tensor_async(
        self, target_address: str, tensor: Tensor, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[int]:
        """As ``send_tensor``, as a future of the loop."""

CoroRPCInterface = RpcInterface

def create_rpc_client(local_rank: int = 0, world_size: int = 1) -> RpcInterface: ...
def create_rpc_server(local_rank: int = 0, world_size: int = 1) -> RpcInterface: ...
