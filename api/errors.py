"""
Errors as the caller sees them: RFC 9457 problem documents with a stable ``code``, and the one table from code to HTTP
status.

A :class:`~smore.domain.errors.CallerError` is shown as it is. Of everything else the caller learns the code alone; the
log has the rest, under the same ``request_id`` (api/request_log.py).
"""

import errno
import sys
from asyncio import CancelledError
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final, cast

import orjson
import redis
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from smore.domain.errors import CallerError, InvalidInput, PlatformError, SmoreError, Unavailable, WritesRefused
from smore.domain.invocation import Cause, State
from smore.domain.quote import cut
from smore.domain.value_path import from_loc, written
from smore.redis.outage import refuses

#: When a refused caller may ask again (Retry-After), seconds: where the cause may be gone at any moment; where somebody has to
#: change something; for trainings, which run for hours. What the gate can compute is in api/invoke/admit.py.
SOON_S: Final = 1
CHANGED_S: Final = 5
TRAININGS_S: Final = 60


class Malformed(CallerError):
    """The body cannot be read."""

    code = "malformed"


class UnsupportedMediaType(CallerError):
    """The body has a media type that is not taken here."""

    code = "unsupported_media_type"


class Unsupported(CallerError):
    """A part of the protocol that this platform does not serve."""

    code = "not_supported"


class StillRunning(CallerError):
    """The wait has ended, the invocation goes on."""

    code = "still_running"


class NotReady(CallerError):
    """No revision of this function has passed its first run."""

    code = "not_ready"


class CanaryFailed(CallerError):
    """The first run of the new revision failed; the function stays as it was."""

    code = "canary_failed"


class ResultDropped(CallerError):
    """The result was kept for its time and then dropped."""

    code = "result_dropped"


class LetGo(CallerError):
    """This training is watched no longer: its job was stopped, and its steps are not taken."""

    code = "let_go"


class SessionForbidden(CallerError):
    """A session of a browser may not do this, whatever its scopes: use an API key."""

    code = "session_forbidden"


class Ended(CallerError):
    """
    The invocation ended without a result. ``details`` carry its status, id, state and cause, and ``replayed`` where an
    earlier request with this Idempotency-Key made it.
    """

    code = "ended"


#: Characters of a problem's ``detail`` (which may hold the log of a run that failed) and of its ``traceback``, of its
#: other texts, and items of its lists.
_MOST_DETAIL: Final = 8192
_MOST_MEMBER: Final = 256
#: The member with the frames of a handler's own code.
TRACEBACK: Final = "traceback"
_MOST_ITEMS: Final = 32

#: What a part of the platform that is away keeps from being done, by ``part`` of the answer.
AWAY: Final[Mapping[str, str]] = {
    "redis": "Redis is away: nothing can be called or changed until it is back; try again.",
    "postgres": "Postgres is away: functions can be called; what changes something, and what reads keys, trainings or"
    " the history, is refused until it is back; try again.",
    "leader": "The scheduler's leader does not answer; try again.",
    "job_leader": "The job scheduler does not answer; functions can be called; try again.",
    "gpus": "No GPU instance reports; try again.",
    "gateway": "The gateway ends, or has no connection left; try again.",
}

#: Where whoever has reached a limit reads all of them. Any key of the project with the scope ``read`` may.
WHERE_LIMITS: Final = "GET /v1/projects shows the project's limits and what it uses; operators change them."
#: How pydantic's messages begin that say what is expected.
_SHOULD_BE: Final = "Input should be "

#: code → HTTP status. A code that is not here is 400 for a caller's error, 500 for the platform's.
STATUS: Mapping[str, int] = {
    "bad_request": 400,
    "malformed": 400,
    "not_supported": 400,
    "deadline_expired": 400,
    "unauthorised": 401,
    "forbidden": 403,
    "session_forbidden": 403,
    "not_found": 404,
    "function_not_found": 404,
    "invocation_not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "not_ready": 409,
    "result_dropped": 410,
    "let_go": 410,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "invalid_input": 422,
    "invalid_spec": 422,
    "idempotency_mismatch": 422,
    "canary_failed": 422,
    "invalid_artifact": 422,
    "wrong_digest": 422,
    "blob_not_found": 404,
    "storage_full": 413,
    "queue_full": 429,
    "limit_reached": 429,
    "slo_infeasible": 429,
    "internal": 500,
    "sealed": 500,
    "no_key": 503,
    "draining": 503,
    "quarantined": 503,
    "no_leader": 503,
    "unavailable": 503,
    "writes_refused": 503,
    "still_running": 504,
}

