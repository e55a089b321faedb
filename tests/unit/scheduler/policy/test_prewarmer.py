"""
The keeper: holds become loads and offloads on the right GPU instances, in time, within bounds; what it does not know it
says.
"""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from scheduler.policy import kernel
from scheduler.policy.decisions import Dispatch, Offload, Prewarm
from scheduler.policy.events import (
    CountsKnown,
    Event,
    ForecastsUpdated,
    FunctionRemoved,
    GpuLost,
    InstanceReported,
    InvocationArrived,
    InvocationSettled,
    PausesChanged,
)
from scheduler.policy.forecast import Forecast
from scheduler.policy.knobs import preset
from scheduler.policy.prewarm.instances import LEASE_S
from scheduler.policy.prewarm.prewarmer import AT_A_TIME
from scheduler.policy.prewarm.priced import Priced
from scheduler.policy.prewarm.rules import rule
from scheduler.policy.prewarm.status import ColdStartReason
from scheduler.policy.prewarm.window import WarmWindow
from smore.domain.function import Prewarming
from tests.support.driven import DrivenEngine
from tests.support.policy_events import arrived, function, known
from tests.support.prewarm_stage import Stage, T, forecasts, kinds, report, served, standing

# ---- in time ---------------------------------------------------------------------------------------------------------


def test_a_load_begins_a_cold_start_and_the_lead_before_its_hold() -> None:
    stage = Stage()
    stage.at(T, function(0), served(), report("a", T))
    assert stage.hold(T, WarmWindow(from_at=T + 10, until_at=T + 20)) == []
    assert stage.prewarmer.next_at == T + 8
    assert stage.at(T + 7.9) == []
    (decision,) = stage.at(T + 8)
    assert decision == Prewarm(function="p/f0", revision=1, gpu="a", instances=1, until_at=T + 8 + LEASE_S)
    assert stage.at(T + 9) == []
    assert stage.at(T + 10, report("a", T + 10, 1)) == []
    assert stage.prewarmer.next_at == T + 20
    assert kinds(stage.at(T + 20)) == [("offload", "a", 0)]
    assert stage.engine.cluster.cell(kernel.RESIDENT)[0, 0] == 0
    assert stage.at(T + 20.1) == []


def test_the_lead_is_the_measured_cold_start() -> None:
    stage = Stage()
    stage.at(T, function(0), served(), report("a", T))
    for _ in range(30):
        stage.at(T, InstanceReported(function="p/f0", revision=1, gpu="a", load_s=5.0))
    stage.hold(T, WarmWindow(from_at=T + 10, until_at=T + 20))
    assert stage.prewarmer.next_at == pytest.approx(T + 4, abs=0.01)


def test_a_hold_is_told_again_before_its_lease_is_over() -> None:
    stage = Stage()
    stage.at(T, function(0), served(), report("a", T, 1))
    assert stage.hold(T, WarmWindow(from_at=T, until_at=math.inf)) == []  # it was told when it was found
    assert kinds(stage.at(T + LEASE_S / 2 - 1)) == []
    (again,) = stage.at(T + LEASE_S / 2)
    assert isinstance(again, Prewarm)
    assert again.until_at == T + 1.5 * LEASE_S


def test_nothing_is_due_where_nobody_is_held() -> None:
    """And nothing is decided otherwise than without a keeper."""
    stage, bare = Stage(), DrivenEngine(preset("smore-product"))
    events: list[Event] = [function(0), report("a", T), arrived(0, "1", at=T), arrived(0, "2", at=T)]
    assert [
        replace(one, reasons=replace(one.reasons, unforeseen="")) if isinstance(one, Dispatch) else one
        for one in stage.at(T, *events)
    ] == bare.decide(T, events)
    assert stage.prewarmer.next_at == math.inf


# ---- where -----------------------------------------------------------------------------------------------------------


def test_it_is_loaded_where_it_weighs_least() -> None:
    stage = Stage()
    stage.at(
        T,
        known([[0.05], [0.02], [0.08]]),
        function(0, max_warm=1),
        served(),
        *[report(name, T, training=i) for i, name in enumerate("abc")],
    )
    assert kinds(stage.hold(T, WarmWindow(from_at=T, until_at=T + 60, instances=2))) == [
        ("prewarm", "b", 1),
        ("prewarm", "a", 1),
    ]


