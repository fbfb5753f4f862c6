"""The wheel needs nothing but the C library, and says on which hosts it runs."""

from __future__ import annotations

import ast
import enum
import importlib
import os
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from test_install_clash import WHEELS, Environment, wheel

REPOSITORY = Path(__file__).parents[2]
ALLOWED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
GLIBC = 28  # 2.28: RHEL 8, Debian 10, Ubuntu 20.04 and newer


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel()) as z:
        z.extractall(folder)
    return folder


def elves(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and p.open("rb").read(4) == b"\x7fELF"]


def info(folder: Path, name: str) -> str:
    return next(folder.glob("mooncake_rs-*.dist-info")).joinpath(name).read_text()


def readelf(*args: str) -> str:
    return subprocess.run(["readelf", *args], capture_output=True, text=True, check=True, timeout=60).stdout


def test_it_carries_two_libraries_and_one_binary(unpacked):
    assert sorted(p.name for p in elves(unpacked)) == ["_native.abi3.so", "libtransfer_engine.so", "mooncake"]


def test_every_elf_needs_only_the_c_library(unpacked):
    for elf in elves(unpacked):
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", str(elf))))
        extra = {n for n in needed - ALLOWED if not n.startswith("ld-linux")}
        assert not extra, f"{elf.name} needs {extra}"
        assert "RPATH" not in readelf("-d", str(elf))


def test_it_runs_on_hosts_with_an_old_c_library(unpacked):
    machine = os.uname().machine
    assert wheel().name.endswith(f"-cp311-abi3-manylinux_2_{GLIBC}_{machine}.whl")
    assert f"Tag: cp311-abi3-manylinux_2_{GLIBC}_{machine}" in info(unpacked, "WHEEL").splitlines()
    for elf in elves(unpacked):
        symbols = readelf("-V", str(elf))
        versions = [int(v) for v in re.findall(r"GLIBC_2\.(\d+)", symbols)]
        assert versions, f"{elf.name} names no version at all"
        assert max(versions) <= GLIBC, f"{elf.name} needs glibc 2.{max(versions)}"
        assert not re.search(r"GCC_|GLIBCXX_|CXXABI_", symbols)


def test_its_metadata_is_right(unpacked):
    head, _, description = info(unpacked, "METADATA").partition("\n\n")
    lines = head.splitlines()
    manifest = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]
    assert "Name: mooncake-rs" in lines
    assert f"Version: {manifest['version']}" in lines
    assert f"License-Expression: {manifest['license']}" in lines
    assert "License-File: LICENSE" in lines
    assert "Requires-Python: >=3.11" in lines
    assert "Operating System :: POSIX :: Linux" in head
    assert description.strip() == (REPOSITORY / "README.md").read_text().strip()
    # Whatever a call needs besides its caller has, or asks for.
    needed = [line for line in lines if line.startswith("Requires-Dist:")]
    assert needed == ["Requires-Dist: torch ; extra == 'torch'", "Requires-Dist: safetensors ; extra == 'torch'"]
    assert {p.name.partition("-")[0] for p in unpacked.iterdir()} == {"mooncake", "mooncake_rs"}


def test_it_has_every_command(unpacked):
    scripts = next(unpacked.glob("mooncake_rs-*.data/scripts"))
    assert {p.name for p in scripts.iterdir()} == {
        "mooncake",
        "mooncake_master",
        "mooncake_client",
        "mooncake_http_metadata_server",
        "mooncake_proxy",
        "transfer_engine_bench",
        "transfer_engine_topology_dump",
        "tebench",
        "show_link",
    }


@pytest.mark.slow
def test_it_is_small(unpacked):
    """The wheel that ships: `make test-long`. One that is not optimised is half as large again."""
    most, unpacked_most = (25_000_000, 72 << 20) if WHEELS.name == "dev" else (15_000_000, 48 << 20)
    assert wheel().stat().st_size <= most
    assert sum(p.stat().st_size for p in unpacked.rglob("*") if p.is_file()) < unpacked_most


def test_every_module_is_a_package_with_types(unpacked):
    """A package wins over a module file of the same name that Mooncake leaves."""
    top = [p for p in (unpacked / "mooncake").iterdir() if p.suffix in (".py", ".so") and p.stem != "__init__"]
    assert [p.name for p in top] == ["_native.abi3.so"]
    assert (unpacked / "mooncake" / "py.typed").exists()
    for module in ("store", "engine"):
        assert (unpacked / "mooncake" / module / "__init__.pyi").exists()


def test_it_imports_in_an_empty_environment_and_quickly(tmp_path):
    e = Environment(tmp_path / "env")
    e.install(str(wheel()))
    done = e.python(
        "import time; t = time.perf_counter()\n"
        "import mooncake.store, sys\n"
        "print(time.perf_counter() - t)\n"
        "assert not [m for m in ('numpy', 'importlib.metadata', 'asyncio') if m in sys.modules]"
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.25
    assert done.stderr == ""
    for command in ("mooncake", "mooncake_master", "mooncake_client"):
        assert (e.bin / command).stat().st_mode & 0o111


@pytest.mark.parametrize("module", ["mooncake.store", "mooncake.engine"])
def test_stubs_name_what_the_module_has(module):
    store = importlib.import_module(module)
    tree = ast.parse((Path(store.__file__).parent / "__init__.pyi").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            real = getattr(store, node.name)
            stub = {
                item.name if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) else item.target.id
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign)
            }
            own = (*dir(real), *getattr(real, "__dataclass_fields__", ()))
            if issubclass(real, enum.Enum):
                own = (*real.__members__, "name", "value")
            have = {name for name in own if not name.startswith("_")}
            assert {name for name in stub if not name.startswith("_")} == have, node.name
    named = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    named |= {n.targets[0].id for n in tree.body if isinstance(n, ast.Assign)} - {"__all__"}
    assert all(hasattr(store, name) for name in named - {"_WriterPartition"})
    constants = {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign)}
    assert sorted(set(store.__all__) - constants) == sorted(name for name in named if not name.startswith("_"))
    assert all(hasattr(store, name) for name in constants)
