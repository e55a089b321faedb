"""
The long and the short LSTM (paper section VI-A, Eq. 8; assumptions A36 and A37), for many functions at once.

``Grouped``: each function has its own weights, as in the paper. They are trained together, all functions' cells in one
batched product; forecasts are computed function by function, compiled (``kernel.py``). ``Shared``: one network for all
functions, which carries a state per function from minute to minute and gives a distribution (chance of a request,
mean). Both take log1p of the counts, scaled per function.
"""

import io
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from torch import Tensor, nn
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


def _saved(name: str, **state: object) -> bytes:
    buffer = io.BytesIO()
    torch.save({"forecaster": name, **state}, buffer)
    return buffer.getvalue()


def _loaded(name: str, raw: bytes) -> dict[str, Any]:
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
        return _saved(
            self.name,
            knobs=self._knobs,
            weights=weights,
            mean=torch.from_numpy(self._mean),
            scale=torch.from_numpy(self._scale),
            last=torch.from_numpy(self._last),
        )

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        state = _loaded(cls.name, raw)
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
        return _saved(self.name, alpha=self.alpha, long=self.long.dumps(), short=self.short.dumps())

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        state = _loaded(cls.name, raw)
        forecaster = cls(alpha=state["alpha"])
        forecaster.long, forecaster.short = Grouped.loads(state["long"]), Grouped.loads(state["short"])
        return forecaster