def test_it_is_not_loaded_where_the_budget_forbids() -> None:
    stage = Stage()
    engine = DrivenEngine(preset("smore"), prewarmer=stage.prewarmer)
    stage.engine = engine
    stage.at(
        T,
        known([[0.5], [0.02]]),
        function(0, max_warm=1),
        served(),
        report("a", T, training=0),
        report("b", T, training=1),
    )
    assert kinds(stage.hold(T, WarmWindow(from_at=T, until_at=T + 60, instances=2))) == [("prewarm", "b", 1)]
    assert standing(stage).unmet  # type: ignore[attr-defined]


def test_a_load_is_paid_from_the_trainings_account() -> None:
    stage = Stage()
    stage.at(T, known([[0.1]]), function(0), served(), report("a", T, training=0))
    before = stage.engine.cluster.fact(kernel.TOKENS)[0]
    stage.hold(T, WarmWindow(from_at=T, until_at=T + 60))
    assert stage.engine.cluster.fact(kernel.TOKENS)[0] == pytest.approx(before - 0.1 / 1.1, abs=1e-6)


def test_idle_instances_hold_a_share_of_the_free_memory_at_most() -> None:
    stage = Stage(share=0.025)  # of 10,000 MiB: two of them
    stage.at(T, function(0, max_warm=8), served(), report("a", T))
    assert kinds(stage.hold(T, WarmWindow(from_at=T, until_at=T + 60, instances=5))) == [
        ("prewarm", "a", 1),
        ("prewarm", "a", 2),
    ]
    (dispatch,) = (one for one in stage.at(T + 1, arrived(0, "1", at=T + 1)) if isinstance(one, Dispatch))
    assert dispatch.reasons.unforeseen == ColdStartReason.LATE


def test_the_least_recently_used_idle_instance_gives_way() -> None:
    stage = Stage(share=0.035)
    idle = [("p/x", 1, 100.0, 5.0), ("p/y", 1, 100.0, 50.0), ("p/z", 1, 100.0, 20.0)]
    warm = [("p/x", 1, 1), ("p/y", 1, 2), ("p/z", 1, 1)]
    stage.at(T, function(0), served(), replace(report("a", T), idle=idle, warm=warm))
    # y has another instance, which is at work.
    assert stage.hold(T, WarmWindow(from_at=T, until_at=T + 60)) == [
        Offload(function="p/y", revision=1, gpu="a", keep=1),
        Prewarm(function="p/f0", revision=1, gpu="a", instances=1, until_at=T + LEASE_S),
    ]


def test_what_is_held_gives_way_to_nobody() -> None:
    stage = Stage(share=0.015)
    stage.at(T, function(0), function(1), served(0), served(1), report("a", T, 1))
    stage.hold(T, WarmWindow(from_at=T, until_at=math.inf))
    assert kinds(stage.hold(T, WarmWindow(from_at=T, until_at=math.inf), number=1)) == []
    assert standing(stage, 1).unmet  # type: ignore[attr-defined]


def test_promised_memory_is_promised_once() -> None:
    stage = Stage(share=0.015)
    stage.at(T, function(0), function(1), served(0), served(1), report("a", T))
    assert kinds(stage.hold(T, WarmWindow(from_at=T, until_at=math.inf))) == [("prewarm", "a", 1)]
    assert kinds(stage.hold(T, WarmWindow(from_at=T, until_at=math.inf), number=1)) == []


def test_more_than_max_warm_goes_elsewhere_or_nowhere() -> None:
    stage = Stage()
    stage.at(T, function(0, max_warm=1), served(), report("a", T), report("b", T))
    found = kinds(stage.hold(T, WarmWindow(from_at=T, until_at=math.inf, instances=5)))
    assert found == [("prewarm", "a", 1), ("prewarm", "b", 1)]


def test_a_paused_function_or_platform_is_not_loaded() -> None:
    for paused in ("*", "f:p/f0", "g:a"):
        stage = Stage()
        stage.at(T, function(0), served(), report("a", T), PausesChanged(paused=frozenset((paused,))))
        assert stage.hold(T, WarmWindow(from_at=T, until_at=math.inf)) == []


# ---- knobs of a function ---------------------------------------------------------------------------------------------


