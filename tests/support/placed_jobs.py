"""Jobs that are on GPU instances without a job scheduler."""

from collections.abc import Sequence
from typing import Any

from smore.domain.job import Action, JobRequest
from smore.postgres.catalog import Store
from smore.postgres.jobs import Job, JobChange


def placed(store: Store, name: str, gpus: Sequence[str], *, running: bool = False, **asked: Any) -> Job:
    """A job of ``default`` that was started on these GPU instances; ``asked``: other fields of its request."""
    request = JobRequest(argv=["zoo.train"], gpus=gpus, **asked)
    job = store.jobs.submit("default", name, request)
    started = store.jobs.move(job.id, Action.START, JobChange(gpus=gpus))
    if running:
        started = store.jobs.move(job.id, Action.RUN)
    assert started is not None
    return started
