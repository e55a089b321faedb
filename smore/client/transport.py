"""A call to the gateway and what becomes of it, without I/O: requests, answers, errors, and when to try again."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from smore.client.tensors import encode_json

#: Seconds that the tries before the last one, and the pauses between them, may take together.
RETRY_S: Final = 5.0
#: Seconds before the first retry; doubled each time.
FIRST_PAUSE_S: Final = 0.05
#: Seconds that an answer may take beyond what was asked to be waited.
MARGIN_S: Final = 15.0
#: How long the platform holds a call that names no wait of its own.
DEFAULT_WAIT_S: Final = 30.0

RAW: Final = "application/octet-stream"


class ClientError(Exception):
    """The platform did not do what was asked."""


class ApiError(ClientError):
    """
    The platform refused a request, or the invocation failed.

    ``code`` is stable (``slo_infeasible``, ``function_not_found``…); ``body`` is the whole problem document with what
    else is known (``id``, ``field``, ``earliest_deadline_ms``…); ``retry_after_s`` when a later try may succeed.
    """

    def __init__(
        self, status: int, code: str, detail: str, body: Mapping[str, Any], retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{detail} ({code}, {status})")
        self.status = status
        self.code = code
        self.detail = detail
        self.body = body
        self.retry_after_s = retry_after_s


class Unreachable(ClientError):
    """No answer came from the platform."""


# ---- what is sent, and what becomes of it ----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``timeout_s``: without an answer for this long it counts as broken."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    timeout_s: float = DEFAULT_WAIT_S + MARGIN_S

    @property
    def repeatable(self) -> bool:
        """Whether sending it again cannot do anything twice."""
        return self.method == "GET" or "Idempotency-Key" in self.headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Wait this long before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back; names of ``headers`` in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Nothing came back."""

    reason: str
    elapsed_s: float = 0.0


T = TypeVar("T")
Flow: TypeAlias = Generator[Call | Pause, Answer | Broken | None, T]


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
    return ApiError(answer.status, str(body.get("code") or "error"), detail, body, _retry_after_s(answer))


def _retry_after_s(answer: Answer) -> float | None:
    # Seconds only: a date would need the server's clock, and the platform sends none.
    text = answer.headers.get("retry-after", "")
    return float(text) if text.replace(".", "", 1).isdigit() else None


def read_answer(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        raise ApiError(
            answer.status, "unreadable_answer", f"The answer is not what this client knows: {error}", {}
        ) from error


def exchange(call: Call) -> Flow[Answer]:
    """Send a call until it is answered or may not be tried again. Raises ApiError, Unreachable."""
    spent_s, pause_s = 0.0, FIRST_PAUSE_S
    while True:
        got = yield call
        error: ClientError
        match got:
            case Answer() if got.status < 400:
                return got
            case Answer():
                error = refused = refusal(got)
                # With a state it is how the invocation ended: it would be told again.
                away = got.status == 503 and "state" not in refused.body
                again_s = max(refused.retry_after_s, pause_s) if away and refused.retry_after_s is not None else None
            case Broken():
                error, again_s = Unreachable(got.reason), pause_s
            case None:
                raise TypeError("a call was answered with nothing")
        spent_s += got.elapsed_s
        if again_s is None or not call.repeatable or spent_s + again_s > RETRY_S:
            raise error
        yield Pause(seconds=again_s)
        spent_s += again_s
        pause_s *= 2


def path_of(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe=":") for part in parts)


def request_json(
    method: str,
    path: str,
    body: object,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_WAIT_S + MARGIN_S,
) -> Call:
    all_headers = {"Content-Type": "application/json", **(headers or {})}
    return Call(method=method, path=path, headers=all_headers, content=encode_json(body), timeout_s=timeout_s)


def post_of(body: object, *parts: str) -> Flow[Answer]:
    return (yield from exchange(request_json("POST", path_of(*parts), body)))


def list_of(noun: str, kind: type[T], *, path: str | None = None) -> Flow[list[T]]:
    return items_of((yield from exchange(Call(method="GET", path=path or path_of(noun)))), noun, kind)


def items_of(answer: Answer, noun: str, kind: type[T]) -> list[T]:
    found = read_answer(answer, dict[str, msgspec.Raw]).get(noun)
    if found is None:
        raise ApiError(answer.status, "unreadable_answer", f"The answer has no {noun}", {})
    return read_answer(replace(answer, body=bytes(found)), list[kind])  # type: ignore[valid-type]


def headers_of(key: str | None) -> dict[str, str]:
    return {"User-Agent": "smore-client"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
