"""Which tensors are stored from where they are."""

from __future__ import annotations

import pytest

from mooncake.store._tensor_memory import _in_reach


@pytest.mark.parametrize(
    ("device", "cuda", "in_reach"),
    [
        ("cpu", None, True),
        ("cpu", "12.8", True),
        ("cuda", "12.8", True),
        # torch for ROCm: its device is called cuda, and the driver is another.
        ("cuda", None, False),
        ("xpu", None, False),
        ("mps", None, False),
    ],
)
def test_only_memory_of_the_host_and_of_cuda_is_used_in_place(device, cuda, in_reach):
    assert _in_reach(device, cuda) is in_reach
