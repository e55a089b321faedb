"""
What jobs that wait are told of their ends, and what became of it.

A plan knows nobody who comes later, nor who will slow a job that runs, so its later end is passed more often than in one case
of ten. The ratios of real over told completion (from when a job came) of the last jobs that had to wait say by how much: the
later end is stretched by the smallest factor that nine in ten of them kept and that one more would keep with 90 %, were it
drawn with them (split conformal prediction, Vovk et al. 2005; Angelopoulos and Bates, arXiv 2107.07511). A job that is late and
goes on counts with what it took so far, else those that end soon would be learnt first.
"""

from typing import Final

from scheduler.policy.jobs.decisions import Expected
from scheduler.policy.jobs.lengths import Recent, bound

#: Jobs that are remembered, and the ratios that stand beside theirs for ever: before anything was learnt they are what an end
#: is stretched by (docs/research/trainings.md has what other values give).
JOBS: Final = 100
PRIOR: Final = (2.0,)


class Told:
    """For whoever publishes what the rule answers; it changes nothing that is decided."""

    def __init__(self) -> None:
        self._ratios = Recent(JOBS, PRIOR)
        #: Of jobs that are not over: when each came, and the completion that the plan told it first, seconds.
        self._first: dict[str, tuple[float, float]] = {}
        self._at, self._stretch = 0.0, 1.0

    def late(self, job: Expected, submitted_at: float, now: float) -> float | None:
        """The later end that a job is told ``now``: of one that waits the plan's, stretched and never shortened."""
        if job.end_at is None:
            return None
        late_at = job.end_at[1]
        if job.gpus or late_at <= now:
            return late_at
        self._first.setdefault(job.id, (submitted_at, late_at - submitted_at))
        if now != self._at:
            self._at = now
            going_on = ((now - came_at) / told_s for came_at, told_s in self._first.values())
            late = [ratio for ratio in going_on if ratio > 1]
            self._stretch = max(1.0, bound(sorted([*self._ratios.ordered, *late]), 0.9))
        return now + (late_at - now) * self._stretch

    def over(self, id_: str, completion_s: float | None) -> float | None:
        """
        A job is over: the ratio that is learnt, None = it had not to wait, or did not succeed (``completion_s`` None).
        """
        _, told_s = self._first.pop(id_, (0.0, 0.0))
        if not told_s or completion_s is None:
            return None
        self._ratios.add(completion_s / told_s)
        return completion_s / told_s
