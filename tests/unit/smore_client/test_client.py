"""
The client: what it sends, how it reads answers, when it tries again. Flows are driven by hand, clients over a fake
transport.
"""

import asyncio
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import httpx
import msgspec
import numpy as np
import pytest

import smore
from smore.domain import tensors
from smore.process.settings import Settings
from smore_client import AsyncClient, Client
from smore_client.locate import DEFAULT_HOME, DEFAULT_HOST, DEFAULT_PORT, locate
from smore_client.requests import INPUTS_PER_CALL, Requests
from smore_client.tensors import decode_raw, encode_json, encode_raw, numpy_type
from smore_client.transport import (
    FIRST_PAUSE_S,
    RAW,
    RETRY_S,
    Answer,
    ApiError,
    Broken,
    Call,
    Flow,
    Pause,
    Unreachable,
    exchange,
)
from smore_client.types import Invocation, State, TensorSpec

T = TypeVar("T")
Got = Answer | Broken | None


def answer(body: object = None, status: int = 200, elapsed_s: float = 0.01, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status=status, headers=named, body=json.dumps(body).encode(), elapsed_s=elapsed_s)


def drive(
    flow: Flow[T], answers: Iterable[Got], steps: list[Call | Pause] | None = None
) -> tuple[T, list[Call | Pause]]:
    """
    Feed a flow; its result and the steps it took (in ``steps`` too, for where it raises). A pause needs no answer.
    """
    steps = [] if steps is None else steps
    waiting = iter(answers)
    got: Got = None
    while True:
        try:
            step = flow.send(got)
        except StopIteration as end:
            assert next(waiting, "none") == "none", "an answer was left over"
            return end.value, steps
        steps.append(step)
        got = None if isinstance(step, Pause) else next(waiting)


def invoke(requests: Requests, value: object, **options: Any) -> Flow[Invocation]:
    return Requests.invoke(requests, "f", value, **options)


def call(step: Call | Pause) -> Call:
    assert isinstance(step, Call)
    return step


DONE = {"id": "i1", "state": "succeeded", "output": {"y": 1}}
PROBLEM = {
    "title": "Infeasible",
    "status": 429,
    "detail": "Too late.",
    "code": "slo_infeasible",
    "earliest_deadline_ms": 70,
}


