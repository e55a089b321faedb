"""
Reasons in numbers and in words: every code has them, what is missing is left out, and old decisions are still read.
"""

import json

import pytest

from api.invoke.explain import _dry_run
from scheduler.policy.decisions import Refusal
from smore.domain.candidate import Candidate
from smore.domain.errors import Draining
from smore.domain.invocation import Cause, State
from smore.messages.reasons import (
    DryRunAnswer,
    Reasons,
    decode_answer,
    pack_reasons,
    reasons,
    unpack_reasons,
)
from smore.messages.wording import (
    CAUSES,
    HOPELESS,
    REFUSED,
    beside,
    duration,
    hopeless,
    in_words,
    obstacle,
    phases_ms,
    refused_in_words,
    slowest,
    why_not_now,
)
from smore.redis.gateway_queue import AdmissionCheck


def test_every_code_has_words() -> None:
    assert set(REFUSED) == set(Refusal)
    assert set(CAUSES) == set(Cause)
    assert set(REFUSED) >= HOPELESS


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ({}, ""),
        ({"busy": 1}, "1 GPU instance is busy with the function"),
        ({"memory": 1, "busy": 2}, "2 GPU instances are busy with the function, 1 has too little memory"),
        ({"novel": 2}, "2 GPU instances were refused (novel)"),
    ],
)
def test_refusals(refused: dict[str, int], said: str) -> None:
    assert refused_in_words(refused) == said


def test_why_nothing_is_placed_now() -> None:
    busy = Reasons(refused={"busy": 2})
    assert why_not_now(busy) == "2 GPU instances are busy with the function."
    assert why_not_now(busy, "function") == "The queue of its function is paused."
    assert why_not_now(Reasons()) == "There is no GPU instance."
    bounded = Reasons(refused={"yields": 1}, candidates=[Candidate("a", run_s=0.09, refusal="yields")])
    assert why_not_now(bounded, yield_s=0.04) == (
        "1 GPU instance takes only shorter runs of class batch (one input takes 90.0 ms, and a run may take 40.0 ms there)."
    )
    deferred = Reasons(candidates=[Candidate(gpu="a")], refused={"deadline": 1})
    assert "sooner than another could be loaded" in why_not_now(deferred)
    assert [hopeless(one) for one in (busy, deferred, Reasons(refused={"deadline": 2, "gone": 1}), Reasons())] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (
            "It succeeded on g, 20.0 ms before its deadline.",
            {"state": State.SUCCEEDED, "cause": "ok", "gpu": "g", "slack_s": 0.02},
        ),
        (
            "It succeeded on g at attempt 2, 3.0 s after its deadline.",
            {"state": "succeeded", "gpu": "g", "attempt": 2, "slack_s": -3},
        ),
        ("It failed on g: the process of the function died.", {"state": "failed", "cause": "crashed", "gpu": "g"}),
        ("It failed on g: odd.", {"state": "failed", "cause": "handler_error", "gpu": "g", "message": "odd."}),
        (
            "It expired: no GPU instance could finish it before its deadline.",
            {"state": "expired", "cause": "deadline_expired"},
        ),
        ("It was rejected: a newer reason.", {"state": "rejected", "cause": "a newer reason"}),
        ("It waits.", {"state": "queued", "cause": ""}),
        ("It waits again after attempt 1.", {"state": "queued", "cause": "", "attempt": 1}),
        ("It was sent to g and has not begun.", {"state": "dispatched", "cause": "", "gpu": "g", "attempt": 1}),
        ("It runs on g.", {"state": "running", "cause": "", "gpu": "g", "attempt": 1}),
    ],
)
def test_states_in_words(said: str, facts: dict[str, object]) -> None:
    assert in_words(**{"cause": "ok", **facts}) == said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "attempts", "predicted_s"),
    [
        (
            "Most of its time it ran: 1.3 s; 823.0 ms were predicted.",
            [{"queue": 1.0, "run": 1300.0, "load": None}],
            0.823,
        ),
        ("Most of its time it ran: 1.3 s.", [{"queue": 1.0, "run": 1300.0}], None),
        ("Most of its time it waited in its queue: 1.0 s.", [{"queue": 500.0, "run": 800.0}, {"queue": 500.0}], 0.8),
        ("Most of its time its instance was loaded: 2.0 s.", [{"queue": 1.0, "load": 2000.0, "run": 5.0}], 0.005),
    ],
)
def test_what_made_it_late(said: str, attempts: list[dict[str, float | None]], predicted_s: float | None) -> None:
    assert slowest(attempts, predicted_s) == said


