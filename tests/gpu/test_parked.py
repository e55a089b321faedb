"""Weights between a CUDA device and pinned host memory."""

import torch

from worker.runner.weights import Weights
from zoo.bert import Function


def test_parking_gives_the_device_its_memory_back_and_changes_no_answer() -> None:
    handler = Function()
    handler.load("cuda")
    before = handler.predict(dict(handler.example))
    torch.cuda.synchronize()
    bytes_before = torch.cuda.memory_allocated()
    names = [name for name, _ in handler.module.named_parameters()]
    weights = Weights(handler.modules())
    size = sum(tensor.nbytes for tensor in weights._tensors())

    host_mib = weights.park()

    assert size / 2**20 <= host_mib < size / 2**20 + 1, "whole pages, and what lies between tensors"
    assert torch.cuda.memory_allocated() <= bytes_before - size
    assert all(tensor.is_pinned() for tensor in handler.module.parameters())
    assert weights.restore() > 0
    assert [name for name, _ in handler.module.named_parameters()] == names
    assert all(tensor.device.type == "cuda" for tensor in weights._tensors())
    after = handler.predict(dict(handler.example))
    assert all((before[name] == after[name]).all() for name in before)
