"""GPU addresses, as engines pass them: against a fake driver whose memory no processor can touch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from contents import value, version_of
from device import build_fake, has_compiler

from pool import wait_for

pytestmark = pytest.mark.skipif(not has_compiler(), reason="the fake driver needs a C compiler (cc)")

PRELUDE = """
import ctypes, os, threading
from device import Cuda
if not hasattr(served, "cuda"):
    served.cuda = Cuda({library!r})
cuda = served.cuda
cuda.use()
cuda.fail("", 0, 0, 0)
cuda.delay(200)
host = ctypes.create_string_buffer(b"h" * 10_000, 10_000)
at_host = ctypes.addressof(host)
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory):
    return build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="module", params=["shared memory", "tcp"])
def engine(request, shared_cluster):
    """A process that holds device memory, by either path."""
    peer = shared_cluster.process(env={"MC_SHM": "0"} if request.param == "tcp" else {})
    yield peer
    peer.call("remove_all", True)
    peer.kill()


@pytest.fixture
def run(engine, fake):
    return lambda source: engine.call("run", PRELUDE.format(library=str(fake)) + source)


@pytest.mark.parametrize("registered", [False, True])
def test_parts_of_objects_go_in_and_come_out_in_sessions(run, engine, store, registered):
    codes, same = run(
        f"""
data = os.urandom(3_000_001)
half, rest = 1_400_000, len(data) - 1_400_000
source, target = cuda.holding(data), cuda.alloc(len(data))
if {registered}:
    assert [store.register_buffer(at, len(data)) for at in (source, target)] == [0, 0]
keys, both = ['parts'], ([[half, rest]], [[0, half]])
codes = [
    store.batch_put_session_start(keys, [len(data)]),
    store.batch_put_from_multi_buffer_ranges(keys, [[source + half]], [[rest]], [[half]]),
    store.batch_put_from_multi_buffer_ranges(keys, [[source]], [[half]], [[0]]),
    store.batch_put_session_end(keys),
    store.batch_get_session_start(keys),
    store.batch_get_into_multi_buffer_ranges(keys, [[target, target + half]], *both),
    store.batch_get_session_end(keys),
]
same = cuda.read(target, len(data)) == data == store.get('parts')
if {registered}:
    assert [store.unregister_buffer(at) for at in (source, target)] == [0, 0]
store.remove('parts', True)
result = codes, same
"""
    )
    assert list(codes) == [[0], [1_600_001], [1_400_000], [0], [0], [3_000_001], 0]
    assert same


@pytest.mark.parametrize("registered", [False, True])
def test_device_bytes_go_in_and_come_out(run, engine, store, registered):
    codes, same = run(
        f"""
data = os.urandom(3_000_001)
source, target = cuda.holding(data), cuda.alloc(len(data))
codes = []
if {registered}:
    codes += [store.register_buffer(source, len(data)), store.register_buffer(target, len(data))]
codes += [store.put_from('device', source, len(data)), store.get_into('device', target, len(data)) - len(data)]
same = cuda.read(target, len(data)) == data == store.get('device')
cuda.write(target, bytes(len(data)))
codes += [store.put('host', data), store.get_into('host', target, len(data)) - len(data)]
same = same and cuda.read(target, len(data)) == data
if {registered}:
    codes += [store.unregister_buffer(source), store.unregister_buffer(target)]
cuda.free(source); cuda.free(target)
result = codes, same
"""
    )
    assert set(codes) == {0}
    assert same
    # A process without a device reads what one with a device stored.
    assert store.get("device") == store.get("host")
    engine.call("remove_all", True)


def test_objects_of_many_buffers_of_device_and_host_come_back(run, engine):
    puts, gets, same = run(
        """
KEYS, LAYERS, BLOCK = 8, 16, 16 << 10
data = os.urandom(KEYS * LAYERS * BLOCK)
cache = cuda.holding(data)
assert store.register_buffer(cache, len(data)) == 0
keys = [f'block-{k}' for k in range(KEYS)]
block = lambda k, l: cache + (l * KEYS + k) * BLOCK
addrs = [[at_host] + [block(k, l) for l in range(LAYERS)] for k in range(KEYS)]
sizes = [[10_000] + [BLOCK] * LAYERS for k in range(KEYS)]
puts = store.batch_put_from_multi_buffers(keys, addrs, sizes)
cuda.write(cache, bytes(len(data)))
ctypes.memset(at_host, 0, 10_000)
gets = store.batch_get_into_multi_buffers(keys, addrs, sizes)
same = cuda.read(cache, len(data)) == data and host.raw == b'h' * 10_000
assert store.unregister_buffer(cache) == 0
cuda.free(cache)
result = puts, gets, same
"""
    )
    assert puts == [0] * 8
    assert gets == [10_000 + 16 * (16 << 10)] * 8
    assert same
    engine.call("remove_all", True)


def test_a_range_beyond_the_devices_memory_is_refused(run, engine):
    codes, reasons = run(
        """
memory = cuda.holding(bytes(100_000))
assert store.put('large', b'v' * 100_001) == 0
codes, reasons = [], []
for at, size in [(memory, 100_001), (memory + 99_999, 4096), (memory + (1 << 33), 4096)]:
    codes += [store.put_from('beyond', at, size)]
    reasons += [store.last_error()]
    codes += [store.register_buffer(at, size), store.batch_put_from(['beyond'], [at], [size])[0]]
codes += [store.get_into('large', memory, 100_001)]
assert store.register_buffer(memory, 100_000) == 0
cuda.free(memory)
codes += [store.put_from('freed', memory, 100_000)]
reasons += [store.last_error()]
assert store.unregister_buffer(memory) == 0
result = codes, reasons
"""
    )
    assert set(codes) == {-600}
    assert all(reasons)
    assert "CUDA_ERROR_INVALID_VALUE" in reasons[-1]
    engine.call("remove_all", True)


