"""`batch_replica_clear` gives space back, and takes nothing that somebody uses."""

from __future__ import annotations

import pytest

from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from pool import wait_for

MIB = 1 << 20


def copies(store, key: str) -> list[str]:
    found = store.get_replica_desc(key)
    return [one.get_memory_descriptor().buffer_descriptor.transport_endpoint for one in found]


@pytest.fixture
def two(cluster):
    """A pool of two owners, and a store that puts each object on both."""
    pool = cluster(nodes=2, node_bytes=64 * MIB)
    both = ReplicateConfig()
    both.replica_num = 2
    return pool, pool.store(), both


def test_copies_on_one_segment_or_all_leave_and_their_space_comes_back(two):
    pool, store, both = two
    one, other = sorted(node.segment for node in pool.nodes)
    values = {f"k{number}": bytes([number]) * MIB for number in range(20)}
    assert store.put_batch(list(values), list(values.values()), both) == 0
    assert pool.master.metric("master_allocated_bytes") == 40 * MIB

    assert store.batch_replica_clear([*values, "none"], one) == list(values)
    assert "no such object" in store.last_error()
    assert store.batch_replica_clear(list(values), one) == [], "they have no copy there any more"
    assert store.batch_replica_clear(list(values), "nobody") == []
    assert store.get_batch(list(values)) == list(values.values())
    assert {tuple(copies(store, key)) for key in values} == {(other,)}
    wait_for("half of the space", lambda: pool.master.metric("master_allocated_bytes") == 20 * MIB, 10.0)

    wait_for("protection lapses", lambda: pool.master.metric("mooncake_protected_objects") == 0, 10.0)
    assert store.batch_replica_clear([b"k0", "k1"]) == [b"k0", "k1"], "keys as they were given"
    assert store.get_batch(["k0", "k1", "k2"]) == [b"", b"", values["k2"]]
    wait_for("their space", lambda: pool.master.metric("master_allocated_bytes") == 18 * MIB, 10.0)
    assert pool.master.metric("mooncake_cleared_objects_total") == 22
    assert pool.master.metric("master_batch_replica_clear_requests_total") == 4
    assert pool.master.metric("master_batch_replica_clear_items_total") == 63
    assert store.put("k0", b"new") == 0
    assert store.get("k0") == b"new"


def test_what_is_in_use_stays(two):
    pool, store, _ = two
    pinned, plain = ReplicateConfig(), ["viewed", "seen", "plain"]
    pinned.with_hard_pin = True
    for key in plain:
        assert store.put(key, key.encode() * 1000) == 0
    assert store.put("pinned", b"p" * 1000, pinned) == 0
    other = pool.process()
    view = store.get_buffer("viewed")
    assert other.call("is_exist", "seen") == 1
    assert store.batch_replica_clear(["seen"], "nosuch") == []
    assert "no copy on a segment named" in store.last_error()
    assert store.batch_replica_clear(["viewed", "seen", "pinned", "plain"]) == ["plain"]
    assert "in use" in store.last_error()
    assert "force" not in store.last_error(), "there is none here"
    assert bytes(view) == b"viewed" * 1000
    assert store.batch_is_exist(["viewed", "seen", "pinned", "plain"]) == [1, 1, 1, 0]
    del view


def test_any_client_clears_and_a_restarted_master_knows(two):
    pool, store, both = two
    assert store.put("k", b"v" * 4096, both) == 0
    peer = pool.process()
    assert peer.call("batch_replica_clear", ["k"]) == ["k"]
    pool.master.kill()
    pool.master.start()
    wait_for("the store is back", lambda: store.put("l", b"x") == 0, 10.0)
    assert store.get("k") == b""


def test_arguments_are_checked_and_a_store_without_a_pool_clears_nothing(store):
    for wrong in ("k", [1], None):
        with pytest.raises(TypeError):
            store.batch_replica_clear(wrong)
    with pytest.raises(TypeError):
        store.batch_replica_clear(["k"], 1)
    assert store.batch_replica_clear([]) == []
    alone = MooncakeDistributedStore()
    assert alone.batch_replica_clear(["k"]) == []
    assert "setup()" in alone.last_error()
