"""
The attempts under way: what each rank's worker was told and has reported, and what follows from it.

A rank is known by its GPU instance. Commands are idempotent by job, attempt and rank, so they are sent until the reports
show that they were obeyed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler.policy.jobs.events import Ended
from scheduler.policy.jobs.spec import MicroBatches
from smore.domain.job import REFUSED, JobState, exit_of
from smore.messages.reports import JobReport, Report

#: Seconds between two commands to a rank that has not obeyed yet.
AGAIN_S: Final = 2.0
#: A rank that was reported, of which its worker tells no more for so long, is lost, seconds.
_MISSING_S: Final = 10.0
#: A rank that was never reported is not coming any more so long after the command to end it, seconds.
_NEVER_S: Final = 5.0

_OVER: Final = frozenset({JobState.ENDED.value, JobState.LOST.value})


@dataclass(slots=True)
class Rank:
    """
    ``lost``: nobody saw how it ended; ``never``: it was ended before it was there. ``told_at``, ``stopped_at``: when the
    last command of the kind was sent, ``stopping_at`` the first one to end it.
    """

    gpu: str
    report: JobReport | None = None
    lost: bool = False
    never: bool = False
    missing_at: float | None = None
    told_at: float = 0.0
    stopping_at: float = 0.0
    stopped_at: float = 0.0

    @property
    def over(self) -> bool:
        return self.lost or self.never or (self.report is not None and self.report.state in _OVER)

    @property
    def failed(self) -> bool:
        """Whether it is over, and not by an end that is known to be good."""
        return self.over and (self.lost or self.never or self.report is None or self.report.exit_code != 0)


@dataclass(slots=True)
class Attempt:
    """
    One attempt of a job on ``gpus``. ``since_at``: when it was placed; ``awaited_at``: since when this leader waits for
    its ranks; ``began_with`` iterations of the job; ``checkpoint``: those that its last complete checkpoint holds, on
    ``home``. ``hosts``: jobs beside which it was started, with the GPU instances that they share; ``parts``: how it
    runs its batch; ``lost_s``: what others beside it have cost it so far. ``stop``: why its ranks must end, '' =
    they need not; ``asked``: its owner wants it; ``outgrown_mib``: the memory that it took, beside another one, beyond what
    was said of it. ``up``: all ranks have begun.
    """

    job: str
    attempt: int
    gpus: Sequence[str]
    since_at: float
    awaited_at: float
    began_with: int
    checkpoint: int
    home: str
    parts: MicroBatches
    hosts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lost_s: float = 0.0
    outgrown_mib: float = 0.0
    up: bool = False
    stop: str = ""
    asked: bool = False
    #: The exit code of the rank that was first reported to have failed, and why its worker refused it.
    first_bad: int | None = None
    reason: str = ""
    ranks: list[Rank] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks = [Rank(gpu) for gpu in self.gpus]

    def follow(self, at: float, reports: Mapping[str, Report], lost: set[str], up_s: float, *, shared: bool) -> None:
        """
        Take what workers report (GPU instance → report); ``lost`` GPU instances are silent for too long; ``shared``:
        all nodes see one folder of checkpoints.
        """
        for rank in self.ranks:
            # One that was lost may turn up again.
            if rank.report is None or rank.report.state not in _OVER:
                self._follow(rank, at, reports.get(rank.gpu), rank.gpu in lost)
        first = reports.get(self.gpus[0])
        checkpoint = max((rank.report.checkpoint_iterations for rank in self.ranks if rank.report), default=0)
        if checkpoint and checkpoint != self.checkpoint and first is not None:
            self.checkpoint, self.home = checkpoint, "" if shared else first.node
        if not self.up and not any(rank.report.iterations for rank in self.ranks if rank.report):
            # Its worker may have found a later checkpoint than the former attempt's last report told of.
            self.began_with = max(self.began_with, checkpoint)
        bad = next((rank for rank in self.ranks if rank.failed), None)
        if bad is not None and not self.stop:
            self.first_bad = bad.report.exit_code if bad.report is not None else None
            self.reason = bad.report.reason if bad.report is not None else ""
            self.stop = f"The rank on {bad.gpu} is {'lost' if bad.lost else 'over'}."
        if all(rank.report is not None for rank in self.ranks):
            self.up = self.up or all(_began(rank.report) for rank in self.ranks)
        if not self.up and not self.stop and at - self.awaited_at > up_s:
            missing = ", ".join(rank.gpu for rank in self.ranks if not _began(rank.report))
            self.stop = f"Not all ranks were there within {up_s:g} s: {missing} was missing."
            self.refuse(self.stop)

    def check_guest(self) -> None:
        """Its ranks must end where one of them, as a guest, takes more memory than was said of it."""
        said_mib = self.parts.memory_mib
        told = [rank.report for rank in self.ranks if rank.report is not None and rank.report.guest]
        taken_mib = max((report.memory_mib for report in told), default=0.0)
        if said_mib and taken_mib > said_mib and not self.stop:
            self.outgrown_mib = taken_mib
            self.stop = f"As a guest it took {taken_mib:.0f} MiB, and {said_mib:.0f} MiB were kept for it."

    def refuse(self, reason: str) -> None:
        """The platform cannot start it."""
        self.stop, self.reason, self.first_bad = reason, reason, REFUSED

    def _follow(self, rank: Rank, at: float, report: Report | None, lost: bool) -> None:
        told = (
            next((job for job in report.jobs if (job.id, job.attempt) == (self.job, self.attempt)), None)
            if report
            else None
        )
        if told is not None:
            rank.report, rank.missing_at = told, None
            rank.lost, rank.never = told.state == JobState.LOST, False
        elif lost:
            rank.lost = True
        elif report is not None and (rank.report is not None or self.up):
            # Its worker reports every rank that it started until its end is recorded.
            rank.missing_at = rank.missing_at if rank.missing_at is not None else at
            rank.lost = at - rank.missing_at > _MISSING_S
        elif report is not None and rank.stopping_at and at - rank.stopping_at > _NEVER_S:
            rank.never = True

    @property
    def over(self) -> bool:
        """No process of it is left."""
        return all(rank.over for rank in self.ranks)

    @property
    def ended(self) -> Ended:
        if any(rank.lost for rank in self.ranks):
            return Ended.LOST
        if not any(rank.failed for rank in self.ranks):
            return Ended.SUCCEEDED
        return Ended.OUTGROWN if self.outgrown_mib else Ended.FAILED

    @property
    def exit_code(self) -> int | None:
        if self.first_bad is not None:
            return self.first_bad
        return exit_of([rank.report.exit_code if rank.report is not None else None for rank in self.ranks])

    @property
    def iterations(self) -> int:
        """Of the job, done in all: the slowest rank counts."""
        return self.began_with + min((rank.report.iterations if rank.report else 0 for rank in self.ranks), default=0)

    @property
    def length(self) -> int:
        """Iterations that the job has, as its process says, 0 = it says nothing."""
        return max((rank.report.length for rank in self.ranks if rank.report), default=0)

    @property
    def memory_mib(self) -> float:
        """What its largest rank takes now."""
        return max((rank.report.memory_mib for rank in self.ranks if rank.report), default=0.0)

    @property
    def iteration_s(self) -> float:
        """Mean seconds of an iteration lately, of the slowest rank; 0 = not measured."""
        return max((_pace(rank.report) for rank in self.ranks if rank.report), default=0.0)

    def to_start(self, at: float) -> list[int]:
        """Ranks whose worker must be told (again) to start them."""
        # What had begun once is not begun again; attempt 0 is from before the queue, and nobody can start it.
        if self.stop or self.up or not self.attempt:
            return []
        return [place for place, rank in enumerate(self.ranks) if rank.report is None and at - rank.told_at >= AGAIN_S]

    def to_stop(self, at: float) -> list[int]:
        """Ranks whose worker must be told (again) to end them."""
        if not self.stop:
            return []
        return [place for place, rank in enumerate(self.ranks) if not rank.over and at - rank.stopped_at >= AGAIN_S]


def _began(report: JobReport | None) -> bool:
    return report is not None and report.state != JobState.STARTING


def _pace(report: JobReport) -> float:
    count = report.solo_count + report.shared_count
    return (report.solo_s * report.solo_count + report.shared_s * report.shared_count) / count if count else 0.0
