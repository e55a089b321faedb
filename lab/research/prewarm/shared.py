"""
One LSTM for all functions, which carries a state per function from minute to minute and gives a distribution (chance of a
request, mean) of log1p of the counts, scaled per function.
"""

import math
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ml.forecast.forecaster import Floats, checked, column
from ml.forecast.lstm import HIDDEN, WINDOW, loaded, saved


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
        return saved(
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
        stored = loaded(cls.name, raw)
        forecaster = cls(**stored["knobs"])
        forecaster._network = _Network(cls.INPUTS, forecaster._knobs["hidden"])
        forecaster._network.load_state_dict(stored["network"])
        forecaster._state = (stored["state"][0], stored["state"][1])
        forecaster._ahead, forecaster._minute = stored["ahead"], stored["minute"]
        for name in ("rate", "level", "deviation", "seen", "ages"):
            setattr(forecaster, f"_{name}", stored[name].numpy())
        return forecaster
