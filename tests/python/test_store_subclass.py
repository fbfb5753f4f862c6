"""A store class is a base class like any other."""

from __future__ import annotations

import pytest

from mooncake.store import MooncakeDistributedStore


class Counting(MooncakeDistributedStore):
    def __init__(self, name: str, *, start: int = 0):
        super().__init__()
        self.name = name
        self.count = start

    def put(self, key, value, config=None):
        self.count += 1
        return super().put(key, value, config)


def test_a_subclass_has_its_own_constructor_and_overrides_methods(shared_cluster):
    store = Counting("mine", start=5)
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", shared_cluster.master.addr) == 0
    assert store.put("k", b"v") == 0
    assert (store.name, store.count, store.get("k")) == ("mine", 6, b"v")
    assert store.remove("k", True) == 0
    assert store.close() == 0


def test_the_class_itself_takes_no_arguments():
    with pytest.raises(TypeError, match="takes no arguments"):
        MooncakeDistributedStore("127.0.0.1")
