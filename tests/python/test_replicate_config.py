"""`ReplicateConfig`: a plain bag of settings that is read when a call is made."""

from __future__ import annotations

import numpy as np
import pytest

from mooncake.store import MooncakeDistributedStore, ObjectDataType, ReplicateConfig, SoftPinAction
from pool import wait_for

DEFAULTS = {
    "replica_num": 1,
    "nof_replica_num": 0,
    "dfs_replica_num": 0,
    "soft_pin_action": SoftPinAction.PRESERVE,
    "soft_pin_ttl_ms": None,
    "with_hard_pin": False,
    "preferred_segments": [],
    "preferred_segment": "",
    "preferred_nof_segments": [],
    "prefer_alloc_in_same_node": False,
    "data_type": ObjectDataType.UNKNOWN,
    "group_ids": None,
}
CHANGED = {
    "replica_num": 3,
    "nof_replica_num": 1,
    "dfs_replica_num": 1,
    "soft_pin_action": SoftPinAction.ENABLE,
    "soft_pin_ttl_ms": 1000,
    "with_hard_pin": True,
    "preferred_segments": ["a:1", "b:2"],
    "preferred_segment": "c:3",
    "preferred_nof_segments": ["n"],
    "prefer_alloc_in_same_node": True,
    "data_type": ObjectDataType.TENSOR,
    "group_ids": ["g", ""],
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_field_has_its_default_and_can_be_set(name):
    assert hasattr(ReplicateConfig, name)  # engines test features on the class
    config = ReplicateConfig()
    assert getattr(config, name) == DEFAULTS[name]
    setattr(config, name, CHANGED[name])
    assert getattr(config, name) == CHANGED[name]
    assert name in str(config)


def test_fields_that_are_none_of_it_are_attribute_errors():
    with pytest.raises(AttributeError):
        ReplicateConfig().with_soft_pin = True
    assert not hasattr(ReplicateConfig, "session_ids")


@pytest.mark.parametrize(
    ("name", "value"),
    [("replica_num", -1), ("replica_num", "1"), ("preferred_segments", "a:1"), ("preferred_segment", 1),
     ("group_ids", [1]), ("data_type", 2), ("soft_pin_ttl_ms", 1.5), ("with_hard_pin", "yes")],
)  # fmt: skip
def test_values_of_another_type_are_type_errors(name, value):
    with pytest.raises(TypeError):
        setattr(ReplicateConfig(), name, value)


def test_something_else_than_a_config_is_a_type_error():
    with pytest.raises(TypeError):
        MooncakeDistributedStore().put("k", b"v", {"replica_num": 2})


def test_it_is_read_when_the_call_is_made(store):
    config = ReplicateConfig()
    data = np.zeros(8, dtype=np.uint8)
    at = data.ctypes.data
    for keys in (["a"], ["b", "c"], ["d", "e", "f"]):
        config.group_ids = [f"group-{k}" for k in keys]
        n = len(keys)
        assert store.batch_put_from(keys, [at] * n, [8] * n, config) == [0] * n
    config.group_ids = ["one"]
    assert store.batch_put_from(["g", "h"], [at, at], [8, 8], config) == [-600, -600]
    assert "group_ids" in store.last_error()


def test_preferred_segments_decide_where_an_object_goes(cluster):
    c = cluster(nodes=3)
    s = c.store()
    for node in c.nodes:
        config = ReplicateConfig()
        config.preferred_segment = node.segment
        for i in range(5):
            assert s.put(f"{node.segment}-{i}", b"v" * 1000, config) == 0
    c.nodes[1].kill()
    gone = [f"{c.nodes[1].segment}-{i}" for i in range(5)]
    kept = [f"{c.nodes[n].segment}-{i}" for n in (0, 2) for i in range(5)]
    assert s.get_batch(kept) == [b"v" * 1000] * 10
    assert s.get_batch(gone) == [b""] * 5


@pytest.mark.parametrize(
    ("change", "named"),
    [({"replica_num": 0}, "replica_num"), ({"nof_replica_num": 1}, "nof_replica_num"), ({"dfs_replica_num": 1}, "dfs")],
)
def test_what_cannot_be_done_is_refused_by_name(store, change, named):
    config = ReplicateConfig()
    for name, value in change.items():
        setattr(config, name, value)
    assert store.put("k", b"v", config) == -600
    assert named in store.last_error()


@pytest.mark.parametrize("action", ["PRESERVE", "DISABLE"])
@pytest.mark.parametrize("ttl", [0, 10, (1 << 64) - 1])
def test_a_lifetime_without_a_soft_pin_is_refused_by_every_put(store, action, ttl):
    config = ReplicateConfig()
    config.soft_pin_action = getattr(SoftPinAction, action)
    config.soft_pin_ttl_ms = ttl
    data = np.zeros(8, dtype=np.uint8)
    at = data.ctypes.data
    answers = {
        "put": store.put("k", b"v", config),
        "put_parts": store.put_parts("k", b"v", config=config),
        "put_batch": store.put_batch(["k"], [b"v"], config),
        "put_from": store.put_from("k", at, 8, config),
        "put_from_with_metadata": store.put_from_with_metadata("k", at, at, 4, 4, config),
        "upsert": store.upsert("k", b"v", config),
        "upsert_from": store.upsert_from("k", at, 8, config),
    }
    assert set(answers.values()) == {-600}, answers
    for batch in (store.batch_put_from, store.batch_upsert_from):
        assert batch(["k", "l"], [at, at], [8, 8], config) == [-600, -600]
    assert store.batch_put_from_multi_buffers(["k"], [[at]], [[8]], config) == [-600]
    assert action in store.last_error()
    assert "ENABLE" in store.last_error()
    assert store.is_exist("k") == 0
    config.soft_pin_ttl_ms = None
    assert store.put("k", b"v", config) == 0


def test_a_lifetime_has_a_limit_and_zero_clears(cluster):
    c = cluster(
        nodes=1, node_bytes=16 << 20, master_flags=["--max_kv_soft_pin_ttl=10s", "--default_kv_soft_pin_ttl=5s"]
    )
    store = c.store()
    config = ReplicateConfig()
    config.soft_pin_action = SoftPinAction.ENABLE
    pinned = lambda: c.master.metric("master_soft_pin_key_count")  # noqa: E731
    for ttl in (10_001, (1 << 64) - 1):
        config.soft_pin_ttl_ms = ttl
        assert store.put("k", b"v", config) == -600
        assert "max_kv_soft_pin_ttl" in store.last_error()
    config.soft_pin_ttl_ms = 10_000
    assert store.put("k", b"v", config) == 0
    assert pinned() == 1
    assert store.upsert("k", b"preserved") == 0
    assert pinned() == 1
    config.soft_pin_ttl_ms = 0
    assert store.upsert("k", b"cleared", config) == 0
    assert pinned() == 0


@pytest.mark.parametrize("groups", [[], ["a", "b"], ["a"] * 5])
def test_a_put_of_one_key_has_one_group(store, groups):
    config = ReplicateConfig()
    config.group_ids = groups
    assert store.put("k", b"v", config) == -600
    assert store.upsert("k", b"v", config) == -600
    assert store.put_parts("k", b"v", config=config) == -600
    assert "group_ids" in store.last_error()


def test_groups_are_texts_of_a_bounded_length_and_stay_with_their_object(store):
    config = ReplicateConfig()
    for wrong in ("group", [None], [b"group"], [1], {"a": 1}, [["a"]], ["\ud800"]):
        with pytest.raises(TypeError):
            config.group_ids = wrong
    config.group_ids = ["g" * 65_537]
    assert store.put("k", b"v", config) == -600
    config.group_ids = ["g" * 65_536]
    assert store.put("k", b"v", config) == 0, store.last_error()
    config.group_ids = ["another"]
    assert store.upsert("k", b"w", config) == -600
    assert "group" in store.last_error()
    config.group_ids = [""]
    assert store.upsert("k", b"w", config) == 0, store.last_error()
    assert store.get("k") == b"w"


def test_prefer_alloc_in_same_node_is_for_multi_buffers_and_put_sessions_with_one_replica(store):
    config = ReplicateConfig()
    config.prefer_alloc_in_same_node = True
    data = np.zeros(8, dtype=np.uint8)
    assert store.put("k", b"v", config) == -600
    assert store.batch_put_from_multi_buffers(["k"], [[data.ctypes.data]], [[8]], config) == [0]
    config.replica_num = 2
    assert store.batch_put_from_multi_buffers(["l"], [[data.ctypes.data]], [[8]], config) == [-600]
    assert store.batch_put_session_start(["l"], [8], config) == [-600]
    config.replica_num = 1
    assert store.batch_put_session_start(["l"], [8], config) == [0]
    assert store.batch_put_session_revoke(["l"]) == [0]


def test_hard_pins_are_never_evicted(cluster):
    c = cluster(nodes=1, node_bytes=32 << 20)
    s = c.store()
    config = ReplicateConfig()
    config.with_hard_pin = True
    value = bytes(1 << 20)
    assert [s.put(f"pinned-{i}", value, config) for i in range(8)] == [0] * 8
    assert [s.put(f"other-{i}", value) for i in range(64)] == [0] * 64
    assert s.batch_is_exist([f"pinned-{i}" for i in range(8)]) == [1] * 8


@pytest.mark.parametrize("copies", [65, 1 << 40, (1 << 64) - 1])
def test_more_copies_than_there_can_be_store_what_there_is(store, copies):
    config = ReplicateConfig()
    config.replica_num = copies
    assert store.put("many", b"v", config) == 0, store.last_error()
    assert store.get("many") == b"v"


def test_a_soft_pin_without_a_lifetime_has_the_masters(cluster):
    c = cluster(nodes=1, node_bytes=16 << 20, master_flags=["--default_kv_soft_pin_ttl=300ms"])
    store = c.store()
    config = ReplicateConfig()
    config.soft_pin_action = SoftPinAction.ENABLE
    assert store.put("pinned", b"v", config) == 0
    assert c.master.metric("master_soft_pin_key_count") == 1
    wait_for("the pin to lapse", lambda: c.master.metric("master_soft_pin_key_count") == 0)
