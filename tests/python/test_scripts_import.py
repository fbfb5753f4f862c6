"""Scripts that no test runs, since they take a machine of their own or large downloads, find all that they import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Of the environments in which the engines and the rivals run.
ELSEWHERE = ["aiohttp", "lmcache", "nixl_cu12", "rich", "sglang", "torch", "vllm"]
IMPORT = """
import importlib, sys
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name.split(".")[0] in sys.argv[1].split(","), f"{name}: {error}"
"""


@pytest.mark.parametrize("folder", ["demo", "bench", "e2e", "e2e/clients", "testing"])
def test_every_script_finds_what_it_imports(folder):
    """As it is started: with its own folder on the path, and the shared one."""
    files = [*(ROOT / folder).glob("*.py"), *(ROOT / folder).glob("scenarios/*.py")]
    names = [".".join(file.relative_to(ROOT / folder).with_suffix("").parts) for file in sorted(files)]
    assert names
    path = os.pathsep.join(str(ROOT / shared) for shared in ("testing", "e2e"))
    command = [sys.executable, "-c", IMPORT, ",".join(ELSEWHERE), *names]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT / folder, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
