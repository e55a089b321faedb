"""A rule for trainings under a clock that the test moves, checked against a fresh count after every call."""

from collections import Counter
from dataclasses import fields, replace
from typing import Any, Final

from lab.simulation.jobs.preemption import policy_of
from scheduler.policy.jobs.decisions import Decision, Expected, PublishQueue, Start, Stop, TrialAnswered
from scheduler.policy.jobs.events import AttemptOver, Ended, Event, GpuSeen, JobSubmitted, QueueAsked, TrialAsked
from scheduler.policy.jobs.fleet import TENANTS
from scheduler.policy.jobs.knobs import JobKnobs, job_setting
from scheduler.policy.jobs.spec import JobSpec
from smore.domain.job import JobRequest
from tests.support.fresh_counts import differing

NOW = 1_000_000.0
HOUR = 3600.0


def gpus(*nodes: int, device: str = "A", memory: float = 80_000.0) -> list[GpuSeen]:
    """``nodes``: how many GPU instances each has; the third of the second is n1g2."""
    return [
        GpuSeen(gpu=f"n{node}g{place}", node=f"n{node}", device=device, memory_mib=memory)
        for node, count in enumerate(nodes)
        for place in range(count)
    ]


_OF_SPEC: Final = {known.name for known in fields(JobSpec)}


def spec_of(id_: str, **said: Any) -> JobSpec:
    """A training of project p, unless another one is said; what is no field of JobSpec is one of its request."""
    known = {name: said.pop(name) for name in list(said) if name in _OF_SPEC}
    return JobSpec(id=id_, request=JobRequest(**said), **({"project": "p"} | known))


class DrivenJobs:
    """``running``: job → (attempt, GPU instances), by the decisions so far."""

    def __init__(self, setting: str | JobKnobs = "smore-jobs", fleet: list[GpuSeen] | None = None) -> None:
        self.policy = policy_of(job_setting(setting) if isinstance(setting, str) else setting)
        self.now = NOW
        self.running: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.wake_at = 0.0
        if fleet:
            self.tell(*fleet)

    def tell(self, *events: Event, later: float = 0.0) -> list[Decision]:
        self.now += later
        decisions, self.wake_at = self.policy.decide(self.now, events)
        for event in events:
            if isinstance(event, AttemptOver) and self.running.get(event.id, (0, ()))[0] == event.attempt:
                self.running.pop(event.id, None)
        for decision in decisions:
            if isinstance(decision, Start):
                self.running[decision.id] = decision.attempt, decision.gpus
        on = Counter(name for _, names in self.running.values() for name in names)
        assert not on or max(on.values()) <= TENANTS
        assert differing(self.policy) == 0
        return decisions

    def submit(self, id_: str, *, hours: float = 1.0, later: float = 0.0, **said: object) -> list[Decision]:
        """A job of project p that says how long it takes."""
        spec = spec_of(id_, **({"duration_s": hours * HOUR} | said))
        return self.tell(JobSubmitted(spec=spec, submitted_at=self.now + later), later=later)

    def end(self, id_: str, ended: Ended = Ended.SUCCEEDED, *, later: float = 0.0, **said: object) -> list[Decision]:
        over = AttemptOver(id=id_, attempt=self.running[id_][0], ended=ended)
        return self.tell(replace(over, **said), later=later)  # type: ignore[arg-type]

    def queue(self) -> list[Expected]:
        [answer] = self.tell(QueueAsked())
        assert isinstance(answer, PublishQueue)
        return [job for job in answer.jobs if not job.gpus]

    def entry(self, id_: str) -> Expected:
        [answer] = self.tell(QueueAsked())
        assert isinstance(answer, PublishQueue)
        return next(job for job in answer.jobs if job.id == id_)

    def ask(self, **said: object) -> TrialAnswered:
        [answer] = self.tell(TrialAsked(spec=spec_of("asked", **({"duration_s": HOUR} | said))))
        assert isinstance(answer, TrialAnswered)
        return answer


def started(decisions: list[Decision]) -> list[str]:
    return [decision.id for decision in decisions if isinstance(decision, Start)]


def stopped(decisions: list[Decision]) -> list[str]:
    return [decision.id for decision in decisions if isinstance(decision, Stop)]
