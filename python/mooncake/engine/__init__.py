"""The transfer engine: peers read and write each other's registered memory."""

from mooncake import _clash

_clash.refuse()

from mooncake._native import (  # noqa: E402  (after the check, which must come first)
    InnerTransferEngine,
    SharedSegment,
    TransferNotify,
)
from mooncake.engine._engine import TransferEngine  # noqa: E402
from mooncake.engine._opcode import TransferOpcode  # noqa: E402
from mooncake.engine._rpc import (  # noqa: E402
    ReceivedData,
    ReceivedTensor,
    RpcInterface,
    create_rpc_client,
    create_rpc_server,
)

CoroRPCInterface = RpcInterface

# The members by themselves, as Mooncake exports them.
Read, Write = TransferOpcode.Read, TransferOpcode.Write

# CUDA's driver is looked for at run time, so every build takes its memory; the others are not there yet.
SUPPORT_CUDA = True
SUPPORT_EFA = SUPPORT_HIP = SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = SUPPORT_MUSA = False

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
