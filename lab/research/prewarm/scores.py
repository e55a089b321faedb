"""Scores of prewarming rules: cold starts and waste by class of functions, of replays whose results are stored."""

import hashlib
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from lab.research.prewarm.workloads import Bools, Floats
from scheduler.backtest import instances
from scheduler.backtest.cost import waste_s
from scheduler.backtest.instances import Setup, Workload, score
from scheduler.policy.prewarm import kernel
from scheduler.policy.prewarm.kernel import (
    BUSY_S,
    COLD_MINUTES,
    COLDS,
    IDLE_ALONE_S,
    REQUEST_MINUTES,
    REQUESTS,
)

RESAMPLES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """
    The rates of a class of functions. ``r_cs`` (Eq. 7) and ``r_cs_minutes`` (share of the minutes with requests that
    have a cold start): pooled, 0..1.

    ``r_rw`` (Eq. 6; assumption A44: waste is counted per instance): instance-seconds loaded or loading without work,
    over the total time, the mean over functions. The pooled rate is the same, because all functions have the same total
    time. It exceeds 1 where several instances are idle. ``r_rw_alone``: seconds in which a function is loaded or
    loading and none of its instances works, over the total time, the mean over functions, 0..1. ``r_rw_loaded``: the
    instance-seconds of ``r_rw`` over the seconds loaded, pooled, 0..1.
    """

    r_cs: float
    r_cs_minutes: float
    r_rw: float
    r_rw_alone: float
    r_rw_loaded: float


def cold_rate(tally: Floats, part: Bools) -> float:
    """R_cs, pooled over the functions of the mask ``part``."""
    total = tally[part].sum(axis=0)
    return float(total[COLDS] / max(1.0, total[REQUESTS]))


def rates(tally: Floats, part: Bools, wall_s: float) -> Rates:
    """The rates of ``tally`` [F, FIELDS] over ``wall_s`` seconds."""
    total = tally[part].sum(axis=0)
    waste, wall = float(waste_s(total)), max(1.0, wall_s * int(part.sum()))
    return Rates(
        r_cs=cold_rate(tally, part),
        r_cs_minutes=float(total[COLD_MINUTES] / max(1.0, total[REQUEST_MINUTES])),
        r_rw=waste / wall,
        r_rw_alone=float(total[IDLE_ALONE_S]) / wall,
        r_rw_loaded=waste / max(1e-9, waste + float(total[BUSY_S])),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """The result of one rule on one trace: ``tally`` [F, FIELDS], the mean of all seeds."""

    name: str
    family: str
    tally: Floats


class Replays:
    """
    Replays with stored results: an interrupted run continues where it stopped, and a run with other rules replays only
    the new ones.

    A tally is stored in ``folder`` (None = nowhere) under a hash of all its inputs: trace, setup, seed and the code of
    the replay.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._code = "".join(inspect.getsource(module) for module in (kernel, instances)).encode()

    def tally(self, work: Workload, setup: Setup, seed: int, from_minute: int, only: Bools | None = None) -> Floats:
        """See ``scheduler.backtest.instances.score``."""
        if self._folder is None:
            return score(work, setup, seed, from_minute, only=only)
        stored = self._folder / f"{self._name(work, setup, seed, from_minute, only)}.npy"
        if stored.exists():
            return np.asarray(np.load(stored))
        tally = score(work, setup, seed, from_minute, only=only)
        stored.parent.mkdir(parents=True, exist_ok=True)
        part = stored.with_suffix(".part")
        with part.open("wb") as file:
            np.save(file, tally)
        part.rename(stored)
        return tally

    def _name(self, work: Workload, setup: Setup, seed: int, from_minute: int, only: Bools | None) -> str:
        digest = hashlib.blake2b(self._code, digest_size=16)

        def add(*parts: object) -> None:
            for part in parts:
                if isinstance(part, np.ndarray):
                    digest.update(f"{part.dtype}{part.shape}".encode())
                    digest.update(np.ascontiguousarray(part).tobytes())
                else:
                    digest.update(f"{part!r};".encode())

        def add_setup(one: Setup) -> None:
            add(one.how, one.keep_s, one.knobs, one.price_s, one.base, one.close, one.told, one.guard, one.choice)
            for other in one.others:
                add_setup(other)

        add(work.counts, work.run_s, work.memory_gb, work.load_s, seed, from_minute, only)
        add_setup(setup)
        return digest.hexdigest()


def scored(
    replays: Replays, work: Workload, setup: Setup, seeds: Sequence[int], from_minute: int, family: str = ""
) -> Scored:
    tally = np.mean([replays.tally(work, setup, seed, from_minute) for seed in seeds], axis=0)
    return Scored(name=setup.name, family=family or setup.name, tally=tally)


def intervals(ours: Floats, theirs: Floats, part: Bools, seed: int = 0) -> dict[str, tuple[float, float]]:
    """
    95 % intervals over functions: the difference of R_cs, the ratios of R_rw and of waste over the seconds loaded.
    """
    random = np.random.default_rng(seed)
    rows = np.flatnonzero(part)
    samples: dict[str, list[float]] = {"rcs_diff": [], "rrw_wall_ratio": [], "rrw_loaded_ratio": []}
    if not len(rows):
        return {}
    for _ in range(RESAMPLES):
        drawn = random.choice(rows, len(rows))
        our_total, their_total = ours[drawn].sum(axis=0), theirs[drawn].sum(axis=0)
        our_waste, their_waste = float(waste_s(our_total)), float(waste_s(their_total))
        samples["rcs_diff"].append(float((our_total[COLDS] - their_total[COLDS]) / max(1.0, our_total[REQUESTS])))
        samples["rrw_wall_ratio"].append(our_waste / max(1e-9, their_waste))
        samples["rrw_loaded_ratio"].append(
            (our_waste / max(1e-9, our_waste + our_total[BUSY_S]))
            / max(1e-9, their_waste / max(1e-9, their_waste + their_total[BUSY_S]))
        )
    return {
        name: (float(np.quantile(values, 0.025)), float(np.quantile(values, 0.975))) for name, values in samples.items()
    }


def brier(any_: Floats, counts: Floats) -> Floats:
    """
    [F]: mean squared difference between the chance of a request and whether there was one; NaN where nothing was
    forecast.
    """
    came = np.where(np.isnan(counts), np.nan, counts > 0)
    squares = (any_ - came) ** 2
    known = np.isfinite(squares)
    return np.asarray(
        np.where(
            known.any(axis=1), np.where(known, squares, 0).sum(axis=1) / np.maximum(1, known.sum(axis=1)), math.nan
        )
    )


def mase(mean: Floats, counts: Floats, begin: int) -> Floats:
    """
    Mean absolute scaled error [F]: the mean absolute error from the minute ``begin`` on, over that of the naive
    forecast (the minute before) in the earlier minutes (Hyndman and Koehler, 2006); NaN where the earlier counts are
    constant.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        wrong = np.nanmean(np.abs(mean[:, begin:] - counts[:, begin:]), axis=1)
        usual = np.nanmean(np.abs(np.diff(counts[:, :begin], axis=1)), axis=1)
        return np.where(usual > 0, wrong / usual, math.nan)
