"""
What administrators ask of the platform: flows for both clients, ``client.carry(admin.boost("echo", 4, for_s=600))``.

``project``: another project's function, for administrators of the project ``default``; None = that of the key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from smore.client.transport import Answer, Call, Flow, exchange, path_of, read_answer, request_json
from smore.client.types import Job, Project
from smore.domain.limits import Limits

#: Reading the largest file takes some seconds.
IMPORT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change; ``before`` and ``after`` are the part that changed, None = it was not there."""

    id: int
    at: datetime
    project: str
    key_id: str
    route: str
    target: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """The newest first; ``next_cursor`` asks for the next page, None = the last one."""

    entries: list[AuditEntry]
    next_cursor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Purged:
    cancelled: int


def _send(method: str, body: object, *parts: str, **query: str | None) -> Flow[Answer]:
    asked = tuple((name, value) for name, value in query.items() if value is not None)
    call = Call(method=method, path=path_of(*parts)) if body is None else request_json(method, path_of(*parts), body)
    return (yield from exchange(replace(call, query=asked)))


# ---- traces ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFunction:
    """``source``: what the file calls it."""

    function: str
    source: str
    arrivals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Imported arrivals, which count as having come from ``since`` until ``until``; ``digest``: SHA-256 of the file."""

    id: int
    name: str
    digest: str
    created_at: datetime
    since: datetime
    until: datetime
    functions: list[TraceFunction]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traces:
    traces: list[Trace]


def import_trace(
    content: bytes,
    *,
    name: str = "trace.csv",
    give: Sequence[str] = (),
    deal: Sequence[str] = (),
    end: datetime | None = None,
) -> Flow[Trace]:
    """
    Lay arrivals that were recorded elsewhere into the past of functions: a CSV file per minute or per arrival, gzip or
    not.

    ``give``: ``NAME=FUNCTION`` of names in the file; ``deal``: functions that get what is busiest; ``end``: where its
    last minute ends.
    """
    query = [("name", name), *(("map", each) for each in give), *(("deal", each) for each in deal)]
    if end is not None:
        query.append(("end", end.isoformat()))
    headers = {"Content-Type": "application/gzip" if content[:2] == b"\x1f\x8b" else "text/csv"}
    call = Call(
        method="POST", path=path_of("traces"), query=tuple(query), headers=headers, content=content, timeout_s=IMPORT_S
    )
    return read_answer((yield from exchange(call)), Trace)


def traces() -> Flow[list[Trace]]:
    """What was imported, the newest first."""
    return read_answer((yield from _send("GET", None, "traces")), _Traces).traces


def remove_trace(id_: int) -> Flow[None]:
    """Forget what was imported; forecasters are fitted without it."""
    yield from _send("DELETE", None, "traces", str(id_))


# ---- queues ----------------------------------------------------------------------------------------------------------


def drain(function: str | None, *, project: str | None = None) -> Flow[None]:
    """Take nothing new for a function, or for anything (None); what waits is served."""
    yield from _send("POST", {}, *_queue(function), "drain", project=project)


def resume(function: str | None, *, project: str | None = None) -> Flow[None]:
    """End a drain and a pause."""
    yield from _send("POST", {}, *_queue(function), "resume", project=project)


def _queue(function: str | None) -> tuple[str, ...]:
    return ("queues",) if function is None else ("queues", function)


def purge(function: str, *, project: str | None = None) -> Flow[int]:
    """Cancel what waits. How many."""
    return read_answer((yield from _send("POST", {}, "queues", function, "purge", project=project)), _Purged).cancelled


def boost(function: str, factor: float | None, *, for_s: float | None = None, project: str | None = None) -> Flow[None]:
    """Multiply a function's priority, for seconds or until it is taken back (None)."""
    if factor is None:
        yield from _send("DELETE", None, "queues", function, "boost", project=project)
    else:
        yield from _send("PUT", {"factor": factor, "for_s": for_s}, "queues", function, "boost", project=project)


def pin(function: str, gpus: Sequence[str], *, for_s: float | None = None, project: str | None = None) -> Flow[None]:
    """Keep a function to these GPU instances, for seconds or until it is taken back (none named)."""
    if gpus:
        yield from _send("PUT", {"gpus": list(gpus), "for_s": for_s}, "queues", function, "pin", project=project)
    else:
        yield from _send("DELETE", None, "queues", function, "pin", project=project)


# ---- GPU instances ---------------------------------------------------------------------------------------------------


def drain_gpu(gpu: str) -> Flow[None]:
    """Place nothing more there and unload what idles; :class:`smore.client.Gpu` says when it is ``drained``."""
    yield from _send("POST", {}, "gpus", gpu, "drain")


def allow(gpu: str, pid: int, allowed: bool) -> Flow[None]:
    """Let functions run beside a process that nobody registered, or not."""
    yield from _send("POST", {"pid": pid}, "gpus", gpu, "allow" if allowed else "protect")


# ---- jobs, projects, trail -------------------------------------------------------------------------------------------


def set_budget(job: str, budget: float) -> Flow[Job]:
    """Change what a job may lose at most, a fraction."""
    return read_answer((yield from _send("PUT", {"budget": budget}, "jobs", job, "slo")), Job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    id: str
    gpu: str


def attach(name: str, pid: int, *, gpu: str | None = None, workload: str | None = None) -> Flow[Attached]:
    """Watch a training that runs already on the machine of a GPU instance, without its doing anything for it."""
    body = {"name": name, "pid": pid, "gpu": gpu, "workload": workload}
    return read_answer((yield from _send("POST", body, "jobs", "attach")), Attached)


def set_limits(project: str, limits: Limits) -> Flow[Project]:
    """Set all limits of a project."""
    return read_answer((yield from _send("PUT", limits, "projects", project, "limits")), Project)


def audit(wanted: Mapping[str, str | None], *, limit: int = 100, cursor: int | None = None) -> Flow[AuditPage]:
    """``wanted``: project, key, route (a part of it), target, since, until (RFC 3339)."""
    asked = {**wanted, "limit": str(limit), "cursor": None if cursor is None else str(cursor)}
    return read_answer((yield from _send("GET", None, "audit", **asked)), AuditPage)
