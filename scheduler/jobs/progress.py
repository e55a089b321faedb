"""What attempts have made so far, written to Postgres where it has changed."""

from collections.abc import Iterable

from sqlalchemy.exc import DataError

from scheduler.jobs.apart import Apart
from scheduler.jobs.attempts import Attempt
from smore.postgres.job_ledger import JobLedger, Progress


class ProgressLog:
    """Remembers what was written last of each attempt under way; ``apart`` keeps what cannot be written from the others."""

    def __init__(self, ledger: JobLedger, apart: Apart) -> None:
        self._ledger, self._apart = ledger, apart
        #: By job.
        self._written: dict[str, Progress] = {}

    def changed(self, attempt: Attempt) -> bool:
        """Whether something is to be written."""
        return self._written.get(attempt.job) != _progress(attempt)

    def write(self, attempts: Iterable[Attempt]) -> None:
        """In one transaction, unless one of them cannot be written."""
        changes = [_progress(attempt) for attempt in attempts if self.changed(attempt)]
        try:
            self._ledger.progress(changes)
        except DataError:
            for progress in changes:
                with self._apart.of(progress.job):
                    self._ledger.progress([progress])
        self._written |= {progress.job: progress for progress in changes}

    def close(self, attempt: Attempt) -> None:
        """Write the last of an attempt that is over."""
        if self.changed(attempt):
            self._ledger.progress([_progress(attempt)])
        self._written.pop(attempt.job, None)


def _progress(attempt: Attempt) -> Progress:
    return Progress(
        job=attempt.job,
        attempt=attempt.attempt,
        iterations=attempt.iterations,
        began_with=attempt.began_with,
        checkpoint=attempt.checkpoint,
        home=attempt.home,
        lost_s=attempt.lost_s,
    )
