"""What is said of trainings that are over: a counter, and a line in the log."""

from typing import Final

from smore.domain.job import JobState, Outcome, ended_in_words, outcome_of
from smore.postgres.jobs import Job
from smore.process import observability as metrics

log = metrics.logger(__name__)

#: Values of the label ``outcome``: of one whose GPU instance was lost nobody knows how it ended.
LOST: Final = "lost"
_OUTCOMES: Final = (*(outcome.value for outcome in Outcome), LOST)
#: What somebody should know of.
_BAD: Final = frozenset({Outcome.FAILED.value, Outcome.KILLED.value, Outcome.REFUSED.value, LOST})


def begin(project: str) -> None:
    """Let the counters of a project begin at 0: what first appears as 1 is no increase, and no alert sees it."""
    for outcome in _OUTCOMES:
        metrics.JOBS_ENDED.labels(outcome, project)


def tell(
    job: Job, state: JobState, exit_code: int | None, *, asked: bool = False, reason: str = "", why: str = ""
) -> None:
    """
    Count the end of a training and log it. ``state``: ended or lost; ``asked``: its owner stopped it; ``reason``: why
    the platform refused it; ``why`` it is not started again.
    """
    outcome = outcome_of(state, exit_code, asked=asked, reason=reason)
    label = LOST if state is JobState.LOST or outcome is None else outcome.value
    metrics.JOBS_ENDED.labels(label, job.project).inc()
    say = log.warning if label in _BAD else log.info
    ended = ended_in_words(label, exit_code, reason)
    say("training over", job=job.id, name=job.name, project=job.project, outcome=label, ended=ended, why=why)
