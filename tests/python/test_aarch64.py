"""The wheel for aarch64, and the kernels of its copies: built here, run on emulated processors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_install_wheel import ALLOWED, GLIBC, elves, info, readelf

from pool import HOST, Program, free_port

pytestmark = [pytest.mark.timeout(3600), pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "crates/mooncake-transfer-engine-c"
TRIPLE = "aarch64-unknown-linux-gnu"
VENV = Path(sys.prefix)
# Nothing that was said to the `make` of this test is meant for the one below it.
ENV = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL")}

# Bits of AT_HWCAP.
AES, PMULL, CRC32 = 1 << 3, 1 << 4, 1 << 7


@dataclass(frozen=True)
class Processor:
    model: str
    hides: int
    kernel: str


PROCESSORS = {
    "all that there is": Processor("max", 0, "pmull"),
    "a small one": Processor("cortex-a53", 0, "pmull"),
    "no AES, and no multiplication without carries": Processor("cortex-a53", AES | PMULL, "crc"),
    "AES alone": Processor("cortex-a53", PMULL, "crc"),
    "no CRC-32C": Processor("cortex-a53", AES | PMULL | CRC32, "portable"),
}


def run(*command: str | Path, **options) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, env=ENV, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{words}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def zig(*arguments: str | Path) -> None:
    run(VENV / "bin/python", "-m", "ziglang", "cc", "-target", f"aarch64-linux-gnu.2.{GLIBC}", *arguments)


@pytest.fixture(scope="session")
def emulator() -> list[str]:
    """The command that runs a program for aarch64."""
    done = subprocess.run([ROOT / "packaging/emulator.sh"], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        leave = pytest.fail if os.environ.get("MOONCAKE_NEEDS_TOOLS") == "1" else pytest.skip
        leave(done.stderr.strip())
    return done.stdout.split()


@pytest.fixture(scope="session")
def wheel(emulator) -> Path:
    """One that is built in less time than the one that ships, or that of MOONCAKE_AARCH64_WHEEL."""
    if named := os.environ.get("MOONCAKE_AARCH64_WHEEL"):
        return Path(named).resolve()
    run("make", "wheel", "TARGET=aarch64", "PROFILE=quick", "OUT=build/aarch64")
    [wheel] = (ROOT / "build/aarch64").glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def unpacked(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as z:
        z.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def mooncake(unpacked, emulator) -> list[str]:
    [program] = unpacked.glob("*.data/scripts/mooncake")
    program.chmod(0o755)
    return [*emulator, str(program)]


@pytest.fixture(scope="session")
def tests_of_memory(emulator) -> dict[str, str]:
    """The programs of mooncake-memory's tests, built for aarch64: its own, and its promises."""
    build = "cargo test --locked -p mooncake-memory --lib --test promises --no-run --message-format=json"
    source = f'source packaging/zig.sh "{VENV}" {TRIPLE} && exec {build} --target {TRIPLE}'
    told = [json.loads(line) for line in run("bash", "-euo", "pipefail", "-c", source).splitlines()]
    return {one["target"]["name"]: one["executable"] for one in told if one.get("executable")}


@pytest.fixture(scope="session")
def hiding(emulator, tmp_path_factory) -> Path:
    library = tmp_path_factory.mktemp("hiding") / "fewer_instructions.so"
    zig("-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/fewer_instructions/fewer_instructions.c", "-ldl")
    return library


def test_it_says_what_it_is_for(wheel, unpacked):
    assert wheel.name.endswith(f"-cp311-abi3-manylinux_2_{GLIBC}_aarch64.whl")
    assert f"Tag: cp311-abi3-manylinux_2_{GLIBC}_aarch64" in info(unpacked, "WHEEL").splitlines()


