"""RDMA where there are devices for it: in an emulated machine with Soft-RoCE, whose packets leave by links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from emulated import MACHINE, ROOT, Machine, needs_machine, python

from rival import NoRival, prepare

pytestmark = [pytest.mark.timeout(1500), pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module", autouse=True)
def machine():
    needs_machine()
    done = subprocess.run([MACHINE / "rdma", "--prepare"], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip())


def runs(tmp_path: Path, *command: str, timeout: int = 600) -> str:
    """What it says beside the devices, where it ends well."""
    options = ("--with", "rdma", "--memory", "3072")
    made = Machine(tmp_path / "machine.out", [str(MACHINE / "rdma"), "--", *command], *options, timeout=timeout)
    status = made.result(timeout + 60)
    print(made.output())
    assert status == 0, f"status {status}\n{made.output()[-6000:]}"
    return made.output()


def test_engines_of_both_makes_reach_each_other_by_rdma(tmp_path):
    """The checks of TCP's interoperability, each with a device for either side."""
    folder = ROOT / "target" / "bench" / "rival"
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        prepare(folder)
    except NoRival as reason:
        pytest.skip(str(reason))
    settings = [
        "MC_SHM=0",
        "MOONCAKE_TEST_PROTOCOL=rdma",
        "MOONCAKE_TEST_DEVICES=rxe0,rxe2",
        f"MOONCAKE_RIVAL_VENV={folder}",
        "PYTHONDONTWRITEBYTECODE=1",
    ]
    checks = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/python/test_engine_interop.py"]
    said = runs(tmp_path, "env", *settings, *checks, timeout=900)
    assert int(re.search(r"(\d+) passed", said)[1]) >= 28


def test_faults_lose_no_byte_and_leave_nothing_behind(tmp_path):
    said = runs(tmp_path, *python("rdma_faults.py"))
    assert re.search(r"^(\d+) of \1 passed$", said, re.MULTILINE), said
