"""
Forecasts on their way: from counts to the published blob, from the blob to a rule; what is cut, foreign or no
number.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from ml.forecast import lstm
from ml.forecast.foresight import Best, Floats, Foresight, matrix
from scheduler.leader import foresight
from scheduler.policy.decisions import Dispatch, Prewarm
from scheduler.policy.demand import Demand
from scheduler.policy.events import CountsKnown
from scheduler.policy.prewarm.fixed import KeepAlive
from scheduler.policy.prewarm.ls_lstm import PaperRule
from scheduler.policy.prewarm.priced import Priced
from scheduler.policy.prewarm.window import WarmWindow
from scheduler.tasks.forecasting import Rehearsal
from smore.domain.function import FunctionSpec, Prewarming, Profile
from smore.domain.prewarming import OWN
from smore.messages import forecasts as wire
from smore.postgres.arrivals import ArrivalCounts, Fitted
from smore.process.settings import PrewarmSettings
from smore.testing import ManualClock
from tests.support.policy_events import arrived, function
from tests.support.prewarm_stage import Stage, report, served

T = 1_800_000_000.0 // 60 * 60


class Door:
    """What Postgres would hold."""

    def __init__(self, past: ArrivalCounts) -> None:
        self.counted = past
        self.fitted: list[Fitted] = []

    def past(self, since: float, until: float) -> ArrivalCounts:
        first = int((since - self.counted.from_at) // 60)
        first, last = max(0, first), int((until - self.counted.from_at) // 60)
        counted = list(self.counted.counted[first:last])
        counts = {
            name: {minute - first: count for minute, count in minutes.items() if first <= minute < last}
            for name, minutes in self.counted.counts.items()
        }
        return ArrivalCounts(from_at=self.counted.from_at + 60 * first, counted=counted, counts=counts)

    def newest(self) -> Fitted | None:
        return self.fitted[-1] if self.fitted else None

    def store(self, manifest: dict[str, Any], model: bytes) -> int:
        version = len(self.fitted) + 1
        self.fitted.append(Fitted(version=version, created_at=T, manifest=manifest, model=model))
        return version


class Wall:
    def __init__(self) -> None:
        self.forecasts: list[wire.Forecasts] = []
        self.counted: wire.Counted | None = None
        self.used = self.asked = self.done = 0

    def publish(self, forecasts: wire.Forecasts) -> None:
        self.forecasts.append(forecasts)

    def version(self) -> int:
        return len(self.forecasts)

    def use_model(self, model: int) -> None:
        self.used = model

    def lesson(self) -> int:
        return self.asked

    def learned(self, lesson: int) -> None:
        self.done = lesson

    def put_counts(self, counted: wire.Counted) -> None:
        self.counted = counted


class Twice:
    """A toolkit: what came last, twice."""

    def fit(self, functions: Sequence[str], counts: Floats, paper: Sequence[int], before: bytes | None) -> bytes:
        return msgspec.json.encode([counts.shape[1], list(paper)])

    def forecast(self, model: bytes, since: Floats, horizon: int) -> tuple[Floats, Floats, list[str]]:
        mean = np.repeat(2 * since[:, -1:], horizon, axis=1)
        return mean, np.minimum(mean, 1.0), ["twice"] * len(since)


def made(past: ArrivalCounts, clock: ManualClock, *, toolkit: Any = None, **knobs: Any) -> tuple[Foresight, Door, Wall]:
    door, wall = Door(past), Wall()
    settings = PrewarmSettings(least_minutes=10, horizon=3, **knobs)
    return (
        Foresight(door, wall, settings, toolkit=toolkit or Twice(), paper=lambda: {"p/b"}, clock=clock),  # type: ignore[arg-type]
        door,
        wall,
    )


def past(minutes: int, *, unknown: Sequence[int] = ()) -> ArrivalCounts:
    counts = {"p/a": dict.fromkeys(range(0, minutes + 10, 3), 1), "p/b": {0: 5}}
    return ArrivalCounts(from_at=T, counted=[minute not in unknown for minute in range(minutes + 10)], counts=counts)


def test_a_minute_that_nobody_counted_is_no_number() -> None:
    found = matrix(past(4, unknown=[1, 3]), ["p/a", "p/c"])
    np.testing.assert_array_equal(found[:, :5], [[1, math.nan, 0, math.nan, 0], [0, math.nan, 0, math.nan, 0]])


def test_too_few_minutes_are_not_fitted() -> None:
    door, _, wall = made(past(20, unknown=range(11)), ManualClock(T + 20 * 60))
    assert door.fit(asked=True).result == "skipped"
    assert door.forecast().result == "skipped"
    assert wall.used == 0


def test_it_is_fitted_when_it_is_due_and_forecasts_follow_what_came_since() -> None:
    clock = ManualClock(T + 20 * 60 + 5)
    made_, door, wall = made(past(20), clock)
    outcome = made_.fit(asked=False)
    assert (outcome.result, outcome.functions, wall.used) == ("fitted", 2, 1)
    assert msgspec.json.decode(door.fitted[0].model) == [20, [1]]
    door.fitted[0] = Fitted(version=1, created_at=clock(), manifest=door.fitted[0].manifest, model=door.fitted[0].model)
    clock.advance(120)
    assert made_.fit(asked=False).result == "skipped"
    assert made_.forecast().result == "published"
    (blob,) = wall.forecasts
    assert (blob.functions, blob.sources, blob.model) == (["p/a", "p/b"], ["twice"] * 2, 1)
    # The 22nd minute is the first that is forecast; the one before it was the 22nd of its third: there was a request.
    assert blob.from_at == T + 22 * 60
    event = foresight.updated(wire.decode(wire.encode(blob)))
    np.testing.assert_array_equal(event.forecasts["p/a"].mean, [2.0, 2.0, 2.0])
    assert event.forecasts["p/a"].expected(T + 22 * 60) == 2.0
    clock.advance(600)
    assert made_.fit(asked=False).result == "fitted"


def test_a_fit_that_is_killed_leaves_the_last_one_in_use() -> None:
    class Killed(Twice):
        def fit(self, functions: Sequence[str], counts: Floats, paper: Sequence[int], before: bytes | None) -> bytes:
            raise KeyboardInterrupt

    clock = ManualClock(T + 20 * 60 + 5)
    made_, door, wall = made(past(20), clock)
    made_.fit(asked=True)
    killed = Foresight(
        door,  # type: ignore[arg-type]
        wall,  # type: ignore[arg-type]
        PrewarmSettings(least_minutes=10, horizon=3),
        toolkit=Killed(),
        paper=set,
        clock=clock,
    )
    with pytest.raises(KeyboardInterrupt):
        killed.fit(asked=True)
    assert (len(door.fitted), wall.used, wall.forecasts) == (1, 1, [])
    clock.advance(60)
    assert killed.forecast().result == "published"


def test_what_a_redis_has_lost_is_said_again() -> None:
    clock = ManualClock(T + 20 * 60 + 5)
    made_, door, _ = made(past(20), clock)
    made_.fit(asked=True)
    door.fitted[0] = Fitted(version=1, created_at=clock(), manifest=door.fitted[0].manifest, model=door.fitted[0].model)
    emptied = Wall()
    again = Foresight(
        door,  # type: ignore[arg-type]
        emptied,  # type: ignore[arg-type]
        PrewarmSettings(least_minutes=10, horizon=3),
        toolkit=Twice(),
        paper=set,
        clock=clock,
    )
    assert again.fit(asked=False).result == "skipped"
    assert (emptied.used, emptied.counted is not None) == (1, True)
    clock.advance(60)
    assert again.forecast().version == 1


def test_numbers_of_another_shape_are_not_published() -> None:
    class Short(Twice):
        def forecast(self, model: bytes, since: Floats, horizon: int) -> tuple[Floats, Floats, list[str]]:
            return since[:1, :1], since[:1, :1], ["short"]

    made_, _, wall = made(past(20), ManualClock(T + 20 * 60 + 5), toolkit=Short())
    made_.fit(asked=True)
    assert made_.forecast().result == "failed"
    assert wall.forecasts == []


def test_a_forecaster_that_returns_no_number_leaves_its_function_to_the_keep_alive() -> None:
    """From the toolkit to the leader, by way of the blob; another function is foreseen meanwhile."""

    class Broken(Twice):
        def forecast(self, model: bytes, since: Floats, horizon: int) -> tuple[Floats, Floats, list[str]]:
            numbers = np.array([[math.nan] * horizon, [1.0] * horizon])
            return numbers, numbers, ["broken", "broken"]

    clock = ManualClock(T + 20 * 60.0)
    counts = {"p/f0": {0: 1}, "p/f1": {0: 1}}
    door, _, wall = made(ArrivalCounts(from_at=T, counted=[True] * 30, counts=counts), clock, toolkit=Broken())
    assert door.fit(asked=True).result == "fitted"
    assert door.forecast().result == "published"
    blob = wire.decode(wire.encode(wall.forecasts[0]))
    stage = Stage(foresees=True)
    stage.at(clock() - 60, function(0), function(1), served(0), served(1))
    for rule in stage.rules.values():
        rule.on_minute = [WarmWindow(from_at=clock(), until_at=math.inf)]
    stage.at(clock() - 1, report("a", clock() - 1), foresight.updated(blob))
    assert [(one.function, one.gpu) for one in stage.at(clock()) if isinstance(one, Prewarm)] == [("p/f1", "a")]
    assert {one.function: (one.source, one.silence) for one in stage.prewarmer.reports.statuses()} == {
        "p/f0": ("keep-alive", "not_a_number"),
        "p/f1": ("broken", ""),
    }
    # A request of the silenced one that finds nothing ready has that for its reason.
    stage.at(clock(), CountsKnown(counts={"p/f0": [(T, 1)]}))
    (dispatch,) = (one for one in stage.at(clock() + 1, arrived(0, "1", at=clock() + 1)) if isinstance(one, Dispatch))
    assert dispatch.reasons.unforeseen == "not_a_number"


def test_a_new_leader_is_taught_the_newest_minutes_alone() -> None:
    made_, _, wall = made(past(1500, unknown=[1499]), ManualClock(T + 1500 * 60))
    made_.fit(asked=True)
    assert wall.counted is not None
    counted = wire.decode_counted(wire.encode(wall.counted))
    assert (counted.from_at, len(counted.known), counted.known[-1]) == (T + 60 * 60, 1439, 1438)
    event = foresight.counts_known(counted, most=20)
    assert list(event.counts["p/b"]) == []
    assert list(event.counts["p/a"])[-1] == (T + 1497 * 60, 1)
    assert len(event.counts["p/a"]) == 10


def lent(minutes: int = 30) -> ArrivalCounts:
    """Nothing but a trace of ``p/b``, and of ``p/c`` too little."""
    imported = {
        "p/b": {minute: minute % 2 for minute in range(10, minutes)},
        "p/c": dict.fromkeys(range(25, minutes), 1),
    }
    return ArrivalCounts(from_at=T, counted=[False] * minutes, counts={"p/a": {29: 1}}, imported=imported)


def test_what_was_imported_stands_where_nobody_counted() -> None:
    found = matrix(
        ArrivalCounts(from_at=T, counted=[True, False], counts={"p/a": {0: 3, 1: 9}}, imported={"p/a": {1: 0}}),
        ["p/a", "p/b"],
    )
    np.testing.assert_array_equal(found, [[3, 0], [0, math.nan]])


def test_a_platform_that_has_counted_nothing_forecasts_from_a_trace() -> None:
    clock = ManualClock(T + 30 * 60)
    made_, door, wall = made(lent(), clock)
    door.past = lambda since, until: lent()  # type: ignore[method-assign]
    wall.asked = 7
    outcome = made_.fit(asked=False)
    # Of the others nobody knows enough: they go on with their keep-alive.
    assert (outcome.result, door.fitted[0].manifest["functions"], wall.done) == ("fitted", ["p/b"], 7)
    # From the first minute of the trace on, and LS-LSTM is the row's that wants it.
    assert msgspec.json.decode(door.fitted[0].model) == [20, [0]]
    assert (door.fitted[0].manifest["imported"], door.fitted[0].manifest["lesson"]) == ({"p/b": 20, "p/c": 5}, 7)
    assert wall.counted is not None
    assert (wall.counted.lesson, wall.counted.known) == (7, [])
    assert list(wall.counted.counts["p/b"]) == [value for minute in range(11, 30, 2) for value in (minute, 1)]
    assert made_.forecast().functions == 1
    assert wall.forecasts[0].lesson == 7


def test_a_trace_that_is_taken_back_is_forecast_from_no_more() -> None:
    clock = ManualClock(T + 30 * 60)
    made_, door, wall = made(lent(), clock)
    door.past = lambda since, until: lent()  # type: ignore[method-assign]
    made_.fit(asked=False)
    door.fitted[0] = Fitted(version=1, created_at=clock(), manifest=door.fitted[0].manifest, model=door.fitted[0].model)
    door.past = lambda since, until: ArrivalCounts(from_at=T, counted=[False] * 30, counts={})  # type: ignore[method-assign]
    assert (made_.fit(asked=False).result, wall.used) == ("skipped", 1)
    # Something was imported or removed since: no fit is young enough.
    wall.asked = 1
    assert (made_.fit(asked=False).result, wall.used, wall.done) == ("skipped", 0, 1)


def best(price_gb_s: float = 60.0) -> Best:
    specs = {"p/a": FunctionSpec(entrypoint="m:C", profile=Profile(load_s=1.5))}
    return Best(lambda names, counts, begin: Rehearsal(names, counts, begin, specs, price_gb_s))


def hourly(minutes: int) -> Floats:
    """Once in four minutes of each hour, which gaps alone do not tell apart."""
    return np.isin(np.arange(minutes) % 60, [0, 7, 19, 40]).astype(np.float64)


def test_each_function_gets_the_forecaster_that_would_have_cost_least() -> None:
    """
    What comes on the clock is foreseen; what comes at random is best met by its own gaps, and so is what never comes.
    """
    random = np.random.default_rng(0)
    minutes = np.arange(600)
    counts = np.stack([hourly(600), random.random(600) < 0.3, (minutes % 10 == 3) * 4.0, np.zeros(600)])
    names = ["p/a", "p/b", "p/c", "p/d"]
    model = best().fit(names, counts, [], None)
    mean, any_, sources = best().forecast(model, counts[:, :0], 10)
    assert sources[1] == sources[3] == OWN
    assert np.isnan(mean[1]).all()
    assert {sources[0], sources[2]} <= {"seasonal-naive", "renewal"}
    assert [minute for minute in range(10) if any_[0, minute] > 0.5] == [0, 7]
    assert any_[2].argmax() == 3
    assert mean[2, 3] > 2.0


def test_nothing_is_worth_foreseeing_where_a_cold_start_is_worth_nothing() -> None:
    counts = hourly(600)[None, :]
    assert best(0.0).forecast(best(0.0).fit(["p/a"], counts, [], None), counts[:, :0], 1)[2] == [OWN]


def test_minutes_since_the_fit_count() -> None:
    counts = hourly(603)[None, :]
    model = best().fit(["p/a"], counts[:, :600], [], None)
    _, any_, _ = best().forecast(model, counts[:, 600:], 7)
    assert any_[0].argmax() == 4


def test_a_backtest_knows_each_functions_own_cold_start() -> None:
    """Two functions alike but for the seconds of their load: what a load costs is on each one's own bill."""
    counts = np.zeros((2, 100))
    counts[:, ::50] = 1.0
    specs = {
        name: FunctionSpec(entrypoint="m:C", profile=Profile(load_s=load))
        for name, load in (("p/a", 1.0), ("p/b", 9.0))
    }
    judge = Rehearsal(["p/a", "p/b"], counts, 0, specs, 10.0)
    quick, slow = judge(None, np.array([True, True]))
    assert slow > quick > 0
    assert judge(None, np.array([True, False])).tolist() == [quick, 0.0]


