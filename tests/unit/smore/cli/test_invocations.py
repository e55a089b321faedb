"""The commands of invocations: what they send, what they print."""

import io
import json
import sys
from pathlib import Path

import httpx
import pytest

from smore.cli.terminal import EXIT_FAILED
from tests.support.cli import Serve, serve, smore

__all__ = ["serve"]


class TestInvocations:
    DONE = (200, {"id": "i1", "state": "succeeded", "output": {"y": [1, 2]}})

    def test_prints_the_output_alone(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        platform = serve()
        platform.answers["POST /v1/functions/f/invocations"] = self.DONE
        assert smore("invoke", "f", "--input", '{"x": 1}', "--deadline-ms", "50") == 0
        assert platform.asked == [("POST /v1/functions/f/invocations", {"input": {"x": 1}, "deadline_ms": 50})]
        assert capsys.readouterr().out == '{"y": [1, 2]}\n'

    def test_a_late_end_is_said_and_fails_where_it_must_not_be(
        self, serve: Serve, capsys: pytest.CaptureFixture[str]
    ) -> None:
        serve().answers["POST /v1/functions/f/invocations"] = (
            200,
            {"id": "i1", "state": "succeeded", "late_ms": 1250.0, "output": 1},
        )
        assert smore("invoke", "f") == 0
        said = capsys.readouterr()
        assert (said.out, said.err) == ("1\n", "It ended 1.2 s after its deadline.\n")
        assert smore("invoke", "f", "--strict") == EXIT_FAILED

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

    def test_many_inputs_print_their_outputs_in_order(
        self, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        platform = serve()
        queued = [{"id": f"i{number}", "state": "queued"} for number in range(3)]
        platform.answers["POST /v1/functions/f/invocations"] = (202, {"invocations": queued})
        ended = [{"id": f"i{number}", "state": "succeeded", "output": number} for number in (2, 0, 1)]
        platform.answers["POST /v1/invocations:wait"] = (200, {"invocations": ended})
        (tmp_path / "lines").write_text('0\n{"x": 1}\n\n[2]\n')
        (tmp_path / "list").write_text('[0, {"x": 1}, [2]]')
        for name in ("lines", "list"):
            assert smore("invoke", "f", "--inputs", str(tmp_path / name)) == 0
            assert capsys.readouterr().out == "0\n1\n2\n"
        sent = [body for path, body in platform.asked if path.endswith("f/invocations")]
        assert sent == [{"inputs": [0, {"x": 1}, [2]]}] * 2
        assert smore("invoke", "f", "--inputs", str(tmp_path / "list"), "-o", "json") == 0
        assert [each["output"] for each in json.loads(capsys.readouterr().out)] == [0, 1, 2]

    def test_of_many_inputs_some_fail(self, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        platform = serve()
        answers = [
            {"id": "", "state": "rejected", "cause": "slo_infeasible", "detail": "No.", "earliest_deadline_ms": 70},
            {"id": "i1", "state": "queued"},
        ]
        platform.answers["POST /v1/functions/f/invocations"] = (202, {"invocations": answers})
        ended = [{"id": "i1", "state": "succeeded", "output": 5, "late_ms": 3.0}]
        platform.answers["POST /v1/invocations:wait"] = (200, {"invocations": ended})
        (tmp_path / "list").write_text("[1, 2]")
        assert smore("invoke", "f", "--inputs", str(tmp_path / "list")) == EXIT_FAILED
        printed = capsys.readouterr()
        refused, output = printed.out.splitlines()
        assert json.loads(refused) == {
            "state": "rejected",
            "cause": "slo_infeasible",
            "detail": "No.",
            "earliest_deadline_ms": 70,
        }
        assert output == "5"
        assert "The first that did not succeed: slo_infeasible No.\n1 succeeded, 1 slo_infeasible\n" in printed.err
        assert "1 of 2 ended after their deadlines." in printed.err
        assert smore("invoke", "f", "--inputs", str(tmp_path / "list"), "--async") == EXIT_FAILED
        printed = capsys.readouterr()
        assert printed.out == "-\ni1\n"
        assert printed.err.endswith("1 slo_infeasible, 1 queued\n")
        (tmp_path / "list").write_text("{nothing")
        assert smore("invoke", "f", "--inputs", str(tmp_path / "list")) == 2

    def test_a_result_that_is_not_there_yet_is_a_failure(self, serve: Serve) -> None:
        serve().answers["GET /v1/invocations/i1/result"] = (202, {"id": "i1", "state": "running"})
        assert smore("result", "i1") == EXIT_FAILED

    def test_ps_asks_for_what_was_named(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        platform = serve()
        platform.answers["GET /v1/invocations"] = (
            200,
            {"invocations": [{"id": "i1", "state": "failed", "cause": "crashed"}]},
        )
        assert smore("ps", "--function", "f", "--state", "failed") == 0
        named = {"function": "f", "state": "failed"}
        assert platform.asked[0] == ("GET /v1/invocations", named | {"limit": "20"})
        assert "crashed" in capsys.readouterr().out
        theirs = {"id": "i2", "state": "failed", "project": "vision"}
        platform.answers["GET /v1/invocations"] = (200, {"invocations": [theirs | {"function": "twice"}]})
        assert smore("ps", "--all-projects") == 0
        assert platform.asked[-1] == ("GET /v1/invocations", {"limit": "20", "all_projects": "true"})
        assert {"vision", "twice"} <= set(capsys.readouterr().out.split())

        def own_or_all(request: httpx.Request) -> tuple[int, object]:
            return 200, {"invocations": [theirs] if "all_projects" in request.url.params else []}

        platform.answers["GET /v1/invocations"] = own_or_all
        assert smore("ps", "--state", "failed") == 0
        assert "Other projects have some too (vision): smore ps --all-projects" in capsys.readouterr().out

    def test_ps_of_a_function_that_does_not_exist_says_so(
        self, serve: Serve, capsys: pytest.CaptureFixture[str]
    ) -> None:
        platform = serve()
        platform.answers["GET /v1/invocations"] = (200, {"invocations": []})
        missing = {"detail": "There is no function 'ehco' in this project; did you mean echo?"}
        platform.answers["GET /v1/functions/ehco"] = (404, missing)
        assert smore("ps", "--function", "ehco") == EXIT_FAILED
        assert "did you mean echo?" in capsys.readouterr().err

    def test_ps_shows_how_long_and_how_late_and_what_was_slow(
        self, serve: Serve, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def ended(id_: str, day: int, took_s: int) -> dict[str, object]:
            return {
                "id": id_,
                "state": "succeeded",
                "arrival_at": f"2999-01-0{day}T00:00:00Z",
                "finished_at": f"2999-01-0{day}T00:00:0{took_s}Z",
                "late_ms": 250 if took_s > 1 else 0,
                "cold": True,
            }

        platform = serve()
        platform.answers["GET /v1/invocations"] = (
            200,
            {
                "invocations": [
                    ended("slow", 2, 3),
                    ended("quick", 1, 1),
                    {**ended("ancient", 1, 4), "arrival_at": "2020-01-01T00:00:00Z"},
                ]
            },
        )
        assert smore("ps", "--since", "1d", "--slow", "2s") == 0
        said = capsys.readouterr().out
        assert "slow" in said and "3000.0 ms" in said and "250 ms" in said and "yes" in said
        assert "quick" not in said and "ancient" not in said


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
            "jobs": ["j1", "j2"],
            "job_names": {"j1": "night"},
            "phases_ms": {"queue": 1, "schedule": 0.5, "dispatch": 1, "load": 20, "run": 11},
            "predicted": {
                "run_s": 0.011,
                "slack_s": 0.4,
                "training_degradation": 0.05,
                "training_degradation_upper": 0.08,
                "known": False,
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
            "the history is not complete yet",
            "It succeeded on cpu0.",
            "Admission predicted at least 12.5 ms; the deadline allowed 500.0 ms.",
            "Attempt 1 on cpu0: succeeded (ok), cold start, batch of 3, beside night j2",
            "load 20.0, run 11.0",
            "11.5 ms",
            "8.0 %",
            "not comparable",
            "Decided by smore-product (seed 0, table 3, priority 0.5); the shadow policy edf-util chose nowhere",
            "has too little memory",
            "Not chosen: 2 GPU instances have too little memory.",
        ):
            assert part in said

    def test_what_was_lost_with_its_worker(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        lost = {
            "attempt": 1,
            "gpu": "cpu0",
            "state": "queued",
            "cause": "worker_lost",
            "finished_at": "2026-01-31T12:00:09Z",
            "worker_seen_at": "2026-01-31T12:00:08Z",
        }
        again = {"attempt": 2, "gpu": "cpu1", "state": "running"}
        serve().answers["GET /v1/invocations/i1/explain"] = (200, EXPLAINED | {"attempts": [lost, again]})
        assert smore("explain", "i1") == 0
        said = capsys.readouterr().out
        assert "Attempt 1 on cpu0: returned to the queue (worker_lost), did not run to its end, 2026-01-31" in said
        assert "The worker of cpu0 died or was cut off: it reported last at 2026-01-31" in said
        assert "Attempt 2 on cpu1: running (-), has not ended" in said

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
        assert "2 invocations of its function have earlier deadlines. There is no GPU instance." in said
        assert (
            "had no prediction; the deadline allowed 5.0 ms; for a request that arrives now it predicts 7.0 ms." in said
        )

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

    def test_a_dry_run_of_what_would_not_be_in_time_fails(
        self, serve: Serve, capsys: pytest.CaptureFixture[str]
    ) -> None:
        waits = {
            "outcome": "waits",
            "feasible": False,
            "detail": "Nothing places it: 2 GPU instances have too little memory.",
            "decision": DECISION,
        }
        serve().answers["POST /v1/functions/f/invocations:dryRun"] = (200, waits)
        assert smore("invoke", "f", "-i", "[1]", "--dry-run") == 1
        said = capsys.readouterr().out
        assert "waits: Nothing places it" in said and "Not chosen" not in said