class _Network(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def forward(self, minutes: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """
        [F, T, inputs] to [F, T, 2] (log odds of a request in the next minute, its size in deviations), and the state.
        """
        hidden, state = self.lstm(minutes, state)
        return self.head(hidden), state


class Shared:
    """
    One network for all functions, with a state for each. A minute's size is given as the distance from the function's
    own level (a running mean of the log counts of its minutes with requests) in its own deviations, so that one network
    serves rates of all orders of magnitude. Further inputs: whether there was a request, the ages of the last ones,
    their frequency, the level and the minute of the hour. Trained on sequences of ``stretch`` minutes with the state
    carried over: cross-entropy of "any request", plus the squared error of the size in minutes with requests.
    """

    name: ClassVar[str] = "shared-lstm"
    INPUTS: Final = 10
    #: Weight of the newest minute in running means; least deviation of log counts.
    WEIGHT: Final = 0.02
    LEAST: Final = 0.1

    def __init__(
        self,
        *,
        hidden: int = HIDDEN,
        epochs: int = 150,
        warm: int = 5,
        stretch: int = 20,
        rate: float = 1e-2,
        patience: int = 20,
        seed: int = 0,
    ) -> None:
        self._knobs: dict[str, Any] = {
            "hidden": hidden,
            "epochs": epochs,
            "warm": warm,
            "stretch": stretch,
            "rate": rate,
            "patience": patience,
            "seed": seed,
        }
        self._network: _Network | None = None
        self._state: tuple[Tensor, Tensor] | None = None
        self._minute = 0
        self._rate = np.zeros(0)
        self._level = np.zeros(0)
        self._deviation = np.zeros(0)
        #: Number of minutes with requests so far [F].
        self._seen = np.zeros(0)
        #: Minutes since the last three minutes with requests, [F, 3].
        self._ages = np.zeros((0, 3))
        self._ahead = torch.zeros(0, 2)

    def _inputs(self, counts: Floats, first: int) -> tuple[Tensor, Floats, Floats]:
        """
        [F, T, INPUTS], and level and deviation [F, T] after each minute. Advances the running statistics of each
        function.
        """
        functions, length = counts.shape
        inputs = np.zeros((functions, length, self.INPUTS), np.float32)
        levels, deviations = np.zeros((functions, length)), np.zeros((functions, length))
        for index in range(length):
            now = counts[:, index]
            active = now > 0
            logs = np.log1p(now[active])
            # The level is the mean of the first minutes with requests, until 1 / n falls to the newest minute's weight.
            self._seen[active] += 1
            weight = np.maximum(self.WEIGHT, 1.0 / self._seen[active])
            away = logs - self._level[active]
            self._level[active] += weight * away
            self._deviation[active] += weight * (np.abs(away) - self._deviation[active])
            self._ages += 1
            self._ages[active] = np.concatenate([np.zeros((int(active.sum()), 1)), self._ages[active, :2]], axis=1)
            self._rate += self.WEIGHT * (active - self._rate)
            angle = 2 * math.pi * ((first + index) % 60) / 60
            levels[:, index], deviations[:, index] = self._level, np.maximum(self._deviation, self.LEAST)
            inputs[active, index, 0] = np.clip((logs - levels[active, index]) / deviations[active, index], -5.0, 5.0)
            inputs[:, index, 1] = active
            inputs[:, index, 2:5] = np.log1p(np.minimum(self._ages, 1440)) / 4
            inputs[:, index, 5] = self._rate
            inputs[:, index, 6], inputs[:, index, 7] = math.sin(angle), math.cos(angle)
            inputs[:, index, 8], inputs[:, index, 9] = self._level / 4, self._deviation
        return torch.from_numpy(inputs), levels, deviations

    def fit(self, counts: Floats) -> None:
        counts = checked(counts)
        functions, length = counts.shape
        fresh = self._network is None or len(self._rate) != functions
        self._rate, self._level, self._deviation, self._seen = np.zeros((4, functions))
        self._ages = np.full((functions, 3), 1440.0)
        self._minute = 0
        inputs, levels, deviations = self._inputs(counts, 0)
        if fresh:
            with torch.random.fork_rng():
                torch.manual_seed(self._knobs["seed"])
                self._network = _Network(self.INPUTS, self._knobs["hidden"])
        assert self._network is not None
        arrived = torch.from_numpy(np.nan_to_num(counts) > 0).float()
        # The size of the next minute, by the level and deviation before it.
        sizes = np.zeros_like(levels)
        sizes[:, 1:] = np.clip(
            (np.log1p(np.nan_to_num(counts[:, 1:])) - levels[:, :-1]) / deviations[:, :-1], -5.0, 5.0
        )
        counted = torch.from_numpy(np.isfinite(counts)).float()
        if length >= 2 * WINDOW:
            epochs = self._knobs["epochs"] if fresh else self._knobs["warm"]
            self._train(self._network, inputs, arrived, torch.from_numpy(sizes).float(), counted, epochs)
        self._minute = length
        with torch.no_grad():
            ahead, self._state = self._network(inputs, None)
        self._ahead = ahead[:, -1] if length else torch.full((functions, 2), math.nan)

    def _train(
        self, network: _Network, inputs: Tensor, arrived: Tensor, sizes: Tensor, counted: Tensor, epochs: int
    ) -> None:
        adam = torch.optim.Adam(network.parameters(), lr=self._knobs["rate"])
        length = inputs.shape[1]
        best, waited = math.inf, 0
        for _ in range(epochs):
            state: tuple[Tensor, Tensor] | None = None
            total = 0.0
            for begin in range(0, length - 1, self._knobs["stretch"]):
                end = min(begin + self._knobs["stretch"], length - 1)
                ahead, state = network(inputs[:, begin:end], state)
                state = (state[0].detach(), state[1].detach())
                weights, target = counted[:, begin + 1 : end + 1], arrived[:, begin + 1 : end + 1]
                odds = functional.binary_cross_entropy_with_logits(ahead[..., 0], target, reduction="none")
                size = (ahead[..., 1] - sizes[:, begin + 1 : end + 1]) ** 2 * target
                loss = ((odds + 0.1 * size) * weights).sum() / weights.sum().clamp_min(1.0)
                adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                adam.step()
                total += loss.item() * (end - begin)
            if total < best * 0.999:
                best, waited = total, 0
            else:
                waited += 1
                if waited >= self._knobs["patience"]:
                    break

    def update(self, counts: Floats) -> None:
        if self._network is None:
            raise ValueError("the forecaster has not been fitted")
        inputs, _, _ = self._inputs(column(counts, len(self._rate)), self._minute)
        self._minute += 1
        with torch.no_grad():
            ahead, self._state = self._network(inputs, self._state)
        self._ahead = ahead[:, -1]

    def forecast(self, horizon: int = 1) -> tuple[Floats, Floats]:
        """``mean`` and ``any`` [F, horizon]: the next minute, repeated."""
        any_ = torch.sigmoid(self._ahead[:, 0]).double().numpy()
        logs = self._level + np.maximum(self._deviation, self.LEAST) * self._ahead[:, 1].double().numpy()
        mean = any_ * np.maximum(1.0, np.expm1(np.clip(logs, 0.0, 20.0)))
        return np.repeat(mean[:, None], horizon, axis=1), np.repeat(any_[:, None], horizon, axis=1)

    def dumps(self) -> bytes:
        if self._network is None or self._state is None:
            raise ValueError("the forecaster has not been fitted")
        numbers = {
            "rate": self._rate,
            "level": self._level,
            "deviation": self._deviation,
            "seen": self._seen,
            "ages": self._ages,
        }
        return _saved(
            self.name,
            knobs=self._knobs,
            network=self._network.state_dict(),
            state=list(self._state),
            ahead=self._ahead,
            minute=self._minute,
            **{name: torch.from_numpy(value) for name, value in numbers.items()},
        )

    @classmethod
    def loads(cls, raw: bytes) -> Self:
        stored = _loaded(cls.name, raw)
        forecaster = cls(**stored["knobs"])
        forecaster._network = _Network(cls.INPUTS, forecaster._knobs["hidden"])
        forecaster._network.load_state_dict(stored["network"])
        forecaster._state = (stored["state"][0], stored["state"][1])
        forecaster._ahead, forecaster._minute = stored["ahead"], stored["minute"]
        for name in ("rate", "level", "deviation", "seen", "ages"):
            setattr(forecaster, f"_{name}", stored[name].numpy())
        return forecaster