#: Why an invocation failed → HTTP status of a synchronous call.
FAILURE: Mapping[str, int] = {
    # The function's own exception, told to its caller as it is.
    Cause.HANDLER_ERROR: 422,
    Cause.INVALID_INPUT: 422,
    # Of this input; of another it may be smaller.
    Cause.RESULT_TOO_LARGE: 422,
    Cause.FUNCTION_DELETED: 404,
    Cause.BAD_OUTPUT: 502,
    Cause.CRASHED: 502,
    Cause.CONTEXT_LOST: 502,
    Cause.OUT_OF_MEMORY: 502,
    Cause.LOAD_FAILED: 502,
    Cause.ATTEMPT_LIMIT: 502,
    Cause.DISPATCH_LIMIT: 502,
    Cause.QUARANTINED: 503,
    Cause.PAYLOAD_LOST: 503,
    Cause.TIMED_OUT: 504,
}


def outcome(state: str, cause: str) -> tuple[int, str]:
    """(HTTP status, code) of an invocation that ended otherwise than ``succeeded``."""
    match state:
        case State.EXPIRED:
            return 504, "deadline_expired"
        case State.REJECTED:
            return 429, "slo_infeasible"
        case State.CANCELLED:
            return 409, "cancelled"
        case _:
            return FAILURE.get(cause, 502), cause or "failed"


def _short(value: object) -> object:
    if isinstance(value, str):
        return cut(value, _MOST_MEMBER)
    return [_short(item) for item in value[:_MOST_ITEMS]] if isinstance(value, list) else value


def problem(
    *,
    status: int,
    code: str,
    detail: str,
    request_id: str,
    details: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """
    A problem document. ``details`` become members of it.

    It is small whatever came in: of a long text beginning and end are told, of a long list the first items. A
    ``traceback`` was bounded where the handler's error was read.
    """
    body = {
        "type": f"urn:smore:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": cut(detail, _MOST_DETAIL),
        "code": code,
        "request_id": request_id,
        **{name: value if name == TRACEBACK else _short(value) for name, value in (details or {}).items()},
    }
    return Response(
        orjson.dumps(body, default=str),
        status,
        {"X-Request-Id": request_id, **(headers or {})},
        "application/problem+json",
    )


def hybrid(answer: Response) -> Response:
    """
    A problem document as clients of the Open Inference Protocol read it: one more member, ``error``, as plain
    ``application/json``.

    tritonclient shows nothing but ``error``; kserve's client looks for it under exactly that media type.
    """
    body = orjson.loads(answer.body)
    headers = {name: value for name, value in answer.headers.items() if name not in ("content-type", "content-length")}
    return Response(orjson.dumps({"error": body["detail"], **body}), answer.status_code, headers, "application/json")


def explain(error: Exception | CancelledError, request_id: str) -> Response:
    """The answer to a request that ended with ``error``."""
    match error:
        case CancelledError():
            # The gateway ends. What was accepted goes on, and the same Idempotency-Key finds it.
            return _unavailable("gateway", request_id)
        case Ended():
            details = dict(error.details)
            return _of(error, request_id, int(str(details.pop("status"))), str(details.pop("code")), details)
        case CallerError():
            return _of(error, request_id, STATUS.get(error.code, 400), error.code, error.details)
        case RequestValidationError():
            return _invalid(error, request_id)
        case HTTPException():
            return _http(error, request_id)
        case Unavailable():
            return _unavailable(str(error.details.get("part", "")), request_id)
        case PlatformError():
            return _hidden(type(error), request_id)
        case ClientDisconnect():
            return problem(
                status=400, code="bad_request", detail="The connection ended before the body.", request_id=request_id
            )
        case _ if _cannot_store(error):
            return _hidden(WritesRefused, request_id)
        case _ if part := away(error):
            return _unavailable(part, request_id)
        case _ if _is_unstorable(error):
            return _of(
                InvalidInput("A value in it cannot be stored: a NUL, or a number out of range."),
                request_id,
                422,
                "invalid_input",
                {},
            )
        case _:
            return _hidden(PlatformError, request_id)


def _cannot_store(error: Exception) -> bool:
    """
    Whether Redis or the file system refuses writes: full, or for reading alone. A full Postgres raises an
    OperationalError.
    """
    return refuses(error) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))


