"""The replay of instances under a rule: by hand, and against the rules' own objects driven event by event."""

import heapq
import math

import numpy as np
import pytest

from scheduler.backtest.instances import Setup, Workload, score
from scheduler.policy.forecast import Forecast
from scheduler.policy.prewarm.kernel import (
    AHEADS,
    BUSY_S,
    COLDS,
    FIELDS,
    HISTOGRAM,
    IDLE_S,
    LATES,
    LOADING_S,
    ORACLE,
    PRICED,
    REQUESTS,
    wanted,
)
from scheduler.policy.prewarm.rules import rule
from scheduler.policy.prewarm.window import PrewarmRule, WarmWindow

LOAD_S = 1.5


def work(counts: list[int], run_s: float = 0.5) -> Workload:
    return Workload(
        name="made up",
        names=("one",),
        counts=np.array([counts]),
        run_s=np.array([run_s]),
        memory_gb=np.ones(1),
        load_s=LOAD_S,
    )


def driven(tried: PrewarmRule, trace: Workload, forecast: dict[int, float] | None = None) -> np.ndarray:
    """
    What a rule's answers amount to, instance by instance: an idle one goes when fewer are held than are loaded, one is
    loaded a cold start before a hold that was said early enough. Instances are objects here; the replay knows levels
    only.
    """
    minutes = trace.counts.shape[1]
    run_s, end = float(trace.run_s[0]), 60.0 * minutes
    events = (
        [(60.0 * minute, 0, minute) for minute in range(minutes)]
        + [(float(at), 2, -1) for at in trace.arrivals(0, 0)]
        + [(end, 3, -1)]
    )
    heapq.heapify(events)
    holds: list[WarmWindow] = []
    idle: list[tuple[float, float]] = []  # (idle since, ready at)
    busy = 0
    tally = np.zeros(FIELDS)

    def target(at: float, lead: float) -> int:
        return max((hold.instances for hold in holds if hold.from_at - lead <= at < hold.until_at), default=0)

    def spend(since: float, until: float, ready: float) -> None:
        tally[LOADING_S] += max(0.0, min(until, ready) - since) if ready > since else 0.0
        tally[IDLE_S] += max(0.0, until - max(since, ready))

    now = 0.0
    while events:
        at, kind, what = heapq.heappop(events)
        # Between events, holds begin and end.
        edges = sorted(
            {now, *(t for hold in holds for t in (hold.from_at - LOAD_S, hold.from_at, hold.until_at) if now < t < at)}
        )
        for edge in edges:
            loading = any(hold.from_at - LOAD_S == edge for hold in holds)
            while busy + len(idle) > target(edge, LOAD_S) and idle:
                since, ready = idle.pop(0)
                spend(since, edge, ready)
            while (loading or edge == now) and busy + len(idle) < target(edge, LOAD_S):
                idle.insert(0, (edge, edge + LOAD_S))
                tally[AHEADS] += 1
        now = at
        if at >= end:
            break
        if kind == 0:
            told = None
            if forecast is not None:
                values = np.array([forecast.get(what, 0.0), forecast.get(what + 1, 0.0)])
                told = Forecast(from_at=at, mean=values, any=1 - np.exp(-values), source="made up")
            answer = tried.minute(at, None, told)
        elif kind == 1:
            busy -= 1
            idle.append((at, at))
            answer = tried.idle(at, len(idle), busy)
        else:
            tally[REQUESTS] += 1
            ready = at + LOAD_S
            if idle:
                since, ready_at = idle.pop()
                spend(since, max(at, ready_at), ready_at)
                tally[LATES] += ready_at > at
                ready = max(at, ready_at)
            else:
                tally[COLDS] += 1
                tally[LOADING_S] += LOAD_S
            busy += 1
            tally[BUSY_S] += max(0.0, min(end, ready + run_s) - ready)
            heapq.heappush(events, (ready + run_s, 1, -1))
            answer = tried.arrived(at)
        if answer is not None:
            holds = list(answer)
    for since, ready in idle:
        spend(since, end, ready)
    return tally


