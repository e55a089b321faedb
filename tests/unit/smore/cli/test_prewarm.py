"""``smore prewarm`` and ``smore functions scale``."""

from typing import ClassVar

import pytest

from tests.support.cli import Serve, serve, smore

__all__ = ["serve"]


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
        assert "'long' is no duration" in capsys.readouterr().err

    def test_changes_only_what_is_named_and_says_what_is_in_force(
        self, serve: Serve, capsys: pytest.CaptureFixture[str]
    ) -> None:
        platform = serve()
        scaling = {"min_warm": 0, "max_warm": 2, "keep_alive_s": -1, "prewarm": "off"}
        platform.answers |= {
            "PATCH /v1/functions/f": (200, {"name": "f", "project": "default", "revision": 1, "scaling": scaling}),
            "POST /v1/functions/f/warm": (202, {"gpus": ["cpu0", "cpu1"]}),
            "POST /v1/functions/f/offload": (202, {"gpus": ["cpu0"]}),
        }
        assert smore("functions", "scale", "f", "--min-warm", "0", "--keep-alive", "-1", "--prewarm", "off") == 0
        assert smore("functions", "scale", "f", "--keep-alive", "10m") == 0
        assert [body for _, body in platform.asked] == [
            {"scaling": {"min_warm": 0, "keep_alive_s": -1.0, "prewarm": "off"}},
            {"scaling": {"keep_alive_s": 600.0}},
        ]
        line = "f revision 1: min_warm 0, max_warm 2, keep_alive for ever, prewarm off\n"
        assert capsys.readouterr().out == line * 2
        assert smore("functions", "warm", "f") == 0 and smore("functions", "offload", "f", "--gpu", "cpu0") == 0
        said = capsys.readouterr().out
        assert said == "f: cpu0, cpu1 will load it\nf: cpu0 will unload it where it is idle\n"
        assert smore("functions", "scale", "f") != 0
