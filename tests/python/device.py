"""CUDA's driver by ctypes: the real one, or the fake one of tests/fake_cuda where there is no GPU.

Processes that ``Peer.call("run", ...)`` talks to import it too, as ``device``.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "fake_cuda" / "fake_cuda.c"


def build_fake(folder: Path) -> Path:
    """The fake driver as a shared object of the real one's name."""
    built = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-O2", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *flags, "-o", str(built), str(SOURCE)], check=True)
    return built


def has_compiler() -> bool:
    return shutil.which("cc") is not None


class Cuda:
    """Device memory of this process. RuntimeError where there is none; OSError where there is no driver."""

    def __init__(self, library: str = "libcuda.so.1", device: int = 0):
        self.lib = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        handle, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", ctypes.c_uint(0))
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), handle)
        self.use()

    def use(self) -> None:
        """For each further thread that calls it."""
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *args) -> None:
        code = getattr(self.lib, name)(*args)
        if code:
            raise RuntimeError(f"{name}: {code}")

    def alloc(self, size: int) -> int:
        addr = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(addr), ctypes.c_size_t(size))
        return addr.value

    def free(self, addr: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(addr))

    def write(self, addr: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(addr), data, ctypes.c_size_t(len(data)))

    def read(self, addr: int, size: int) -> bytes:
        into = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", into, ctypes.c_uint64(addr), ctypes.c_size_t(size))
        return into.raw

    def holding(self, data: bytes) -> int:
        """Memory with these bytes."""
        addr = self.alloc(len(data))
        self.write(addr, data)
        return addr

    # Of the fake driver only.

    def delay(self, microseconds: int) -> None:
        """Every copy is done so much later: who does not wait for it sees what was there before."""
        self.lib.fake_cuda_delay(ctypes.c_uint(microseconds))

    def fail(self, call: str, code: int, after: int = 0, times: int = 1) -> None:
        self.lib.fake_cuda_fail(call.encode(), code, after, times)

    def count(self, what: str) -> int:
        self.lib.fake_cuda_count.restype = ctypes.c_long
        return self.lib.fake_cuda_count(what.encode())