BURSTS = [0, 5, 0, 0, 9, 1, 0, 0, 0, 7, 0, 2, 2, 0, 0, 5, 0, 0, 9, 1, 0, 0, 0, 7, 0, 2, 2, 0]


@pytest.mark.parametrize(
    ("name", "knobs", "setup"),
    [
        ("never", {}, Setup(name="never")),
        ("keep-alive", {"seconds": 45.0}, Setup(name="keep", keep_s=45.0)),
        (
            "hhp",
            {"least": 3, "range_minutes": 20},
            Setup(name="hhp", how=HISTOGRAM, knobs=(1.0, 5, 99, 0.1, 3, 2.0, 0.5, 0, 20, 1440, 60)),
        ),
        (
            "lsth",
            {"least": 3, "range_minutes": 20, "short_minutes": 10},
            Setup(name="lsth", how=HISTOGRAM, knobs=(0.5, 5, 99, 0.1, 3, 2.0, 0.5, 0, 20, 1440, 10)),
        ),
        (
            "priced",
            {"price_gb_s": 40.0, "load_s": LOAD_S, "run_s": 0.5},
            Setup(name="priced", how=PRICED, knobs=(1.0, 0.3), price_s=np.array([40.0])),
        ),
    ],
)
def test_a_replay_is_what_the_rule_itself_would_have_done(name: str, knobs: dict[str, float], setup: Setup) -> None:
    trace = work(BURSTS * 4)
    by_hand, replayed = driven(rule(name, **knobs), trace), score(trace, setup, 0, 0)[0]
    assert replayed[[REQUESTS, COLDS, LATES]] == pytest.approx(by_hand[[REQUESTS, COLDS, LATES]])
    assert replayed[BUSY_S] == pytest.approx(by_hand[BUSY_S])
    # Where a lower level comes back while a higher one is held, an instance stands for either.
    assert replayed[[LOADING_S, IDLE_S]] == pytest.approx(by_hand[[LOADING_S, IDLE_S]], rel=2e-3)
    assert 0 < by_hand[COLDS] <= by_hand[REQUESTS]


def test_a_replay_closes_on_count_as_the_rule_does() -> None:
    counts = [0, 4, 4, 0, 3, 0]
    ahead = {1: 4.0, 2: 2.0, 4: 1.0}
    base = np.array([[0, 1, 1, 0, 1, 0]])
    close = np.array([[0, 4, 2, 0, 1, 0]])
    trace = work(counts, 0.1)
    by_hand = driven(
        rule("ls-lstm", run_s=0.1, load_s=LOAD_S), trace, {minute: ahead.get(minute, 0.0) for minute in range(8)}
    )
    replayed = score(trace, Setup(name="ls-lstm", base=base, close=close), 0, 0)[0]
    assert replayed[[REQUESTS, COLDS, LATES]] == pytest.approx(by_hand[[REQUESTS, COLDS, LATES]])
    assert replayed[COLDS] >= 1


def test_an_oracle_has_no_cold_start_and_wastes_a_load_or_the_pause() -> None:
    trace = work([1, 0, 0, 1], 0.5)
    tally = score(trace, Setup(name="oracle", how=ORACLE), 0, 0)[0]
    assert tally[COLDS] == 0
    assert tally[LOADING_S] + tally[IDLE_S] == pytest.approx(2 * LOAD_S)


def test_only_what_lies_after_the_training_part_is_scored() -> None:
    trace = work([3, 3, 3, 3])
    tally = score(trace, Setup(name="always", keep_s=math.inf, base=np.ones((1, 4), np.int64)), 0, 2)[0]
    assert tally[REQUESTS] == 6
    assert tally[LOADING_S] + tally[IDLE_S] + tally[BUSY_S] >= 120.0 - 1e-6


def test_a_forecast_column_is_what_the_rule_would_hold() -> None:
    instances, told = wanted(
        np.array([[1.0, 0.0, math.nan]]), np.array([[1.0, 0.0, 1.0]]), np.array([200.0]), LOAD_S, np.array([0.1])
    )
    assert instances.tolist() == [[1, 0, 0]]
    assert told.tolist() == [[1, 1, 0]]
