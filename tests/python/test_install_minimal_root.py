"""The wheel in a root with an interpreter, the C library, a shell and nothing else: no compiler, RDMA or CUDA."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from test_install_clash import wheel

# Run by the root's interpreter, which is process 1 of a network without anything else in it.
INSIDE = """
import fcntl, json, os, socket, struct, subprocess, sys, time
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS: up

said = {}
import mooncake.store, mooncake.async_store, mooncake.http_metadata_server, mooncake.errors, mooncake.mooncake_config
said["foreign"] = sorted(m for m in sys.modules if m.split(".")[0] in ("numpy", "torch", "requests", "aiohttp"))

def version(name):
    return subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout

said["versions"] = [version(name) for name in ("mooncake_master", "mooncake_client", "mooncake_http_metadata_server")]

def start(command, *flags):
    out = open(f"/tmp/{command}.out", "wb")
    return subprocess.Popen([command, *flags], stdout=out, stderr=out)

def wait(what, attempt):
    for _ in range(500):
        if value := attempt():
            return value
        time.sleep(0.02)
    raise SystemExit(what + ": " + "".join(open(f"/tmp/{f}").read() for f in os.listdir("/tmp")))

master = start("mooncake_master", "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--wal_dir=/tmp/log")
wait("master", lambda: "Master service started" in open("/tmp/mooncake_master.out").read())
node = start("mooncake_client", "--host=127.0.0.1", "--global_segment_size=32MB")
wait("node", lambda: "Mooncake client ready" in open("/tmp/mooncake_client.out").read())

store = mooncake.store.MooncakeDistributedStore()
said["setup"] = store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", "127.0.0.1:50051")
value = os.urandom(3 << 20)
said["put"] = store.put("key", value)
said["same"] = store.get("key") == value

async def again():
    beside = mooncake.async_store.MooncakeDistributedStoreAsync()
    assert await beside.async_setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", "127.0.0.1:50051") == 0
    same = await beside.async_get("key") == value
    await beside.async_close()
    return same

import asyncio
said["same later"] = asyncio.run(again())
store.close()
said["libraries"] = set()
for pid in (os.getpid(), master.pid, node.pid):
    said["libraries"] |= {os.path.basename(line.split()[5]) for line in open(f"/proc/{pid}/maps") if ".so" in line}
said["libraries"] = sorted(said["libraries"])
node.terminate(), master.terminate()
said["ends"] = [node.wait(10), master.wait(10)]
print(json.dumps(said))
"""

# What the commands need: they are shell scripts of one line.
TOOLS = ("sh", "dirname", "readlink")
# Parts of the C library that are nearly empty since its version 2.34, and that every host has.
C_LIBRARY = ("libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1")
# What an interpreter may need, and the tools: the C library's parts, and little else.
ORDINARY = re.compile(
    r"(ld-linux[-\w]*|libc|libm|libdl|libpthread|librt|libutil|libpython3[\d.]*|libexpat|libffi|libz"
    r"|libselinux|libpcre2-8)\.so"
)


def libraries(elf: Path) -> list[Path]:
    """What the loader maps for it."""
    said = subprocess.run(["ldd", str(elf)], capture_output=True, text=True, timeout=60).stdout
    return [Path(name) for name in re.findall(r"(/\S+) \(0x", said)]


def copy_libraries(elf: Path, root: Path) -> None:
    for library in libraries(elf):
        into = root / str(library).lstrip("/")
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, into)
        if library.name == "libc.so.6":
            for part in C_LIBRARY:
                shutil.copy(library.with_name(part), into.with_name(part))


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A copy of this interpreter with the libraries that it cannot do without, and the wheel installed in it."""
    root = tmp_path_factory.mktemp("root")
    for folder in ("proc", "dev/shm", "tmp", "usr/bin"):
        (root / folder).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    for name, source in [("python3", sys.executable), *((tool, shutil.which(tool)) for tool in TOOLS)]:
        program = root / "usr/bin" / name
        shutil.copy(Path(source).resolve(), program)
        copy_libraries(program, root)
    version = f"python{sysconfig.get_python_version()}"
    stdlib = root / "usr/lib" / version
    left_out = shutil.ignore_patterns("site-packages", "dist-packages", "__pycache__", "test", "idlelib", "config-*")
    shutil.copytree(sysconfig.get_path("stdlib"), stdlib, ignore=left_out, symlinks=True)
    for extension in (stdlib / "lib-dynload").glob("*.so"):
        if all(ORDINARY.match(library.name) for library in libraries(extension)):
            copy_libraries(extension, root)
        else:
            extension.unlink()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    into = ["--ignore-installed", "--no-compile", f"--prefix={root / 'usr'}"]
    installed = subprocess.run([*pip, *into, str(wheel())], capture_output=True, text=True, timeout=300)
    assert installed.returncode == 0, installed.stderr
    return root


@pytest.fixture(scope="module")
def said(root) -> dict:
    """What the script said that ran in the root."""
    devices = " ".join(f"touch {root}/dev/{n}; mount --bind /dev/{n} {root}/dev/{n};" for n in ("null", "urandom"))
    enter = (
        f"set -e; mount -t proc proc {root}/proc; {devices} mount -t tmpfs none {root}/dev/shm;"
        f' exec chroot {root} /usr/bin/python3 -I -c "$1"'
    )
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    spaces = ["unshare", *user, "--mount", "--pid", "--net", "--ipc", "--uts", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*spaces, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not make namespaces")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}
    command = [*spaces, "sh", "-c", enter, "sh", INSIDE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_there_is_nothing_in_it_but_an_interpreter(root):
    ours = {"mooncake", "mooncake_master", "mooncake_client", "mooncake_http_metadata_server", "mooncake_proxy"}
    ours |= {"transfer_engine_bench", "transfer_engine_topology_dump", "tebench", "show_link"}
    assert {p.name for p in (root / "usr/bin").iterdir()} == {"python3", *TOOLS} | ours
    for name in ("libibverbs", "libcuda", "libnuma", "libgcc_s", "libstdc++"):
        assert not list(root.rglob(f"{name}*")), name


def test_everything_imports_there(said):
    assert said["foreign"] == []
    assert [v.split()[0] for v in said["versions"]] == [
        "mooncake_master",
        "mooncake_client",
        "mooncake_http_metadata_server",
    ]


def test_a_pool_works_there(said):
    assert said["setup"] == 0
    assert said["put"] == 0
    assert said["same"]
    assert said["same later"]
    assert said["ends"] == [0, 0]


def test_only_the_c_library_is_mapped_there(said):
    ours = [name for name in said["libraries"] if not ORDINARY.match(name)]
    assert [n for n in ours if n != "_native.abi3.so" and ".cpython-" not in n] == []
