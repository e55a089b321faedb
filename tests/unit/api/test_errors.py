"""Problem documents: one table, stable codes, nothing of the platform's inside."""

import errno
import math
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus

import orjson
import psycopg
import pytest
import redis
from fastapi.exceptions import RequestValidationError
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from sqlalchemy.exc import DataError, OperationalError
from starlette.exceptions import HTTPException

from api.dates import moment
from api.errors import AWAY, FAILURE, STATUS, Ended, ResultDropped, explain, outcome
from api.invoke.admit import Afterwards, earliest, refusal, request_parts
from api.invoke.response import AnsweredRun, server_timing, settled
from api.schemas.jobs import JobBody
from smore.domain import errors
from smore.domain.errors import (
    CallerError,
    FunctionNotFound,
    InvalidInput,
    PlatformError,
    SmoreError,
    Unauthorised,
)
from smore.domain.invocation import TERMINAL, Cause, State
from smore.messages.results import Result, encode_result, error_result
from smore.redis.gateway_queue import AdmissionCheck
from smore.redis.outage import is_outage
from smore.redis.records import Reply
from smore.redis.submission import NEVER_S, GateAnswer


def document(error: Exception) -> tuple[int, dict[str, object], dict[str, str]]:
    response = explain(error, "r1")
    return response.status_code, orjson.loads(bytes(response.body)), dict(response.headers)


def classes(of: type[SmoreError]) -> list[type[SmoreError]]:
    return [of, *(deeper for child in of.__subclasses__() for deeper in classes(child))]


def test_every_code_has_a_status() -> None:
    known = {kind.code for kind in classes(SmoreError) if kind not in (SmoreError, Ended)}

    assert known <= STATUS.keys()


def test_a_callers_error_is_shown_whole() -> None:
    status, body, headers = document(InvalidInput("input.x[0]: no", field="input.x[0]"))

    assert (status, headers["content-type"], headers["x-request-id"]) == (422, "application/problem+json", "r1")
    assert body == {
        "type": "urn:smore:problem:invalid_input",
        "title": HTTPStatus(422).phrase,
        "status": 422,
        "detail": "input.x[0]: no",
        "code": "invalid_input",
        "request_id": "r1",
        "field": "input.x[0]",
    }


def test_the_docstring_is_the_default_detail() -> None:
    assert document(FunctionNotFound())[1]["detail"] == errors.FunctionNotFound.__doc__
    assert document(ResultDropped())[:1] == (410,)
    assert document(Unauthorised())[2]["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("error", [ValueError("secret"), KeyError("secret"), PlatformError("secret", path="secret")])
def test_the_platforms_errors_are_hidden(error: Exception) -> None:
    status, body, headers = document(error)

    assert (status, body["code"]) == (500, "internal")
    assert "secret" not in str(body) + str(headers)


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (redis.ConnectionError("secret"), "redis"),
        (redis.TimeoutError("secret"), "redis"),
        (redis.BusyLoadingError("secret"), "redis"),
        (OperationalError("select", {}, Exception("secret")), "postgres"),
        (psycopg.errors.QueryCanceled("secret"), "postgres"),
        (psycopg.InterfaceError("secret"), "postgres"),
        (errors.Unavailable("secret", part="job_leader"), "job_leader"),
        (errors.Unavailable("secret"), None),
        (OSError(errno.EMFILE, "secret"), "gateway"),
    ],
)
def test_a_server_that_is_away_is_503_with_retry_after(error: Exception, part: str | None) -> None:
    status, body, headers = document(error)

    assert (status, body["code"], headers["retry-after"]) == (503, "unavailable", "1")
    assert body.get("part") == part
    assert body["detail"] == (AWAY[part] if part else errors.Unavailable.__doc__)
    assert "secret" not in str(body)


@pytest.mark.parametrize(
    "error",
    [
        redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        redis.ReadOnlyError("You can't write against a read only replica."),
        redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
        redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
        redis.ResponseError("BUSY Redis is busy running a script."),
        # Raised by a command inside a script: Redis 6, then 7.
        redis.ResponseError(
            "Error running script (call to f_1): @user_script:1: -OOM command not allowed when used memory >"
            " 'maxmemory'."
        ),
        redis.ResponseError(
            "Error running script (call to f_1a): @user_script:14: -MISCONF Errors writing to the AOF file: No space"
            " left"
        ),
        redis.ResponseError(
            "Error running script (call to f_1a): @user_script: 3: -READONLY You can't write against a read only"
            " replica."
        ),
        redis.ResponseError("MISCONF Errors writing to the AOF file: No space left script: 1a2b, on @user_script:14."),
        # Redis-py says which command of a pipeline it was.
        redis.ResponseError("Command # 2 (SET k v) of pipeline caused error: MISCONF Errors writing to the AOF file"),
        OSError(errno.ENOSPC, "secret"),
    ],
)
def test_refused_writes_are_503_with_retry_after(error: Exception) -> None:
    status, body, headers = document(error)

    assert (status, body["code"], headers["retry-after"]) == (503, "writes_refused", "1")
    assert str(error) not in str(body)


