"""Where a shard of a tensor belongs, how it is named, and what is asked of a read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from mooncake.store._tensor_header import KINDS, MOST_AXES, MOST_PARTS, SHARD, Axis, Header

_ORDER = {kind: at for at, kind in enumerate(KINDS)}
_MOST = (1 << 31) - 1
_MODES = ("as_stored", "shard", "full")


class Refused(ValueError):
    """What was asked makes no sense: -600, with this text as the reason."""


@dataclass(eq=False)
class ParallelAxis:
    """One coordinate of a shard: the `rank` among `size` of a `kind`, "dp", "tp", "ep" or "pp".

    "tp" needs a `split_dim`, the dimension that is cut, and no other has one; "ep" needs an `expert_id`, "pp" a
    `stage_id`.
    """

    kind: str = ""
    rank: int = 0
    size: int = 1
    split_dim: int | None = None
    expert_id: int | None = None
    stage_id: int | None = None


@dataclass(eq=False)
class TensorParallelism:
    """Where a shard lies in its tensor: up to four `axes` of different kinds."""

    axes: list[ParallelAxis] = field(default_factory=list)


@dataclass(eq=False)
class ReadTarget:
    """What a read gives: `mode` is "as_stored", "shard", which needs the `parallelism`, or "full".

    RuntimeError for any other.
    """

    mode: str = "as_stored"
    parallelism: TensorParallelism | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "mode":
            if not isinstance(value, str):
                raise TypeError(f"mode: a str is needed, not {type(value).__name__}")
            if value.lower() not in _MODES:
                raise RuntimeError(f"mode {value!r} is none of {', '.join(_MODES)}")
            value = value.lower()
        super().__setattr__(name, value)


@dataclass(frozen=True)
class Writer:
    """Which of several writers of one tensor this is."""

    rank: int
    size: int
    split_dim: int


def axes_of(parallelism: Any) -> tuple[ParallelAxis, ...]:
    """The axes in the order given; Refused when they contradict themselves."""
    if not hasattr(parallelism, "axes"):
        raise Refused(f"parallelism: an object with axes is needed, not {type(parallelism).__name__}")
    try:
        given = list(parallelism.axes)
    except TypeError:
        raise Refused(f"parallelism.axes: a list is needed, not {type(parallelism.axes).__name__}") from None
    if not 0 < len(given) <= MOST_AXES:
        raise Refused(f"parallelism: {len(given)} axes, 1 to {MOST_AXES} are possible")
    axes = [_axis(axis) for axis in given]
    if len({axis.kind for axis in axes}) != len(axes):
        raise Refused("parallelism: two axes of the same kind")
    return tuple(axes)


def tp_axes(rank: int, size: int, split_dim: int | None) -> tuple[ParallelAxis, ...]:
    """Plain tensor parallelism. A read may name no dimension: it means the stored one."""
    if split_dim is None:
        return (replace(_axis(ParallelAxis("tp", rank, size, 0)), split_dim=None),)
    return (_axis(ParallelAxis("tp", rank, size, split_dim)),)


def writer_of(partition: Any) -> Writer:
    """A writer partition: any object with rank, size and split_dim."""
    for name in ("rank", "size", "split_dim"):
        if not hasattr(partition, name):
            raise Refused(f"writer_partition: an object with {name} is needed, not {type(partition).__name__}")
    axis = _axis(ParallelAxis("tp", partition.rank, partition.size, partition.split_dim))
    assert axis.split_dim is not None
    return Writer(axis.rank, axis.size, axis.split_dim)


def target_of(target: Any) -> tuple[str, tuple[ParallelAxis, ...] | None]:
    """Mode and axes of a read."""
    if target is None:
        return "as_stored", None
    mode = getattr(target, "mode", None)
    if not isinstance(mode, str) or mode.lower() not in _MODES:
        raise Refused(f"target: mode {mode!r} is none of as_stored, shard and full")
    parallelism = getattr(target, "parallelism", None)
    if parallelism is None and mode.lower() == "shard":
        raise Refused("target: a shard needs a parallelism")
    return mode.lower(), None if parallelism is None else axes_of(parallelism)


def tp_axis(axes: tuple[ParallelAxis, ...]) -> ParallelAxis | None:
    """The axis that cuts, if there is one."""
    return next((axis for axis in axes if axis.kind == "tp"), None)


def with_tp(axes: tuple[ParallelAxis, ...], rank: int, size: int, split_dim: int) -> tuple[ParallelAxis, ...]:
    """The same place but for the tensor-parallel coordinate."""
    own = {"rank": rank, "size": size, "split_dim": split_dim}
    return tuple(replace(axis, **own) if axis.kind == "tp" else axis for axis in axes)


def with_suffix(key: str | bytes, suffix: str) -> Any:
    """A key of the same type."""
    return key + suffix.encode() if isinstance(key, bytes) else key + suffix


def shard_key(key: str | bytes, axes: tuple[ParallelAxis, ...]) -> Any:
    """Name of the shard's object: the same for every order of the axes."""
    if len(axes) == 1 and axes[0].kind == "tp":
        return with_suffix(key, f"_tp_{axes[0].rank}")
    parts = []
    for axis in sorted(axes, key=lambda axis: _ORDER[axis.kind]):
        parts.append(f"__{axis.kind}_{axis.rank}of{axis.size}")
        for letter, value in (("sd", axis.split_dim), ("eid", axis.expert_id), ("sid", axis.stage_id)):
            if value is not None:
                parts.append(f"_{letter}{value}")
    return with_suffix(key, "".join(parts))