def test_min_warm_needs_no_rule() -> None:
    stage = Stage(on=False)
    assert kinds(
        stage.at(T, function(0, min_warm=2, prewarm=Prewarming.OFF), served(), report("a", T), report("b", T))
    ) == [
        ("prewarm", "a", 1),
        ("prewarm", "b", 1),
    ]
    assert stage.rules == {}


def test_off_leaves_idle_instances_to_their_keep_alive() -> None:
    stage = Stage()
    assert stage.at(T, function(0, prewarm=Prewarming.OFF), served(), report("a", T, 3)) == []
    assert standing(stage).silence == ColdStartReason.OFF  # type: ignore[attr-defined]


def test_for_ever_is_for_ever_whatever_a_rule_decides() -> None:
    stage = Stage()
    stage.at(T, function(0, keep_alive_s=-1.0), served(), report("a", T, 2))
    assert stage.hold(T) == []


def test_what_is_more_than_a_rule_holds_goes_but_not_what_is_busy() -> None:
    stage = Stage()
    stage.at(T, function(0), served(), report("a", T, 3), arrived(0, "1", at=T))
    assert kinds(stage.hold(T)) == [("offload", "a", 1)]


def test_what_is_lost_while_another_is_on_its_way_is_charged_when_it_is_loaded_again() -> None:
    stage = Stage(share=1.0)
    stage.at(T, known([[0.3] * 3]), function(0), served(), report("a", T, 1, training=0))
    charged: list[int] = []
    stage.engine.engine.charge_load = lambda now, demand, row: charged.append(row)  # type: ignore[method-assign]
    wanted = WarmWindow(from_at=T, until_at=math.inf, instances=2)
    assert kinds(stage.hold(T, wanted)) == [("prewarm", "a", 2)]
    # The one that was there is evicted before the second has come: one is on its way, so it takes one more, which is
    # paid for.
    assert kinds(stage.at(T + 0.5, report("a", T + 0.5, 0, training=0))) == [("prewarm", "a", 2)]
    assert len(charged) == 2


# ---- what a rule is told ---------------------------------------------------------------------------------------------


def test_a_rule_hears_of_arrivals_minutes_and_the_ends_of_batches() -> None:
    stage = Stage()
    stage.at(T - 1, function(0), served(), report("a", T - 1))
    stage.at(T)
    stage.at(T + 5, arrived(0, "1", at=T + 5))
    stage.at(T + 7, InvocationSettled(id="1", attempt=1))
    stage.at(T + 60)
    rule = stage.rules["p/f0"]
    # The first minute had begun before anybody was there, so nobody knows all of it.
    assert rule.heard == [
        ("minute", T, None, None),
        ("arrived", T + 5),
        ("idle", T + 7, 1, 0),
        ("minute", T + 60, 1, None),
    ]


def test_rules_are_told_of_a_minute_a_few_at_a_time() -> None:
    stage = Stage()
    events: list[Event] = []
    for number in range(AT_A_TIME + 50):
        events += [function(number), served(number)]
    stage.at(T - 1, *events)
    stage.at(T)
    heard = [rule for rule in stage.rules.values() if ("minute", T, None, None) in rule.heard]
    assert (len(heard), stage.prewarmer.next_at) == (AT_A_TIME, T)
    # One hears of the minute before it hears of anything in it.
    last = stage.rules[f"p/f{AT_A_TIME + 49}"]
    stage.at(T + 0.1, arrived(AT_A_TIME + 49, "1", at=T))
    assert last.heard == [("minute", T, None, None), ("arrived", T + 0.1)]
    for _ in range(3):
        stage.at(T + 60)
    assert last.minutes()[-1] == (T + 60, 1, None)
    assert stage.prewarmer.next_at == T + 120


def test_a_new_leader_teaches_its_rules_what_was_counted() -> None:
    stage = Stage()
    stage.at(
        T, function(0), served(), CountsKnown(counts={"p/f0": [(T - 120, 2), (T - 60, 0)], "p/gone": [(T - 60, 1)]})
    )
    heard = stage.rules["p/f0"].heard
    assert heard[4:6] == [("minute", T - 60, 2, None), ("minute", T, 0, None)]
    first, second = (float(heard[index][1]) for index in (0, 2))  # type: ignore[arg-type]
    assert heard[:4] == [("arrived", first), ("idle", first, 1, 0), ("arrived", second), ("idle", second, 1, 0)]
    assert T - 120 <= first < second < T - 60
    # The next leader is taught the same.
    again = Stage()
    again.at(T, function(0), served(), CountsKnown(counts={"p/f0": [(T - 120, 2), (T - 60, 0)]}))
    assert again.rules["p/f0"].heard[:6] == heard[:6]


