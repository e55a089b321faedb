"""
Overload at five times the reference rate: ``python -m lab.bench.overload --json``.

A platform of its own on CPU partitions of one core each, a real training on each of the first two, three functions of
the zoo with deadlines of some hundred milliseconds, and an open-loop client with Poisson arrivals in a process of its
own. The platform's processes and the client share the cores of the partitions.

1. *Solo*: the run time of one invocation of each function on a GPU instance with nothing else on the platform (median
   of the workers' runs).
2. *Fixed rates*, without the policy's budget rule: short runs at rising rates find the capacity (the highest rate of
   completions within their deadline). Then the losses of the trainings are measured at fractions of it, and at some
   rates between the highest that keeps the budget and the lowest that does not. The *reference rate* is the best fixed
   rate: the one with the highest harvest among those at which no training loses more than its budget.
3. *The policy* with its default knobs at multiples of the reference rate; the last one is the overload (5).

Each rate has ``--repeats`` turns, and the rates alternate, so that changes over time (of the machine, of what the
platform has learned) affect all of them; only the refined fixed rates come last. A turn counts for ``--seconds`` after
a warm-up in which the tokens that the budgets had saved are spent. Latency runs from the instant a request was due
until its client has the answer. A request is *refused* when it is answered 429 and *admitted* otherwise, also when it
expired or got no answer. *Harvest* is the sum of the solo device-seconds of the invocations that met their deadline,
per second. The *loss* of a training is estimated from the closed windows of that point alone (docs/guides/budgets.md);
where they are too few, the load goes on. A tenth of the time is closed, to have enough of them
(``SMORE_WORKER__PROBE_SHARE=0.1``; the default is 0.03). No predictor is fitted meanwhile, once the first degradation table
is published.

Figures (95 % intervals as ``_low`` and ``_high``: Wilson for shares, means over blocks of 5 s for rates, Student's t
over windows for losses; blocks and requests of different turns are taken for independent):

* ``dsr_admitted``: the share of the admitted that met their deadline, at the overload; ``dsr_admitted_platform``: the
  same by the platform's clock, from the arrival at the gateway to the result in Redis.
* ``goodput_ratio``: deadline-met completions per second at the overload, over the best at any lower rate.
* ``harvest_ratio``: harvest at the overload over that of the best fixed rate; ``harvest_ratio_fitted``: over the
  harvest at which the mean loss of the trainings reaches the budget on a line through the origin, fitted to all fixed
  rates (least squares), because the loss at one rate is uncertain by half a budget.
* ``worst_job_loss`` at the overload, and ``budget``; ``worst_job_loss_all``: over all points under the policy.
* ``replay_error.<figure>`` and ``replay_spearman.<figure>``: the arrivals of the points under the policy in the
  simulator (``lab/bench/overload/simulated.py``), its mean absolute error and the rank correlation over the rates.
* ``retry_after_share``: the share of refusals with a Retry-After. ``reference_rate``, ``capacity_rate``: per second.
"""

import argparse
import math
import statistics
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

from lab.bench import report
from lab.bench.overload import simulated
from lab.bench.overload.client import BLOCK_S, Sent, client_main
from lab.bench.overload.points import Estimate, Point, per_second, ratio, wilson
from lab.bench.overload.rig import (
    FUNCTIONS,
    TRAININGS,
    Rig,
    one_core_partitions,
)
from smore.domain.loss import DEFAULT_BUDGET, LEAST_WINDOWS, ClosedWindow, Loss, estimate
from smore.messages.results import decode_execution

#: Multiples of the reference rate under the policy, the last is the overload; and of the capacity without a budget,
#: before refinement.
MULTIPLES: Final = (0.25, 0.5, 1.0, 2.0, 5.0)
FIXED: Final = (0.1, 0.2, 0.4)
REFINED: Final = 2
#: Turns that each rate has, by default, and how far apart their seeds are.
REPEATS: Final = 2
SEEDS_APART: Final = 10_000
#: Seconds before a point is measured: longer than a full token bucket admits more than its refill rate.
WARMUP_S: Final = 8.0
#: The search for the capacity: its first rate (per second), the factor to the next rate, the seconds of each rate, and
#: the share of met deadlines below which it ends.
FIRST_RATE: Final = 10.0
RISE: Final = 1.6
LOOK_S: Final = 10.0
ENOUGH: Final = 0.7
#: How many times a load goes on because windows are missing.
MOST_MORE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """
    One turn of a rate: the client's requests, when the measured time began (epoch seconds), and the closed windows of
    each training.
    """

    begin: float
    sent: Sent
    windows: Mapping[str, list[ClosedWindow]]


