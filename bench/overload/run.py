"""
Overload at five times the reference rate: ``python -m bench.overload --json``.

A platform of its own on CPU partitions of one core each, a real training on each of the first two, three functions of
the zoo with deadlines of some hundred milliseconds, and an open-loop client in a process of its own, Poisson arrivals.
The platform's processes and the client share the partitions' cores.

1. *Solo*: with nothing else on the platform, what one invocation of each function takes on a GPU instance (median of
   the workers' runs).
2. *Fixed rates*, the policy's budget rule off: short runs at rising rates find the capacity (the best rate of
   deadline-met completions); then the trainings' losses are measured at parts of it, and at some rates between the
   highest that keeps the budget and the lowest that does not. The *reference rate* is that of the best fixed rate: the
   highest harvest among those whose every training loses no more than its budget.
3. *The policy*, as the product has it, at multiples of the reference rate, the last one the overload (5).

Each rate has ``--repeats`` turns, the rates one after another, so that what changes with time (the machine, what the
platform has learned) falls on all of them (but for the refined fixed rates, which come last); a turn counts for
``--seconds`` after a warm-up in which what the budgets' accounts had saved is spent. Latency runs from the instant a
request was due until its client has the answer. A request is *refused* when it is answered 429; *admitted* are all
others, also those that expired or got no answer. *Harvest* is the sum over the invocations that met their deadline of
their solo device-seconds, per second. A training's *loss* is estimated from the closed windows of that point alone
(docs/guides/budgets.md), for which the load goes on where they are too few; so that there are enough of them, a tenth
of the time is closed (``SMORE_WORKER__PROBE_SHARE=0.1``; the product's default is 0.03). Nothing is learned meanwhile:
the learn worker ends once its first degradation table is there.

Figures (95 % intervals as ``_low`` and ``_high``: Wilson for shares, means over blocks of 5 s for rates, Student's t
over windows for losses; blocks and requests of different turns are taken for independent):

* ``dsr_admitted``: part of the admitted that met their deadline, at the overload; ``dsr_admitted_platform``: the same
  by the platform's clock, arrival at the gate to the result in Redis.
* ``goodput_ratio``: deadline-met completions per second at the overload, over the best at any lower rate.
* ``harvest_ratio``: harvest at the overload over that of the best fixed rate; ``harvest_ratio_fitted``: over the
  harvest at which the trainings' mean loss reaches the budget on a line through the origin, fitted to all fixed rates
  (least squares), since one rate's reading is uncertain by half a budget.
* ``worst_job_loss`` at the overload, and ``budget``; ``worst_job_loss_all``: over all points under the policy.
* ``replay_error.<figure>`` and ``replay_spearman.<figure>``: the arrivals of the points under the policy in the
  simulator (``bench/overload/simulated.py``), its mean absolute error and the rank correlation over the rates.
* ``retry_after_share``: refusals that named a time to come back. ``reference_rate``, ``capacity_rate``: per second.
"""

import argparse
import math
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

import msgspec
import numpy as np

from bench import report
from bench.overload import simulated
from bench.overload.client import BLOCK_S, Sent, client_main
from bench.overload.points import Estimate, Point, per_second, ratio, wilson
from bench.overload.rig import (
    FUNCTIONS,
    TRAININGS,
    Rig,
    one_core_partitions,
)
from smore.domain.loss import DEFAULT_BUDGET, LEAST_WINDOWS, Loss, Window, estimate
from smore.messages.results import decode_execution

#: Multiples of the reference rate under the policy, the last is the overload; and of the capacity without a budget,
#: before refinement.
MULTIPLES: Final = (0.25, 0.5, 1.0, 2.0, 5.0)
FIXED: Final = (0.1, 0.2, 0.4)
REFINED: Final = 2
#: Turns that each rate has, by default, and how far apart their seeds are.
REPEATS: Final = 2
SEEDS_APART: Final = 10_000
#: Before a point is measured: longer than what a full account lets through beyond what it earns.
WARMUP_S: Final = 8.0
#: The search for the capacity: where it begins (per second), how it rises, how long it looks, and the part met at which
#: it ends.
FIRST_RATE: Final = 10.0
RISE: Final = 1.6
LOOK_S: Final = 10.0
ENOUGH: Final = 0.7
#: How often a load goes on because windows are missing.
MOST_MORE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """
    A load that was driven: what its client has, from when on that counts (epoch seconds), and the trainings' closed
    windows.
    """

    begin: float
    sent: Sent
    windows: Mapping[str, list[Window]]


