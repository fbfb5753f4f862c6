"""Tensors that the ranks of a group have in common."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch_here import torch

from mooncake.shared_segment import SharedSegmentError, create_shared_segment, shared_segment_supported

pytestmark = pytest.mark.timeout(120)

RANK = """
import sys
import torch
import torch.distributed as dist
from mooncake.shared_segment import SharedSegmentError, create_shared_segment

rank, shared = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{shared}", rank=rank, world_size=2)
blocks = {"k": dict(count=3, shape=(5, 7), dtype=torch.bfloat16), "v": dict(count=2, shape=(2000,), dtype=torch.int64)}
segment = create_shared_segment("kv", blocks, 2, rank, owner_rank=1, comm_group=dist.group.WORLD)
for number, tensor in enumerate(segment.tensors("k") + segment.tensors("v")):
    if rank == number % 2:
        tensor.fill_(number + 1)
dist.barrier()
for number, tensor in enumerate(segment.tensors("k") + segment.tensors("v")):
    assert (tensor == number + 1).all(), (rank, number)
dist.barrier()
try:
    blocks = {"k": dict(count=rank + 1, shape=(1,), dtype=torch.int8)}
    create_shared_segment("kv", blocks, 2, rank, tp_group=dist.group.WORLD)
    raise SystemExit("ranks that disagree got a segment")
except SharedSegmentError as error:
    assert "another segment" in str(error), error
dist.barrier()
"""


def test_ranks_write_and_read_the_same_tensors(tmp_path):
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meet")], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=100)
        assert rank.returncode == 0, errors


def test_tensors_of_a_rank_alone_outlive_its_handle():
    blocks = {
        "a": {"count": 2, "shape": (3, 4), "dtype": torch.float32},
        "b": {"count": 1, "shape": (1,), "dtype": torch.int8},
    }
    segment = create_shared_segment("alone", blocks, 1, 0)
    assert segment.total_size() >= 3 * 4096
    first, second = segment.tensors("a")
    assert first.shape == (3, 4)
    assert first.data_ptr() % 4096 == 0
    assert segment.base_addr() <= first.data_ptr() < second.data_ptr()
    with pytest.raises(SharedSegmentError, match="no block 'c'"):
        segment.tensors("c")
    del segment
    first.fill_(2)
    second.fill_(3)
    assert first.sum() == 24
    assert second.sum() == 36


@pytest.mark.parametrize(
    ("blocks", "options"),
    [
        ({}, {}),
        ({"a": {"count": 0, "shape": (1,), "dtype": torch.int8}}, {}),
        ({"a": {"count": 1, "shape": (), "dtype": torch.int8}}, {}),
        ({"a": {"count": 1.5, "shape": (1,), "dtype": torch.int8}}, {}),
        ({"a": {"count": "1", "shape": (1,), "dtype": torch.int8}}, {}),
        ({"a": {"count": 1, "shape": (2.5,), "dtype": torch.int8}}, {}),
        ({"a": {"count": 1, "shape": (0,), "dtype": torch.int8}}, {}),
        ({"a": {"count": 1, "shape": (1,), "dtype": "int8"}}, {}),
        ({"a": {"count": 1, "shape": (1,)}}, {}),
        ({"a": {"count": 1, "shape": (1,), "dtype": torch.int8}}, {"mmap": False}),
        ({"a": {"count": 1, "shape": (1,), "dtype": torch.int8}}, {"host_register": True}),
        ({"a": {"count": 1, "shape": (1,), "dtype": torch.int8}}, {"comm_group": 1, "tp_group": 2}),
    ],
)
def test_what_is_no_segment_is_refused(blocks, options):
    with pytest.raises(SharedSegmentError):
        create_shared_segment("wrong", blocks, 1, 0, **options)
    assert shared_segment_supported()