class TestInvoke:
    def test_sends_input_and_a_key_and_reads_output_and_timings(self) -> None:
        found, (step,) = drive(
            invoke(Requests(), {"x": [1]}, deadline_ms=200),
            [answer(DONE, server_timing='queue;dur=1.5, load;desc="a";dur=20, run')],
        )
        sent = call(step)
        assert (sent.method, sent.path) == ("POST", "/v1/functions/f/invocations")
        assert json.loads(sent.content) == {"input": {"x": [1]}, "deadline_ms": 200}
        assert sent.headers["Content-Type"] == "application/json"
        assert len(sent.headers["Idempotency-Key"]) == 32
        assert "Prefer" not in sent.headers
        assert found == Invocation(
            id="i1", function="f", state=State.SUCCEEDED, output={"y": 1}, timings_ms={"queue": 1.5, "load": 20.0}
        )

    def test_a_replay_is_told(self) -> None:
        said = {"content-type": RAW, "idempotency-replayed": "true", "smore-outputs": "y:UINT8:1"}
        raw = Answer(status=200, headers=said, body=b"\0")
        for answered in (answer(DONE, idempotency_replayed="true"), raw):
            found, _ = drive(invoke(Requests(), 1), [answered])
            assert found.replayed
        assert not drive(invoke(Requests(), 1), [answer(DONE)])[0].replayed
        for header in ("true", ""):
            with pytest.raises(ApiError) as caught:
                drive(invoke(Requests(), 1), [answer(PROBLEM, 422, idempotency_replayed=header)])
            assert caught.value.replayed == bool(header)
        running = answer({"id": "i1", "state": "running"}, 202, idempotency_replayed="true")
        assert drive(invoke(Requests(), 1), [running, answer(DONE), answer(DONE)])[0].replayed

    def test_a_wait_is_asked_for_in_whole_seconds_and_may_end_early(self) -> None:
        found, (step,) = drive(invoke(Requests(), 1, wait_s=2.5), [answer({"id": "i1", "state": "running"}, 202)])
        assert call(step).headers["Prefer"] == "wait=3"
        assert call(step).timeout_s > 2.5
        assert not found.done

    def test_without_a_wait_it_follows_a_202_to_the_end(self) -> None:
        found, steps = drive(
            invoke(Requests(), 1),
            [
                answer({"id": "i1", "state": "queued", "durability": "standard"}, 202),
                answer({"id": "i1", "state": "running"}),
                answer({"id": "i1", "state": "succeeded", "gpu": "cpu0"}),
                answer(DONE),
            ],
        )
        assert [call(step).path for step in steps[1:]] == ["/v1/invocations/i1"] * 2 + ["/v1/invocations/i1/result"]
        assert call(steps[1]).query == (("wait", "20"),)
        assert found.output == {"y": 1}
        assert found.gpu == "cpu0"

    def test_a_refusal_is_an_error_with_all_it_said(self) -> None:
        with pytest.raises(ApiError) as caught:
            drive(invoke(Requests(), 1), [answer(PROBLEM, 429, retry_after="1")])
        error = caught.value
        assert (error.status, error.code, error.detail, error.retry_after_s) == (
            429,
            "slo_infeasible",
            "Too late.",
            1.0,
        )
        assert error.body["earliest_deadline_ms"] == 70
        assert str(error) == "Too late. (slo_infeasible, 429)"

    def test_the_text_of_an_error_names_the_ids_that_logs_have(self) -> None:
        ended = PROBLEM | {"request_id": "01ab", "id": "0193"}
        with pytest.raises(ApiError, match=r"\(slo_infeasible, 429; request 01ab, invocation 0193\)$") as caught:
            drive(invoke(Requests(), 1), [answer(ended, 429)])
        error = caught.value
        assert (error.request_id, error.id, error.retry_after_s) == ("01ab", "0193", None)

    def test_an_error_page_of_a_proxy_is_an_error_too(self) -> None:
        page = Answer(status=502, headers={}, body=b"<html>Bad gateway</html>")
        with pytest.raises(ApiError, match="Bad gateway"):
            drive(invoke(Requests(), 1), [page])

    def test_an_answer_it_does_not_know_is_an_error(self) -> None:
        with pytest.raises(ApiError, match="not what this client knows"):
            drive(invoke(Requests(), 1), [answer([1, 2])])

    def test_submit_asks_for_no_wait(self) -> None:
        flow = Requests.submit(Requests(), "f", 1, deadline_ms=None, idempotency_key="k")
        found, (step,) = drive(flow, [answer({"id": "i1", "state": "queued"}, 202)])
        assert found == "i1"
        assert call(step).headers["Prefer"] == "respond-async"
        assert call(step).headers["Idempotency-Key"] == "k"

    def test_map_sends_what_one_call_takes_and_keeps_the_order(self) -> None:
        def many(first: int, count: int, state: str = "succeeded") -> Answer:
            return answer(
                {"invocations": [{"id": str(i), "state": state, "output": i} for i in range(first, first + count)]}
            )

        found, steps = drive(
            Requests.map(Requests(), "f", range(INPUTS_PER_CALL + 1), deadline_ms=None),
            [many(0, INPUTS_PER_CALL), many(INPUTS_PER_CALL, 1, "running"), answer({"id": "64", "state": "failed"})],
        )
        assert [one.id for one in found] == [str(i) for i in range(INPUTS_PER_CALL + 1)]
        assert found[-1].state == State.FAILED
        assert json.loads(call(steps[1]).content) == {"inputs": [INPUTS_PER_CALL]}
        assert call(steps[0]).headers["Idempotency-Key"] != call(steps[1]).headers["Idempotency-Key"]

    def test_a_name_cannot_leave_its_place_in_the_path(self) -> None:
        _, (step,) = drive(Requests.function(Requests(), "../keys?x"), [answer({"name": "f"})])
        assert call(step).path == "/v1/functions/..%2Fkeys%3Fx"


