"""Disks and file systems that this host has not: in an emulated machine with a kernel of its own."""

from __future__ import annotations

import re
import shutil

import pytest
from emulated import Machine, needs_machine, python

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow, pytest.mark.long]

MIB = 1 << 20
SYSTEM = "/usr/sbin:/sbin:/usr/bin:/bin"

# A server of NFS without the programs of one: what they would tell the kernel is told by hand. `all` are clients at
# the loopback address, file system 0 is the root of what version 4 exports, and root is root there.
NFS = r"""
set -e
mkdir -p /exported /mnt/nfs
mount -t tmpfs tmpfs /exported
mount -t nfsd nfsd /proc/fs/nfsd
echo "nfsd 127.0.0.1 4000000000 all" >/proc/net/rpc/auth.unix.ip/channel
echo "all /exported 4000000000 9218 65534 65534 0" >/proc/net/rpc/nfsd.export/channel
echo "all 1 \x00000000 4000000000 /exported" >/proc/net/rpc/nfsd.fh/channel
# So long clients of before may take their locks back, and nobody has new ones. It takes no less.
echo 10 >/proc/fs/nfsd/nfsv4gracetime
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo "-2 -3 +4" >/proc/fs/nfsd/versions
echo "tcp 2049" >/proc/fs/nfsd/portlist
echo 2 >/proc/fs/nfsd/threads
mount -i -t nfs4 -o addr=127.0.0.1,clientaddr=127.0.0.1,vers=4.2,soft 127.0.0.1:/ /mnt/nfs
"""


@pytest.fixture(scope="module", autouse=True)
def machine():
    needs_machine()


def runs(tmp_path, script: str, *options: str) -> str:
    """What it says in a machine, where it ends well."""
    made = Machine(tmp_path / "machine.out", ["sh", "-c", script], *options)
    status = made.result()
    assert status == 0, f"status {status}\n{made.output()[-6000:]}"
    return made.output()


def test_a_command_has_a_kernel_a_disk_and_shared_folders_of_its_own(tmp_path):
    image, shared = tmp_path / "image", tmp_path / "shared"
    shared.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    script = f"uname -r >{shared}/kernel; echo kept | dd of=/dev/vda conv=fsync 2>/dev/null; echo lost >{tmp_path}/lost"
    made = Machine(
        tmp_path / "out", ["sh", "-c", f"{script}; echo said; exit 7"], "--disk", str(image), "--share", str(shared)
    )
    assert made.result() == 7
    assert made.output() == "said\n"
    assert (shared / "kernel").read_text() != ""
    assert image.read_bytes()[:5] == b"kept\n"
    assert not (tmp_path / "lost").exists(), "what is not shared is written to memory"


def test_a_tier_of_one_store_is_refused_on_nfs(tmp_path):
    said = runs(tmp_path, NFS + " ".join(python("refused_tier.py")) + " /mnt/nfs/tiers", "--with", "nfs")
    assert re.search(r"setup: -\d+ .*NFS.*--root_fs_dir", said), said


def test_clients_share_tiers_on_nfs_and_read_what_a_killed_writer_has_left(tmp_path):
    said = runs(tmp_path, NFS + " ".join(python("nfs_pool.py")) + " /mnt/nfs", "--with", "nfs")
    print(said)
    assert "read: 120" in said
    assert int(re.search(r"behind a killed writer: (\d+)", said)[1]) == 120
    assert "folders: 2" in said


def test_a_tier_on_a_disk_that_gets_worse_and_worse_gives_no_wrong_byte_and_refuses_no_put(tmp_path, seed):
    for program in ("dmsetup", "mkfs.ext4"):
        if shutil.which(program, path=SYSTEM) is None:
            pytest.skip(f"no {program} (Debian: dmsetup, e2fsprogs)")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(512 * MIB)
    said = runs(
        tmp_path, " ".join([*python("flakey_pool.py"), "/dev/vda", str(seed)]), "--with", "dm", "--disk", str(image)
    )
    print(said)
    counted = [int(count) for count in re.findall(r"'right': (\d+)", said)]
    assert len(counted) == 6
    assert counted[-1] > 60
    assert int(re.search(r"read from the tier: (\d+)", said)[1]) > 20
    assert re.search("(a write|writes|disk of the tier|a record)", said), "the disk was never bad"
