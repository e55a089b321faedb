"""
One HTTP exchange without I/O: the request, its answer, the errors, and when a request is sent again.

An operation is a :data:`Flow`: a generator that yields a :class:`Call` or a :class:`Pause`, is sent the :class:`Answer`
(or :class:`Broken`), and returns its result. An iteration is a :data:`Stream`: it yields each :class:`Item` as well, and
may read an answer that goes on line by line (:class:`Open`, :class:`ReadLine`).
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from smore_client.tensors import encode_json

#: Seconds that all attempts but the last, and the pauses between them, may take together.
RETRY_S: Final = 5.0
#: Seconds before the first retry; doubled each time.
FIRST_PAUSE_S: Final = 0.05
#: Seconds that an answer may take beyond the wait that was asked for.
MARGIN_S: Final = 15.0
#: Seconds that the platform holds a request that names no wait.
DEFAULT_WAIT_S: Final = 30.0

RAW: Final = "application/octet-stream"


#: What an error's text says under which id it is found, and the member of the problem document that has it.
_IDS: Final = (("request", "request_id"), ("invocation", "id"))


class ClientError(Exception):
    """The platform did not do what it was asked: the base of :class:`ApiError` and :class:`Unreachable`."""


class ApiError(ClientError):
    """
    The platform refused a request, or the invocation failed.

    ``status`` is the HTTP status; ``code`` is stable (``slo_infeasible``, ``function_not_found``); ``detail`` is for
    people; ``body`` is the whole problem document with its other fields (``id``, ``field``, ``earliest_deadline_ms``);
    ``retry_after_s``: seconds after which another attempt may succeed, None = the platform names none; ``traceback``:
    where the handler raised an error, the frames of its own code as Python prints them, else ''. ``request_id`` and ``id``:
    of the request and of the invocation, under which logs have more, '' = there is none; ``replayed``: an earlier request
    with the same ``idempotency_key`` made the invocation. Its text is ``detail`` with the code, the status and the ids.

    >>> try:
    ...     client.invoke("echo", {"x": 1}, deadline_ms=5)
    ... except ApiError as error:
    ...     print(error.code, error.body["earliest_deadline_ms"])
    slo_infeasible 70
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        body: Mapping[str, Any],
        retry_after_s: float | None = None,
        *,
        replayed: bool = False,
    ) -> None:
        ids = [f"{name} {body[key]}" for name, key in _IDS if body.get(key)]
        super().__init__(f"{detail} ({code}, {status}{'; ' if ids else ''}{', '.join(ids)})")
        self.status = status
        self.code = code
        self.detail = detail
        self.body = body
        self.retry_after_s = retry_after_s
        self.traceback = str(body.get("traceback") or "")
        self.request_id = str(body.get("request_id") or "")
        self.id = str(body.get("id") or "")
        self.replayed = replayed


class Unreachable(ClientError):
    """The platform did not answer."""


