"""The C library of the wheel, and of `make install`: a program is built by what lies beside it, and runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "crates/mooncake-transfer-engine-c"

CMAKE = """
cmake_minimum_required(VERSION 3.10)
project(example C)
find_package(transfer_engine {version} REQUIRED)
add_executable(example {source})
target_link_libraries(example PRIVATE transfer_engine::transfer_engine)
"""


def run(*command: str | Path, **options) -> str:
    # What was installed with the suite, cmake for one, first.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    program = shutil.which(command[0], path=path)
    if program is None:
        pytest.skip(f"no {command[0]} here")
    done = subprocess.run([program, *map(str, command[1:])], capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["of the wheel", "installed"])
def prefix(request, tmp_path) -> Path:
    """Moved from where it was laid out, if it was installed."""
    wheel = Path(sys.prefix)
    library = wheel / "lib/libtransfer_engine.so"
    if not library.exists():
        pytest.skip("needs the installed wheel")
    if request.param == "of the wheel":
        return wheel
    # The one that is there, so that nothing is built; as a package is made, too.
    first = {"PREFIX": "/usr", "DESTDIR": tmp_path / "first", "LIBRARY": library}
    said = run("make", "-C", REPOSITORY, "install", *(f"{name}={value}" for name, value in first.items()))
    assert f"installed below {tmp_path}/first/usr" in said
    assert "cargo" not in said
    return (tmp_path / "first/usr").rename(tmp_path / "prefix")


def test_a_program_is_built_by_pkg_config_and_runs(prefix, tmp_path):
    env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "transfer_engine", env=env).split()
    libdir = run("pkg-config", "--variable=libdir", "transfer_engine", env=env).strip()
    program = tmp_path / "example"
    run("cc", SOURCES / "tests/sources/local_memory.c", *flags, f"-Wl,-rpath,{libdir}", "-o", program)
    run(program)
    # By its own name, wherever it lay then.
    assert "[libtransfer_engine.so]" in run("readelf", "-d", program)


def test_a_program_is_built_by_cmake_and_runs(prefix, tmp_path):
    manifest = (REPOSITORY / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"$', manifest, re.MULTILINE).group(1)
    source = SOURCES / "tests/sources/local_memory.c"
    (tmp_path / "CMakeLists.txt").write_text(CMAKE.format(version=version, source=source))
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    run(tmp_path / "build/example")


def test_the_example_of_the_page_is_a_program(prefix, tmp_path):
    page = (REPOSITORY / "docs/c-library.md").read_text()
    (tmp_path / "example.c").write_text(page.split("```c\n")[1].split("```")[0])
    library, program = prefix / "lib", tmp_path / "example"
    include = prefix / "include"
    flags = [f"-I{include}", f"-L{library}", "-ltransfer_engine", f"-Wl,-rpath,{library}"]
    run("cc", "-Wall", "-Werror", tmp_path / "example.c", *flags, "-o", program)
    assert run(program).startswith("127.0.0.1:")
