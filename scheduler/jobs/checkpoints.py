"""Checkpoints of trainings that are over for long: whoever has them is told that they may go."""

from collections.abc import Sequence
from typing import Final

from smore.messages.commands import DropCheckpoints
from smore.messages.reports import Report
from smore.postgres.job_ledger import JobLedger
from smore.redis.fleet import Fleet

#: Seconds between two looks.
_LOOK_S: Final = 60.0


class OldCheckpoints:
    """``days`` that they are kept after the end of their job, None = for ever."""

    def __init__(self, fleet: Fleet, ledger: JobLedger, days: float | None) -> None:
        self._fleet, self._ledger, self._days = fleet, ledger, days
        self._looked_at = 0.0

    def drop(self, at: float, reports: Sequence[Report]) -> None:
        """Of the jobs that reports name, those that Postgres says are over for so long."""
        if self._days is None or at - self._looked_at < _LOOK_S:
            return
        self._looked_at = at
        aged = {job for report in reports for job in report.aged}
        over = self._ledger.over_since(aged, self._days) if aged else set()
        if not over:
            return
        self._ledger.without_checkpoints(over)
        for report in reports:
            for job in over.intersection(report.aged):
                self._fleet.send(report.gpu, DropCheckpoints(version=1, id=job))