def turn(
    rig: Rig, *, seconds: float, rate: float | None = None, connections: int = 1, seed: int = 0, losses: bool = True
) -> Turn:
    """
    Send a load, with a warm-up that is not counted. Without ``losses`` it does not wait for closed windows. Raises
    RuntimeError where a training has ended meanwhile.
    """
    sent = rig.drive(WARMUP_S + seconds, rate=rate, connections=connections, seed=seed)
    rig.read_events()
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
    A point for each rate, of ``repeats`` turns; the rates alternate.
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
    """The figures of all turns of one rate together."""
    begins = [driven.begin for driven in turns]
    # Turns do not overlap: each request lies within one of them.
    inside = [(driven.sent.due >= driven.begin) & (driven.sent.due < driven.begin + seconds) for driven in turns]
    function, due, latency, status, back = (
        np.concatenate([getattr(driven.sent, name)[within] for driven, within in zip(turns, inside, strict=True)])
        for name in ("function", "due", "latency", "status", "back")
    )
    windows = {name: [window for driven in turns for window in driven.windows[name]] for name in turns[0].windows}
    deadlines = np.array([served.deadline_s for served in rig.functions])
    alone = np.array([solo[served.model] for served in rig.functions])
    met = (status == 200) & (latency <= deadlines[function])
    refused = status == 429
    ended = [
        settled
        for settled in rig.witness.settled
        if any(begin <= settled.arrival_us / 1e6 < begin + seconds for begin in begins)
    ]
    runs = {
        (settled.started_us, settled.gpu, execution.pid): execution
        for settled in ended
        if settled.meta and (execution := decode_execution(settled.meta)).run_ms is not None
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
        met_platform=sum(
            settled.state == "succeeded" and settled.finished_us <= settled.deadline_us for settled in ended
        ),
        expired=sum(settled.state == "expired" for settled in ended),
        statuses=dict(sorted(Counter(status.tolist()).items())),
        goodput=goodput,
        by_turn=[float((met & (due >= begin) & (due < begin + seconds)).sum() / seconds) for begin in begins],
        harvest=per_second(due[met], alone[function[met]], begins, seconds),
        busy=sum(execution.run_ms or 0.0 for execution in runs.values()) / 1e3 / lasted_s,
        batch=statistics.fmean([execution.batch for execution in runs.values()]) if runs else math.nan,
        p50_ms=float(p50),
        p95_ms=float(p95),
        functions={
            served.model: {
                "met": int(met[function == number].sum()),
                "admitted": int((~refused[function == number]).sum()),
                "refused": int(refused[function == number].sum()),
            }
            for number, served in enumerate(rig.functions)
        },
        losses={name: estimate(within) for name, within in windows.items()},
        windows={name: len(within) for name, within in windows.items()},
        arrivals=[
            (driven.sent.due - (driven.begin - WARMUP_S), driven.sent.function.astype(np.int64)) for driven in turns
        ],
    )


def enough_windows(
    rig: Rig, first: tuple[float, float], go_on: Callable[[float], None], at_most: int
) -> dict[str, list[ClosedWindow]]:
    """
    The closed windows of each training within ``first`` (epoch seconds).

    Where they are too few for an estimate, ``go_on(seconds)`` sends the load for half as long again, at most ``at_most``
    times; only the windows of that time count. With 0 it takes the windows that are reported already.
    """
    spans = [first]
    while not _enough(windows := _within(rig, spans)) and len(spans) <= at_most:
        began, more = time.time(), (first[1] - first[0]) / 2
        go_on(more)
        spans.append((began, began + more))
    if at_most and not _enough(windows):
        rig.report_windows(until=spans[-1][1])
        windows = _within(rig, spans)
    return windows


def _within(rig: Rig, spans: Sequence[tuple[float, float]]) -> dict[str, list[ClosedWindow]]:
    """The windows of each training that were reported and lie within one of the spans."""
    return {
        name: [window for span in spans for window in rig.witness.within(job, *span)] for name, job in rig.jobs.items()
    }


def _enough(windows: Mapping[str, Sequence[ClosedWindow]]) -> bool:
    return all(len(of_job) >= LEAST_WINDOWS for of_job in windows.values())


