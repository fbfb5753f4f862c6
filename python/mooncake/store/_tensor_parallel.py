"""The tensor calls that know of parallelism: by tensor-parallel rank, and by any axes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mooncake import _native
from mooncake.store import _tensor_memory as memory
from mooncake.store import _tensor_objects as objects
from mooncake.store import _tensor_shards as shards
from mooncake.store._entry import entries
from mooncake.store._parallelism import (
    ParallelAxis,
    Refused,
    axes_of,
    is_at,
    parallelism_manifest_key,
    shard_header,
    shard_key,
    target_of,
    tp_axes,
    tp_axis,
    with_tp,
    writer_key,
    writer_manifest_key,
    writer_of,
)
from mooncake.store._tensor_header import HEADER_SIZE, Header
from mooncake.store._tensor_objects import as_list, check_key, get_into, put_from, refuse, write_each

Axes = shards.Axes


@entries
class TensorParallelCalls:
    """The calls of a store for shards of tensors."""

    __slots__ = ()

    # --------------------------------------------------- by tensor-parallel rank

    def put_tensor_with_tp(self, key, tensor, tp_rank=0, tp_size=1, split_dim=0):
        return _put_tp(self, "put_tensor_with_tp", [key], [tensor], None, tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp(self, base_keys, tensors_list, tp_rank=0, tp_size=1, split_dim=0):
        return _put_tp(self, "batch_put_tensor_with_tp", base_keys, tensors_list, None, tp_rank, tp_size, split_dim)

    def pub_tensor_with_tp(self, key, tensor, config=None, tp_rank=0, tp_size=1, split_dim=0):
        name = "pub_tensor_with_tp"
        return _put_tp(self, name, [key], [tensor], config, tp_rank, tp_size, split_dim, published=True)[0]

    def batch_pub_tensor_with_tp(self, base_keys, tensors_list, config=None, tp_rank=0, tp_size=1, split_dim=0):
        name = "batch_pub_tensor_with_tp"
        return _put_tp(self, name, base_keys, tensors_list, config, tp_rank, tp_size, split_dim, published=True)

    def put_tensor_with_tp_from(self, key, buffer_ptr, size, tp_rank=0, tp_size=1, split_dim=0):
        name = "put_tensor_with_tp_from"
        return _put_tp_from(self, name, [key], [buffer_ptr], [size], tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp_from(self, base_keys, buffer_ptrs, sizes, tp_rank=0, tp_size=1, split_dim=0):
        name = "batch_put_tensor_with_tp_from"
        return _put_tp_from(self, name, base_keys, buffer_ptrs, sizes, tp_rank, tp_size, split_dim)

    def get_tensor_with_tp(self, key, tp_rank=0, tp_size=1, split_dim=None):
        if _whole(tp_rank, tp_size, 0 if split_dim is None else split_dim):
            return self.get_tensor(key)
        place = lambda: ("shard", tp_axes(tp_rank, tp_size, split_dim))  # noqa: E731
        return _read(self, "get_tensor_with_tp", [key], [place])[0]

    def batch_get_tensor_with_tp(self, base_keys, tp_rank=0, tp_size=1):
        if _whole(tp_rank, tp_size):
            return self.batch_get_tensor(base_keys)
        name, keys = "batch_get_tensor_with_tp", as_list(base_keys, "base_keys")
        try:
            axes = tp_axes(tp_rank, tp_size, None)
        except Refused as reason:
            refuse(self, name, reason)
            return [None] * len(keys)
        places = [shard_key(key, axes) for key in keys]
        made = []
        for key, found in zip(keys, objects.read(self, name, places), strict=True):
            try:
                if found is not None:
                    _check_at(found[0], axes)
            except Refused as reason:
                refuse(self, name, f"{key!r}: {reason}")
                found = None
            made.append(objects.tensor(self, name, found))
        return made

    def get_tensor_with_tp_into(self, key, buffer_ptr, size, tp_rank=0, tp_size=1, split_dim=None):
        if _whole(tp_rank, tp_size, 0 if split_dim is None else split_dim):
            return self.get_tensor_into(key, buffer_ptr, size)
        name = "get_tensor_with_tp_into"
        return _read_into(self, name, key, buffer_ptr, size, lambda: ("shard", tp_axes(tp_rank, tp_size, split_dim)))

    def batch_get_tensor_with_tp_into(self, base_keys, buffer_ptrs, sizes, tp_rank=0, tp_size=1):
        if _whole(tp_rank, tp_size):
            return self.batch_get_tensor_into(base_keys, buffer_ptrs, sizes)
        name, keys = "batch_get_tensor_with_tp_into", as_list(base_keys, "base_keys")
        try:
            axes = tp_axes(tp_rank, tp_size, None)
        except Refused as reason:
            return [refuse(self, name, reason)] * len(keys)
        places = [shard_key(key, axes) for key in keys]
        return get_into(self, name, keys, places, buffer_ptrs, sizes, lambda header: _check_at(header, axes))

    # ------------------------------------------------------------------ by axes

    def put_tensor_with_parallelism(self, key, tensor, parallelism=None, config=None, writer_partition=None):
        name = "put_tensor_with_parallelism"
        return _put(self, name, [key], [tensor], [parallelism], config, [writer_partition], False)[0]

    def upsert_tensor_with_parallelism(self, key, tensor, parallelism=None, config=None, writer_partition=None):
        name = "upsert_tensor_with_parallelism"
        return _put(self, name, [key], [tensor], [parallelism], config, [writer_partition], True)[0]

    def batch_put_tensor_with_parallelism(
        self, keys, tensors_list, parallelisms=None, config=None, writer_partitions=None
    ):
        name = "batch_put_tensor_with_parallelism"
        return _put(self, name, keys, tensors_list, parallelisms, config, writer_partitions, False)

    def batch_upsert_tensor_with_parallelism(
        self, keys, tensors_list, parallelisms=None, config=None, writer_partitions=None
    ):
        name = "batch_upsert_tensor_with_parallelism"
        return _put(self, name, keys, tensors_list, parallelisms, config, writer_partitions, True)

    def put_tensor_with_parallelism_from(
        self, key, buffer_ptr, size, parallelism=None, config=None, writer_partition=None
    ):
        name = "put_tensor_with_parallelism_from"
        return _put_from(self, name, [key], [buffer_ptr], [size], [parallelism], config, [writer_partition], False)[0]

    def upsert_tensor_with_parallelism_from(
        self, key, buffer_ptr, size, parallelism=None, config=None, writer_partition=None
    ):
        name = "upsert_tensor_with_parallelism_from"
        return _put_from(self, name, [key], [buffer_ptr], [size], [parallelism], config, [writer_partition], True)[0]

    def batch_put_tensor_with_parallelism_from(
        self, keys, buffer_ptrs, sizes, parallelisms=None, config=None, writer_partitions=None
    ):
        name = "batch_put_tensor_with_parallelism_from"
        return _put_from(self, name, keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, False)

    def batch_upsert_tensor_with_parallelism_from(
        self, keys, buffer_ptrs, sizes, parallelisms=None, config=None, writer_partitions=None
    ):
        name = "batch_upsert_tensor_with_parallelism_from"
        return _put_from(self, name, keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, True)

    def get_tensor_with_parallelism(self, key, target=None):
        return _read(self, "get_tensor_with_parallelism", [key], [lambda: target_of(target)])[0]

    def batch_get_tensor_with_parallelism(self, keys, targets=None):
        name, keys = "batch_get_tensor_with_parallelism", as_list(keys, "keys")
        targets = [None] * len(keys) if targets is None else as_list(targets, "targets")
        if len(targets) != len(keys):
            refuse(self, name, f"{len(keys)} keys and {len(targets)} targets")
            return [None] * len(keys)
        return _read(self, name, keys, [functools.partial(target_of, target) for target in targets])

    def get_tensor_with_parallelism_into(self, key, buffer_ptr, size, target=None):
        name = "get_tensor_with_parallelism_into"
        return _read_into(self, name, key, buffer_ptr, size, lambda: target_of(target))

    def batch_get_tensor_with_parallelism_into(self, keys, buffer_ptrs, sizes, targets=None):
        name, keys = "batch_get_tensor_with_parallelism_into", as_list(keys, "keys")
        targets = [None] * len(keys) if targets is None else as_list(targets, "targets")
        buffer_ptrs, sizes = as_list(buffer_ptrs, "buffer_ptrs"), as_list(sizes, "sizes")
        if not len(keys) == len(buffer_ptrs) == len(sizes) == len(targets):
            reason = f"{len(keys)} keys, {len(buffer_ptrs)} buffer_ptrs, {len(sizes)} sizes, {len(targets)} targets"
            return [refuse(self, name, reason)] * len(keys)
        if not objects.is_set_up(self):
            return [refuse(self, name, "the store is not set up, or was closed; call setup() first")] * len(keys)
        rows = zip(keys, buffer_ptrs, sizes, targets, strict=True)
        return [self.get_tensor_with_parallelism_into(key, ptr, size, target) for key, ptr, size, target in rows]


def _whole(tp_rank: Any, tp_size: Any, split_dim: Any = 0) -> bool:
    """One rank or fewer: the tensor is not cut."""
    for what, value in (("tp_rank", tp_rank), ("tp_size", tp_size), ("split_dim", split_dim)):
        if not isinstance(value, int):
            raise TypeError(f"{what}: an int is needed, not {type(value).__name__}")
    return tp_size <= 1


def _all_ranks(tp_size: int, split_dim: int) -> list:
    return [tp_axes(rank, tp_size, split_dim) for rank in range(tp_size)]


# Shards of one tensor; more are a mistake, and would be names without end.
_MOST_RANKS = 1 << 16


def _check_ranks(tp_size: int) -> None:
    if tp_size > _MOST_RANKS:
        raise Refused(f"tp_size {tp_size}, at most {_MOST_RANKS} are possible")


def _put_tp(store, name, keys, tensors, config, tp_rank, tp_size, split_dim, published=False) -> list[int]:
    """Every rank's shard of whole tensors; whose rank the caller is does not matter."""
    whole = _whole(tp_rank, tp_size, split_dim)

    def prepare(writes, index, key, tensor):
        if whole:
            writes.add(index, key, memory.of_tensor(tensor))
            return
        _check_ranks(tp_size)
        for axes in _all_ranks(tp_size, split_dim):
            writes.add(index, shard_key(key, axes), shards.cut(tensor, axes))

    return write_each(store, name, keys, config, False, prepare, tensors, published=published)


