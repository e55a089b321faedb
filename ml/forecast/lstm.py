"""
The long and the short LSTM (paper section VI-A, Eq. 8; assumptions A36, A37), for many functions at once.

``Grouped``: each function has weights of its own, as in the paper. They are trained together, all functions' cells in
one batched product; forecasts are made function by function, compiled (``kernel.py``). ``Shared``: one network for all,
which carries a state per function from minute to minute and says a distribution (chance of a request, mean). Both see
log1p of the counts, scaled per function.
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

#: Minutes that a forecast is made from (A37).
WINDOW: Final = 10
HIDDEN: Final = 32
#: Windows of a function in one step of training.
BATCH: Final = 64
#: Windows of a function in an epoch: the newest ones and a draw of the others.
EPOCH: Final = 256


def _saved(name: str, **state: object) -> bytes:
    buffer = io.BytesIO()
    torch.save({"forecaster": name, **state}, buffer)
    return buffer.getvalue()


def _loaded(name: str, raw: bytes) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(raw), weights_only=True)
    except Exception as error:
        raise ValueError(f"no forecaster: {error}") from error
    if not isinstance(state, dict) or state.get("forecaster") != name:
        raise ValueError(f"no bytes of {name!r}")
    return state


def _filled(counts: Floats) -> Floats:
    """Minutes that nobody counted as the one before: an LSTM knows no gaps."""
    found = counts.copy()
    for minute in range(found.shape[1]):
        missing = np.isnan(found[:, minute])
        if missing.any():
            found[missing, minute] = found[missing, minute - 1] if minute else 0.0
    return found


class Cells:
    """
    ``functions`` LSTMs of one layer and a linear head, each with its own weights: [F, B, n] of scaled counts → [F, B].
    """

    def __init__(self, functions: int, hidden: int = HIDDEN, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        bound = 1.0 / math.sqrt(hidden)

        def made(*shape: int) -> Tensor:
            # One draw for all functions: a function's forecast does not depend on its place among them.
            return (torch.rand(shape, generator=random) * 2 - 1).mul_(bound).expand(functions, *shape).clone()

        self.w_in, self.w_hidden, self.bias = made(1, 4 * hidden), made(hidden, 4 * hidden), made(1, 4 * hidden)
        self.w_out, self.b_out = made(hidden, 1), made(1, 1)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.w_in, self.w_hidden, self.bias, self.w_out, self.b_out]

    def rearranged(self, rows: Sequence[int], seed: int) -> "Cells":
        """Those of these rows; -1: new ones."""
        made = Cells(len(rows), self.w_hidden.shape[1], seed)
        kept = [place for place, row in enumerate(rows) if row >= 0]
        for mine, theirs in zip(made.parameters, self.parameters, strict=True):
            mine[kept] = theirs.detach()[[rows[place] for place in kept]]
        return made

    def ahead(self, windows: Floats, horizon: int) -> Floats:
        """[F, n] of scaled counts → [F, horizon]: the minutes that follow. Nothing is learned from it."""
        found = np.zeros((len(windows), horizon), np.float32)
        w_in, w_hidden, bias, w_out, b_out = (one.detach().contiguous().numpy() for one in self.parameters)
        kernel.ahead(windows.astype(np.float32), w_in, w_hidden, bias, w_out, b_out, found)
        return found.astype(np.float64)

    def __call__(self, windows: Tensor) -> Tensor:
        functions, batch, length = windows.shape
        hidden = self.w_hidden.shape[1]
        state = windows.new_zeros(functions, batch, hidden)
        cell = windows.new_zeros(functions, batch, hidden)
        for step in range(length):
            gates = torch.baddbmm(
                torch.baddbmm(self.bias, windows[:, :, step : step + 1], self.w_in), state, self.w_hidden
            )
            opened, forgotten, new, shown = gates.chunk(4, dim=2)
            cell = torch.sigmoid(forgotten) * cell + torch.sigmoid(opened) * torch.tanh(new)
            state = torch.sigmoid(shown) * torch.tanh(cell)
        return torch.baddbmm(self.b_out, state, self.w_out).squeeze(2)


class Grouped:
    """
    One LSTM per function, trained on the last ``span`` minutes: mean squared error of scaled log counts, Adam, early
    stopping per function group (A36). A second fit goes on from the weights of the first (``warm`` epochs). Functions
    with less than two windows of history get the mean of their last minutes.
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
        for one in parameters:
            one.requires_grad_(True)
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
        for one in parameters:
            one.requires_grad_(False)

    def rearrange(self, rows: Sequence[int]) -> None:
        """
        Before another fit, of other functions: these rows of the last one keep their weights, -1 is a function that was
        not in it.
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
        """Minutes beyond the first by feeding back what was forecast."""
        known = np.isfinite(self._last)
        mean = np.where(
            known.any(axis=1), np.where(known, self._last, 0).sum(axis=1) / np.maximum(1, known.sum(axis=1)), np.nan
        )
        if self._cells is None:
            found = np.repeat(mean[:, None], horizon, axis=1)
            return found, chance(found)
        scaled = (np.log1p(_filled(self._last)) - self._mean[:, None]) / self._scale[:, None]
        logs = self._cells.ahead(scaled, horizon) * self._scale[:, None] + self._mean[:, None]
        found = np.expm1(np.clip(logs, 0.0, 20.0))
        found[~known.any(axis=1)] = np.nan
        return found, chance(found)

    def dumps(self) -> bytes:
        weights = None if self._cells is None else [one.contiguous() for one in self._cells.parameters]
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
        made = cls(**state["knobs"])
        made._mean, made._scale, made._last = state["mean"].numpy(), state["scale"].numpy(), state["last"].numpy()
        if state["weights"] is not None:
            made._cells = Cells(len(made._last), made._knobs["hidden"])
            made._cells.w_in, made._cells.w_hidden, made._cells.bias, made._cells.w_out, made._cells.b_out = state[
                "weights"
            ]
        return made


class LongShort:
    """
    LS-LSTM: ``alpha`` times the long model's number and 1 - ``alpha`` times the short one's (Eq. 8). The long one is
    fitted on the last day, the short one on the last hour; whoever fits them at different intervals (A36) fits
    :attr:`long` and :attr:`short`.
    """

    name: ClassVar[str] = "ls-lstm"

    def __init__(
        self, *, alpha: float = 0.5, long_span: int = 1440, short_span: int = 60, epochs: int = 50, seed: int = 0
    ) -> None:
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha is {alpha}: a number in 0..1 is expected")
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
        made = cls(alpha=state["alpha"])
        made.long, made.short = Grouped.loads(state["long"]), Grouped.loads(state["short"])
        return made


class _Network(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def forward(self, minutes: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """
        [F, T, inputs] → [F, T, 2] (log odds of a request in the next minute, its size in deviations), and the state.
        """
        shown, state = self.lstm(minutes, state)
        return self.head(shown), state


class Shared:
    """
    One network for all functions with a state for each. What it sees and says of a minute's size is by how far that
    lies from the function's own level (a running mean of the log counts of its minutes with requests) in its own
    deviations, so that one network can serve rates of all orders. It also sees whether there was a request, how long
    ago the last ones were, how often there are any, the level itself and the minute of the hour. Trained on sequences
    of ``stretch`` minutes with the state carried over: cross-entropy of "any request", plus squared error of the size
    where there were some.
    """

    name: ClassVar[str] = "shared-lstm"
    INPUTS: Final = 10
    #: Of the running numbers: the weight of the newest minute; the least deviation of log counts.
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
        #: Minutes with requests.
        self._seen = np.zeros(0)
        #: Minutes since the last three minutes with requests, [F, 3].
        self._ages = np.zeros((0, 3))
        self._ahead = torch.zeros(0, 2)

    def _inputs(self, counts: Floats, first: int) -> tuple[Tensor, Floats, Floats]:
        """[F, T, INPUTS], and level and deviation [F, T] after each minute; moves on what is known of the past."""
        functions, length = counts.shape
        found = np.zeros((functions, length, self.INPUTS), np.float32)
        levels, deviations = np.zeros((functions, length)), np.zeros((functions, length))
        for place in range(length):
            now = counts[:, place]
            active = now > 0
            logs = np.log1p(now[active])
            # A function's first minutes with requests are its level: it moves by 1 / n until that is the weight of the
            # newest.
            self._seen[active] += 1
            weight = np.maximum(self.WEIGHT, 1.0 / self._seen[active])
            away = logs - self._level[active]
            self._level[active] += weight * away
            self._deviation[active] += weight * (np.abs(away) - self._deviation[active])
            self._ages += 1
            self._ages[active] = np.concatenate([np.zeros((int(active.sum()), 1)), self._ages[active, :2]], axis=1)
            self._rate += self.WEIGHT * (active - self._rate)
            angle = 2 * math.pi * ((first + place) % 60) / 60
            levels[:, place], deviations[:, place] = self._level, np.maximum(self._deviation, self.LEAST)
            found[active, place, 0] = np.clip((logs - levels[active, place]) / deviations[active, place], -5.0, 5.0)
            found[:, place, 1] = active
            found[:, place, 2:5] = np.log1p(np.minimum(self._ages, 1440)) / 4
            found[:, place, 5] = self._rate
            found[:, place, 6], found[:, place, 7] = math.sin(angle), math.cos(angle)
            found[:, place, 8], found[:, place, 9] = self._level / 4, self._deviation
        return torch.from_numpy(found), levels, deviations

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
        came = torch.from_numpy(np.nan_to_num(counts) > 0).float()
        # The size of the next minute by what is known of the function now.
        sizes = np.zeros_like(levels)
        sizes[:, 1:] = np.clip(
            (np.log1p(np.nan_to_num(counts[:, 1:])) - levels[:, :-1]) / deviations[:, :-1], -5.0, 5.0
        )
        known = torch.from_numpy(np.isfinite(counts)).float()
        if length >= 2 * WINDOW:
            epochs = self._knobs["epochs"] if fresh else self._knobs["warm"]
            self._train(self._network, inputs, came, torch.from_numpy(sizes).float(), known, epochs)
        self._minute = length
        with torch.no_grad():
            ahead, self._state = self._network(inputs, None)
        self._ahead = ahead[:, -1] if length else torch.full((functions, 2), math.nan)

    def _train(
        self, network: _Network, inputs: Tensor, came: Tensor, sizes: Tensor, known: Tensor, epochs: int
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
                seen, target = known[:, begin + 1 : end + 1], came[:, begin + 1 : end + 1]
                odds = functional.binary_cross_entropy_with_logits(ahead[..., 0], target, reduction="none")
                size = (ahead[..., 1] - sizes[:, begin + 1 : end + 1]) ** 2 * target
                loss = ((odds + 0.1 * size) * seen).sum() / seen.sum().clamp_min(1.0)
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
            raise ValueError("fit it first")
        inputs, _, _ = self._inputs(column(counts, len(self._rate)), self._minute)
        self._minute += 1
        with torch.no_grad():
            ahead, self._state = self._network(inputs, self._state)
        self._ahead = ahead[:, -1]

    def forecast(self, horizon: int = 1) -> tuple[Floats, Floats]:
        """The next minute; the ones after it are taken to be like it."""
        any_ = torch.sigmoid(self._ahead[:, 0]).double().numpy()
        logs = self._level + np.maximum(self._deviation, self.LEAST) * self._ahead[:, 1].double().numpy()
        mean = any_ * np.maximum(1.0, np.expm1(np.clip(logs, 0.0, 20.0)))
        return np.repeat(mean[:, None], horizon, axis=1), np.repeat(any_[:, None], horizon, axis=1)

    def dumps(self) -> bytes:
        if self._network is None or self._state is None:
            raise ValueError("fit it first")
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
        made = cls(**stored["knobs"])
        made._network = _Network(cls.INPUTS, made._knobs["hidden"])
        made._network.load_state_dict(stored["network"])
        made._state = (stored["state"][0], stored["state"][1])
        made._ahead, made._minute = stored["ahead"], stored["minute"]
        for name in ("rate", "level", "deviation", "seen", "ages"):
            setattr(made, f"_{name}", stored[name].numpy())
        return made
