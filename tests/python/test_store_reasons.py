"""Answers that are no errors have their reason too: misses, objects that are spared, owners that are away."""

from __future__ import annotations

import ctypes
import threading

import pytest

from mooncake.store import MooncakeDistributedStore
from pool import wait_for

MISSING = "no such object"


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda s, at: s.get("no"), b""),
        (lambda s, at: s.get_batch(["no"]), [b""]),
        (lambda s, at: s.get_buffer("no"), None),
        (lambda s, at: s.batch_get_buffer(["no"]), [None]),
        (lambda s, at: s.get_size("no"), -704),
        (lambda s, at: s.get_into("no", at, 8), -704),
        (lambda s, at: s.batch_get_into(["no"], [at], [8]), [-704]),
        (lambda s, at: s.get_into_ranges([at], [["no"]], [[[0]]], [[[0]]], [[[8]]]), [[[-704]]]),
        (lambda s, at: s.remove("no"), -704),
        (lambda s, at: s.batch_remove(["no"]), [-704]),
        (lambda s, at: s.batch_replica_clear(["no"]), []),
        (lambda s, at: s.get_replica_desc("no"), []),
        (lambda s, at: s.batch_get_replica_desc(["no"]), {}),
    ],
)
def test_a_miss_says_that_it_is_one(store, call, answer):
    room = ctypes.create_string_buffer(8)
    assert call(store, ctypes.addressof(room)) == answer
    assert MISSING in store.last_error()
    assert store.put("k", b"v") == 0
    assert store.last_error() == ""
    assert call(store, ctypes.addressof(room)) == answer


def test_an_existence_query_has_nothing_to_explain(store):
    assert store.is_exist("no") == 0
    assert store.last_error() == ""


def test_an_object_that_was_looked_up_says_why_it_is_spared(store):
    assert store.put("k", b"v") == 0
    assert store.is_exist("k") == 1
    assert store.remove("k") == -706
    assert "looked up" in store.last_error()
    assert "force=True" in store.last_error()
    assert "view" not in store.last_error(), "a view does not spare it"
    assert store.batch_remove(["no", "k"]) == [-704, -706]
    assert MISSING in store.last_error(), "the first reason of a batch"
    assert store.remove("k", True) == 0
    assert store.last_error() == ""


def test_reasons_of_threads_and_stores_do_not_mix(shared_cluster, store):
    other = shared_cluster.store()
    assert store.get("no") == b""
    assert other.put("k", b"v") == 0
    assert other.last_error() == ""
    seen = []
    thread = threading.Thread(target=lambda: seen.append((store.is_exist("k"), store.last_error())))
    thread.start()
    thread.join(10)
    assert seen == [(1, "")]
    assert store.remove("k", True) == 0
    assert store.last_error() == "", "what the other store's call left behind"
    assert other.get("no") == b""
    assert other.put("k", b"w") == 0
    assert (store.put("l", b"x"), store.last_error()) == (0, "")
    other.close()


def test_what_is_stored_at_an_owner_that_is_away_is_told_from_what_is_not_stored(cluster):
    pool = cluster()
    store = pool.store()
    assert store.put("k", b"v" * 4096) == 0
    pool.nodes[0].stop()
    try:
        wait_for("the owner is away", lambda: store.is_exist("k") == 0, 10.0)
        assert store.is_exist("k") == 0
        assert "its owner is away" in store.last_error()
        assert store.batch_is_exist(["no", "k"]) == [0, 0]
        assert "its owner is away" in store.last_error()
        assert store.get("k") == b""
        assert "its owner is away" in store.last_error()
        assert store.get_size("k") == -704
        assert "its owner is away" in store.last_error()
        assert store.get_buffer("k") is None
        assert "its owner is away" in store.last_error()
        assert store.batch_get_buffer(["no", "k"]) == [None, None]
        assert "its owner is away" in store.last_error()
        assert store.batch_replica_clear(["k"]) == []
        assert "or is away" in store.last_error()
        assert store.batch_get_session_start(["k"]) == [-704]
        assert "its owner is away" in store.last_error()
        assert store.get("no") == b""
        assert MISSING in store.last_error()
    finally:
        pool.nodes[0].cont()
    wait_for("the owner is back", lambda: store.is_exist("k") == 1, 10.0)
    assert store.last_error() == ""


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("get_tensor", ("k",)),
        ("batch_get_tensor", (["k"],)),
        ("get_tensor_into", ("k", 4096, 64)),
        ("get_tensor_with_tp", ("k", 0, 2)),
        ("get_tensor_with_parallelism", ("k",)),
        ("get_array", ("k",)),
        ("get_buffer", ("k",)),
        ("put", ("k", b"v")),
    ],
)
def test_the_reason_begins_with_the_call_that_failed(call, arguments):
    store = MooncakeDistributedStore()
    getattr(store, call)(*arguments)
    assert store.last_error() == f"{call}: the store is not set up, or was closed; call setup() first"
