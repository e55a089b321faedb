"""
A device's counter of utilisation, as profilers and monitors of a simulated world read it.

It is no instrument for demand: each workload is read wrong by a factor of its own, the same in every reading of a run,
and in steps of one per cent.
"""

from functools import cache
from typing import Final
from zlib import crc32

import numpy as np

#: Deviation of a reading from the demand, in log space. Fitted: lab/simulation/profiler.py says to what.
COUNTER_SD: Final = 0.4
#: The smallest step of a reading, and the least that is read.
RESOLUTION: Final = 0.01


@cache
def read(role: str, model: str, batch: int, demands: tuple[float, ...], seed: int) -> tuple[float, ...]:
    """The readings of a workload's demands (of SMs, of memory bandwidth), fractions."""
    random = np.random.default_rng([seed, 7, crc32(f"{role}/{model}/{batch}".encode())])
    wrong = np.exp(COUNTER_SD * random.standard_normal(len(demands)))
    steps = np.round(np.array(demands) * wrong / RESOLUTION)
    return tuple(float(min(1.0, RESOLUTION * max(1.0, step))) for step in steps)
