"""
The long and the short LSTM (paper section VI-A, Eq. 8; assumptions A36 and A37), for many functions at once.

``Grouped``: each function has its own weights, as in the paper. They are trained together, all functions' cells in one
batched product; forecasts are computed function by function, compiled (``kernel.py``). It takes log1p of the counts,
scaled per function.
"""

import io
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ml.forecast import kernel
from ml.forecast.forecaster import Floats, chance, checked, column

#: Minutes in a forecast's input (assumption A37: 10).
WINDOW: Final = 10
HIDDEN: Final = 32
#: Windows of a function in one training step.
BATCH: Final = 64
#: Windows of a function in one epoch, drawn at random.
EPOCH: Final = 256


def saved(name: str, **state: object) -> bytes:
    buffer = io.BytesIO()
    torch.save({"forecaster": name, **state}, buffer)
    return buffer.getvalue()


def loaded(name: str, raw: bytes) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(raw), weights_only=True)
    except Exception as error:
        raise ValueError(f"not the bytes of a forecaster: {error}") from error
    if not isinstance(state, dict) or state.get("forecaster") != name:
        raise ValueError(f"not the bytes of {name!r}")
    return state


def _filled(counts: Floats) -> Floats:
    """Counts with each uncounted minute replaced by the minute before: an LSTM's input has no gaps."""
    filled = counts.copy()
    for minute in range(filled.shape[1]):
        missing = np.isnan(filled[:, minute])
        if missing.any():
            filled[missing, minute] = filled[missing, minute - 1] if minute else 0.0
    return filled


class Cells:
    """
    ``functions`` LSTMs of one layer with a linear head, each with its own weights: [F, B, n] of scaled counts to [F,
    B].
    """

    def __init__(self, functions: int, hidden: int = HIDDEN, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        bound = 1.0 / math.sqrt(hidden)

        def drawn(*shape: int) -> Tensor:
            # One draw for all functions, so that a forecast does not depend on a function's position.
            return (torch.rand(shape, generator=random) * 2 - 1).mul_(bound).expand(functions, *shape).clone()

        self.w_in, self.w_hidden, self.bias = drawn(1, 4 * hidden), drawn(hidden, 4 * hidden), drawn(1, 4 * hidden)
        self.w_out, self.b_out = drawn(hidden, 1), drawn(1, 1)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.w_in, self.w_hidden, self.bias, self.w_out, self.b_out]

    def rearranged(self, rows: Sequence[int], seed: int) -> "Cells":
        """Cells with the weights of these rows; -1 = new weights."""
        cells = Cells(len(rows), self.w_hidden.shape[1], seed)
        kept = [index for index, row in enumerate(rows) if row >= 0]
        for new_parameter, old_parameter in zip(cells.parameters, self.parameters, strict=True):
            new_parameter[kept] = old_parameter.detach()[[rows[index] for index in kept]]
        return cells

    def ahead(self, windows: Floats, horizon: int) -> Floats:
        """[F, n] of scaled counts to [F, horizon] of the following minutes, without gradients."""
        forecasts = np.zeros((len(windows), horizon), np.float32)
        w_in, w_hidden, bias, w_out, b_out = (parameter.detach().contiguous().numpy() for parameter in self.parameters)
        kernel.ahead(windows.astype(np.float32), w_in, w_hidden, bias, w_out, b_out, forecasts)
        return forecasts.astype(np.float64)

    def __call__(self, windows: Tensor) -> Tensor:
        functions, batch, length = windows.shape
        hidden = self.w_hidden.shape[1]
        state = windows.new_zeros(functions, batch, hidden)
        cell = windows.new_zeros(functions, batch, hidden)
        for step in range(length):
            gates = torch.baddbmm(
                torch.baddbmm(self.bias, windows[:, :, step : step + 1], self.w_in), state, self.w_hidden
            )
            input_gate, forget_gate, new_state, output_gate = gates.chunk(4, dim=2)
            cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(new_state)
            state = torch.sigmoid(output_gate) * torch.tanh(cell)
        return torch.baddbmm(self.b_out, state, self.w_out).squeeze(2)


