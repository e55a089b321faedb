"""
A run: arrivals of a trace, batches under processor sharing on GPU instances, and a policy that decides, on one
simulated clock.

Events stand in one heap; arrivals, which are sorted, are merged into it. The progress of a GPU instance's batches
changes only when what is active there changes: then the time since the last change is charged at the old speeds, the
new state is looked up (``interference.Contention``) and the next completion computed anew; an entry of the heap that
this makes stale is recognised by its number. Events of one instant reach the policy in one call. Between two calls
nothing may happen: while something waits the policy is woken every ``round_s``, else when it asks for it.

The policy is given what a leader would know: reports every ``monitor_s`` and after changes of the warm set, ends of
invocations, losses after ``lost_s``. What it decides is checked against the truth: a dispatch that memory or slots do
not allow is refused by the GPU instance and comes back; one that contradicts what the policy was given raises
:class:`~lab.simulation.result.Inconsistent`.

The same world, trace, seed and policy give the same :class:`~lab.simulation.result.Result`, byte for byte.
"""

import math
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any, Final, assert_never

import numpy as np

from lab.simulation.gpu import Load, RunningBatch, SimulatedGpu
from lab.simulation.heap import Heap, Kind
from lab.simulation.interference import Contention
from lab.simulation.invocations import Invocations
from lab.simulation.monitor import REVISION, Monitor
from lab.simulation.result import FAILED, GPU_COLUMNS, REFUSED, SUCCEEDED, Inconsistent, Result
from lab.simulation.traces import Trace
from lab.simulation.warm_pool import WarmPool
from lab.simulation.windows import Probe, Stage, lengths
from lab.simulation.world import World
from scheduler.policy.decisions import (
    Decision,
    Dispatch,
    FinishBounds,
    Offload,
    Prewarm,
    PublishAdmission,
    PublishLearned,
    PublishPrewarmStatus,
    PublishStatus,
    QuestionAnswered,
    Throttle,
)
from scheduler.policy.degradation import PolicyTable
from scheduler.policy.events import (
    AdmissionDue,
    Event,
    FunctionKnown,
    GpuLost,
    InvocationSettled,
    TableUpdated,
    TrafficMoved,
)
from scheduler.policy.policy import Policy
from smore.domain.invocation import End
from smore.domain.loss import PROBE_MAX_S

#: Solo seconds of work below which a batch counts as done: rounding of the clock.
_DONE: Final = 1e-10
#: After the last deadline a policy has so long to end what waits.
DRAIN_S: Final = 60.0


def simulate(
    world: World,
    trace: Trace,
    make: Callable[[int], Policy],
    *,
    seed: int,
    table: PolicyTable | None = None,
    name: str = "",
) -> Result:
    """
    Run a policy, made by ``make(seed)``, over a trace.

    ``table``: the degradations that it is given (None: nothing is known). Raises BadTrace for a trace that names
    functions the world has not, and Inconsistent.
    """
    return _Simulation(world, trace, make(seed), seed, table, name).run()


