"""``smore keys``, ``smore secrets`` and revisions in quarantine."""

import io
import sys

import pytest

from tests.support.cli import Serve, serve, smore

__all__ = ["serve"]


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


def test_a_project_that_is_missing_is_made_first(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    missing = {"status": 404, "code": "not_found", "title": "Not Found", "detail": "There is no project teamp."}
    serve().answers["POST /v1/keys"] = (404, missing)
    assert smore("keys", "create", "ci", "--project", "teamp") == 1
    said = capsys.readouterr().err
    assert "There is no project teamp." in said and "next: `smore projects create teamp`" in said


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


def test_what_a_project_may_use_is_said(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    project = {"name": "vision", "created_at": "2026-01-31T14:00:00Z", "held": {"depth": 7}}
    serve().answers["GET /v1/projects"] = (200, {"projects": [project | {"use": {"depth": 3, "concurrency": 1}}]})
    assert smore("projects") == 0
    said = capsys.readouterr().out
    assert "3 of 7" in said and "1, no limit" in said and "any" not in said