def shown(point: Point) -> str:
    """A point as a line of text."""
    losses = ", ".join(f"{name} {_lost(loss, point.windows[name])}" for name, loss in point.losses.items())
    functions = ", ".join(
        f"{name} {count['met']}/{count['admitted']}+{count['refused']}" for name, count in point.functions.items()
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
            statements = {name: msgspec.structs.asdict(rig.client.statement(job)) for name, job in rig.jobs.items()}
    replays = simulated.replay(policy, calibration)
    for replay in replays:
        report.progress("simulated: " + ", ".join(f"{name} {value:.3f}" for name, value in replay.items()))
    named = figures(policy, fixed, reference, options.budget) | {"capacity_rate": most}
    return named | simulated.figures(policy, replays), {
        "solo_s": solo,
        "simulated": replays,
        "options": asdict(options),
        "functions": [asdict(served) for served in FUNCTIONS],
        "trainings": [training.workload for training in TRAININGS],
        "policy": [row(point) for point in policy],
        "fixed": [row(point) for point in fixed],
        "statements": {name: statement["summary"] for name, statement in statements.items()},
    }


def looks(rig: Rig, solo: Mapping[str, float], seed: int) -> list[Point]:
    """Short points at rising rates, up to the first at which too few deadlines are met."""
    points: list[Point] = []
    while not points or points[-1].met >= ENOUGH * points[-1].submitted:
        rate = points[-1].rate * RISE if points else FIRST_RATE
        points.append(measure(rig, solo, seconds=LOOK_S, rate=rate, seed=seed, losses=False))
        report.progress(shown(points[-1]))
    return points


def best_fixed(fixed: Sequence[Point], budget: float) -> Point | None:
    """The point with the highest harvest among those that keep the budget; None without one."""
    return max((point for point in fixed if keeps(point, budget)), key=lambda point: point.harvest.value, default=None)


def sweep(measured: Callable[[Sequence[float], int], list[Point]], most: float, options: Options) -> list[Point]:
    """Fixed rates, then some more between the highest within the budget and the lowest above it; by rate."""
    points = measured([multiple * most for multiple in options.fixed], options.seed + 100)
    for number in range(options.refined):
        within = max((point.rate for point in points if keeps(point, options.budget)), default=0.0)
        above = [point.rate for point in points if not keeps(point, options.budget) and point.rate > within]
        if not above:
            break
        points += measured([(within + min(above)) / 2], options.seed + 200 + number)
    return sorted(points, key=lambda point: point.rate)


def keeps(point: Point, budget: float) -> bool:
    """Whether the estimated mean of the largest loss is within the budget; a point without an estimate is not."""
    return point.worst is not None and point.worst.mean <= budget


def figures(policy: Sequence[Point], fixed: Sequence[Point], reference: float, budget: float) -> dict[str, float]:
    """The figures of the module's docstring, as far as they could be measured."""
    over, lower = policy[-1], policy[:-1]
    named: dict[str, float] = {"reference_rate": reference, "overload_rate": over.rate, "budget": budget}

    def put(name: str, value: Estimate) -> None:
        for ending, number in (("", value.value), ("_low", value.low), ("_high", value.high)):
            if math.isfinite(number):
                named[name + ending] = number

    put("dsr_admitted", wilson(over.met, over.admitted))
    put("dsr_admitted_platform", wilson(over.met_platform, over.ended_platform))
    put("goodput", over.goodput)
    put("harvest", over.harvest)
    if lower:
        put(
            "goodput_ratio",
            ratio(over.goodput, max((point.goodput for point in lower), key=lambda estimate: estimate.value)),
        )
    best = best_fixed(fixed, budget)
    if best is not None:
        named["best_fixed_rate"], named["best_fixed_harvest"] = best.rate, best.harvest.value
        put("harvest_ratio", ratio(over.harvest, best.harvest))
    most = affordable(fixed, budget)
    if most is not None:
        named["affordable_harvest"], named["harvest_ratio_fitted"] = most, over.harvest.value / most
    if over.worst is not None:
        put("worst_job_loss", Estimate(value=over.worst.mean, low=over.worst.low, high=over.worst.high))
    named["worst_job_loss_all"] = max((point.worst.mean for point in policy if point.worst is not None), default=0.0)
    if over.refused:
        named["retry_after_share"] = over.named_a_time / over.refused
    return named


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
    """A point as JSON values, without its arrivals."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {str(name): plain(item) for name, item in value.items()}
        return (report.rounded(value) if math.isfinite(value) else None) if isinstance(value, float) else value

    return cast(
        "dict[str, object]", plain({name: value for name, value in asdict(point).items() if name != "arrivals"})
    )


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(",") if number)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.overload",
        description="Overload at five times the reference rate; see the module's docstring.",
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
    report.end_on_sigterm()
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
    named, extra = run(options)
    if asked.json:
        report.emit("lab.bench.overload", named, **extra)
    else:
        for name, value in sorted(named.items()):
            print(f"{name:28}{report.rounded(value):>12g}")
