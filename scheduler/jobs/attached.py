"""Trainings that the platform did not start: what GPU workers report of them, written down."""

from collections.abc import Sequence
from typing import Final

from scheduler.jobs import ends
from scheduler.jobs.apart import Apart
from smore.domain.job import OVER, STARTED, Action, JobState, exit_of, state_of
from smore.messages.reports import JobReport, Report
from smore.postgres.jobs import Job, JobChange, JobStore

#: What reports of a state do.
_REPORTED: Final = {JobState.RUNNING: Action.RUN, JobState.ENDED: Action.END, JobState.LOST: Action.LOSE}


class Attached:
    """One that no worker reports for ``silent_s`` seconds is lost."""

    def __init__(self, jobs: JobStore, silent_s: float, apart: Apart) -> None:
        self._jobs, self._silent_s, self._apart = jobs, silent_s, apart
        #: Since when nobody reports it, epoch seconds.
        self._unseen: dict[str, float] = {}

    def follow(self, at: float, jobs: Sequence[Job], reports: Sequence[Report], *, paused: bool = False) -> None:
        """``jobs`` that are not over; ``paused``: it was the looking that stood still, and silence says nothing."""
        ranks: dict[str, list[JobReport]] = {}
        for report in reports:
            for told in report.jobs:
                ranks.setdefault(told.id, []).append(told)
        if paused:
            self._unseen.clear()
        mine = [job for job in jobs if job.source != STARTED]
        self._unseen = {job.id: self._unseen.get(job.id, at) for job in mine if job.id not in ranks}
        for job in mine:
            with self._apart.of(job.id):
                if job.id in ranks:
                    self._write(job, ranks[job.id])
                elif at - self._unseen[job.id] > self._silent_s:
                    self._jobs.move(job.id, Action.LOSE)
                    ends.tell(job, JobState.LOST, None, why="No GPU worker reports it.")

    def _write(self, job: Job, told: Sequence[JobReport]) -> None:
        state = state_of(job.state, {rank.state for rank in told})
        if state is not job.state and state in _REPORTED:
            reason = next((rank.reason for rank in told if rank.reason), "")
            details = JobChange(exit_code=exit_of([rank.exit_code for rank in told]), reason=reason)
            self._jobs.move(job.id, _REPORTED[state], details)
            if state in OVER:
                ends.tell(job, state, details.exit_code, asked=job.state is JobState.STOPPING, reason=reason)
