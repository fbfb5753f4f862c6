"""Switches take what pybind11 takes for a bool, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from pool import free_port


class Truth:
    def __init__(self, truth):
        self.truth = truth

    def __bool__(self):
        return self.truth


class Refuses:
    def __bool__(self):
        raise RuntimeError("ambiguous")


class Sized:
    def __len__(self):
        return 1


TRUE = [True, 1, 2, 1.0, np.True_, np.int64(1), Truth(True)]
FALSE = [False, None, 0, 0.0, np.False_, np.int64(0), Truth(False)]
NEITHER = ["yes", "", b"", [], [1], {}, object(), Sized(), Refuses(), np.zeros(2)]


@pytest.mark.parametrize("name", ["with_hard_pin", "prefer_alloc_in_same_node"])
def test_a_config_takes_what_has_a_truth_value(name):
    config = ReplicateConfig()
    for flags, want in ((TRUE, True), (FALSE, False)):
        for flag in flags:
            setattr(config, name, not want)
            setattr(config, name, flag)
            assert getattr(config, name) is want, flag
    for wrong in NEITHER:
        with pytest.raises(TypeError, match="bool"):
            setattr(config, name, wrong)
        assert getattr(config, name) is False


def test_calls_take_what_has_a_truth_value(store):
    for flag in TRUE:
        assert store.put("k", b"v") == 0
        assert store.is_exist("k") == 1
        assert store.remove("k", flag) == 0, flag
    assert store.put("k", b"v") == 0
    assert store.is_exist("k") == 1
    for flag in FALSE:
        assert store.remove("k", flag) == -706, flag
    for wrong in NEITHER:
        with pytest.raises(TypeError):
            store.remove("k", wrong)
        with pytest.raises(TypeError):
            store.remove_all(force=wrong)
    assert store.batch_get_into_multi_buffers([], [], [], None) == []


def test_setup_takes_what_has_a_truth_value(shared_cluster, tmp_path):
    address = shared_cluster.master.addr
    s = MooncakeDistributedStore()
    required = ("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", address)
    for flag in (1, None, np.False_):
        http = {"enable_client_http_server": flag, "client_http_port": free_port()}
        assert s.setup(*required, enable_ssd_offload=flag, ssd_offload_path=str(tmp_path), **http) == 0, s.last_error()
    with pytest.raises(TypeError, match="enable_ssd_offload"):
        s.setup(*required, enable_ssd_offload="no")
    s.close()
