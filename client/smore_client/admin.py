"""
What administrators ask of the platform, for both clients.

>>> from smore_client import admin
>>> client.carry(admin.boost("echo", 4, for_s=600))

``project``: another project's function, for administrators of the project ``default``; None = the key's own project.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from smore_client.gpu_requests import allow as allow
from smore_client.gpu_requests import drain_gpu as drain_gpu
from smore_client.gpu_requests import forget_gpu as forget_gpu
from smore_client.logs import events
from smore_client.transport import Flow, Item, Stream, exchange, fetch, request
from smore_client.types import (
    Attached,
    AuditEntry,
    AuditPage,
    Caller,
    Job,
    LiveChange,
    LoginCode,
    Project,
    Purged,
    Queue,
    Queues,
    Trace,
    Traces,
)

#: Seconds that an import may take: the platform needs some to read the largest file.
IMPORT_S: Final = 120.0


# ---- traces ----------------------------------------------------------------------------------------------------------


def import_trace(
    content: bytes,
    *,
    name: str = "trace.csv",
    give: Sequence[str] = (),
    deal: Sequence[str] = (),
    end: datetime | None = None,
) -> Flow[Trace]:
    """
    Add recorded arrivals to the past of functions: a CSV file per minute or per arrival, gzip or not.

    ``give``: ``NAME=FUNCTION`` for names in the file; ``deal``: functions that get what is busiest; ``end``: when the
    last minute of the file ends.

    >>> client.carry(admin.import_trace(Path("day.csv.gz").read_bytes(), deal=["echo"])).functions[0].arrivals
    86400
    """
    query = {"name": name, "map": list(give), "deal": list(deal), "end": end}
    headers = {"Content-Type": "application/gzip" if content[:2] == b"\x1f\x8b" else "text/csv"}
    call = request("POST", "traces", body=content, query=query, headers=headers, timeout_s=IMPORT_S)
    return (yield from fetch(Trace, call))


def traces() -> Flow[list[Trace]]:
    """
    The imported traces, the newest first.

    >>> [trace.name for trace in client.carry(admin.traces())]
    ['day.csv.gz']
    """
    return (yield from fetch(Traces, request("GET", "traces"))).traces


def remove_trace(id_: int) -> Flow[None]:
    """
    Remove an imported trace; forecasters are fitted without it.

    >>> client.carry(admin.remove_trace(1))
    """
    yield from exchange(request("DELETE", "traces", str(id_)))


# ---- queues ----------------------------------------------------------------------------------------------------------


def drain(function: str | None, *, project: str | None = None) -> Flow[None]:
    """
    Accept nothing new for a function, or for any (None); what waits is served.

    >>> client.carry(admin.drain("echo"))
    """
    yield from exchange(request("POST", *_queue(function), "drain", body={}, query={"project": project}))


def queues(*, project: str | None = None) -> Flow[list[Queue]]:
    """
    What waits, by function, of any project.

    >>> [queue.depth for queue in client.carry(admin.queues(project="night"))]
    [12]
    """
    return (yield from fetch(Queues, request("GET", "queues", query={"project": project}))).queues


def pause_all(*, anyway: bool = False) -> Flow[None]:
    """
    Stop dispatching everything, in all projects; :func:`resume` of None ends it. ``anyway`` as of :func:`set_limits`.

    >>> client.carry(admin.pause_all())
    """
    yield from exchange(request("POST", "queues", "pause", body={}, query={"anyway": anyway}))


def resume(function: str | None, *, project: str | None = None) -> Flow[None]:
    """
    End a drain and a pause.

    >>> client.carry(admin.resume("echo"))
    """
    yield from exchange(request("POST", *_queue(function), "resume", body={}, query={"project": project}))


def _queue(function: str | None) -> tuple[str, ...]:
    return ("queues",) if function is None else ("queues", function)


def purge(function: str, *, project: str | None = None) -> Flow[int]:
    """
    Cancel all that waits for a function; return how many invocations that were.

    >>> client.carry(admin.purge("echo"))
    12
    """
    call = request("POST", "queues", function, "purge", body={}, query={"project": project})
    return (yield from fetch(Purged, call)).cancelled


def boost(function: str, factor: float | None, *, for_s: float | None = None, project: str | None = None) -> Flow[None]:
    """
    Multiply a function's priority, for ``for_s`` seconds or until it is ended (None); ``factor`` None ends it.

    >>> client.carry(admin.boost("echo", 4, for_s=600))
    """
    query = {"project": project}
    if factor is None:
        yield from exchange(request("DELETE", "queues", function, "boost", query=query))
    else:
        body = {"factor": factor, "for_s": for_s}
        yield from exchange(request("PUT", "queues", function, "boost", body=body, query=query))


def pin(function: str, gpus: Sequence[str], *, for_s: float | None = None, project: str | None = None) -> Flow[None]:
    """
    Place a function on these GPU instances only, for ``for_s`` seconds or until it is ended (None); no ``gpus`` ends
    it.

    >>> client.carry(admin.pin("echo", ["cpu0"]))
    """
    query = {"project": project}
    if gpus:
        body = {"gpus": list(gpus), "for_s": for_s}
        yield from exchange(request("PUT", "queues", function, "pin", body=body, query=query))
    else:
        yield from exchange(request("DELETE", "queues", function, "pin", query=query))


# ---- who calls -------------------------------------------------------------------------------------------------------


def me() -> Flow[Caller]:
    """
    The key that is used, and what it may do.

    >>> client.carry(admin.me()).scopes
    ['invoke', 'read']
    """
    return (yield from fetch(Caller, request("GET", "me")))


def login_code() -> Flow[LoginCode]:
    """
    A code with which one browser logs in to the dashboard as this key, within a minute: ``/ui/login#CODE``.

    >>> client.carry(admin.login_code()).expires_at
    datetime.datetime(2026, 1, 31, 12, 1, tzinfo=datetime.timezone.utc)
    """
    return (yield from fetch(LoginCode, request("POST", "session:code", body={})))


# ---- jobs, projects, the audit log -----------------------------------------------------------------------------------


def set_budget(job: str, budget: float) -> Flow[Job]:
    """
    Change what a job may lose to functions at most, a fraction of its iteration time.

    >>> client.carry(admin.set_budget("j-0193d7", 0.05)).budget
    0.05
    """
    return (yield from fetch(Job, request("PUT", "jobs", job, "slo", body={"budget": budget})))


def move_job_first(job: str, *, project: str | None = None) -> Flow[Job]:
    """
    Put a job that waits before all others.

    >>> client.carry(admin.move_job_first("night")).expected
    """
    call = request("POST", "jobs", job, "move", body={"first": True}, query={"project": project})
    return (yield from fetch(Job, call))


def change_job(job: str, action: str, *, project: str | None = None, anyway: bool = False) -> Flow[Job]:
    """
    ``stop``, ``hold``, ``release``, ``restart`` or ``allow`` a job of any project. ``anyway``: hold it even where its end is
    promised.

    >>> client.carry(admin.change_job("night", "hold", project="vision")).state
    'held'
    """
    query = {"project": project, "anyway": anyway}
    return (yield from fetch(Job, request("POST", "jobs", job, action, body={}, query=query)))


def watch(topics: Sequence[str], *, all_projects: bool = False) -> Stream[LiveChange]:
    """
    What changes, every second, of ``gpus``, ``queues``, ``trainings`` and ``problems``: each topic whole at first.

    >>> next(client.stream(admin.watch(["queues"]))).rows
    [{'function': 'echo', 'project': 'default', 'depth': 0, ...}]
    """

    def read(event: str, data: str) -> tuple[str, LiveChange]:
        return "", msgspec.structs.replace(msgspec.json.decode(data, type=LiveChange), whole=event == "snapshot")

    query = {"topics": ",".join(topics), "all_projects": all_projects}
    yield from events(("live",), query, read)


def attach(name: str, pid: int, *, gpu: str | None = None, workload: str | None = None) -> Flow[Attached]:
    """
    Watch a training that runs already on the machine of a GPU instance; its code does nothing for it.

    >>> client.carry(admin.attach("llm", 4711)).gpu
    'gpu0'
    """
    body = {"name": name, "pid": pid, "gpu": gpu, "workload": workload}
    return (yield from fetch(Attached, request("POST", "jobs", "attach", body=body)))


def set_limits(project: str, limits: Mapping[str, float | None], *, anyway: bool = False) -> Flow[Project]:
    """
    Set limits of a project, named as in ``Limits``; None takes one away, the others stay. ``anyway``: even where trainings lose the
    ends that they were promised, which else raises ApiError.

    >>> client.carry(admin.set_limits("vision", {"depth": 100, "gpus": None})).limits.depth
    100
    """
    call = request("PATCH", "projects", project, "limits", body=dict(limits), query={"anyway": anyway})
    return (yield from fetch(Project, call))


def audit(wanted: Mapping[str, str | None], *, limit: int = 100, cursor: int | None = None) -> Flow[AuditPage]:
    """
    Who changed what, the newest first. ``wanted``: project, key, route (a part of it), target, since, until (RFC 3339).

    >>> [entry.route for entry in client.carry(admin.audit({"target": "function/echo"})).entries]
    ['PUT /v1/functions/{function}/slo']
    """
    return (yield from fetch(AuditPage, request("GET", "audit", query={**wanted, "limit": limit, "cursor": cursor})))


def each_audit_entry(wanted: Mapping[str, str | None]) -> Stream[AuditEntry]:
    """
    All that :func:`audit` finds, page by page.

    >>> sum(entry.target == "function/echo" for entry in client.stream(admin.each_audit_entry({})))
    3
    """
    cursor: int | None = None
    while True:
        page = yield from audit(wanted, cursor=cursor)
        for entry in page.entries:
            yield Item(entry)
        if page.next_cursor is None:
            return
        cursor = page.next_cursor
