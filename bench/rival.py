"""The rival's environment: the published wheel in a virtual environment of its own."""

import subprocess
import sys
from pathlib import Path

DISTRIBUTION = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
SYSTEM_PACKAGE = "libibverbs1"


class NoRival(Exception):
    """Why there is nothing to compare with."""


def _run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, check=False)


def prepare(folder):
    """Makes the environment unless it is there; returns its interpreter."""
    python = Path(folder) / "bin" / "python"
    if not python.exists():
        made = _run(sys.executable, "-m", "venv", folder)
        if made.returncode != 0:
            raise NoRival(f"cannot make {folder}: {made.stderr.strip()}")
    imports = "import numpy, mooncake.store"
    tried = _run(python, "-c", imports)
    if tried.returncode != 0:
        installed = _run(python, "-m", "pip", "install", "-q", DISTRIBUTION, "numpy")
        if installed.returncode != 0:
            raise NoRival(f"cannot install {DISTRIBUTION}: {installed.stderr.strip()[-400:]}")
        tried = _run(python, "-c", imports)
    if tried.returncode != 0:
        reason = tried.stderr.strip().splitlines()[-1]
        raise NoRival(f"{DISTRIBUTION} does not import ({reason}); `apt-get install {SYSTEM_PACKAGE}` may mend it")
    return str(python)
