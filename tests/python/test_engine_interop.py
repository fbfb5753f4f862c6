"""Engines of this project and of Mooncake, side by side: each writes to, reads from and talks to the other."""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from engine_process import EngineProcess
from network import Relay

import mooncake.engine as ours
from mooncake.http_metadata_server import KVBootstrapServer
from rival import NoRival, prepare

pytestmark = pytest.mark.timeout(300)

SIZES = [1, 24, 4096, 65_536, 65_537, 3 << 20, 17 << 20]
KINDS = [("ours", "reference"), ("reference", "ours")]
# By which network; test_machine_rdma.py runs this file by the other one, with a device for each side.
PROTOCOL = os.environ.get("MOONCAKE_TEST_PROTOCOL", "tcp")
DEVICES = os.environ.get("MOONCAKE_TEST_DEVICES", "").split(",")
ENV = {"MC_LOG_LEVEL": "ERROR", "MC_TRANSFER_TIMEOUT": "10"}
if PROTOCOL == "tcp":
    # Engines of Mooncake take no network device, whatever the machine has.
    ENV["MC_FORCE_TCP"] = "1"
by_tcp_alone = pytest.mark.skipif(PROTOCOL != "tcp", reason="of TCP's own protocol")


@pytest.fixture(scope="session")
def reference_python() -> str:
    """An interpreter with Mooncake's wheel: that of the comparison's environment, which is made once and kept."""
    folder = Path(os.environ.get("MOONCAKE_RIVAL_VENV") or Path(__file__).parents[2] / "target" / "bench" / "rival")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        return prepare(folder)
    except NoRival as reason:
        pytest.skip(str(reason))


@pytest.fixture
def engine(reference_python):
    """Starts processes with an engine of either kind."""
    made: list[EngineProcess] = []

    def start(kind: str, **env: str) -> EngineProcess:
        python = reference_python if kind == "reference" else sys.executable
        made.append(EngineProcess(python, {**ENV, **env}, PROTOCOL, DEVICES[len(made) % len(DEVICES)]))
        return made[-1]

    yield start
    for process in made:
        process.kill()


@pytest.fixture
def service():
    server = KVBootstrapServer(0, "127.0.0.1")
    server.run()
    yield f"http://127.0.0.1:{server.port}/metadata"
    server.close()


@pytest.fixture(params=["P2PHANDSHAKE", "http"])
def met(request, engine):
    """Two engines that find each other without a service, or by one: the initiator and the target and its name."""
    server = None
    metadata = "P2PHANDSHAKE"
    if request.param == "http":
        server = KVBootstrapServer(0, "127.0.0.1")
        server.run()
        metadata = f"http://127.0.0.1:{server.port}/metadata"

    def meet(initiator: str, target: str) -> tuple[EngineProcess, EngineProcess, str, str]:
        # In a service's record stands where an engine is: loopback, on a machine with whatever interfaces.
        one, two = (engine(kind, MC_TCP_BIND_ADDRESS="127.0.0.1") for kind in (initiator, target))
        names = ("127.0.0.1", "127.0.0.1") if metadata == "P2PHANDSHAKE" else ("one", "two")
        my_name, name = one.begin(metadata, names[0]), two.begin(metadata, names[1])
        return one, two, my_name, name

    yield meet
    if server:
        server.close()


@pytest.mark.parametrize(("initiator", "target"), KINDS)
def test_bytes_of_any_size_go_there_and_come_back(met, initiator, target):
    one, two, _, name = met(initiator, target)
    room = max(SIZES) + 100
    here, there = one.buffer(room), two.buffer(room)
    for seed, size in enumerate(SIZES):
        one.write(here + 3, seed, size)
        assert one.call("transfer_sync_write", name, here + 3, there + 5, size) == 0, size
        assert two.holds(there + 5, seed, size), size
        two.write(there + 7, seed + 100, size)
        assert one.call("transfer_sync_read", name, here + 11, there + 7, size) == 0, size
        assert one.holds(here + 11, seed + 100, size), size


