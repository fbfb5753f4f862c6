"""Two hosts with two cards each and no RDMA: an engine moves a large request over both, and by one if one is out."""

from __future__ import annotations

import json
import time

import pytest
from engine_process import EngineProcess
from network import NETWORK_RATE as RATE

pytestmark = pytest.mark.timeout(120)

MIB = 1 << 20
# What MC_TRANSFER_TIMEOUT allows, and what a busy machine adds.
DEADLINE, GRACE = 20, 4
PAUSE = 5.0

CALL = "result = getattr(engine, call)(name, here, there, size)"


@pytest.fixture
def engines(hosts):
    """Starts an engine on each host, with so many addresses each; gives both, and the second one's name."""
    started: list[EngineProcess] = []

    def start(here: int = 2, there: int = 2, **env: str) -> tuple[EngineProcess, EngineProcess, str]:
        pair = []
        for host, (network, addresses) in enumerate(zip(hosts.networks, (here, there), strict=True)):
            own = ",".join(hosts.address(host, cable) for cable in range(addresses))
            settings = {"MC_TRANSFER_TIMEOUT": str(DEADLINE), "MC_TCP_ADDRESS_PAUSE_MS": str(int(PAUSE * 1000))}
            with network.inside():
                pair.append(EngineProcess(env={"MC_TCP_ADDRESSES": own, **settings, **env}))
            assert pair[-1].call("initialize", hosts.ADDRESSES[host], "P2PHANDSHAKE", "tcp", "") == 0
        started.extend(pair)
        return pair[0], pair[1], f"{hosts.ADDRESSES[1]}:{pair[1].call('get_rpc_port')}"

    yield start
    for one in started:
        one.kill()


def reason(initiator: EngineProcess) -> str:
    """What is said of the path to the one peer."""
    return json.loads(initiator.call("show_links", json=True))["peers"][0]["reason"]


class Transfers:
    """Of a buffer here and one there, in one direction."""

    def __init__(self, engines, operation: str, size: int):
        self.initiator, target, name = engines
        self.size = size
        here, there = self.initiator.buffer(size, register=False), target.buffer(size)
        self.names = {"call": f"transfer_sync_{operation}", "name": name, "here": here, "there": there, "size": size}
        ends = [(self.initiator, here), (target, there)]
        (self.source, self.at), (self.sink, self.to) = ends if operation == "write" else ends[::-1]

    def fill(self, seed: int) -> None:
        self.source.write(self.at, seed, self.size)

    def start(self):
        return self.initiator.start(CALL, **self.names)

    def run(self) -> int:
        return self.initiator.run(CALL, **self.names)

    def arrived(self, seed: int) -> bool:
        return self.sink.holds(self.to, seed, self.size)

    def rate(self) -> float:
        """Bits a second of the best of three."""
        times = []
        for _ in range(3):
            began = time.monotonic()
            assert self.run() == 0, self.initiator.call("last_error")
            times.append(time.monotonic() - began)
        return 8 * self.size / min(times)


@pytest.mark.alone
@pytest.mark.parametrize("operation", ["write", pytest.param("read", marks=pytest.mark.long)])
def test_a_large_transfer_takes_both_networks_and_has_the_rate_of_both(engines, operation):
    rates = []
    # An initiator in both networks needs no list of its own.
    for seed, addresses in enumerate([(1, 1), (2 if operation == "read" else 0, 2)]):
        transfers = Transfers(engines(*addresses), operation, 64 * MIB)
        transfers.fill(seed)
        rates.append(transfers.rate())
        assert transfers.arrived(seed)
    print(f"{operation}: {rates[0] / 1e6:.0f} Mbit/s over one network, {rates[1] / 1e6:.0f} Mbit/s over both")
    assert 0.9 <= rates[1] / (2 * rates[0]) <= 1.1
    assert reason(transfers.initiator).endswith("over 2 addresses")


