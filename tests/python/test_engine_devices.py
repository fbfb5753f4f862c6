"""Transfers from and to device memory, by address: against a fake driver whose memory no processor can touch."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_process import EngineProcess

from pool.device import build_fake, has_compiler

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not has_compiler(), reason="the fake driver needs a C compiler (cc)"),
]

PRELUDE = """
import sys
sys.path.insert(0, folder)
from device import Cuda
cuda = Cuda(library)
cuda.use()
cuda.delay(200)
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture(params=[{}, {"MC_SHM": "0"}], ids=["same host", "tcp"])
def pair(request, fake):
    made = [EngineProcess(env=request.param), EngineProcess(env=request.param)]
    folder = str(Path(__file__).parent / "pool")
    for engine in made:
        engine.run(PRELUDE, folder=folder, library=str(fake))
    one, two = made
    one.begin()
    yield one, two, two.begin()
    for engine in made:
        engine.kill()


def holding(engine: EngineProcess, seed: int, size: int, where: str) -> int:
    """Address of registered memory with bytes of that seed."""
    if where == "host":
        addr = engine.buffer(size)
        engine.write(addr, seed, size)
        return addr
    addr = engine.run("result = cuda.holding(random.Random(seed).randbytes(size))", seed=seed, size=size)
    assert engine.call("register_memory", addr, size, "cuda:0") == 0
    return addr


def holds(engine: EngineProcess, addr: int, seed: int, size: int, where: str) -> bool:
    if where == "host":
        return engine.holds(addr, seed, size)
    source = "result = cuda.read(addr, size) == random.Random(seed).randbytes(size)"
    return engine.run(source, addr=addr, seed=seed, size=size)


@pytest.mark.parametrize(("here", "there"), [("device", "host"), ("host", "device"), ("device", "device")])
def test_device_bytes_go_and_come(pair, here, there):
    one, two, name = pair
    size = 3_000_001
    local, remote = holding(one, 1, size, here), holding(two, 2, size, there)
    assert one.call("transfer_sync_write", name, local, remote, size) == 0, one.call("last_error")
    assert holds(two, remote, 1, size, there)
    fresh = holding(one, 3, size, here)
    assert (
        one.call("batch_transfer_sync_read", name, [fresh, fresh + 1000], [remote, remote + 1000], [1000, size - 1000])
        == 0
    )
    assert holds(one, fresh, 1, size, here)
    batch = one.call("transfer_submit_write", name, fresh, remote, size)
    assert one.call("wait", batch) == 0


def test_device_memory_that_is_not_there_is_an_error(pair):
    one, two, name = pair
    size = 100_000
    remote = holding(two, 2, size, "host")
    gone = one.run("result = cuda.alloc(size); cuda.free(result)", size=size)
    assert one.call("transfer_sync_write", name, gone, remote, size) == -1
    assert one.call("last_error")
    local = holding(one, 1, size, "host")
    lost = holding(two, 4, size, "device")
    two.run("cuda.free(addr)", addr=lost)
    assert one.call("transfer_sync_write", name, local, lost, size) == -1
    assert one.call("transfer_sync_read", name, local, lost, size) == -1
    assert one.holds(local, 1, size)
    assert one.call("transfer_sync_write", name, local, remote, size) == 0
    assert two.holds(remote, 1, size)
