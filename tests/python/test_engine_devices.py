"""Transfers from and to device memory, by address: against a fake driver whose memory no processor can touch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from device import build_fake, has_compiler
from engine_process import EngineProcess

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not has_compiler(), reason="the fake driver needs a C compiler (cc)"),
]

PRELUDE = """
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
    for engine in made:
        engine.run(PRELUDE, library=str(fake))
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
    link = json.loads(one.call("show_links", json=True))["peers"][0]
    assert (link["path"], link["bytes_by_path"]) == ("tcp", {"tcp": link["bytes"]})


@pytest.mark.parametrize(("here", "there"), [("device", "host"), ("host", "device"), ("device", "device")])
def test_device_bytes_go_and_come_within_an_engine(pair, here, there):
    _, engine, name = pair
    size = 3_000_001
    local, remote = holding(engine, 1, size, here), holding(engine, 2, size, there)
    assert engine.call("transfer_sync_write", name, local, remote, size) == 0, engine.call("last_error")
    assert holds(engine, remote, 1, size, there)
    fresh = holding(engine, 3, size, here)
    assert engine.call("transfer_sync_read", name, fresh, remote, size) == 0, engine.call("last_error")
    assert holds(engine, fresh, 1, size, here)


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


ON_DEFAULT_STREAM = """
cuda.lib.fake_cuda_default_stream_fill(ctypes.c_uint64(local), 7, ctypes.c_size_t(size), ctypes.c_uint(300_000))
stream = 0
"""
ON_OWN_STREAM = """
made, pinned = ctypes.c_void_p(), ctypes.c_void_p()
cuda.call("cuStreamCreate", ctypes.byref(made), 1)
cuda.call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(size), 1)
ctypes.memset(pinned, 7, size)
cuda.delay(300_000)
cuda.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(2)))
cuda.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(local), pinned, ctypes.c_size_t(size), made)
cuda.delay(200)
stream = made.value
"""


@pytest.mark.parametrize("queue", [ON_DEFAULT_STREAM, ON_OWN_STREAM], ids=["default stream", "own stream"])
@pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])
def test_a_transfer_on_cuda_comes_behind_what_is_on_the_stream(pair, queue, batch):
    one, two, name = pair
    size = 1_000_003
    local, remote = holding(one, 1, size, "device"), holding(two, 2, size, "host")
    lists = "[local, local + 1000], [remote, remote + 1000], [1000, size - 1000]" if batch else "local, remote, size"
    write = f"{queue}\nresult = engine.{'batch_' * batch}transfer_write_on_cuda(name, {lists}, stream_ptr=stream)"
    assert one.run(write, name=name, local=local, remote=remote, size=size) is None
    assert two.holds_only(remote, 7, size)
    two.write(remote, 5, size)
    # What is still to be written on the stream does not overwrite what is read.
    read = f"{queue}\nresult = engine.{'batch_' * batch}transfer_read_on_cuda(name, {lists}, stream_ptr=stream)"
    assert one.run(read, name=name, local=local, remote=remote, size=size) is None
    assert holds(one, local, 5, size, "device")


def test_a_transfer_on_cuda_that_fails_raises_and_nothing_more(pair):
    one, two, name = pair
    size = 100_000
    local, remote = holding(one, 1, size, "device"), holding(two, 2, size, "host")
    spare = holding(one, 3, size, "device")
    attempt = """
try:
    {}
    result = None
except RuntimeError as error:
    result = [str(error), engine.last_error()]
"""
    names = {"name": name, "local": local, "spare": spare, "remote": remote, "size": size}
    for call in (
        "engine.transfer_write_on_cuda(name, local, remote + 1, size)",
        "engine.transfer_read_on_cuda('127.0.0.1:1', local, remote, size)",
        "engine.batch_transfer_write_on_cuda(name, [local], [remote, remote], [size])",
        "engine.batch_transfer_read_on_cuda(name, [spare, spare], [remote, 8], [size, size])",
    ):
        error, last = one.run(attempt.format(call), **names)
        assert error
        assert error == last
        assert call.split(".")[1].split("(")[0] in error
    one.run("cuda.fail('cuStreamSynchronize', 700)")
    error, _ = one.run(attempt.format("engine.transfer_write_on_cuda(name, local, remote, size)"), **names)
    assert "cuStreamSynchronize" in error
    assert two.holds(remote, 2, size)
    assert one.run("result = engine.transfer_write_on_cuda(name, local, remote, size)", **names) is None
    assert two.holds(remote, 1, size)


def test_host_memory_needs_no_driver_for_a_transfer_on_cuda():
    one, two = EngineProcess(), EngineProcess()
    try:
        one.begin()
        name = two.begin()
        local, remote = one.buffer(5000), two.buffer(5000)
        one.write(local, 1, 5000)
        names = {"name": name, "local": local, "remote": remote}
        assert one.run("result = engine.transfer_write_on_cuda(name, local, remote, 5000)", **names) is None
        assert two.holds(remote, 1, 5000)
        source = """
try:
    engine.transfer_write_on_cuda(name, local, remote, 5000, stream_ptr=1)
except RuntimeError as error:
    result = str(error)
"""
        assert "no driver" in one.run(source, **names)
    finally:
        one.kill()
        two.kill()
