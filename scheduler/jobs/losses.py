"""Metrics of what functions cost the trainings that run, and of what they may cost them."""

from collections import defaultdict
from collections.abc import Iterable

from smore.domain.job import JobState
from smore.messages.reports import JobReport, Report
from smore.postgres.jobs import Job
from smore.process import observability as metrics


def show(rows: Iterable[Job], reports: Iterable[Report]) -> None:
    """Set the gauges; ``rows``: trainings that are not over. One that does not run has no series."""
    reported: dict[tuple[str, int], list[JobReport]] = defaultdict(list)
    for report in reports:
        for job in report.jobs:
            reported[job.id, job.attempt].append(job)
    for gauge in (metrics.JOB_BUDGET, metrics.JOB_LOSS, metrics.JOB_LOSS_LOW, metrics.JOB_LOSS_HIGH):
        gauge.clear()
    for row in rows:
        if row.state is not JobState.RUNNING:
            continue
        metrics.JOB_BUDGET.labels(row.name, row.project).set(row.request.budget)
        bounds = [
            (rank.loss_high, rank.loss, rank.loss_low)
            for rank in reported[row.id, row.attempt]
            if rank.loss is not None and rank.loss_low is not None and rank.loss_high is not None
        ]
        # A training is as fast as its slowest rank: while the loss of one is unknown, that of the training is.
        if bounds and len(bounds) == len(row.gpus):
            high, loss, low = max(bounds)
            metrics.JOB_LOSS.labels(row.name, row.project).set(loss)
            metrics.JOB_LOSS_LOW.labels(row.name, row.project).set(low)
            metrics.JOB_LOSS_HIGH.labels(row.name, row.project).set(high)