class TestArrays:
    SPECS = (TensorSpec(name="a", datatype="FP32", shape=(-1, 2)), TensorSpec(name="b", datatype="INT64", shape=(-1,)))
    FUNCTION: ClassVar[dict[str, Any]] = {"name": "f", "inputs": [msgspec.structs.asdict(spec) for spec in SPECS]}
    OUT = np.array([[0.5, 1.0]], np.float32)

    def raw(self) -> Answer:
        headers = {
            "content-type": RAW,
            "smore-outputs": "y:FP32:1,2",
            "smore-invocation": "i1",
            "smore-run": "gpu=cpu0;attempt=2;arrival=1769860800012345;deadline=0;finished=1769860801000000",
            "server-timing": "load;dur=20, run;dur=2",
        }
        return Answer(status=200, headers=headers, body=self.OUT.tobytes())

    def test_go_as_bytes_in_declared_order_and_type(self) -> None:
        value = {"b": np.array([3], np.int32), "a": np.array([[1.0, 2.0]])}
        found, steps = drive(invoke(Requests(), value, deadline_ms=50), [answer(self.FUNCTION), self.raw()])
        sent = call(steps[1])
        assert sent.content == np.array([1, 2], "<f4").tobytes() + np.array([3], "<i8").tobytes()
        assert sent.headers["Smore-Shape"] == "a=1,2;b=1"
        assert sent.query == (("deadline_ms", "50"),)
        assert (found.id, found.cold, found.gpu, found.attempt) == ("i1", True, "cpu0", 2)
        assert (found.arrival_at, found.deadline_at, found.finished_at) == (
            datetime(2026, 1, 31, 12, 0, 0, 12345, UTC),
            None,
            datetime(2026, 1, 31, 12, 0, 1, tzinfo=UTC),
        )
        np.testing.assert_array_equal(found.output["y"], self.OUT)

    def test_the_declaration_is_read_once_and_again_when_it_no_longer_fits(self) -> None:
        requests = Requests()
        value = {"a": np.zeros((1, 2)), "b": np.zeros(1, np.int64)}
        drive(invoke(requests, value), [answer(self.FUNCTION), self.raw()])
        _, steps = drive(invoke(requests, value), [self.raw()])
        assert len(steps) == 1
        changed = {"name": "f", "inputs": list(reversed(self.FUNCTION["inputs"]))}
        refused = answer({"code": "invalid_input", "detail": "order"}, 400)
        _, steps = drive(invoke(requests, value), [refused, answer(changed), self.raw()])
        assert call(steps[2]).headers["Smore-Shape"] == "b=1;a=1,2"
        with pytest.raises(ApiError):
            drive(invoke(Requests(), value), [answer(self.FUNCTION), refused])

    def test_a_json_function_and_wrong_names_are_told_before_anything_is_sent(self) -> None:
        value = {"a": np.zeros((1, 2))}
        with pytest.raises(ValueError, match="takes JSON"):
            drive(invoke(Requests(), value), [answer({"name": "f", "inputs": None})])
        with pytest.raises(ValueError, match="takes a, b"):
            drive(invoke(Requests(), value), [answer(self.FUNCTION)])

    def test_a_float_is_not_cut_to_an_integer(self) -> None:
        with pytest.raises(ValueError, match="INT64 is expected"):
            encode_raw({"a": np.zeros((1, 2)), "b": np.zeros(1)}, self.SPECS)

    def test_big_endian_and_strided_arrays_arrive_as_they_are(self) -> None:
        wide = np.arange(8, dtype=">f4").reshape(2, 4)[:, ::2]
        body, shapes = encode_raw({"a": wide, "b": np.zeros(2, np.int64)}, self.SPECS)
        back = decode_raw(body, "a:FP32:2,2;b:INT64:2")
        assert shapes == "a=2,2;b=2"
        np.testing.assert_array_equal(back["a"], [[0, 2], [4, 6]])

    def test_texts_go_as_bytes_and_come_as_bytes(self) -> None:
        declared = [TensorSpec(name="s", datatype="BYTES", shape=(-1, 1))]
        for texts in (np.array([["é"], [b"\xff"]], object), np.array([["é"], ["x"]])):
            body, shapes = encode_raw({"s": texts}, declared)
            back = decode_raw(body, "s:BYTES:2,1")["s"]
            assert (shapes, back[0, 0], back.shape) == ("s=2,1", "é".encode(), (2, 1))
        with pytest.raises(ValueError, match="BYTES is expected"):
            encode_raw({"s": np.zeros((2, 1))}, declared)

    @pytest.mark.parametrize(
        ("datatype", "numpy"), [("BOOL", "|b1"), ("UINT8", "|u1"), ("FP16", "<f2"), ("UINT64", "<u8")]
    )
    def test_datatypes(self, datatype: str, numpy: str) -> None:
        assert np.dtype(numpy_type(datatype)) == np.dtype(numpy)

    @pytest.mark.parametrize("datatype", tensors.DATATYPES)
    def test_the_platform_reads_them_so(self, datatype: str) -> None:
        """The encoding is written twice, because the two distributions share no code."""
        declared = [TensorSpec(name="t", datatype=datatype, shape=(-1, 2))]
        array = (
            np.array([["a", ""], ["é", "b"]], object) if datatype == "BYTES" else np.ones((2, 2), numpy_type(datatype))
        )
        body, _ = encode_raw({"t": array}, declared)
        described = tensors.describe("t", datatype, (2, 2))
        (section,) = tensors.sections(described, body)
        assert (section.start, section.stop) == (0, len(body))
        if datatype == "BYTES":
            assert tensors.elements(body) == [b"a", b"", "é".encode(), b"b"]
        assert decode_raw(body, described)["t"].shape == (2, 2)

    @pytest.mark.parametrize("outputs", ["t:FP32:3", "t:FP32:1", "t:FP32:-1", "t:FP33:2", "t:BYTES:1", "t:BYTES:9"])
    def test_a_body_that_does_not_fit_is_refused(self, outputs: str) -> None:
        with pytest.raises(ValueError, match="body"):
            decode_raw(b"\xff\0\0\0\0\0\0\0", outputs)

    def test_inside_json_they_become_lists(self) -> None:
        assert json.loads(encode_json({"x": np.arange(4).reshape(2, 2), "n": np.float64(0.5)})) == {
            "x": [[0, 1], [2, 3]],
            "n": 0.5,
        }
        with pytest.raises(TypeError, match="object cannot be sent"):
            encode_json({"x": object()})

    @pytest.mark.parametrize(
        ("value", "place"),
        [
            ({"input": {"x": [1, [0.5, float("nan")]], "n": None}}, "input.x[1][1]: nan"),
            ({"input": {"x": np.array([1.0, np.inf])}}, "input.x[1]: inf"),
            ({"input": {"x": None, "y": (np.float32("-inf"),)}}, "input.y[0]: -inf"),
            (float("nan"), "the value: nan"),
        ],
    )
    def test_a_number_that_json_does_not_have_is_refused(self, value: object, place: str) -> None:
        with pytest.raises(ValueError, match=re.escape(place)):
            encode_json(value)

    def test_null_is_sent(self) -> None:
        assert encode_json({"inputs": [msgspec.Raw(b"null"), None, "null"]}) == b'{"inputs":[null,null,"null"]}'


