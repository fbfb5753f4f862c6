"""Memory of an engine that its peers on the host map, and memory that a group of processes has in common."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from engine_process import EngineProcess

pytestmark = pytest.mark.timeout(120)

MIB = 1 << 20


@pytest.fixture
def process():
    started: list[EngineProcess] = []

    def start(**env: str) -> EngineProcess:
        started.append(EngineProcess(env=env))
        return started[-1]

    yield start
    for engine in started:
        engine.kill()


def link(engine: EngineProcess) -> dict:
    return json.loads(engine.call("show_links", json=True))["peers"][0]


def managed(engine: EngineProcess, size: int) -> int:
    addr = engine.call("allocate_managed_buffer", size)
    assert addr, engine.call("last_error")
    return addr


def mapped_kib(pid: int) -> int:
    """Memory of others' managed buffers that a process maps and that is there, KiB."""
    smaps = Path(f"/proc/{pid}/smaps").read_text()
    return sum(int(size) for size in re.findall(r"memfd:kv-host-memory.*\n(?:.*\n)*?Rss: *(\d+) kB", smaps))


WRITE_ON = """
def write_on():
    while not stop.is_set():
        codes[engine.transfer_sync_write(name, here, there, size)] += 1

import collections
codes, stop = collections.Counter(), threading.Event()
writers = [threading.Thread(target=write_on, daemon=True) for _ in range(2)]
for writer in writers:
    writer.start()
while not codes[0]:
    time.sleep(0.001)
"""


def test_managed_buffers_of_a_peer_are_mapped(process):
    one, two = process(), process()
    one.begin()
    name = two.begin()
    size = 5 * MIB + 77
    there, here = managed(two, size), one.buffer(size)
    one.write(here, 1, size)
    assert one.call("transfer_sync_write", name, here, there, size) == 0, one.call("last_error")
    assert two.holds(there, 1, size)
    fresh = one.buffer(size)
    assert one.call("transfer_sync_read", name, fresh, there, size) == 0
    assert one.holds(fresh, 1, size)
    assert link(one)["path"] == "same host"
    assert link(one)["reason"].startswith("1 blocks of its memory mapped")

    assert two.call("free_managed_buffer", there, size) == 0
    assert one.call("transfer_sync_write", name, here, there, size) == -1
    assert "are not inside one buffer" in one.call("last_error")
    assert mapped_kib(one.process.pid) == 0, "what was freed costs nobody memory"


def test_mapping_can_be_turned_off(process):
    one, two = process(), process(MC_SHM="0")
    one.begin()
    name = two.begin()
    there, here = managed(two, MIB), one.buffer(MIB)
    one.write(here, 1, MIB)
    assert one.call("transfer_sync_write", name, here, there, MIB) == 0
    assert two.holds(there, 1, MIB)
    assert link(one)["path"] == "tcp"
    assert mapped_kib(one.process.pid) == 0


def test_memory_that_is_given_up_under_writes_is_left_alone(process):
    one, two = process(), process()
    one.begin()
    name = two.begin()
    size = 16 * MIB
    there, here = managed(two, size), one.buffer(size, fill=7)
    one.run(WRITE_ON, name=name, here=here, there=there, size=size)
    for _ in range(5):
        assert two.call("unregister_memory", there) == 0
        two.run("ctypes.memset(there, 1, size)", there=there, size=size)
        time.sleep(0.05)
        assert two.holds_only(there, 1, size), "somebody wrote after it was given up"
        assert two.call("register_memory", there, size) == 0
    counted = one.run("stop.set(); [writer.join() for writer in writers]; result = dict(codes)")
    assert counted["0"] > 0


def test_giving_up_waits_for_a_frozen_writer_and_not_for_a_dead_one(process):
    two = process()
    name = two.begin()
    size = 64 * MIB
    there = managed(two, size)
    for end in ("thaw", "kill"):
        one = process()
        one.begin()
        here = one.buffer(size, fill=7)
        one.run(WRITE_ON, name=name, here=here, there=there, size=size)
        one.freeze()
        given_up = two.start("result = engine.unregister_memory(there)", there=there)
        time.sleep(0.3)
        getattr(one, end)()
        began = time.monotonic()
        assert given_up.result(timeout=30) == 0, two.call("last_error")
        assert time.monotonic() - began < 5
        two.run("ctypes.memset(there, 1, size)", there=there, size=size)
        time.sleep(0.2)
        assert two.holds_only(there, 1, size), f"written to after {end}"
        assert two.call("register_memory", there, size) == 0


def test_memory_of_a_target_that_was_killed_is_let_go_of(process):
    one, two = process(), process()
    one.begin()
    name = two.begin()
    size = 32 * MIB
    there, here = managed(two, size), one.buffer(size)
    assert one.call("transfer_sync_write", name, here, there, size) == 0
    assert mapped_kib(one.process.pid) >= size // 1024 // 2
    two.kill()
    deadline = time.monotonic() + 10
    while mapped_kib(one.process.pid):
        assert time.monotonic() < deadline, "it keeps a dead process's memory"
        time.sleep(0.05)
    assert one.call("transfer_sync_write", name, here, there, size) == -1


# ------------------------------------------------------------------ memory of a group