def test_every_elf_is_for_it_and_needs_only_an_old_c_library(unpacked):
    assert sorted(p.name for p in elves(unpacked)) == ["_native.abi3.so", "libtransfer_engine.so", "mooncake"]
    for elf in elves(unpacked):
        assert re.search(r"Machine: +AArch64", readelf("-h", str(elf))), elf.name
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", str(elf))))
        assert needed <= ALLOWED | {"ld-linux-aarch64.so.1"}, elf.name
        symbols = readelf("-V", str(elf))
        assert max(int(v) for v in re.findall(r"GLIBC_2\.(\d+)", symbols)) <= GLIBC, elf.name
        assert not re.search(r"GCC_|GLIBCXX_|CXXABI_", symbols), elf.name
        assert ".symtab" not in readelf("-S", str(elf)), f"{elf.name} is not stripped"
        # Kernels with pages of 64 KiB map it, too.
        aligned = re.findall(r"^  LOAD(?:\s+0x[0-9a-f]+){5}.*(0x[0-9a-f]+)$", readelf("-lW", str(elf)), re.MULTILINE)
        assert min(int(to, 16) for to in aligned) >= 0x10000, elf.name


def test_the_commands_run(mooncake):
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)
    assert version in run(*mooncake, "--version", timeout=60)
    assert "-200" in run(*mooncake, "explain", "-200", timeout=60)


def test_its_pool_keeps_a_value(mooncake, tmp_path):
    """Processes of one host share its memory, emulated ones, too."""
    address = f"{HOST}:{(port := free_port())}"
    listens = [f"--rpc_address={HOST}", f"--rpc_port={port}", f"--metrics_host={HOST}", f"--metrics_port={free_port()}"]
    command = [*mooncake, "master", *listens, f"--wal_dir={tmp_path}/wal"]
    master = Program("master", command, tmp_path / "master.log", port)
    lends = [f"--host={HOST}", f"--master_server_address={address}", "--global_segment_size=64MB"]
    node = Program("node", [*mooncake, "client", *lends], tmp_path / "node.log", "client ready")
    value = tmp_path / "value"
    value.write_bytes(os.urandom(3_000_005))
    try:
        master.start(60)
        node.start(60)
        run(*mooncake, "put", "--master", address, "key", value, timeout=60)
        run(*mooncake, "get", "--master", address, "key", tmp_path / "back", timeout=60)
        assert (tmp_path / "back").read_bytes() == value.read_bytes()
    finally:
        node.kill()
        master.kill()


def test_a_program_uses_the_c_library(unpacked, emulator, tmp_path):
    [data] = unpacked.glob("*.data/data")
    program = tmp_path / "program"
    source = SOURCES / "tests/sources/local_memory.c"
    zig(f"-I{data}/include", source, f"-L{data}/lib", "-ltransfer_engine", f"-Wl,-rpath,{data}/lib", "-o", program)
    run(*emulator, program, timeout=60)


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
def test_copies_sums_and_stamps_are_right_on_every_processor(tests_of_memory, emulator, hiding, processor):
    preloaded = ["-E", f"LD_PRELOAD={hiding}", "-E", f"MOONCAKE_HIDDEN_INSTRUCTIONS={processor.hides:x}"]
    command = [*emulator, "-cpu", processor.model, *preloaded, "-E", f"TESTED_COPY_KERNEL={processor.kernel}"]
    # The emulator has no `process_vm_readv`, which the one that is left out asks about memory that others may unmap.
    tests = ["copy::", "segment::", "--skip", "a_read_that_is_overtaken_anywhere_in_mid_copy_is_stale"]
    said = run(*command, tests_of_memory["mooncake_memory"], *tests, timeout=600)
    for test in (
        "the_processor_gets_the_kernel_that_is_named",
        "all_levels_agree" if processor.kernel != "portable" else "the_portable_path_agrees",
        "copies_of_every_length_and_alignment_are_exact_and_summed",
        "copies_without_a_sum_are_exact_and_keep_the_sum_so_far",
        "a_refused_write_leaves_no_stamp_and_a_tombstone_is_never_lowered",
    ):
        assert f"{test} ... ok" in said, said


def test_torn_reads_are_noticed_under_emulation(tests_of_memory, emulator):
    """Of the order of writes it says nothing: an emulator on x86-64 keeps a stronger one."""
    said = run(*emulator, tests_of_memory["promises"], "torn_reads::", timeout=600)
    assert re.search(r"test result: ok\. [1-9]", said), said