def turn(
    rig: Rig, *, seconds: float, rate: float | None = None, connections: int = 1, seed: int = 0, losses: bool = True
) -> Turn:
    """
    Load it; the client's warm-up is not counted. Without ``losses`` nobody waits for closed windows. Raises
    RuntimeError where a training has ended meanwhile.
    """
    sent = rig.drive(WARMUP_S + seconds, rate=rate, connections=connections, seed=seed)
    begin = float(sent.due[0]) + WARMUP_S if len(sent.due) else time.time()

    def go_on(more_s: float) -> None:
        rig.drive(more_s, rate=rate, connections=connections, seed=seed + 1000)

    windows = enough_windows(rig, (begin, begin + seconds), go_on, MOST_MORE if losses else 0)
    rig.check_training()
    return Turn(begin=begin, sent=sent, windows=windows)


def measure(
    rig: Rig,
    solo: Mapping[str, float],
    *,
    seconds: float,
    rate: float | None = None,
    connections: int = 1,
    seed: int = 0,
    losses: bool = True,
) -> Point:
    """One :func:`turn`, summed up."""
    driven = turn(rig, seconds=seconds, rate=rate, connections=connections, seed=seed, losses=losses)
    return summed(rig, solo, [driven], seconds=seconds, rate=rate)


def by_turns(
    rig: Rig, solo: Mapping[str, float], rates: Sequence[float], *, seconds: float, repeats: int, seed: int
) -> list[Point]:
    """
    A point for each rate. Each has its turn ``repeats`` times, so that what changes with time falls on all of them.
    """
    driven: list[list[Turn]] = [[] for _ in rates]
    for again in range(repeats):
        for number, rate in enumerate(rates):
            driven[number].append(turn(rig, seconds=seconds, rate=rate, seed=seed + number + SEEDS_APART * again))
            if repeats > 1:
                report.progress(shown(summed(rig, solo, driven[number][-1:], seconds=seconds, rate=rate)))
    points = [summed(rig, solo, turns, seconds=seconds, rate=rate) for turns, rate in zip(driven, rates, strict=True)]
    for point in points:
        report.progress(shown(point))
    return points


