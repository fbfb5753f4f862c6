"""Tensors come back as they were put, whatever they are; what is none is refused with a reason."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_here import torch

from mooncake.store import MooncakeDistributedStore, ReplicateConfig, _deserialize_tensor, _serialize_tensor
from mooncake.store._tensor_header import DTYPES

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def bits(tensor):
    """Its bytes: NaN and negative zero count too."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(got, want) -> bool:
    return (
        got is not None and got.dtype == want.dtype and got.shape == want.shape and torch.equal(bits(got), bits(want))
    )


def random_tensor(dtype: str, shape, seed: int = 1):
    kind = getattr(torch, dtype)
    size = torch.empty(shape, dtype=kind).numel() * kind.itemsize
    raw = torch.randint(
        0, 2 if dtype == "bool" else 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    return raw.view(kind).reshape(shape)


class Room:
    """Memory of the caller."""

    def __init__(self, size: int, content: bytes = b""):
        self.memory = ctypes.create_string_buffer(content, size)
        self.ptr, self.size = ctypes.addressof(self.memory), size


@given(st.sampled_from([name for name, _ in DTYPES]), st.lists(st.integers(0, 6), max_size=8), st.integers(0, 9))
@RELAXED
def test_tensors_come_back_as_they_were(store, dtype, shape, seed):
    tensor = random_tensor(dtype, shape, seed)
    store.remove("t", True)
    assert store.put_tensor("t", tensor) == 0, store.last_error()
    assert store.get_size("t") == 304 + tensor.numel() * tensor.element_size()
    assert same(store.get_tensor("t"), tensor), store.last_error()
    room = Room(304 + tensor.numel() * tensor.element_size() + 5)
    assert same(store.get_tensor_into("t", room.ptr, room.size), tensor)
    assert same(_deserialize_tensor(store.get("t")), tensor)


def test_an_object_is_the_header_and_the_data(store):
    tensor = torch.arange(6, dtype=torch.int16).reshape(2, 3)
    assert store.put_tensor("t", tensor) == 0
    metadata, address, size, owner = _serialize_tensor(tensor)
    assert (len(metadata), size, owner.data_ptr()) == (304, 12, address)
    assert store.get("t") == metadata + ctypes.string_at(address, size)


@pytest.mark.parametrize(
    "view", [lambda t: t.t(), lambda t: t[::2, 1:], lambda t: t.expand(3, *t.shape), lambda t: t[1]], ids=str
)
def test_views_are_stored_as_what_they_show(store, view):
    tensor = view(torch.arange(40.0).reshape(5, 8))
    assert store.put_tensor("t", tensor) == 0
    assert same(store.get_tensor("t"), tensor)


def test_parameters_and_negated_views_are_tensors(store):
    parameter = torch.nn.Parameter(torch.ones(3))
    negated = torch.full((2,), 1 + 2j).conj().imag
    assert negated.is_neg()
    assert store.batch_put_tensor(["p", "n"], [parameter, negated]) == [0, 0]
    assert same(store.get_tensor("p"), parameter.detach())
    assert store.get_tensor("n").tolist() == [-2.0, -2.0]


def test_what_is_read_is_the_readers_own(store):
    tensor = torch.zeros(1000)
    assert store.put_tensor("t", tensor) == 0
    got = store.get_tensor("t")
    got += 1
    assert same(store.get_tensor("t"), tensor)
    assert store.remove("t", True) == 0
    assert got.sum() == 1000


def test_large_tensors_are_received_into_memory_that_nobody_holds(store):
    """Memory of dropped tensors is used again: never while a view of it lives."""
    size = 3 << 20
    for number in range(3):
        assert store.put_tensor(f"t{number}", torch.full((size,), number, dtype=torch.int32)) == 0
    addresses = set()
    for _ in range(10):
        first, second = store.batch_get_tensor(["t0", "t1"])
        part = first[5:7]
        addresses |= {first.data_ptr(), second.data_ptr()}
        del first
        third = store.get_tensor("t2")
        assert part.tolist() == [0, 0]
        assert bool((second == 1).all())
        assert bool((third == 2).all())
        del part, second, third
    assert len(addresses) < 10


def test_tensors_may_be_placed_in_ones_own_node(shared_cluster):
    store = shared_cluster.store(segment=16 << 20)
    config = ReplicateConfig()
    config.prefer_alloc_in_same_node = True
    assert store.pub_tensor("t", torch.ones(10), config) == 0, store.last_error()
    assert store.remove("t", True) == 0


def test_batches_answer_for_each_key(store):
    tensors = [torch.full((size,), size, dtype=torch.int32) for size in (1, 1000, 100_000)]
    keys = ["a", "b", "c"]
    assert store.batch_put_tensor(keys, tensors) == [0, 0, 0]
    assert store.put("plain", b"no tensor") == 0
    got = store.batch_get_tensor(["a", "missing", "plain", "c"])
    assert same(got[0], tensors[0])
    assert got[1:3] == [None, None]
    assert same(got[3], tensors[2])
    assert "plain" in store.last_error()
    assert store.batch_put_tensor(["d", "e", "f"], [tensors[0], "text", torch.ones(1, dtype=torch.complex64)]) == [
        0,
        -600,
        -600,
    ]
    assert "str" in store.last_error()
    rooms = [Room(304 + 4 * size) for size in (1, 1000, 100_000)]
    ptrs, sizes = [room.ptr for room in rooms], [room.size for room in rooms]
    assert all(map(same, store.batch_get_tensor_into(keys, ptrs, sizes), tensors))
    assert store.batch_get_tensor_into(["a", "missing"], ptrs[:2], sizes[:2])[1] is None


def test_the_first_writer_wins(store):
    assert store.put_tensor("t", torch.zeros(3)) == 0
    assert store.put_tensor("t", torch.ones(3)) == 0
    assert store.get_tensor("t").sum() == 0


def test_published_tensors_take_a_config(store):
    config = ReplicateConfig()
    tensor = torch.ones(5)
    assert store.pub_tensor("t", tensor, config) == 0
    assert store.batch_pub_tensor(["u", "v"], [tensor, tensor], config) == [0, 0]
    assert same(store.get_tensor("v"), tensor)
    config.preferred_segments = ["a", "b"]
    assert store.pub_tensor("w", tensor, config) == -600
    assert "preferred_segments" in store.last_error()
    assert store.batch_pub_tensor(["w", "x"], [tensor] * 2, config) == [-600] * 2
    with pytest.raises(TypeError):
        store.pub_tensor("w", tensor, {"replica_num": 1})


def test_objects_that_lie_ready_are_stored_as_they_are(store):
    tensor = random_tensor("bfloat16", (7, 9))
    metadata, address, size, _owner = _serialize_tensor(tensor)
    room = Room(304 + size, metadata + ctypes.string_at(address, size))
    assert store.put_tensor_from("t", room.ptr, room.size) == 0
    assert same(store.get_tensor("t"), tensor)
    codes = store.batch_put_tensor_from(["u", "v", "w"], [room.ptr, room.ptr, 4096], [room.size, room.size - 1, 999])
    assert codes == [0, -600, -600]
    assert store.batch_is_exist(["u", "v", "w"]) == [1, 0, 0]
    assert same(store.get_tensor("u"), tensor)


def test_tensors_in_memory_that_runs_out_of_its_buffer_are_refused_before_a_byte_moves(store):
    tensor = random_tensor("uint8", (1000,))
    metadata, address, size, _owner = _serialize_tensor(tensor)
    room = Room(2000, metadata + ctypes.string_at(address, size))
    before, whole = room.memory.raw, 304 + size
    for registered in (100, 1000, whole - 4):
        assert store.register_buffer(room.ptr, registered) == 0
        for put in (store.put_tensor_from, store.upsert_tensor_from, store.put_tensor_with_parallelism_from):
            assert put("new", room.ptr, whole) == -600
            assert f"registered range of {registered} bytes" in store.last_error(), put
        assert store.put_tensor_with_tp_from("new", room.ptr, whole, 0, 2) == -600
        assert store.unregister_buffer(room.ptr) == 0
    assert store.batch_is_exist(["new", "new_tp_0"]) == [0, 0]
    other = random_tensor("uint8", (1000,), seed=2)
    assert store.put_tensor("t", other) == 0
    assert store.put_tensor_with_tp("s", other, 0, 2) == 0
    # A shard would have room in what is registered: the memory that was named has not.
    assert store.register_buffer(room.ptr, 1000) == 0
    assert store.get_tensor_into("t", room.ptr, whole) is None
    assert "registered range of 1000 bytes" in store.last_error()
    assert store.batch_get_tensor_into(["t"], [room.ptr], [whole]) == [None]
    assert store.get_tensor_with_tp_into("s", room.ptr, whole, 1, 2) is None
    assert "registered range of 1000 bytes" in store.last_error()
    assert room.memory.raw == before
    assert same(store.get_tensor_with_tp_into("s", room.ptr, 1000, 1, 2), other[500:])
    assert store.unregister_buffer(room.ptr) == 0


def test_a_tensor_is_read_into_another(store):
    tensor = random_tensor("float16", (33, 65))
    assert store.put_tensor("t", tensor) == 0
    into = torch.zeros_like(tensor)
    assert store.get_tensor_into_cuda("t", into) == into.numel() * 2
    assert same(into, tensor)
    other = torch.zeros(33, 65, dtype=torch.bfloat16)
    codes = store.batch_get_tensor_into_cuda(["t", "t", "t", "missing", "t"], [into, other, into[:5], into, into.t()])
    assert codes == [into.numel() * 2, -600, -600, -704, -600]
    assert store.put_tensor("empty", torch.zeros(3, 0)) == 0
    assert store.batch_get_tensor_into_cuda(["empty", "t"], [torch.zeros(3, 0), into]) == [0, into.numel() * 2]
    assert store.batch_get_tensor_into_cuda([], []) == []


MISFITS = {
    "other type": torch.full((4,), 7, dtype=torch.int32), "other shape": torch.full((2, 2), 7.0),
    "larger": torch.full((5,), 7.0), "smaller": torch.full((3,), 7.0), "empty": torch.zeros(0),
}  # fmt: skip


@pytest.mark.parametrize("into", MISFITS.values(), ids=MISFITS)
def test_a_tensor_that_does_not_fit_is_left_as_it_is(store, into):
    assert store.put_tensor("t", torch.ones(4)) == 0
    assert store.put("plain", b"x" * 400) == 0
    assert store.put("short", b"x") == 0
    before, fits = into.clone(), torch.zeros(4)
    assert store.batch_get_tensor_into_cuda(["t", "t", "plain", "short"], [into, fits, into, into]) == [
        -600,
        16,
        -600,
        -600,
    ]
    assert same(into, before)
    assert same(fits, torch.ones(4))
    assert store.get_tensor_into_cuda("t", into) == -600
    assert "does not fit" in store.last_error()


def test_last_error_is_of_the_call_made_last(store):
    assert store.batch_put_tensor(["a", "b"], [torch.ones(1)]) == [-600, -600]
    assert store.last_error()
    assert store.batch_put_tensor([], []) == []
    assert store.last_error() == ""
    assert store.put_tensor("t", "text") == -600
    with pytest.raises(TypeError):
        store.put_tensor(7, torch.ones(1))
    assert store.last_error() == ""


def test_only_contiguous_tensors_of_the_host_are_read_where_they_are(store):
    from mooncake import _native

    for wrong in (torch.ones(4, 4).t(), torch.ones(3, device="meta")):
        with pytest.raises(TypeError, match="contiguous"):
            _native._put_tensors(store, "put_tensor", ["t"], [b"head"], [wrong])
    with pytest.raises(AttributeError):
        _native._put_tensors(store, "put_tensor", ["t"], [b"head"], [4096])
    with pytest.raises(TypeError, match="1 heads"):
        _native._put_tensors(store, "put_tensor", ["t", "u"], [b"head"], [None, None])
    assert store.is_exist("t") == 0


NO_TENSORS = {
    "none": None, "text": "tensor", "list": [1.0], "number": 7, "bytes": b"x" * 400,
}  # fmt: skip


@pytest.mark.parametrize("value", NO_TENSORS.values(), ids=NO_TENSORS)
def test_what_is_no_tensor_is_refused_with_a_reason(store, value):
    assert store.put_tensor("t", value) == -600
    assert type(value).__name__ in store.last_error()
    assert store.batch_put_tensor(["t"], [value]) == [-600]
    assert store.put_tensor_with_tp("t", value, 0, 2, 0) == -600
    assert store.put_tensor_with_parallelism("t", value) == -600
    assert store.get_tensor_into_cuda("t", value) == -600
    assert store.is_exist("t") == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, dtype=torch.complex64),
        lambda: torch.ones([1] * 9),
        lambda: torch.ones(3, 3).to_sparse(),
        lambda: torch.ones(3, device="meta"),
    ],
    ids=["complex", "nine dimensions", "sparse", "meta"],
)
def test_tensors_that_have_no_such_form_are_refused(store, make):
    assert store.put_tensor("t", make()) == -600
    assert store.last_error()
    assert store.is_exist("t") == 0