def test_a_device_that_fails_is_a_failed_transfer_with_its_reason(run, engine):
    result = run(
        """
memory = cuda.holding(os.urandom(300_000))
assert store.put('there', b'v' * 300_000) == 0
result = {}
for name, call in [('put', 'cuMemcpyDtoHAsync'), ('get', 'cuMemcpyHtoDAsync'), ('wait', 'cuStreamSynchronize')]:
    cuda.fail(call, 700)
    if name == 'get':
        code = store.get_into('there', memory, 300_000)
    else:
        code = store.put_from('failed', memory, 300_000)
    result[name] = code, store.last_error()
result['after'] = store.is_exist('failed'), store.put_from('failed', memory, 300_000)
result['same'] = store.get('failed') == cuda.read(memory, 300_000)
cuda.free(memory)
result['left'] = cuda.count('strays')
"""
    )
    for name, call in [("put", "cuMemcpyDtoHAsync"), ("get", "cuMemcpyHtoDAsync"), ("wait", "cuStreamSynchronize")]:
        code, reason = result[name]
        assert code == -800
        assert call in reason
        assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in reason
    assert result["after"] == (0, 0)
    assert result["same"]
    assert result["left"] == 0
    engine.call("remove_all", True)


def test_threads_with_device_memory_do_not_disturb_each_other(run, engine):
    wrong, strays = run(
        """
wrong = []
def work(nth):
    cuda.use()
    for turn in range(5):
        data = os.urandom(200_000 + nth)
        source, target = cuda.holding(data), cuda.alloc(len(data))
        key = f'{nth}-{turn}'
        codes = store.put_from(key, source, len(data)), store.get_into(key, target, len(data))
        if codes != (0, len(data)) or cuda.read(target, len(data)) != data:
            wrong.append((key, codes))
        cuda.free(source); cuda.free(target)
threads = [threading.Thread(target=work, args=(nth,)) for nth in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
result = wrong, cuda.count('strays')
"""
    )
    assert wrong == []
    assert strays == 0
    engine.call("remove_all", True)


@pytest.mark.slow
def test_the_suite_for_a_real_gpu_passes_against_the_fake_driver(fake):
    """So that it works where there is a GPU at last. The link is slower than any processor: its rate is to be seen."""
    suite = Path(__file__).resolve().parents[1] / "gpu"
    env = {**os.environ, "LD_LIBRARY_PATH": str(fake.parent), "FAKE_CUDA_LINK": "2,5"}
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", str(suite)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout


def test_a_process_that_does_not_use_cuda_does_not_load_it(shared_cluster, fake):
    peer = shared_cluster.process(env={"LD_LIBRARY_PATH": str(fake.parent)})
    loaded = peer.call(
        "run",
        """
import ctypes
data = ctypes.create_string_buffer(b'x' * 100_000, 100_000)
at = ctypes.addressof(data)
assert store.put_from('plain', at, 100_000) == 0 and store.get_into('plain', at, 100_000) == 100_000
assert store.put_from('wild', 1 << 46, 100) == -600
assert store.register_buffer(at, 100_000) == 0
store.remove_all(True)
before = 'libcuda' in open('/proc/self/maps').read()
ctypes.CDLL('libcuda.so.1')
result = before, 'libcuda' in open('/proc/self/maps').read()
""",
    )
    assert loaded == (False, True)
    peer.kill()


@pytest.mark.parametrize("env", [{}, {"MC_SHM": "0"}], ids=["files", "lane"])
def test_what_only_a_tier_has_is_read_into_a_devices_memory(cluster, tmp_path, fake, env):
    mib = 1 << 20
    tiers = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(tmp_path / "tiers")}
    pool = cluster(nodes=1, node_bytes=32 * mib, node_flags=["--enable_offload"], env=tiers)
    wait_for("the tier", lambda: pool.metric("mooncake_tiers_live") == 1)
    keys, size = [f"k{number}" for number in range(80)], mib
    writer = pool.store()
    for key in keys:
        assert writer.put(key, value(key, size)) == 0, writer.last_error()
        # What a busy disk has not taken yet would make room for what comes.
        wait_for("the disk", lambda: pool.metric("mooncake_tier_unwritten_bytes") <= 8 * mib)
    wait_for("all to be written", lambda: pool.metric("file_cache_nums_") == len(keys))
    # Alone, a few together, and so many that several threads read them.
    reads, got = pool.process(env=env).call(
        "run",
        PRELUDE.format(library=str(fake))
        + f"""
keys, size = {keys[:40]}, {size}
places = [cuda.alloc(size) for _ in keys]
before = store.get_offload_rpc_read_count()
codes = [store.get_into(keys[0], places[0], size)]
codes += store.batch_get_into(keys[1:4], places[1:4], [size] * 3)
codes += store.batch_get_into(keys[4:], places[4:], [size] * len(keys[4:]))
assert codes == [size] * len(keys), codes
result = store.get_offload_rpc_read_count() - before, [cuda.read(place, size) for place in places]
""",
    )
    assert reads == 40
    assert [version_of(key, one) for key, one in zip(keys, got, strict=False)] == [0] * 40
