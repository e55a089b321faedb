"""The dashboard from a shell: an address with a code, and a browser that gets it."""

import webbrowser

import pytest

from tests.support.cli import Serve, serve, smore

__all__ = ["serve"]

CODE = {"code": "c0de", "expires_at": "2026-01-31T12:01:00Z"}


def test_the_address_holds_a_code_and_the_page(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    serve().answers["POST /v1/session:code"] = (201, CODE)

    assert smore("open", "--print") == 0
    assert smore("open", "trainings", "a/b", "--print") == 0

    assert capsys.readouterr().out.splitlines() == [
        "http://test/ui/login#c0de",
        "http://test/ui/login?to=%2Fui%2Ftrainings%2Fa%252Fb#c0de",
    ]


@pytest.mark.parametrize("there", [True, False])
def test_a_browser_gets_it_where_there_is_one(
    serve: Serve, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    serve().answers["POST /v1/session:code"] = (201, CODE)
    opened: list[str] = []

    def open_(address: str) -> bool:
        opened.append(address)
        return there

    monkeypatch.setattr(webbrowser, "open", open_)

    assert smore("open") == 0

    assert opened == ["http://test/ui/login#c0de"]
    assert capsys.readouterr().out == ("" if there else "http://test/ui/login#c0de\n")


def test_a_page_that_there_is_not(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    serve()

    assert smore("open", "moon") == 2
    assert "There is no page moon: audit," in capsys.readouterr().err


def test_who_uses_this_shell(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    me = {"key": "k", "name": "ana", "project": "vision", "scopes": ["read"], "operator": False, "session": None}
    serve().answers["GET /v1/me"] = (200, me)

    assert smore("whoami") == 0

    assert capsys.readouterr().out == "ana (k), of the project vision, may read; at http://test\n"
