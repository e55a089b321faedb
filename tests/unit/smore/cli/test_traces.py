"""``smore traces``: what it sends, what it prints."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from smore.cli.terminal import EXIT_USAGE
from smore_client import admin
from smore_client.transport import Call
from tests.support.cli import Serve, serve, smore

__all__ = ["serve"]


def test_a_trace_is_sent_as_it_is(serve: Serve, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    platform = serve()
    trace = {
        "id": 4,
        "name": "a_b.csv",
        "digest": "d",
        "created_at": "2026-01-02T03:04:05Z",
        "since": "2026-01-01T03:04:00Z",
        "until": "2026-01-01T11:04:00Z",
        "functions": [{"function": "f", "source": "hash", "arrivals": 12}],
    }
    platform.answers["POST /v1/traces"] = (201, trace)
    platform.answers["GET /v1/traces"] = (200, {"traces": [trace]})
    platform.answers["DELETE /v1/traces/4"] = (200, {"id": 4})
    file = tmp_path / "a b.csv"
    file.write_text('{"any": "bytes"}')
    assert (
        smore(
            "traces",
            "import",
            str(file),
            "--map",
            "hash=f",
            "--deal",
            "g",
            "--deal",
            "h",
            "--end",
            "2026-01-01T11:04:00Z",
        )
        == 0
    )
    assert "hash" in capsys.readouterr().out
    assert smore("traces") == smore("traces", "list") == 0
    assert "f 12" in capsys.readouterr().out
    assert smore("traces", "remove", "4") == 0
    assert smore("traces", "import", str(file), "--end", "noon") == smore("traces", "import", "nowhere") == EXIT_USAGE
    assert [asked for asked, _ in platform.asked] == [
        "POST /v1/traces",
        "GET /v1/traces",
        "GET /v1/traces",
        "DELETE /v1/traces/4",
    ]
    assert platform.asked[0][1] == {"any": "bytes"}
    call = next(
        admin.import_trace(
            b"\x1f\x8b", name="t", give=["hash=f"], deal=["g", "h"], end=datetime(2026, 1, 1, tzinfo=UTC)
        )
    )
    assert isinstance(call, Call)
    assert call.query == (
        ("name", "t"),
        ("map", "hash=f"),
        ("deal", "g"),
        ("deal", "h"),
        ("end", "2026-01-01T00:00:00+00:00"),
    )
    assert (call.content, call.headers, call.repeatable) == (b"\x1f\x8b", {"Content-Type": "application/gzip"}, False)
