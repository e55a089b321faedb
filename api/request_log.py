"""
The log of requests that were refused or failed, and of invocations that succeeded late: one line for each, under the
``request_id`` that its answer names.

A caller who is refused may ask again thousands of times a second. So each code has at most :data:`LINES_PER_S` lines a
second in each gateway: the next line of that code says in ``left_out`` how many were left out, and
``smore_refusals_total`` counts all of them.
"""

import re
import time
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Scope

from api.errors import Ended, explain
from smore.domain.errors import CallerError, PlatformError, SmoreError, Unavailable
from smore.domain.invocation import State
from smore.domain.quote import cut
from smore.process.observability import logger
from smore.redis.records import Reply

log = logger("api")

#: Lines of one code in a second.
LINES_PER_S: Final = 20
#: Characters of a detail in a line, and of a path that is no route's.
_MOST_DETAIL: Final = 1024
_MOST_PATH: Final = 256
#: What a function may be called; whatever else stands in a path is not repeated.
_NAME: Final = re.compile(r"[a-z0-9-]{1,63}")
#: Endings whose message is the platform's own. That of others is the function's, which may quote its input.
_OWN: Final = (State.EXPIRED, State.REJECTED, State.CANCELLED)


@dataclass(slots=True)
class _OfCode:
    second: int = -1
    lines: int = 0
    left_out: int = 0


class LineBudget:
    """Which lines are written. ``clock``: seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._codes: dict[str, _OfCode] = {}

    def take(self, code: str) -> int | None:
        """How many lines of this code were left out since its last one; None = this one is left out as well."""
        of_code, second = self._codes.setdefault(code, _OfCode()), int(self._clock())
        if of_code.second != second:
            of_code.second, of_code.lines = second, 0
        if of_code.lines >= LINES_PER_S:
            of_code.left_out += 1
            return None
        of_code.lines += 1
        left_out, of_code.left_out = of_code.left_out, 0
        return left_out


_budget = LineBudget()


def answered(scope: Scope, error: Exception | CancelledError, budget: LineBudget = _budget) -> Response:
    """The answer to a request that ended with ``error``, which gets its line in the log."""
    answer = explain(error, scope["request_id"])
    record(scope, error, answer, budget)
    return answer


def record(scope: Scope, error: Exception | CancelledError, answer: Response, budget: LineBudget = _budget) -> None:
    """Write the line of a request that ended with ``error`` and is answered with ``answer``."""
    left_out = budget.take(_kind(error))
    if left_out is None:
        return
    body: dict[str, Any] = orjson.loads(answer.body)
    method, more = _severity(error, answer.status_code)
    failed = answer.status_code >= 500 and not isinstance(error, CallerError)
    event = "request failed" if failed or isinstance(error, Ended) else "request refused"
    facts: dict[str, object] = {
        "request_id": body["request_id"],
        **_asked(scope),
        "status": answer.status_code,
        "code": body["code"],
        **{name: body[name] for name in ("cause", "id", "field") if body.get(name)},
        **more,
    }
    if not isinstance(error, Ended) or body.get("state") in _OWN:
        facts["detail"] = cut(str(body["detail"]).partition("\n")[0], _MOST_DETAIL)
    if left_out:
        facts["left_out"] = left_out
    getattr(log, method)(event, **facts)


def _kind(error: Exception | CancelledError) -> str:
    """What shares a number of lines: the code of an error of ours, else its class."""
    if isinstance(error, Ended):
        return str(error.details["code"])
    return error.code if isinstance(error, SmoreError) else type(error).__name__


def inputs_refused(
    *, request_id: str, project: str, key_id: str, function: str, codes: Counter[str], budget: LineBudget = _budget
) -> None:
    """Write the line of a request of which some inputs were refused or failed. ``codes``: how many, by code."""
    left_out = budget.take("inputs") if codes else None
    if left_out is None:
        return
    more = {"left_out": left_out} if left_out else {}
    facts = {"request_id": request_id, "project": project, "key_id": key_id, "function": function}
    log.info("inputs refused or failed", **facts, codes=dict(codes), **more)


def ended_late(*, request_id: str, project: str, key_id: str, function: str, reply: Reply) -> None:
    """Write the line of an invocation that succeeded after its deadline."""
    left_out = _budget.take("late")
    if left_out is None:
        return
    more = {"left_out": left_out} if left_out else {}
    facts = {"request_id": request_id, "project": project, "key_id": key_id, "function": function, "id": reply.id}
    ran = {"gpu": reply.gpu, "attempt": reply.attempt, "late_ms": reply.late_us / 1000}
    log.info("ended late", **facts, **ran, **more)


def _asked(scope: Scope) -> dict[str, object]:
    """Who asked what, as far as that is known."""
    route, caller = scope.get("route"), scope.get("caller")
    path = str(getattr(route, "path", "")) or cut(scope["path"].encode("unicode_escape").decode(), _MOST_PATH)
    parameters = scope.get("path_params") or {}
    name = str(parameters.get("function") or parameters.get("model") or "")
    asked: dict[str, object] = {"request": f"{scope['method']} {path}"}
    if caller is not None:
        asked |= {"project": caller.project, "key_id": caller.id}
    if _NAME.fullmatch(name):
        asked["function"] = name
    return asked


def _severity(error: Exception | CancelledError, status: int) -> tuple[str, dict[str, object]]:
    """The logger's method, and what the caller is not shown."""
    match error:
        case Unavailable():
            # It says all there is: a leader or a server is away, and will be back.
            return "warning", {"reason": str(error)}
        case PlatformError():
            return "error", {"exc_info": error}
        case CallerError() | RequestValidationError() | HTTPException() | ClientDisconnect() | CancelledError():
            return ("info" if status < 500 else "warning"), {}
        case _ if status == 500:
            return "error", {"exc_info": error}
        case _:
            # Redis, Postgres or the disk: is away, is full, or cannot hold a value.
            return "warning", {"reason": str(error).partition("\n")[0]}
