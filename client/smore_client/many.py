"""Many invocations at once, and lists page by page: steps that operations share, without I/O."""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from smore_client.tensors import encode_json
from smore_client.transport import MARGIN_S, ApiError, Call, Flow, Item, Pause, Stream, fetch, request
from smore_client.types import Invocation, Job, Jobs, State

#: Inputs, and bytes of them, in one request of ``submit_all``; a larger input is sent alone.
INPUTS_PER_SUBMIT: Final = 1000
BYTES_PER_SUBMIT: Final = 4 << 20
#: Invocations that one request of ``as_completed`` waits for, and seconds between two rounds of several requests.
IDS_PER_WAIT: Final = 1000
ROUND_S: Final = 0.2
#: Invocations or jobs of one page of an iteration.
PAGE: Final = 200
#: Seconds of one long poll for the end of an invocation.
POLL_S: Final = 20.0


class InvocationList(msgspec.Struct):
    """Invocations as the API answers them."""

    invocations: list[Invocation]
    next_cursor: str | None = None


def portions(inputs: Iterable[object], most: int) -> Iterator[list[msgspec.Raw]]:
    """The inputs as JSON, at most ``most`` and :data:`BYTES_PER_SUBMIT` together."""
    portion: list[msgspec.Raw] = []
    size = 0
    for value in inputs:
        encoded = encode_json(value)
        if portion and (len(portion) == most or size + len(encoded) > BYTES_PER_SUBMIT):
            yield portion
            portion, size = [], 0
        portion.append(msgspec.Raw(encoded))
        size += len(encoded) + 1
    if portion:
        yield portion


def send_portion(
    function: str, portion: list[msgspec.Raw], deadline_ms: float | None, headers: Mapping[str, str]
) -> Flow[list[Invocation]]:
    """Several inputs in one request. Where the platform refuses all of them each one's invocation says so."""
    body: dict[str, object] = {"inputs": portion}
    if deadline_ms is not None:
        body["deadline_ms"] = deadline_ms
    sent = {"Idempotency-Key": uuid.uuid4().hex, **headers}
    try:
        page = yield from fetch(
            InvocationList, request("POST", "functions", function, "invocations", body=body, headers=sent)
        )
    except ApiError as error:
        if error.status != 429:
            raise
        refused = Invocation(
            id="",
            function=function,
            state=State.REJECTED,
            cause=error.code,
            detail=error.detail,
            earliest_deadline_ms=error.body.get("earliest_deadline_ms"),
        )
        return [refused] * len(portion)
    return [with_function(invocation, function) for invocation in page.invocations]


def class_header(work_class: str | None) -> dict[str, str]:
    """The header that names the class of a call; none = as its function is."""
    return {} if work_class is None else {"Smore-Class": work_class}


def with_function(invocation: Invocation, function: str) -> Invocation:
    """The invocation with its function's name, which an older platform leaves out."""
    return invocation if invocation.function else msgspec.structs.replace(invocation, function=function)


def completed(submitted: Iterable[str | Invocation]) -> Stream[Invocation]:
    """
    The invocations, by id or as ``submit_all`` returned them: first those that were refused, then each other one once it
    has ended. Raises ValueError for an id ''.
    """
    refused: list[Invocation] = []
    left: dict[str, None] = {}
    for each in submitted:
        id_ = each if isinstance(each, str) else each.id
        if id_:
            left[id_] = None
        elif isinstance(each, Invocation) and each.done:
            refused.append(each)
        else:
            raise ValueError(
                "as_completed: an id is empty. An input that was refused has none:"
                " pass what submit_all returned in place of the ids"
            )
    for invocation in refused:
        yield Item(invocation)
    while left:
        waiting = list(left)
        rounds = range(0, len(waiting), IDS_PER_WAIT)
        ended = 0
        for start in rounds:
            wait_s = POLL_S if len(rounds) == 1 else 0.0
            body = {"ids": waiting[start : start + IDS_PER_WAIT], "wait_s": wait_s}
            call = request("POST", "invocations:wait", body=body, timeout_s=wait_s + MARGIN_S, reads=True)
            for invocation in (yield from fetch(InvocationList, call)).invocations:
                left.pop(invocation.id, None)
                ended += 1
                yield Item(invocation)
        if not ended and len(rounds) > 1:
            yield Pause(seconds=ROUND_S)


def each_invocation(function: str | None, state: str | None, all_projects: bool) -> Stream[Invocation]:
    """All invocations, the newest first; None = of any function, in any state."""
    query: dict[str, object] = {"function": function, "state": state, "limit": PAGE, "all_projects": all_projects}
    while True:
        page = yield from fetch(InvocationList, request("GET", "invocations", query=query))
        for invocation in page.invocations:
            yield Item(invocation)
        if page.next_cursor is None:
            return
        query["cursor"] = page.next_cursor


def each_job(states: Iterable[str] | None, project: str | None, all_projects: bool) -> Stream[Job]:
    """All training jobs, the newest first; None = in any state, of the key's project."""
    cursor: str | None = None
    while True:
        page = yield from fetch(Jobs, listed_jobs(states, project, all_projects, limit=PAGE, cursor=cursor))
        for job in page.jobs:
            yield Item(job)
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


def listed_jobs(
    states: Iterable[str] | None, project: str | None, all_projects: bool, **paged: int | str | None
) -> Call:
    """The request for a page of training jobs."""
    query = {"project": project, "all_projects": all_projects, **paged, "state": list(states or ())}
    return request("GET", "jobs", query=query)
