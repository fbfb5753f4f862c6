"""A checkout that is moved goes on working: nothing that `make` made in it knows where it was."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "#!/bin/sh\nexit 3\n"


@pytest.fixture
def moved(tmp_path):
    """A virtual environment that was made in one place and now lies in another."""
    made, there = tmp_path / "made", tmp_path / "moved"
    subprocess.run([sys.executable, "-m", "venv", made / ".venv"], check=True, timeout=100)
    # As pip writes a command, and something that is none of ours to change.
    (made / ".venv/bin/command").write_text(f"#!{made}/.venv/bin/python3\nimport sys\nprint(sys.prefix)\n")
    (made / ".venv/bin/command").chmod(0o755)
    (made / ".venv/bin/other").write_text(SCRIPT)
    (made / "nothing.txt").write_text("")
    made.rename(there)
    return there


def mend(folder: Path) -> subprocess.CompletedProcess:
    command = [ROOT / "packaging/environment.sh", sys.executable, ".venv", "nothing.txt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done


def test_a_moved_virtual_environment_is_mended_in_place(moved):
    command = moved / ".venv/bin/command"
    with pytest.raises(FileNotFoundError):
        subprocess.run([command], check=False)
    before = (moved / ".venv/bin/python").lstat().st_ino
    assert "was moved here" in mend(moved).stderr
    for script in (command, moved / ".venv/bin/pip"):
        done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    assert subprocess.run([command], capture_output=True, text=True).stdout.strip() == str(moved / ".venv")
    assert (moved / ".venv/bin/other").read_text() == SCRIPT
    assert (moved / ".venv/bin/python").lstat().st_ino == before, "it was made anew instead"
    assert "moved" not in mend(moved).stderr, "once is enough"


def test_make_mends_it_before_it_is_used(tmp_path):
    """Whatever the stamps of files say."""
    (tmp_path / ".tools").touch()

    def asked(made_at: Path) -> str:
        (tmp_path / "pyvenv.cfg").write_text(f"version = 3.11.0\ncommand = /usr/bin/python3 -m venv {made_at}\n")
        command = ["make", "-n", "-f", ROOT / "Makefile", f"VENV={tmp_path}", "fmt"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "environment.sh" in asked(tmp_path.parent / "elsewhere")
    assert "environment.sh" not in asked(tmp_path)


def test_no_command_of_make_is_a_script_that_knows_its_place():
    for file in (ROOT / "Makefile", *ROOT.glob("packaging/*.sh"), *ROOT.glob("bench/*.sh")):
        scripts = re.findall(r"(?:\$\(VENV\)|\$venv|\.venv)\"?/bin/(?!python)\w+", file.read_text())
        assert scripts == [], f"{file.name}: call it as a module"


def test_no_source_in_rust_has_the_checkouts_place_built_in():
    """Cargo does not build anew what was moved: such a test would look where the checkout was."""
    for file in ROOT.glob("crates/**/*.rs"):
        assert 'env!("CARGO_MANIFEST_DIR")' not in file.read_text(), f"{file}: ask std::env::var when it runs"