def _put_tp_from(store, name, keys, buffer_ptrs, sizes, tp_rank, tp_size, split_dim) -> list[int]:
    if _whole(tp_rank, tp_size, split_dim):
        return put_from(store, name, keys, buffer_ptrs, sizes, None, False)

    def prepare(writes, index, key, buffer_ptr, size):
        header = objects.header_at(store, buffer_ptr, size)
        _check_ranks(tp_size)
        for axes in _all_ranks(tp_size, split_dim):
            writes.add(index, shard_key(key, axes), shards.cut_memory(header, buffer_ptr, axes))

    return write_each(store, name, keys, None, False, prepare, buffer_ptrs, sizes)


def _put(store, name, keys, tensors, parallelisms, config, partitions, upsert) -> list[int]:
    def prepare(writes, index, key, tensor, parallelism, partition):
        _one_of(parallelism, partition)
        if partition is not None:
            writer = writer_of(partition)
            shard = shards.cut(tensor, shards.as_writer(writer))
            writes.add(index, writer_key(key, writer), shard)
            writes.add(index, writer_manifest_key(key), shards.manifest_of(shard.header, writer))
            return
        if parallelism is None:
            writes.add(index, key, memory.of_tensor(tensor))
            return
        axes = axes_of(parallelism)
        axis = tp_axis(axes)
        # A lone tensor-parallel axis names the shard that is given; with others it is cut out of the whole.
        shard = shards.cut(tensor, axes) if axis and len(axes) > 1 else shards.of_shard(tensor, axes)
        _add_shard(writes, index, key, axes, shard)

    return _with_options(store, name, keys, config, upsert, prepare, [tensors], parallelisms, partitions)


