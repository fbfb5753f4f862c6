"""RpcInterface: tensors between processes."""

from __future__ import annotations

import asyncio

import pytest
from torch_here import torch

import mooncake.engine as engine

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def receiver():
    made = engine.RpcInterface()
    assert made.initialize_server("127.0.0.1:0")
    made.got = []
    made.set_tensor_receive_callback(made.got.append)
    assert made.start_server_async()
    made.address = f"127.0.0.1:{made.local_port}"
    yield made
    made.stop_server()


@pytest.fixture
def sender():
    made = engine.create_rpc_client()
    yield made
    made.stop_server()


def test_tensors_arrive_as_they_were_sent(receiver, sender):
    tensors = [
        torch.arange(24, dtype=torch.float32).reshape(2, 3, 4),
        torch.arange(12, dtype=torch.int64).reshape(3, 4).t(),
        torch.randn(5, 7).to(torch.bfloat16),
        torch.randn(5, 7).to(torch.float8_e4m3fn),
        torch.tensor(True),
        torch.empty(0, 3),
        torch.randn(3, requires_grad=True),
    ]
    for tensor in tensors:
        assert sender.send_tensor(receiver.address, tensor) == 0
    for tensor, got in zip(tensors, receiver.got, strict=True):
        assert (got.shape, got.dtype) == (list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        assert got.total_bytes == got.get_data_size() == len(got.get_data_as_bytes()) == tensor.nbytes
        same = got.to_tensor()
        assert same.dtype == tensor.dtype
        assert torch.equal(same.float(), tensor.detach().float())


def test_event_loops_send_tensors(receiver, sender):
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        sent = [sender.send_tensor_async(receiver.address, torch.full((size,), size), loop) for size in range(9)]
        return await asyncio.gather(*sent)

    assert asyncio.run(main()) == [0] * 9
    assert sorted(got.shape[0] for got in receiver.got) == list(range(9))


def test_what_is_no_tensor_is_a_type_error(receiver, sender):
    for wrong in ([1.0], b"bytes", None, torch.randn(2).to_sparse(), torch.zeros(2, dtype=torch.complex32)):
        with pytest.raises(TypeError):
            sender.send_tensor(receiver.address, wrong)
