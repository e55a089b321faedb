"""Functions for the tests of the whole platform."""

import time
from typing import Any, ClassVar

import numpy as np

from smore.handler import Handler

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


class Mirror(Handler):
    """One tensor of every datatype, two axes, answered as they came; ``sum`` besides: the sums of FP32's rows."""

    example: ClassVar = {
        name.upper(): np.ones((1, 2), dtype)
        for name, dtype in (
            ("bool", np.bool_),
            ("uint8", np.uint8),
            ("int8", np.int8),
            ("uint16", np.uint16),
            ("int16", np.int16),
            ("fp16", np.float16),
            ("uint32", np.uint32),
            ("int32", np.int32),
            ("fp32", np.float32),
            ("uint64", np.uint64),
            ("int64", np.int64),
            ("fp64", np.float64),
        )
    } | {"BYTES": np.array([[b"a", b""]], object)}

    def predict(self, inputs: Arrays) -> Arrays:
        return inputs | {"sum": inputs["FP32"].sum(axis=1, keepdims=True)}


class Broken(Handler):
    """Never passes its first run."""

    example: ClassVar = {"x": np.zeros((1, 1), np.float32)}

    def predict(self, inputs: Arrays) -> Arrays:
        raise RuntimeError("it does not work")


class Slow(Handler):
    """As many seconds as the largest of its rows says."""

    example: ClassVar = {"s": np.zeros((1, 1), np.float32)}

    def predict(self, inputs: Arrays) -> Arrays:
        time.sleep(float(inputs["s"].max()))
        return inputs
