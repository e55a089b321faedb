"""What the rule keeps of each job."""

from enum import StrEnum

from scheduler.policy.jobs.events import Ended, JobSubmitted
from scheduler.policy.jobs.fleet import Needs
from scheduler.policy.jobs.lengths import Length, Lengths, Source
from scheduler.policy.jobs.spec import JobSpec


class Phase(StrEnum):
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
    source was first asked, and the time that it had run then.
    """

    __slots__ = (
        "attempt",
        "device",
        "ended_as",
        "gpus",
        "home",
        "iteration_s",
        "iterations",
        "length",
        "moved",
        "needs",
        "not_before",
        "phase",
        "progressed_s",
        "queued_at",
        "ran_s",
        "restarts",
        "short_ends",
        "since_at",
        "spec",
        "submitted_at",
        "told",
        "waited_s",
        "withdrawn",
    )

    def __init__(self, event: JobSubmitted) -> None:
        self.spec: JobSpec = event.spec
        self.submitted_at = event.submitted_at
        self.attempt, self.restarts, self.short_ends = event.attempt, event.restarts, event.short_ends
        self.waited_s, self.ran_s = event.waited_s, event.ran_s
        self.not_before, self.home, self.moved = event.not_before, event.home, event.moved
        self.phase = Phase.HELD if event.held else Phase.WAITING
        self.gpus: tuple[str, ...] = ()
        self.device = ""
        self.since_at = self.queued_at = 0.0
        #: Iterations done, what one takes (0 = not measured) and the time that the job had run when that was told.
        self.iterations, self.iteration_s, self.progressed_s = event.iterations, 0.0, event.ran_s
        self.told: dict[Source, tuple[float, float]] = {}
        self.withdrawn = False
        #: How its attempt is over by a decision of the rule; None = as it is reported.
        self.ended_as: Ended | None = None
        self.needs = self._needs()
        #: What is left of it as it waits; kept by whoever orders the queue.
        self.length = Length(0.0, 0.0, Source.ASSUMED)

    def _needs(self) -> Needs:
        spec = self.spec
        return Needs(spec.size, spec.gpus, spec.device, spec.memory_mib, self.home)

    def bind(self, home: str) -> None:
        """Its checkpoint is on the node ``home``, '' = everywhere."""
        self.home = home
        self.needs = self._needs()

    def waiting_s(self, at: float) -> float:
        """Time in the queue so far."""
        return self.waited_s + (at - self.queued_at if self.phase is Phase.WAITING else 0.0)

    def running_s(self, at: float) -> float:
        """Time on GPU instances so far."""
        return self.ran_s + (at - self.since_at if self.gpus else 0.0)

    def left(self, lengths: Lengths, at: float, device: str = "") -> Length:
        """What is left of it on ``device`` ('' = where it is, else the fastest)."""
        ran_s = self.running_s(at)
        if self.iteration_s and self.spec.iterations:
            left_s = (self.spec.iterations - self.iterations) * self.iteration_s
            return lengths.measured(left_s - (ran_s - self.progressed_s))
        told_s, source = lengths.told_s(self.spec, device or self.device)
        return lengths.left(told_s, source, ran_s)

    def note_told(self, lengths: Lengths, at: float) -> None:
        """Remember what is told of it now by a source that was not asked before."""
        ran_s = self.running_s(at)
        if self.iteration_s and self.spec.iterations:
            left_s = (self.spec.iterations - self.iterations) * self.iteration_s
            if left_s > 0:
                self.told.setdefault(Source.MEASURED, (left_s, ran_s))
        else:
            told_s, source = lengths.told_s(self.spec, self.device)
            if not ran_s:
                self.told.setdefault(source, (told_s, 0.0))

    def ratios(self, seconds: float) -> dict[str, float]:
        """What was left over what was told, by source, of a job that ran for ``seconds`` in all."""
        return {
            source.value: (seconds - ran_s) / told_s for source, (told_s, ran_s) in self.told.items() if seconds > ran_s
        }


def end_at(job: Job, lengths: Lengths, at: float) -> float:
    """When a job on GPU instances is expected to have ended; one that is being ended, at once."""
    return at if job.phase is Phase.STOPPING else at + job.left(lengths, at).expected_s
