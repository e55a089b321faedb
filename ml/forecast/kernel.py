"""
The forward pass of many small LSTMs, compiled. It computes one function after the other, so that each function's
weights are read from memory once.

A batched product reads all weights in each minute of a window (164 MB a minute for 10,000 functions of 32 units) and
makes one call per minute; here a function's 17 kB stay in the first-level cache for the whole window.
"""

from typing import Any, Final, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Singles = NDArray[np.float32]

_F = TypeVar("_F")


def compiled(function: _F) -> _F:
    """
    Compile at the first call in an installation. Sums may be reordered (fastmath), so no value may be infinite or NaN.
    """
    make: Any = njit(cache=True, nogil=True, error_model="numpy", fastmath=True)
    return cast("_F", make(function))


#: Argument from which tanh is constant: it is nearer to one than float32 resolves in a gate.
FAR: Final = np.float32(7.0)
HALF: Final = np.float32(0.5)


@compiled
def tanh(x: np.float32) -> np.float32:
    """
    Lambert's continued fraction with nine terms: within 2e-5 everywhere, and without a call, so that the compiler
    computes eight values at a time.
    """
    x = min(max(x, -FAR), FAR)
    y = x * x
    above = np.float32(34459425) + y * (np.float32(4729725) + y * (np.float32(135135) + y * (np.float32(990) + y)))
    below = np.float32(34459425) + y * (
        np.float32(16216200) + y * (np.float32(945945) + y * (np.float32(13860) + y * np.float32(45)))
    )
    return x * above / below


@compiled
def ahead(
    windows: Singles,
    w_in: Singles,
    w_hidden: Singles,
    bias: Singles,
    w_out: Singles,
    b_out: Singles,
    forecasts: Singles,
) -> None:
    """
    Write into ``forecasts`` [F, H] the output of each function's LSTM for the minutes after its window. ``windows`` [F,
    n], ``w_in`` and ``bias`` [F, 1, 4 h], ``w_hidden`` [F, h, 4 h], ``w_out`` [F, h, 1], ``b_out`` [F, 1, 1]; gates in
    the order input, forget, new, output.

    Minutes after the first continue from the state, with the previous output as input.
    """
    functions, length = windows.shape
    hidden, horizon = w_hidden.shape[1], forecasts.shape[1]
    gates, state, cell = np.empty(4 * hidden, np.float32), np.empty(hidden, np.float32), np.empty(hidden, np.float32)
    for function in range(functions):
        state[:] = np.float32(0.0)
        cell[:] = np.float32(0.0)
        now = np.float32(0.0)
        for step in range(length + horizon - 1):
            if step < length:
                now = windows[function, step]
            for gate in range(4 * hidden):
                gates[gate] = bias[function, 0, gate] + now * w_in[function, 0, gate]
            if step > 0:
                for unit in range(hidden):
                    value = state[unit]
                    for gate in range(4 * hidden):
                        gates[gate] += value * w_hidden[function, unit, gate]
            # The logistic function is a tanh of half its argument.
            for gate in range(2 * hidden):
                gates[gate] = HALF + HALF * tanh(HALF * gates[gate])
            for gate in range(2 * hidden, 3 * hidden):
                gates[gate] = tanh(gates[gate])
            for gate in range(3 * hidden, 4 * hidden):
                gates[gate] = HALF + HALF * tanh(HALF * gates[gate])
            for unit in range(hidden):
                cell[unit] = gates[hidden + unit] * cell[unit] + gates[unit] * gates[2 * hidden + unit]
                state[unit] = gates[3 * hidden + unit] * tanh(cell[unit])
            if step >= length - 1:
                now = b_out[function, 0, 0]
                for unit in range(hidden):
                    now += state[unit] * w_out[function, unit, 0]
                forecasts[function, step - length + 1] = now