def _put_from(store, name, keys, buffer_ptrs, sizes, parallelisms, config, partitions, upsert) -> list[int]:
    def prepare(writes, index, key, buffer_ptr, size, parallelism, partition):
        _one_of(parallelism, partition)
        header = objects.header_at(store, buffer_ptr, size)
        if partition is not None:
            writer = writer_of(partition)
            shard = shards.cut_memory(header, buffer_ptr, shards.as_writer(writer))
            writes.add(index, writer_key(key, writer), shard)
            writes.add(index, writer_manifest_key(key), shards.manifest_of(shard.header, writer))
            return
        data = [(buffer_ptr + HEADER_SIZE, header.data_bytes)] if header.data_bytes else []
        if parallelism is None:
            writes.add(index, key, memory.Pieces(header, data, None, False))
            return
        axes = axes_of(parallelism)
        axis = tp_axis(axes)
        if axis is None or is_at(header, axes):
            made = header if axis else shard_header(header.dtype, header.shape, header.global_shape, axes)
            _add_shard(writes, index, key, axes, memory.Pieces(made, data, None, False))
            return
        # As Mooncake: a whole tensor in the buffer becomes the shards of all ranks.
        _check_ranks(axis.size)
        for rank in range(axis.size):
            place = with_tp(axes, rank, axis.size, axis.split_dim)
            writes.add(index, shard_key(key, place), shards.cut_memory(header, buffer_ptr, place))
        manifest = shards.manifest_of(replace(header, global_shape=header.shape), axis)
        writes.add(index, parallelism_manifest_key(key), manifest)

    return _with_options(store, name, keys, config, upsert, prepare, [buffer_ptrs, sizes], parallelisms, partitions)