@pytest.mark.parametrize(("initiator", "target"), KINDS)
def test_batches_arrive_whole(met, initiator, target):
    one, two, _, name = met(initiator, target)
    count, size = 40, 20_000
    here, there = one.buffer(count * size), two.buffer(count * size)
    for at in range(count):
        one.write(here + at * size, at, size)
    locals_ = [here + at * size for at in range(count)]
    # Backwards, so that neighbours here are no neighbours there.
    remotes = [there + (count - 1 - at) * size for at in range(count)]
    assert one.call("batch_transfer_sync_write", name, locals_, remotes, [size] * count) == 0
    assert all(two.holds(remotes[at], at, size) for at in range(count))
    batch = one.call("batch_transfer_async_read", name, locals_, list(reversed(remotes)), [size] * count)
    assert batch != 0
    assert one.call("get_batch_transfer_status", [batch]) == 0
    assert all(one.holds(locals_[at], count - 1 - at, size) for at in range(count))


@pytest.mark.parametrize(("initiator", "target"), KINDS)
def test_registrations_after_the_first_meeting_are_seen(met, initiator, target):
    """Ours asks again where it is refused; Mooncake's sees in the target's answer what its own copy has not."""
    one, two, _, name = met(initiator, target)
    here, first = one.buffer(1 << 16), two.buffer(1 << 16)
    assert one.call("transfer_sync_write", name, here, first, 1 << 16) == 0
    second = two.buffer(1 << 16)
    one.write(here, 1, 1 << 16)
    assert one.call("transfer_sync_write", name, here, second, 1 << 16) == 0
    assert two.holds(second, 1, 1 << 16)


@pytest.mark.parametrize(("initiator", "target"), KINDS)
@pytest.mark.parametrize("size", [100, 8 << 20])
def test_memory_that_is_not_lent_is_refused_and_left_alone(met, initiator, target, size):
    one, two, _, name = met(initiator, target)
    here, lent = one.buffer(size, fill=1), two.buffer(size)
    private = two.buffer(size, fill=9, register=False)
    assert one.call("transfer_sync_write", name, here, private, size) == -1
    assert two.holds_only(private, 9, size)
    assert one.call("transfer_sync_read", name, here, private, size) == -1
    assert one.call("transfer_sync_write", name, here, lent + 1, size) == -1, "one byte beyond the buffer's end"
    # By RDMA nobody at the target looks: Mooncake's initiator sends the part of such a request that has a key.
    if (PROTOCOL, initiator) != ("rdma", "reference"):
        assert two.holds_only(lent, 0, size)
    assert one.call("transfer_sync_write", name, here, lent, size) == 0, "a refusal ends nothing"
    assert two.holds_only(lent, 1, size)


@pytest.mark.parametrize(("initiator", "target"), KINDS)
def test_a_notification_comes_with_its_transfer(met, initiator, target):
    one, two, _, name = met(initiator, target)
    here, there = one.buffer(4096, fill=5), two.buffer(4096)
    assert two.run("result = len(engine.get_notifies())") == 0
    code = one.run(
        "result = engine.transfer_sync(name, here, there, 4096, module.TransferOpcode.Write, "
        "module.TransferNotify('prefill', 'rank \\u00e9 done'))",
        name=name,
        here=here,
        there=there,
    )
    assert code == 0
    code = one.run(
        "result = engine.batch_transfer_sync(name, [here], [there], [4096], module.Read, "
        "notify=module.TransferNotify('decode', ''))",
        name=name,
    )
    assert code == 0
    got: list = []
    deadline = time.monotonic() + 10
    while len(got) < 2 and time.monotonic() < deadline:
        got += two.run("result = [(n.name, n.msg) for n in engine.get_notifies()]")
    assert got == [["prefill", "rank é done"], ["decode", ""]]
    assert two.holds_only(there, 5, 4096)


@pytest.mark.parametrize(("initiator", "target"), KINDS)
def test_a_probe_tells_a_live_engine_from_none(met, initiator, target):
    one, two, _, name = met(initiator, target)
    assert one.call("send_probe", name) == 0
    two.kill()
    assert one.call("send_probe", name) != 0
    nobody = "127.0.0.1:1" if ":" in name else "nobody"
    assert one.call("send_probe", nobody) != 0
    assert one.call("batch_transfer_async_write", nobody, [1], [1], [1]) == 0
    assert one.call("transfer_submit_write", nobody, 1, 1, 1) == 0
    assert one.call("transfer_sync_write", nobody, 1, 1, 1) == -1


@pytest.mark.parametrize(("initiator", "target"), KINDS)
def test_the_first_buffer_of_a_peer_is_found(met, initiator, target):
    one, two, _, name = met(initiator, target)
    there = two.buffer(4096)
    assert one.call("get_first_buffer_address", name) == there


