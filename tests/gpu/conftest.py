"""A real GPU: `make gpu`. Without one every test here is skipped, with the reason."""

from __future__ import annotations

import pytest
from cluster import Cluster
from device import Cuda


@pytest.fixture(scope="session")
def cuda() -> Cuda:
    try:
        return Cuda()
    except (OSError, RuntimeError) as reason:
        pytest.skip(f"no GPU here: {reason}")


@pytest.fixture(scope="session")
def pool(cuda: Cuda, tmp_path_factory: pytest.TempPathFactory):
    """A cluster with one node of 4 GiB."""
    made = Cluster(tmp_path_factory.mktemp("gpu"))
    try:
        made.begin(nodes=1, node_bytes=4 << 30)
        yield made
    finally:
        made.end()


@pytest.fixture(params=["shared memory", "tcp"])
def store(request, cuda: Cuda, pool: Cluster, monkeypatch: pytest.MonkeyPatch):
    if request.param == "tcp":
        monkeypatch.setenv("MC_SHM", "0")
    cuda.use()
    made = pool.store()
    yield made
    made.remove_all(True)
    made.close()