@pytest.mark.parametrize("key", [None, 7, 1.5, ["a"]], ids=repr)
def test_keys_are_str_or_bytes(store, key):
    tensor = torch.ones(1)
    for call in (
        lambda: store.put_tensor(key, tensor),
        lambda: store.get_tensor(key),
        lambda: store.batch_put_tensor([key], [tensor]),
        lambda: store.batch_get_tensor([key]),
        lambda: store.put_tensor_with_tp(key, tensor, 0, 2),
        lambda: store.get_tensor_with_parallelism(key),
        lambda: store.get_tensor_into(key, 4096, 400),
    ):
        with pytest.raises(TypeError):
            call()


def test_keys_may_be_bytes(store):
    tensor = torch.arange(4.0)
    assert store.put_tensor(b"\xff\x00", tensor) == 0
    assert same(store.get_tensor(b"\xff\x00"), tensor)
    assert store.put_tensor_with_tp(b"\xff", tensor, 0, 2) == 0
    assert same(store.get_tensor_with_tp(b"\xff", 1, 2), tensor[2:])


@pytest.mark.parametrize("number", [-1, 1 << 64, 1.5, "1", None], ids=repr)
def test_addresses_and_sizes_that_do_not_fit_are_a_type_error(store, number):
    for call in (
        lambda: store.put_tensor_from("t", number, 400),
        lambda: store.put_tensor_from("t", 4096, number),
        lambda: store.get_tensor_into("t", number, 400),
        lambda: store.get_tensor_into("t", 4096, number),
    ):
        with pytest.raises(TypeError):
            call()