class _Simulation:
    """
    One run. It stays whole but for its parts: arrivals, dispatches, loads and completions change the state of a GPU
    instance and the heap together.
    """

    def __init__(
        self, world: World, trace: Trace, policy: Policy, seed: int, table: PolicyTable | None, name: str
    ) -> None:
        self._world, self._trace, self._policy, self._seed, self._name = world, trace, policy, seed, name
        self._table = table
        self._names = [function.name for function in world.functions]
        self._column = {name: index for index, name in enumerate(self._names)}
        functions = len(world.functions)
        self._invocations = Invocations(world, trace, self._names, seed)
        self._need_mib = [world.memory_mib(function) for function in world.functions]
        self._load_s = [world.load_s(function) for function in world.functions]
        # GPU instances that are alike share what was computed of their states.
        alike: dict[tuple[object, ...], Contention] = {}
        for gpu in world.gpus:
            key = world.alike(gpu)
            if key not in alike:
                alike[key] = world.contention(gpu)
        self._gpus = [
            SimulatedGpu(position, gpu, alike[world.alike(gpu)], functions, gpu.memory_mib - world.training_mib(gpu))
            for position, gpu in enumerate(world.gpus)
        ]
        self._by_name = {gpu.name: state for gpu, state in zip(world.gpus, self._gpus, strict=True)}
        self._monitor = Monitor(world, seed, self._names, self._need_mib)
        invocations = self._invocations
        busy_s = np.zeros(functions)
        if len(trace):
            busy_s += np.bincount(invocations.function, invocations.alone_s, functions)
        self._warm_pool = WarmPool(world, self._gpus, self._need_mib, busy_s, trace.duration_s)
        #: Batches on GPU instances that have failed, until their leases run out.
        self._lost: list[list[RunningBatch]] = [[] for _ in world.gpus]
        #: Integrals of each GPU instance at the end of the trace.
        self._measured: list[tuple[float, ...]] = []
        #: By what invocations are admitted, by function; None = everything is.
        self._bounds: list[FinishBounds | None] = [None] * functions
        self._refused = 0
        self._heap = Heap()
        self._events: list[Event] = []
        self._wake_at = math.inf
        self._policy_s = 0.0

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        world, heap, invocations = self._world, self._heap, self._invocations
        self._set_up()
        arrival, n, position = invocations.arrival_s, len(invocations), 0
        next_arrival = arrival[0] if n else math.inf
        latest = max(invocations.deadline_s, default=0.0) + DRAIN_S
        tick = math.inf
        while invocations.open or not self._measured:
            now = min(heap.next_at, next_arrival, tick)
            if now > latest and invocations.waiting:
                who = self._name or "the policy"
                raise Inconsistent(
                    f"{who} left {invocations.waiting} invocations without an end {DRAIN_S:g} s after every deadline"
                )
            while next_arrival <= now:
                self._arrive(position)
                position += 1
                next_arrival = arrival[position] if position < n else math.inf
            while heap.next_at <= now:
                self._happen(now, *heap.pop())
            if self._events or tick <= now:
                self._decide(now)
                # Not at ``wake_at`` alone while something waits: published figures rest on rounds of a fixed length.
                tick = now + world.round_s if invocations.waiting else self._wake_at
        return self._result()

    def _set_up(self) -> None:
        world, heap, events = self._world, self._heap, self._events
        for gpu in self._gpus:
            self._warm_pool.preload(gpu)
        for name, function in zip(self._names, world.functions, strict=True):
            events.append(FunctionKnown(function=name, revision=REVISION, spec=world.spec(function, self._seed)))
            events.append(TrafficMoved(function=name, revision=REVISION))
        if self._table is not None:
            events.append(TableUpdated(table=self._table))
        for gpu in self._gpus:
            self._measure(gpu, 0.0)
            events.append(self._monitor.report(gpu, 0.0))
            heap.push(world.monitor_s, Kind.REPORT, gpu.index, True)
        for failure in world.failures:
            heap.push(failure.at_s, Kind.FAIL, self._by_name[failure.gpu].index, failure.seconds)
        if world.gate_s:
            heap.push(0.0, Kind.PUBLISH)
        heap.push(self._trace.duration_s, Kind.MEASURE)
        self._decide(0.0)

    def _happen(self, now: float, kind: Kind, index: int, payload: Any) -> None:
        gpu = self._gpus[index]
        match kind:
            case Kind.COMPLETE:
                if gpu.version == payload:
                    self._complete(gpu, now)
            case Kind.LOADED:
                if payload.boot == gpu.boot:
                    self._loaded(gpu, payload, now)
            case Kind.REPORT:
                self._report(gpu, now, payload)
            case Kind.DELIVER:
                self._events.append(payload)
            case Kind.START:
                self._accept(gpu, payload, now)
            case Kind.RETURN:
                self._give_back(payload, now)
            case Kind.FAIL:
                self._fail(gpu, now, payload)
            case Kind.LEASES_END:
                self._leases_end(gpu, now)
            case Kind.RECOVER:
                self._recover(gpu, payload, now)
            case Kind.WINDOW:
                stage, boot, number = payload
                if boot == gpu.boot and gpu.probe is not None:
                    self._window(gpu, gpu.probe, stage, number, now)
            case Kind.PUBLISH:
                self._perform(now, [AdmissionDue(revisions=dict.fromkeys(self._names, REVISION))])
                if self._goes_on(now):
                    self._heap.push(now + self._world.gate_s, Kind.PUBLISH)
            case Kind.MEASURE:
                for each in self._gpus:
                    each.advance(now)
                self._measured = [each.totals() for each in self._gpus]
            case _:
                assert_never(kind)

    def _goes_on(self, now: float) -> bool:
        """Whether what comes again and again has to come once more."""
        return bool(self._invocations.open) or now < self._trace.duration_s

    def _decide(self, now: float) -> None:
        """Give the policy what has happened, and perform what it decides."""
        events, self._events = self._events, []
        self._wake_at = self._perform(now, events)

    def _perform(self, now: float, events: Sequence[Event]) -> float:
        """Returns when the policy is to be woken if nothing happens."""
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
                gpu = self._by_name[decision.gpu]
                batch = self._batch(gpu, self._invocations.dispatch(decision, now))
                if self._world.dispatch_s:
                    self._heap.push(now + self._world.dispatch_s, Kind.START, gpu.index, batch)
                else:
                    self._accept(gpu, batch, now)
            case End():
                self._invocations.ended(decision, now)
            case Prewarm():
                self._prewarm(decision, now)
            case Throttle():
                gpu = self._by_name[decision.gpu]
                gpu.duty = decision.duty
                self._let_in(gpu, now)
            case Offload():
                # There is no host memory here: what is offloaded is gone, whatever ``gone`` says.
                gpu = self._by_name[decision.gpu]
                self._warm_pool.shrink(gpu, self._column[decision.function], decision.keep, now)
                self._changed(gpu, now)
            case PublishAdmission():
                self._bounds = [decision.bounds.get(name) for name in self._names]
            case QuestionAnswered() | PublishStatus() | PublishPrewarmStatus() | PublishLearned():
                pass  # nobody asks for it here
            case _:
                assert_never(decision)

    def _prewarm(self, decision: Prewarm, now: float) -> None:
        """Load what is missing of the instances that are asked for, and keep them until ``until_at``."""
        gpu, function = self._by_name[decision.gpu], self._column[decision.function]
        if not gpu.alive:
            return
        if decision.until_at:
            gpu.leased[function] = (decision.instances, decision.until_at)
        while gpu.count[function] < decision.instances and self._warm_pool.make_room(gpu, function, now):
            self._begin_load(gpu, Load(function, None, gpu.boot, now), now)
            self._resume(gpu, now)

    def _batch(self, gpu: SimulatedGpu, members: list[int]) -> RunningBatch:
        first = members[0]
        function = self._invocations.function[first]
        rows = (
            self._invocations.rows[first]
            if len(members) == 1
            else sum(self._invocations.rows[number] for number in members)
        )
        lane = gpu.lanes.get((function, rows))
        if lane is None:
            kind = gpu.contention.kind(self._world.functions[function].model, rows)
            lane = gpu.lanes[function, rows] = (kind, gpu.contention.code(kind), gpu.contention.alone(kind).seconds)
        kind, code, seconds = lane
        return RunningBatch(function, members, rows, kind, code, seconds * self._invocations.noise[first])

    def _accept(self, gpu: SimulatedGpu, batch: RunningBatch, now: float) -> None:
        """
        A dispatch reaches its GPU instance: it runs, waits for a load, or is refused for want of a slot or memory.
        """
        for number in batch.members:
            self._invocations.gpu[number] = gpu.index
        if not gpu.alive:
            # Nobody takes it: its lease runs out.
            if not self._lost[gpu.index]:
                self._heap.push(now + self._world.lost_s, Kind.LEASES_END, gpu.index)
            self._lost[gpu.index].append(batch)
            return
        opens_at = gpu.opens_at(now)
        if opens_at > now:
            if opens_at < math.inf:
                self._heap.push(opens_at, Kind.START, gpu.index, batch)
            else:
                gpu.held_back.append(batch)
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
            batch.ahead = ahead.began < self._invocations.arrival_s[batch.members[0]]
            gpu.used += 1
        elif self._warm_pool.make_room(gpu, function, now):
            gpu.used += 1
            self._begin_load(gpu, Load(function, batch, gpu.boot, now), now)
            self._resume(gpu, now)
        else:
            self._refuse(batch, now)

    def _let_in(self, gpu: SimulatedGpu, now: float) -> None:
        """What waits for the run gate comes again."""
        held_back, gpu.held_back = gpu.held_back, []
        for batch in held_back:
            self._accept(gpu, batch, now)

    def _begin(self, gpu: SimulatedGpu, batch: RunningBatch, now: float) -> None:
        batch.start = now
        for number in batch.members:
            self._invocations.start_s[number] = now
        gpu.begin(batch)

    def _refuse(self, batch: RunningBatch, now: float) -> None:
        self._refused += 1
        self._heap.push(now + self._world.retry_s, Kind.RETURN, 0, batch)

    # ---- GPU instances -----------------------------------------------------------------------------------------------

    def _resume(self, gpu: SimulatedGpu, now: float) -> None:
        """After a change: the state that holds from now on, and when the next batch will be done in it."""
        gpu.state = state = gpu.contention.state(gpu.code)
        gpu.version += 1
        if gpu.running:
            slows = state[3]
            soonest = min([batch.left * slows[batch.kind] for batch in gpu.running])
            self._heap.push(now + soonest if soonest > 0.0 else now, Kind.COMPLETE, gpu.index, gpu.version)
        elif gpu.closed and not gpu.loads and gpu.probe is not None and gpu.probe.quiet_at is None:
            gpu.probe.quiet_at = now
            self._open(gpu, gpu.probe, now + gpu.probe.length_s)

    def _complete(self, gpu: SimulatedGpu, now: float) -> None:
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
            measured_s = None if batch.cold else run_s
            for number in batch.members:
                self._invocations.run_s[number] = run_s
                self._invocations.cold[number] = batch.cold and not batch.ahead
                self._invocations.end(number, SUCCEEDED, now)
                self._events.append(
                    InvocationSettled(
                        id=self._invocations.id(number),
                        attempt=self._invocations.attempts[number],
                        run_s=measured_s,
                        batch_rows=batch.rows,
                    )
                )
        gpu.running = kept
        self._resume(gpu, now)

    def _begin_load(self, gpu: SimulatedGpu, load: Load, now: float) -> None:
        """The memory is taken at once, a unit of the state stands for the copy."""
        gpu.advance(now)
        function = load.function
        gpu.free_mib -= self._need_mib[function]
        if gpu.free_mib < -1e-6:
            raise Inconsistent(f"{gpu.spec.name} holds {-gpu.free_mib:.1f} MiB more than it has")
        gpu.count[function] += 1
        gpu.loading[function] += 1
        gpu.instances += 1
        gpu.loads.append(load)
        gpu.code += 1
        self._heap.push(now + self._load_s[function], Kind.LOADED, gpu.index, load)
        self._changed(gpu, now)

    def _loaded(self, gpu: SimulatedGpu, load: Load, now: float) -> None:
        gpu.advance(now)
        gpu.loads.remove(load)
        gpu.code -= 1
        gpu.loading[load.function] -= 1
        if load.batch is not None:
            self._begin(gpu, load.batch, now)
        else:
            gpu.idle[load.function].append(now)
        self._resume(gpu, now)
        self._changed(gpu, now)

    def _prewarmed(self, gpu: SimulatedGpu, now: float) -> bool:
        """Load again what the warm pool lacks and finds memory free; returns whether anything is loaded."""
        changed = False
        for index in self._warm_pool.missing(gpu):
            if gpu.free_mib >= self._need_mib[index]:
                self._begin_load(gpu, Load(index, None, gpu.boot, now), now)
                changed = True
        return changed

    # ---- failures ----------------------------------------------------------------------------------------------------

    def _fail(self, gpu: SimulatedGpu, now: float, seconds: float) -> None:
        gpu.advance(now)
        self._lost[gpu.index] += gpu.take_back()
        gpu.free_mib = gpu.spec.memory_mib - self._world.training_mib(gpu.spec)
        self._heap.push(now + self._world.lost_s, Kind.LEASES_END, gpu.index)
        self._heap.push(now + seconds, Kind.RECOVER, gpu.index, gpu.boot)

    def _leases_end(self, gpu: SimulatedGpu, now: float) -> None:
        """What was held there comes back."""
        if not gpu.alive:
            self._events.append(GpuLost(gpu=gpu.spec.name))
        lost, self._lost[gpu.index] = self._lost[gpu.index], []
        for batch in lost:
            self._give_back(batch, now)

    def _recover(self, gpu: SimulatedGpu, boot: int, now: float) -> None:
        if boot != gpu.boot or gpu.alive:
            return
        gpu.advance(now)
        gpu.alive = True
        self._measure(gpu, now)
        self._warm_pool.preload(gpu)
        self._resume(gpu, now)
        self._changed(gpu, now)

    # ---- reports and windows -----------------------------------------------------------------------------------------

    def _changed(self, gpu: SimulatedGpu, now: float) -> None:
        """The warm set has changed: report soon."""
        if not gpu.report_due:
            gpu.report_due = True
            self._heap.push(now + self._world.coalesce_s, Kind.REPORT, gpu.index, False)

    def _report(self, gpu: SimulatedGpu, now: float, periodic: bool) -> None:
        world = self._world
        if not periodic:
            gpu.report_due = False
        elif self._goes_on(now):
            self._heap.push(now + world.monitor_s, Kind.REPORT, gpu.index, True)
        if not gpu.alive:
            return
        gpu.advance(now)
        if periodic:
            trimmed = self._warm_pool.trim(gpu, now)
            if self._prewarmed(gpu, now) or trimmed:
                self._resume(gpu, now)
            if gpu.probe is not None:
                gpu.probe.take(now, gpu.iterations)
                gpu.probe.sum_up()
        report = self._monitor.report(gpu, now)
        if world.monitor_delay_s:
            self._heap.push(now + world.monitor_delay_s, Kind.DELIVER, gpu.index, report)
        else:
            self._events.append(report)

    def _measure(self, gpu: SimulatedGpu, now: float) -> None:
        """A training begins: its worker measures its iterations, and closes windows where the world asks for them."""
        world, training = self._world, gpu.contention.training
        if training is None or not (world.closed_loop or world.probe_share):
            return
        gpu.probe = Probe(f"{self._seed}/{gpu.spec.name}/{gpu.boot}", world.probe_share, now)
        gpu.lengths = lengths(training.seconds, world.interference_model.noise, self._seed, gpu.index)
        gpu.began, gpu.met, gpu.iteration_at = now, False, gpu.work_s + next(gpu.lengths)
        if world.probe_share:
            self._heap.push(now, Kind.WINDOW, gpu.index, (Stage.LOOK, gpu.boot, 0))

    def _window(self, gpu: SimulatedGpu, probe: Probe, stage: Stage, number: int, now: float) -> None:
        """
        See worker/training/run_gate.py: runs have as long as a window lasts to end by themselves and are stopped then; it
        begins when nothing runs and nothing is loaded, or is given up.
        """
        gpu.advance(now)
        if stage is Stage.LOOK:
            probe.take(now, gpu.iterations)
            wait_s = probe.wait_s(now)
            if wait_s > 0:
                self._heap.push(now + wait_s, Kind.WINDOW, gpu.index, (Stage.LOOK, gpu.boot, 0))
                return
            probe.shut(now)
            gpu.closed = True
            self._heap.push(now + probe.length_s, Kind.WINDOW, gpu.index, (Stage.STOP, gpu.boot, probe.closings))
        elif stage is Stage.STOP:
            if probe.quiet_at is not None:
                return
            gpu.stop()
            self._open(gpu, probe, probe.shut_at + PROBE_MAX_S - probe.length_s)
        elif gpu.closed and number == probe.closings and probe.over(now):
            probe.open(now)
            gpu.closed = False
            gpu.go_on()
            self._heap.push(now, Kind.WINDOW, gpu.index, (Stage.LOOK, gpu.boot, 0))
            self._let_in(gpu, now)
        else:
            return
        self._resume(gpu, now)
        self._changed(gpu, now)

    def _open(self, gpu: SimulatedGpu, probe: Probe, at: float) -> None:
        """The window that is closed now ends then."""
        self._heap.push(at, Kind.WINDOW, gpu.index, (Stage.OPEN, gpu.boot, probe.closings))

    # ---- ends --------------------------------------------------------------------------------------------------------

    def _arrive(self, number: int) -> None:
        if not self._invocations.admitted(number, self._bounds):
            self._invocations.end(number, REFUSED, self._invocations.arrival_s[number])
            return
        self._invocations.queue(number)
        self._events.append(self._invocations.event(number))

    def _give_back(self, batch: RunningBatch, now: float) -> None:
        """Members return to the queue, or fail where they have had all their attempts."""
        invocations = self._invocations
        for number in batch.members:
            invocations.start_s[number] = math.nan
            attempts = invocations.attempts[number]
            if attempts >= self._world.functions[invocations.function[number]].max_attempts:
                invocations.end(number, FAILED, now)
                self._events.append(InvocationSettled(id=invocations.id(number), attempt=attempts))
            else:
                invocations.queue(number)
                self._events.append(invocations.event(number))

    def _result(self) -> Result:
        alone = [gpu.contention.training.u if gpu.contention.training is not None else 0.0 for gpu in self._gpus]
        world, trace = self._world, self._trace
        measured = np.array(self._measured, float).reshape(len(self._gpus), len(GPU_COLUMNS) - 1)
        return Result(
            functions=tuple(self._names),
            **self._invocations.rows_of_result(),
            p99=world.interference_model.p99,
            gpus=np.column_stack([measured, alone]),
            meta={
                "world": world.name,
                "truth": world.interference_model.name,
                "trace": trace.name,
                "duration_s": trace.duration_s,
                "seed": self._seed,
                "policy": self._name,
                "refused_dispatches": self._refused,
                "bulk": [index for index, function in enumerate(world.functions) if function.bulk],
                "trainings": [str(gpu.training) for gpu in world.gpus],
                "warm_at_start": self._warm_pool.sizes,
            },
            policy_s=self._policy_s,
        )
