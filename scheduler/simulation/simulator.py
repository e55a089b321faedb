"""
A run: arrivals of a trace, batches under processor sharing on GPU instances, and a policy that hears and decides, on
one simulated clock.

Events stand in one heap; arrivals, which are sorted, are merged into it. The progress of a GPU instance's batches
changes only when what is active there changes: then the time since the last change is charged at the old speeds, the
new state is looked up (``truth.Contention``) and the next completion computed anew; an entry of the heap that this
makes stale is known by its number. Events of one instant reach the policy in one call. Between two calls there may be
nothing to tell: while something waits the policy is woken every ``round_s``.

What the policy is told is what a leader would know: reports every ``monitor_s`` and after changes of the warm set, ends
of invocations, losses after ``lost_s``. What it decides is checked against the truth: a dispatch that memory or slots
do not allow is refused by the GPU instance and comes back; one that contradicts what the policy was told raises
:class:`Inconsistent`.

The same world, trace, seed and policy give the same :class:`Result`, byte for byte.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from pathlib import Path
from time import process_time
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from scheduler.policy.budget.controller import JobLoss, between
from scheduler.policy.decisions import (
    Decision,
    Dispatch,
    End,
    FinishBounds,
    Offload,
    Prewarm,
    PublishAdmission,
    PublishPrewarmStatus,
    PublishStatus,
    QuestionAnswered,
    Throttle,
)
from scheduler.policy.degradation import Table
from scheduler.policy.events import (
    AdmissionDue,
    Event,
    FunctionKnown,
    GpuLost,
    GpuReported,
    InvocationArrived,
    InvocationSettled,
    TableUpdated,
    TrafficMoved,
)
from scheduler.policy.policy import Policy
from scheduler.simulation.archive import archive
from scheduler.simulation.interference import Contention
from scheduler.simulation.traces import Trace
from scheduler.simulation.world import Gpu, World
from smore.domain.loss import DEFAULT_BUDGET, WINDOW_ITERATIONS, Sample, Window, window_s

Floats = NDArray[np.float64]

#: Status of an invocation. Every one ends in one of the five last; refused: the gate did not let it in.
WAITING, HELD, SUCCEEDED, EXPIRED, REJECTED, FAILED, REFUSED = range(7)
STATUS: Final = ("waiting", "held", "succeeded", "expired", "rejected", "failed", "refused")
_ENDS: Final = {"expire": EXPIRED, "reject": REJECTED, "fail": FAILED}

#: Kinds of entries in the heap.
_COMPLETE, _LOADED, _REPORT, _DELIVER, _START, _RETURN, _FAIL, _TOLD, _RECOVER, _WINDOW, _TELL, _MEASURED = range(12)

#: Solo seconds of work below which a batch counts as done: rounding of the clock.
_DONE: Final = 1e-10
#: After the last deadline a policy has so long to end what waits.
DRAIN_S: Final = 60.0
REVISION: Final = 1
#: A throttled gate is open for the first part of every such period.
GATE_S: Final = 1.0
#: The longest of so many runs is told (worker/pool/status.py).
_LASTED: Final = 50
#: How far back the work of a training is known, for windows that are told late.
_WORKED_S: Final = 60.0


class Inconsistent(Exception):
    """
    A policy decided what contradicts what it was told, or left an invocation without an end: a defect, not an outcome.
    """


@dataclass(slots=True, eq=False)
class _Batch:
    """
    ``left``: solo seconds of work; ``cold``: it waits, or waited, for a load, ``ahead`` for one that began before it
    arrived (A44).
    """

    function: int
    members: list[int]
    rows: int
    kind: int
    code: int
    left: float
    cold: bool = False
    ahead: bool = False
    start: float = 0.0


@dataclass(slots=True, eq=False)
class _Load:
    """An instance on its way; without a batch it was loaded ahead."""

    function: int
    batch: _Batch | None
    boot: int
    began: float


class _Gpu:
    """A GPU instance as it is. ``*_s`` are integrals over time: see :class:`Result`."""

    __slots__ = (
        "alive",
        "alive_s",
        "at",
        "boot",
        "busy_s",
        "closed",
        "code",
        "contention",
        "count",
        "duty",
        "executing_s",
        "free_mib",
        "function_s",
        "idle",
        "index",
        "instances",
        "lanes",
        "lasted",
        "leased",
        "loaded_s",
        "loading",
        "loads",
        "report_due",
        "running",
        "shut",
        "slow_s",
        "spec",
        "state",
        "told",
        "used",
        "version",
        "window",
        "windows",
        "work_s",
        "worked",
    )

    def __init__(self, index: int, spec: Gpu, contention: Contention, functions: int, free_mib: float) -> None:
        self.index, self.spec, self.contention = index, spec, contention
        self.alive, self.boot = True, 0
        self.at = self.alive_s = self.slow_s = self.work_s = self.busy_s = self.function_s = self.loaded_s = (
            self.executing_s
        ) = 0.0
        self.code, self.version, self.used, self.instances = 0, 0, 0, 0
        self.state = contention.state(0)
        self.running: list[_Batch] = []
        #: By function: since when each idle instance is idle (oldest first), resident instances, loading ones.
        self.idle: list[list[float]] = [[] for _ in range(functions)]
        self.count = [0] * functions
        self.loading = [0] * functions
        self.loads: list[_Load] = []
        #: Function → instances that are kept whatever their keep-alive says, and until when.
        self.leased: dict[int, tuple[int, float]] = {}
        #: By function: how long its last runs took.
        self.lasted: list[deque[float]] = [deque(maxlen=_LASTED) for _ in range(functions)]
        self.free_mib = free_mib
        #: (time, slow_s, alive_s, busy_s, function_s) at past reports.
        self.window: deque[tuple[float, float, float, float, float]] = deque([(0.0, 0.0, 0.0, 0.0, 0.0)])
        #: (time, work_s) at past reports; windows whose after side is to come, as (shut, opened); those that reports
        #: tell.
        self.worked: deque[tuple[float, float]] = deque()
        self.windows: deque[tuple[float, float]] = deque()
        self.told: deque[Window] = deque(maxlen=8)
        self.report_due = False
        #: Part of the time in which batches may start, whether they may not because a window is closed, and those that
        #: wait for a gate that is shut for good.
        self.duty = 1.0
        self.closed = False
        self.shut: list[_Batch] = []
        #: (function, rows) → (kind, code, seconds alone).
        self.lanes: dict[tuple[int, int], tuple[int, int, float]] = {}

    def advance(self, now: float) -> None:
        """Charge the time since the last change at the speeds that held."""
        dt = now - self.at
        if dt <= 0.0:
            return
        self.at = now
        if not self.alive:
            return
        slow, busy, part, slows = self.state
        for batch in self.running:
            batch.left -= dt / slows[batch.kind]
        self.alive_s += dt
        self.slow_s += slow * dt
        self.work_s += dt / slow
        self.busy_s += busy * dt
        self.function_s += part * dt
        self.loaded_s += self.instances * dt
        self.executing_s += len(self.running) * dt

    def kept(self, function: int, now: float) -> int:
        """Instances of a function that are kept whatever their keep-alive says."""
        instances, until = self.leased.get(function, (0, 0.0))
        return instances if now < until else 0

    def totals(self) -> tuple[float, ...]:
        return (self.alive_s, self.slow_s, self.work_s, self.busy_s, self.function_s, self.loaded_s, self.executing_s)


#: Columns of :attr:`Result.gpus`.
GPU_COLUMNS: Final = ("alive_s", "slow_s", "work_s", "busy_s", "function_s", "loaded_s", "executing_s", "training_u")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """
    Raw rows of a run, from which ``metrics.py`` computes everything.

    Per invocation [n], in order of arrival: ``function`` (index), ``rows``, ``arrival_s``, ``deadline_s``, ``status``
    (:data:`STATUS`), ``attempts``, ``gpu`` (index of the last, -1 never dispatched), ``dispatch_s``, ``start_s``,
    ``end_s`` (NaN where it never was), ``cold``, ``alone_s`` (time alone on a whole device, without noise) and
    ``run_s`` (NaN: did not run to its end).

    ``gpus`` [N, len(GPU_COLUMNS)], over the span of the trace: seconds alive; integrals of the training's slowdown, of
    its progress (1 / slowdown), of utilisation min(1, U) and of the functions' part of it; instance-seconds loaded
    (loading ones included) and executing; the training's utilisation alone. ``meta``: world, trace, seed, policy,
    refusals, ``warm_at_start`` [N][F] instances. ``policy_s`` is processor time spent in ``decide``, and no part of
    what :meth:`write` writes.
    """

    functions: tuple[str, ...]
    function: NDArray[np.int32]
    rows: NDArray[np.int32]
    arrival_s: Floats
    deadline_s: Floats
    status: NDArray[np.int8]
    attempts: NDArray[np.int16]
    gpu: NDArray[np.int32]
    dispatch_s: Floats
    start_s: Floats
    end_s: Floats
    cold: NDArray[np.bool_]
    alone_s: Floats
    run_s: Floats
    p99: float
    gpus: Floats
    meta: Mapping[str, Any]
    policy_s: float = field(default=0.0, compare=False)

    def write(self, path: Path) -> None:
        """One file, the same bytes for the same run."""
        path.write_bytes(self.encode())

    def encode(self) -> bytes:
        arrays: dict[str, NDArray[Any]] = {
            name: getattr(self, name)
            for name in (
                "function",
                "rows",
                "arrival_s",
                "deadline_s",
                "status",
                "attempts",
                "gpu",
                "dispatch_s",
                "start_s",
                "end_s",
                "cold",
                "alone_s",
                "run_s",
                "gpus",
            )
        }
        meta = dict(self.meta) | {"functions": list(self.functions), "p99": self.p99}
        arrays["meta"] = np.frombuffer(json.dumps(meta, sort_keys=True).encode(), np.uint8)
        return archive(arrays)

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Inverse of :meth:`write`."""
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        meta = json.loads(arrays.pop("meta").tobytes())
        return cls(functions=tuple(meta.pop("functions")), p99=meta.pop("p99"), meta=meta, **arrays)