def test_memory_that_is_not_there_is_an_error(store):
    assert store.put_tensor("t", torch.ones(100)) == 0
    for address in (0, 8, 1 << 60, (1 << 64) - 100):
        assert store.put_tensor_from("u", address, 704) == -600
        assert store.get_tensor_into("t", address, 704) is None
        assert store.get_tensor_with_parallelism_into("t", address, 704) is None
        assert store.last_error()
    assert store.get_tensor_into("t", 4096, 100) is None


def test_lists_that_do_not_fit_fail_for_every_key(store):
    tensor = torch.ones(1)
    assert store.batch_put_tensor(["a", "b"], [tensor]) == [-600, -600]
    assert store.batch_get_tensor_into(["a", "b"], [4096], [1, 2]) == [-600, -600]
    assert store.batch_put_tensor_from(["a", "b"], [4096], [1, 2]) == [-600, -600]
    assert store.batch_get_tensor_into_cuda(["a", "b"], [tensor]) == [-600, -600]
    assert "2 keys" in store.last_error()
    assert store.batch_put_tensor([], []) == store.batch_get_tensor([]) == []
    for wrong in ("keys", b"keys", None, {"a": 1}, 3):
        with pytest.raises(TypeError):
            store.batch_put_tensor(wrong, [tensor])
        with pytest.raises(TypeError):
            store.batch_get_tensor(wrong)