class Grouped:
    """
    One LSTM per function, trained on the last ``span`` minutes: mean squared error of scaled log counts, Adam, early
    stopping for all functions together (assumption A36). A second fit continues from the weights of the first (``warm``
    epochs). Functions with a history of less than two windows get the mean of their last minutes.
    """

    name: ClassVar[str] = "lstm"

    def __init__(
        self,
        *,
        span: int,
        hidden: int = HIDDEN,
        epochs: int = 50,
        warm: int = 5,
        patience: int = 5,
        rate: float = 1e-2,
        seed: int = 0,
    ) -> None:
        self._knobs: dict[str, Any] = {
            "span": span,
            "hidden": hidden,
            "epochs": epochs,
            "warm": warm,
            "patience": patience,
            "rate": rate,
            "seed": seed,
        }
        self._cells: Cells | None = None
        self._mean = self._scale = np.zeros(0)
        self._last = np.zeros((0, WINDOW))

    def fit(self, counts: Floats) -> None:
        counts = checked(counts)[:, -self._knobs["span"] :]
        functions, length = counts.shape
        self._last = np.full((functions, WINDOW), np.nan)
        tail = counts[:, -WINDOW:]
        self._last[:, WINDOW - tail.shape[1] :] = tail
        if length < 2 * WINDOW:
            self._cells = None
            return
        logs = np.log1p(_filled(counts))
        self._mean, self._scale = logs.mean(axis=1), np.maximum(logs.std(axis=1), 1e-3)
        scaled = torch.from_numpy((logs - self._mean[:, None]) / self._scale[:, None]).float()
        fresh = self._cells is None or self._cells.w_in.shape[0] != functions
        if fresh:
            self._cells = Cells(functions, self._knobs["hidden"], self._knobs["seed"])
        self._train(scaled, self._knobs["epochs"] if fresh else self._knobs["warm"])

    def _train(self, scaled: Tensor, epochs: int) -> None:
        assert self._cells is not None
        windows = scaled.unfold(1, WINDOW + 1, 1)  # [F, W, n + 1]
        total = windows.shape[1]
        parameters = self._cells.parameters
        for parameter in parameters:
            parameter.requires_grad_(True)
        adam = torch.optim.Adam(parameters, lr=self._knobs["rate"])
        random = torch.Generator().manual_seed(self._knobs["seed"])
        best, waited = math.inf, 0
        for _ in range(epochs):
            order = torch.randperm(total, generator=random)[:EPOCH]
            loss_sum = 0.0
            for part in torch.split(order, BATCH):
                batch = windows[:, part]
                # Functions do not share weights: the sum over them gives each the gradient of its own error.
                loss = (
                    functional.mse_loss(self._cells(batch[:, :, :-1]), batch[:, :, -1], reduction="none")
                    .mean(dim=1)
                    .sum()
                )
                adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                adam.step()
                loss_sum += loss.item() * len(part)
            loss_mean = loss_sum / len(order)
            if loss_mean < best * 0.999:
                best, waited = loss_mean, 0
            else:
                waited += 1
                if waited >= self._knobs["patience"]:
                    break
        for parameter in parameters:
            parameter.requires_grad_(False)

    def rearrange(self, rows: Sequence[int]) -> None:
        """
        Prepare a fit of other functions: row i takes the weights of row ``rows[i]`` of the last fit; -1 = a new
        function.
        """
        if self._cells is None:
            return
        if any(row >= 0 for row in rows):
            self._cells = self._cells.rearranged(rows, self._knobs["seed"])
        else:
            self._cells = None

    def update(self, counts: Floats) -> None:
        self._last = np.concatenate([self._last[:, 1:], column(counts, len(self._last))], axis=1)

    def forecast(self, horizon: int = 1) -> tuple[Floats, Floats]:
        """``mean`` and ``any`` [F, horizon]. Minutes after the first use the forecast of the minute before as input."""
        counted = np.isfinite(self._last)
        mean = np.where(
            counted.any(axis=1),
            np.where(counted, self._last, 0).sum(axis=1) / np.maximum(1, counted.sum(axis=1)),
            np.nan,
        )
        if self._cells is None:
            forecasts = np.repeat(mean[:, None], horizon, axis=1)
            return forecasts, chance(forecasts)
        scaled = (np.log1p(_filled(self._last)) - self._mean[:, None]) / self._scale[:, None]
        logs = self._cells.ahead(scaled, horizon) * self._scale[:, None] + self._mean[:, None]
        forecasts = np.expm1(np.clip(logs, 0.0, 20.0))
        forecasts[~counted.any(axis=1)] = np.nan
        return forecasts, chance(forecasts)

    def dumps(self) -> bytes:
        weights = None if self._cells is None else [parameter.contiguous() for parameter in self._cells.parameters]
        return saved(
            self.name,
            knobs=self._knobs,
            weights=weights,
            mean=torch.from_numpy(self._mean),
            scale=torch.from_numpy(self._scale),
            last=torch.from_numpy(self._last),
        )

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        state = loaded(cls.name, raw)
        forecaster = cls(**state["knobs"])
        forecaster._mean, forecaster._scale, forecaster._last = (
            state["mean"].numpy(),
            state["scale"].numpy(),
            state["last"].numpy(),
        )
        if state["weights"] is not None:
            forecaster._cells = cells = Cells(len(forecaster._last), forecaster._knobs["hidden"])
            cells.w_in, cells.w_hidden, cells.bias, cells.w_out, cells.b_out = state["weights"]
        return forecaster


class LongShort:
    """
    LS-LSTM: ``alpha`` times the long model's forecast plus 1 - ``alpha`` times the short model's (Eq. 8). The long
    model is fitted on the last day, the short one on the last hour. To fit them at different intervals (assumption
    A36), fit :attr:`long` and :attr:`short` separately.
    """

    name: ClassVar[str] = "ls-lstm"

    def __init__(
        self, *, alpha: float = 0.5, long_span: int = 1440, short_span: int = 60, epochs: int = 50, seed: int = 0
    ) -> None:
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha is {alpha}, expected a number in 0..1")
        self.alpha = alpha
        self.long = Grouped(span=long_span, epochs=epochs, seed=seed)
        self.short = Grouped(span=short_span, epochs=epochs, seed=seed)

    def fit(self, counts: Floats) -> None:
        self.long.fit(counts)
        self.short.fit(counts)

    def rearrange(self, rows: Sequence[int]) -> None:
        """See :meth:`Grouped.rearrange`."""
        self.long.rearrange(rows)
        self.short.rearrange(rows)

    def update(self, counts: Floats) -> None:
        self.long.update(counts)
        self.short.update(counts)

    def forecast(self, horizon: int = 1) -> tuple[Floats, Floats]:
        mean = self.alpha * self.long.forecast(horizon)[0] + (1 - self.alpha) * self.short.forecast(horizon)[0]
        return mean, chance(mean)

    def dumps(self) -> bytes:
        return saved(self.name, alpha=self.alpha, long=self.long.dumps(), short=self.short.dumps())

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        state = loaded(cls.name, raw)
        forecaster = cls(alpha=state["alpha"])
        forecaster.long, forecaster.short = Grouped.loads(state["long"]), Grouped.loads(state["short"])
        return forecaster
