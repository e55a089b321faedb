"""Promised ends of trainings: what is asked for, and what is answered where it is refused."""

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NoReturn

from api.dates import moment
from api.deps import Gateway
from api.errors import TRAININGS_S, WHERE_LIMITS
from api.schemas.jobs import JobBody, SecretOf
from api.trainings.names import saying
from smore.domain.errors import Conflict, InvalidInput, InvalidSpec, LimitReached, SloInfeasible, Unavailable
from smore.domain.function import duration_s
from smore.domain.job import EARLIEST, JobState, PromiseState
from smore.domain.quote import quoted
from smore.redis.catalog import KeyEntry
from smore.redis.job_queue import JobQueue

if TYPE_CHECKING:
    from smore.postgres.jobs import Job

#: What of a body is told to be the field that is wrong, by why nothing is promised (the rule's ``Unpromised``).
_FIELDS: Final = {"unknown": "duration"}


def asked_by(body: JobBody, longest_s: float) -> float | None:
    """``JobRequest.by`` of a body. Raises InvalidInput."""
    by, now = body.by, time.time()
    if by is None or by == "earliest":
        return None if by is None else EARLIEST
    try:
        at = now + duration_s(by, "by")
    except InvalidSpec:
        at = _moment(str(by))
    if not now < at <= now + longest_s:
        raise InvalidInput.at("by", f"{quoted(by)} is not ahead, or too far")
    return at


def _moment(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise InvalidInput.at(
            "by",
            f"{quoted(text)} is none of a date and time with its zone (2026-11-24T18:00:00+01:00), a duration from now"
            " (18h), or earliest",
        )
    return at.timestamp()


def refuse_unpromised(
    gateway: Gateway, caller: KeyEntry, earliest_at: float | None, why: str, message: str
) -> NoReturn:
    """
    Of a job that is refused without a promise: raises SloInfeasible, LimitReached or InvalidInput, with the ``earliest``
    end that would be promised where there is one; ``why``: the rule's ``Unpromised``.
    """
    earliest = moment(math.ceil(earliest_at)).isoformat() if earliest_at is not None else None
    ahead = f" The earliest end that would be promised is {earliest}." if earliest is not None else ""
    message = f"{saying(gateway, caller, [message])(message)}{ahead}"
    field = _FIELDS.get(why, "by")
    details = {"field": field} | ({"earliest": earliest} if earliest is not None else {})
    match why:
        case "others":
            raise SloInfeasible(message, **details)
        case "limit":
            raise LimitReached(f"{message} {WHERE_LIMITS}", field=field, retry_after_s=TRAININGS_S)
        case _:
            raise InvalidInput(f"{field}: {message}", **details)


def check_breaks(
    gateway: Gateway, caller: KeyEntry, closed: Sequence[str] = (), project: str = "", most: int | None = None
) -> None:
    """
    Raises Conflict with the jobs (``breaks``) whose promises would not hold any more if these GPU instances took no trainings, or the
    project might have no more of them. Where nobody leads that is not known.
    """
    doors = JobQueue(gateway.client(), gateway.settings.redis.prefix)
    queue = doors.queue()
    if queue is None or all(job.promised is None for job in queue.jobs):
        return
    with contextlib.suppress(Unavailable):
        breaks = doors.breaks(closed, project, most)
        if breaks:
            raise _broken(gateway, caller, breaks)


def check_hold(gateway: Gateway, caller: KeyEntry, job: "Job") -> None:
    """Raises Conflict where a job that waits is promised an end: nothing is kept for it while it is held."""
    promise = gateway.store().jobs.promises([job.id]).get(job.id)
    if job.state is JobState.QUEUED and promise is not None and promise.outcome is PromiseState.KEPT_SO_FAR:
        raise _broken(gateway, caller, [job.id])


def _broken(gateway: Gateway, caller: KeyEntry, jobs: Sequence[str]) -> Conflict:
    ids = ", ".join(jobs)
    whose = saying(gateway, caller, [ids])(ids)
    return Conflict(
        f"It would break the promised ends of {whose}. Say anyway=true (--anyway) if that is meant.", breaks=list(jobs)
    )


def body_digest(body: JobBody) -> str:
    """Of what two requests with one Idempotency-Key must have in common: all but the values of plain variables."""
    said = body.model_dump(mode="json")
    said["env"] = {name: said["env"][name] if isinstance(of, SecretOf) else None for name, of in body.env.items()}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