@pytest.mark.parametrize(
    "error",
    [
        redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
        redis.ResponseError("BUSYGROUP Consumer Group name already exists"),
        redis.ResponseError("Error running script (call to f_1a2b): @user_script:1: attempt to index a nil value"),
    ],
)
def test_our_own_mistakes_in_redis_are_no_outage(error: Exception) -> None:
    assert document(error)[0] == 500
    assert not is_outage(error)


def test_what_postgres_cannot_hold_is_the_callers() -> None:
    status, body, _ = document(DataError("insert", {}, Exception("secret")))

    assert (status, body["code"]) == (422, "invalid_input")
    assert "secret" not in str(body)


@pytest.mark.parametrize(("status", "code"), [(404, "not_found"), (405, "method_not_allowed"), (400, "bad_request")])
def test_http_exceptions_have_codes_too(status: int, code: str) -> None:
    assert document(HTTPException(status))[1]["code"] == code


@pytest.mark.parametrize("state", sorted(TERMINAL - {State.SUCCEEDED}))
@pytest.mark.parametrize("cause", list(Cause))
def test_every_ending_is_an_error_status(state: State, cause: Cause) -> None:
    status, code = outcome(state, cause)

    assert 400 <= status < 600
    assert code


def test_failures_by_cause() -> None:
    assert set(FAILURE) <= set(Cause)
    assert outcome("failed", "handler_error") == (422, "handler_error")
    assert outcome("failed", "timed_out") == (504, "timed_out")
    assert outcome("expired", "deadline_expired") == (504, "deadline_expired")
    assert outcome("rejected", "infeasible") == (429, "slo_infeasible")


@pytest.mark.parametrize(
    ("wrong", "field", "detail"),
    [
        ({"duration": [2]}, "duration", "Input should be a valid number or a valid string"),
        ({"grace": {}}, "grace", "Input should be a valid number or a valid string"),
        ({"env": {"A": {"secret": 3}}}, "env.A.secret", "Input should be a valid string"),
        ({"env": {"A": {}}}, "env.A.secret", "Field required"),
        ({"env": {"A": 3}}, "env.A", "Input should be a valid string or a valid dictionary"),
        ({"argv": ["a", 1], "grace": []}, "argv[1]", "Input should be a valid string"),
        ({"argv": None}, "argv", "Input should be a valid list"),
    ],
)
def test_a_field_is_named_as_the_caller_wrote_it(wrong: dict[str, object], field: str, detail: str) -> None:
    body = {"name": "night", "argv": ["a"], **wrong}
    with pytest.raises(ValidationError) as refused:
        JobBody.model_validate(body)
    # As FastAPI raises it.
    errors = [{**error, "loc": ("body", *error["loc"])} for error in refused.value.errors()]
    status, shown, _ = document(RequestValidationError(errors, body=body))
    assert (status, shown["field"]) == (422, field)
    assert str(shown["detail"]).startswith(f"{field}: {detail}")


RUN = AnsweredRun(id="i", function="echo", revision=2)


def reply(state: str, result: bytes, cause: str = "ok") -> Reply:
    return Reply(
        id="i",
        state=state,
        cause=cause,
        attempt=1,
        arrival_us=1_000_000,
        claimed_us=1_002_500,
        started_us=1_003_000,
        finished_us=1_010_000,
        gpu="g",
        schedule_us=500,
        deadline_us=2_000_000,
        result=result,
    )


def test_nobody_leads_is_worth_another_try() -> None:
    status, body, headers = document(refusal(GateAnswer(status="no_leader"), 1000))
    assert (status, body["code"], headers["retry-after"]) == (503, "no_leader", "1")


def test_no_deadline_is_promised_where_nothing_could_load_it() -> None:
    never = GateAnswer(status="infeasible", earliest_us=int(NEVER_S * 1e6), now_us=0)
    status, body, headers = document(refusal(never, 1000))
    assert (status, body["code"], headers["retry-after"]) == (429, "slo_infeasible", "1")
    assert "earliest_deadline_ms" not in body


