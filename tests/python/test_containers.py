"""Which way bytes go between processes of one host that namespaces keep apart, as containers do."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from contents import value
from network import Network, NoNamespaces, Relay

from pool import Program, binary, free_port, wait_for

CLIENT = """
import os, sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1])
assert code == 0, store.last_error()
value = os.urandom(2 << 20)
assert store.put("key", value) == 0, store.last_error()
assert store.get("key") == value, store.last_error()
store.close()
"""

APART = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
ROOT_OF_ITS_OWN = ["unshare", "--user", "--map-root-user"]
NOBODY_OF_ITS_OWN = ["unshare", "--user", "--map-user=65534"]
OTHER_USER = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]


def usable(wrapper: list[str], *command: str) -> None:
    """Skips where processes cannot be started that way."""
    try:
        done = subprocess.run([*wrapper, *command], capture_output=True, text=True, timeout=30)
    except FileNotFoundError as e:
        pytest.skip(str(e))
    if done.returncode != 0:
        pytest.skip(f"{' '.join(wrapper)}: {done.stderr.strip()[-200:]}")


@pytest.fixture
def host(cluster, tmp_path):
    """Starts a master and, wrapped, its only storage node; the master's address."""
    started = []

    def start(wrapper: list[str], address: str = "127.0.0.1") -> str:
        usable(wrapper, binary(), "version")
        c = cluster(nodes=0)
        command = [*wrapper, binary(), "client", f"--master_server_address={c.master.addr}", f"--host={address}"]
        flags = [f"--port={free_port()}", "--global_segment_size=64MB"]
        node = Program("node", [*command, *flags], tmp_path / "node.out", "Mooncake client ready")
        started.append(node)
        node.start()
        return c.master.addr

    yield start
    for node in started:
        node.kill()


def path_of(wrapper: list[str], master: str) -> tuple[str, str]:
    """How a client that puts and gets reached the node, and why."""
    usable(wrapper, sys.executable, "-c", "import mooncake")
    command = [*wrapper, sys.executable, "-c", CLIENT, master]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    links = re.findall(r' path=(\w+) reason="([^"]*)"', done.stderr)
    assert len(links) == 1, done.stderr
    return links[0]


@pytest.mark.parametrize(
    ("node", "client"),
    [
        pytest.param(APART, [], id="node apart"),
        pytest.param(APART, APART, id="both apart"),
        pytest.param(ROOT_OF_ITS_OWN, ROOT_OF_ITS_OWN, id="user namespaces of one user"),
    ],
)
def test_memory_is_shared_whatever_mounts_pids_and_ipc_they_see(host, node, client):
    assert path_of(client, host(node))[0] == "shm"


def test_the_pin_of_a_killed_process_apart_is_given_back(cluster):
    """As in the shipped compose file: the master cannot watch the process, whoever lends the memory can."""
    usable(APART, "true")
    pool = cluster(node_bytes=128 << 20)
    store, reader = pool.store(buffer=128 << 20), pool.process(wrapper=APART)
    assert store.put("viewed", value("viewed", 40 << 20)) == 0
    hold = "served.view = store.get_buffer(key); result = len(memoryview(served.view))"
    assert reader.call("run", hold, key="viewed") == 40 << 20
    whole = value("whole", 64 << 20)
    parts = [whole, whole[: 48 << 20]]  # They fit only where the view is.
    assert store.put_parts("whole", *parts) != 0
    reader.kill()
    wait_for("the space", lambda: store.put_parts("whole", *parts) == 0, 5.0)


def test_a_network_of_its_own_means_tcp(host, cluster):
    try:
        network = Network()
    except NoNamespaces as e:
        pytest.skip(f"no network namespaces: {e}")
    data = Relay(0, network)
    data.lead_to(data.port)
    control = None
    try:
        master = host([], f"127.0.0.1:{data.port}")
        control = Relay(int(master.rsplit(":", 1)[1]), network)
        with network.inside():
            path, reason = path_of([], f"127.0.0.1:{control.port}")
        assert path == "tcp"
        assert "its Unix socket does not answer" in reason
    finally:
        data.close()
        if control is not None:
            control.close()
        network.close()


def test_another_user_means_tcp(host):
    path, reason = path_of([], host(OTHER_USER))
    assert path == "tcp"
    assert "its owner is user 1000" in reason


def test_users_that_a_namespace_cannot_tell_apart_are_not_trusted(host):
    """In there, whoever is not mapped looks like user 65534."""
    path, reason = path_of(NOBODY_OF_ITS_OWN, host([*OTHER_USER, *NOBODY_OF_ITS_OWN]))
    assert path == "tcp", reason
    assert "65534" in reason