class TestRetry:
    GET = Call(method="GET", path="/x")
    POST = Call(method="POST", path="/x")
    KEYED = Call(method="POST", path="/x", headers={"Idempotency-Key": "k"})
    AWAY = answer({"code": "unavailable"}, 503, retry_after="1")
    BROKEN = Broken(reason="refused", elapsed_s=0.01)

    @pytest.mark.parametrize("repeatable", [GET, KEYED])
    def test_what_is_safe_is_sent_again(self, repeatable: Call) -> None:
        found, steps = drive(exchange(repeatable), [self.BROKEN, self.AWAY, answer(1)])
        assert found.status == 200
        pauses = [step.seconds for step in steps if isinstance(step, Pause)]
        assert pauses == [FIRST_PAUSE_S, 1.0]

    def test_a_post_without_a_key_is_sent_once(self) -> None:
        with pytest.raises(Unreachable, match="refused"):
            drive(exchange(self.POST), [self.BROKEN])
        with pytest.raises(ApiError):
            drive(exchange(self.POST), [self.AWAY])

    def test_an_invocation_that_ended_so_is_not_asked_for_again(self) -> None:
        ended = answer({"code": "quarantined", "id": "i1", "state": "failed"}, 503, retry_after="1")
        with pytest.raises(ApiError, match="quarantined"):
            drive(exchange(self.KEYED), [ended])

    def test_a_503_without_a_time_and_other_failures_are_final(self) -> None:
        for status, retry_after in ((503, ""), (503, "soon"), (429, "1"), (500, "")):
            with pytest.raises(ApiError):
                drive(exchange(self.GET), [answer({}, status, retry_after=retry_after)])

    def test_all_tries_but_the_last_end_within_five_seconds(self) -> None:
        steps: list[Call | Pause] = []
        with pytest.raises(Unreachable):
            drive(exchange(self.GET), repeat(Broken(reason="refused", elapsed_s=0.3)), steps)
        tries = sum(isinstance(step, Call) for step in steps)
        assert tries > 3
        assert (tries - 1) * 0.3 + sum(step.seconds for step in steps if isinstance(step, Pause)) <= RETRY_S

    def test_an_invocation_keeps_its_key_over_all_tries(self) -> None:
        _, steps = drive(invoke(Requests(), 1), [self.BROKEN, answer(DONE)])
        keys = {call(step).headers["Idempotency-Key"] for step in steps if isinstance(step, Call)}
        assert len(keys) == 1


