"""Events and tables of policy tests, small and plain, and what was placed where."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scheduler.leader.tables import ArrayTable
from scheduler.policy.decisions import Decision, Dispatch
from scheduler.policy.events import (
    FunctionKnown,
    GpuReported,
    InvocationArrived,
    TableUpdated,
)
from smore.domain.function import FunctionSpec, Profile
from smore.domain.loss import JobLoss
from smore.messages.degradation import Table
from tests.support.tables import DEVICE, MODE, place

NOW = 1_000.0


def function(
    number: int, *, run_s: float = 0.01, gain: float = 0.2, degradation: float = 0.1, sm: float = 0.1, **fields: Any
) -> FunctionKnown:
    """The function f<number>, which tables know as f<number>/s."""
    profile = Profile(
        run_s={1: run_s},
        load_s=1.0,
        memory_mib=100.0,
        usage_gain=gain,
        degradation=degradation,
        utilisation=sm,
        model=f"f{number}/s",
    )
    spec = FunctionSpec(entrypoint="m:C", profile=profile, **({"max_warm": 8} | fields))
    return FunctionKnown(function=f"p/f{number}", revision=1, spec=spec)


def batched(number: int, run_s: dict[int, float], **fields: Any) -> FunctionKnown:
    """The same with times by batch size."""
    told = function(number, max_batch=8, **fields)
    return replace(told, spec=replace(told.spec, profile=replace(told.spec.profile, run_s=run_s)))


def gpu(name: str, training: int | None = 0, *, warm: int = 8, functions: int = 3, **fields: Any) -> GpuReported:
    """A GPU instance that trains t<training>, with ``warm`` instances of each function."""
    known: dict[str, object] = {
        "boot": "b",
        "at": NOW,
        "slots": 8,
        "memory_total": 10_000.0,
        "memory_used": 0.0,
        "memory_idle": 0.0,
        "utilisation": 0.3,
        "function_utilisation": 0.0,
        "jobs": int(training is not None),
        "warm": [(f"p/f{i}", 1, warm) for i in range(functions) if warm],
        "device": DEVICE,
        "sharing_mode": MODE,
        "workloads": [f"t{training}/s/training/8"] if training is not None else [],
    }
    return GpuReported(gpu=name, **(known | fields))  # type: ignore[arg-type]


def arrived(number: int, id_: str, *, at: float = NOW, within: float = 5.0) -> InvocationArrived:
    return InvocationArrived(
        function=f"p/f{number}", revision=1, id=id_, attempt=0, arrival_at=at, deadline_at=at + within
    )


def known(
    training: Sequence[Sequence[float]],
    function_: Sequence[Sequence[float]] | None = None,
    functions: Sequence[Sequence[float]] | None = None,
) -> TableUpdated:
    """A table; what is not given is nothing."""
    j, f = len(training), len(training[0])
    made = place(training, function_ or [[0.0] * f] * j, functions or [[0.0] * f] * f, upper=0.0)
    return TableUpdated(table=ArrayTable(Table(version=7, source="test", created_at=0.0, places=[made])))


def own(budget: float) -> list[JobLoss]:
    """A training with a budget of its own."""
    return [JobLoss(id="j", budget=budget)]


def placed(decisions: Sequence[Decision]) -> list[tuple[str, str]]:
    return [
        (id_, decision.gpu) for decision in decisions if isinstance(decision, Dispatch) for id_, _ in decision.attempts
    ]
