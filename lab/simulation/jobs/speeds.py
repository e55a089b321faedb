"""
How fast a training is by its number of GPUs, for settings that choose it. Each GPU keeps its batch, so n GPUs do n
batches in an iteration, and a batch counts the same however many are done at a time: nothing is lost to large batches.

Muri's authors measured the iteration times of eight models on 1 to 32 GPUs. Two assumptions stand beside them: a model that
they did not measure scales as the mean of their eight, and on a number in between an iteration takes what lies on a
straight line between its neighbours (on more than 32, what it takes on 32). The numbers that can be chosen are measured.
Pollux's authors run one of their applications on one GPU alone, and so it is here.
"""

from bisect import bisect_left
from collections.abc import Mapping
from statistics import fmean
from typing import Final

#: Numbers of GPUs, and what an iteration takes on each by model, ms: the column ``iteration_time`` of Muri's traces.
NUMBERS: Final = (1, 2, 4, 8, 16, 32)
ITERATION_MS: Final[Mapping[str, tuple[float, ...]]] = {
    "a2c": (517, 525, 533, 555, 567, 585),
    "bert": (178, 195, 190, 192, 244, 260),
    "dqn": (490, 495, 505, 509, 525, 546),
    "gpt2": (426, 464, 433, 437, 491, 514),
    "resnet18": (779, 881, 921, 1010, 1055, 1059),
    "shufflenet_v2_x1_0": (798, 850, 886, 957, 1006, 1019),
    "vgg16": (107, 191, 201, 214, 332, 336),
    "vgg19": (109, 205, 212, 226, 302, 356),
}
#: Applications whose number is never changed.
FIXED: Final = ("ncf",)


def speeds(model: str, asked: int) -> dict[int, float]:
    """
    By number of GPUs, how many times as fast a training is as on the number that it asks for; empty = it runs on that
    number alone.
    """
    if model in FIXED:
        return {}
    there = _batches(model, asked)
    return {number: _batches(model, number) / there for number in NUMBERS}


def _batches(model: str, number: int) -> float:
    """That ``number`` GPUs do in the time that one needs for one."""
    if model in ITERATION_MS:
        return number * _kept(ITERATION_MS[model], number)
    return number * fmean(_kept(times, number) for times in ITERATION_MS.values())


def _kept(times: tuple[float, ...], number: int) -> float:
    """The part of the speed of one GPU that each of ``number`` has."""
    place = bisect_left(NUMBERS, number)
    if place == len(NUMBERS):
        return times[0] / times[-1]
    if NUMBERS[place] == number:
        return times[0] / times[place]
    low, high = NUMBERS[place - 1], NUMBERS[place]
    part = (number - low) / (high - low)
    return times[0] / (times[place - 1] + part * (times[place] - times[place - 1]))
