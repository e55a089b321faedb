"""
Whatever happens to trainings in whatever order: nothing is over its bounds, a gang is whole or absent, two share a GPU
instance only where both owners allow it and both fit, the state equals a fresh count, whoever is first by patience starts
in bounded time, replays agree.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.simulation.jobs.preemption import policy_of
from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.decisions import Decision, Finish, PublishQueue, Requeue, Start, Stop
from scheduler.policy.jobs.events import (
    AttemptOver,
    Ended,
    Event,
    GpuLost,
    GpuSeen,
    JobHeld,
    JobMoved,
    JobProgressed,
    JobSubmitted,
    JobWithdrawn,
    LimitsChanged,
    PairKnown,
    PairMeasured,
    PairsKnown,
    ProjectLimit,
    QueueAsked,
    StartRefused,
    TrialAsked,
)
from scheduler.policy.jobs.knobs import SETTINGS, job_setting
from scheduler.policy.jobs.spec import JobSpec
from tests.support.driven_jobs import HOUR, NOW, spec_of
from tests.support.fresh_counts import differing

FLEET = [
    *(GpuSeen(gpu=f"a{place}", node=f"n{place // 2}", device="A", memory_mib=80.0) for place in range(4)),
    *(GpuSeen(gpu=f"b{place}", node="n9", device="B", memory_mib=40.0 + 40.0 * place) for place in range(2)),
    GpuSeen(gpu="slice", node="n9", device="A", memory_mib=10.0, mig=True),
]

#: What two cost each other on a device, by the distance of their workloads.
PAIRS = {
    (device, one, other): 1.05 + 0.3 * abs(ord(one) - ord(other)) + 0.1 * (device == "B")
    for device in "AB"
    for one in "abc"
    for other in "abcx"
}


def table(first: int) -> PairsKnown:
    known = list(PAIRS.items())[first:]
    return PairsKnown(pairs=[PairKnown(*key, slowdown, slowdown + 0.2) for key, slowdown in known])


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit"] * 6
            + ["end"] * 2
            + [
                "fail",
                "wait",
                "refuse",
                "lose",
                "see",
                "close",
                "attach",
                "hold",
                "move",
                "withdraw",
                "progress",
                "measure",
                "pairs",
                "limit",
                "ask",
                "back",
            ]
        ),
        st.integers(0, 1000),
        st.floats(1.0, 20 * HOUR),
    ),
    min_size=20,
    max_size=60,
)


@dataclass
class World:
    """What is true beside the rule: the jobs that run, and the GPU instances as they were reported."""

    policy: JobPolicy
    now: float = NOW
    specs: dict[str, JobSpec] = field(default_factory=dict)
    running: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    open: dict[str, GpuSeen] = field(default_factory=dict)
    limits: dict[str, ProjectLimit] = field(default_factory=dict)
    log: list[Decision] = field(default_factory=list)

    def tell(self, *events: Event) -> None:
        held = Counter(self.specs[id_].project for id_, (_, names) in self.running.items() for _ in names)
        for event in events:
            match event:
                case GpuSeen():
                    self.open.pop(event.gpu, None)
                    if not event.closed and not event.attached:
                        self.open[event.gpu] = event
                case GpuLost():
                    self.open.pop(event.gpu, None)
                case AttemptOver() | StartRefused():
                    _, names = self.running.pop(event.id)
                    held[self.specs[event.id].project] -= len(names)
        decisions, wake_at = self.policy.decide(self.now, events)
        assert wake_at == wake_at
        for decision in decisions:
            match decision:
                case Start():
                    self.check(decision, held)
                case Stop() | Requeue() | Finish() | PublishQueue():
                    pass
        self.log += decisions
        assert differing(self.policy) == 0

    def check(self, start: Start, held: Counter[str]) -> None:
        """
        A gang is whole, on open GPU instances of one kind with enough memory, within its project's limit; they are free,
        or have one job on them where both owners allow what the two cost each other.
        """
        spec = self.specs[start.id]
        assert start.id not in self.running
        assert len(set(start.gpus)) == len(start.gpus)
        elastic = SETTINGS[start.reasons.setting].elastic
        assert len(start.gpus) in (spec.speeds if elastic and spec.speeds else (spec.size,))
        on = {name: [id_ for id_, (_, names) in self.running.items() if name in names] for name in start.gpus}
        assert {id_ for ids in on.values() for id_ in ids} == {one.id for one in start.beside}
        for name, ids in on.items():
            assert len(ids) <= 1
            for other in (self.specs[id_] for id_ in ids):
                device = self.open[name].device
                assert PAIRS[device, spec.request.workload, other.request.workload] + 0.2 - 1 <= spec.request.share
                assert PAIRS[device, other.request.workload, spec.request.workload] + 0.2 - 1 <= other.request.share
                assert spec.memory_mib > 0
                assert other.memory_mib > 0
                assert spec.memory_mib + other.memory_mib <= 0.95 * self.open[name].memory_mib
        seen = [self.open[name] for name in start.gpus]
        assert all(spec.memory_mib <= gpu.memory_mib for gpu in seen)
        if spec.request.gpus:
            assert set(start.gpus) == set(spec.request.gpus)
        else:
            assert len({(gpu.device, gpu.mig) for gpu in seen}) == 1
            assert spec.request.device in ("", seen[0].device)
            assert len(seen) == 1 or not seen[0].mig
        held[spec.project] += len(start.gpus)
        limit = self.limits.get(spec.project)
        assert limit is None or limit.gpus is None or held[spec.project] <= limit.gpus
        self.running[start.id] = start.attempt, start.gpus

    def step(self, what: str, number: int, seconds: float) -> None:
        self.now += seconds if what != "back" else -seconds
        waiting = sorted(self.policy.jobs.keys() - self.running.keys())
        running = sorted(self.running)
        gpu = FLEET[number % len(FLEET)]
        match what:
            case "submit":
                spec = spec_of(
                    f"j{len(self.specs)}",
                    project="pqr"[number % 3],
                    name="mn"[number % 2],
                    count=(1, 2, 1, 3, 4, 9)[number // 5 % 6],
                    device=("", "", "A", "B")[number % 4],
                    memory_mib=(20.0, 30.0, 0.0)[number % 3],
                    duration_s=seconds if number % 5 else 0.0,
                    iterations=number if number % 7 == 0 else 0,
                    restarts=number % 4,
                    share=(1.0, 1.0, 0.6, 0.0)[number // 3 % 4],
                    workload="aabx"[number // 12 % 4],
                    speeds={1: 1.0, 2: 1.9, 4: 3.5} if number % 2 else {},
                )
                if number % 11 == 0:
                    spec = replace(spec, request=replace(spec.request, gpus=(gpu.gpu,)), speeds={})
                self.specs[spec.id] = spec
                self.tell(JobSubmitted(spec=spec, submitted_at=self.now))
            case "end" | "fail" if running:
                id_ = running[number % len(running)]
                ended = Ended.SUCCEEDED if what == "end" else (Ended.FAILED, Ended.LOST)[number % 2]
                self.tell(
                    AttemptOver(id=id_, attempt=self.running[id_][0], ended=ended, home=("", "n0")[number % 5 == 0])
                )
            case "refuse" if running:
                id_ = running[number % len(running)]
                self.tell(StartRefused(id=id_, attempt=self.running[id_][0]))
            case "lose":
                self.tell(GpuLost(gpu=gpu.gpu))
            case "see":
                self.tell(gpu)
            case "close":
                self.tell(replace(gpu, closed="drained"))
            case "attach":
                self.tell(replace(gpu, attached=1, held=number % 3))
            case "hold" if waiting:
                self.tell(JobHeld(id=waiting[number % len(waiting)], held=number % 3 > 0))
            case "move" if waiting:
                self.tell(JobMoved(id=waiting[number % len(waiting)]))
            case "withdraw" if waiting or running:
                self.tell(JobWithdrawn(id=sorted(waiting + running)[number % (len(waiting) + len(running))]))
            case "progress" if running:
                id_ = running[number % len(running)]
                progress = JobProgressed(id=id_, attempt=self.running[id_][0], iterations=number, iteration_s=seconds)
                self.tell(progress)
            case "measure" if running:
                id_ = running[number % len(running)]
                self.tell(PairMeasured(id=id_, attempt=self.running[id_][0], slowdown=1.0 + number % 20 / 10))
            case "pairs":
                self.tell(table(number % len(PAIRS)))
            case "limit":
                self.limits = {"p": ProjectLimit(gpus=number % 5, weight=1.0 + number % 3)} if number % 4 else {}
                self.tell(LimitsChanged(limits=self.limits))
            case "ask":
                self.tell(QueueAsked(), TrialAsked(spec=spec_of("asked", count=1 + number % 3)))
                # A round that is due is due after a question too.
                self.tell()
            case _:
                self.tell()


def played(setting: str, script: Sequence[tuple[str, int, float]]) -> World:
    world = World(policy_of(job_setting(setting)))
    world.tell(*FLEET[::3], table(0))
    for what, number, seconds in script:
        world.step(what, number, seconds)
    return world


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(SETTINGS)), steps)
def test_bounds_hold_and_replays_agree(setting: str, script: list[tuple[str, int, float]]) -> None:
    assert played(setting, script).log == played(setting, script).log


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["fifo-backfill", "sjf", "smore-jobs"]), steps)
def test_a_call_that_only_asks_changes_nothing(setting: str, script: list[tuple[str, int, float]]) -> None:
    asked = played(setting, script)
    plain = played(setting, [(what if what != "ask" else "wait", number, seconds) for what, number, seconds in script])

    def acted(world: World) -> list[Decision]:
        return [decision for decision in world.log if isinstance(decision, Start | Stop | Requeue | Finish)]

    assert acted(asked) == acted(plain)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 80), st.integers(0, 8)),
        min_size=10,
        max_size=30,
    ),
    st.sampled_from([0.25, 0.5, 1.0]),
    st.sampled_from([0.0, 1.0]),
)
def test_whoever_is_first_by_patience_starts_when_those_that_ran_have_ended(
    jobs: list[tuple[int, int, int]], factor: float, share: float
) -> None:
    """
    Jobs of so many GPU instances and quarters of an hour keep coming, and never take longer than was said of them. A
    job that is first by patience starts at the latest when all that ran at that moment have ended, or were expected to.
    """
    policy = JobPolicy(replace(SETTINGS["smore-jobs"], patience_s=HOUR, patience_lengths=0.1))
    policy.decide(NOW, [*FLEET[:4], PairsKnown(pairs=[PairKnown("A", "a", "a", 1.3, 1.4)])])
    quarter, at = HOUR / 4, NOW
    comes: list[tuple[float, JobSpec]] = []
    for number, (size, quarters, gap) in enumerate(jobs):
        at += gap * quarter
        spec = spec_of(
            f"j{number}", count=size, duration_s=quarters * quarter, share=share, workload="a", memory_mib=30.0
        )
        comes.append((at, spec))
    lasts = {spec.id: spec.request.duration_s * factor for _, spec in comes}
    ends: dict[str, float] = {}
    bound: dict[str, float] = {}
    wake_at = NOW
    while comes or ends or len(policy.queue):
        at = min([wake_at, *ends.values(), *(when for when, _ in comes[:1])])
        events: list[Event] = [AttemptOver(id=id_, attempt=1, ended=Ended.SUCCEEDED) for id_ in ends if ends[id_] <= at]
        ends = {id_: end for id_, end in ends.items() if end > at}
        while comes and comes[0][0] <= at:
            when, spec = comes.pop(0)
            events.append(JobSubmitted(spec=spec, submitted_at=when))
        decisions, wake_at = policy.decide(at, events)
        for decision in decisions:
            if isinstance(decision, Start):
                assert at <= bound.get(decision.id, at) + 1e-6
                ends[decision.id] = at + lasts[decision.id]
        first = next(iter(policy.queue), None)
        if first is not None and policy.queue._patience[first.spec.id] <= at:
            bound.setdefault(first.spec.id, max(ends.values(), default=at))
        if policy.places.kept is not None:
            bound[policy.places.kept.id] = max(bound[policy.places.kept.id], policy.places.kept.at)