class TestDeploy:
    DOCUMENT: ClassVar[dict[str, Any]] = {"metadata": {"name": "echo"}, "spec": {"entrypoint": "zoo.echo:Function"}}

    def test_a_file_a_folder_and_a_mapping_say_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "function.yaml").write_text("metadata: {name: echo}\nspec: {entrypoint: 'zoo.echo:Function'}\n")
        for source in (tmp_path, tmp_path / "function.yaml", self.DOCUMENT):
            found, (step,) = drive(
                Requests.deploy(Requests(), source), [answer({"name": "echo", "revision": 1, "new": 1}, 201)]
            )
            assert (call(step).method, call(step).path) == ("PUT", "/v1/functions/echo")
            assert json.loads(call(step).content) == self.DOCUMENT
            assert found.revision == 1

    @pytest.mark.parametrize("text", ["- a\n", "a: [\n", "spec: {}\n"])
    def test_a_file_that_is_none_is_refused_here(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "f.yaml").write_text(text)
        with pytest.raises(ValueError, match=r"f\.yaml|name"):
            drive(Requests.deploy(Requests(), tmp_path / "f.yaml"), [])


def test_a_dry_run_sends_the_input_or_its_rows() -> None:
    given = [({"x": 1}, None), (None, None), (None, 4), ({"x": np.zeros((3, 2), np.float32)}, None)]
    for (value, rows), sent in zip(given, [{"input": {"x": 1}}, {"rows": 1}, {"rows": 4}, {"rows": 3}], strict=True):
        flow = Requests.dry_run(Requests(), "f", value, rows=rows, deadline_ms=20)
        found, (step,) = drive(flow, [answer({"outcome": "waits", "decision": {"refused": {"busy": 1}}, "new": 1})])
        assert (call(step).method, call(step).path) == ("POST", "/v1/functions/f/invocations:dryRun")
        assert json.loads(call(step).content) == {**sent, "deadline_ms": 20}  # type: ignore[dict-item]
        assert (found.outcome, found.decision.refused) == ("waits", {"busy": 1})


def test_pages() -> None:
    flow = Requests.invocations(Requests(), function="f", state=None, limit=2, cursor="c1")
    page, (step,) = drive(flow, [answer({"invocations": [{"id": "1", "state": "failed"}], "next_cursor": "c2"})])
    assert call(step).query == (("function", "f"), ("limit", "2"), ("cursor", "c1"))
    assert (page.items[0].state, page.cursor) == (State.FAILED, "c2")


Handle = Callable[[httpx.Request], httpx.Response]