@given(st.floats() | st.integers(), st.floats() | st.integers())
@example(10**400, 10**400)
@example(1_800_000_000_000_000, 2**63 - 1)
def test_no_estimate_makes_an_answer_fail(now_us: float, needed_us: float) -> None:
    """Whatever numbers a runner, a table or a defect of ours has brought about."""
    orjson.dumps(earliest(now_us, needed_us))
    moment(now_us).isoformat()
    admission = GateAnswer(status="infeasible", earliest_us=needed_us, now_us=0)  # type: ignore[arg-type]
    status, body, headers = document(refusal(admission, 1000))
    assert (status, body["code"]) == (429, "slo_infeasible") and 1 <= int(headers["retry-after"]) <= 86_400


def test_an_estimate_is_told_where_it_says_something() -> None:
    told = earliest(1_000_000, 2_500_001)
    assert told == {
        "earliest_deadline_ms": 2761,
        "earliest_deadline_at": datetime.fromisoformat("1970-01-01T00:00:03.761000+00:00"),
    }
    assert earliest(1_000_000, 0) == earliest(1_000_000, 1e30) == earliest(1_000_000, math.nan) == {}
    assert outcome("failed", "result_too_large") == (422, "result_too_large")


def test_a_success_is_concatenated() -> None:
    response = settled(
        reply("succeeded", encode_result(Result(form="json", load_us=1, run_us=2000, cold=True, body=b'{"a":1}'))),
        RUN,
        "r",
    )

    body = bytes(response.body)
    assert body.startswith(b'{"id":"i","function":"echo","revision":2,"state":"succeeded","attempt":')
    assert body.endswith(b',"late_ms":0,"output":{"a":1}}')
    assert orjson.loads(body)["cold"] is True
    assert orjson.loads(body)["finished_at"] == "1970-01-01T00:00:01.010000+00:00"
    assert (
        response.headers["server-timing"]
        == "queue;dur=2.000, schedule;dur=0.500, dispatch;dur=0.500, load;dur=0.001, run;dur=2.000"
    )


def test_a_raw_success_has_its_shapes_in_headers() -> None:
    response = settled(
        reply("succeeded", encode_result(Result(form="raw", body=b"\0\1", shapes="y:UINT8:1,2"))), RUN, "r"
    )

    assert (bytes(response.body), response.headers["smore-outputs"], response.headers["smore-invocation"]) == (
        b"\0\1",
        "y:UINT8:1,2",
        "i",
    )


def test_an_ending_without_output_is_a_problem_with_the_functions_message() -> None:
    with pytest.raises(Ended) as raised:
        settled(reply("failed", error_result("ZeroDivisionError: no"), "handler_error"), RUN, "r")
    status, body, _ = document(raised.value)

    assert (status, body["code"], body["detail"], body["id"], body["state"]) == (
        422,
        "handler_error",
        "ZeroDivisionError: no",
        "i",
        "failed",
    )


def test_what_never_was_claimed_waited_all_the_time() -> None:
    never = Reply(
        id="i",
        state="expired",
        cause="c",
        attempt=0,
        arrival_us=1,
        claimed_us=0,
        started_us=0,
        finished_us=2001,
        gpu="",
        schedule_us=0,
        deadline_us=2_000,
        result=b"",
    )

    assert server_timing(never, Result(form="error")).startswith(
        b"queue;dur=2.000, schedule;dur=0.000, dispatch;dur=0.000"
    )


def test_an_infeasible_deadline_names_the_earliest_that_would_be_taken() -> None:
    error = refusal(GateAnswer(status="infeasible", earliest_us=3_500_000, now_us=1_000_000), 400_000)

    assert error.details == {"earliest_deadline_ms": 2760, "earliest_deadline_at": moment(3.76), "retry_after_s": 3}
    assert str(error).startswith(
        "The deadline, 400.0 ms after arrival, cannot be met: as things are it would end after 2.5 s ("
    )
    assert str(error).endswith(
        "The earliest deadline that would be accepted, with a margin, is 2760 ms, as long as nothing more comes before it."
    )
    _, body, headers = document(error)
    assert (body["earliest_deadline_at"], headers["retry-after"]) == ("1970-01-01T00:00:03.760000+00:00", "3")
    assert "retry_after_s" not in body


def test_only_a_refusal_that_waiting_helps_says_when_to_come_again() -> None:
    def refused(slo_us: int, floor_us: int, cold_us: int) -> dict[str, str]:
        admission = GateAnswer(status="infeasible", earliest_us=3_500_000, now_us=1_000_000)
        return document(refusal(replace(admission, floor_us=floor_us, cold_us=cold_us), slo_us))[2]

    assert refused(400_000, 12_000, 0)["retry-after"] == "3"
    assert "retry-after" not in refused(1_000, 12_000, 0)
    assert "retry-after" not in refused(400_000, 12_000, 2_500_000), (
        "the load takes longer, also with nothing before it"
    )
    # It fits no GPU instance, also later.
    with pytest.raises(Ended) as raised:
        settled(reply("rejected", error_result("It needs more memory."), "infeasible"), RUN, "r")
    status, _, headers = document(raised.value)
    assert (status, "retry-after" in headers) == (429, False)


