"""
Names of what is profiled: a model, `resnet50/cpu` (architecture, size); a workload, `resnet50/cpu/training/8` (role and
batch too).
"""

import re
from typing import NamedTuple

from smore.domain.errors import InvalidSpec
from smore.domain.quote import quoted

#: Degradation that is assumed between workloads without a profile, as a fraction: 1.0 = each takes twice as long.
CONSERVATIVE = 1.0

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_MODEL = re.compile(rf"{_WORD}/{_WORD}")
_WORKLOAD = re.compile(rf"{_WORD}/{_WORD}/(training|function)/[1-9][0-9]{{0,6}}")


class ProfiledBatch(NamedTuple):
    """A training at one batch: seconds of an iteration, those of it that wait for input, MiB of the device."""

    batch: int
    seconds: float
    input_wait_s: float
    memory_mib: float


def parse_model(value: object, field: str) -> str:
    """Raises InvalidSpec that names the field."""
    if not isinstance(value, str) or _MODEL.fullmatch(value) is None:
        raise InvalidSpec.at(field, f"{quoted(value)} is not of the form architecture/size, such as resnet50/cpu")
    return value


def parse_function(value: str, field: str) -> tuple[str, int]:
    """
    The model of a function workload, ``resnet50/cpu/function/8`` or ``resnet50/cpu``, and the batch that it names, 0 =
    none. Raises InvalidSpec.
    """
    model, named, batch = value.partition("/function/")
    if not named:
        return parse_model(value, field), 0
    if _WORKLOAD.fullmatch(value) is None:
        raise InvalidSpec.at(
            field, f"{quoted(value)} is not of the form model/size/function/batch, such as bert/cpu/function/1"
        )
    return model, int(batch)


def parse_training(value: object, field: str) -> str:
    """The name of a training workload. Raises InvalidSpec that names the field."""
    if not isinstance(value, str) or _WORKLOAD.fullmatch(value) is None or value.split("/")[2] != "training":
        raise InvalidSpec.at(
            field, f"{quoted(value)} is not of the form model/size/training/batch, such as resnet50/cpu/training/8"
        )
    return value
