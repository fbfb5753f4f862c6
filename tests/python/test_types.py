"""What type checkers make of the package, at the oldest Python that it is for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import mooncake

CALLS = Path(__file__).with_name("typed_calls.py")
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_mypy_refuses_the_wrong_calls_of_a_file_and_no_others(tmp_path):
    # Stubs may name what is not installed: such a type then is anything.
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\nignore_missing_imports = True\n")
    (tmp_path / "mooncake").symlink_to(Path(mooncake.__file__).parent)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version=3.11", "--cache-dir", tmp_path]
    command += ["--config-file", settings, "--no-error-summary", CALLS]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    told = re.findall(r"typed_calls\.py:(\d+): error", ran.stdout)
    lines = CALLS.read_text().splitlines()
    refused = [number for number, line in enumerate(lines, 1) if line.endswith("# refused")]
    assert sorted({int(number) for number in told}) == refused, ran.stdout + ran.stderr


def test_mypy_accepts_the_examples_with_the_installed_package_and_numpy(tmp_path):
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, *sorted(EXAMPLES.glob("*.py"))]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