@pytest.mark.parametrize(
    ("floor_us", "cold_us", "why"),
    [
        (12_000, 0, "a run takes 12.0 ms at the least; before it are 2.5 s on its way and in the queue"),
        (12_000, 2_500_000, "no instance of the function stands ready, so one is loaded first; a run takes 12.0 ms"),
        (2_500_000, 0, "a run takes 2.5 s at the least, on a GPU instance with nothing else to do)."),
    ],
)
def test_an_infeasible_deadline_says_what_takes_the_time(floor_us: int, cold_us: int, why: str) -> None:
    admission = GateAnswer(
        status="infeasible", earliest_us=3_500_000, now_us=1_000_000, floor_us=floor_us, cold_us=cold_us
    )
    assert why in str(refusal(admission, 400_000))


def test_a_full_queue_names_the_bound_and_its_setting() -> None:
    error = refusal(GateAnswer(status="full", limit="function", bound=1000), 1)
    assert str(error) == (
        "Too much is waiting already: 1000 invocations of the function wait, as many as its limits.max_pending allows."
    )
    assert "SMORE_QUEUE__MAX_PENDING" in str(refusal(GateAnswer(status="full", limit="pending", bound=5), 1))


def test_a_reused_idempotency_key_says_what_differs() -> None:
    def parts(**changed: bytes) -> str:
        return request_parts({"function": b"default/echo", "input": b"1", "deadline_ms": b"None", **changed})

    def refused(known: str, given: str) -> CallerError:
        return refusal(GateAnswer(status="mismatch", known_id="i1", known_parts=known), 1, given)

    error = refused(parts(), parts(input=b"2", deadline_ms=b"50"))
    assert (error.details["differs"], error.details["id"]) == (["input", "deadline_ms"], "i1")
    assert str(error).endswith("this one differs in: input, deadline_ms.")
    assert "written differently" in str(refused(parts(), parts()))
    assert refused("", parts()).details["differs"] == [], "an older version kept no parts"


def test_an_expired_call_says_how_long_it_had_and_which_worker_was_lost() -> None:
    expired = replace(reply("expired", error_result("Too late."), "deadline_expired"), deadline_us=1_008_000)
    check = AdmissionCheck(now_us=0, deadline_us=0, needed_us=1, promised_us=40_000, full="", paused="", leader="gate")
    with pytest.raises(Ended) as raised:
        settled(expired, RUN, "r", Afterwards(check=check, lost_gpu="gpu3", lost_us=1_800_000_000_000_000))
    assert str(raised.value) == (
        "Too late. It was to end 8.0 ms after its arrival and was given up after 10.0 ms, of which it waited 3.0 ms. An"
        " attempt was lost with the worker of gpu3, which reported last at 2027-01-15 08:00:00 UTC: the worker died, or"
        " was cut off. A deadline of 54 ms would be accepted now, as long as nothing more comes before it."
    )
    # What is no longer than what it had is not offered, unless a lost worker was the reason.
    longer = replace(expired, deadline_us=1_054_000, started_us=0, finished_us=1_060_000)
    for lost_gpu, offered in (("gpu3", True), ("", False)):
        with pytest.raises(Ended) as raised:
            settled(longer, RUN, "r", Afterwards(check=replace(check, floor_us=12_000), lost_gpu=lost_gpu))
        assert ("earliest_deadline_ms" in raised.value.details) is offered
    assert str(raised.value) == (
        "Too late. It was to end 54.0 ms after its arrival and was given up after 60.0 ms of waiting. A run takes 12.0 ms"
        " at the least."
    )
    for nothing in (replace(check, paused="platform"), replace(check, promised_us=int(NEVER_S * 1e6))):
        with pytest.raises(Ended) as raised:
            settled(expired, RUN, "r", Afterwards(check=nothing))
        assert "would be accepted" not in str(raised.value) and "earliest_deadline_ms" not in raised.value.details


@pytest.mark.parametrize(
    ("admission", "code"),
    [
        (GateAnswer(status="full", limit="function"), "queue_full"),
        (GateAnswer(status="mismatch", known_id="x"), "idempotency_mismatch"),
        (GateAnswer(status="late"), "deadline_expired"),
    ],
)
def test_refusals(admission: GateAnswer, code: str) -> None:
    error: CallerError = refusal(admission, 1)

    assert error.code == code
