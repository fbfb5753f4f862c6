"""What Python developers expect of a class: texts in `help`, `with`, a short way to connect, a telling `repr`."""

from __future__ import annotations

import ast
import asyncio
import enum
import importlib
import inspect
import itertools
import json
from pathlib import Path

import pytest

import mooncake
from mooncake import _native, errors
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

STUB = Path(mooncake.__file__).parent / "store/__init__.pyi"


def texts() -> dict[str, str]:
    """The docstrings of the store's methods in the stub."""
    found: dict[str, str] = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "MooncakeDistributedStore":
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and (text := ast.get_docstring(method)):
                    found.setdefault(method.name, text)
            found["MooncakeDistributedStore"] = ast.get_docstring(node) or ""
    return found


def test_every_method_says_at_run_time_what_the_stub_says():
    methods = [name for name in dir(MooncakeDistributedStore) if not name.startswith("_")]
    stub = texts()
    assert len(methods) > 80
    assert inspect.getdoc(MooncakeDistributedStore) == stub["MooncakeDistributedStore"] != ""
    assert sorted(set(methods) - set(stub)) == [], "without a text in the stub"
    for name in methods:
        assert inspect.getdoc(getattr(MooncakeDistributedStore, name)) == stub[name], name


def told(thing: object) -> list[str]:
    """The words of a docstring, wherever its lines end."""
    text = thing if isinstance(thing, str) else getattr(thing, "__doc__", None)
    return (text or "").split()


@pytest.mark.parametrize("module", ["store", "engine"])
def test_every_class_says_at_run_time_what_the_stub_says(module):
    stub = Path(mooncake.__file__).parent / module / "__init__.pyi"
    there = importlib.import_module(f"mooncake.{module}")
    checked = []
    for node in ast.parse(stub.read_text()).body:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_") or node.name == "MooncakeDistributedStore":
            continue
        cls = getattr(there, node.name)
        assert told(cls) == told(ast.get_docstring(node) or "") != [], node.name
        # What a dataclass holds, its own text tells. What an enumeration is given by Python, Python's does.
        holds = set(getattr(cls, "__match_args__", ())) | (
            set(vars(enum.Enum)) if issubclass(cls, enum.Enum) else set()
        )
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_") and member.name not in holds:
                found = inspect.getattr_static(cls, member.name)
                text = told(getattr(found, "__func__", found))
                assert text == told(ast.get_docstring(member) or "") != [], f"{node.name}.{member.name}"
                checked.append(member.name)
    assert len(checked) > 20


def test_every_field_of_a_put_says_what_it_does():
    fields = [name for name in dir(ReplicateConfig) if not name.startswith("_")]
    node = next(
        n for n in ast.parse(STUB.read_text()).body if isinstance(n, ast.ClassDef) and n.name == "ReplicateConfig"
    )
    stub = {
        field.target.id: text.value.value
        for field, text in itertools.pairwise(node.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    assert sorted(stub) == fields
    for name, text in stub.items():
        assert told(inspect.getattr_static(ReplicateConfig, name)) == told(text) != [], name


def test_the_arguments_of_setup_are_told():
    names = list(inspect.signature(MooncakeDistributedStore.setup).parameters)
    assert names[:4] == ["self", "local_hostname", "metadata_server", "global_segment_size"]
    assert names[-1] == "client_http_port"


def test_a_store_is_closed_by_with(shared_cluster):
    with MooncakeDistributedStore.connect(shared_cluster.master.addr) as store:
        assert store.put("k", b"v") == 0
        assert "k" in store
        assert "none" not in store
        assert store.remove("k", True) == 0
    assert store.health_check() == 1
    with errors.checked(MooncakeDistributedStore.connect(shared_cluster.master.addr)) as store:
        assert store.health_check() == 0
    assert store.health_check() == 1

    async def use():
        async with MooncakeDistributedStoreAsync.connect(shared_cluster.master.addr) as store:
            assert await store.async_health_check() == 0
        assert store.health_check() == 1
        async with errors.checked(MooncakeDistributedStoreAsync.connect(shared_cluster.master.addr)) as store:
            assert await store.async_health_check() == 0
        assert store.health_check() == 1

    asyncio.run(use())


def test_connect_lends_what_it_is_told_and_raises_where_it_fails(cluster):
    pool = cluster(nodes=0)
    for kind in (MooncakeDistributedStore, MooncakeDistributedStoreAsync):
        with kind.connect(pool.master.addr, global_segment_size=32 << 20, local_buffer_size=1 << 20) as store:
            assert type(store) is kind
            assert pool.master.metric("master_total_capacity_bytes") == 32 << 20
            assert store.get_hostname().startswith("127.0.0.1:")
    pool.master.kill()
    with pytest.raises(errors.MasterUnreachable, match="mooncake_master"):
        MooncakeDistributedStore.connect(pool.master.addr)
    with pytest.raises(errors.InvalidParams, match="host:port"):
        MooncakeDistributedStore.connect("nonsense")
    for nothing in (None, 5):
        with pytest.raises(TypeError, match='"host:port" is needed'):
            MooncakeDistributedStore.connect(nothing)


def test_a_config_sets_a_store_up(shared_cluster, tmp_path):
    path = tmp_path / "mooncake.json"
    path.write_text(
        json.dumps(
            {
                "local_hostname": "127.0.0.1",
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": shared_cluster.master.addr,
                "global_segment_size": 0,
                "local_buffer_size": "16MB",
            }
        )
    )
    config = MooncakeConfig.from_file(path)
    for given in ((config,), {"config": config}):
        store = MooncakeDistributedStore()
        code = store.setup(**given) if isinstance(given, dict) else store.setup(*given)
        assert code == 0, store.last_error()
        assert _native._local_buffer_size(store) == 16 << 20
        store.close()
    with pytest.raises(TypeError):
        MooncakeDistributedStore().setup(config=7)


def test_a_store_shows_what_it_is(shared_cluster):
    store = MooncakeDistributedStore()
    assert repr(store) == "<MooncakeDistributedStore, not set up>"
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", shared_cluster.master.addr) == 0
    address = f"{store.get_hostname()} at master {shared_cluster.master.addr}"
    assert repr(store) == f"<MooncakeDistributedStore {address}>"
    assert repr(errors.checked(store)) == f"checked({store!r})"
    store.close()
    assert repr(store) == "<MooncakeDistributedStore, not set up>"


def test_the_package_has_its_version():
    assert mooncake.__version__ == _native.__version__
    assert mooncake.__version__.count(".") == 2