def summed(rig: Rig, solo: Mapping[str, float], turns: Sequence[Turn], *, seconds: float, rate: float | None) -> Point:
    """What came of the turns of one rate, all together."""
    begins = [one.begin for one in turns]
    # Those who take turns do not touch: each request lies within one of them.
    inside = [(one.sent.due >= one.begin) & (one.sent.due < one.begin + seconds) for one in turns]
    function, due, latency, status, back = (
        np.concatenate([getattr(one.sent, name)[within] for one, within in zip(turns, inside, strict=True)])
        for name in ("function", "due", "latency", "status", "back")
    )
    windows = {name: [window for one in turns for window in one.windows[name]] for name in turns[0].windows}
    deadlines = np.array([one.deadline_s for one in rig.functions])
    alone = np.array([solo[one.model] for one in rig.functions])
    met = (status == 200) & (latency <= deadlines[function])
    refused = status == 429
    ended = [
        one for one in rig.witness.settled if any(begin <= one.arrival_us / 1e6 < begin + seconds for begin in begins)
    ]
    runs = {
        (one.started_us, one.gpu, execution.pid): execution
        for one in ended
        if one.meta and (execution := decode_execution(one.meta)).run_ms is not None
    }
    good = latency[status == 200]
    p50, p95 = np.percentile(good, (50, 95)) * 1e3 if len(good) else (math.nan, math.nan)
    lasted_s = seconds * len(turns)
    goodput = per_second(due[met], np.ones(int(met.sum())), begins, seconds)
    return Point(
        began=begins[0],
        rate=rate if rate is not None else len(due) / lasted_s,
        seconds=seconds,
        submitted=len(due),
        admitted=int((~refused).sum()),
        refused=int(refused.sum()),
        named_a_time=int((refused & back).sum()),
        met=int(met.sum()),
        ended_platform=len(ended),
        met_platform=sum(one.state == "succeeded" and one.finished_us <= one.deadline_us for one in ended),
        expired=sum(one.state == "expired" for one in ended),
        statuses=dict(sorted(Counter(status.tolist()).items())),
        goodput=goodput,
        by_turn=[float((met & (due >= begin) & (due < begin + seconds)).sum() / seconds) for begin in begins],
        harvest=per_second(due[met], alone[function[met]], begins, seconds),
        busy=sum(one.run_ms or 0.0 for one in runs.values()) / 1e3 / lasted_s,
        batch=statistics.fmean([one.batch for one in runs.values()]) if runs else math.nan,
        p50_ms=float(p50),
        p95_ms=float(p95),
        functions={
            one.model: {
                "met": int(met[function == number].sum()),
                "admitted": int((~refused[function == number]).sum()),
                "refused": int(refused[function == number].sum()),
            }
            for number, one in enumerate(rig.functions)
        },
        losses={name: estimate(within) for name, within in windows.items()},
        windows={name: len(within) for name, within in windows.items()},
        arrivals=[(one.sent.due - (one.begin - WARMUP_S), one.sent.function.astype(np.int64)) for one in turns],
    )


def enough_windows(
    rig: Rig, first: tuple[float, float], go_on: Callable[[float], None], at_most: int
) -> dict[str, list[Window]]:
    """
    The closed windows of each training within ``first`` (epoch seconds).

    Where they are too few for an estimate, the load is told to ``go_on`` for half as long again, ``at_most`` so many
    times; that counts for nothing else.
    """
    spans = [first]
    while True:
        # The last windows are finished a while after what they look at.
        time.sleep(3.0)
        found = {
            name: [one for span in spans for one in rig.witness.within(job, *span)] for name, job in rig.jobs.items()
        }
        if len(spans) > at_most or all(len(windows) >= LEAST_WINDOWS for windows in found.values()):
            return found
        began, more = time.time(), (first[1] - first[0]) / 2
        go_on(more)
        spans.append((began, began + more))


def shown(point: Point) -> str:
    """A point in a line."""
    losses = ", ".join(f"{name} {_lost(loss, point.windows[name])}" for name, loss in point.losses.items())
    functions = ", ".join(
        f"{name} {one['met']}/{one['admitted']}+{one['refused']}" for name, one in point.functions.items()
    )
    dsr = point.met / point.admitted if point.admitted else math.nan
    platform = point.met_platform / point.ended_platform if point.ended_platform else math.nan
    return (
        f"  {point.rate:7.1f}/s  admitted {point.admitted:5d}  refused {point.refused:5d}  dsr {dsr:.3f} (platform"
        f" {platform:.3f})  goodput {point.goodput.value:6.1f}/s  harvest {point.harvest.value:.3f}  busy"
        f" {point.busy:.3f}  batch {point.batch:.1f}  p50 {point.p50_ms:.0f} p95 {point.p95_ms:.0f} ms "
        f" {dict(point.statuses)}  {functions}  {losses}"
    )


def _lost(loss: Loss | None, windows: int) -> str:
    return f"? ({windows})" if loss is None else f"{loss.mean:+.3f} ({loss.low:+.3f}..{loss.high:+.3f}, {windows})"


# ---- all of it -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seconds: float
    budget: float
    reference: float | None
    multiples: tuple[float, ...]
    fixed: tuple[float, ...]
    refined: int
    repeats: int
    seed: int


