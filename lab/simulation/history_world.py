"""
A world made of what a platform served: its functions, GPU instances and jobs as they were measured.

Run times and cold starts are those that were measured, each invocation's own where it ran warm to its end, with the
degradation that was expected of it taken out. What co-location costs is what the published table says, by Eq. 3 and 4,
and what was declared where no table knows it: the only thing there is to say about runs that did not happen. So a
replay tests decisions, not the table.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, median
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from lab.simulation.interference import Contention, InterferenceModel, Use
from lab.simulation.result import EXPIRED, FAILED, GPU_COLUMNS, REJECTED, SUCCEEDED, Result
from lab.simulation.traces import Trace
from lab.simulation.world import Function, Gpu, Training, World, bad
from scheduler.policy.degradation import Degradation, PolicyTable
from smore.domain.degradation import Kind, Neighbour, of_function, of_training
from smore.domain.function import FunctionSpec
from smore.domain.invocation import State

Floats = NDArray[np.float64]

#: Slots of a GPU instance that does not say how many it has (docs/paper.md, A58).
SLOTS: Final = 8
#: Shares of a device that nobody has said.
LEAST_U: Final = 0.01
#: Run times beyond these times the median of their kind say that something else happened.
RATIOS: Final = (0.1, 10.0)


class Served(Protocol):
    """An invocation that has ended, with its last attempt (``lab.research.replay.past_runs.Served``)."""

    @property
    def function(self) -> str: ...
    @property
    def revision(self) -> int: ...
    @property
    def state(self) -> State: ...
    @property
    def attempt(self) -> int: ...
    @property
    def arrival_at(self) -> float: ...
    @property
    def deadline_at(self) -> float: ...
    @property
    def finished_at(self) -> float: ...
    @property
    def rows(self) -> int: ...
    @property
    def run_s(self) -> float | None: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def batch_rows(self) -> int | None: ...
    @property
    def cold(self) -> bool | None: ...
    @property
    def load_s(self) -> float | None: ...
    @property
    def slowdown(self) -> float: ...
    @property
    def wait_s(self) -> float | None: ...
    @property
    def met(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryGpu:
    """
    A GPU instance as it was. ``memory_mib`` is what its job leaves; ``utilisation`` is the job's own, 0..1.
    ``workload`` names its job's profile ('' = not said); ``iteration_s`` is the mean of its iterations alone (None: no
    job was there), ``mean_s`` of all of them. ``seen_s``: for how long its utilisation was sampled.
    """

    name: str
    device: str
    sharing_mode: str
    memory_mib: float
    slots: int = SLOTS
    utilisation: float = 0.0
    function_utilisation: float = 0.0
    job: str = ""
    workload: str = ""
    iteration_s: float | None = None
    mean_s: float | None = None
    seen_s: float = 0.0
    budget: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpan:
    """
    What is known of a span of the history. ``specs``: the catalog's word by (function, revision); ``table``: None = nothing was
    published.
    """

    served: Sequence[Served]
    gpus: Sequence[HistoryGpu]
    specs: Mapping[tuple[str, int], FunctionSpec]
    table: PolicyTable | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWorld(World):
    """
    A :class:`World` without an interference model. A function's name is ``<project>/<name>@<revision>``.

    ``seconds``: name → rows → seconds alone; ``loads``: name → seconds of a cold start; ``ratios`` [n]: each
    invocation's run time over the one of its size, NaN where it is not known; ``places``: by name of the GPU instance;
    ``share``: of a GPU instance that a batch used while it ran, NaN where nothing was seen.
    """

    specs: Mapping[str, FunctionSpec]
    seconds: Mapping[str, Mapping[int, float]]
    loads: Mapping[str, float]
    ratios: Floats = field(compare=False)
    places: Mapping[str, HistoryGpu]
    table: PolicyTable | None
    share: float

    def check_training(self, gpu: Gpu, path: str) -> None:
        """Any job may be there."""

    def check_function(self, function: Function, path: str) -> None:
        if function.name not in self.specs:
            raise bad(f"{path}.name", f"the catalog does not know {function.name!r}")

    def contention(self, gpu: Gpu) -> Contention:
        return _TableContention(self, self.places[gpu.name])

    def alike(self, gpu: Gpu) -> tuple[object, ...]:
        return (gpu.name,)

    def noise(self, n: int, seed: int) -> Floats:
        """As measured; of what did not run, drawn from what did."""
        ratios = self.ratios.copy()
        known = ratios[~np.isnan(ratios)]
        missing = np.isnan(ratios)
        drawn = np.random.default_rng([seed, 1])
        ratios[missing] = drawn.choice(known, int(missing.sum())) if len(known) else 1.0
        # A trace without arrivals has none.
        return ratios[:n]

    def use(self, function: Function, rows: int) -> Use:
        profile = self.specs[function.name].profile
        u = min(
            1.0, max(LEAST_U, self.share if self.share == self.share else profile.utilisation or profile.usage_gain)
        )
        return Use(u=u, b=0.0, seconds=self._alone(function.name, rows))

    def _alone(self, name: str, rows: int) -> float:
        """
        As measured at this size; elsewhere as declared, times what the nearest measured size took over what was
        declared of it.
        """
        measured, profile = self.seconds[name], self.specs[name].profile
        if rows in measured:
            return measured[rows]
        if not measured:
            return profile.run_time_s(rows)
        nearest = min(measured, key=lambda size: (abs(math.log(size / rows)), size))
        return profile.run_time_s(rows) * measured[nearest] / profile.run_time_s(nearest)

    def p99_s(self, function: Function, rows: int) -> float:
        return self.use(function, rows).seconds * self.interference_model.p99

    def load_s(self, function: Function) -> float:
        return self.loads[function.name]

    def memory_mib(self, function: Function) -> float:
        return self.specs[function.name].profile.memory_mib

    def training_mib(self, gpu: Gpu) -> float:  # noqa: ARG002 - what a job leaves is what there is
        return 0.0

    def device(self, gpu: Gpu) -> str:
        return self.places[gpu.name].device

    def sharing_mode(self, gpu: Gpu) -> str:
        return self.places[gpu.name].sharing_mode

    def workload(self, training: Training) -> str:
        return training.model

    def reading(self, gpu: Gpu, u: float, seed: int) -> float:  # noqa: ARG002 - it was read already
        return u

    def spec(self, function: Function, seed: int) -> FunctionSpec:  # noqa: ARG002 - as the catalog says
        return self.specs[function.name]


class _TableContention(Contention):
    """
    What runs together costs as the table of its place says; see ``scheduler.policy.kernel.refresh``, which counts
    alike.
    """

    def __init__(self, world: HistoryWorld, place: HistoryGpu) -> None:
        Contention.__init__(self, world.interference_model, 7, None)
        self._world, self._functions = world, {function.model: function for function in world.functions}
        if place.iteration_s is not None:
            self.training = Use(u=min(1.0, max(LEAST_U, place.utilisation)), b=0.0, seconds=place.iteration_s)
        table = world.table.at(place.device, place.sharing_mode) if world.table is not None else None
        self._table: Degradation | None = table
        self._row = table.trainings.get(place.workload, -1) if table is not None else -1
        #: By kind: column of the table (-1 = none), and what was declared.
        self._columns: list[int] = []
        self._declared: list[float] = []

    def kind(self, model: str, rows: int) -> int:
        number = self._kinds.get((model, rows))
        if number is None:
            number = self._kinds[model, rows] = len(self._uses)
            function = self._functions[model]
            profile = self._world.specs[function.name].profile
            self._uses.append(self._world.use(function, rows))
            self._columns.append(
                self._table.index(profile.model, rows) if self._table is not None and profile.model else -1
            )
            self._declared.append(profile.degradation)
        return number

    def slowdowns(self, active: Sequence[int], loads: int = 0) -> tuple[float, list[float]]:  # noqa: ARG002 - no table knows loads
        has, table, row = self.training is not None, self._table, self._row
        batches = [(self._columns[kind], self._declared[kind]) for kind in active]
        if table is None:
            declared = [said for _, said in batches]
            return 1.0 + has * sum(declared), [1.0 + said * (has + len(batches) - 1) for said in declared]
        weight = partial(_weight, table)
        knows_training = has and row >= 0
        tabled = [column for column, _ in batches if column >= 0]
        lost = has * sum(said for column, said in batches if not (knows_training and column >= 0))
        if knows_training:
            functions = [
                Neighbour(int(table.function_model[column]), float(table.training[row, column])) for column in tabled
            ]
            victim = int(table.training_model[row])
            lost += of_training(victim, functions, unpaired=len(batches) - len(tabled)).value(weight)
        slowed = []
        for position, (own, said) in enumerate(batches):
            others = [column for at, (column, _) in enumerate(batches) if at != position]
            if own < 0:
                slowed.append(1.0 + said * (has + len(others)))
                continue
            training = (
                [Neighbour(int(table.training_model[row]), float(table.function[row, own]))] if knows_training else []
            )
            paired = [
                Neighbour(int(table.function_model[column]), float(table.functions[own, column]))
                for column in others
                if column >= 0
            ]
            unpaired = has + len(others) - knows_training - len(paired)
            equation = of_function(int(table.function_model[own]), training, paired, unpaired=unpaired)
            slowed.append(1.0 + equation.value(weight) + unpaired * said)
        return 1.0 + lost, slowed


def _weight(table: Degradation, kind: Kind, k: int, victim: int, other: int) -> float:
    """A weight of Eq. 3 or 4 between two models, by their numbers."""
    by_kind = table.gamma if kind == "training" else table.alpha if kind == "function" else table.beta
    return float(by_kind[k, victim, other])


def name_of(invocation: Served) -> str:
    return f"{invocation.function}@{invocation.revision}"


def trace(span: RecordedSpan) -> Trace:
    """The arrivals with their deadlines. Raises BadWorld for a span in which nothing ended."""
    if not span.served:
        raise bad("since", "no invocation has ended in this span")
    names = list(dict.fromkeys(map(name_of, span.served)))
    column = {name: index for index, name in enumerate(names)}
    arrival = np.array([one.arrival_at for one in span.served])
    order = np.argsort(arrival, kind="stable")
    at = (arrival - arrival.min())[order]
    ends = max(one.finished_at for one in span.served) - float(arrival.min())
    return Trace(
        name="the platform's history",
        functions=tuple(names),
        duration_s=max(ends, float(at[-1]) + 1e-3),
        arrival_s=at,
        function=np.array([column[name_of(span.served[one])] for one in order], np.int64),
        rows=np.array([max(1, span.served[one].rows) for one in order], np.int64),
        factor=np.full(len(order), np.nan),
        # A deadline that had passed when it came is one that nobody can meet.
        deadline_s=np.array([max(span.served[one].deadline_at - span.served[one].arrival_at, 1e-9) for one in order]),
    )


def world(span: RecordedSpan, *, more: int = 0) -> HistoryWorld:
    """
    ``more``: GPU instances besides those that there were, like each of them in turn, with nothing on them.

    Raises BadWorld where there was no GPU instance, or for a function that the catalog does not know.
    """
    if not span.gpus:
        raise bad("gpus", "no GPU instance reported in this span")
    places = {gpu.name: gpu for gpu in span.gpus}
    for number in range(more):
        like = span.gpus[number % len(span.gpus)]
        name = f"{like.name}+{number + 1}"
        places[name] = HistoryGpu(
            name=name, device=like.device, sharing_mode=like.sharing_mode, memory_mib=like.memory_mib, slots=like.slots
        )
    names = list(dict.fromkeys(map(name_of, span.served)))
    specs = {f"{function}@{revision}": spec for (function, revision), spec in span.specs.items()}
    unknown = next((name for name in names if name not in specs), None)
    if unknown is not None:
        raise bad("functions", f"the catalog does not know {unknown!r}")
    seconds, loads = _times(span.served)
    ratios = np.array([_ratio(one, seconds) for one in sorted(span.served, key=lambda one: one.arrival_at)])
    known = ratios[~np.isnan(ratios)]
    waits = [one.wait_s for one in span.served if one.wait_s is not None and one.cold is False]
    return HistoryWorld(
        name="the platform's history",
        gpus=tuple(
            Gpu(
                name=gpu.name,
                memory_mib=gpu.memory_mib,
                slots=min(62, gpu.slots),
                training=Training(model=gpu.workload, batch=1) if gpu.iteration_s is not None else None,
                budget=gpu.budget,
            )
            for gpu in places.values()
        ),
        functions=tuple(
            Function(
                name=name,
                model=name,
                max_batch=specs[name].max_batch,
                max_warm=min(62, specs[name].max_warm),
                keep_alive_s=specs[name].keep_alive_s,
                max_attempts=specs[name].max_attempts,
            )
            for name in names
        ),
        interference_model=replace(
            InterferenceModel(),
            name="history",
            device="as it was",
            noise=min(1.0, float(np.log(known).std())) if len(known) else 0.0,
        ),
        keep_warm=0,
        dispatch_s=min(1.0, max(0.0, median(waits))) if waits else 0.0,
        specs=specs,
        seconds={name: seconds.get(name, {}) for name in names},
        loads={name: median(loads[name]) if loads.get(name) else specs[name].profile.load_s for name in names},
        ratios=ratios,
        places=places,
        table=span.table,
        share=_share(span),
    )


def _alone(one: Served) -> float | None:
    """
    Measured seconds without the degradation that was expected; None of one that was cold, or did not run to its end.
    """
    return one.run_s / (1.0 + one.slowdown) if one.state is State.SUCCEEDED and one.run_s and not one.cold else None


def _times(served: Sequence[Served]) -> tuple[dict[str, dict[int, float]], dict[str, list[float]]]:
    """(name → rows of a batch → median seconds alone, name → seconds of each cold start)."""
    runs: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    loads: dict[str, list[float]] = defaultdict(list)
    for one in served:
        alone = _alone(one)
        if alone is not None:
            runs[name_of(one)][one.batch_rows or one.rows or 1].append(alone)
        if one.cold and one.load_s:
            loads[name_of(one)].append(one.load_s)
    return {name: {rows: median(times) for rows, times in sizes.items()} for name, sizes in runs.items()}, loads


def _share(span: RecordedSpan) -> float:
    """Busy seconds that functions made, as sampled, over the seconds that their batches ran."""
    # Each member of a batch has the run time of the whole.
    ran = sum(one.run_s / max(1, one.batch or 1) for one in span.served if one.run_s)
    busy = sum(gpu.function_utilisation * gpu.seen_s for gpu in span.gpus)
    return min(1.0, busy / ran) if ran > 0 and busy > 0 else math.nan


def _ratio(one: Served, seconds: Mapping[str, Mapping[int, float]]) -> float:
    alone = _alone(one)
    if alone is None:
        return math.nan
    ratio = alone / seconds[name_of(one)][one.batch_rows or one.rows or 1]
    return ratio if RATIOS[0] <= ratio <= RATIOS[1] else math.nan


# ---- what came out ---------------------------------------------------------------------------------------------------

#: Rows of the table: name of the figure → words. Fractions, but for seconds.
ROWS: Final = {
    "dsr": "deadlines met, of all submitted",
    "admission": "dispatched, of all submitted",
    "expired": "expired",
    "rejected": "rejected",
    "failed": "failed",
    "cold": "cold starts, of those dispatched",
    "p50_s": "from arrival to result, median",
    "p99_s": "from arrival to result, P99",
    "function_utilisation": "utilisation by functions",
    "sfd": "trainings slower, over the whole span",
}


def happened(span: RecordedSpan) -> dict[str, float]:
    """What was measured; NaN where there is nothing to divide by."""
    served = span.served
    n = len(served)
    sent = [one for one in served if one.attempt > 0]
    took = [one.finished_at - one.arrival_at for one in served if one.state is State.SUCCEEDED]
    losses = [gpu.mean_s / gpu.iteration_s - 1.0 for gpu in span.gpus if gpu.mean_s is not None and gpu.iteration_s]
    return {
        "dsr": sum(one.met for one in served) / n,
        "admission": len(sent) / n,
        "expired": sum(one.state is State.EXPIRED for one in served) / n,
        "rejected": sum(one.state is State.REJECTED for one in served) / n,
        "failed": sum(one.state is State.FAILED for one in served) / n,
        "cold": sum(bool(one.cold) for one in sent) / len(sent) if sent else math.nan,
        "p50_s": float(np.quantile(took, 0.5)) if took else math.nan,
        "p99_s": float(np.quantile(took, 0.99)) if took else math.nan,
        "function_utilisation": fmean(gpu.function_utilisation for gpu in span.gpus),
        "sfd": fmean(losses) if losses else math.nan,
    }


def would_have(result: Result) -> dict[str, float]:
    """The same of a simulated run."""
    n = len(result.status)
    sent = result.attempts > 0
    done = result.status == SUCCEEDED
    took = (result.end_s - result.arrival_s)[done]
    alive, slow, function, solo = (
        result.gpus[:, GPU_COLUMNS.index(name)] for name in ("alive_s", "slow_s", "function_s", "training_u")
    )
    losses = (slow / alive - 1.0)[(solo > 0) & (alive > 0)]
    return {
        "dsr": float((done & (result.end_s <= result.deadline_s)).sum()) / n,
        "admission": float(sent.sum()) / n,
        "expired": float((result.status == EXPIRED).sum()) / n,
        "rejected": float((result.status == REJECTED).sum()) / n,
        "failed": float((result.status == FAILED).sum()) / n,
        "cold": float(result.cold.sum()) / int(sent.sum()) if sent.any() else math.nan,
        "p50_s": float(np.quantile(took, 0.5)) if len(took) else math.nan,
        "p99_s": float(np.quantile(took, 0.99)) if len(took) else math.nan,
        "function_utilisation": float((function[alive > 0] / alive[alive > 0]).mean())
        if (alive > 0).any()
        else math.nan,
        "sfd": float(losses.mean()) if len(losses) else math.nan,
    }