def _add_shard(writes, index: int, key: Any, axes: tuple[ParallelAxis, ...], shard: memory.Pieces) -> None:
    writes.add(index, shard_key(key, axes), shard)
    axis = tp_axis(axes)
    if axis is not None:
        writes.add(index, parallelism_manifest_key(key), shards.manifest_of(shard.header, axis))


def _one_of(parallelism: Any, partition: Any) -> None:
    if parallelism is not None and partition is not None:
        raise Refused("writer_partition and parallelism exclude each other")


def _with_options(store, name, keys, config, upsert, prepare, columns, parallelisms, partitions) -> list[int]:
    keys = as_list(keys, "keys")
    parallelisms = [None] * len(keys) if parallelisms is None else parallelisms
    partitions = [None] * len(keys) if partitions is None else partitions
    for what, given in (("parallelisms", parallelisms), ("writer_partitions", partitions)):
        if not isinstance(given, (list, tuple)):
            return [refuse(store, name, f"{what}: a list is needed, not {type(given).__name__}")] * len(keys)
    return write_each(store, name, keys, config, upsert, prepare, *columns, parallelisms, partitions)


def _check_at(header: Header, axes: Axes) -> None:
    if not is_at(header, axes):
        raise Refused(f"what is stored is not the shard of rank {axes[0].rank} of {axes[0].size}")


def _read(store, name: str, keys: list[Any], wanted: list[Callable]) -> list[Any]:
    """The tensors that are wanted: one look-up for what may lie there as it is, more only for the rest."""
    for key in keys:
        check_key(key)
    problems: list[str] = []
    places: list[tuple[str, Axes | None] | None] = []
    exact: dict[int, Any] = {}
    for at, (key, want) in enumerate(zip(keys, wanted, strict=True)):
        try:
            mode, axes = want()
            if mode != "full":
                exact[at] = key if axes is None else shard_key(key, axes)
            places.append((mode, axes))
        except Refused as reason:
            problems.append(f"{name}: {key!r}: {reason}")
            places.append(None)
    found = dict(zip(exact, objects.read(store, name, list(exact.values())), strict=True)) if exact else {}
    if reason := store.last_error():
        problems.append(reason)
    made = []
    for at, (key, place) in enumerate(zip(keys, places, strict=True)):
        _native._begin(store)
        made.append(None if place is None else _one(store, name, key, *place, found.get(at)))
        if made[-1] is None and (reason := store.last_error()):
            problems.append(reason)
    _native._begin(store)
    if problems:
        _native._fail(store, objects.INVALID_PARAMS, problems[0])
    return made


def _one(store, name: str, key: Any, mode: str, axes: Axes | None, found: tuple[Header, bytearray] | None) -> Any:
    """One of them, when it is known what lies under its exact name."""
    try:
        if mode == "as_stored" or (mode != "full" and found is not None and is_at(found[0], axes)):
            return objects.tensor(store, name, found)
        made = shards.find_full(store, name, key, axes) if mode == "full" else shards.make_shard(store, name, key, axes)
    except Refused as reason:
        refuse(store, name, f"{key!r}: {reason}")
        return None
    return None if made is None else made[1]


def _read_into(store, name: str, key: Any, buffer_ptr: Any, size: Any, wanted) -> Any:
    check_key(key)
    try:
        mode, axes = wanted()
        if mode == "as_stored":
            return store.get_tensor_into(key if axes is None else shard_key(key, axes), buffer_ptr, size)
        if mode != "full":
            # The usual case, without a copy: the shard lies there as it is.
            code = store.get_into(shard_key(key, axes), buffer_ptr, size)
            if code >= HEADER_SIZE and is_at(objects.header_at(store, buffer_ptr, code), axes):
                return objects.tensor_at(store, name, key, buffer_ptr, code)
            made = shards.find_shard(store, name, key, axes)
        else:
            made = shards.find_full(store, name, key, axes)
        return shards.deliver(store, name, key, made, buffer_ptr, size)
    except ValueError as reason:
        refuse(store, name, f"{key!r}: {reason}")
        return None