def simulate(
    world: World,
    trace: Trace,
    make: Callable[[int], Policy],
    *,
    seed: int,
    table: Table | None = None,
    name: str = "",
) -> Result:
    """
    Run a policy, made by ``make(seed)``, over a trace.

    ``table``: the degradations it is told (None: nothing is known). Raises BadTrace for a trace that names functions
    the world has not, and :class:`Inconsistent`.
    """
    return _Simulation(world, trace, make(seed), seed, table, name).run()


class _Simulation:
    def __init__(self, world: World, trace: Trace, policy: Policy, seed: int, table: Table | None, name: str) -> None:
        self._world, self._trace, self._policy, self._seed, self._name = world, trace, policy, seed, name
        self._names = [function.name for function in world.functions]
        self._column = {name: index for index, name in enumerate(self._names)}
        n, functions = len(trace), len(world.functions)
        index = trace.index_in(self._names)
        self._function: list[int] = index[trace.function].tolist()
        self._rows: list[int] = trace.rows_in(world).tolist()
        self._arrival: list[float] = trace.arrival_s.tolist()
        sizes = {
            key: world.use(world.functions[key[0]], key[1]).seconds
            for key in set(zip(self._function, self._rows, strict=True))
        }
        self._alone = [sizes[key] for key in zip(self._function, self._rows, strict=True)]
        self._deadline: list[float] = trace.deadlines_in(world).tolist()
        self._duration = trace.duration_s
        # Noise goes with the invocation, so that every policy meets the same.
        self._noise: list[float] = world.noise(n, seed).tolist()
        self._monitor = np.random.default_rng([seed, 2])
        self._noises: list[float] = []
        self._ids = [f"{number:09d}" for number in range(n)]
        self._status = [WAITING] * n
        self._attempt = [0] * n
        self._where = [-1] * n
        self._dispatched, self._started, self._ended, self._run = ([math.nan] * n for _ in range(4))
        self._cold = [False] * n
        self._open = n
        self._waiting = 0
        self._refused = 0
        self._heap: list[tuple[float, int, int, int, Any]] = []
        self._number = 0
        self._events: list[Event] = []
        self._policy_s = 0.0
        self._wake_at = math.inf
        self._specs = [world.spec(function) for function in world.functions]
        self._need = [world.memory_mib(function) for function in world.functions]
        self._load_s = [world.load_s(function) for function in world.functions]
        # GPU instances that are alike share what was computed of their states.
        alike: dict[tuple[object, ...], Contention] = {}
        for gpu in world.gpus:
            key = world.alike(gpu)
            if key not in alike:
                alike[key] = world.contention(gpu)
        self._gpus = [
            _Gpu(position, gpu, alike[world.alike(gpu)], functions, gpu.memory_mib - world.training_mib(gpu))
            for position, gpu in enumerate(world.gpus)
        ]
        self._by_name = {gpu.name: state for gpu, state in zip(world.gpus, self._gpus, strict=True)}
        self._lost: list[list[_Batch]] = [[] for _ in world.gpus]
        self._measured: list[tuple[float, ...]] = []
        self._table = table
        #: Function → what the gate was told, and how many wait there.
        self._bounds: list[FinishBounds | None] = [None] * functions
        self._queued = [0] * functions
        self._windows = np.random.default_rng([seed, 3])
        self._pool = self._sized()

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        world, heap, events = self._world, self._heap, self._events
        for gpu in self._gpus:
            self._preload(gpu)
        for index, spec in enumerate(self._specs):
            events.append(FunctionKnown(function=self._names[index], revision=REVISION, spec=spec))
            events.append(TrafficMoved(function=self._names[index], revision=REVISION))
        if self._table is not None:
            events.append(TableUpdated(table=self._table))
        for gpu in self._gpus:
            events.append(self._report(gpu, 0.0))
            self._push(world.monitor_s, _REPORT, gpu.index, True)
        for failure in world.failures:
            gpu = self._by_name[failure.gpu]
            self._push(failure.at_s, _FAIL, gpu.index, failure.seconds)
        for gpu in self._gpus:
            if world.probe_share and gpu.contention.training is not None:
                self._push(self._gap_s(gpu), _WINDOW, gpu.index, True)
        if world.gate_s:
            self._push(0.0, _TELL, 0, None)
        self._push(self._duration, _MEASURED, 0, None)
        # Never comes: the heap is never empty.
        self._push(math.inf, _MEASURED, 0, None)
        self._decide(0.0)

        arrival, n, position = self._arrival, len(self._arrival), 0
        next_arrival = arrival[0] if n else math.inf
        latest = max(self._deadline, default=0.0) + DRAIN_S
        tick = math.inf
        while self._open or not self._measured:
            now = heap[0][0]
            if next_arrival < now:
                now = next_arrival
            if tick < now:
                now = tick
            if now > latest and self._waiting:
                who = self._name or "the policy"
                raise Inconsistent(
                    f"{who} left {self._waiting} invocations without an end {DRAIN_S:g} s after every deadline"
                )
            while next_arrival <= now:
                self._arrive(position)
                position += 1
                next_arrival = arrival[position] if position < n else math.inf
            while heap[0][0] <= now:
                _, _, kind, index, payload = heappop(heap)
                if kind == _COMPLETE:
                    gpu = self._gpus[index]
                    if gpu.version == payload:
                        self._complete(gpu, now)
                else:
                    self._happen(now, kind, index, payload)
            if events or tick <= now:
                self._decide(now)
                # Not at ``wake_at`` alone while something waits: rounds of a fixed length are part of what published
                # figures were computed with, and the policy decides the same in fewer or more of them only nearly.
                tick = now + world.round_s if self._waiting else self._wake_at
        return self._result()

    def _push(self, at: float, kind: int, index: int, payload: Any) -> None:
        self._number += 1
        heappush(self._heap, (at, self._number, kind, index, payload))

    def _happen(self, now: float, kind: int, index: int, payload: Any) -> None:
        """Everything but arrivals and completions, which are most."""
        gpu = self._gpus[index]
        if kind == _LOADED:
            if payload.boot == gpu.boot:
                self._loaded(gpu, payload, now)
        elif kind == _REPORT:
            self._monitor_tick(gpu, now, payload)
        elif kind == _DELIVER:
            self._events.append(payload)
        elif kind == _START:
            self._accept(gpu, payload, now)
        elif kind == _RETURN:
            self._give_back(payload, now)
        elif kind == _FAIL:
            self._fail(gpu, now, payload)
        elif kind == _TOLD:
            self._told(gpu, now)
        elif kind == _WINDOW:
            self._window(gpu, payload, now)
        elif kind == _TELL:
            self._tell(now)
        elif kind == _RECOVER:
            if payload != gpu.boot or gpu.alive:
                return
            gpu.advance(now)
            gpu.alive = True
            self._preload(gpu)
            self._resume(gpu, now)
            self._wake(gpu, now)
        else:
            for each in self._gpus:
                each.advance(now)
            self._measured = [each.totals() for each in self._gpus]

    def _decide(self, now: float) -> None:
        """Give the policy what has happened, and perform what it decides."""
        events = list(self._events)
        self._events.clear()
        self._wake_at = self._perform(now, events)

    def _perform(self, now: float, events: Sequence[Event]) -> float:
        """Returns when the policy wants to be woken."""
        began = process_time()
        decisions, wake_at = self._policy.decide(now, events)
        self._policy_s += process_time() - began
        for decision in decisions:
            self._carry_out(decision, now)
        return wake_at

    # ---- what the policy decided -------------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision, now: float) -> None:
        match decision:
            case Dispatch():
                self._dispatch(decision, now)
            case End():
                number = int(decision.id)
                if self._status[number] != WAITING:
                    raise Inconsistent(f"{decision.id} was ended while it was {STATUS[self._status[number]]}")
                self._waiting -= 1
                self._queued[self._function[number]] -= 1
                self._end(number, _ENDS[decision.action], now)
            case Prewarm():
                self._prewarm(decision, now)
            case Throttle():
                gpu = self._by_name[decision.gpu]
                gpu.duty = decision.duty
                self._let_in(gpu, now)
            case Offload():
                # There is no host memory here, so that what is offloaded is gone, whatever ``gone`` says.
                gpu, function = self._by_name[decision.gpu], self._column[decision.function]
                gpu.advance(now)
                instances, until = gpu.leased.get(function, (0, 0.0))
                gpu.leased[function] = (min(instances, decision.keep), until)
                while gpu.idle[function] and gpu.count[function] > decision.keep:
                    self._offload(gpu, function)
                self._wake(gpu, now)
            case PublishAdmission():
                self._bounds = [decision.bounds.get(name) for name in self._names]
            case QuestionAnswered() | PublishStatus() | PublishPrewarmStatus():
                pass  # nobody asks and nobody reads it here
            case _:
                assert_never(decision)

    def _dispatch(self, decision: Dispatch, now: float) -> None:
        members = []
        for id_, attempt in decision.attempts:
            number = int(id_)
            if self._status[number] != WAITING or self._attempt[number] != attempt:
                raise Inconsistent(
                    f"{id_} was dispatched as attempt {attempt}: it is {STATUS[self._status[number]]} as"
                    f" {self._attempt[number]}"
                )
            self._status[number] = HELD
            self._queued[self._function[number]] -= 1
            self._attempt[number] = attempt + 1
            self._dispatched[number] = now
            members.append(number)
        gpu = self._by_name[decision.gpu]
        self._waiting -= len(members)
        batch = self._batch(gpu, members)
        if self._world.dispatch_s:
            self._push(now + self._world.dispatch_s, _START, gpu.index, batch)
        else:
            self._accept(gpu, batch, now)

    def _prewarm(self, decision: Prewarm, now: float) -> None:
        """Load what is missing of the instances that are asked for, and keep them until ``until_at``."""
        gpu, function = self._by_name[decision.gpu], self._column[decision.function]
        if not gpu.alive:
            return
        if decision.until_at:
            gpu.leased[function] = (decision.instances, decision.until_at)
        while gpu.count[function] < decision.instances and self._make_room(gpu, function, now):
            self._begin_load(gpu, _Load(function, None, gpu.boot, now), now)
            self._resume(gpu, now)

    def _batch(self, gpu: _Gpu, members: list[int]) -> _Batch:
        first = members[0]
        function = self._function[first]
        rows = self._rows[first] if len(members) == 1 else sum(self._rows[number] for number in members)
        lane = gpu.lanes.get((function, rows))
        if lane is None:
            kind = gpu.contention.kind(self._world.functions[function].model, rows)
            lane = gpu.lanes[function, rows] = (kind, gpu.contention.code(kind), gpu.contention.alone(kind).seconds)
        kind, code, seconds = lane
        return _Batch(function, members, rows, kind, code, seconds * self._noise[first])

    def _accept(self, gpu: _Gpu, batch: _Batch, now: float) -> None:
        """
        A dispatch reaches its GPU instance: it runs, waits for a load, or is refused for want of a slot or memory.
        """
        for number in batch.members:
            self._where[number] = gpu.index
        if not gpu.alive:
            # Nobody hears it: its lease runs out.
            if not self._lost[gpu.index]:
                self._push(now + self._world.lost_s, _TOLD, gpu.index, None)
            self._lost[gpu.index].append(batch)
            return
        phase = now % GATE_S
        if gpu.closed or (gpu.duty < 1.0 and phase >= gpu.duty * GATE_S):
            # The gate stops starts, never a run.
            if gpu.duty > 0.0 and not gpu.closed:
                self._push(now + GATE_S - phase, _START, gpu.index, batch)
            else:
                gpu.shut.append(batch)
            return
        function = batch.function
        if gpu.used >= gpu.spec.slots:
            self._refuse(batch, now)
            return
        idle = gpu.idle[function]
        if idle:
            gpu.advance(now)
            idle.pop()
            gpu.used += 1
            self._begin(gpu, batch, now)
            self._resume(gpu, now)
            return
        batch.cold = True
        ahead = next((load for load in gpu.loads if load.function == function and load.batch is None), None)
        if ahead is not None:
            ahead.batch = batch
            batch.ahead = ahead.began < self._arrival[batch.members[0]]
            gpu.used += 1
        elif self._make_room(gpu, function, now):
            gpu.used += 1
            self._begin_load(gpu, _Load(function, batch, gpu.boot, now), now)
            self._resume(gpu, now)
        else:
            self._refuse(batch, now)

    def _let_in(self, gpu: _Gpu, now: float) -> None:
        """What waits for the gate comes again."""
        shut, gpu.shut = gpu.shut, []
        for batch in shut:
            self._accept(gpu, batch, now)

    def _begin(self, gpu: _Gpu, batch: _Batch, now: float) -> None:
        batch.start = now
        for number in batch.members:
            self._started[number] = now
        gpu.running.append(batch)
        gpu.code += batch.code

    def _refuse(self, batch: _Batch, now: float) -> None:
        self._refused += 1
        self._push(now + self._world.retry_s, _RETURN, 0, batch)

    def _give_back(self, batch: _Batch, now: float) -> None:
        """Members return to the queue, or fail where they have had all their attempts."""
        for number in batch.members:
            self._started[number] = math.nan
            function = self._function[number]
            if self._attempt[number] >= self._world.functions[function].max_attempts:
                self._end(number, FAILED, now)
                self._events.append(InvocationSettled(id=self._ids[number], attempt=self._attempt[number]))
            else:
                self._status[number] = WAITING
                self._waiting += 1
                self._queued[function] += 1
                self._events.append(self._arrived(number))

    # ---- GPU instances -----------------------------------------------------------------------------------------------

    def _resume(self, gpu: _Gpu, now: float) -> None:
        """After a change: the state that holds from now on, and when the next batch will be done in it."""
        gpu.state = state = gpu.contention.state(gpu.code)
        gpu.version += 1
        if gpu.running:
            slows = state[3]
            soonest = min([batch.left * slows[batch.kind] for batch in gpu.running])
            self._number += 1
            heappush(
                self._heap, (now + soonest if soonest > 0.0 else now, self._number, _COMPLETE, gpu.index, gpu.version)
            )

    def _complete(self, gpu: _Gpu, now: float) -> None:
        gpu.advance(now)
        running = gpu.running
        least = min([batch.left for batch in running])
        slows = gpu.state[3]
        # The one that the heap meant is done whatever rounding left of it.
        due = min(running, key=lambda batch: batch.left * slows[batch.kind]) if least > _DONE else None
        kept = []
        for batch in running:
            if batch.left > _DONE and batch is not due:
                kept.append(batch)
                continue
            gpu.code -= batch.code
            gpu.used -= 1
            gpu.idle[batch.function].append(now)
            run_s = now - batch.start
            gpu.lasted[batch.function].append(run_s)
            told = None if batch.cold else run_s
            for number in batch.members:
                self._run[number] = run_s
                self._cold[number] = batch.cold and not batch.ahead
                self._end(number, SUCCEEDED, now)
                self._events.append(
                    InvocationSettled(
                        id=self._ids[number], attempt=self._attempt[number], run_s=told, batch_rows=batch.rows
                    )
                )
        gpu.running = kept
        self._resume(gpu, now)

    def _begin_load(self, gpu: _Gpu, load: _Load, now: float) -> None:
        """The memory is taken at once, a unit of the state stands for the copy."""
        gpu.advance(now)
        function = load.function
        gpu.free_mib -= self._need[function]
        if gpu.free_mib < -1e-6:
            raise Inconsistent(f"{gpu.spec.name} holds {-gpu.free_mib:.1f} MiB more than it has")
        gpu.count[function] += 1
        gpu.loading[function] += 1
        gpu.instances += 1
        gpu.loads.append(load)
        gpu.code += 1
        self._push(now + self._load_s[function], _LOADED, gpu.index, load)
        self._wake(gpu, now)

    def _loaded(self, gpu: _Gpu, load: _Load, now: float) -> None:
        gpu.advance(now)
        gpu.loads.remove(load)
        gpu.code -= 1
        gpu.loading[load.function] -= 1
        if load.batch is not None:
            self._begin(gpu, load.batch, now)
        else:
            gpu.idle[load.function].append(now)
        self._resume(gpu, now)
        self._wake(gpu, now)

    def _make_room(self, gpu: _Gpu, function: int, now: float) -> bool:
        """Memory for one more instance, if need be by offloading idle ones, least recently used first (A35)."""
        need = self._need[function]
        if gpu.free_mib + sum(len(idle) * self._need[other] for other, idle in enumerate(gpu.idle)) < need:
            return False
        gpu.advance(now)
        while gpu.free_mib < need:
            oldest = min((idle[0], other) for other, idle in enumerate(gpu.idle) if idle)
            self._offload(gpu, oldest[1])
        return True

    def _offload(self, gpu: _Gpu, function: int) -> None:
        """The longest idle instance of a function goes. The GPU instance must have been advanced to now."""
        gpu.idle[function].pop(0)
        gpu.count[function] -= 1
        gpu.instances -= 1
        gpu.free_mib += self._need[function]

    def _sized(self) -> list[list[int]]:
        """
        Instances of each function that are to be warm on each GPU instance [N][F], as the world's ``keep_warm``,
        ``warm_share`` and ``burst`` say.

        Every function has one somewhere, the largest first, where most memory is left; unless there is no room for one
        of each. Then each GPU instance has as many of each as are wanted, those with the most work for their memory
        first. What does not fit is passed over.
        """
        world, n, functions = self._world, len(self._gpus), len(self._need)
        busy_s = np.bincount(self._function, self._alone, functions) if self._function else np.zeros(functions)
        load = busy_s / max(self._duration, 1e-9)
        share = [max(world.keep_warm, math.ceil(world.burst * one / n)) for one in load.tolist()]
        room = [world.warm_share * gpu.free_mib for gpu in self._gpus]
        left = room.copy()
        found = [[0] * functions for _ in range(n)]

        def place(row: int, function: int) -> None:
            if found[row][function] < share[function] and self._need[function] <= left[row]:
                found[row][function] += 1
                left[row] -= self._need[function]

        each = [function for function in range(functions) if share[function] and self._need[function] <= max(room)]
        for function in sorted(each, key=lambda one: -self._need[one]):
            place(max(range(n), key=left.__getitem__), function)
        if sum(map(sum, found)) < len(each):
            found[:], left[:] = [[0] * functions for _ in range(n)], room
        for function in sorted(range(functions), key=lambda one: -load[one] / self._need[one]):
            for row in range(n):
                for _ in range(share[function]):
                    place(row, function)
        return found

    def _kept_warm(self, gpu: _Gpu) -> list[int]:
        """Functions of which instances are missing, once for each."""
        wanted = self._pool[gpu.index]
        return [function for function, count in enumerate(gpu.count) for _ in range(wanted[function] - count)]

    def _preload(self, gpu: _Gpu) -> None:
        """The prewarmer's instances stand already: at the beginning, and when a GPU instance comes back."""
        for function in self._kept_warm(gpu):
            gpu.free_mib -= self._need[function]
            gpu.count[function] += 1
            gpu.instances += 1
            gpu.idle[function].append(gpu.at)

    def _fail(self, gpu: _Gpu, now: float, seconds: float) -> None:
        gpu.advance(now)
        gpu.alive = False
        gpu.boot += 1
        gpu.version += 1
        batches = [*gpu.shut, *gpu.running, *(load.batch for load in gpu.loads if load.batch is not None)]
        self._lost[gpu.index] += batches
        gpu.running, gpu.loads, gpu.shut, gpu.code, gpu.used, gpu.instances = [], [], [], 0, 0, 0
        functions = len(self._need)
        gpu.leased.clear()
        gpu.idle, gpu.count, gpu.loading = [[] for _ in range(functions)], [0] * functions, [0] * functions
        gpu.free_mib = gpu.spec.memory_mib - self._world.training_mib(gpu.spec)
        self._push(now + self._world.lost_s, _TOLD, gpu.index, None)
        self._push(now + seconds, _RECOVER, gpu.index, gpu.boot)

    def _told(self, gpu: _Gpu, now: float) -> None:
        """The leases have run out: what was held there comes back."""
        if not gpu.alive:
            self._events.append(GpuLost(gpu=gpu.spec.name))
        lost, self._lost[gpu.index] = self._lost[gpu.index], []
        for batch in lost:
            self._give_back(batch, now)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def _wake(self, gpu: _Gpu, now: float) -> None:
        """The warm set has changed: report soon."""
        if not gpu.report_due:
            gpu.report_due = True
            self._push(now + self._world.coalesce_s, _REPORT, gpu.index, False)

    def _monitor_tick(self, gpu: _Gpu, now: float, periodic: bool) -> None:
        world = self._world
        if not periodic:
            gpu.report_due = False
        elif self._open or now < self._duration:
            self._push(now + world.monitor_s, _REPORT, gpu.index, True)
        if not gpu.alive:
            return
        gpu.advance(now)
        if periodic:
            self._keep(gpu, now)
            if self._world.probe_share and gpu.contention.training is not None:
                self._settle_windows(gpu, now)
        report = self._report(gpu, now)
        if world.monitor_delay_s:
            self._push(now + world.monitor_delay_s, _DELIVER, gpu.index, report)
        else:
            self._events.append(report)

    def _keep(self, gpu: _Gpu, now: float) -> None:
        """Offload what has been idle for too long, and load again what should be warm and finds memory free."""
        changed = False
        for index, function in enumerate(self._world.functions):
            idle = gpu.idle[index]
            while (
                function.keep_alive_s >= 0
                and idle
                and now - idle[0] > function.keep_alive_s
                and gpu.count[index] > max(self._pool[gpu.index][index], gpu.kept(index, now))
            ):
                self._offload(gpu, index)
                changed = True
        for index in self._kept_warm(gpu):
            if gpu.free_mib >= self._need[index]:
                self._begin_load(gpu, _Load(index, None, gpu.boot, now), now)
                changed = True
        if changed:
            self._resume(gpu, now)

    def _noisy(self) -> float:
        if not self._noises:
            self._noises = self._monitor.standard_normal(4096).tolist()
        return self._noises.pop()

    def _report(self, gpu: _Gpu, now: float) -> GpuReported:
        """
        What its monitor saw: utilisation over the time since the last report of a whole interval, the job over
        ``job_window_s``.
        """
        world, spec, window = self._world, gpu.spec, gpu.window
        if now - window[-1][0] >= 0.8 * world.monitor_s:
            window.append((now, gpu.slow_s, gpu.alive_s, gpu.busy_s, gpu.function_s))
            while len(window) > 2 and now - window[1][0] >= world.job_window_s:
                window.popleft()
        last, before = window[-1], window[max(0, len(window) - 2)]
        span = last[2] - before[2]
        if span > 0:
            noise = 1.0 + world.monitor_noise * self._noisy()
            busy = min(1.0, max(0.0, (last[3] - before[3]) / span * noise))
            part = min(busy, max(0.0, (last[4] - before[4]) / span * noise))
        else:
            busy, part = gpu.state[1], gpu.state[2]
        degradation = None
        training = gpu.contention.training
        whole = last[2] - window[0][2]
        if training is not None and whole > 0:
            iterations = max(1.0, whole / training.seconds)
            noise = math.exp(world.truth.noise * self._noisy() / math.sqrt(iterations))
            degradation = (last[1] - window[0][1]) / whole * noise - 1.0
        names, need = self._names, self._need
        return GpuReported(
            gpu=spec.name,
            boot=str(gpu.boot),
            at=now,
            slots=spec.slots,
            memory_total=spec.memory_mib,
            memory_used=spec.memory_mib - gpu.free_mib,
            memory_idle=sum(len(idle) * need[index] for index, idle in enumerate(gpu.idle) if idle),
            utilisation=busy,
            function_utilisation=part,
            jobs=int(training is not None),
            warm=[(names[index], REVISION, count) for index, count in enumerate(gpu.count) if count],
            loading=[(names[index], REVISION, count) for index, count in enumerate(gpu.loading) if count],
            idle=[
                (names[index], REVISION, need[index], now - since)
                for index, idle in enumerate(gpu.idle)
                for since in idle
            ],
            job_degradation=degradation,
            device=world.device(spec),
            sharing_mode=world.sharing_mode(spec),
            workloads=[world.workload(spec.training)] if spec.training is not None else [],
            closed=gpu.closed,
            stretches=[
                (names[index], REVISION, max(lasted))
                for index, lasted in enumerate(gpu.lasted)
                if lasted and world.closed_loop
            ],
            losses=self._losses(gpu, whole, last[1] - window[0][1]),
        )

    def _losses(self, gpu: _Gpu, seconds: float, slow_s: float) -> list[JobLoss]:
        """
        The training's budget, and in the closed loop its iterations over the job's window beside as many with the gate
        shut (drawn); and what the closed windows showed, where there are any.
        """
        training, budget = gpu.contention.training, gpu.spec.budget
        if training is None or (budget is None and not self._world.closed_loop):
            return []
        job = JobLoss(id=f"job-{gpu.spec.name}", budget=DEFAULT_BUDGET if budget is None else budget)
        n = int(seconds / training.seconds)
        if not self._world.closed_loop or n < 1:
            return [job]
        spread = self._world.truth.noise

        def sample(mean: float) -> Sample:
            noisy = mean * math.exp(spread * self._noisy() / math.sqrt(n))
            return Sample(mean=noisy, sd=spread * noisy, n=n)

        recent, closed = sample(training.seconds * slow_s / seconds), sample(training.seconds)
        return [replace(job, recent=recent, closed=closed, windows=tuple(gpu.told))]

    # ---- windows and the gate ----------------------------------------------------------------------------------------

    def _gap_s(self, gpu: _Gpu) -> float:
        """Open time until the next window: exponential, so that no period is met."""
        share = self._world.probe_share
        return float(self._windows.exponential(self._window_s(gpu) * (1.0 - share) / share))

    def _window_s(self, gpu: _Gpu) -> float:
        assert gpu.contention.training is not None
        return window_s(gpu.contention.training.seconds)

    def _window(self, gpu: _Gpu, closed: bool, now: float) -> None:
        """A window begins or ends."""
        gpu.closed = closed
        if not closed:
            gpu.windows.append((now - self._window_s(gpu), now))
        self._push(now + (self._window_s(gpu) if closed else self._gap_s(gpu)), _WINDOW, gpu.index, not closed)
        self._wake(gpu, now)
        if not closed:
            self._let_in(gpu, now)

    def _settle_windows(self, gpu: _Gpu, now: float) -> None:
        """
        What a window shows, as soon as the work after it is known (worker/training/windows.py): the closed iterations
        as if nothing had run, those beside it by the work that was done then, all with the noise of their means.
        """
        training, count = gpu.contention.training, WINDOW_ITERATIONS
        assert training is not None
        gpu.worked.append((now, gpu.work_s))
        while len(gpu.worked) > 2 and gpu.worked[1][0] < now - _WORKED_S:
            gpu.worked.popleft()
        while gpu.windows:
            shut, opened = gpu.windows[0]
            length = opened - shut
            if now < opened + 2 * length:
                return
            gpu.windows.popleft()
            if shut - 2 * length < gpu.worked[0][0]:
                continue
            sides = [(shut - 2 * length, shut - length), (opened + length, opened + 2 * length)]
            before, after = (
                length / max(1e-9, between(gpu.worked, end) - between(gpu.worked, begin)) for begin, end in sides
            )
            spread = self._world.truth.noise / math.sqrt(count)
            means = [training.seconds * slow * math.exp(spread * self._noisy()) for slow in (before, 1.0, after)]
            gpu.told.append(
                Window(
                    start=shut,
                    end=opened,
                    before_s=means[0],
                    before_n=count,
                    closed_s=means[1],
                    closed_n=count,
                    closed_sd=self._world.truth.noise * training.seconds,
                    after_s=means[2],
                    after_n=count,
                )
            )

    def _tell(self, now: float) -> None:
        """The gate is told of every function when a new invocation could end."""
        self._perform(now, [AdmissionDue(revisions=dict.fromkeys(self._names, REVISION))])
        if self._open or now < self._duration:
            self._push(now + self._world.gate_s, _TELL, 0, None)

    def _refused_at(self, number: int) -> bool:
        """Whether the gate refuses an invocation that comes now, as smore/redis/lua/common.lua does."""
        function = self._function[number]
        bounds = self._bounds[function]
        if bounds is None:
            return False
        backlog_s = bounds.backlog_s + bounds.each_s * max(0, self._queued[function] - bounds.counted)
        return self._arrival[number] + max(bounds.floor_s, backlog_s) > self._deadline[number]

    # ---- invocations -------------------------------------------------------------------------------------------------

    def _arrived(self, number: int) -> InvocationArrived:
        return InvocationArrived(
            function=self._names[self._function[number]],
            revision=REVISION,
            id=self._ids[number],
            attempt=self._attempt[number],
            arrival_at=self._arrival[number],
            deadline_at=self._deadline[number],
            rows=self._rows[number],
        )

    def _arrive(self, number: int) -> None:
        if self._refused_at(number):
            self._end(number, REFUSED, self._arrival[number])
            return
        self._waiting += 1
        self._queued[self._function[number]] += 1
        self._events.append(self._arrived(number))

    def _end(self, number: int, status: int, now: float) -> None:
        self._status[number] = status
        self._ended[number] = now
        self._open -= 1

    def _result(self) -> Result:
        status = np.array(self._status, np.int8)
        if ((status == WAITING) | (status == HELD)).any():
            raise Inconsistent("an invocation has no end")
        solo = [gpu.contention.training.u if gpu.contention.training is not None else 0.0 for gpu in self._gpus]
        world, trace = self._world, self._trace
        return Result(
            functions=tuple(self._names),
            function=np.array(self._function, np.int32),
            rows=np.array(self._rows, np.int32),
            arrival_s=np.array(self._arrival, float),
            deadline_s=np.array(self._deadline, float),
            status=status,
            attempts=np.array(self._attempt, np.int16),
            gpu=np.array(self._where, np.int32),
            dispatch_s=np.array(self._dispatched, float),
            start_s=np.array(self._started, float),
            end_s=np.array(self._ended, float),
            cold=np.array(self._cold, bool),
            alone_s=np.array(self._alone, float),
            run_s=np.array(self._run, float),
            p99=world.truth.p99,
            gpus=np.column_stack(
                [np.array(self._measured, float).reshape(len(self._gpus), len(GPU_COLUMNS) - 1), solo]
            ),
            meta={
                "world": world.name,
                "truth": world.truth.name,
                "trace": trace.name,
                "duration_s": self._duration,
                "seed": self._seed,
                "policy": self._name,
                "refused_dispatches": self._refused,
                "trainings": [str(gpu.training) for gpu in world.gpus],
                "warm_at_start": self._pool,
            },
            policy_s=self._policy_s,
        )