def writer_key(key: str | bytes, writer: Writer) -> Any:
    """Name of a writer's shard."""
    return with_suffix(key, f"__writer_{writer.rank}of{writer.size}_sd{writer.split_dim}")


def writer_manifest_key(key: str | bytes) -> Any:
    """Name of the manifest beside writers' shards."""
    return with_suffix(key, "__writer_manifest")


def parallelism_manifest_key(key: str | bytes) -> Any:
    """Name of the manifest beside tensor-parallel shards."""
    return with_suffix(key, "__parallelism_manifest")


def shard_range(shape: tuple[int, ...], rank: int, size: int, split_dim: int) -> tuple[int, int]:
    """Start and extent of a shard; Refused when the dimension is not there or cannot be cut evenly."""
    if split_dim >= len(shape):
        raise Refused(f"split_dim {split_dim} of a tensor of {len(shape)} dimensions")
    if shape[split_dim] % size:
        raise Refused(f"{shape[split_dim]} along dimension {split_dim} cannot be cut into {size} equal shards")
    extent = shape[split_dim] // size
    return rank * extent, extent


def shard_header(dtype: int, shape: tuple[int, ...], whole: tuple[int, ...], axes: tuple[ParallelAxis, ...]) -> Header:
    """Header of a shard at that place."""
    for axis in axes:
        if axis.split_dim is not None and axis.split_dim >= len(shape):
            raise Refused(f"split_dim {axis.split_dim} of a tensor of {len(shape)} dimensions")
    return Header(dtype, shape, whole, tuple(_encoded(axis, at, shape) for at, axis in enumerate(axes)), SHARD)


def is_at(header: Header, axes: tuple[ParallelAxis, ...]) -> bool:
    """Whether a stored shard is the one at that place; along its own dimension where the place names none."""
    own, axis = header.axis("tp"), tp_axis(axes)
    if own is not None and axis is not None and axis.split_dim is None:
        axes = with_tp(axes, axis.rank, axis.size, own.split_dim)
    wanted = {(axis.kind, axis.rank, axis.count, axis.split_dim, axis.member) for axis in header.axes}
    return header.kind == SHARD and wanted == {
        (axis.kind, axis.rank, axis.count, axis.split_dim, axis.member)
        for axis in (_encoded(axis, at, header.shape) for at, axis in enumerate(axes))
    }


def _encoded(axis: ParallelAxis, index: int, shape: tuple[int, ...]) -> Axis:
    split_dim = -1 if axis.split_dim is None else axis.split_dim
    extent = shape[split_dim] if 0 <= split_dim < len(shape) else 0
    member = {"ep": axis.expert_id, "pp": axis.stage_id}.get(axis.kind) or 0
    return Axis(_ORDER[axis.kind], index, axis.rank, axis.size, split_dim, member, extent)


def _axis(given: Any) -> ParallelAxis:
    values = [getattr(given, name, None) for name in ("rank", "size", "split_dim", "expert_id", "stage_id")]
    kind = getattr(given, "kind", None)
    if not isinstance(kind, str) or kind.lower() not in KINDS:
        raise Refused(f"axis: kind {kind!r} is none of {', '.join(KINDS)}")
    rank, size, split_dim, expert_id, stage_id = (_integer(value) for value in values)
    axis = ParallelAxis(kind.lower(), rank, size, split_dim, expert_id, stage_id)
    if rank is None or size is None or not 0 <= rank < size:
        raise Refused(f"{axis.kind} axis: rank {rank} of {size}: a rank is below its size, and not below 0")
    if size > MOST_PARTS:
        raise Refused(f"{axis.kind} axis: size {size}, at most {MOST_PARTS} are possible")
    if any(value is not None and value < 0 for value in (split_dim, expert_id, stage_id)):
        raise Refused(f"{axis.kind} axis: split_dim {split_dim}, expert_id {expert_id}, stage_id {stage_id}")
    needed = {"tp": ("split_dim", split_dim), "ep": ("expert_id", expert_id), "pp": ("stage_id", stage_id)}
    name, value = needed.get(axis.kind, ("", 0))
    if value is None:
        raise Refused(f"{axis.kind} axis: {name} is needed")
    if axis.kind != "tp" and split_dim is not None:
        raise Refused(f"{axis.kind} axis: only a tp axis has a split_dim")
    return axis


def _integer(value: Any) -> Any:
    if value is None:
        return None
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError(f"axis: {value!r} is not an integer") from None
    if not -_MOST <= number <= _MOST:
        raise Refused(f"axis: {number} does not fit into 32 bits")
    return number
