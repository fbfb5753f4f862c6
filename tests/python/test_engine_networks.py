"""Two hosts: the cable is pulled or packets are lost in mid-transfer; nothing is a success that is not there."""

from __future__ import annotations

import contextlib
import shutil
import time

import pytest
from engine_process import EngineProcess
from network import Hosts, Network, NoNamespaces, Relay

pytestmark = pytest.mark.timeout(120)

SLOTS, SIZE = 16, 1 << 20
# What MC_TRANSFER_TIMEOUT allows at least, and what a busy machine adds.
DEADLINE, GRACE = 5, 4

# Writes and reads the peer's slots by turns until it is told to stop. For each attempt: what, which slot, its number,
# whether it was a success, and how long it took. What was read is looked at at once.
WORKER = """
import struct
made, halt = [], threading.Event()

def fill(addr, number, size):
    ctypes.memmove(addr, struct.pack("<Q", number) * (size // 8), size)

def work():
    number = 0
    while not halt.is_set():
        number += 1
        slot, kind = number % slots, ("write", "read", "batch")[number % 3]
        began, there = time.monotonic(), addr + slot * size
        if kind == "read":
            ctypes.memset(here, 0, size)
            code = engine.transfer_sync_read(name, here, theirs, size)
            right = code != 0 or ctypes.string_at(here, size) == b"\\x55" * size
        else:
            right = True
            fill(here, number, size)
            parts = [at * (size // 8) for at in range(8)]
            lists = [here + at for at in parts], [there + at for at in parts], [size // 8] * 8
            if kind == "batch":
                batch = engine.batch_transfer_async_write(name, *lists)
                code = engine.get_batch_transfer_status([batch]) if batch else -1
            else:
                code = engine.batch_transfer_sync_write(name, *lists)
        made.append([kind, slot, number, code == 0, time.monotonic() - began, right])
        if code != 0:
            time.sleep(0.05)

thread = threading.Thread(target=work)
thread.start()
"""


def in_namespaces(make):
    try:
        made = make()
    except NoNamespaces as reason:
        pytest.skip(f"needs network namespaces and veth: {reason}")
    yield made
    made.close()


@pytest.fixture
def hosts():
    yield from in_namespaces(Hosts)


@pytest.fixture
def engines(hosts):
    """Starts an engine on each host; gives them and the second one's name."""
    started: list[EngineProcess] = []

    def start(**env: str) -> tuple[EngineProcess, EngineProcess, str]:
        for network in hosts.networks:
            with network.inside():
                started.append(EngineProcess(env={"MC_TRANSFER_TIMEOUT": str(DEADLINE), **env}))
        for engine, address in zip(started, hosts.ADDRESSES, strict=True):
            assert engine.call("initialize", address, "P2PHANDSHAKE", "tcp", "") == 0
        return started[0], started[1], f"{hosts.ADDRESSES[1]}:{started[1].call('get_rpc_port')}"

    yield start
    for one in started:
        one.kill()


def attempts(initiator: EngineProcess) -> list:
    return initiator.run("result = list(made)")


def wait_for(initiator: EngineProcess, what, within: float) -> None:
    deadline = time.monotonic() + within
    while not what(attempts(initiator)):
        assert time.monotonic() < deadline, attempts(initiator)[-5:]
        time.sleep(0.02)


