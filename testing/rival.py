"""The rivals' environments: a published wheel in a virtual environment of its own."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """A wheel that others have published."""

    distribution: str
    imports: str
    # What to say where it is installed and does not import.
    remedy: str
    # Whether it comes with what it depends on.
    whole: bool = True


# The rival of the pool, and of the engine.
MOONCAKE = Published(
    "mooncake-transfer-engine-non-cuda==0.3.13.post1", "mooncake.store", "`apt-get install libibverbs1` may mend it"
)
# A second one of the engine. Without torch and CUDA, which it needs for neither: gigabytes.
NIXL = Published("nixl-cu12==1.5.1", "nixl_cu12._api", "it is for Linux alone", whole=False)


class NoRival(Exception):
    """Why there is nothing to compare with."""


def _run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, check=False)


def prepare(folder, published=MOONCAKE):
    """Makes the environment unless it is there; returns its interpreter."""
    python = Path(folder) / "bin" / "python"
    if not python.exists():
        made = _run(sys.executable, "-m", "venv", folder)
        if made.returncode != 0:
            raise NoRival(f"cannot make {folder}: {made.stderr.strip()}")
    tried = _run(python, "-c", f"import numpy, {published.imports}")
    if tried.returncode != 0:
        install = [python, "-m", "pip", "install", "-q"]
        alone = [] if published.whole else ["--no-deps"]
        for what in ([*alone, published.distribution], ["numpy"]):
            installed = _run(*install, *what)
            if installed.returncode != 0:
                raise NoRival(f"cannot install {published.distribution}: {installed.stderr.strip()[-400:]}")
        tried = _run(python, "-c", f"import numpy, {published.imports}")
    if tried.returncode != 0:
        reason = tried.stderr.strip().splitlines()[-1]
        raise NoRival(f"{published.distribution} does not import ({reason}); {published.remedy}")
    return str(python)
