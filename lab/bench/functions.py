"""
The functions under load, for both sides: the same networks run in SMore's runners and in the peer's worker.

torch is imported where a network is built, so that a process which only echoes does not pay for it. ``python -m
lab.bench.functions`` prints what they cost with no platform around them.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from smore.handler import Handler

#: A network ready to run: a list of input values (one for each row) to one number for each row.
Network = Callable[[list[float]], list[float]]


def build_conv() -> Network:
    """
    Four convolutions over 1x3x224x224, about 2.7 ms on one core. Seeded weights; the input is built from its value
    here.
    """
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels, filters in ((3, 32), (32, 96), (96, 128), (128, 192)):
        layers += [nn.Conv2d(channels, filters, kernel_size=3, stride=2, padding=1), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 10)).eval()

    def run(values: list[float]) -> list[float]:
        with torch.inference_mode():
            rows = torch.tensor(values).reshape(-1, 1, 1, 1).expand(-1, 3, 224, 224).contiguous()
            outputs: list[float] = network(rows)[:, 0].tolist()
            return outputs

    return run


def build_mlp() -> Network:
    """
    Five Linear(2048) and a head, about 4 ms for one row and 9 ms for eight: reading the weights is the cost, as on a
    GPU.
    """
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Linear(2048, 2048), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(2048, 10)).eval()

    def run(values: list[float]) -> list[float]:
        with torch.inference_mode():
            rows = torch.tensor(values).reshape(-1, 1).expand(-1, 2048).contiguous()
            outputs: list[float] = network(rows)[:, 0].tolist()
            return outputs

    return run


class Echo(Handler):
    example: ClassVar[Any] = {"x": [1, 2, 3, 4, 5, 6, 7, 8], "id": "abc"}

    def predict(self, inputs: Any) -> Any:
        return inputs


class Mirror(Handler):
    """Tensors of three kinds, returned unchanged: the test is of the gateway, not of the function."""

    example: ClassVar[Any] = {
        "numbers": np.zeros((1, 2), np.float32),
        "counts": np.zeros((1, 1), np.int64),
        "texts": np.array([[b"a"]], object),
    }

    def predict(self, inputs: Any) -> Any:
        return inputs


#: Seconds; the paper reports cold starts of 0.6 to 5.2 s.
LOAD_S = 1.5


class Slow(Echo):
    """Loads for :data:`LOAD_S` seconds and computes nothing: the benchmark measures when it is loaded."""

    def load(self, device: str) -> None:  # noqa: ARG002 - it has no weights
        time.sleep(LOAD_S)


class _Value(Handler):
    """A network whose input is ``{"v": number}``: the benchmark measures the platform, not the transport of tensors."""

    example: ClassVar[Any] = {"v": 0.5}
    _network: Network

    def predict(self, inputs: Any) -> Any:
        return [{"y": y} for y in self._network([given["v"] for given in inputs])]


class Conv(_Value):
    def load(self, device: str) -> None:  # noqa: ARG002 - on one core by design
        self._network = build_conv()


class Mlp(_Value):
    def load(self, device: str) -> None:  # noqa: ARG002 - on one core by design
        self._network = build_mlp()


def _in_a_child(measure: Callable[[], float]) -> float:
    """
    What ``measure`` returns in a fresh fork of this process, in which nothing is warm, as in a runner just forked.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, repr(measure()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        value = float(answer.read())
    os.waitpid(child, 0)
    return value


def _deepfm_load_s() -> float:
    # As long as the platform's cold starts are apart: a virtual machine takes back memory that lies free, and hands it
    # out slowly again.
    time.sleep(2.0)
    began = time.perf_counter()
    from zoo.deepfm import Function

    handler = Function()
    handler.load("cpu")
    handler.predict(dict(handler.example))
    return time.perf_counter() - began


def bare() -> dict[str, float]:
    """
    The networks in this process with no platform around them.

    ``conv_ms``: median run of conv, milliseconds. ``deepfm_load_s``: loading the zoo's DeepFM and its first run,
    seconds, in a fork of a process that has torch.
    """
    import torch

    torch.set_num_threads(1)
    loads = [_in_a_child(_deepfm_load_s) for _ in range(3)]
    network = build_conv()
    runs = []
    for _ in range(200):
        began = time.perf_counter()
        network([0.5])
        runs.append(time.perf_counter() - began)
    return {"conv_ms": statistics.median(runs) * 1e3, "deepfm_load_s": statistics.median(loads)}


if __name__ == "__main__":
    print(json.dumps(bare()))
