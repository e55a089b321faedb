"""
What is reported of runs, computed from their raw rows (A44, A47, A48), and intervals over seeds.

All figures are fractions; 0.01 is one point of a percentage.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lab.simulation.interference import mean_over_alone
from lab.simulation.result import EXPIRED, FAILED, GPU_COLUMNS, REFUSED, REJECTED, SUCCEEDED, Result
from smore.domain.loss import student

Floats = NDArray[np.float64]

#: The four of figure 14, and whether more of it is better.
FIGURE_14: Final[Mapping[str, bool]] = {"dsr": True, "gui": True, "sfd": False, "sld": False}

_ALIVE, _SLOW, _WORK, _BUSY, _FUNCTION, _LOADED, _EXECUTING, _SOLO = range(len(GPU_COLUMNS))


def figures(result: Result, exclusive: Result) -> dict[str, float]:
    """
    Of one run, against the run of the same trainings without functions (``exclusive``).

    ``dsr`` deadline met over submitted, ``dsr_admitted`` over dispatched, ``dsr_accepted`` over what the gate let in,
    ``refused`` by the gate over submitted, ``admission`` dispatched over submitted, also ``admission.<function>``;
    ``gui`` mean utilisation less the exclusive one, ``gui_relative`` as a share of that; ``sfd`` mean over trainings of
    the time average of their slowdown, less one, ``train_loss`` the part of their iterations that did not
    happen; ``sld`` mean over dispatched of run time over the mean alone, less one, ``sld_p99`` over the P99 alone;
    ``cold`` (R_cs) cold starts over dispatched; ``waste`` (R_rw) instance time loaded and not executing over loaded;
    where there is work of class batch, ``missed`` deadlines over submitted of all other work, and ``bulk``, its own
    invocations a second; ``expired``, ``rejected``, ``failed`` over submitted; ``harvest`` solo seconds of deadline-met invocations per
    second and GPU instance; ``loaded`` instances on a GPU instance, mean over time, and ``loaded_at_start``: counts, no
    fractions; ``simulated_s``: seconds that a GPU instance was there. NaN where there is nothing to divide by.
    """
    n = len(result.status)
    done = result.status == SUCCEEDED
    met = done & (result.end_s <= result.deadline_s)
    sent = result.attempts > 0
    values = {
        "dsr": _share(met, n),
        "dsr_admitted": _share(met, int(sent.sum())),
        "dsr_accepted": _share(met, int((result.status != REFUSED).sum())),
        "refused": _share(result.status == REFUSED, n),
        "admission": _share(sent, n),
        "expired": _share(result.status == EXPIRED, n),
        "rejected": _share(result.status == REJECTED, n),
        "failed": _share(result.status == FAILED, n),
        "cold": _share(result.cold, int(sent.sum())),
        "utilisation": _mean(result.gpus, _BUSY),
    }
    alone = _mean(exclusive.gpus, _BUSY)
    values["gui"] = values["utilisation"] - alone
    values["gui_relative"] = values["gui"] / alone if alone > 0 else math.nan
    training = (result.gpus[:, _SOLO] > 0) & (result.gpus[:, _ALIVE] > 0)
    values["sfd"] = (
        float((result.gpus[training, _SLOW] / result.gpus[training, _ALIVE] - 1.0).mean())
        if training.any()
        else math.nan
    )
    values["train_loss"] = (
        float((1.0 - result.gpus[training, _WORK] / result.gpus[training, _ALIVE]).mean())
        if training.any()
        else math.nan
    )
    slow = result.run_s[done] / result.alone_s[done]
    values["sld"] = float((slow / mean_over_alone(result.p99) - 1.0).mean()) if done.any() else math.nan
    values["sld_p99"] = float((slow / result.p99 - 1.0).mean()) if done.any() else math.nan
    loaded = float(result.gpus[:, _LOADED].sum())
    values["waste"] = 1.0 - float(result.gpus[:, _EXECUTING].sum()) / loaded if loaded else math.nan
    values["harvest"] = float(result.alone_s[met].sum()) / float(result.meta["duration_s"]) / len(result.gpus)
    values["simulated_s"] = float(result.gpus[:, _ALIVE].mean())
    values["loaded"] = _mean(result.gpus, _LOADED)
    values["loaded_at_start"] = sum(map(sum, result.meta["warm_at_start"])) / len(result.gpus)
    bulk = np.isin(result.function, result.meta.get("bulk", []))
    if bulk.any():
        values["missed"] = 1.0 - _share(met & ~bulk, n - int(bulk.sum()))
        in_span = done & (result.end_s <= result.meta["duration_s"])
        values["bulk"] = float((in_span & bulk).sum()) / float(result.meta["duration_s"])
    for index, name in enumerate(result.functions):
        of = result.function == index
        values[f"admission.{name}"] = _share(sent & of, int(of.sum()))
    return values


def _share(which: NDArray[np.bool_], total: int) -> float:
    return float(which.sum()) / total if total else math.nan


def _mean(gpus: Floats, column: int) -> float:
    alive = gpus[:, _ALIVE] > 0
    return float((gpus[alive, column] / gpus[alive, _ALIVE]).mean()) if alive.any() else 0.0


# ---- over seeds ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean with its 95 % interval; the interval is NaN for fewer than two values."""

    mean: float
    low: float
    high: float

    def within(self, least: float, most: float) -> "Interval":
        """Cut off at what the value can be at all, so that it covers it as often as before; the mean stays in it."""
        return Interval(
            mean=self.mean, low=max(self.low, min(least, self.mean)), high=min(self.high, max(most, self.mean))
        )


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of independent values (Student). Values that are not numbers make a mean that is none."""
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    if n < 2:
        return Interval(mean=mean, low=math.nan, high=math.nan)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = student(0.975, n - 1) * deviation / math.sqrt(n)
    return Interval(mean=mean, low=mean - half, high=mean + half)


def wilson(hits: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    z = 1.96
    middle, width = hits + z * z / (2 * n), z * math.sqrt(hits * (1 - hits) / n + z * z / (4 * n * n))
    return (middle - width) / (1 + z * z / n), (middle + width) / (1 + z * z / n)


def advantage(metric: str, ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """By how much ours is better, paired by seed: positive = better, whichever way the metric counts."""
    sign = 1.0 if FIGURE_14.get(metric, True) else -1.0
    return interval([sign * (one - other) for one, other in zip(ours, theirs, strict=True)])


#: What still counts as not worse: a deficit's upper bound of one point.
TOLERANCE: Final = 0.01


def not_worse(interval: Interval) -> bool:
    """The deficit's upper bound is at most one point. A single value has no bound: then by itself."""
    low = interval.mean if math.isnan(interval.low) else interval.low
    return low >= -TOLERANCE
