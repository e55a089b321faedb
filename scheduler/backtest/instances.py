"""
The life of one function's instances under a prewarming rule, replayed from its arrivals, and what is scored from it
(A44).

Work is laid out in levels: level n is at work while n instances or more are. Instances are alike and the last one used
is used again first, so that a level's pause between two pieces of work is an instance's own. In each pause the rule
says when the level is held; an arrival that finds it loaded is warm, one that finds it loading waits (late), any other
causes a load (cold). A cold request is served by the load that it caused, nothing queues behind work. The rules' own
compiled code decides (``scheduler.policy.prewarm``); what a rule says once a minute (forecasts) comes as columns.

Everything that is scored is read off rows (kind, level, from, until, asked): an instance of that level was in that
state, for the request that came at ``asked`` (NaN: none). Times are seconds from the beginning of the trace.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.policy.kernel import Floats, Ints
from scheduler.policy.prewarm import kernel
from scheduler.policy.prewarm.kernel import COLUMNS, FIELDS, HISTOGRAM, KEEP, PRICED, WINDOWS

#: Rows that are kept before they are reduced to a tally.
BUFFER: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
    """
    A rule as a replay needs it. Arrays are by function [F]; ``base``, ``close``, ``told`` [F, T] by minute, None: zero.

    ``base``: instances held from the beginning of the minute; ``close``: requests after which they are let go (0:
    never), ``guard`` by A42; ``told``: there is a forecast for it. ``keep_s``: of
    :data:`~scheduler.policy.prewarm.kernel.KEEP`. ``knobs``: of the histogram rule as ``kernel.blended`` takes them,
    then range and spans in minutes; of the priced rule ``prior`` and ``tail``. ``price_s`` [F].
    """

    name: str
    how: int = KEEP
    keep_s: float = 0.0
    knobs: tuple[float, ...] = ()
    price_s: Floats | None = None
    base: Ints | None = None
    close: Ints | None = None
    told: Ints | None = None
    guard: bool = True
    #: Per function another setup that is used in its place, by index into ``others``; -1: this one.
    choice: Ints | None = None
    others: tuple["Setup", ...] = field(default=())


#: The arrivals of a trace, by (seed, row): rules are compared on the same ones, and drawing them takes as long as a
#: replay.
Drawn = dict[tuple[int, int], Floats]


def arrivals(counts: Ints, seed: int, row: int) -> Floats:
    """
    ``counts`` [T] a minute, uniform within their minute, in order. The same (seed, row) gives the same times under
    every rule.
    """
    random = np.random.default_rng([seed, row])
    minutes = np.repeat(np.arange(len(counts)), counts)
    return np.sort(60.0 * (minutes + random.random(len(minutes))), kind="stable")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """
    ``counts`` [F, T] a minute; ``run_s``, ``memory_gb`` [F]; ``names`` [F]; ``load_s`` of a cold start. ``name`` says
    where it is from.
    """

    name: str
    names: tuple[str, ...]
    counts: Ints
    run_s: Floats
    memory_gb: Floats
    load_s: float
    #: Filled as a replay needs it.
    drawn: Drawn = field(default_factory=dict, repr=False)

    def arrivals(self, seed: int, row: int) -> Floats:
        moments = self.drawn.get((seed, row))
        if moments is None:
            moments = self.drawn[seed, row] = arrivals(self.counts[row], seed, row)
        return moments


def score(work: Workload, setup: Setup, seed: int, from_minute: int, only: NDArray[np.bool_] | None = None) -> Floats:
    """
    [F, FIELDS] of all functions (``only``: of those) from that minute to the end; what lies before is lived through,
    not scored.
    """
    facts = np.zeros((len(work.names), FIELDS))
    rows = np.zeros((BUFFER, COLUMNS))
    for function in range(len(work.names)):
        if only is None or only[function]:
            used = _run(work, setup, function, seed, from_minute, rows, facts[function])
            kernel.reduce(rows, used, facts[function], 60.0 * from_minute, 60.0 * work.counts.shape[1])
    return facts


def _run(work: Workload, setup: Setup, function: int, seed: int, from_minute: int, rows: Floats, tally: Floats) -> int:
    while setup.choice is not None and setup.choice[function] >= 0:
        setup = setup.others[int(setup.choice[function])]
    minutes = work.counts.shape[1]
    none = np.zeros(minutes, np.int64)
    range_minutes, long_minutes = (int(setup.knobs[8]), int(setup.knobs[9])) if setup.how == HISTOGRAM else (1, 1)
    hist, log, place = kernel.no_idle_times(range_minutes, long_minutes)
    price = 0.0 if setup.price_s is None else float(setup.price_s[function])
    if setup.how == PRICED:
        gaps, totals, plans = kernel.no_gaps(price, work.load_s, *setup.knobs)
    else:
        gaps, totals, plans = np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((2, 1, WINDOWS, 2))
    return int(
        kernel.replay(
            work.arrivals(seed, function),
            float(work.run_s[function]),
            work.load_s,
            none if setup.base is None else setup.base[function],
            none if setup.close is None else setup.close[function],
            none if setup.told is None else setup.told[function],
            setup.guard,
            setup.how,
            setup.keep_s,
            price,
            np.array(setup.knobs, float),
            hist,
            log,
            place,
            gaps,
            totals,
            plans,
            rows,
            tally,
            60.0 * from_minute,
        )
    )