def test_counts_teach_no_gap_to_the_second() -> None:
    """
    A request in every third minute, whenever in it: most of the next ones find an instance held, and it is not held all
    the time.
    """
    stage, random = Stage(), Random(1)
    made = Priced(price_gb_s=90.0, load_s=1.0, run_s=0.1)
    stage.rules["p/f0"] = made  # type: ignore[assignment]
    stage.at(T, function(0), served(), report("a", T))
    stage.at(T, CountsKnown(counts={"p/f0": [(T - 60.0 * minute, 1) for minute in range(360, 0, -3)]}))
    found, held, until = 0, 0.0, T
    for number in range(40):
        before, until = until, T + 180.0 * (number + 1) + 60.0 * random.random()
        made.arrived(before)
        holds = made.idle(before, 1)
        assert holds is not None
        found += any(hold.from_at <= until < hold.until_at for hold in holds)
        held += sum(max(0.0, min(hold.until_at, until) - hold.from_at) for hold in holds)
    assert found >= 30
    assert held < 0.5 * (until - T)


def test_rules_begin_anew_with_what_was_imported_meanwhile_and_with_what_is_loaded() -> None:
    stage = Stage()
    stage.at(T, function(0), function(1), served(), served(1), report("a", T, 2))
    former, other = stage.rules["p/f0"], stage.rules["p/f1"]
    stage.rules.clear()
    stage.at(T + 90, CountsKnown(counts={"p/f0": [(T - 60, 1), (T + 60, 5)]}))
    begun = stage.rules["p/f0"]
    assert begun is not former
    assert [line[0] for line in begun.heard[:2]] == ["arrived", "idle"]
    assert begun.heard[2] == ("minute", T, 1, None)
    # The minute that runs is no past.
    assert ("minute", T + 120, 5, None) not in begun.heard
    assert ("idle", T + 90, 2, 0) in begun.heard
    assert "p/f1" not in stage.rules
    stage.prewarmer.idle(T + 91, stage.engine.cluster.demands[1], 1, 0)
    assert other.heard[-1] == ("idle", T + 91, 1, 0)


def test_an_instance_that_nobody_asked_for_begins_to_be_idle() -> None:
    """A former leader has, or a person: the rule decides how long it stays."""
    stage = Stage()
    stage.at(T, function(0), served())
    stage.rules["p/f0"].on_idle = [WarmWindow(from_at=T, until_at=T + 30)]
    assert kinds(stage.at(T + 1, report("a", T + 1, 1))) == [("prewarm", "a", 1)]
    assert kinds(stage.at(T + 30)) == [("offload", "a", 0)]


# ---- forecasts, and none ---------------------------------------------------------------------------------------------


def foreseeing() -> Stage:
    stage = Stage(foresees=True)
    stage.at(T, function(0), served(), report("a", T, 1))
    stage.rules["p/f0"].on_minute = [WarmWindow(from_at=T, until_at=math.inf)]
    return stage


def test_without_a_forecast_the_keep_alive_holds_and_it_is_said() -> None:
    stage = foreseeing()
    assert [stage.at(T + 60 * minute) for minute in range(1, 4)] == [[], [], []]
    assert (standing(stage).source, standing(stage).silence) == ("keep-alive", "no_forecast")  # type: ignore[attr-defined]


def test_a_forecast_gives_the_rule_its_say_from_the_next_minute_on() -> None:
    stage = foreseeing()
    stage.at(T + 50, forecasts(T))
    assert kinds(stage.at(T + 60)) == [("prewarm", "a", 1)]
    assert stage.rules["p/f0"].minutes()[-1] == (T + 60, 0, "naive")
    assert (standing(stage).source, standing(stage).silence) == ("naive", "")  # type: ignore[attr-defined]


