"""With Mooncake in the same environment, the first import and the commands name the clash and the remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

RIVAL = "mooncake-transfer-engine-non-cuda"
RIVAL_VERSION = "0.3.13.post1"
WHEELS = Path(os.environ.get("TESTED_WHEELS") or Path(__file__).parents[2] / "dist")


def wheel() -> Path:
    found = sorted(WHEELS.glob("mooncake_rs-*.whl"))
    if not found:
        pytest.skip(f"no wheel in {WHEELS} (make wheel)")
    return found[-1]


class Environment:
    """A virtual environment without anything in it."""

    def __init__(self, folder: Path):
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        self.packages = next(folder.glob("lib/python3*/site-packages"))

    def pip(self, *args: str) -> subprocess.CompletedProcess:
        # The runner's pip works on another environment: much quicker than installing pip there.
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.bin / "python"),
            "--disable-pip-version-check",
            *args,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    def install(self, what: str) -> None:
        done = self.pip("install", "--quiet", "--no-deps", what)
        assert done.returncode == 0, done.stderr

    def python(self, source: str, **env: str) -> subprocess.CompletedProcess:
        return self.run("python", "-c", source, **env)

    def run(self, command: str, *args: str, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(self.bin / command), *args], capture_output=True, text=True, timeout=60, env={**os.environ, **env}
        )


@pytest.fixture(scope="session")
def rival(tmp_path_factory) -> Path:
    """Mooncake's wheel, from PyPI."""
    folder = tmp_path_factory.mktemp("rival")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, f"{RIVAL}=={RIVAL_VERSION}", "-d", str(folder)], capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        pytest.skip(f"{RIVAL} cannot be had here: {done.stderr[-200:]}")
    return next(folder.glob("*.whl"))


@pytest.mark.parametrize("order", ["rival first", "rival last"])
def test_the_clash_is_named_with_the_command_that_mends_it(tmp_path, rival, order):
    e = Environment(tmp_path / "env")
    for what in [rival, wheel()] if order == "rival first" else [wheel(), rival]:
        e.install(str(what))
    remedy = f"pip uninstall -y {RIVAL} mooncake-rs && pip install mooncake-rs"
    for module in ("mooncake.store", "mooncake.cli", "mooncake.cli_client"):
        done = e.python(f"import {module}")
        assert done.returncode == 1
        assert "ImportError" in done.stderr
        assert RIVAL in done.stderr
        assert remedy in done.stderr
    for command in ("mooncake_master", "mooncake_client"):
        done = e.run(command, "--version")
        assert done.returncode == 1
        assert remedy in done.stderr, done.stderr
    # The command does mend it.
    assert e.pip("uninstall", "-y", RIVAL, "mooncake-rs").returncode == 0
    e.install(str(wheel()))
    assert e.python("import mooncake.store").returncode == 0
    assert e.run("mooncake_master", "--version").stdout.startswith("mooncake_master ")


def test_uninstalling_only_the_rival_takes_shared_files_along_and_a_reinstall_brings_them_back(tmp_path, rival):
    """pip removes what it lists, whoever wrote it last: that is why the remedy names both."""
    e = Environment(tmp_path / "env")
    e.install(str(rival))
    e.install(str(wheel()))
    assert e.pip("uninstall", "-y", RIVAL).returncode == 0
    assert e.python("import mooncake.store").returncode == 0
    assert not (e.bin / "mooncake_master").exists()
    again = e.pip("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel()))
    assert again.returncode == 0, again.stderr
    assert e.python("from mooncake import BufferPool; import mooncake.store").returncode == 0
    assert e.run("mooncake_master", "--version").returncode == 0


def test_the_way_back_leaves_the_rival_alone(tmp_path, rival):
    e = Environment(tmp_path / "env")
    e.install(str(wheel()))
    assert e.pip("uninstall", "-y", "mooncake-rs").returncode == 0
    e.install(str(rival))
    assert e.python("import mooncake; print(mooncake.__file__)").returncode == 0
    found = e.python("import importlib.util; print(importlib.util.find_spec('mooncake.store').origin)").stdout
    assert found.strip().endswith("/mooncake/store.so")
    assert (e.bin / "mooncake_master").exists()
    assert not (e.bin / "mooncake").exists()


def test_the_clash_can_be_overruled(tmp_path):
    e = Environment(tmp_path / "env")
    e.install(str(wheel()))
    (e.packages / "mooncake_transfer_engine_cuda13-0.3.13.dist-info").mkdir()
    assert "mooncake-transfer-engine-cuda13" in e.python("import mooncake").stderr
    assert e.python("import mooncake.store", MOONCAKE_ALLOW_CLASH="1").returncode == 0
    assert e.run("mooncake_master", "--version").returncode == 1
    assert e.run("mooncake_master", "--version", MOONCAKE_ALLOW_CLASH="1").returncode == 0


def test_other_distributions_are_no_clash(tmp_path):
    e = Environment(tmp_path / "env")
    e.install(str(wheel()))
    for name in ("mooncake-1.0.dist-info", "mooncake_trace-2.0.dist-info", "transfer_engine-1.dist-info"):
        (e.packages / name).mkdir()
    assert e.python("import mooncake.store").returncode == 0
    assert e.run("mooncake_master", "--version").returncode == 0


def test_uninstalling_leaves_nothing(tmp_path):
    e = Environment(tmp_path / "env")
    e.install(str(wheel()))
    assert e.python("import mooncake.store").returncode == 0
    assert e.pip("uninstall", "-y", "mooncake-rs").returncode == 0
    for left in (e.packages / "mooncake").rglob("__pycache__"):
        shutil.rmtree(left)
    assert not [p for p in e.packages.rglob("*") if p.is_file() and "mooncake" in str(p)]
    assert not list(e.bin.glob("mooncake*"))
