"""What the rule keeps of each job."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from math import inf

from scheduler.policy.jobs.events import Ended, JobSubmitted
from scheduler.policy.jobs.lengths import Length, Lengths, LengthSource
from scheduler.policy.jobs.pairs import Slowdown, end_beside
from scheduler.policy.jobs.spec import JobSpec, MicroBatches, Needs


class JobPhase(StrEnum):
    """
    Where a job is for the rule: in the queue; in its back-off before a restart; held by its owner; on GPU instances; on
    them while it is being ended.
    """

    WAITING = "waiting"
    RESTING = "resting"
    HELD = "held"
    PLACED = "placed"
    STOPPING = "stopping"


class Job:
    """
    A job that is not over. ``attempt``: the last that was placed; ``gpus`` it is on since ``since_at``; ``queued_at``:
    since when it waits; times before that are in ``waited_s`` and ``ran_s``. ``told``: what was left of it when each
    source was first asked, and the time that it had run then. ``beside``: what each job costs it with which it shares
    GPU instances. Times that a length is made of (what it has run, what is left) are those alone on the number of GPU
    instances that it asks for, so what it lost to others (``lost_s`` until ``slowed_at``) does not count as run.
    """

    def __init__(self, event: JobSubmitted) -> None:
        self.spec: JobSpec = event.spec
        self.submitted_at = event.submitted_at
        self.attempt, self.restarts, self.short_ends = event.attempt, event.restarts, event.short_ends
        self.waited_s, self.ran_s = event.waited_s, event.ran_s
        #: When it is to have ended, inf = whenever.
        self.by = event.spec.by if event.spec.by is not None else inf
        self.not_before, self.home, self.moved = event.not_before, event.home, event.moved
        self.phase = JobPhase.HELD if event.held else JobPhase.WAITING
        self.gpus: tuple[str, ...] = ()
        self.device = ""
        self.since_at = self.queued_at = 0.0
        #: Iterations done, what one takes (0 = not measured) and the time that the job had run when that was told.
        self.iterations, self.iteration_s = event.iterations, 0.0
        self.progressed_s = event.ran_s - event.lost_s
        self.lost_s, self.slowed_at = event.lost_s, 0.0
        self.beside: dict[str, Slowdown] = {}
        #: What all of them cost it together by measurement, 0 = not measured; how its attempt runs its batch.
        self.measured = 0.0
        #: The part of the time in which it may run as a guest.
        self.part = 1.0
        self.parts = MicroBatches(count=1, memory_mib=event.spec.memory_mib)
        #: The most memory that its attempt was seen to take, of its largest rank.
        self.taken_mib = 0.0
        self.told: dict[LengthSource, tuple[float, float]] = {}
        self.withdrawn = False
        #: How its attempt is over by a decision of the rule; None = as it is reported.
        self.ended_as: Ended | None = None
        #: How many GPU instances it gets at its next start.
        self.size = self.spec.size
        self.needs = self._needs()
        #: What is left of it as it waits; kept by whoever orders the queue.
        self.length = Length(0.0, 0.0, 0.0, LengthSource.ASSUMED)

    def _needs(self) -> Needs:
        spec = self.spec
        return Needs(self.size, tuple(spec.request.gpus), spec.request.device, spec.memory_mib, self.home)

    def resize(self, number: int) -> None:
        """It gets so many GPU instances from its next start on."""
        self.size = number
        self.needs = self._needs()

    def bind(self, home: str) -> None:
        """Its checkpoint is on the node ``home``, '' = everywhere."""
        self.home = home
        self.needs = self._needs()

    def outgrow(self, memory_mib: float) -> None:
        """It took more than was said of it: from now on it needs that, and nobody beside it."""
        memory_mib = max(memory_mib, self.spec.memory_mib)
        request = replace(self.spec.request, share=0.0)
        self.spec = replace(self.spec, request=request, memory_mib=memory_mib, micro_batches=())
        self.parts = MicroBatches(count=1, memory_mib=memory_mib)

    @property
    def occupied_mib(self) -> float:
        """What it leaves to nobody beside it: the memory that was said of it, or what it takes where that is more."""
        return max(self.parts.memory_mib, self.taken_mib)

    def waiting_s(self, at: float) -> float:
        """Time in the queue so far."""
        return self.waited_s + (at - self.queued_at if self.phase is JobPhase.WAITING else 0.0)

    def running_s(self, at: float) -> float:
        """Time on GPU instances so far."""
        return self.ran_s + (at - self.since_at if self.gpus else 0.0)

    def alone_s(self, at: float) -> float:
        """Of that, the time that it would have taken to come as far if nobody had been beside it."""
        return self.running_s(at) - self._lost_s(at)

    @property
    def slowdown(self) -> float:
        """How many times longer than alone an iteration takes now."""
        return self.factor * self.besides

    @property
    def factor(self) -> float:
        """Of that, what its micro-batches and the number of its GPU instances make of it; below 1 on more than it asked for."""
        return self.parts.factor / self.spec.speeds.get(len(self.gpus), 1.0)

    @property
    def besides(self) -> float:
        """Of that, what those beside it cost it, held back for their sake or not."""
        return self._met / self.part if self.beside else 1.0

    @property
    def pace(self) -> float:
        """How many times longer than alone an iteration takes, without the time for which it is held back."""
        return self.factor * self._met

    @property
    def _met(self) -> float:
        if not self.beside:
            return 1.0
        return self.measured or max([slowdown.expected for slowdown in self.beside.values()])

    def _lost_s(self, at: float) -> float:
        slowdown = self.slowdown if self.gpus else 1.0
        return self.lost_s + ((at - self.slowed_at) * (1.0 - 1.0 / slowdown) if slowdown != 1.0 else 0.0)

    def settle(self, at: float) -> None:
        """Its slowdown is about to change."""
        self.lost_s, self.slowed_at = self._lost_s(at), at

    def beside_at(self, id_: str) -> float:
        """How many times longer an iteration takes because of one of those beside it; a measurement counts for all."""
        expected = self.beside[id_].expected
        if self.measured:
            expected *= self.measured / max(slowdown.expected for slowdown in self.beside.values())
        return self.factor * expected / self.part

    def left(self, lengths: Lengths, at: float, device: str = "") -> Length:
        """What is left of it on ``device`` ('' = where it is, else the fastest)."""
        ran_s = self.alone_s(at)
        if self.iteration_s and self.spec.request.iterations:
            left_s = (self.spec.request.iterations - self.iterations) * self.iteration_s
            return lengths.measured(left_s - (ran_s - self.progressed_s))
        told_s, source = lengths.told_s(self.spec, device or self.device)
        return lengths.left(told_s, source, ran_s, self.spec.project)

    def note_told(self, lengths: Lengths, at: float) -> None:
        """Remember what is told of it now by a source that was not asked before."""
        ran_s = self.alone_s(at)
        if self.iteration_s and self.spec.request.iterations:
            left_s = (self.spec.request.iterations - self.iterations) * self.iteration_s
            if left_s > 0:
                self.told.setdefault(LengthSource.MEASURED, (left_s, ran_s))
        else:
            told_s, source = lengths.told_s(self.spec, self.device)
            if not ran_s:
                self.told.setdefault(source, (told_s, 0.0))

    def ratios(self, seconds: float) -> dict[str, float]:
        """What was left over what was told, by source, of a job that would have run for ``seconds`` alone."""
        return {
            source.value: (seconds - ran_s) / told_s for source, (told_s, ran_s) in self.told.items() if seconds > ran_s
        }


def called(job: Job, other: Job) -> str:
    """What the owner of ``job`` calls another one: those of other projects have no name."""
    same = other.spec.project == job.spec.project and other.spec.name
    return other.spec.name if same else other.spec.id


class Ends:
    """
    What is left of jobs, and when those on GPU instances have ended, as of one moment; each is counted once until it changes.
    """

    def __init__(self, jobs: Mapping[str, Job], lengths: Lengths) -> None:
        self._jobs, self._lengths, self._at = jobs, lengths, 0.0
        self._lefts: dict[str, Length] = {}
        self._ends: dict[str, float] = {}

    def begin(self, at: float) -> None:
        """Time has passed, or anything may have changed."""
        self._at = at
        self._lefts.clear()
        self._ends.clear()

    def renew(self, at: float) -> None:
        """Nothing has happened since the last look but that time may have passed."""
        if at != self._at:
            self.begin(at)

    def left(self, job: Job, device: str = "") -> Length:
        """On ``device`` ('' = where it is, else the fastest)."""
        if device:
            return job.left(self._lengths, self._at, device)
        id_ = job.spec.id
        if id_ not in self._lefts:
            self._lefts[id_] = job.left(self._lengths, self._at)
        return self._lefts[id_]

    def at(self, job: Job) -> float:
        """By expected lengths; a job that is being ended has ended at once."""
        id_ = job.spec.id
        if id_ not in self._ends:
            self._ends[id_] = self._end(job, self.left(job).expected_s)
        return self._ends[id_]

    def late(self, job: Job) -> float:
        """By its 90 % length."""
        return self._end(job, self.left(job).most_s)

    def _end(self, job: Job, left_s: float) -> float:
        """Of those beside it, each is taken to be as slow as now until it ends."""
        if job.phase is JobPhase.STOPPING:
            return self._at
        if not job.beside and job.factor == 1.0:
            return self._at + left_s
        others = []
        for id_ in job.beside:
            other = self._jobs[id_]
            other_s = self.left(other).expected_s * other.slowdown if other.phase is not JobPhase.STOPPING else 0.0
            others.append((other_s, job.beside_at(id_) / job.factor))
        return self._at + end_beside(left_s * job.factor, others)

    def changed(self, job: Job) -> None:
        """Who is beside it has changed: those beside it have another speed, and those beside these wait for other ends."""
        for id_ in {job.spec.id, *job.beside}:
            self._lefts.pop(id_, None)
            for name in (id_, *self._jobs[id_].beside):
                self._ends.pop(name, None)
