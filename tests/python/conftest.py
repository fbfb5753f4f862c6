"""Fixtures: real masters, storage nodes and client processes, and nothing killed that was not started here.

``cluster`` is a factory::

    c = cluster(nodes=2, node_bytes=256 << 20, master_flags=["--wal=fsync"])
    store = c.store()                   # a store object in this process, segment 0
    peer = c.process(segment=64 << 20)  # the same in a process of its own
    peer.call("put", "key", b"value")   # what its method returned
    pending = peer.start("get", "key"); c.nodes[0].kill(); pending.result(timeout=5)
    c.master.kill(); c.master.start()
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from pathlib import Path

import browser
import pytest
from cluster import Cluster
from network import NETWORK_RATE, Hosts, NoNamespaces


@pytest.fixture
def hosts():
    """Two hosts that are joined by two cables, each with a rate that can be measured."""
    try:
        made = Hosts(cables=2)
        for host in (0, 1):
            for cable in (0, 1):
                made.limit(host, f"{int(NETWORK_RATE)}bit", cable)
    except NoNamespaces as reason:
        pytest.skip(f"needs network namespaces, veth and tc: {reason}")
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path):
    """Starts clusters; all of them are gone when the test ends."""
    started: list[Cluster] = []

    def start(**options) -> Cluster:
        folder = tmp_path / f"cluster-{len(started)}"
        folder.mkdir()
        made = Cluster(folder)
        started.append(made)
        made.begin(**options)
        return made

    yield start
    for made in reversed(started):
        made.end()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory):
    """One cluster with one node of 256 MiB for all tests of a module that leave it as they found it."""
    made = Cluster(tmp_path_factory.mktemp("shared"))
    try:
        made.begin(nodes=1, node_bytes=256 << 20)
        yield made
    finally:
        made.end()


@pytest.fixture
def store(shared_cluster: Cluster):
    """A store on the shared cluster, emptied afterwards."""
    made = shared_cluster.store()
    yield made
    made.remove_all(True)
    made.close()


@pytest.fixture(params=["1", "0"], ids=["checksums", "stamps alone"])
def checksums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the processes of a test verify checksums.

    Without them nothing stands behind stamps and fences: a byte that landed where it must not is a wrong byte, no miss.
    """
    monkeypatch.setenv("MOONCAKE_STORE_CHECKSUM", request.param)
    return request.param == "1"


@pytest.fixture
def browse(tmp_path: Path):
    """A page of a headless browser, of a size."""
    binary = browser.found()
    if binary is None:
        pytest.skip(f"no browser: none of {', '.join(browser.BROWSERS)} (apt install chromium-headless-shell)")
    numbers = itertools.count()
    with contextlib.ExitStack() as opened:

        def start(width: int = 1280, height: int = 900) -> browser.Page:
            page = browser.Page(binary, tmp_path / f"profile-{next(numbers)}", width, height)
            opened.callback(page.close)
            return page

        yield start


@pytest.fixture
def found(record_property):
    """Says what a test that passes has counted, behind all tests."""
    return lambda what: record_property("found", what)


def pytest_terminal_summary(terminalreporter) -> None:
    for report in terminalreporter.stats.get("passed", []):
        for name, what in report.user_properties:
            if name == "found":
                terminalreporter.write_line(f"{report.nodeid}: {what}")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed that is printed when the test fails; MOONCAKE_TEST_SEED repeats it."""
    value = int(os.environ.get("MOONCAKE_TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"seed {value} (MOONCAKE_TEST_SEED={value} repeats it)")
    return value