def test_a_stale_forecast_counts_for_nothing() -> None:
    stage = foreseeing()
    stage.at(T + 50, forecasts(T))
    for minute in range(1, 5):
        stage.at(T + 60 * minute, report("a", T + 60 * minute, 1))
    assert stage.at(T + 300, report("a", T + 300, 1)) == []
    assert standing(stage).silence == ColdStartReason.STALE  # type: ignore[attr-defined]
    assert standing(stage).holds == []  # type: ignore[attr-defined]
    stage.at(T + 301, forecasts(T + 300))
    stage.at(T + 360)
    assert standing(stage).silence == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_forecast_that_is_no_number_counts_for_nothing(value: float) -> None:
    stage = foreseeing()
    stage.at(T + 50, forecasts(T, value))
    assert stage.at(T + 60) == []
    assert standing(stage).silence == ColdStartReason.NOT_A_NUMBER  # type: ignore[attr-defined]


def test_a_minute_without_a_number_is_one_without_the_others() -> None:
    """The rule is told of the minutes around it, and what it answered meanwhile counts when it has a say again."""
    stage = foreseeing()
    values = np.array([1.0, math.nan, 1.0])
    made = {"p/f0": Forecast(from_at=T + 60, mean=values, any=values, source="naive")}
    stage.at(T + 50, ForecastsUpdated(made_at=T, forecasts=made))
    assert kinds(stage.at(T + 60)) == [("prewarm", "a", 1)]
    assert stage.at(T + 119) == []
    assert stage.at(T + 120, report("a", T + 120, 1)) == []
    assert (standing(stage).silence, standing(stage).holds) == (ColdStartReason.NOT_A_NUMBER, [])  # type: ignore[attr-defined]
    assert stage.at(T + 150, report("a", T + 150, 1)) == []
    stage.rules["p/f0"].on_minute = None
    assert kinds(stage.at(T + 180, report("a", T + 180, 1))) == [("prewarm", "a", 1)]
    assert standing(stage).silence == ""  # type: ignore[attr-defined]
    assert [line[2] for line in stage.rules["p/f0"].minutes()[-3:]] == ["naive", None, "naive"]
    stage.at(T + 240)
    assert standing(stage).silence == ColdStartReason.NOT_A_NUMBER  # type: ignore[attr-defined]


def test_what_a_rule_held_while_nobody_listened_is_not_let_go_of_when_it_has_its_say_again() -> None:
    stage = Stage(foresees=True)
    stage.rules["p/f0"] = Priced(price_gb_s=1000.0, load_s=1.0, run_s=0.1)  # type: ignore[assignment]
    stage.at(T, function(0), served(), report("a", T, 1))
    dispatched = stage.at(T + 10, arrived(0, "1", at=T + 10))
    assert [type(one) for one in dispatched] == [Dispatch]
    stage.at(T + 11, InvocationSettled(id="1", attempt=1))
    assert standing(stage).silence == ColdStartReason.NO_FORECAST  # type: ignore[attr-defined]
    stage.at(T + 50, forecasts(T, 0.0))
    assert kinds(stage.at(T + 60, report("a", T + 60, 1))) == [("prewarm", "a", 1)]


def test_the_paper_rule_drains_on_count_and_the_next_request_is_cold() -> None:
    """Through the engine: with rqnum = 5 the fifth request is the last that finds an instance."""
    stage = Stage(foresees=True)
    stage.rules["p/f0"] = rule("ls-lstm", run_s=0.01, load_s=1.0)  # type: ignore[assignment]
    stage.at(T, function(0, prewarm=Prewarming.PAPER), served(), report("a", T))
    stage.at(T + 50, forecasts(T, 5.0))
    assert kinds(stage.at(T + 60)) == [("prewarm", "a", 1)]
    stage.at(T + 61, report("a", T + 61, 1))
    cold = []
    for number in range(1, 7):
        now = T + 61 + number
        decided = stage.at(now, arrived(0, str(number), at=now))
        cold += [one.cold for one in decided if isinstance(one, Dispatch)]
        assert ("offload", "a", 0) not in kinds(decided)
        ended = kinds(stage.at(now + 0.5, InvocationSettled(id=str(number), attempt=1)))
        assert ended == ([("offload", "a", 0)] if number == 5 else [])
    assert cold == [False] * 5 + [True]