def away(error: Exception) -> str:
    """Which part (:data:`AWAY`) cannot be reached now, as the error says; "" = it says nothing of the kind."""
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return "redis"
    # No descriptor is left for another connection or file.
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "gateway"
    # A process that has not loaded SQLAlchemy cannot raise its errors, and loading it here would cost every gateway its
    # memory.
    database, driver = sys.modules.get("sqlalchemy.exc"), sys.modules.get("psycopg")
    if database is not None and isinstance(
        error, database.OperationalError | database.InterfaceError | database.TimeoutError
    ):
        return "postgres"
    # The mirror (smore/postgres/mirror.py) speaks to the driver itself.
    if driver is not None and isinstance(error, driver.OperationalError | driver.InterfaceError):
        return "postgres"
    return ""


def _is_unstorable(error: Exception) -> bool:
    """Whether Postgres refused a value as such: its types hold less than JSON and a path do."""
    database = sys.modules.get("sqlalchemy.exc")
    return database is not None and isinstance(error, database.DataError)


def _of(error: CallerError, request_id: str, status: int, code: str, details: Mapping[str, object]) -> Response:
    headers = {}
    # Every 503 has one (api/server/description.py).
    if "retry_after_s" in details or status == 503:
        headers["Retry-After"] = str(details.get("retry_after_s", SOON_S))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 413:
        # The rest of the body is not read.
        headers["Connection"] = "close"
    if details.get("replayed"):
        headers["Idempotency-Replayed"] = "true"
    shown = {key: value for key, value in details.items() if key not in ("retry_after_s", "replayed")}
    return problem(status=status, code=code, detail=str(error), request_id=request_id, details=shown, headers=headers)


def _unavailable(part: str, request_id: str) -> Response:
    """503 with the ``part`` of the platform that is away; "" = it is not one of :data:`AWAY`."""
    if part not in AWAY:
        return _hidden(Unavailable, request_id)
    return _hidden(Unavailable, request_id, AWAY[part], {"part": part})


def _hidden(
    kind: type[SmoreError], request_id: str, detail: str = "", details: Mapping[str, object] | None = None
) -> Response:
    status = STATUS.get(kind.code, 500)
    headers = {"Retry-After": str(SOON_S)} if status == 503 else {}
    said = detail or (kind.__doc__ or "").strip()
    return problem(status=status, code=kind.code, detail=said, request_id=request_id, details=details, headers=headers)


def _invalid(error: RequestValidationError, request_id: str) -> Response:
    errors = error.errors()
    if errors[0]["type"] == "json_invalid":
        return problem(status=400, code=Malformed.code, detail="The body is not JSON.", request_id=request_id)
    paths = [_path(each, error.body) for each in errors]
    # Each alternative of a union has an error of its own. The deepest path is that of the alternative that was meant.
    path = paths[0]
    for other in paths:
        if other[: len(path)] == path:
            path = other
    messages = dict.fromkeys(str(each["msg"]) for each, at in zip(errors, paths, strict=True) if at == path)
    field = written(path) or str(errors[0]["loc"][0])
    detail = f"{field}: {_alternatives(list(messages))}"
    return problem(status=422, code="invalid_input", detail=detail, request_id=request_id, details={"field": field})


def _path(error: Mapping[str, object], body: object) -> list[str | int]:
    """Where the value stands that an error of pydantic is about."""
    # The first element says where (body, query…); the others are the path inside it.
    where, *parts = cast("tuple[str | int, ...]", error["loc"])
    return from_loc(parts, str(error["type"]), body) if where == "body" else parts


def _alternatives(messages: Sequence[str]) -> str:
    """What would do, of all alternatives of a union, in one sentence."""
    first, *others = messages
    return " or ".join([first, *(message.removeprefix(_SHOULD_BE) for message in others)])


def _http(error: HTTPException, request_id: str) -> Response:
    code = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}.get(error.status_code, "bad_request")
    detail = "There is no such path." if error.status_code == 404 else str(error.detail)
    return problem(status=error.status_code, code=code, detail=detail, request_id=request_id, headers=error.headers)
