"""File systems of their own on loop devices, which only root has."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_PACKAGES = {"mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs", "xfs_io": "xfsprogs", "losetup": "mount"}


def run(*words: str | Path) -> str:
    """What a command says; an error with that when it fails."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, env={**os.environ, "PATH": _PATH}, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr or done.stdout}"
    return done.stdout.strip()


class Image:
    """A file system in a file, mounted at `path`."""

    def __init__(self, folder: Path, kind: str, size: int):
        if os.geteuid() != 0:
            pytest.skip("loop devices need root")
        for program in ("losetup", f"mkfs.{kind}", *(["xfs_io"] if kind == "xfs" else [])):
            if shutil.which(program, path=_PATH) is None:
                pytest.skip(f"no {program} (Debian: {_PACKAGES[program]})")
        self.kind, self.path, file = kind, folder / kind, folder / f"{kind}.image"
        self.device, self._is_mounted = None, False
        with file.open("wb") as made:
            made.truncate(size)
        try:
            run(f"mkfs.{kind}", "-q", file)
            self.device = run("losetup", "--find", "--show", "--direct-io=on", file)
            self.path.mkdir()
            run("mount", self.device, self.path)
            self._is_mounted = True
        except AssertionError as error:
            self.close()
            pytest.skip(f"no {kind} on a loop device here: {error}")

    def fill(self) -> Path:
        """A file that takes all the room that is left."""
        file = self.path / "neighbour"
        with file.open("wb") as made:
            # A file system keeps some for itself.
            for left in (0, 4, 16, 32):
                free = os.statvfs(self.path)
                size = free.f_bavail * free.f_frsize - (left << 20)
                try:
                    os.posix_fallocate(made.fileno(), 0, size)
                except OSError:
                    continue
                return file
        raise AssertionError("it cannot be filled")

    def becomes_read_only(self) -> None:
        """As after an error of its disk, files that are open for writing or not."""
        if self.kind == "ext4":
            run("mount", "-o", "remount,abort", self.path)
        else:
            # XFS gives up whole: it is not read any more either.
            run("xfs_io", "-x", "-c", "shutdown", self.path)

    def close(self) -> None:
        if self._is_mounted:
            run("umount", "-l", self.path)
        if self.device is not None:
            run("losetup", "-d", self.device)


class Throttle:
    """A group of processes whose writes to one device go on at so many bytes a second."""

    def __init__(self, name: str, device: str, bytes_per_second: int):
        about = os.stat(device).st_rdev
        number = f"{os.major(about)}:{os.minor(about)}"
        self.group: Path | None = None
        second = Path("/sys/fs/cgroup/cgroup.controllers")
        try:
            if second.exists() and "io" in second.read_text().split():
                Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+io")
                self.group = Path("/sys/fs/cgroup") / name
                self.group.mkdir()
                (self.group / "io.max").write_text(f"{number} wbps={bytes_per_second}")
            else:
                self.group = Path("/sys/fs/cgroup/blkio") / name
                self.group.mkdir()
                (self.group / "blkio.throttle.write_bps_device").write_text(f"{number} {bytes_per_second}")
        except OSError as error:
            self.close()
            pytest.skip(f"no control group here slows a disk down: {error}")

    def take(self, pid: int) -> None:
        assert self.group is not None
        (self.group / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Its processes must have ended."""
        if self.group is not None and self.group.exists():
            self.group.rmdir()