def test_a_store_that_is_closed_refuses_every_call():
    s = MooncakeDistributedStore()
    tensor = torch.ones(4)
    metadata, address, size, _owner = _serialize_tensor(tensor)
    room = Room(304 + size, metadata + ctypes.string_at(address, size))
    assert s.put_tensor("t", tensor) == s.pub_tensor("t", tensor) == s.put_tensor_with_tp("t", tensor, 0, 2) == -600
    assert s.put_tensor_with_parallelism("t", tensor) == s.put_tensor_from("t", room.ptr, room.size) == -600
    assert "setup" in s.last_error()
    assert s.batch_put_tensor(["t"], [tensor]) == [-600]
    assert s.get_tensor("t") is None
    assert s.batch_get_tensor(["t"]) == [None]
    assert s.get_tensor_with_tp("t", 0, 2) is s.get_tensor_with_parallelism("t") is None
    assert s.batch_get_tensor_into(["t"], [room.ptr], [room.size]) == [-600]
    assert s.save_tensor_to_safetensor("t", "/nowhere") == -1100


def test_upserts_replace(store):
    assert store.put_tensor("t", torch.zeros(3)) == 0
    assert store.upsert_tensor("t", torch.ones(5)) == 0
    assert same(store.get_tensor("t"), torch.ones(5))
    assert store.batch_upsert_tensor(["t", "u"], [torch.zeros(1)] * 2) == [0, 0]
    assert store.upsert_pub_tensor("u", torch.ones(1), ReplicateConfig()) == 0
    assert [float(t) for t in store.batch_get_tensor(["t", "u"])] == [0.0, 1.0]
    metadata, address, size, _owner = _serialize_tensor(torch.full((2,), 7.0))
    room = Room(304 + size, metadata + ctypes.string_at(address, size))
    assert store.upsert_tensor_from("t", room.ptr, room.size) == 0
    assert store.get_tensor("t").tolist() == [7.0, 7.0]


