"""Two hosts with two cards each and no RDMA: a store moves a large value over both, and by one if one is out."""

from __future__ import annotations

import random
import time

import pytest
from cluster import Cluster
from network import NETWORK_RATE as RATE
from network import Hosts, Relay

from pool import PoolError

pytestmark = pytest.mark.timeout(120)

MIB = 1 << 20
PAUSE = 3.0

TIMED = """
import ctypes, time
began = time.monotonic()
code = getattr(store, call)(key, ctypes.addressof(served.bytes), size)
result = code, time.monotonic() - began
"""


class Apart:
    """A master here, an owner on one host and a client on the other. Values go by the cables, all else by relays."""

    SIZE = 48 * MIB

    def __init__(self, hosts: Hosts, pool: Cluster, addresses: int):
        self.hosts, self.pool = hosts, pool
        self.relays = [Relay(pool.master.port, network) for network in hosts.networks]
        own = [",".join(hosts.address(host, cable) for cable in range(addresses)) for host in (0, 1)]
        self._at(0, lambda: pool.add_node(512 * MIB, [f"--tcp_addresses={own[0]}"]))
        settings = {"MC_TCP_ADDRESSES": own[1], "MC_TCP_ADDRESS_PAUSE_MS": str(int(PAUSE * 1000))}
        self.client = self._at(1, lambda: pool.process(env=settings))
        self.client.call("arena", self.SIZE)
        pool.wait_segments(1)

    def _at(self, host: int, make):
        real, self.pool.master.port = self.pool.master.port, self.relays[host].port
        try:
            with self.hosts.networks[host].inside():
                return make()
        finally:
            self.pool.master.port = real

    def start(self, call: str, key: str):
        return self.client.start("run", TIMED, call=call, key=key, size=self.SIZE)

    def put(self, key: str, seed: int):
        """Begins it; the answer is its code, and how long it took."""
        self.client.call("fill", random.Random(seed).randbytes(self.SIZE))
        return self.start("put_from", key)

    def get(self, key: str):
        self.client.call("fill", bytes(self.SIZE))
        return self.start("get_into", key)

    def holds(self, seed: int) -> bool:
        return self.client.call("peek", self.SIZE) == random.Random(seed).randbytes(self.SIZE)

    def rate(self, call: str, key: str) -> float:
        """Bits a second of the best of three; a put is removed again but for the last."""
        times = []
        for _ in range(3):
            if call == "put_from":
                self.client.call("remove", key, True)
            code, took = self.start(call, key).result()
            assert code >= 0, self.client.call("last_error")
            times.append(took)
        return 8 * self.SIZE / min(times)

    def close(self) -> None:
        for relay in self.relays:
            relay.close()


@pytest.fixture
def apart(hosts, cluster):
    made: list[Apart] = []

    def start(addresses: int = 2) -> Apart:
        made.append(Apart(hosts, cluster(nodes=0), addresses))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.mark.long
@pytest.mark.alone
def test_a_large_value_takes_both_networks_and_has_the_rate_of_both(apart):
    rates = []
    for addresses in (1, 2):
        pool = apart(addresses)
        code, _ = pool.put("k", addresses).result()
        assert code == 0, pool.client.call("last_error")
        rates.append((pool.rate("put_from", "k"), pool.rate("get_into", "k")))
        code, _ = pool.get("k").result()
        assert code == pool.SIZE
        assert pool.holds(addresses)
    for what, one, both in zip(("put", "get"), *rates, strict=True):
        print(f"{what}: {one / 1e6:.0f} Mbit/s over one network, {both / 1e6:.0f} Mbit/s over both")
        assert 0.9 <= both / (2 * one) <= 1.1


FAULTS = {
    "unplugged": (
        lambda hosts, cable: hosts.unplug(0, cable),
        lambda hosts, cable: hosts.plug(0, cable),
    ),
    "silent": (
        lambda hosts, cable: hosts.lose(1, cable),
        lambda hosts, cable: hosts.find(1, cable),
    ),
}


def comes_back(pool: Apart, call: str, key: str) -> None:
    """The network that was out is used again, and carries its half."""
    deadline = time.monotonic() + PAUSE + 20
    while (rate := pool.rate(call, key)) < 1.8 * RATE * 0.9:
        assert time.monotonic() < deadline, rate


@pytest.mark.parametrize(("cable", "fault"), [(0, "unplugged"), pytest.param(1, "silent", marks=pytest.mark.long)])
def test_a_get_goes_on_over_the_other_network_and_takes_both_again_later(hosts, apart, cable, fault):
    part, mend = FAULTS[fault]
    pool = apart()
    assert pool.put("k", 1).result()[0] == 0, pool.client.call("last_error")
    under_way = pool.get("k")
    time.sleep(0.2)
    part(hosts, cable)
    code, took = under_way.result()
    assert code == pool.SIZE, pool.client.call("last_error")
    assert pool.holds(1)
    # What was left over by then goes at the rate of one, behind the second that the other one was waited for.
    assert took < 8 * pool.SIZE / RATE + 3
    # It is left out: what comes next loses no time there.
    code, took = pool.get("k").result()
    assert code == pool.SIZE
    assert pool.holds(1)
    assert took < 8 * pool.SIZE / RATE + 0.8
    mend(hosts, cable)
    comes_back(pool, "get_into", "k")
    assert pool.holds(1)


@pytest.mark.parametrize(("cable", "fault"), [(0, "silent"), pytest.param(1, "unplugged", marks=pytest.mark.long)])
def test_a_put_ends_right_or_is_a_failure_that_its_repetition_mends_over_the_other_network(hosts, apart, cable, fault):
    part, mend = FAULTS[fault]
    pool = apart()
    assert pool.put("before", 7).result()[0] == 0, pool.client.call("last_error")
    under_way = pool.put("k", 1)
    time.sleep(0.2)
    part(hosts, cable)
    code, _ = under_way.result()
    if code != 0:
        assert code < 0
        assert pool.client.call("last_error")
        assert pool.client.call("is_exist", "k") == 0
    deadline = time.monotonic() + 20
    while code != 0:
        assert time.monotonic() < deadline, pool.client.call("last_error")
        code, _ = pool.put("k", 1).result()
    for key, seed in (("k", 1), ("before", 7)):
        assert pool.get(key).result()[0] == pool.SIZE, key
        assert pool.holds(seed), key
    mend(hosts, cable)
    comes_back(pool, "get_into", "k")
    # Nothing of the failed write comes afterwards.
    for key, seed in (("k", 1), ("before", 7)):
        assert pool.get(key).result()[0] == pool.SIZE, key
        assert pool.holds(seed), key


@pytest.mark.parametrize(
    ("addresses", "problem"),
    [
        ("10.0.0.1,nowhere", '"nowhere" is no IP address'),
        ("127.0.0.1,127.0.0.1", "127.0.0.1 is there twice"),
        ("127.0.0.1,192.0.2.1", "192.0.2.1 is not an address of this machine"),
    ],
)
def test_a_list_that_cannot_be_meant_ends_the_start_with_its_value_and_its_setting(cluster, addresses, problem):
    pool = cluster(nodes=0)
    with pytest.raises(PoolError) as ended:
        pool.add_node(64 * MIB, [f"--tcp_addresses={addresses}"])
    assert problem in str(ended.value)
    assert "--tcp_addresses" in str(ended.value)
    with pytest.raises(AssertionError) as refused:
        pool.process(env={"MC_TCP_ADDRESSES": addresses})
    assert problem in str(refused.value)
    assert "MC_TCP_ADDRESSES" in str(refused.value)
