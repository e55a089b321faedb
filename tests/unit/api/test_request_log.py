"""One line for each request that is refused or fails, under its id; bounded where they come by the thousand."""

from collections import Counter
from typing import Any

import orjson
import pytest
import structlog
from structlog.typing import EventDict

from api.errors import Ended
from api.request_log import LINES_PER_S, LineBudget, answered, inputs_refused
from smore.domain.errors import FunctionNotFound, PlatformError, SloInfeasible, Unavailable
from smore.redis.catalog import KeyEntry

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/v1/functions/echo/invocations",
    "path_params": {"function": "echo"},
    "request_id": "r1",
    "caller": KeyEntry(id="k1", project="vision", digest="", scopes=[]),
}


def line(error: Exception, **scope: Any) -> EventDict:
    """The line of a request that ended with an error."""
    with structlog.testing.capture_logs() as logged:
        answered({**SCOPE, **scope}, error, LineBudget())
    (only,) = logged
    return only


def test_a_refusal_is_found_by_its_request_id() -> None:
    assert line(SloInfeasible("A run takes 12 ms.", earliest_deadline_ms=20, retry_after_s=1)) == {
        "event": "request refused",
        "log_level": "info",
        "request_id": "r1",
        "request": "POST /v1/functions/echo/invocations",
        "project": "vision",
        "key_id": "k1",
        "function": "echo",
        "status": 429,
        "code": "slo_infeasible",
        "detail": "A run takes 12 ms.",
    }


def test_a_detail_is_whole_where_it_is_no_log() -> None:
    long = "x" * 1000
    assert line(SloInfeasible(f"{long}\nfrom a log"))["detail"] == long
    assert len(line(SloInfeasible(long * 9))["detail"]) < len(long) * 2


def test_an_ending_is_named_and_a_functions_own_message_is_left_out() -> None:
    failed = {"status": 422, "code": "handler_error", "id": "i1", "state": "failed", "cause": "handler_error"}
    said = line(Ended("ValueError: secret", **failed))
    assert (said["event"], said["id"], said["cause"], said["log_level"]) == (
        "request failed",
        "i1",
        "handler_error",
        "info",
    )
    assert "secret" not in str(said)
    expired = {"status": 504, "code": "deadline_expired", "id": "i1", "state": "expired", "cause": "deadline_expired"}
    said = line(Ended("No GPU instance could finish it.", **expired))
    assert (said["detail"], said["log_level"]) == ("No GPU instance could finish it.", "warning")


def test_the_platforms_failures_have_what_the_caller_is_not_shown() -> None:
    said = line(Unavailable("leader: no scheduler holds the lease"))
    assert (said["log_level"], said["reason"]) == ("warning", "leader: no scheduler holds the lease")
    assert "exc_info" not in said
    failure = PlatformError("secret")
    said = line(failure)
    assert (said["event"], said["log_level"], said["exc_info"]) == ("request failed", "error", failure)
    assert line(KeyError("x"))["code"] == "internal"


def test_what_a_caller_wrote_into_the_path_cannot_end_the_line() -> None:
    said = line(
        FunctionNotFound(), path="/v1/functions/a\nb/invocations", path_params={"function": "a\nb"}, caller=None
    )
    assert "function" not in said and "project" not in said
    assert "\n" not in said["request"]


def test_a_storm_of_refusals_has_few_lines_and_their_number() -> None:
    now = [0.0]
    budget = LineBudget(lambda: now[0])
    assert [budget.take("slo_infeasible") for _ in range(LINES_PER_S + 3)] == [0] * LINES_PER_S + [None] * 3
    assert budget.take("queue_full") == 0, "each code has lines of its own"
    now[0] = 1.0
    assert [budget.take("slo_infeasible"), budget.take("slo_infeasible")] == [3, 0]
    with structlog.testing.capture_logs() as logged:
        for _ in range(LINES_PER_S):
            answered(SCOPE, SloInfeasible(), budget)
        now[0] = 2.0
        answered(SCOPE, SloInfeasible(), budget)
    assert len(logged) == LINES_PER_S - 1
    assert logged[-1]["left_out"] == 2


@pytest.mark.parametrize("codes", [Counter({"queue_full": 2, "handler_error": 1}), Counter()])
def test_inputs_of_one_request_share_a_line(codes: Counter[str]) -> None:
    with structlog.testing.capture_logs() as logged:
        inputs_refused(
            request_id="r1", project="vision", key_id="k1", function="echo", codes=codes, budget=LineBudget()
        )
    assert [(said["request_id"], said["codes"]) for said in logged] == ([("r1", dict(codes))] if codes else [])


def test_an_answer_is_the_one_without_a_line() -> None:
    answer = answered(SCOPE, FunctionNotFound("There is none."), LineBudget())
    assert (answer.status_code, orjson.loads(answer.body)["detail"]) == (404, "There is none.")
