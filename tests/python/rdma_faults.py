"""Faults of engines over RDMA, in a machine that has two links: rxe0 to rxe2 and rxe1 to rxe3 (testing/machine/rdma).

Says what it did, a line for each; the last line counts what passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from engine_process import EngineProcess

MIB = 1 << 20
ENV = {"MC_SHM": "0", "MC_LOG_LEVEL": "ERROR", "MC_TRANSFER_TIMEOUT": "10", "MC_TCP_STATUS_TIMEOUT_SEC": "3"}


def engine(device: str, **env: str) -> EngineProcess:
    return EngineProcess(sys.executable, {**ENV, **env}, "rdma", device)


def path_of(initiator: EngineProcess) -> tuple[str, str]:
    """By what bytes went last, and why."""
    peer = initiator.run("import json; result = json.loads(engine.show_links(True))['peers'][0]")
    return peer["path"], peer["reason"]


def resources(device: str) -> str:
    """What a device has of queue pairs and regions."""
    shown = subprocess.run(["rdma", "resource", "show"], capture_output=True, text=True, check=True).stdout
    line = next(line for line in shown.splitlines() if f" {device}:" in line)
    return line.split(f"{device}:")[1]


def bytes_of_all_sizes() -> None:
    one, two = engine("rxe0"), engine("rxe2")
    one.begin()
    name = two.begin()
    sizes = [1, 2, 63, 4_095, 4_096, 4_097, 65_535, 1_000_003, 5 * MIB + 1]
    room = max(sizes) + 64
    here, there, loose = one.buffer(room), two.buffer(room), one.buffer(room, register=False)
    for seed, size in enumerate(sizes):
        for local in (here, loose):
            one.write(local + 3, seed, size)
            assert one.call("transfer_sync_write", name, local + 3, there + 5, size) == 0
            assert two.holds(there + 5, seed, size), size
            two.write(there + 7, seed + 100, size)
            assert one.call("transfer_sync_read", name, local + 11, there + 7, size) == 0
            assert one.holds(local + 11, seed + 100, size), size
    assert path_of(one)[0] == "rdma", path_of(one)
    end(one, two)


def a_peer_is_killed_or_stands_still_in_mid_transfer() -> None:
    for fault, limit in ((signal.SIGKILL, 16.0), (signal.SIGSTOP, 16.0)):
        one, two = engine("rxe0"), engine("rxe2")
        one.begin()
        name = two.begin()
        here, there = one.buffer(64 * MIB), two.buffer(64 * MIB)
        assert one.call("transfer_sync_write", name, here, there, MIB) == 0
        under_way = one.start(
            "result = engine.transfer_sync_write(name, here, there, 64 << 20)", name=name, here=here, there=there
        )
        time.sleep(0.3)
        began = time.monotonic()
        os.kill(two.process.pid, fault)
        code = under_way.result(timeout=60)
        took = time.monotonic() - began
        # The card of a process that stands still goes on by itself.
        assert code == (0 if fault == signal.SIGSTOP else -1), (fault, code)
        assert took < limit, took
        print(f"  {fault.name}: {code} after {took:.1f} s", flush=True)
        os.kill(two.process.pid, signal.SIGCONT if fault == signal.SIGSTOP else signal.SIGKILL)
        end(one, two)


def a_link_that_goes_down_is_left_out_and_used_again() -> None:
    one, two = engine("rxe0", MC_RDMA_RAIL_PAUSE_SECONDS="2"), engine("rxe2")
    one.begin()
    name = two.begin()
    here, there = one.buffer(16 * MIB), two.buffer(16 * MIB)
    one.write(here, 1, 16 * MIB)
    assert one.call("transfer_sync_write", name, here, there, 16 * MIB) == 0
    under_way = one.start(
        "result = engine.transfer_sync_write(name, here, there, 16 << 20)", name=name, here=here, there=there
    )
    time.sleep(0.1)
    subprocess.run(["ip", "link", "set", "link0", "down"], check=True)
    assert under_way.result(timeout=60) == 0
    assert two.holds(there, 1, 16 * MIB)
    print(f"  down: {path_of(one)}", flush=True)
    subprocess.run(["ip", "link", "set", "link0", "up"], check=True)
    began = time.monotonic()
    while True:
        assert one.call("transfer_sync_write", name, here, there, MIB) == 0
        if path_of(one)[0] == "rdma":
            break
        assert time.monotonic() - began < 35, path_of(one)
        time.sleep(0.5)
    print(f"  up again: RDMA after {time.monotonic() - began:.1f} s", flush=True)
    end(one, two)


def sent(link: str) -> int:
    """Bytes that have left by a link."""
    with open(f"/sys/class/net/{link}/statistics/tx_bytes") as file:
        return int(file.read())


def two_links_share_the_bytes_and_one_that_goes_down_leaves_them_to_the_other() -> None:
    one, two = engine("rxe0,rxe1", MC_RDMA_RAIL_PAUSE_SECONDS="3"), engine("rxe2,rxe3")
    one.begin()
    name = two.begin()
    size = 48 * MIB
    here, there = one.buffer(size), two.buffer(size)
    assert one.call("transfer_sync_write", name, here, there, MIB) == 0
    before = [sent("link0"), sent("link1")]
    one.write(here, 1, size)
    assert one.call("transfer_sync_write", name, here, there, size) == 0
    assert two.holds(there, 1, size)
    shares = [after - then for after, then in zip([sent("link0"), sent("link1")], before, strict=True)]
    print(f"  shares: {shares[0] / sum(shares):.2f} {shares[1] / sum(shares):.2f}", flush=True)
    # What one gets is what it carries; the machine's processors carry both.
    assert min(shares) > 0.3 * sum(shares), shares

    one.write(here, 2, size)
    under_way = one.start(
        "result = engine.transfer_sync_write(name, here, there, 48 << 20)", name=name, here=here, there=there
    )
    time.sleep(0.2)
    subprocess.run(["ip", "link", "set", "link1", "down"], check=True)
    began = time.monotonic()
    assert under_way.result(timeout=60) == 0
    print(f"  one went down: done {time.monotonic() - began:.1f} s later, by {path_of(one)}", flush=True)
    assert two.holds(there, 2, size)
    assert path_of(one)[0] == "rdma"
    subprocess.run(["ip", "link", "set", "link1", "up"], check=True)
    began, before = time.monotonic(), sent("link1")
    while sent("link1") < before + MIB:
        assert one.call("transfer_sync_write", name, here, there, 4 * MIB) == 0
        assert time.monotonic() - began < 35
    print(f"  used again after {time.monotonic() - began:.1f} s", flush=True)
    end(one, two)


def packets_are_lost_and_no_byte_is() -> None:
    subprocess.run(["tc", "qdisc", "add", "dev", "link0", "root", "netem", "loss", "1%"], check=True)
    one, two = engine("rxe0"), engine("rxe2")
    one.begin()
    name = two.begin()
    here, there = one.buffer(8 * MIB), two.buffer(8 * MIB)
    for seed in range(4):
        one.write(here, seed, 8 * MIB)
        assert one.call("transfer_sync_write", name, here, there, 8 * MIB) == 0
        assert two.holds(there, seed, 8 * MIB)
    subprocess.run(["tc", "qdisc", "del", "dev", "link0", "root"], check=True)
    print(f"  by {path_of(one)[0]}", flush=True)
    end(one, two)


def nothing_is_left_at_the_devices() -> None:
    before = [resources(device) for device in ("rxe0", "rxe2")]
    two = engine("rxe2")
    name = two.begin()
    there = two.buffer(MIB)
    for round_ in range(6):
        one = engine("rxe0")
        one.begin()
        here = one.buffer(MIB)
        assert one.call("transfer_sync_write", name, here, there, MIB) == 0
        if round_ % 2:
            os.kill(one.process.pid, signal.SIGKILL)
        end(one)
    end(two)
    deadline = time.monotonic() + 20
    while [resources(device) for device in ("rxe0", "rxe2")] != before:
        assert time.monotonic() < deadline, (before, resources("rxe0"), resources("rxe2"))
        time.sleep(0.2)


def a_child_that_lives_on_keeps_nothing_of_its_parent() -> None:
    before = resources("rxe2")
    one, two = engine("rxe0"), engine("rxe2")
    one.begin()
    name = two.begin()
    here, there = one.buffer(MIB), two.buffer(MIB)
    assert one.call("transfer_sync_write", name, here, there, MIB) == 0
    child = two.run("import os, time\nresult = os.fork()\nif result == 0:\n    time.sleep(60)\n    os._exit(0)")
    os.kill(two.process.pid, signal.SIGKILL)
    two.process.wait()
    deadline = time.monotonic() + 10
    while resources("rxe2") != before:
        assert time.monotonic() < deadline, (before, resources("rxe2"))
        time.sleep(0.1)
    os.kill(child, 0)
    os.kill(child, signal.SIGKILL)
    end(one, two)


def end(*engines: EngineProcess) -> None:
    for one in engines:
        one.kill()


ALL = [
    bytes_of_all_sizes,
    a_peer_is_killed_or_stands_still_in_mid_transfer,
    a_link_that_goes_down_is_left_out_and_used_again,
    two_links_share_the_bytes_and_one_that_goes_down_leaves_them_to_the_other,
    packets_are_lost_and_no_byte_is,
    nothing_is_left_at_the_devices,
    a_child_that_lives_on_keeps_nothing_of_its_parent,
]


def main() -> None:
    passed = 0
    for fault in ALL:
        began = time.monotonic()
        fault()
        passed += 1
        print(f"{fault.__name__}: passed in {time.monotonic() - began:.0f} s", flush=True)
    print(f"{passed} of {len(ALL)} passed", flush=True)


main()