FAULTS = {
    "the initiator's cable is pulled": (lambda hosts: hosts.unplug(0), lambda hosts: hosts.plug(0)),
    "the target's cable is pulled": (lambda hosts: hosts.unplug(1), lambda hosts: hosts.plug(1)),
    "the initiator's packets are lost": (lambda hosts: hosts.lose(0), lambda hosts: hosts.find(0)),
    "the target's packets are lost": (lambda hosts: hosts.lose(1), lambda hosts: hosts.find(1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_transfers_end_by_their_deadline_when_hosts_are_parted_and_go_on_afterwards(hosts, engines, fault):
    part, mend = FAULTS[fault]
    initiator, target, name = engines()
    addr, theirs = target.buffer(SLOTS * SIZE), target.buffer(SIZE, fill=0x55)
    here = initiator.buffer(SIZE, register=False)
    names = {"name": name, "addr": addr, "theirs": theirs, "here": here, "slots": SLOTS, "size": SIZE}
    initiator.run(WORKER, **names)
    # Parted in the midst of whatever is under way, more than once.
    for _ in range(2):
        before = len(attempts(initiator))
        wait_for(initiator, lambda made, before=before: sum(one[3] for one in made[before:]) >= 20, 30)
        part(hosts)
        count = len(attempts(initiator))
        wait_for(initiator, lambda made, count=count: any(not one[3] for one in made[count:]), DEADLINE + GRACE)
        mend(hosts)
    before = len(attempts(initiator))
    wait_for(initiator, lambda made: sum(one[3] for one in made[before:]) >= 20, 30)
    initiator.run("halt.set(); thread.join()")
    made = attempts(initiator)
    assert all(one[5] for one in made), "a read was a success with other bytes"
    assert max(one[4] for one in made) < DEADLINE + GRACE
    # A slot whose last attempt was a success has its bytes, all of them.
    last = {slot: (number, done) for kind, slot, number, done, _, _ in made if kind != "read"}
    certain = {slot: number for slot, (number, done) in last.items() if done}
    assert len(certain) >= SLOTS // 2
    for slot, number in certain.items():
        source = "result = ctypes.string_at(at, size) == number.to_bytes(8, 'little') * (size // 8)"
        assert target.run(source, at=addr + slot * SIZE, size=SIZE, number=number), (slot, number)
    assert initiator.run("import json; result = json.loads(engine.show_links(json=True))['peers'][0]['path']") == "tcp"


@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_large_transfer_that_is_parted_fails_whole_and_its_repetition_arrives_over_all_lanes(
    hosts, engines, operation
):
    lanes, size = 4, 128 << 20
    with contextlib.suppress(NoNamespaces):
        # Slow enough to be met in the middle; without it the cable is pulled after some time of its own.
        for host in (0, 1):
            hosts.limit(host, "1gbit")
    limited = shutil.which("tc") is not None
    initiator, target, name = engines(MC_TCP_LANES_PER_PEER=str(lanes))
    here, there = initiator.buffer(size), target.buffer(size)
    source, sink = (initiator, target) if operation == "write" else (target, initiator)
    at, to = (here, there) if operation == "write" else (there, here)
    source.write(at, 1, size)
    before = time.monotonic()
    call = f"result = engine.transfer_sync_{operation}(name, here, there, size)"
    under_way = initiator.start(call, name=name, here=here, there=there, size=size)
    time.sleep(0.4)
    # Each lane is a connection to the one data port.
    count = "result = sum(line.split()[3] == '01' for line in open('/proc/thread-self/net/tcp6').readlines()[1:])"
    seen = target.run(count)
    hosts.unplug(1)
    if under_way.result(timeout=DEADLINE + GRACE + 1) == 0:
        assert not limited, "it was over before the cable was pulled"
        assert sink.holds(to, 1, size)
    else:
        assert time.monotonic() - before < DEADLINE + GRACE
        assert seen >= lanes or not limited
    hosts.plug(1)
    deadline = time.monotonic() + 30
    while initiator.call("send_probe", name) != 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    source.write(at, 2, size)
    while initiator.run(call, name=name, here=here, there=there, size=size) != 0:
        assert time.monotonic() < deadline, initiator.call("last_error")
        time.sleep(0.2)
    assert sink.holds(to, 2, size)


# Ports of connections over which bytes wait that their process does not want any more: it has closed them.
LEFT_BEHIND = """
rows = [line.split() for kind in ("tcp", "tcp6") for line in open("/proc/thread-self/net/" + kind).readlines()[1:]]
result = [row[2].rpartition(":")[2] for row in rows if row[9] == "0" and int(row[4].partition(":")[0], 16) > 0]
"""


def test_of_a_write_that_was_given_up_nothing_is_sent_when_the_hosts_meet_again(hosts, engines):
    size = 32 << 20
    try:
        # Slow enough to be met in the middle.
        hosts.limit(0, "160mbit")
    except NoNamespaces as reason:
        pytest.skip(f"needs tc: {reason}")
    initiator, target, name = engines(MC_TCP_LANES_PER_PEER="1")
    here, there = initiator.buffer(size, fill=1, register=False), target.buffer(size)
    call = "result = engine.transfer_sync_write(name, here, there, size)"
    under_way = initiator.start(call, name=name, here=here, there=there, size=size)
    deadline = time.monotonic() + 10
    while target.run("result = ctypes.string_at(at, 1) == b'\\0'", at=there):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    hosts.lose(0)
    assert under_way.result(timeout=DEADLINE + GRACE + 1) != 0
    assert initiator.run(LEFT_BEHIND) == []
    hosts.find(0)
    initiator.run("ctypes.memset(here, 2, size)", here=here, size=size)
    deadline = time.monotonic() + 30
    while initiator.run(call, name=name, here=here, there=there, size=size) != 0:
        assert time.monotonic() < deadline, initiator.call("last_error")
        time.sleep(0.2)
    assert target.holds_only(there, 2, size)


class Relayed:
    """Two hosts that meet by a relay alone: the initiator's, on which it has the target's ports, and the target's."""

    def __init__(self):
        self.near, self.far = Network(), Network()
        self.relays: list[Relay] = []
        self.engines: list[EngineProcess] = []
        # The initiator's host has the target's ports as well, the relays': no engine may choose one of them for itself.
        for network, first, last in ((self.near, 15000, 15999), (self.far, 16000, 17000)):
            ports = {"MC_MIN_RPC_PORT": str(first), "MC_MAX_RPC_PORT": str(last)}
            with network.inside():
                self.engines.append(EngineProcess(env={"MC_TRANSFER_TIMEOUT": str(DEADLINE)} | ports))
        self.initiator, self.target = self.engines
        self.initiator.begin()
        self.name = self.target.begin()
        # Only of its own host's network; and where it listens is where the initiator looks for it.
        ports = "result = sorted({int(row.split()[1].rpartition(':')[2], 16) for kind in ('tcp', 'tcp6') "
        ports += "for row in open('/proc/thread-self/net/' + kind).readlines()[1:] if row.split()[3] == '0A'})"
        for port in self.target.run(ports):
            self.relays.append(Relay(port, self.near, port, self.far))
        assert len(self.relays) == 2
        self.data = next(relay for relay in self.relays if relay.port != int(self.name.rpartition(":")[2]))

    def close(self) -> None:
        for one in self.engines:
            one.kill()
        for relay in self.relays:
            relay.close()
        for network in (self.near, self.far):
            network.close()


@pytest.fixture
def relayed():
    yield from in_namespaces(Relayed)


def delays(relay: Relay) -> None:
    relay.delay = 0.01


def throttles(relay: Relay) -> None:
    relay.rate = 10 << 20


def throttles_too_much(relay: Relay) -> None:
    relay.rate = 1 << 20


def falls_silent(relay: Relay) -> None:
    relay.once_passed(3 << 20, relay.cut)


def hangs_up(relay: Relay) -> None:
    relay.once_passed(3 << 20, relay.hang_up)


@pytest.mark.parametrize("operation", ["write", "read", "batch"])
@pytest.mark.parametrize("harm", [delays, throttles, throttles_too_much, falls_silent, hangs_up])
def test_a_transfer_by_a_relay_between_hosts_arrives_or_fails_by_its_deadline(relayed, harm, operation):
    initiator, target, relay, size = relayed.initiator, relayed.target, relayed.data, 12 << 20
    here, there = initiator.buffer(size, register=False), target.buffer(size)
    source, sink = (target, initiator) if operation == "read" else (initiator, target)
    at, to = (there, here) if operation == "read" else (here, there)
    if operation == "batch":
        call = "parts = range(0, size, size // 6)\nbatch = engine.batch_transfer_async_write("
        call += "name, [here + at for at in parts], [there + at for at in parts], [size // 6] * 6)\n"
        call += "result = engine.get_batch_transfer_status([batch]) if batch else -1"
    else:
        call = f"result = engine.transfer_sync_{operation}(name, here, there, size)"
    names = {"name": relayed.name, "here": here, "there": there, "size": size}
    source.write(at, 1, size)
    assert initiator.run(call, **names) == 0
    assert sink.holds(to, 1, size)

    source.write(at, 2, size)
    harm(relay)
    before = time.monotonic()
    code = initiator.start(call, **names).result(timeout=DEADLINE + GRACE + 10)
    assert time.monotonic() - before < DEADLINE + GRACE
    if harm in (delays, throttles):
        assert code == 0, "slow is no failure"
    if harm in (throttles_too_much, falls_silent):
        assert code != 0, "what was in time cannot have been all"
    assert code != 0 or sink.holds(to, 2, size)

    relay.delay, relay.rate = 0.0, float("inf")
    relay.mend()
    source.write(at, 3, size)
    deadline = time.monotonic() + 20
    while initiator.run(call, **names) != 0:
        assert time.monotonic() < deadline, initiator.call("last_error")
        time.sleep(0.1)
    # Nothing of what was given up comes afterwards, either.
    time.sleep(0.3)
    assert sink.holds(to, 3, size)
    assert initiator.run("import json; result = json.loads(engine.show_links(json=True))['peers'][0]['path']") == "tcp"