@pytest.mark.long
@pytest.mark.alone
def test_two_cards_in_one_network_are_both_used_where_rules_route_by_the_source(hosts, engines, monkeypatch):
    """Connections come from each of the initiator's addresses in turn; the kernel would take the first for all."""
    monkeypatch.setattr(hosts, "address", lambda host, cable=0: f"10.77.0.{10 * cable + host + 1}")
    for host, network in enumerate(hosts.networks):
        card, own = hosts.card(host, 1), hosts.address(host, 1)
        network.ip("address", "flush", "dev", card)
        # Without a route of its own but for what comes from there.
        network.ip("address", "add", f"{own}/24", "dev", card, "noprefixroute")
        network.ip("route", "add", "10.77.0.0/24", "dev", card, "table", "100")
        network.ip("rule", "add", "from", own, "table", "100")
    rates = []
    for listed in (0, 2):
        transfers = Transfers(engines(listed, 2), "write", 64 * MIB)
        transfers.fill(listed)
        rates.append(transfers.rate())
        assert transfers.arrived(listed)
    print(f"{rates[0] / 1e6:.0f} Mbit/s as the kernel routes, {rates[1] / 1e6:.0f} Mbit/s with a list of its own")
    assert 0.9 <= rates[1] / (2 * rates[0]) <= 1.1


FAULTS = {
    "unplugged": (
        lambda hosts, cable: hosts.unplug(1, cable),
        lambda hosts, cable: hosts.plug(1, cable),
    ),
    "silent": (
        lambda hosts, cable: hosts.lose(0, cable),
        lambda hosts, cable: hosts.find(0, cable),
    ),
}


@pytest.mark.parametrize(
    ("operation", "cable", "fault"),
    [
        ("write", 1, "silent"),
        ("read", 1, "unplugged"),
        pytest.param("write", 0, "unplugged", marks=pytest.mark.long),
        pytest.param("read", 0, "silent", marks=pytest.mark.long),
    ],
)
def test_a_transfer_goes_on_over_the_other_network_and_takes_both_again_later(hosts, engines, operation, cable, fault):
    part, mend = FAULTS[fault]
    transfers = Transfers(engines(), operation, 96 * MIB)
    transfers.fill(1)
    assert transfers.run() == 0
    assert transfers.arrived(1)
    transfers.fill(2)
    began = time.monotonic()
    under_way = transfers.start()
    time.sleep(0.3)
    part(hosts, cable)
    assert under_way.result(timeout=DEADLINE + GRACE) == 0, transfers.initiator.call("last_error")
    assert time.monotonic() - began < DEADLINE
    assert "over 1 of 2 addresses" in reason(transfers.initiator)
    assert transfers.arrived(2)

    # It is left out: what comes next loses no time there.
    small = {**transfers.names, "size": 64 << 10}
    began = time.monotonic()
    assert transfers.initiator.run(CALL, **small) == 0
    assert time.monotonic() - began < 1
    mend(hosts, cable)
    deadline = time.monotonic() + PAUSE + 20
    while not reason(transfers.initiator).endswith("over 2 addresses"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    transfers.fill(3)
    while (rate := transfers.rate()) < 1.8 * RATE * 0.9:
        assert time.monotonic() < deadline, rate
        time.sleep(PAUSE / 2)
    assert transfers.arrived(3)
    # Nothing of what was given up comes afterwards.
    time.sleep(0.5)
    assert transfers.arrived(3)


@pytest.mark.parametrize(
    ("addresses", "problem"),
    [
        ("10.0.0.1,nowhere", '"nowhere" is no IP address'),
        ("127.0.0.1,127.0.0.1", "127.0.0.1 is there twice"),
        ("127.0.0.1,192.0.2.1", "192.0.2.1 is not an address of this machine"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused_with_its_value_and_its_setting(addresses, problem):
    engine = EngineProcess(env={"MC_TCP_ADDRESSES": addresses})
    try:
        assert engine.call("initialize", "127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0
        said = engine.call("last_error")
    finally:
        engine.kill()
    assert problem in said
    assert f'MC_TCP_ADDRESSES="{addresses}"' in said