def run(options: Options) -> tuple[dict[str, float], dict[str, object]]:
    """The figures, and the points and conditions behind them."""
    with tempfile.TemporaryDirectory(prefix="smore-overload-") as folder:
        home, partitions = Path(folder), one_core_partitions()
        points = max(len(options.multiples), len(options.fixed) + options.refined)
        # A turn goes on for half as long again up to MOST_MORE times, where windows are missing.
        lasting_s = 900 + points * options.repeats * (WARMUP_S + (1 + MOST_MORE / 2) * options.seconds + 20)
        with Rig(home, partitions, environment={"SMORE_POLICY__KNOBS": '{"budget_rule": "none"}'}) as rig:
            rig.prepare()
            solo = rig.solo()
            report.progress("solo: " + ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in solo.items()))
            rig.train(TRAININGS, budget=options.budget, lasting_s=lasting_s)
            report.progress("the budget rule off, rising rates:")
            looked = looks(rig, solo, options.seed)
            most = max(point.goodput.value for point in looked)
            calibration = rig.calibration(solo, looked)
            report.progress(f"capacity {most:.1f}/s; fixed rates:")
            measured = partial(by_turns, rig, solo, seconds=options.seconds, repeats=options.repeats)
            fixed = sweep(lambda rates, seed: measured(rates, seed=seed), most, options)
        best = best_fixed(fixed, options.budget)
        reference = options.reference or (best.rate if best is not None else most)
        report.progress(f"reference rate {reference:.1f}/s; under the policy:")
        with Rig(home, partitions) as rig:
            rig.prepare()
            rig.solo()
            rig.train(TRAININGS, budget=options.budget, lasting_s=lasting_s)
            rates = [multiple * reference for multiple in options.multiples]
            policy = by_turns(rig, solo, rates, seconds=options.seconds, repeats=options.repeats, seed=options.seed + 1)
            said = {name: msgspec.structs.asdict(rig.client.statement(job)) for name, job in rig.jobs.items()}
    replays = simulated.replay(policy, calibration)
    for told in replays:
        report.progress("simulated: " + ", ".join(f"{name} {value:.3f}" for name, value in told.items()))
    found = figures(policy, fixed, reference, options.budget) | {"capacity_rate": most}
    return found | simulated.figures(policy, replays), {
        "solo_s": solo,
        "simulated": replays,
        "options": asdict(options),
        "functions": [asdict(one) for one in FUNCTIONS],
        "trainings": [one.workload for one in TRAININGS],
        "policy": [row(point) for point in policy],
        "fixed": [row(point) for point in fixed],
        "statements": {name: one["summary"] for name, one in said.items()},
    }


def looks(rig: Rig, solo: Mapping[str, float], seed: int) -> list[Point]:
    """Short ones at rising rates, up to the first at which too few deadlines are met."""
    found: list[Point] = []
    while not found or found[-1].met >= ENOUGH * found[-1].submitted:
        rate = found[-1].rate * RISE if found else FIRST_RATE
        found.append(measure(rig, solo, seconds=LOOK_S, rate=rate, seed=seed, losses=False))
        report.progress(shown(found[-1]))
    return found


def best_fixed(fixed: Sequence[Point], budget: float) -> Point | None:
    """The one with the highest harvest among those that keep the budget."""
    return max((point for point in fixed if keeps(point, budget)), key=lambda point: point.harvest.value, default=None)


def sweep(measured: Callable[[Sequence[float], int], list[Point]], most: float, options: Options) -> list[Point]:
    """Fixed rates, then some more between the highest within the budget and the lowest above it; by rate."""
    found = measured([multiple * most for multiple in options.fixed], options.seed + 100)
    for number in range(options.refined):
        within = max((point.rate for point in found if keeps(point, options.budget)), default=0.0)
        above = [point.rate for point in found if not keeps(point, options.budget) and point.rate > within]
        if not above:
            break
        found += measured([(within + min(above)) / 2], options.seed + 200 + number)
    return sorted(found, key=lambda point: point.rate)


def keeps(point: Point, budget: float) -> bool:
    """By the best estimate there is; a loss that is not known keeps nothing."""
    return point.worst is not None and point.worst.mean <= budget