def both(handle: Handle) -> list[Callable[[str, Sequence[Any]], Any]]:
    """Both clients over one fake server, each as ``(method, arguments) → result``."""

    def synchronous(method: str, arguments: Sequence[Any]) -> Any:
        with Client("http://test", "sk", transport=httpx.MockTransport(handle)) as one:
            return getattr(one, method)(*arguments)

    def asynchronous(method: str, arguments: Sequence[Any]) -> Any:
        async def run() -> Any:
            async with AsyncClient("http://test", "sk", transport=httpx.MockTransport(handle)) as one:
                return await getattr(one, method)(*arguments)

        return asyncio.run(run())

    return [synchronous, asynchronous]


def test_both_clients_carry_out_the_same_calls() -> None:
    seen: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.raw_path.decode()} {request.headers['authorization']}")
        if request.url.path == "/v1/functions":
            return httpx.Response(200, json={"functions": [{"name": "echo"}]})
        if request.url.path == "/v1/gpus":
            return httpx.Response(403, json={"code": "forbidden", "detail": "no"})
        return httpx.Response(200, json=DONE)

    for client in both(handle):
        seen.clear()
        assert client("functions", [])[0].name == "echo"
        assert client("invoke", ["echo", 1]).output == {"y": 1}
        with pytest.raises(ApiError, match="forbidden"):
            client("gpus", [])
        assert seen == [
            "GET /v1/functions Bearer sk",
            "POST /v1/functions/echo/invocations Bearer sk",
            "GET /v1/gpus Bearer sk",
        ]


def test_both_clients_take_a_broken_connection_up_again() -> None:
    for client in both(_breaks_once()):
        assert client("functions", []) == []


def _breaks_once() -> Handle:
    tries = 0

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, json={"functions": []})

    return handle


def test_both_clients_have_the_same_methods() -> None:
    def face(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert face(Client) == face(AsyncClient)


def test_an_operation_shows_its_documentation() -> None:
    assert "Run a function" in inspect.getdoc(Client.invoke)  # type: ignore[operator]
    assert inspect.signature(Client.invoke).return_annotation is Invocation
    client = Client("http://test", transport=httpx.MockTransport(_breaks_once()))
    assert client.invoke.__name__ == "invoke"
    operations = {name: getattr(Requests, name) for name in vars(Requests) if not name.startswith("_")}
    undocumented = [name for name, each in operations.items() if ">>>" not in (inspect.getdoc(each) or "")]
    assert undocumented == []


class TestLocate:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("SMORE_URL", "SMORE_API_KEY", "SMORE_API__PORT", "SMORE_API__HOST"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("SMORE_HOME", str(tmp_path))
        (tmp_path / "key").write_text("home-key\n")

    def test_this_machines_platform_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SMORE_API__PORT", "9000")
        assert locate(None, None) == ("http://127.0.0.1:9000", "home-key")

    def test_arguments_before_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SMORE_URL", "https://env/")
        monkeypatch.setenv("SMORE_API_KEY", "env-key")
        assert locate(None, None) == ("https://env", "env-key")
        assert locate("http://arg", "arg-key") == ("http://arg", "arg-key")

    def test_the_homes_key_stays_on_this_machine(self) -> None:
        assert locate("https://elsewhere.example", None) == ("https://elsewhere.example", None)
        assert locate("http://localhost:1", None)[1] == "home-key"

    def test_the_defaults_are_the_platforms(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SMORE_HOME")
        settings = Settings()
        assert (Path(DEFAULT_HOME), DEFAULT_HOST, int(DEFAULT_PORT)) == (
            settings.home,
            settings.api.host,
            settings.api.port,
        )

    def test_a_missing_key_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "key").unlink()
        assert locate(None, None)[1] is None


def test_importing_smore_is_light() -> None:
    heavy = "import sys, smore; print(sorted({'httpx', 'pydantic', 'numpy', 'msgspec', 'typer'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert smore.Client is Client
    assert smore.AsyncClient is AsyncClient
    named = importlib.import_module("smore.client")
    assert (named.Client, named.ApiError, named.Unreachable) == (Client, ApiError, Unreachable)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = smore.Nothing
