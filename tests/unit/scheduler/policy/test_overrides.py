"""Boosts, pins, drains, protected GPU instances and what a project may keep warm, as the engine obeys them."""

from collections.abc import Sequence

import pytest

from scheduler.policy.decisions import Decision, Dispatch, Offload, Refusal
from scheduler.policy.events import (
    Event,
    FunctionKnown,
    GpuReported,
    InvocationArrived,
    OverridesChanged,
    PausesChanged,
    WarmLimits,
)
from scheduler.policy.knobs import preset
from smore.domain.function import FunctionSpec, Profile
from smore.domain.invocation import End, EndedFor
from smore.domain.override import Override
from smore.messages.wording import ended_for
from tests.support.driven import DrivenEngine

NOW = 1_000.0


def function(name: str, *, gain: float = 0.2, memory_mib: float = 100.0) -> FunctionKnown:
    profile = Profile(run_s={1: 0.01}, load_s=1.0, memory_mib=memory_mib, usage_gain=gain, degradation=0.01)
    return FunctionKnown(function=name, revision=1, spec=FunctionSpec(entrypoint="m:C", profile=profile, max_warm=2))


def gpu(name: str, *warm: str, at: float = NOW, **fields: object) -> GpuReported:
    known: dict[str, object] = {
        "boot": "b",
        "at": at,
        "slots": 8,
        "memory_total": 10_000.0,
        "memory_used": 0.0,
        "memory_idle": 0.0,
        "utilisation": 0.1,
        "function_utilisation": 0.0,
        "jobs": 0,
        "warm": [(one, 1, 1) for one in warm],
    }
    return GpuReported(gpu=name, **(known | fields))  # type: ignore[arg-type]


def arrived(function: str, id_: str, within: float = 10.0) -> InvocationArrived:
    return InvocationArrived(function=function, revision=1, id=id_, attempt=0, arrival_at=NOW, deadline_at=NOW + within)


def placed(decisions: Sequence[Decision]) -> list[tuple[str, str]]:
    return [
        (id_, decision.gpu) for decision in decisions if isinstance(decision, Dispatch) for id_, _ in decision.attempts
    ]


def engine(*events: Event, **knobs: object) -> DrivenEngine:
    made = DrivenEngine(preset("smore-product", **knobs))
    made.decide(NOW, [function("p/a", gain=0.4), function("p/b", gain=0.2), *events])
    return made


def test_a_boost_multiplies_the_priority_and_ends() -> None:
    policy = engine(gpu("g", "p/a", "p/b", slots=1))
    steer = OverridesChanged(overrides=[Override(function="p/b", boost=10.0, boost_until=NOW + 5)])
    assert placed(policy.decide(NOW, [arrived("p/a", "1"), arrived("p/b", "2")])) == [("1", "g")]
    policy = engine(gpu("g", "p/a", "p/b", slots=1), steer)
    assert placed(policy.decide(NOW, [arrived("p/a", "1"), arrived("p/b", "2")])) == [("2", "g")]
    policy = engine(gpu("g", "p/a", "p/b", slots=1), steer)
    assert placed(policy.decide(NOW + 5, [arrived("p/a", "1"), arrived("p/b", "2")])) == [("1", "g")]


@pytest.mark.parametrize(("waited_s", "first"), [(1.9, "2"), (2.1, "1")])
def test_the_starvation_bound_holds_with_any_boost(waited_s: float, first: str) -> None:
    """Who has waited 1 / ageing_per_s (2 s) longer stands first, whatever the other is multiplied by."""
    policy = engine(
        OverridesChanged(overrides=[Override(function="p/b", boost=1000.0)]), order="priority", ageing_per_s=0.5
    )
    policy.decide(NOW, [arrived("p/a", "1")])
    late = InvocationArrived(
        function="p/b", revision=1, id="2", attempt=0, arrival_at=NOW + waited_s, deadline_at=NOW + 60
    )
    assert placed(policy.decide(NOW + waited_s, [late, gpu("g", "p/a", "p/b", at=NOW + waited_s, slots=1)])) == [
        (first, "g")
    ]


def test_a_pin_holds_for_gpus_that_come_later_and_ends() -> None:
    pin = OverridesChanged(overrides=[Override(function="p/a", gpus=("h",), pin_until=NOW + 5)])
    policy = engine(gpu("g", "p/a"), pin)
    assert placed(policy.decide(NOW, [arrived("p/a", "1")])) == []
    answer = policy.ask(NOW, "p/a", 1, 1, NOW + 10)
    assert answer is not None
    assert answer.reasons.refused == {Refusal.PINNED: 1}
    assert placed(policy.decide(NOW + 1, [gpu("h", "p/a", at=NOW + 1), gpu("i", "p/a", at=NOW + 1)])) == [("1", "h")]
    policy = engine(gpu("g", "p/a"), pin)
    policy.decide(NOW, [arrived("p/a", "1")])
    assert placed(policy.decide(NOW + 5, [])) == [("1", "g")]


