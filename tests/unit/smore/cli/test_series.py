"""What the commands show of a past."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from smore.cli.series import sparkline
from tests.support.answers import ANSWERS
from tests.support.cli import Serve, serve, smore

__all__ = ["serve"]


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([0, 0.5, 1], "▁▅█"),
        ([0, None, 0], "▁ ▁"),
        ([None, None], "  "),
        ([], ""),
        ([1e-9, 1e9], "▁█"),
        ([-1, 4], "▁█"),
    ],
)
def test_a_line_of_blocks(values: list[float | None], drawn: str) -> None:
    assert sparkline(values) == drawn


def test_a_gpu_instance_over_time(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["GET /v1/gpus:series"] = (200, ANSWERS["GpuSeries"])
    assert smore("gpus", "show", "cpu0", "--since", "6h") == 0
    table = capsys.readouterr().out
    assert "cpu0 from" in table
    assert "██" in table
    assert "95.0 %" in table
    ((_, query),) = platform.asked
    assert isinstance(query, dict)
    assert (query["gpu"], query["step"]) == ("cpu0", "540")
    assert datetime.now(UTC) - datetime.fromisoformat(query["since"]) == pytest.approx(
        timedelta(hours=6), abs=timedelta(minutes=1)
    )

    assert smore("gpus", "show", "cpu0", "-o", "csv") == 0
    assert capsys.readouterr().out.splitlines() == [
        "at,used,by functions,memory MiB",
        "2026-01-31T12:00:00+00:00,0.93,0.11,1310.0",
        "2026-01-31T12:01:00+00:00,0.95,0.14,1310.0",
    ]
    assert smore("gpus", "show", "cpu0", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["gpus"]["cpu0"]["used"] == [0.93, 0.95]
    assert "step" not in platform.asked[-1][1], "whole series have the platform's step"  # type: ignore[operator]


def test_what_was_on_a_gpu_instance(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["GET /v1/gpus/cpu0/lanes"] = (200, ANSWERS["GpuLanes"])
    assert smore("gpus", "show", "cpu0", "--lanes") == 0
    table = capsys.readouterr().out
    assert "closed windows" in table and "80.0 %" in table
    assert "warm: default/echo" in table and "██" in table


def test_a_function_and_a_job_over_time(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["GET /v1/functions/echo/series"] = (200, ANSWERS["FunctionSeries"])
    platform.answers["GET /v1/jobs/night/series"] = (200, ANSWERS["JobSeries"])
    assert smore("functions", "show", "echo", "--since", "1d") == 0
    told = capsys.readouterr().out
    assert "cold: never_seen" in told
    assert "6.5 ms" in told
    assert smore("functions", "show", "echo", "--since", "1d", "-o", "csv") == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.startswith("at,arrivals,succeeded,in time,failed,cold,cold: never_seen,")
    assert (first.split(",")[6], second.split(",")[6]) == ("1", "")
    assert smore("jobs", "show", "night", "--since", "1d") == 0
    assert "lost, high" in capsys.readouterr().out

    platform.answers["GET /v1/functions/echo"] = (200, ANSWERS["Function"])
    assert smore("functions", "show", "echo") == 0
    assert capsys.readouterr().out.startswith("name: echo")
    assert smore("functions", "show", "echo", "-o", "csv") == 2
    assert "--since" in capsys.readouterr().err


def test_usage_has_each_project_once_in_hours_and_money(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["GET /v1/harvest"] = (200, {**ANSWERS["Harvest"], "unpriced": ["NVIDIA A100"]})
    assert smore("usage", "--since", "30d", "--by", "project", "--price", "h100=2.5") == 0
    shown = capsys.readouterr().out
    assert "default 1.475 3.69" in " ".join(shown.split())
    assert "without a price: NVIDIA A100" in shown
    ((_, query),) = platform.asked
    assert isinstance(query, dict)
    assert (query["by"], query["price"]) == ("project", "h100=2.5")
    assert smore("usage", "-o", "csv") == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.startswith("key,run_s,money,") and line.startswith("default,5310.5,3.69,")
    assert smore("usage", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["totals"][0]["lost_s"] == 891


def test_the_harvest_and_the_versions(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["GET /v1/harvest"] = (200, ANSWERS["Harvest"])
    platform.answers["GET /v1/predictor/versions"] = (200, ANSWERS["PredictorVersions"])
    assert smore("harvest", "--by", "gpu", "--since", "7d") == 0
    assert "2.1 % (1.2 % to 3.1 %)" in capsys.readouterr().out
    assert smore("harvest", "-o", "csv") == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header == "at,key,run_s,money,invocations,met,cold,saved,lost,lost_low,lost_high,windows"
    assert line.startswith("2026-01-31T00:00Z,default,5310.5,")
    platform.answers["GET /v1/harvest"] = (200, {**ANSWERS["Harvest"], "parts": []})
    assert smore("harvest", "-o", "csv") == 0
    assert smore("predictor", "versions") == 0
    assert "champion" in capsys.readouterr().out
    assert smore("predictor", "versions", "-o", "csv") == 0
    assert capsys.readouterr().out.splitlines()[0] == "version,fitted,state,reason"
