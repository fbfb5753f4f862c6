"""Two masters with one log between them lead the same owner in turn: bytes may be forgotten, they are never wrong."""

from __future__ import annotations

import shutil
import socket

import pytest
from contents import value, version_of
from network import Network, NoNamespaces, Relay
from test_fault_older_copies import HOLD, LOOK, RELEASE, UNCHECKED, look_again, put_some, read_all, wait_open

from pool import Master, wait_for

pytestmark = pytest.mark.timeout(60)

KIB, MIB = 1 << 10, 1 << 20


def put_all(client, prefix: str, count: int) -> list[str]:
    keys = [f"{prefix}{number}" for number in range(count)]
    for key in keys:
        assert client.call("put", key, value(key, 256 * KIB)) == 0, client.call("last_error")
    return keys


def right_or_missing(client, keys: list[str]) -> int:
    got = {key: client.call("get", key) for key in keys}
    wrong = [key for key, data in got.items() if data and version_of(key, data) != 0]
    assert not wrong, wrong
    return sum(1 for data in got.values() if data)


@pytest.mark.usefixtures("checksums")
def test_no_region_is_handed_out_twice(cluster, tmp_path):
    try:
        network = Network()
    except NoNamespaces as reason:
        pytest.skip(f"needs a network namespace: {reason}")
    pool = cluster(nodes=0)
    # What either master hands out the other one hands out, too: readers find replicas that have been written over.
    pool.spoils_replicas = True
    first = pool.master
    relay = Relay(first.port, network)
    second = Master(tmp_path, [])
    try:
        real, first.port = first.port, relay.port
        with network.inside():
            pool.process(segment=64 * MIB)
            client = pool.process()
        first.port = real
        old = put_all(client, "old", 40)

        # A copy of the log, as of a host that was thought to be dead.
        first.stop()
        shutil.copytree(first.folder, second.folder)
        second.start()
        first.cont()
        # They give out the same numbers otherwise: the first one has said how far it had come, and stands still.
        assert second.metric("mooncake_epoch") > first.metric("mooncake_epoch")
        relay.lead_to(second.port)
        wait_for("the second master", lambda: client.call("batch_is_exist", old) == [1] * len(old), 8.0, 0.05)
        under_second = put_all(client, "second", 60)
        assert right_or_missing(client, old + under_second) == 100

        relay.lead_to(first.port)
        wait_for("the first master again", lambda: client.call("put", "probe", b"p") == 0, 8.0, 0.05)
        right_or_missing(client, old + under_second)
        under_first = put_all(client, "first", 120)
        right_or_missing(client, old + under_second)
        assert right_or_missing(client, under_first) == 120

        relay.lead_to(second.port)
        wait_for("the second master again", lambda: client.call("put", "probe too", b"p") == 0, 8.0, 0.05)
        right_or_missing(client, old + under_second + under_first)
        last = put_all(client, "last", 150)
        right_or_missing(client, old + under_second + under_first)
        assert right_or_missing(client, last) == 150
    finally:
        second.kill()
        relay.close()
        network.close()


def test_views_of_either_epoch_keep_their_bytes_when_the_first_master_comes_back(cluster, tmp_path):
    try:
        network = Network()
    except NoNamespaces as reason:
        pytest.skip(f"needs a network namespace: {reason}")
    pool = cluster(nodes=0, env=UNCHECKED)
    first, second = pool.master, Master(tmp_path, [], UNCHECKED)
    relay, nobody = Relay(first.port, network), socket.create_server(("127.0.0.1", 0))

    def join(**options):
        """A client that reaches whichever master leads."""
        own, pool.master.port = pool.master.port, relay.port
        try:
            with network.inside():
                return pool.process(env=UNCHECKED, **options)
        finally:
            pool.master.port = own

    def come_further(client, position):
        """The log of the leading master comes further than any client remembers of the other's."""
        for number in range(1000):
            if pool.master.metric("mooncake_log_position") > position:
                return
            client.call("remove", f"nothing{number}")
        raise AssertionError(f"the log does not reach {position}")

    def view(reader, keys):
        read_all(reader, keys)
        reader.call("run", HOLD, keys=keys)
        return reader.call("run", LOOK)

    def lead(master):
        pool.master = master
        relay.lead_to(master.port)

    try:
        owner, reader, writer = join(segment=16 * MIB), join(), join()
        put_all(writer, "before", 1)
        copy = first.copy_log(tmp_path / "copy")
        relay.lead_to(nobody.getsockname()[1])
        first.kill()
        first.forget()
        first.start()
        lead(first)
        wait_open(pool, 1)
        wait_for("the pool", lambda: writer.call("put", "mapped", b"m" * 16) == 0)
        seen = view(reader, put_all(writer, "first", 20))

        # The first master stands still in a second epoch. Another one begins its own, with an older copy.
        position = first.metric("mooncake_log_position")
        for process in (owner, reader, writer, first):
            process.stop()
        shutil.copytree(copy, second.folder)
        first.forget()
        second.start()
        lead(second)
        newcomer = join()
        come_further(newcomer, position)
        for process in (owner, writer):
            process.cont()
        pool.wait_segments(1)
        put_some(newcomer, "asleep", 100, 256 * KIB)
        reader.cont()
        look_again(reader, seen)
        reader.call("run", RELEASE)
        wait_open(pool, 1)
        under_second = view(newcomer, put_all(newcomer, "second", 20))

        # And now the other way round: the first one knows nothing of what the second gave out.
        for process in (newcomer, second):
            process.stop()
        first.cont()
        lead(first)
        pool.wait_segments(1)
        put_some(writer, "asleep again", 100, 256 * KIB)
        newcomer.cont()
        look_again(newcomer, under_second)
        put_some(writer, "awake again", 100, 256 * KIB)
        look_again(newcomer, under_second)
        newcomer.call("run", RELEASE)
        wait_open(pool, 1)
        read_all(newcomer, put_all(writer, "after", 20))
    finally:
        pool.master = first
        for master in (first, second):
            master.cont()
        second.kill()
        relay.close()
        nobody.close()
        network.close()
