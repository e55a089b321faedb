"""The command ``smore`` as a whole: its help, its exit codes."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import smore_client
from smore.cli.terminal import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, problem
from smore_client import transport
from tests.support.cli import PROBLEM, Serve, serve, smore

__all__ = ["serve"]


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
        assert smore("invoke", "f", "--deadline-ms", "1") == EXIT_FAILED
        said = capsys.readouterr()
        assert said.out == ""
        assert "Too late. (slo_infeasible, 429)" in said.err
        assert "the earliest deadline that would be met: 70 ms" in said.err
        assert "{" not in said.err
        assert "next: give it more time with --deadline-ms" in said.err
        assert smore("-v", "invoke", "f", "--deadline-ms", "1") == EXIT_FAILED
        assert '"earliest_deadline_ms": 70' in capsys.readouterr().err

    def test_the_next_step_is_named(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        for code, body, step in (
            ("deadline_expired", {"id": "i1"}, "next: `smore explain i1` says"),
            ("invocation_not_found", {}, "of a request's id `smore logs --request ID` shows"),
            ("function_not_found", {}, "next: `smore functions` lists"),
            ("slo_infeasible", {}, "`smore invoke NAME --dry-run` with the same deadline says what stands against it"),
        ):
            serve().answers["POST /v1/functions/f/invocations"] = (504, PROBLEM | body | {"code": code})
            assert smore("invoke", "f") == EXIT_FAILED
            assert step in capsys.readouterr().err
        # Not with a hole in it.
        serve().answers["POST /v1/functions/f/invocations"] = (422, PROBLEM | {"code": "handler_error"})
        assert smore("invoke", "f") == EXIT_FAILED
        assert "next:" not in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("answer", "key", "said"),
        [
            ((401, {"detail": "No."}), "", "No key was sent to http://there: SMORE_API_KEY holds one, or SMORE_HOME"),
            (
                (401, {"detail": "No."}),
                "sk",
                "The key of SMORE_API_KEY was sent to http://there, which does not know it",
            ),
            (
                (429, {"detail": "Full.", "code": "limit_reached", "field": "depth"}),
                "sk",
                "`smore projects` shows the limit depth and what is used of it; an operator changes it",
            ),
            # This limit is none of the project's.
            (
                (429, {"detail": "As many follow logs here as may.", "code": "limit_reached"}),
                "sk",
                "(limit_reached, 429)\n",
            ),
            (
                (503, {"detail": "No.", "code": "draining"}),
                "sk",
                "an operator ends a drain of the platform (`smore queues resume --all`)",
            ),
        ],
    )
    def test_the_next_step(
        self,
        serve: Serve,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        answer: tuple[int, object],
        key: str,
        said: str,
    ) -> None:
        monkeypatch.setenv("SMORE_URL", "http://there")
        monkeypatch.setenv("SMORE_API_KEY", key)
        serve().answers["GET /v1/gpus"] = answer
        assert smore("gpus") == EXIT_FAILED
        assert said in capsys.readouterr().err

    def test_when_to_try_again_is_said(self) -> None:
        refused = smore_client.ApiError(429, "limit_reached", "Full.", {"field": "depth"}, 7.0)
        assert problem(refused).endswith("with `smore projects limit`, or try again in 7 s")

    @pytest.mark.parametrize(
        "arguments", [("invoke", "f", "--input", "{"), ("invoke",), ("gpus", "-o", "xml"), ("nothing",)]
    )
    def test_usage(self, serve: Serve, arguments: tuple[str, ...]) -> None:
        assert serve().asked == []
        assert smore(*arguments) == EXIT_USAGE

    def test_unreachable(
        self, serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused", request=request)

        made = smore_client.Client("http://test", "sk", transport=httpx.MockTransport(refuse))
        monkeypatch.setattr(smore_client, "Client", lambda: made)
        monkeypatch.setattr(transport, "RETRY_S", 0.0)
        assert smore("gpus") == EXIT_UNREACHABLE
        assert "http://test cannot be reached: refused" in capsys.readouterr().err

    def test_a_missing_file(self, serve: Serve, tmp_path: Path) -> None:
        assert serve().asked == []
        assert smore("deploy", str(tmp_path / "none.yaml")) == EXIT_USAGE