class Wiretap(Relay):
    """Notes the version that the first request of each connection has, by its header of 24 bytes."""

    def __init__(self, upstream: int):
        self.versions: set[int] = set()
        super().__init__(upstream)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        if source.getsockname()[1] == self.port:
            header = source.recv(24, socket.MSG_PEEK | socket.MSG_WAITALL)
            if len(header) == 24:
                self.versions.add(2 if header[16] & 0x80 else 1)
        super()._pump(source, target)


@by_tcp_alone
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("initiator", "target"), KINDS)
def test_both_versions_of_the_data_protocol_work(engine, service, initiator, target, version):
    """Mooncake's is told by MC_TCP_PROTO, ours by the target's document, as if that
    were an older one. No setting makes Mooncake write such a document, so the service's copy is changed.
    """
    one, two = engine(initiator, MC_TCP_PROTO=str(version)), engine(target, MC_TCP_BIND_ADDRESS="127.0.0.1")
    one.begin(service, "one")
    two.begin(service, "two")
    there = two.buffer(5 << 20)
    document = f"{service}?key=mooncake%2Fram%2Ftwo"
    with urllib.request.urlopen(document, timeout=5) as answer:
        told = json.load(answer)
    tap = Wiretap(told["tcp_data_port"])
    told |= {"tcp_data_port": tap.port, "tcp_proto_version": version}
    request = urllib.request.Request(document, json.dumps(told).encode(), method="PUT")
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 200
    here = one.buffer(5 << 20)
    one.write(here, 1, 5 << 20)
    assert one.call("transfer_sync_write", "two", here, there, 5 << 20) == 0
    deadline = time.monotonic() + 10  # Version 1 says no more than that the bytes have left.
    while not two.holds(there, 1, 5 << 20):
        assert time.monotonic() < deadline
    one.run("ctypes.memset(here, 0, 5 << 20)", here=here)
    assert one.call("transfer_sync_read", "two", here, there, 5 << 20) == 0
    assert one.holds(here, 1, 5 << 20)
    assert tap.versions == {version}
    tap.close()


def answer_to(name: str, frame: bytes) -> bytes:
    """What the engine says to one handshake, its length left out."""
    with socket.create_connection(("127.0.0.1", int(name.rpartition(":")[2])), timeout=10) as stream:
        stream.sendall(len(frame).to_bytes(8, "little") + frame)
        said = b""
        while len(said) < 8 or len(said) < 8 + int.from_bytes(said[:8], "little"):
            part = stream.recv(1 << 16)
            assert part, f"it hung up after {said!r}"
            said += part
        return said[8:]


CONNECTION = {"local_nic_path": "127.0.0.1:1@mlx5_0", "peer_nic_path": "127.0.0.1:2@mlx5_0", "qp_num": [7]}


@by_tcp_alone
def test_frames_of_each_type_and_of_old_are_answered_as_the_reference_answers_them(engine):
    """Queue pairs are refused with a reason, behind a type's byte and, to engines of old, without one."""
    body = json.dumps(CONNECTION).encode() + b"\n"
    frames = {
        "connection": b"\0" + body,
        "old": body,
        "metadata": b"\1{}\n",
        "notify": b"\2" + b'{"name":"n","notify_msg":"m"}\n',
        "probe": b"\3{}\n",
    }
    said = {}
    for kind in ("ours", "reference"):
        one = engine(kind)
        name = one.begin()
        for what, frame in frames.items():
            answer = answer_to(name, frame)
            first = answer[:1] if what != "old" else b""
            said[kind, what] = first, json.loads(answer[len(first) :])
        assert one.run("result = [(n.name, n.msg) for n in engine.get_notifies()]") == [["n", "m"]]
    for what, frame in frames.items():
        (mine, ours), (theirs, reference) = said["ours", what], said["reference", what]
        assert mine == theirs == (b"" if what == "old" else frame[:1]), what
        if what in ("notify", "probe"):
            assert ours == reference
    for what in ("connection", "old"):
        assert said["ours", what][1]["reply_msg"], "a refusal has a reason"