# ---- clocks ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_goes_on_for_rules_and_holds() -> None:
    stage = Stage()
    stage.at(T - 1, function(0), served(), report("a", T - 1, 1))
    stage.at(T)
    stage.hold(T + 10, WarmWindow(from_at=T + 10, until_at=T + 40))
    back = -3600.0
    assert kinds(stage.at(T + 11 + back)) == []
    assert stage.prewarmer.reports.clock_steps == 1
    assert stage.prewarmer.next_at == pytest.approx(T + 40 + back)
    assert kinds(stage.at(T + 40 + back)) == [("offload", "a", 0)]
    stage.at(T + 60 + back)
    times = [line[1] for line in stage.rules["p/f0"].heard]
    assert times == sorted(times)  # type: ignore[type-var]
    assert stage.rules["p/f0"].minutes()[-1] == (T + 60, None, None)


def test_a_small_step_back_is_an_error_of_measurement() -> None:
    """However many there are: minutes begin when they begin, and forecasts mean the minutes that they name."""
    stage = Stage(foresees=True)
    stage.at(T - 1, function(0), served(), report("a", T - 1))
    for step in range(100):
        stage.at(T + step / 10 + 0.5)
        stage.at(T + step / 10)
    values = np.array([0.0, 1.0, 0.0])
    stage.at(
        T + 20,
        ForecastsUpdated(made_at=T, forecasts={"p/f0": Forecast(from_at=T, mean=values, any=values, source="x")}),
    )
    heard: list[Forecast | None] = []
    stage.rules["p/f0"].minute = lambda at, count, forecast: heard.append(forecast)  # type: ignore[method-assign]
    assert stage.prewarmer.next_at == T + 60
    stage.at(T + 60)
    assert (stage.prewarmer.reports.clock_steps, len(heard)) == (0, 1)
    assert heard[0] is not None
    assert heard[0].chance(T + 60) == 1.0


def test_minutes_that_a_clock_jumped_over_are_counted_by_nobody() -> None:
    stage = Stage()
    stage.at(T - 1, function(0), served(), report("a", T - 1))
    stage.at(T)
    stage.at(T + 60)
    stage.at(T + 60 + 7200)
    found = stage.rules["p/f0"].minutes()
    assert found[:2] == [(T, None, None), (T + 60, 0, None)]
    assert len(found[2:]) == 10
    assert {count for _, count, _ in found[2:]} == {None}
    assert found[-1][0] == T + 60 + 7200
    stage.at(T + 120 + 7200)
    assert stage.rules["p/f0"].minutes()[-1][1] == 0


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_deleted_function_is_unloaded_where_it_is_and_where_it_is_on_its_way() -> None:
    stage = Stage()
    stage.at(T, function(0, max_warm=1), served(), report("a", T, 1), report("b", T))
    assert kinds(stage.hold(T, WarmWindow(from_at=T, until_at=math.inf, instances=2))) == [("prewarm", "b", 1)]
    assert kinds(stage.at(T + 1, FunctionRemoved(function="p/f0"))) == [("offload", "a", 0), ("offload", "b", 0)]
    assert stage.at(T + 100) == []
    assert stage.prewarmer.reports.statuses() == []


def test_after_a_failed_load_it_waits_longer_each_time() -> None:
    stage = Stage()
    stage.at(T, function(0), served(), report("a", T))
    assert kinds(stage.hold(T, WarmWindow(from_at=T, until_at=math.inf))) == [("prewarm", "a", 1)]
    failed = InstanceReported(function="p/f0", revision=1, gpu="a", failed=True)
    assert stage.at(T + 1, failed) == []
    (dispatch,) = (one for one in stage.at(T + 2, arrived(0, "1", at=T + 2)) if isinstance(one, Dispatch))
    assert dispatch.reasons.unforeseen == ColdStartReason.LOAD_FAILED
    stage.at(T + 3, InvocationSettled(id="1", attempt=1))
    assert stage.at(T + 30.9) == []
    assert kinds(stage.at(T + 31)) == [("prewarm", "a", 1)]
    assert stage.at(T + 32, failed) == []
    assert stage.at(T + 91.9) == []
    assert kinds(stage.at(T + 92)) == [("prewarm", "a", 1)]


def test_a_load_that_is_never_heard_of_is_asked_for_again() -> None:
    stage = Stage()
    stage.at(T, function(0), served(), report("a", T))
    stage.hold(T, WarmWindow(from_at=T, until_at=math.inf))
    assert stage.at(T + 12.9, report("a", T + 12.9)) == []
    assert kinds(stage.at(T + 13)) == [("prewarm", "a", 1)]


