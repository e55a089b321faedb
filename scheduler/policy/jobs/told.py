"""
What jobs that wait are told of their ends, and what became of it.

A plan knows nobody who comes later, so the later end that it tells is passed more often than in one case of ten. The ratios of
completion (submitted to ended) over told completion of the last jobs that had to wait say by how much.
"""

from typing import Final

from scheduler.policy.jobs.decisions import Expected
from scheduler.policy.jobs.lengths import Recent

#: Jobs that are remembered.
JOBS: Final = 100


class Told:
    """For whoever publishes what the rule answers; it changes nothing that is decided."""

    def __init__(self) -> None:
        self._ratios = Recent(JOBS)
        #: Completions that jobs were told first, by the plan, seconds.
        self._first: dict[str, float] = {}

    def late(self, job: Expected, submitted_at: float) -> float | None:
        """
        The later end that a job is told: of one that waits the plan's, stretched by the 90 % quantile of the ratios, never
        shortened.
        """
        if job.end_at is None:
            return None
        late_s = job.end_at[1] - submitted_at
        if job.gpus or late_s <= 0:
            return job.end_at[1]
        self._first.setdefault(job.id, late_s)
        stretch = max(1.0, self._ratios.quantile(0.9)) if len(self._ratios) else 1.0
        return submitted_at + late_s * stretch

    def over(self, id_: str, completion_s: float | None) -> float | None:
        """
        A job is over: the ratio that is learnt, None = it had not to wait, or did not succeed (``completion_s`` None).
        """
        told_s = self._first.pop(id_, None)
        if told_s is None or completion_s is None:
            return None
        self._ratios.add(completion_s / told_s)
        return completion_s / told_s