CREATE = """
segment, blob = module.SharedSegment.create(name, size, world_size, rank, owner)
result = [blob.hex(), segment.ready(), segment.base_addr() != 0]
"""
COMPLETE = """
segment.complete([bytes.fromhex(blob) for blob in blobs])
result = [segment.ready(), segment.base_addr(), segment.device_addr(), segment.size()]
"""


def test_ranks_of_a_group_have_memory_in_common(process):
    ranks, size = [process() for _ in range(3)], 3 * MIB + 5
    blobs = []
    for rank, one in enumerate(ranks):
        blob, ready, has_base = one.run(CREATE, name="kv", size=size, world_size=3, rank=rank, owner=1)
        assert (ready, has_base) == (False, rank == 1)
        blobs.append(blob)
    assert len({len(blob) for blob in blobs}) == 1, "a gather of tensors needs one length"
    bases = []
    for one in ranks:
        ready, base, device, bytes_ = one.run(COMPLETE, blobs=blobs)
        assert (ready, device, bytes_) == (True, 0, size)
        bases.append(base)
    ranks[0].write(bases[0], 1, size)
    assert all(one.holds(base, 1, size) for one, base in zip(ranks, bases, strict=True))
    ranks[1].kill()
    ranks[2].write(bases[2], 2, size)
    assert ranks[0].holds(bases[0], 2, size), "the owner's end takes it from nobody"

    # Either of them lends it, and a peer maps it.
    lender, peer = ranks[0], process()
    name = lender.begin()
    peer.begin()
    assert lender.call("register_memory", bases[0], size) == 0
    here = peer.buffer(size)
    peer.write(here, 3, size)
    assert peer.call("transfer_sync_write", name, here, bases[0], size) == 0
    assert link(peer)["reason"].startswith("1 blocks")
    assert ranks[2].holds(bases[2], 3, size)


def test_ranks_that_do_not_fit_together_are_told(process):
    one, two = process(), process()
    blobs = [
        engine.run(CREATE, name=name, size=MIB, world_size=2, rank=rank, owner=0)[0]
        for rank, (engine, name) in enumerate([(one, "kv"), (two, "other")])
    ]
    caught = """
try:
    {}
    result = None
except RuntimeError as error:
    result = str(error)
"""
    complete = caught.format("segment.complete([bytes.fromhex(blob) for blob in blobs])")
    assert "another segment" in two.run(complete, blobs=blobs)
    assert "1 tickets for 2 ranks" in two.run(complete, blobs=blobs[:1])
    assert two.run("result = [segment.ready(), segment.base_addr()]") == [False, 0]
    for arguments in [
        "'kv', 0, 1, 0",
        "'kv', 1 << 60, 1, 0",
        "'kv', 4096, 2, 2",
        "'kv', 4096, 2, -1",
        "'kv', 4096, 2, 0, 5",
    ]:
        assert two.run(caught.format(f"module.SharedSegment.create({arguments})")), arguments
    for wanted in ["mmap=False", "host_register=True"]:
        assert two.run(f"result = module.SharedSegment.supported({wanted})") is False
        assert two.run(caught.format(f"module.SharedSegment.create('kv', 4096, 1, 0, {wanted})"))
    assert two.run("result = module.SharedSegment.supported()") is True


# ------------------------------------------------------------------ connecting

DEAF = """
import socket
deaf = socket.socket()
deaf.bind(("127.0.0.1", 0))
deaf.listen(0)
queue = []
for _ in range(16):
    queue.append(socket.socket())
    queue[-1].settimeout(0.2)
    try:
        queue[-1].connect(deaf.getsockname())
    except TimeoutError:
        break
result = deaf.getsockname()[1]
"""


@pytest.mark.parametrize("call", ["transfer_sync_write(name, here, here, 4096)", "send_probe(name)"])
def test_ctrl_c_ends_a_connect_that_nobody_answers(process, call):
    one, two = process(), process()
    one.begin()
    port = two.run(DEAF)
    source = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    result = ["returned", engine.{call}, engine.last_error(), time.monotonic() - began]
except KeyboardInterrupt:
    result = ["interrupted", time.monotonic() - began]
"""
    word, *rest = one.run(source, name=f"127.0.0.1:{port}", here=one.buffer(4096))
    assert word == "interrupted", rest
    assert rest[0] < 1.5
    assert one.process.poll() is None


# ------------------------------------------------------------------ the topology


def test_the_topology_has_the_devices_that_initialize_named(process, tmp_path):
    one, two = process(), process()
    matrix = {"cpu:0": [["mlx5_0"], ["mlx5_1"]]}
    file = tmp_path / "topology.json"
    file.write_text(json.dumps(matrix))
    named = process(MC_CUSTOM_TOPO_JSON=str(file))
    for engine, devices in ((one, ""), (two, "mlx5_0, no_such_device"), (named, "mlx5_1")):
        assert engine.call("initialize", "127.0.0.1", "P2PHANDSHAKE", "tcp", devices) == 0
    shown = [json.loads(engine.call("show_links", True))["topology"] for engine in (one, two, named)]
    assert shown[0] == json.loads(one.call("get_local_topology"))
    assert shown[1] == json.loads(two.call("get_local_topology", "mlx5_0,no_such_device"))
    names = {device for lists in shown[1].values() for some in lists for device in some}
    assert names <= {"mlx5_0"}
    assert shown[2] == matrix, "a matrix that is given is taken as it is"
