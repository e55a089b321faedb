"""Functions of ``lab.bench.tensors`` and the dashboard; ``lab.bench.functions`` has those whose importers are without numpy."""

import time
from typing import Any, ClassVar

import numpy as np

from smore.handler import Handler


class ChannelMeans(Handler):
    """
    FP32 ``image`` [n, 3, 224, 224] to ``mean`` [n, 3]: almost no computation, so the transport of the
    tensor is its cost.
    """

    example: ClassVar = {"image": np.zeros((1, 3, 224, 224), np.float32)}

    def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"mean": inputs["image"].mean(axis=(2, 3))}


class Doubled(Handler):
    """FP32 ``x`` [n, 2] to twice as much."""

    example: ClassVar = {"x": np.array([[1, 2]], np.float32)}

    def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"x": 2 * inputs["x"]}


class Sleeps(Handler):
    """JSON: takes as many seconds as it is asked for."""

    example: ClassVar = {"s": 0.5}

    def predict(self, inputs: list[Any]) -> list[Any]:
        time.sleep(max(item["s"] for item in inputs))
        return inputs