def test_a_pin_that_is_taken_back_is_over_at_once() -> None:
    policy = engine(gpu("g", "p/a"), OverridesChanged(overrides=[Override(function="p/a", gpus=("h",))]))
    policy.decide(NOW, [arrived("p/a", "1")])
    assert placed(policy.decide(NOW, [OverridesChanged(overrides=[])])) == [("1", "g")]


def test_a_drained_gpu_instance_takes_nothing_and_gives_back_what_idles() -> None:
    policy = engine(gpu("g", "p/a"), PausesChanged(paused=frozenset({"-g:g"})))
    decisions = policy.decide(NOW, [gpu("g", "p/a"), arrived("p/a", "1")])
    assert decisions == [Offload(function="p/a", revision=1, gpu="g", gone=True)]
    assert policy.decide(NOW, [gpu("g")]) == []
    for target, refusal in (("-g:g", Refusal.DRAINED), ("g:g", Refusal.PAUSED)):
        policy.decide(NOW, [PausesChanged(paused=frozenset({target}))])
        answer = policy.ask(NOW, "p/a", 1, 1, NOW + 10)
        assert answer is not None and answer.reasons.refused == {refusal: 1}
    assert placed(policy.decide(NOW, [PausesChanged(paused=frozenset())])) == [("1", "g")]


@pytest.mark.parametrize(
    ("paused", "pinned", "why"),
    [
        ((), (), ", which has passed"),
        (("*",), (), ": the whole platform is paused"),
        (("f:p/a",), (), ": its function is paused"),
        (("f:p/b",), (), ", which has passed"),
        (("g:g",), (), ": of 2 GPU instances that it may use, 1 is paused"),
        (("g:g", "-g:h"), (), ": of 2 GPU instances that it may use, 1 is drained and 1 is paused"),
        (("g:g", "g:h"), (), ": of 2 GPU instances that it may use, 2 are paused"),
        (("g:g",), ("g",), ": of 1 GPU instance that it may use, 1 is paused"),
        (("g:g",), ("h",), ", which has passed"),
    ],
)
def test_what_expires_says_what_was_paused_or_drained(
    paused: tuple[str, ...], pinned: tuple[str, ...], why: str
) -> None:
    steer = OverridesChanged(overrides=[Override(function="p/a", gpus=pinned)] if pinned else [])
    policy = engine(gpu("g"), gpu("h"), steer, PausesChanged(paused=frozenset(paused)))
    policy.decide(NOW, [arrived("p/a", "1")])
    (ended,) = (d for d in policy.decide(NOW + 60, [arrived("p/a", "2")]) if isinstance(d, End) and d.id == "2")
    assert ended_for(ended) == f"No GPU instance could finish it before its deadline{why}."


def test_nothing_is_placed_beside_a_process_that_nobody_registered() -> None:
    policy = engine(gpu("g", "p/a", unregistered=1))
    assert policy.decide(NOW, [arrived("p/a", "1")]) == []
    answer = policy.ask(NOW, "p/a", 1, 1, NOW + 10)
    assert answer is not None
    assert answer.reasons.refused == {Refusal.PROTECTED: 1}
    assert placed(policy.decide(NOW, [gpu("g", "p/a")])) == [("1", "g")]


@pytest.mark.parametrize("rule", ["smore-product", "random", "edf-util"])
def test_what_a_project_may_keep_warm_bounds_loads(rule: str) -> None:
    policy = DrivenEngine(preset(rule))
    events: list[Event] = [
        function("p/a"),
        function("p/b"),
        function("q/c"),
        gpu("g", "p/a"),
        WarmLimits(mib={"p": 150.0}),
    ]
    assert policy.decide(NOW, [*events, arrived("p/b", "1")]) == [Offload(function="p/a", revision=1, gpu="g")]
    assert policy.decide(NOW + 0.1, []) == [], "asked for once"
    assert placed(policy.decide(NOW + 0.2, [arrived("q/c", "2")])) == [("2", "g")], "another project has no limit"
    assert placed(policy.decide(NOW + 0.3, [gpu("g", at=NOW + 0.3)])) == [("1", "g")]


def test_what_can_never_be_warm_is_refused() -> None:
    policy = engine(gpu("g"), WarmLimits(mib={"p": 99.0}))
    (end,) = policy.decide(NOW, [arrived("p/a", "1")])
    assert isinstance(end, End)
    assert (end.action, end.why) == ("reject", EndedFor.OVER_WARM_LIMIT)