def test_a_gpu_instance_that_falls_silent_is_replaced() -> None:
    stage = Stage()
    stage.at(T, function(0), served(), report("a", T), report("b", T, training=0))
    assert kinds(stage.hold(T, WarmWindow(from_at=T, until_at=math.inf))) == [("prewarm", "a", 1)]
    assert kinds(stage.at(T + 1, GpuLost(gpu="a"))) == [("prewarm", "b", 1)]


def test_knobs_that_change_change_the_rule() -> None:
    stage = Stage()
    stage.at(T, function(0), served(), report("a", T, 1))
    stage.hold(T, WarmWindow(from_at=T, until_at=math.inf))
    stage.at(T + 1, function(0, prewarm=Prewarming.OFF), served())
    assert stage.at(T + 100) == []
    assert standing(stage).silence == ColdStartReason.OFF  # type: ignore[attr-defined]


# ---- why it was cold -------------------------------------------------------------------------------------------------


def why(stage: Stage, now: float, id_: str = "1", **fields: object) -> str:
    arrival = InvocationArrived(function="p/f0", revision=1, id=id_, attempt=0, arrival_at=now, deadline_at=now + 50.0)
    (dispatch,) = (one for one in stage.at(now, arrival) if isinstance(one, Dispatch))
    assert dispatch.cold
    return dispatch.reasons.unforeseen


def test_the_first_call_of_all_was_not_to_be_foreseen() -> None:
    stage = Stage()
    stage.at(T, function(0), served(), report("a", T))
    stage.rules["p/f0"].on_idle = ()
    assert why(stage, T + 1) == ColdStartReason.NEVER_SEEN
    stage.at(T + 2, InvocationSettled(id="1", attempt=1))
    assert why(stage, T + 3, "2") == ColdStartReason.NOT_FORESEEN


def test_what_was_counted_before_was_seen() -> None:
    stage = Stage(foresees=True)
    stage.at(T, function(0), served(), report("a", T), CountsKnown(counts={"p/f0": [(T - 600, 1)]}))
    assert why(stage, T + 1) == ColdStartReason.NO_FORECAST


def test_off_is_off() -> None:
    stage = Stage()
    stage.at(T, function(0, prewarm=Prewarming.OFF), served(), report("a", T))
    why(stage, T)
    stage.at(T + 1, InvocationSettled(id="1", attempt=1))
    assert why(stage, T + 1, "2") == ColdStartReason.OFF


def test_what_was_let_go_within_its_keep_alive_was_given_up() -> None:
    stage = Stage()
    stage.at(T, function(0, keep_alive_s=100.0), served(), report("a", T, 1))
    assert kinds(stage.hold(T)) == [("offload", "a", 0)]
    assert why(stage, T + 99) == ColdStartReason.GIVEN_UP
    stage = Stage()
    stage.at(T, function(0, keep_alive_s=100.0), served(), report("a", T, 1))
    stage.hold(T)
    assert why(stage, T + 101) == ColdStartReason.NOT_FORESEEN


def test_no_room_evicted_and_more_at_once() -> None:
    stage = Stage(share=0.0)
    stage.at(T, function(0), served(), report("a", T))
    stage.hold(T, WarmWindow(from_at=T, until_at=math.inf))
    assert why(stage, T + 1) == ColdStartReason.NO_ROOM
    stage = Stage()
    stage.at(
        T, function(0), served(), report("a", T), InstanceReported(function="p/f0", revision=1, gpu="a", evicted=True)
    )
    assert why(stage, T + 1) == ColdStartReason.EVICTED
    stage = Stage()
    # One is loaded and at work; its batch has just begun, so waiting for it is no better than a load.
    stage.at(T, function(0, run_s=20.0), served(), report("a", T, 1), arrived(0, "1", at=T, within=100.0))
    assert why(stage, T + 1, "2") == ColdStartReason.MORE_AT_ONCE


def test_another_revision_is_another_matter() -> None:
    stage = Stage()
    stage.at(T, function(0), replace(function(0), revision=2), replace(served(), revision=2), report("a", T))
    assert why(stage, T) == ColdStartReason.OTHER_REVISION


def test_the_first_run_of_a_new_function_was_never_seen() -> None:
    stage = Stage()
    stage.at(T, function(0), report("a", T))
    assert why(stage, T) == ColdStartReason.NEVER_SEEN
