"""How every error is answered."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict


class Problem(BaseModel):
    """
    RFC 9457; ``code`` is stable. The members up to ``request_id`` are always there; of the others an error has those
    that its code gives. Clients must pass over members that they do not know.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    traceback: str = ""
    id: str | None = None
    ids: list[str] | None = None
    state: str | None = None
    cause: str | None = None
    late_ms: float | None = None
    earliest_deadline_ms: int | None = None
    earliest_deadline_at: datetime | None = None
    field: str | None = None
    limit: float | str | None = None
    size: int | None = None
    smallest: float | None = None
    largest: float | None = None
    scope: str | None = None
    part: str | None = None
    differs: list[str] | None = None
    revision: int | None = None
    serving: int | None = None
    missing: list[str] | None = None
    offset: int | None = None
    line: int | None = None