def test_tensors_go_to_files_and_back(store, tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    tensor, path = random_tensor("bfloat16", (4, 5)), tmp_path / "t.safetensors"
    assert store.put_tensor("t", tensor) == 0
    assert store.save_tensor_to_safetensor("t", path) == 0
    assert store.remove("t", True) == 0
    assert same(store.load_tensor_from_safetensor("t", path), tensor)
    assert same(store.get_tensor("t"), tensor)
    assert same(store.load_tensor_from_safetensor(file_name=str(path)), tensor)
    assert same(store.get_tensor(str(path)), tensor)
    assert store.save_tensor_to_safetensor("missing", path) == -1100
    assert store.save_tensor_to_safetensor("t", tmp_path / "no" / "folder") == -1103
    assert store.load_tensor_from_safetensor("t", tmp_path / "nothing") is None
    assert "nothing" in store.last_error()
    path.write_bytes(b"no such format")
    assert store.load_tensor_from_safetensor("t", path) is None
    assert store.load_tensor_from_safetensor("t") is None


def test_importing_the_store_imports_no_torch():
    code = "import sys, mooncake.store, mooncake.async_store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tensor_calls_have_coroutines(shared_cluster):
    import asyncio

    from mooncake.async_store import MooncakeDistributedStoreAsync

    async def main():
        s = MooncakeDistributedStoreAsync()
        assert s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", shared_cluster.master.addr) == 0
        tensors = [torch.full((9,), float(i)) for i in range(50)]
        assert await asyncio.gather(*(s.async_put_tensor(f"a{i}", t) for i, t in enumerate(tensors))) == [0] * 50
        got = await asyncio.gather(*(s.async_get_tensor(f"a{i}") for i in range(50)))
        assert all(map(same, got, tensors))
        s.remove_all(True)
        s.close()

    asyncio.run(main())


def test_a_lifetime_without_a_soft_pin_is_refused(store):
    config = ReplicateConfig()
    config.soft_pin_ttl_ms = 1000
    tensor = torch.arange(8)
    for put in (store.pub_tensor, store.upsert_pub_tensor):
        assert put("t", tensor, config) == -600
        assert "soft_pin_ttl_ms" in store.last_error()
    assert store.batch_pub_tensor(["t"], [tensor], config) == [-600]
    assert store.put_tensor_with_parallelism("t", tensor, None, config) == -600
    assert store.get_tensor("t") is None