@by_tcp_alone
def test_connections_that_are_kept_serve_the_reference(engine):
    one, two = engine("reference", MC_TCP_ENABLE_CONNECTION_POOL="1"), engine("ours")
    one.begin()
    name = two.begin()
    here, there = one.buffer(1 << 20), two.buffer(1 << 20)
    for seed in range(100):
        one.write(here, seed, 10_000)
        assert one.call("transfer_sync_write", name, here, there + 5 * seed, 10_000) == 0
        assert two.holds(there + 5 * seed, seed, 10_000)


def test_what_is_published_is_what_the_reference_publishes(engine, service):
    documents = {}
    for kind in ("ours", "reference"):
        one = engine(kind, MC_TCP_BIND_ADDRESS="127.0.0.1")
        one.begin(service, kind)
        one.buffer(4096)
        for what in ("ram", "rpc_meta"):
            with urllib.request.urlopen(f"{service}?key=mooncake%2F{what}%2F{kind}", timeout=5) as answer:
                documents[kind, what] = json.load(answer)
    for what, ours_only in (("ram", {"mooncake_rs"}), ("rpc_meta", set())):
        ours, theirs = documents["ours", what], documents["reference", what]
        assert set(ours) - set(theirs) <= ours_only
        common = set(ours) & set(theirs)
        assert {key: type(ours[key]) for key in common} == {key: type(theirs[key]) for key in common}
        # Of RDMA, and where else than its handshakes are answered a host takes data: ours has neither.
        assert set(theirs) - set(ours) <= {"rdma_server_name", "tcp_data_host"}
    assert set(documents["ours", "ram"]["buffers"][0]) == set(documents["reference", "ram"]["buffers"][0])


def test_names_and_arguments_are_those_of_the_reference(reference_python):
    """Each method with the names of its arguments and their defaults, as Mooncake's docstrings have them."""
    source = """
import json, mooncake.engine as module
found = {}
for name in dir(module):
    thing = getattr(module, name)
    members = [m for m in dir(thing) if not m.startswith('_')] if isinstance(thing, type) else None
    found[name] = members
    if members is None and callable(thing):
        found[name] = thing.__doc__.split(chr(10))[0]
line = lambda holder, m: getattr(holder, m).__doc__.split(chr(10))[0]
docs = {}
for holder in ('TransferEngine', 'RpcInterface', 'SharedSegment'):
    methods = [m for m in found[holder] if m[0].islower() and callable(getattr(getattr(module, holder), m))]
    docs[holder] = {m: line(getattr(module, holder), m) for m in methods}
print(json.dumps([{k: v for k, v in found.items() if k[0] != '_'}, docs]))
"""
    done = subprocess.run([reference_python, "-c", source], capture_output=True, text=True, check=True)
    names, docs = json.loads(done.stdout)
    assert docs["SharedSegment"]
    for name, members in names.items():
        assert hasattr(ours, name), name
        if isinstance(members, list) and name != "TransferOpcode":
            assert [m for m in members if not hasattr(getattr(ours, name), m)] == [], name
    for holder, signatures in docs.items():
        for method, signature in signatures.items():
            given = [one for one in signature.partition("(")[2].rpartition(")")[0].split(", ") if ":" in one]
            own = inspect.signature(getattr(getattr(ours, holder), method)).parameters
            mine = [one for name, one in own.items() if name != "self"]
            given = [one for one in given if not one.startswith("self: ")]
            assert len(mine) == len(given), method
            for theirs, own in zip(given, mine, strict=True):
                name, default = theirs.split(":")[0], theirs.partition(" = ")[2]
                if not name.startswith("arg"):
                    assert own.name == name, method
                    assert own.kind is not own.POSITIONAL_ONLY, method
                else:
                    assert own.kind is own.POSITIONAL_ONLY, method
                assert (default == "") == (own.default is own.empty), f"{method} {name}"
                if default:
                    assert repr(own.default) == default, f"{method} {name}"


def test_an_engine_of_mooncake_reaches_one_in_several_networks_at_its_first_address(engine):
    size = 17 << 20
    initiator, target = engine("reference"), engine("ours", MC_TCP_ADDRESSES="127.0.0.2,127.0.0.3", MC_SHM="0")
    initiator.begin()
    name = target.begin()
    here, there = initiator.buffer(size), target.buffer(size)
    for operation, source, at, sink, to in (
        ("write", initiator, here, target, there),
        ("read", target, there, initiator, here),
    ):
        source.write(at, len(operation), size)
        assert initiator.call(f"transfer_sync_{operation}", name, here, there, size) == 0
        assert sink.holds(to, len(operation), size)
