"""How every error is answered."""

from datetime import datetime

from pydantic import ConfigDict

from api.schemas.fields import Schema


class Problem(Schema):
    """
    RFC 9457. The members up to ``request_id`` are always there; of the others an error has those that its code gives.
    Clients must pass over members that they do not know.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    """A URN of the code: ``urn:smore:problem:CODE``"""
    title: str
    """The HTTP status in words"""
    status: int
    """The HTTP status of the answer"""
    detail: str
    """What went wrong, in words"""
    code: str
    """What went wrong, as a stable code"""
    request_id: str
    """The ``X-Request-Id`` of the request, by which the gateway's log has it"""
    traceback: str = ""
    """Where a handler raised an error: the frames of its own code, as Python prints them"""
    id: str | None = None
    """The invocation that it is about; of ``idempotency_mismatch`` that of the first request with the key"""
    ids: list[str] | None = None
    """Of ``conflict``: the trainings that have the name"""
    state: str | None = None
    """The state of what it is about: how the invocation ended, or where it stands"""
    cause: str | None = None
    """The code of why the invocation, or the first run of a revision, ended as it did"""
    late_ms: float | None = None
    """Milliseconds after its deadline at which the invocation ended"""
    earliest_deadline_ms: int | None = None
    """
    Of ``slo_infeasible`` and ``deadline_expired``: the earliest deadline that would be accepted now, milliseconds from
    arrival, as long as nothing more comes before it; absent where it is not known, and where it is no longer than the
    deadline that was just missed
    """
    earliest_deadline_at: datetime | None = None
    """``earliest_deadline_ms`` as an instant"""
    earliest: datetime | None = None
    """Of a training whose end is not promised: the first moment that would be"""
    breaks: list[str] | None = None
    """Of ``conflict``: ids of the trainings whose promised ends would not be kept"""
    field: str | None = None
    """The place in the request, as a path (``inputs[2].x``), or the limit of the project that is reached"""
    limit: float | str | None = None
    """The bound that was passed: its value, of ``queue_full`` its name"""
    size: int | None = None
    """
    Of ``payload_too_large``: how much came or was announced, in the unit of ``limit``; absent where it is not known
    """
    smallest: float | None = None
    """The smallest value that ``field`` may have"""
    largest: float | None = None
    """The largest value that ``field`` may have"""
    scope: str | None = None
    """Of ``forbidden``: the scope that the key lacks"""
    part: str | None = None
    """
    Of ``unavailable``: the part of the platform that is away: ``redis``, ``postgres``, ``leader``, ``job_leader``,
    ``gpus`` or ``gateway``
    """
    differs: list[str] | None = None
    """Of ``idempotency_mismatch``: the parts of the request that differ from those of the first one"""
    revision: int | None = None
    """Of ``canary_failed``: the revision whose first run failed"""
    serving: int | None = None
    """Of a deploy whose first run failed: the revision that takes the traffic still; 0 = none"""
    missing: list[str] | None = None
    """Of ``invalid_spec``: digests of the blobs that were not uploaded"""
    offset: int | None = None
    """Of ``conflict``: how many bytes of the blob have arrived"""
    line: int | None = None
    """Of an imported trace: the line of the file; 0 = the whole file"""