def figures(policy: Sequence[Point], fixed: Sequence[Point], reference: float, budget: float) -> dict[str, float]:
    """As the module's docstring names them, as far as they are known."""
    over, lower = policy[-1], policy[:-1]
    found: dict[str, float] = {"reference_rate": reference, "overload_rate": over.rate, "budget": budget}

    def put(name: str, value: Estimate) -> None:
        for ending, one in (("", value.value), ("_low", value.low), ("_high", value.high)):
            if math.isfinite(one):
                found[name + ending] = one

    put("dsr_admitted", wilson(over.met, over.admitted))
    put("dsr_admitted_platform", wilson(over.met_platform, over.ended_platform))
    put("goodput", over.goodput)
    put("harvest", over.harvest)
    if lower:
        put("goodput_ratio", ratio(over.goodput, max((point.goodput for point in lower), key=lambda one: one.value)))
    best = best_fixed(fixed, budget)
    if best is not None:
        found["best_fixed_rate"], found["best_fixed_harvest"] = best.rate, best.harvest.value
        put("harvest_ratio", ratio(over.harvest, best.harvest))
    most = affordable(fixed, budget)
    if most is not None:
        found["affordable_harvest"], found["harvest_ratio_fitted"] = most, over.harvest.value / most
    if over.worst is not None:
        put("worst_job_loss", Estimate(value=over.worst.mean, low=over.worst.low, high=over.worst.high))
    found["worst_job_loss_all"] = max((point.worst.mean for point in policy if point.worst is not None), default=0.0)
    if over.refused:
        found["retry_after_share"] = over.named_a_time / over.refused
    return found


def affordable(fixed: Sequence[Point], budget: float) -> float | None:
    """
    Harvest, seconds a second, at which the trainings' mean loss is the budget, by a line through the origin; None without a
    loss.
    """
    pairs = [
        (point.harvest.value, statistics.fmean(loss.mean for loss in point.losses.values() if loss is not None))
        for point in fixed
        if any(loss is not None for loss in point.losses.values())
    ]
    squares, products = sum(harvest**2 for harvest, _ in pairs), sum(harvest * loss for harvest, loss in pairs)
    return budget * squares / products if products > 0 else None


def row(point: Point) -> dict[str, object]:
    """A point for JSON."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {str(name): plain(one) for name, one in value.items()}
        return (report.rounded(value) if math.isfinite(value) else None) if isinstance(value, float) else value

    return cast(
        "dict[str, object]", plain({name: value for name, value in asdict(point).items() if name != "arrivals"})
    )


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(one) for one in text.split(",") if one)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overload", description="Five times more than fits; see the module's docstring."
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of each point; where a loss needs more, the load goes on for it"
    )
    parser.add_argument("--budget", type=float, default=DEFAULT_BUDGET, help="of each training, a fraction")
    parser.add_argument(
        "--reference", type=float, help="requests per second that are taken for the capacity (default: measured)"
    )
    parser.add_argument(
        "--multiples", type=_numbers, default=MULTIPLES, help="of it under the policy, the overload last"
    )
    parser.add_argument("--fixed", type=_numbers, default=FIXED, help="of it without the budget rule")
    parser.add_argument("--refined", type=int, default=REFINED, help="further fixed rates, by bisection")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="turns of each rate, one after another")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.client:
        client_main()
        return
    if (
        asked.seconds < 2 * BLOCK_S
        or not asked.multiples
        or min(*asked.multiples, *asked.fixed, asked.reference or 1.0, asked.repeats) <= 0
    ):
        parser.error(f"--seconds must be at least {2 * BLOCK_S:g}, rates, their multiples and --repeats above 0")
    # A terminated run still ends the processes that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = Options(
        seconds=asked.seconds,
        budget=asked.budget,
        reference=asked.reference,
        multiples=asked.multiples,
        fixed=asked.fixed,
        refined=asked.refined,
        repeats=asked.repeats,
        seed=asked.seed,
    )
    found, extra = run(options)
    if asked.json:
        report.emit("bench.overload", found, **extra)
    else:
        for name, value in sorted(found.items()):
            print(f"{name:28}{report.rounded(value):>12g}")
