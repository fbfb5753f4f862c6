"""Shards of tensors: cut, named, found again, and put together to any other cut."""

from __future__ import annotations

import ctypes
import math
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_here import torch

from mooncake.store import ParallelAxis, ReadTarget, ReplicateConfig, TensorParallelism
from mooncake.store import _tensor_header as th
from mooncake.store._tensor_memory import as_object

RELAXED = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def tp(rank, size, split_dim=0):
    return ParallelAxis("tp", rank, size, split_dim)


def of(*axes):
    return TensorParallelism(list(axes))


def shard(*axes):
    return ReadTarget("shard", of(*axes))


def numbered(*shape):
    return torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)


def in_memory(tensor):
    """An object ready in memory of its own: what keeps it, its address and size."""
    header = th.full(th.CODES[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape))
    data = as_object(header, tensor)
    room = ctypes.create_string_buffer(bytes(data), len(data))
    return room, ctypes.addressof(room), len(data)


@st.composite
def cuts(draw):
    """A shape, a dimension of it, and two numbers that divide it."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dim = draw(st.integers(0, len(shape) - 1))
    shape[dim] = draw(st.sampled_from([1, 4, 6, 12, 24]))
    divisors = [n for n in range(1, 25) if shape[dim] % n == 0]
    return shape, dim, draw(st.sampled_from(divisors)), draw(st.sampled_from(divisors))


@given(cuts())
@RELAXED
def test_any_cut_is_read_as_any_other(store, cut):
    shape, dim, written, wanted = cut
    store.remove_all(True)
    tensor = numbered(*shape)
    for rank, part in enumerate(tensor.chunk(written, dim)):
        assert store.put_tensor_with_parallelism("t", part, of(tp(rank, written, dim))) == 0, store.last_error()
    for rank, part in enumerate(tensor.chunk(wanted, dim)):
        got = store.get_tensor_with_parallelism("t", shard(tp(rank, wanted, dim)))
        assert torch.equal(got, part), store.last_error()
    assert torch.equal(store.get_tensor_with_parallelism("t", ReadTarget("full")), tensor)
    assert torch.equal(store.get_tensor_with_parallelism("t", ReadTarget("full", of(tp(0, wanted, dim)))), tensor)


def put_by_writers(store, key, tensor, written, dim):
    for rank in range(written):
        writer = SimpleNamespace(rank=rank, size=written, split_dim=dim)
        assert store.put_tensor_with_parallelism(key, tensor, writer_partition=writer) == 0, store.last_error()


@given(cuts())
@RELAXED
def test_writers_of_a_whole_tensor_leave_shards_that_any_reader_understands(store, cut):
    shape, dim, written, wanted = cut
    store.remove_all(True)
    tensor = numbered(*shape)
    put_by_writers(store, "t", tensor, written, dim)
    assert store.get_size(f"t__writer_0of{written}_sd{dim}") == 304 + tensor.numel() * 4 // written
    assert store.get_size("t__writer_manifest") == 96
    assert torch.equal(store.get_tensor_with_parallelism("t", ReadTarget("full")), tensor)
    for rank, part in enumerate(tensor.chunk(wanted, dim)):
        assert torch.equal(store.get_tensor_with_parallelism("t", shard(tp(rank, wanted, dim))), part)


@given(cuts())
@RELAXED
def test_ranks_are_cut_and_read_by_number(store, cut):
    shape, dim, size, wanted = cut
    store.remove_all(True)
    tensor = numbered(*shape)
    assert store.put_tensor_with_tp("t", tensor, 0, size, dim) == 0
    for rank, part in enumerate(tensor.chunk(size, dim)):
        assert torch.equal(store.get_tensor_with_tp("t", rank, size, dim), part)
        assert torch.equal(store.batch_get_tensor_with_tp(["t"], rank, size)[0], part)
    if size > 1:
        assert store.is_exist("t") == 0
        assert store.batch_is_exist([f"t_tp_{rank}" for rank in range(size)]) == [1] * size
        for rank, part in enumerate(tensor.chunk(wanted, dim)):
            assert torch.equal(store.get_tensor_with_parallelism("t", shard(tp(rank, wanted, dim))), part)
        assert torch.equal(store.get_tensor_with_parallelism("t", ReadTarget("full", of(tp(0, size, dim)))), tensor)


@given(cuts())
@RELAXED
def test_objects_in_memory_are_cut_without_a_copy(store, cut):
    shape, dim, size, _ = cut
    store.remove_all(True)
    tensor = numbered(*shape)
    _room, address, length = in_memory(tensor)
    assert store.put_tensor_with_tp_from("t", address, length, 0, size, dim) == 0, store.last_error()
    assert store.put_tensor_with_parallelism_from("u", address, length, of(tp(0, size, dim))) == 0
    writer = SimpleNamespace(rank=size - 1, size=size, split_dim=dim)
    assert store.put_tensor_with_parallelism_from("w", address, length, writer_partition=writer) == 0
    assert store.put_tensor_with_parallelism_from("v", address, length) == 0
    for rank, part in enumerate(tensor.chunk(size, dim)):
        assert torch.equal(store.get_tensor_with_tp("t", rank, size, dim), part)
        assert torch.equal(store.get_tensor_with_parallelism("u", shard(tp(rank, size, dim))), part)
    assert torch.equal(store.get_tensor(f"w__writer_{size - 1}of{size}_sd{dim}"), tensor.chunk(size, dim)[-1])
    assert torch.equal(store.get_tensor("v"), tensor)
    assert torch.equal(store.get_tensor_with_parallelism("u", ReadTarget("full")), tensor)


@given(cuts())
@RELAXED
def test_shards_are_read_into_the_callers_memory(store, cut):
    shape, dim, written, wanted = cut
    store.remove_all(True)
    tensor = numbered(*shape)
    assert store.put_tensor_with_tp("t", tensor, 0, written, dim) == 0
    room = ctypes.create_string_buffer(304 + tensor.numel() * 4)
    at, size = ctypes.addressof(room), len(room)
    if written > 1:
        for rank, part in enumerate(tensor.chunk(wanted, dim)):
            got = store.get_tensor_with_parallelism_into("t", at, size, shard(tp(rank, wanted, dim)))
            assert torch.equal(got, part), store.last_error()
            assert got.data_ptr() == at + 304
            assert th.decode(room.raw, 304 + part.numel() * 4).shape == tuple(part.shape)
            assert store.get_tensor_with_parallelism_into("t", at, 303, shard(tp(rank, wanted, dim))) is None
        full = store.get_tensor_with_parallelism_into("t", at, size, ReadTarget("full", of(tp(0, written, dim))))
        assert torch.equal(full, tensor)
    part = tensor.chunk(written, dim)[-1]
    assert torch.equal(store.get_tensor_with_tp_into("t", at, size, written - 1, written, dim), part)
    assert torch.equal(store.batch_get_tensor_with_tp_into(["t"], [at], [size], written - 1, written)[0], part)


def test_names_are_the_references(store):
    whole = numbered(4, 6)
    dp, pp, ep = ParallelAxis("dp", 1, 2), ParallelAxis("pp", 0, 3, stage_id=5), ParallelAxis("ep", 2, 8, expert_id=9)
    assert store.put_tensor_with_parallelism("a", whole[:2], of(tp(0, 2))) == 0
    assert store.put_tensor_with_parallelism("b", whole, of(tp(1, 3, 1), dp)) == 0
    assert store.put_tensor_with_parallelism("c", whole, of(pp, ep)) == 0
    assert store.put_tensor_with_parallelism("d", whole, of(dp)) == 0
    names = ["a_tp_0", "a__parallelism_manifest", "b__dp_1of2__tp_1of3_sd1", "b__parallelism_manifest",
             "c__ep_2of8_eid9__pp_0of3_sid5", "d__dp_1of2"]  # fmt: skip
    assert store.batch_is_exist([*names, "c__parallelism_manifest", "d__parallelism_manifest"]) == [1] * 6 + [0] * 2
    manifest = th.decode_manifest(store.get("b__parallelism_manifest"))
    assert manifest == th.Manifest(th.CODES["int32"], (4, 6), 1, 3)
    assert th.decode_manifest(store.get("a__parallelism_manifest")).global_shape == (4, 6)
    stored = store.get("b__dp_1of2__tp_1of3_sd1")
    header = th.decode(stored, len(stored))
    # In the header they stand as given.
    assert (header.shape, header.global_shape, [axis.kind for axis in header.axes]) == ((4, 2), (4, 6), [1, 0])
    # The order in which the axes are named does not matter.
    assert torch.equal(store.get_tensor_with_parallelism("b", shard(dp, tp(1, 3, 1))), whole[:, 2:4])
    assert torch.equal(store.get_tensor_with_parallelism("c", shard(ep, pp)), whole)
    assert torch.equal(
        store.get_tensor_with_parallelism("b", ReadTarget("as_stored", of(dp, tp(1, 3, 1)))), whole[:, 2:4]
    )
    assert store.get_tensor_with_parallelism("c", shard(ParallelAxis("ep", 2, 8, expert_id=8), pp)) is None


def test_with_other_axes_the_whole_is_given_and_put_together_again(store):
    whole, dp = numbered(8, 3), ParallelAxis("dp", 0, 2)
    for rank in range(4):
        assert store.put_tensor_with_parallelism("t", whole, of(dp, tp(rank, 4))) == 0
    assert torch.equal(store.get_tensor_with_parallelism("t", ReadTarget("full", of(dp, tp(0, 2)))), whole)
    assert torch.equal(store.get_tensor_with_parallelism("t", shard(dp, tp(1, 2))), whole[4:])
    assert store.get_tensor_with_parallelism("t", shard(ParallelAxis("dp", 1, 2), tp(1, 2))) is None
    assert torch.equal(store.get_tensor_with_parallelism("t", shard(dp, tp(2, 3, 1))), whole[:, 2:])


def test_a_missing_shard_is_a_miss_with_a_reason(store):
    whole = numbered(8, 3)
    assert store.put_tensor_with_tp("t", whole, 0, 4) == 0
    assert store.remove("t_tp_2", True) == 0
    assert store.get_tensor_with_parallelism("t", ReadTarget("full", of(tp(0, 4)))) is None
    assert "t_tp_2" in store.last_error()
    assert store.get_tensor_with_tp("t", 2, 4) is None
    assert torch.equal(store.get_tensor_with_tp("t", 0, 2), whole[:4])
    assert store.get_tensor_with_tp("t", 1, 2) is None


def test_a_shard_of_another_cut_is_not_mistaken_for_the_one_that_is_asked_for(store):
    whole = numbered(8, 8)
    assert store.put_tensor_with_tp("t", whole, 0, 4, 0) == 0
    assert store.put_tensor("u_tp_1", whole) == 0
    assert store.batch_get_tensor_with_tp(["t", "u"], 1, 2) == [None, None]
    assert torch.equal(store.get_tensor_with_tp("t", 1, 2, 1), whole[:, 4:])
    assert store.get_tensor_with_tp("u", 1, 2) is None


@given(cuts())
@RELAXED
def test_without_a_dimension_a_rank_gets_its_stored_shard(store, cut):
    shape, dim, size, _ = cut
    store.remove_all(True)
    tensor = numbered(*shape)
    assert store.put_tensor_with_tp("t", tensor, 0, size, dim) == 0
    room = ctypes.create_string_buffer(304 + tensor.numel() * 4)
    for rank, part in enumerate(tensor.chunk(size, dim)):
        assert torch.equal(store.get_tensor_with_tp("t", rank, size), part)
        into = store.get_tensor_with_tp_into("t", ctypes.addressof(room), len(room), rank, size)
        assert torch.equal(into, part)


@given(cuts())
@RELAXED
def test_without_a_dimension_a_rank_of_another_number_gets_its_shard_along_the_stored_one(store, cut):
    shape, dim, written, wanted = cut
    store.remove_all(True)
    tensor = numbered(*shape)
    put_by_writers(store, "writers", tensor, written, dim)
    assert store.put_tensor_with_tp("ranks", tensor, 0, written, dim) == 0
    room = ctypes.create_string_buffer(304 + tensor.numel() * 4)
    at, size = ctypes.addressof(room), len(room)
    for key in ("writers", "ranks")[: 2 if min(written, wanted) > 1 else 0]:
        for rank, part in enumerate(tensor.chunk(wanted, dim)):
            assert torch.equal(store.get_tensor_with_tp(key, rank, wanted), part), store.last_error()
            assert torch.equal(store.get_tensor_with_tp_into(key, at, size, rank, wanted), part), store.last_error()
            header = th.decode(room.raw, 304 + part.numel() * 4)
            assert [(axis.rank, axis.count, axis.split_dim) for axis in header.axes] == [(rank, wanted, dim)]
            # A batch gives what is stored by that rank and number, or nothing.
            exact = part if (key, written) == ("ranks", wanted) else None
            [got] = store.batch_get_tensor_with_tp([key], rank, wanted)
            [into] = store.batch_get_tensor_with_tp_into([key], [at], [size], rank, wanted)
            if exact is None:
                assert got is None
                assert into is None or into == -600
            else:
                assert torch.equal(got, part)
                assert torch.equal(into, part)


def test_batches_answer_for_each_key(store):
    whole = numbered(4, 4)
    codes = store.batch_put_tensor_with_parallelism(
        ["a", "b", "c", "d"],
        [whole, whole[:2], whole, whole],
        [None, of(tp(0, 2)), of(ParallelAxis("ep", 0, 2)), None],
        writer_partitions=[None, None, None, SimpleNamespace(rank=0, size=1, split_dim=0)],
    )
    assert codes == [0, 0, -600, 0]
    assert "expert_id" in store.last_error()
    got = store.batch_get_tensor_with_parallelism(
        ["a", "b", "c", "d"], [None, shard(tp(0, 2)), None, ReadTarget("full")]
    )
    assert [None if t is None else t.shape[0] for t in got] == [4, 2, None, 4]
    assert store.batch_put_tensor_with_parallelism(["e"], [whole], [None, None]) == [-600]
    assert store.batch_put_tensor_with_parallelism(["e"], [whole], of(tp(0, 2))) == [-600]
    assert store.batch_put_tensor_with_tp(["e", "f"], [whole, whole[:3]], 0, 2) == [0, -600]
    assert store.batch_is_exist(["e_tp_0", "e_tp_1", "f_tp_0"]) == [1, 1, 0]
    assert store.batch_get_tensor_with_parallelism(["a"], [None, None]) == [None]
    rooms = [ctypes.create_string_buffer(304 + 64) for _ in range(2)]
    ptrs = [ctypes.addressof(room) for room in rooms]
    got = store.batch_get_tensor_with_parallelism_into(["a", "b"], ptrs, [368] * 2, [None, shard(tp(0, 2))])
    assert torch.equal(got[0], whole)
    assert torch.equal(got[1], whole[:2])
    assert store.batch_get_tensor_with_parallelism_into(["a"], ptrs, [368]) == [-600]
    assert store.batch_get_tensor_with_tp_into(["e"], ptrs, [368], 0, 2) == [-600]


def test_groups_of_a_call_reach_each_shard(store):
    config = ReplicateConfig()
    config.group_ids = ["g"]
    whole = numbered(4, 4)
    assert store.pub_tensor_with_tp("t", whole, config, 0, 2) == 0, store.last_error()
    assert store.batch_pub_tensor_with_tp(["u", "v"], [whole, whole], config, 0, 2) == [-600] * 2
    assert "group_ids" in store.last_error()
    assert store.put_tensor_with_parallelism("w", whole, of(tp(0, 2)), config) == 0


WRONG_CUTS = [(0, 3, 0), (0, 2, 2), (0, 2, -1), (0, 1 << 40, 0)]


@pytest.mark.parametrize(("rank", "size", "dim"), WRONG_CUTS, ids=str)
def test_cuts_that_are_not_possible_are_refused(store, rank, size, dim):
    whole = numbered(4, 4)
    _room, address, length = in_memory(whole)
    assert store.put_tensor_with_tp("t", whole, rank, size, dim) == -600
    assert store.put_tensor_with_tp_from("t", address, length, rank, size, dim) == -600
    writer = SimpleNamespace(rank=rank, size=size, split_dim=dim)
    assert store.put_tensor_with_parallelism("t", whole, writer_partition=writer) == -600
    assert store.last_error()
    assert store.get_tensor_with_tp("t", rank, size, dim) is None
    assert store.batch_is_exist(["t_tp_0", "t__writer_manifest", "t__parallelism_manifest"]) == [0] * 3


WRONG_AXES = {
    "none": [],
    "unknown kind": [ParallelAxis("xp")],
    "kind of a wrong type": [ParallelAxis(7)],
    "tp without split_dim": [ParallelAxis("tp", 0, 2)],
    "dp with split_dim": [ParallelAxis("dp", 0, 2, 0)],
    "ep without expert": [ParallelAxis("ep", 0, 2)],
    "pp without stage": [ParallelAxis("pp", 0, 2)],
    "rank beyond size": [tp(2, 2)],
    "negative rank": [tp(-1, 2)],
    "negative split_dim": [tp(0, 2, -1)],
    "no ranks": [tp(0, 0)],
    "huge": [tp(0, 1 << 40)],
    "two of a kind": [tp(0, 2), tp(1, 2)],
    "five": [ParallelAxis("dp")] * 5,
    "not an axis": ["tp"],
}


@pytest.mark.parametrize("axes", WRONG_AXES.values(), ids=WRONG_AXES)
def test_axes_that_make_no_sense_are_refused_with_a_reason(store, axes):
    parallelism = TensorParallelism(axes)
    assert store.put_tensor_with_parallelism("t", numbered(4), parallelism) == -600
    assert store.last_error()
    assert store.get_tensor_with_parallelism("t", ReadTarget("shard", parallelism)) is None
    assert store.last_error()


@pytest.mark.parametrize(
    ("axis", "reason"),
    [
        (tp(2, 2), "rank 2 of 2: a rank is below its size"),
        (tp(-1, 2), "rank -1 of 2: a rank is below its size"),
        (tp(0, 1 << 17), "size 131072, at most 65536 are possible"),
        (tp(None, 2), "rank None of 2"),
    ],
    ids=["beyond", "negative", "many", "none"],
)
def test_a_rank_that_is_none_is_told_why(store, axis, reason):
    assert store.put_tensor_with_parallelism("t", numbered(4), of(axis)) == -600
    assert reason in store.last_error()


WRONG_TARGETS = ["full", 7, SimpleNamespace(mode="nothing"), SimpleNamespace(mode=None), ReadTarget("shard")]


@pytest.mark.parametrize("target", WRONG_TARGETS, ids=repr)
def test_targets_that_make_no_sense_are_refused_with_a_reason(store, target):
    assert store.put_tensor("t", numbered(4)) == 0
    assert store.get_tensor_with_parallelism("t", target) is None
    assert "target" in store.last_error()


def test_a_writer_and_a_parallelism_exclude_each_other(store):
    writer = SimpleNamespace(rank=0, size=2, split_dim=0)
    assert store.put_tensor_with_parallelism("t", numbered(4), of(tp(0, 2)), writer_partition=writer) == -600
    assert "exclude" in store.last_error()
    for wrong in (SimpleNamespace(rank=0, size=2), "writer", SimpleNamespace(rank=2, size=2, split_dim=0)):
        assert store.put_tensor_with_parallelism("t", numbered(4), writer_partition=wrong) == -600


@pytest.mark.parametrize("value", ["1", None, 1.5], ids=repr)
def test_ranks_and_sizes_are_integers(store, value):
    for arguments in ((value, 2, 0), (0, value, 0), (0, 2, value)):
        with pytest.raises(TypeError):
            store.put_tensor_with_tp("t", numbered(4), *arguments)
        if arguments == (0, 2, None):
            continue  # A read need not say along which dimension.
        with pytest.raises(TypeError):
            store.get_tensor_with_tp("t", *arguments)


def test_one_rank_or_none_is_the_whole_tensor(store):
    whole = numbered(3)
    assert store.put_tensor_with_tp("a", whole) == store.put_tensor_with_tp("b", whole, 0, 0) == 0
    assert torch.equal(store.get_tensor_with_tp("a"), whole)
    assert torch.equal(store.batch_get_tensor_with_tp(["a", "b"])[1], whole)
    assert store.batch_is_exist(["a", "b"]) == [1, 1]


def test_upserts_replace_shards_and_manifests(store):
    for whole in (numbered(4, 2), numbered(8, 2) + 100):
        for rank in range(2):
            part = whole.chunk(2)[rank]
            assert store.upsert_tensor_with_parallelism("t", part, of(tp(rank, 2))) == 0
        assert torch.equal(store.get_tensor_with_parallelism("t", ReadTarget("full", of(tp(0, 2)))), whole)
    _room, address, length = in_memory(numbered(2))
    assert store.upsert_tensor_with_parallelism_from("t", address, length) == 0
    assert store.batch_upsert_tensor_with_parallelism(["t"], [numbered(3)]) == [0]
    assert store.get_tensor("t").shape == (3,)


def test_axes_and_targets_are_made_empty_and_filled_in(store):
    whole = numbered(4, 2)
    for rank in range(2):
        axis = ParallelAxis()
        assert (axis.kind, axis.rank, axis.size) == ("", 0, 1)
        assert (axis.split_dim, axis.expert_id, axis.stage_id) == (None, None, None)
        axis.kind, axis.rank, axis.size, axis.split_dim = "tp", rank, 2, 0
        parallelism = TensorParallelism()
        assert parallelism.axes == []
        parallelism.axes = [axis]
        assert store.put_tensor_with_parallelism("t", whole.chunk(2)[rank], parallelism) == 0
    target = ReadTarget()
    assert (target.mode, target.parallelism) == ("as_stored", None)
    target.mode, target.parallelism = "FULL", parallelism
    assert target.mode == "full"
    assert torch.equal(store.get_tensor_with_parallelism("t", target), whole)
    assert len({axis, ParallelAxis()}) == 2, "they are hashable, and themselves"


def test_a_mode_that_there_is_not_is_refused_where_it_is_set():
    target = ReadTarget()
    with pytest.raises(RuntimeError, match="nothing"):
        target.mode = "nothing"
    with pytest.raises(TypeError):
        target.mode = None
    assert target.mode == "as_stored"


def test_a_batch_of_what_lies_ready_is_one_look_up(store, monkeypatch):
    from mooncake.store import _tensor_objects as objects

    whole, keys = numbered(4, 4), [f"k{n}" for n in range(20)]
    assert store.batch_put_tensor(keys, [whole] * 20) == [0] * 20
    assert store.batch_put_tensor_with_tp(keys, [whole] * 20, 0, 2) == [0] * 20
    asked = []
    read = objects.read
    monkeypatch.setattr(objects, "read", lambda store, name, keys: asked.append(list(keys)) or read(store, name, keys))
    targets = [None] * 10 + [shard(tp(1, 2))] * 10
    got = store.batch_get_tensor_with_parallelism([*keys[:10], *keys[:10]], targets)
    assert all(torch.equal(one, whole) for one in got[:10])
    assert all(torch.equal(one, whole[2:]) for one in got[10:])
    assert [len(names) for names in asked] == [20]


def test_a_batch_keeps_the_reason_of_its_first_miss(store):
    assert store.put("plain", b"no tensor") == 0
    assert store.put_tensor("good", numbered(2)) == 0
    assert store.batch_get_tensor_with_parallelism(["plain", "good"], [None, ReadTarget("full")])[0] is None
    assert "plain" in store.last_error()
    assert store.batch_get_tensor_with_parallelism(["good"])[0] is not None
    assert store.last_error() == ""