def test_ls_lstm_goes_on_from_the_fit_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there was none, or one that cannot be read, it begins anew."""
    carried: list[list[int]] = []
    monkeypatch.setattr(lstm.LongShort, "rearrange", lambda _, rows: carried.append(list(rows)))
    monkeypatch.setattr(lstm.Grouped, "fit", lambda *_: None)
    counts = hourly(60)[None, :].repeat(2, axis=0)
    first = best().fit(["p/a", "p/b"], counts, [1], None)
    best().fit(["p/0", "p/b"], counts, [0, 1], first)
    best().fit(["p/a", "p/b"], counts, [1], b"of another version")
    assert carried == [[-1, 0]]


# ---- what cannot be used ---------------------------------------------------------------------------------------------


def blob(**fields: Any) -> wire.Forecasts:
    known: dict[str, Any] = {
        "version": 1,
        "model": 1,
        "made_at": T,
        "from_at": T,
        "horizon": 2,
        "functions": ["p/a"],
        "sources": ["x"],
        "mean": bytes(8),
        "any": bytes(8),
    }
    return wire.Forecasts(**(known | fields))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not a forecast"),
        (b"\xff\xff", "not a forecast"),
        (wire.encode(blob())[:-9], "not a forecast"),
        (wire.encode(blob(format=2)), "format 2, 1 is expected"),
        (wire.encode(blob(mean=bytes(4))), "do not fit"),
        (wire.encode(blob(sources=[])), "do not fit"),
        (wire.encode(blob(horizon=0, mean=b"", any=b"")), "do not fit"),
    ],
)
def test_a_blob_that_is_cut_or_foreign_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(wire.BadForecast, match=words):
        wire.decode(raw)


# ---- rules by the settings -------------------------------------------------------------------------------------------


def demand(**fields: Any) -> Demand:
    return Demand(function="p/a", revision=1, spec=FunctionSpec(entrypoint="m:C", **fields), column=0)


def test_a_function_gets_the_rule_of_its_mode() -> None:
    found = foresight.prewarm_knobs(PrewarmSettings())
    assert isinstance(found.rules(Prewarming.AUTO, demand()), Priced)
    assert isinstance(found.rules(Prewarming.PAPER, demand()), PaperRule)
    assert found.foresees == {Prewarming.AUTO, Prewarming.PAPER}
    found = foresight.prewarm_knobs(PrewarmSettings(rule="keep-alive", knobs={"seconds": 5.0}))
    rule = found.rules(Prewarming.AUTO, demand(keep_alive_s=600.0))
    assert isinstance(rule, KeepAlive)
    assert rule.idle(T, 1) == [WarmWindow(from_at=T, until_at=T + 5.0)]
    assert found.foresees == {Prewarming.PAPER}


@pytest.mark.parametrize(
    "settings",
    [PrewarmSettings(rule="spine"), PrewarmSettings(knobs={"spine": 1}), PrewarmSettings(knobs={"tail": -1})],
)
def test_unknown_rules_and_knobs_are_told_at_the_start(settings: PrewarmSettings) -> None:
    with pytest.raises(ValueError, match=r"spine|tail"):
        foresight.prewarm_knobs(settings)