# ---- the steps of a flow ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``path`` begins with /; ``timeout_s``: seconds without an answer after which it counts as broken."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    timeout_s: float = DEFAULT_WAIT_S + MARGIN_S
    #: Whether it changes nothing, though it is no GET.
    reads: bool = False

    def arguments(self) -> dict[str, Any]:
        """What ``request`` of both httpx clients takes."""
        return {
            "method": self.method,
            "url": self.path,
            "params": self.query,
            "headers": self.headers,
            "content": self.content,
            "timeout": self.timeout_s,
        }

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again: it changes nothing, or has an Idempotency-Key."""
        return self.reads or self.method == "GET" or "Idempotency-Key" in self.headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Wait ``seconds`` before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response. Names in ``headers`` are in lower case; ``elapsed_s``: seconds since the request was sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    elapsed_s: float = 0.0

    @classmethod
    def of(cls, status: int, headers: Iterable[tuple[str, str]], body: bytes, elapsed_s: float) -> Self:
        """The answer with the headers of any case."""
        return cls(
            status=status, headers={name.lower(): value for name, value in headers}, body=body, elapsed_s=elapsed_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """There is no response: the connection failed or timed out."""

    reason: str
    elapsed_s: float = 0.0

    @classmethod
    def of(cls, url: str, error: Exception, elapsed_s: float) -> Self:
        """The transport's error as a sentence that names the platform."""
        return cls(reason=f"{url} cannot be reached: {error or type(error).__name__}", elapsed_s=elapsed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """
    Send a request whose answer goes on. The stream is sent the :class:`Answer`, without a body where it was not
    refused, or :class:`Broken`. A stream has one such answer at a time.
    """

    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLine:
    """The next line of the opened answer. The stream is sent the line, None behind the last one, or Broken."""


T = TypeVar("T")
Flow: TypeAlias = Generator[Call | Pause, Answer | Broken | None, T]


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One result of a stream; the stream is sent None for it."""

    value: T


Stream: TypeAlias = Generator[Call | Pause | Open | ReadLine | Item[T], Answer | Broken | str | None, None]


def parse_timings(header: str) -> dict[str, float]:
    """
    ``queue;dur=1.5, run;dur=20`` to ``{"queue": 1.5, "run": 20.0}``, milliseconds. An entry without a readable ``dur``
    is left out.
    """
    timings = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            try:
                if key.strip().lower() == "dur" and name:
                    timings[name] = float(value.strip().strip('"'))
            except ValueError:
                continue
    return timings


def refusal(answer: Answer) -> ApiError:
    """The error that an answer with a status of 400 or above stands for."""
    try:
        body = msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.DecodeError:
        body = {}
    text = answer.body.decode(errors="replace").strip()[:200]
    detail = str(body.get("detail") or body.get("title") or text or f"HTTP {answer.status}")
    replayed = is_replayed(answer)
    return ApiError(
        answer.status, str(body.get("code") or "error"), detail, body, _retry_after_s(answer), replayed=replayed
    )


def is_replayed(answer: Answer) -> bool:
    """Whether an earlier request with the same Idempotency-Key made the invocation."""
    return answer.headers.get("idempotency-replayed") == "true"


def _retry_after_s(answer: Answer) -> float | None:
    # Seconds only: a date would need the server's clock, and the platform sends none.
    text = answer.headers.get("retry-after", "")
    return float(text) if text.replace(".", "", 1).isdigit() else None


def read_answer(answer: Answer, kind: type[T]) -> T:
    """The JSON body as ``kind``. Raises ApiError (``unreadable_answer``) where it is something else."""
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        raise ApiError(
            answer.status, "unreadable_answer", f"The answer is not what this client knows: {error}", {}
        ) from error


def exchange(call: Call) -> Flow[Answer]:
    """
    Send a request and return its answer; the one rule of retries.

    A broken connection, or a 503 with Retry-After, is tried again where the request is repeatable, for at most
    :data:`RETRY_S` in all. Raises ApiError, Unreachable.
    """
    spent_s, pause_s = 0.0, FIRST_PAUSE_S
    while True:
        outcome = yield call
        error: ClientError
        match outcome:
            case Answer() if outcome.status < 400:
                return outcome
            case Answer():
                error = refused = refusal(outcome)
                # A 503 with a state says how the invocation ended; another attempt would get the same answer.
                transient = outcome.status == 503 and "state" not in refused.body
                again_s = (
                    max(refused.retry_after_s, pause_s) if transient and refused.retry_after_s is not None else None
                )
            case Broken():
                error, again_s = Unreachable(outcome.reason), pause_s
            case None:
                raise TypeError("a call was answered with nothing")
        spent_s += outcome.elapsed_s
        if again_s is None or not call.repeatable or spent_s + again_s > RETRY_S:
            raise error
        yield Pause(seconds=again_s)
        spent_s += again_s
        pause_s *= 2


def _written(value: object) -> str:
    """A value of a query."""
    if isinstance(value, datetime):
        return value.isoformat()
    return "true" if value is True else str(value)


def request(
    method: str,
    *parts: str,
    body: object = None,
    query: Mapping[str, object | None] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_WAIT_S + MARGIN_S,
    reads: bool = False,
) -> Call:
    """
    A request below /v1, of whose path no part can leave its place. ``body`` is sent as JSON, bytes as they are, None = no
    body; a ``query`` value of None or False is left out, and of a list each item is a value.
    """
    asked = tuple(
        (name, _written(each))
        for name, value in (query or {}).items()
        for each in (value if isinstance(value, list) else [value])
        if each is not None and each is not False
    )
    sent = dict(headers or {})
    if body is None or isinstance(body, bytes):
        content = body or b""
    else:
        content, sent = encode_json(body), {"Content-Type": "application/json", **sent}
    path = "/v1/" + "/".join(quote(part, safe=":") for part in parts)
    return Call(method=method, path=path, query=asked, headers=sent, content=content, timeout_s=timeout_s, reads=reads)


def fetch(kind: type[T], call: Call) -> Flow[T]:
    """Send a request and read its answer as ``kind``."""
    return read_answer((yield from exchange(call)), kind)


def headers_of(key: str | None) -> dict[str, str]:
    """The headers of every request."""
    return {"User-Agent": "smore-client"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
