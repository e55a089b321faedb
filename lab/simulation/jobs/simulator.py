"""
A run: jobs of a trace under a rule on one simulated clock.

What happens stands in one heap. All that happens at one time reaches the rule in one call, and what it decides happens at
that time; a stop, which frees GPU instances at once here, comes back to it in another call at the same time. A decision
that contradicts the world (a GPU instance taken twice, a part of a gang) raises
:class:`~lab.simulation.result.Inconsistent`. The same world, jobs, seed and rule give the same result.

Two jobs on a GPU instance are as slow as the interference model says, each gang as its slowest rank, while both run. With
wrong predictions (``noise``) the rule hears after a minute how slow they really are. A setting that chooses numbers of GPU
instances (``elastic``) may start a job on another number than it asks for; its speed there is that of ``speeds.py``.

Simulated: gangs, pairs, nodes that fail and come back, attempts that fail, restarts from checkpoints, wrong lengths. Not: what
functions cost trainings, how long a start takes, networks, checkpoints that are on one node alone.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from math import exp, inf
from random import Random
from time import process_time
from typing import Final, assert_never

from lab.simulation.jobs.preemption import policy_of
from lab.simulation.jobs.speeds import speeds
from lab.simulation.jobs.traces import HOUR_S, SimulatedJob
from lab.simulation.jobs.world import DAY_S, JobWorld
from lab.simulation.result import Inconsistent
from scheduler.policy.jobs.decisions import (
    BreaksAnswered,
    Decision,
    Finish,
    NotPromised,
    PlacesAnswered,
    Promised,
    PublishQueue,
    Requeue,
    Start,
    Stop,
    TrialAnswered,
)
from scheduler.policy.jobs.events import (
    AttemptOver,
    Ended,
    Event,
    GpuLost,
    GpuSeen,
    JobProgressed,
    JobSubmitted,
    PairKnown,
    PairMeasured,
    PairsKnown,
    QueueAsked,
)
from scheduler.policy.jobs.fleet import TENANTS
from scheduler.policy.jobs.knobs import JobKnobs
from scheduler.policy.jobs.spec import JobSpec
from scheduler.policy.jobs.told import Told
from smore.domain.job import JobRequest

#: A run that goes on so many times longer than all work on one GPU would take never ends.
ENDLESS: Final = 100
#: From the last change of who is beside a job until its slowdown is measured, seconds.
MEASURED_S: Final = 60.0
#: Of a normal distribution: nine values in ten are below so many deviations.
NINE_IN_TEN: Final = 1.2816


class Happening(IntEnum):
    """What an entry of the heap brings about, and its payload."""

    #: A job comes: its place in the trace.
    SUBMIT = 0
    #: An attempt is through, or fails: (job, attempt).
    OVER = 1
    #: An attempt goes on from its checkpoint: (job, attempt).
    RESUMED = 2
    #: A node fails; is known to have failed; comes back: its place.
    NODE_FAILS = 3
    NODE_LOST = 4
    NODE_BACK = 5
    #: The rule wanted to be woken.
    WAKE = 6
    #: A job's slowdown is measured: (job, attempt).
    MEASURED = 7


@dataclass(slots=True)
class _State:
    """
    A job in the run: ``done_s`` of its seconds are in its last checkpoint, ``on_s`` it has held GPU instances, for
    ``more_gpu_s`` more GPU time than with the number that it asks for. ``attempt`` runs on ``gpus`` since ``since``, goes on
    from ``resumed`` and is over at ``over_at`` as ``ended``, after ``to_do_s`` of its seconds. Of these it had done ``did_s``
    at ``paced_at``; since then it takes ``rate`` times as long as alone on the number that it asks for, of which ``parts``
    because its batch is run in micro-batches. The next attempt goes
    on ``resume_s`` after its start. ``promised``: the moment by which it is to have ended; ``told``: as its end by 90 % lengths
    when it came and had to wait.
    """

    job: SimulatedJob
    spec: JobSpec
    done_s: float = 0.0
    on_s: float = 0.0
    more_gpu_s: float = 0.0
    resume_s: float = 0.0
    attempt: int = 0
    gpus: tuple[str, ...] = ()
    since: float = 0.0
    resumed: float = 0.0
    over_at: float = inf
    to_do_s: float = 0.0
    did_s: float = 0.0
    paced_at: float = 0.0
    parts: float = 1.0
    rate: float = 1.0
    ended: Ended = Ended.SUCCEEDED
    promised: float | None = None
    told: float | None = None
    first_start: float = inf
    end: float = inf
    outcome: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """
    Of each job, in order of arrival: when it came, first started and ended (seconds from the first arrival), the time that
    it held GPU instances, the GPU time of these, its length alone, whether it succeeded, and its attempts. ``size``: GPU instances of
    the cluster; ``preempted`` stops in all; ``guests``: attempts that started beside another job, ``in_parts`` of them in
    micro-batches; ``shared_s``: GPU time
    that two jobs held; ``policy_s`` of the processor in the rule. ``by``: deadlines, none where the trace has none; ``asked`` for
    a promise; ``promised`` moments and ``told`` ends by 90 % lengths, None = none was.
    """

    submit_s: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    on_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    gpu_s: list[float] = field(default_factory=list)
    succeeded: list[bool] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    by: list[float] = field(default_factory=list)
    asked: list[bool] = field(default_factory=list)
    promised: list[float | None] = field(default_factory=list)
    told: list[float | None] = field(default_factory=list)
    size: int = 0
    preempted: int = 0
    guests: int = 0
    in_parts: int = 0
    shared_s: float = 0.0
    policy_s: float = 0.0


def simulate_jobs(world: JobWorld, jobs: Sequence[SimulatedJob], knobs: JobKnobs, *, seed: int) -> JobResult:
    """Run a setting over jobs. Raises Inconsistent."""
    return _Run(world, jobs, knobs, seed).run()


class _Run:
    def __init__(self, world: JobWorld, jobs: Sequence[SimulatedJob], knobs: JobKnobs, seed: int) -> None:
        self._world, self._knobs, self._policy = world, knobs, policy_of(knobs)
        self._told = Told()
        # Draws of their own for each purpose and job, so that all rules meet the same ones.
        self._seed = seed
        errors = Random(f"lengths {seed}")
        self._states = [_State(job, self._spec(job, errors)) for job in jobs]
        self._by_id = {state.job.id: state for state in self._states}
        if len(self._by_id) < len(jobs):
            raise Inconsistent("two jobs of the trace have the same name")
        self._reports = {
            f"n{node}g{place}": GpuSeen(
                gpu=f"n{node}g{place}", node=f"n{node}", device=world.device, memory_mib=world.memory_mib
            )
            for node in range(world.nodes)
            for place in range(world.gpus)
        }
        #: GPU instances that have failed, and of these the ones that the rule knows of.
        self._down: set[str] = set()
        self._lost: set[str] = set()
        #: Jobs on each GPU instance, and since when there are two.
        self._holders: dict[str, list[str]] = {}
        self._two_since: dict[str, float] = {}
        self._slowdowns: dict[tuple[str, str], float] = {}
        self._guests, self._in_parts, self._shared_s = 0, 0, 0.0
        self._nodes = [Random(f"node {seed} {node}") for node in range(world.nodes)]
        self._heap: list[tuple[float, int, Happening, tuple[str, int]]] = []
        self._number = 0
        self._woken_at = inf
        self._preempted = 0
        self._policy_s = 0.0
        self._left = len(self._states)

    def _spec(self, job: SimulatedJob, errors: Random) -> JobSpec:
        """What its owner says of it: iterations of a profiled workload, or a duration that may be wrong."""
        error, world = errors.gauss(0.0, 1.0), self._world
        iterations = max(1, round(job.seconds / job.iteration_s))
        request = JobRequest(
            count=job.gpus,
            workload=world.interference.workload(job) if world.share else "",
            iterations=0 if world.lengths else iterations,
            duration_s=job.seconds * exp(world.lengths * error) if world.lengths else 0.0,
            restarts=world.restarts,
            share=world.share,
            # There are no functions here.
            budget=0.0,
            by=job.asks,
            unless="queue",
        )
        return JobSpec(
            id=job.id,
            project=job.project,
            name=job.model,
            request=request,
            memory_mib=job.memory_mib,
            iteration_s={} if world.lengths else {world.device: job.seconds / iterations},
            micro_batches=world.ways(job.memory_mib),
            by=job.by,
            speeds=speeds(job.model, job.gpus) if self._knobs.elastic else {},
        )

    def run(self) -> JobResult:
        for place, state in enumerate(self._states):
            self._push(state.job.submit_s, Happening.SUBMIT, ("", place))
        if self._world.node_days:
            for node, draw in enumerate(self._nodes):
                self._push(draw.expovariate(1 / (self._world.node_days * DAY_S)), Happening.NODE_FAILS, ("", node))
        known = [PairsKnown(pairs=self._pairs())] if self._world.share else []
        self._tell(0.0, [*self._reports.values(), *known])
        latest = ENDLESS * sum(state.job.seconds for state in self._states) + self._states[-1].job.submit_s
        while self._left:
            now = self._heap[0][0] if self._heap else inf
            if now > latest:
                raise Inconsistent(f"{self._left} jobs never end")
            events: list[Event] = []
            while self._heap and self._heap[0][0] <= now:
                _, _, what, payload = heappop(self._heap)
                self._happen(now, what, payload, events)
            self._tell(now, events)
            if any(isinstance(event, JobSubmitted) and event.spec.by is not None for event in events):
                self._ask(now, {event.spec.id for event in events if isinstance(event, JobSubmitted)})
        return self._result()

    def _ask(self, now: float, came: Set[str]) -> None:
        """What those that have come and wait are told of their ends."""
        for answer in self._policy.decide(now, [QueueAsked()]).decisions:
            for job in answer.jobs if isinstance(answer, PublishQueue) else ():
                if job.id in came and not job.gpus:
                    self._by_id[job.id].told = self._told.late(job, now, now)

    def _pairs(self) -> list[PairKnown]:
        """What the rule is told of all pairs that fit: the truth, or what a predictor of this noise would say."""
        noise = self._world.noise
        like = {state.spec.request.workload: state.job for state in self._states}
        known = []
        for one in sorted(like):
            for other in sorted(like):
                real = self._world.interference.slowdown(like[one], [like[other]])
                self._slowdowns[one, other] = real
                if real < inf:
                    error = noise * Random(f"pair {self._seed} {one} {other}").gauss(0.0, 1.0) if noise else 0.0
                    told = max(1.0, real * exp(error))
                    known.append(PairKnown(self._world.device, one, other, told, told * exp(NINE_IN_TEN * noise)))
        return known

    def _push(self, at: float, what: Happening, payload: tuple[str, int]) -> None:
        self._number += 1
        heappush(self._heap, (at, self._number, what, payload))

    def _tell(self, now: float, events: list[Event]) -> None:
        """Give the rule what has happened, and perform what it decides until nothing follows from it."""
        again = True
        while again:
            began = process_time()
            decisions, wake_at = self._policy.decide(now, events)
            self._policy_s += process_time() - began
            events = []
            for decision in decisions:
                self._perform(now, decision, events)
            again = bool(events)
        if wake_at < inf and wake_at != self._woken_at:
            self._woken_at = wake_at
            self._push(max(now, wake_at), Happening.WAKE, ("", 0))

    # ---- what happens ------------------------------------------------------------------------------------------------

    def _happen(self, now: float, what: Happening, payload: tuple[str, int], events: list[Event]) -> None:
        id_, number = payload
        match what:
            case Happening.SUBMIT:
                events.append(JobSubmitted(spec=self._states[number].spec, submitted_at=now))
            case Happening.OVER:
                state = self._by_id[id_]
                if state.attempt == number and state.gpus and state.over_at <= now:
                    self._end_attempt(state, now, state.ended, events)
            case Happening.RESUMED:
                state = self._by_id[id_]
                if state.attempt == number and state.gpus and state.spec.request.iterations:
                    events.append(self._progress(state, state.done_s))
            case Happening.NODE_FAILS:
                self._node_fails(now, number)
            case Happening.NODE_LOST:
                self._lost |= set(self._of_node(number))
                events += [GpuLost(gpu=gpu) for gpu in self._of_node(number)]
            case Happening.NODE_BACK:
                self._down -= set(self._of_node(number))
                self._lost -= set(self._of_node(number))
                events += [self._reports[gpu] for gpu in self._of_node(number)]
                mean_s = self._world.node_days * DAY_S
                self._push(now + self._nodes[number].expovariate(1 / mean_s), Happening.NODE_FAILS, ("", number))
            case Happening.WAKE:
                if now >= self._woken_at:
                    self._woken_at = inf
            case Happening.MEASURED:
                state = self._by_id[id_]
                if state.attempt == number and state.gpus and now >= state.paced_at + MEASURED_S and state.rate > 1:
                    events.append(PairMeasured(id=id_, attempt=number, slowdown=state.rate))
                    if state.spec.request.iterations:
                        events.append(self._progress(state, self._done(state, now)))
            case _:
                assert_never(what)

    def _of_node(self, node: int) -> list[str]:
        return [f"n{node}g{place}" for place in range(self._world.gpus)]

    def _node_fails(self, now: float, node: int) -> None:
        """Whoever runs there stands still until the rule hears of it; it is back after that at the earliest."""
        world = self._world
        self._down |= set(self._of_node(node))
        for id_ in {id_: None for gpu in self._of_node(node) for id_ in self._holders.get(gpu, ())}:
            state = self._by_id[id_]
            state.done_s, state.over_at = self._kept(state, now), inf
            state.resumed, state.did_s = inf, 0.0
        self._push(now + world.silent_s, Happening.NODE_LOST, ("", node))
        self._push(now + max(2 * world.silent_s, world.repair_h * HOUR_S), Happening.NODE_BACK, ("", node))

    def _progress(self, state: _State, done_s: float) -> JobProgressed:
        iteration_s = state.spec.iteration_s[self._world.device]
        return JobProgressed(
            id=state.job.id,
            attempt=state.attempt,
            iterations=int(done_s / iteration_s),
            iteration_s=iteration_s * state.rate,
        )

    def _beside(self, state: _State) -> list[_State]:
        """Those with which it shares GPU instances, each once."""
        ids = {id_: None for gpu in state.gpus for id_ in self._holders[gpu] if id_ != state.job.id}
        return [self._by_id[id_] for id_ in ids]

    def _pace(self, state: _State, now: float) -> None:
        """Who is beside it has changed: it runs at another speed from now on."""
        state.did_s, state.paced_at = self._did(state, now), now
        workload, speed = state.spec.request.workload, state.spec.speeds.get(len(state.gpus), 1.0)
        slowdowns = [self._slowdowns[workload, other.spec.request.workload] for other in self._beside(state)]
        state.rate = state.parts * max(slowdowns, default=1.0) / speed
        if state.resumed < inf:
            state.over_at = max(now, state.resumed) + (state.to_do_s - state.did_s) * state.rate
            self._push(state.over_at, Happening.OVER, (state.job.id, state.attempt))
        if self._world.noise and slowdowns and state.rate > 1:
            self._push(now + MEASURED_S, Happening.MEASURED, (state.job.id, state.attempt))

    def _did(self, state: _State, now: float) -> float:
        """Seconds of its length that an attempt has done."""
        return state.did_s + max(0.0, now - max(state.paced_at, state.resumed)) / state.rate

    def _done(self, state: _State, now: float) -> float:
        """Seconds of its length that are behind it, those before this attempt included."""
        return min(state.job.seconds, state.done_s + self._did(state, now))

    def _kept(self, state: _State, now: float) -> float:
        """What of it is in a checkpoint."""
        done, every = self._done(state, now), self._world.checkpoint_s
        return max(state.done_s, done - done % every) if every else done

    def _end_attempt(self, state: _State, now: float, ended: Ended, events: list[Event]) -> None:
        if ended is Ended.PREEMPTED:
            state.done_s = self._done(state, now)
        elif ended is not Ended.SUCCEEDED:
            state.done_s = self._kept(state, now)
        changes = self._knobs.elastic and ended is Ended.PREEMPTED
        state.resume_s = self._knobs.change_s if changes else self._world.resume_s
        beside = self._beside(state)
        for gpu in state.gpus:
            self._holders[gpu].remove(state.job.id)
            self._shared_s += now - self._two_since.pop(gpu, now)
        state.on_s += now - state.since
        state.more_gpu_s += (len(state.gpus) - state.job.gpus) * (now - state.since)
        state.gpus, state.over_at, state.rate = (), inf, 1.0
        for other in beside:
            self._pace(other, now)
        iteration_s = state.spec.iteration_s.get(self._world.device, 0.0)
        iterations = int(state.done_s / iteration_s) if iteration_s else 0
        events.append(AttemptOver(id=state.job.id, attempt=state.attempt, ended=ended, iterations=iterations))

    # ---- what the rule decided ---------------------------------------------------------------------------------------

    def _perform(self, now: float, decision: Decision, events: list[Event]) -> None:
        match decision:
            case Start():
                self._start(now, decision, events)
            case Stop():
                state = self._by_id[decision.id]
                self._preempted += decision.ended is Ended.PREEMPTED
                self._end_attempt(state, now, decision.ended, events)
            case Finish():
                state = self._by_id[decision.id]
                state.end, state.outcome = now, decision.ended
                succeeded = decision.ended is Ended.SUCCEEDED
                self._told.over(decision.id, now - state.job.submit_s if succeeded else None)
                self._left -= 1
            case Promised():
                self._by_id[decision.id].promised = decision.by
            case Requeue() | NotPromised() | PublishQueue() | TrialAnswered() | PlacesAnswered() | BreaksAnswered():
                pass
            case _:
                assert_never(decision)

    def _start(self, now: float, start: Start, events: list[Event]) -> None:
        state, world = self._by_id[start.id], self._world
        on = {gpu: self._holders.setdefault(gpu, []) for gpu in start.gpus}
        taken = [gpu for gpu in start.gpus if len(on[gpu]) >= TENANTS or gpu in self._lost]
        hosts = {id_ for ids in on.values() for id_ in ids}
        taken = taken or sorted(hosts ^ {host.id for host in start.beside})
        whole = len(set(start.gpus)) == len(start.gpus) and len(start.gpus) in (state.spec.speeds or (state.job.gpus,))
        if taken or state.gpus or not whole or start.attempt != state.attempt + 1:
            raise Inconsistent(
                f"{start.id} cannot start on {', '.join(start.gpus)}: {', '.join(taken) or 'no whole gang'}"
            )
        for gpu in start.gpus:
            if on[gpu]:
                self._two_since[gpu] = now
            on[gpu].append(start.id)
        self._guests += bool(start.beside)
        self._in_parts += start.parts.count > 1
        state.attempt, state.gpus, state.since = start.attempt, start.gpus, now
        state.parts = start.parts.factor
        state.did_s, state.paced_at = 0.0, now
        state.first_start = min(state.first_start, now)
        state.resumed = now + state.resume_s
        draw = Random(f"attempt {self._seed} {start.id} {start.attempt}")
        left_s = state.job.seconds - state.done_s
        state.ended = Ended.FAILED if draw.random() < world.attempts else Ended.SUCCEEDED
        if any(gpu in self._down for gpu in start.gpus):
            # The node has failed and nobody knows yet.
            state.resumed = state.over_at = inf
        state.to_do_s = left_s * (draw.random() if state.ended is Ended.FAILED else 1.0)
        self._pace(state, now)
        for other in self._beside(state):
            self._pace(other, now)
        if state.resumed == inf:
            return
        if state.resumed > now:
            self._push(state.resumed, Happening.RESUMED, (start.id, start.attempt))
        elif state.spec.request.iterations:
            events.append(self._progress(state, state.done_s))

    def _result(self) -> JobResult:
        states = self._states
        return JobResult(
            submit_s=[state.job.submit_s for state in states],
            start_s=[state.first_start for state in states],
            end_s=[state.end for state in states],
            on_s=[state.on_s for state in states],
            alone_s=[state.job.seconds for state in states],
            gpu_s=[state.job.gpus * state.on_s + state.more_gpu_s for state in states],
            succeeded=[state.outcome is Ended.SUCCEEDED for state in states],
            attempts=[state.attempt for state in states],
            by=[state.job.by for state in states if state.job.by is not None],
            asked=[state.job.asks is not None for state in states],
            promised=[state.promised for state in states],
            told=[state.told for state in states],
            size=self._world.size,
            preempted=self._preempted,
            guests=self._guests,
            in_parts=self._in_parts,
            shared_s=self._shared_s,
            policy_s=self._policy_s,
        )