def test_a_state_is_not_said_twice() -> None:
    assert in_words("cancelled", "cancelled", message="It was cancelled.") == "It was cancelled."
    assert in_words("cancelled", "cancelled") == "It was cancelled."


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0.0 ms"), (0.00001, "0.010 ms"), (0.0001, "0.1 ms"), (0.0123, "12.3 ms"), (75.3, "75.3 s")],
)
def test_a_duration_is_not_nothing(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_phases_of_a_cold_attempt_add_up() -> None:
    found = phases_ms(
        since=10.0,
        claimed=10.1,
        started=10.15,
        finished=11.0,
        schedule_us=200,
        load_s={"import": 0.3, "weights": 0.4},
        run_s=0.1,
    )
    assert found == pytest.approx(
        {"queue": 99.8, "schedule": 0.2, "dispatch": 50, "load": 700, "run": 100, "other": 50}
    )


def test_phases_that_have_not_come_are_unknown() -> None:
    assert set(phases_ms(since=1.0, claimed=None, started=None, finished=None).values()) == {None}
    # Most of the load was over before this attempt began to wait for it.
    assert phases_ms(since=1.0, claimed=1.0, started=1.0, finished=1.5, load_s={"all": 9.0}, run_s=0.1)[
        "load"
    ] == pytest.approx(400)
    assert phases_ms(since=1.0, claimed=1.1, started=None, finished=None)["queue"] == pytest.approx(100)


def test_the_trainings_beside_it() -> None:
    assert beside([]) is None
    assert beside([(0.1, 19, 0.2, 100)]) is None
    assert beside([(0.1, 20, 0.12, 20), (0.1, 30, 0.11, 30), (0.0, 50, 0.2, 50)]) == pytest.approx(0.2)


def test_what_is_not_finite_or_older_is_still_read() -> None:
    old = reasons({"v": 1, "policy": "spine", "candidates": [{"gpu": "a", "finish_at": None, "new": 1}], "refused": {}})
    assert old is not None
    assert (old.policy, old.candidates[0].finish_at, old.shadow) == ("spine", None, None)
    assert reasons({}) is None
    assert reasons({"candidates": 3}) is None
    assert decode_answer(b'{"known":false,"start_at":null,"version":2}').known is False


def gate(**fields: object) -> AdmissionCheck:
    known: dict[str, object] = {
        "now_us": 1_000_000,
        "deadline_us": 1_500_000,
        "needed_us": 100_000,
        "promised_us": fields.get("needed_us", 100_000),
        "full": "",
        "paused": "",
        "leader": "asked",
    }
    return AdmissionCheck(**{**known, **fields})  # type: ignore[arg-type]


PLACED = DryRunAnswer(
    at=1.0,
    gpu="a",
    cold=True,
    start_at=1.2,
    finish_at=1.4,
    earliest_deadline_at=1.4,
    finish_s=0.1,
    reasons=Reasons(
        policy="p", candidates=[Candidate(gpu="a", training_degradation=0.1, training_degradation_upper=0.2)]
    ),
)
BUSY = DryRunAnswer(at=1.0, finish_s=0.3, reasons=Reasons(policy="p", refused={"busy": 2}))
LATE = DryRunAnswer(at=1.0, earliest_deadline_at=3.0, reasons=Reasons(policy="p", refused={"deadline": 2}))


class TestDryRun:
    def test_placed(self) -> None:
        found = _dry_run(gate(), PLACED)
        assert (found.outcome, found.feasible, found.gpu, found.cold) == ("placed", True, "a", True)
        assert found.detail == "It would run on a after a cold start and end 100.0 ms before its deadline."
        assert found.predicted is not None
        assert (found.predicted.training, found.predicted.training_upper) == (0.1, 0.2)
        assert found.earliest_deadline_ms == 121, (
            "what a refusal would name: a tenth and 10 ms more than the gate's bound"
        )
        tight = _dry_run(gate(deadline_us=1_110_000), PLACED)
        assert tight.earliest_deadline_ms == 110, "a deadline that is let in is no less than the earliest one"

    def test_waits(self) -> None:
        found = _dry_run(gate(), BUSY)
        assert (found.outcome, found.feasible, found.gpu) == ("waits", True, None)
        assert found.finish_at is not None
        assert found.finish_at.timestamp() == pytest.approx(1.3)
        paused = _dry_run(gate(paused="platform"), PLACED)
        assert (paused.outcome, paused.feasible, paused.finish_at) == ("waits", False, None)
        assert paused.detail.endswith(" until somebody changes this: The whole platform is paused.")
        assert paused.earliest_deadline_ms is None

    @pytest.mark.parametrize(
        ("refused", "feasible"),
        [
            ({"paused": 2}, False),
            ({"drained": 1, "gone": 1}, False),
            ({"pinned": 2, "paused": 1}, False),
            ({"paused": 2, "busy": 1}, True),
        ],
    )
    def test_waits_for_somebody(self, refused: dict[str, int], feasible: bool) -> None:
        found = _dry_run(gate(), DryRunAnswer(at=1.0, finish_s=0.3, reasons=Reasons(policy="p", refused=refused)))
        assert (found.outcome, found.feasible) == ("waits", feasible)
        assert (found.finish_at is not None, found.earliest_deadline_ms is not None) == (feasible, feasible)
        assert ("until somebody changes this" in found.detail) is not feasible

    def test_would_expire(self) -> None:
        """Time stands against it on every GPU instance: the deadline that would do is later than the gate's."""
        found = _dry_run(gate(), LATE)
        assert (found.outcome, found.feasible, found.earliest_deadline_ms) == ("late", False, 2210)
        nowhere = _dry_run(gate(), DryRunAnswer(at=1.0, reasons=Reasons(refused={"quarantined": 1})))
        assert (nowhere.outcome, nowhere.earliest_deadline_ms) == ("late", None)

    def test_refused_by_the_gate(self) -> None:
        found = _dry_run(gate(needed_us=800_000), BUSY)
        assert (found.outcome, found.feasible, found.gpu, found.earliest_deadline_ms) == ("refused", False, None, 891)
        bound = "The gate would refuse it: the earliest deadline that it would accept now is 891 ms."
        assert found.detail == f"{bound} 2 GPU instances are busy with the function."
        cold = _dry_run(gate(needed_us=800_000), PLACED)
        assert cold.detail == f"{bound} No instance of it is free: one would have to be loaded."
        short = DryRunAnswer(at=1.0, gpu="a", budget_s=0.62, reasons=Reasons(policy="p"))
        assert _dry_run(gate(needed_us=800_000), short).detail == (
            f"{bound} Budgets limit what functions may cost the trainings there: the next one may start in 620.0 ms."
        )
        assert found.reason == "slo_infeasible"
        shut = _dry_run(gate(needed_us=800_000, quarantined=True), BUSY)
        assert (shut.outcome, shut.reason, shut.earliest_deadline_ms) == ("refused", "quarantined", None)
        full = _dry_run(gate(full="pending"), PLACED)
        assert (full.outcome, full.reason, full.earliest_deadline_ms) == ("refused", "queue_full", None)

    def test_the_reason_is_the_code_that_an_invocation_would_get(self) -> None:
        """In the gate's own order: what the gateway holds, time, bounds, limits; then what it would wait for."""
        everything = {"full": "pending", "limited": "depth", "bound": 7.0, "after_us": 1}
        drained = _dry_run(gate(needed_us=800_000, **everything), PLACED, Draining())
        assert (drained.outcome, drained.reason, drained.feasible, drained.earliest_deadline_ms) == (
            "refused",
            "draining",
            False,
            None,
        )
        assert _dry_run(gate(needed_us=800_000, **everything), PLACED).reason == "slo_infeasible"
        assert _dry_run(gate(**everything), PLACED).reason == "queue_full"
        limited = _dry_run(gate(**(everything | {"full": ""})), PLACED)
        assert (limited.reason, limited.earliest_deadline_ms) == ("limit_reached", None)
        assert limited.detail.startswith("The gate would refuse it: The project has reached its limit depth (7). ")
        assert _dry_run(gate(paused="function"), PLACED).reason == "paused"
        assert _dry_run(gate(), LATE).reason == "deadline_expired"
        assert _dry_run(gate(), PLACED).reason == ""


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        ({"pinned": 3}, "pinned"),
        ({"pinned": 3, "no_slot": 1}, "no_slot"),
        ({"sm": 1, "memory": 2}, "memory"),
        ({"sm": 1, "memory": 1}, "memory"),
        ({}, "gone"),
    ],
)
def test_the_obstacle_is_that_of_where_it_may_go(refused: dict[str, int], code: str) -> None:
    assert obstacle(Reasons(refused=refused)) == code
    assert obstacle(Reasons(refused=refused, candidates=[Candidate(gpu="a")])) == "busy"


def test_a_decision_that_the_revision_before_packed_is_read() -> None:
    kept = json.loads(
        '{"policy":"smore","table":7,"priority":2.5,"refused":{"busy":1},"unforeseen":"first","candidates":'
        '[["gpu0",true,0.25,0.5,1700000000.5,0.125,0.1,0.2,0.3,0.4,true,null],["gpu1",false,null,null,null,null,0,0,0,0,'
        'false,"memory"]]}'
    )
    told = unpack_reasons(kept)
    assert pack_reasons(told) == kept
    first, second = (reasons(told) or Reasons()).candidates
    assert first == Candidate(
        gpu="gpu0",
        warm=True,
        delay_s=0.25,
        run_s=0.5,
        finish_at=1700000000.5,
        impact=0.125,
        function_degradation=0.1,
        function_degradation_upper=0.2,
        training_degradation=0.3,
        training_degradation_upper=0.4,
        known=True,
    )
    assert (second.gpu, second.refusal, second.warm) == ("gpu1", "memory", False)
