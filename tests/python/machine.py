"""What the kernel knows about this machine and about a process."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

_MADV_POPULATE_WRITE = 23
_PUNCH_HOLE = 0x01 | 0x02  # and keep the size
TICK = os.sysconf("SC_CLK_TCK")


def shmem() -> int:
    """`Shmem` of /proc/meminfo, bytes: all shared memory of this host."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) << 10
    raise AssertionError("/proc/meminfo has no Shmem")


def shmem_at_rest(quiet: float = 0.15, timeout: float = 5.0) -> int:
    """`Shmem` once it has stopped to change: what earlier tests held has been given back by then."""
    end = time.monotonic() + timeout
    known, since = shmem(), time.monotonic()
    while time.monotonic() - since < quiet and time.monotonic() < end:
        time.sleep(0.01)
        if abs((now := shmem()) - known) > 1 << 20:
            known, since = now, time.monotonic()
    return known


def wait_shmem_grows(before: int, size: int, timeout: float = 15.0) -> int:
    """Waits until `Shmem` is `size` above `before`, nearly; what it is then."""
    end = time.monotonic() + timeout
    while (now := shmem()) < before + size * 0.97:
        assert time.monotonic() < end, f"only {(now - before) >> 20} MiB of {size >> 20} MiB populated in {timeout} s"
        time.sleep(0.01)
    return now


def seconds_until_shmem_falls(before: int, size: int, limit: float) -> float:
    """How long it takes until `Shmem` is `size` below `before`, nearly."""
    begin = time.monotonic()
    while before - shmem() < size * 0.95:
        waited = time.monotonic() - begin
        assert waited < limit, f"only {(before - shmem()) >> 20} MiB of {size >> 20} MiB came back in {limit} s"
        time.sleep(0.002)
    return time.monotonic() - begin


def seconds_to_free(size: int) -> float:
    """How long this kernel takes to free that much populated shared memory: nobody gives it back faster."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    memory = os.memfd_create("floor")
    try:
        os.ftruncate(memory, size)
        place = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, memory, 0)
        assert libc.madvise(place, size, _MADV_POPULATE_WRITE) == 0, os.strerror(ctypes.get_errno())
        begin = time.monotonic()
        assert libc.fallocate(memory, _PUNCH_HOLE, 0, size) == 0, os.strerror(ctypes.get_errno())
        seconds = time.monotonic() - begin
        libc.munmap(place, size)
        return seconds
    finally:
        os.close(memory)


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def wait_cpu(pid: int, used: float, more: float, timeout: float = 5.0) -> bool:
    """Waits until a process has used `more` seconds of CPU above `used`; False when it does not in time."""
    end = time.monotonic() + timeout
    while cpu_seconds(pid) < used + more:
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def listening_ports(pid: int) -> list[int]:
    """TCP ports that a process listens on."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            sockets.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return sorted(ports)


def memfds(pid: int) -> list[Path]:
    """The memfds that a process holds, as openable paths, the largest first."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(entry).startswith("/memfd:"):
                found.append((entry.stat().st_size, entry))
        except OSError:
            continue
    return [entry for _, entry in sorted(found, reverse=True)]
