"""`smore predictor` and `smore profile`: devices without measured rows, and what measures them."""

from collections.abc import Mapping

import pytest

from smore.cli import launch
from smore.cli.terminal import EXIT_USAGE
from smore.local import layout
from smore.local import machine as local
from smore.local.asking import Endpoints
from smore.local.layout import Partition
from tests.support.cli import Serve, serve, smore

__all__ = ["serve"]

Started = list[tuple[tuple[str, ...], Mapping[str, str] | None]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The programs that commands have started, and their variables."""
    started: Started = []

    def start(*words: str, variables: Mapping[str, str] | None = None) -> None:
        started.append((words, variables))

    monkeypatch.setattr(launch, "start", start)
    return started


def machine(monkeypatch: pytest.MonkeyPatch, *parts: Partition, runs: bool) -> None:
    ends = Endpoints(home="", gateway_url="http://test", redis_url="", postgres_url="", supervisor_pid=1)
    monkeypatch.setattr(layout, "machine_partitions", lambda _: parts)
    monkeypatch.setattr(local, "endpoints", lambda _: ends if runs else None)


def test_the_version_in_force_names_devices_without_rows(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    trainings = ["bert/cpu/training/1", "bert/cpu/training/2", "bert/cpu-wait-0.6/training/1"]
    functions = ["bert/cpu/function/1", "bert/cpu/function/2"]
    place = {"device": "measured", "sharing_mode": "time-slice", "measured": 3}
    places = [place | {"trainings": trainings, "functions": functions}]
    platform.answers["GET /v1/predictor"] = (200, {"version": 1, "places": places})
    gpus = [{"id": "gpu0", "device": "measured", "sharing_mode": "time-slice"}, {"id": "gpu1", "device": "other"}]
    platform.answers["GET /v1/gpus"] = (200, {"gpus": gpus})
    for command in (["predictor"], ["predictor", "show"]):
        assert smore(*command) == 0
        shown = capsys.readouterr().out
        # A training with another wait for input is measured beside trainings alone.
        assert "3 of 4" in shown and "-wait-" in shown and "No measured rows: gpu1. " in shown


def test_a_question_without_an_answer_says_what_is_missing(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["GET /v1/predictions"] = (200, {"version": 0, "predictions": [], "pairs": []})
    platform.answers["GET /v1/predictor"] = (200, {"version": 0, "places": []})
    for other in ("bert/cpu", "bert/cpu/training/1"):
        assert smore("predictor", "ask", "resnet50/cpu/training/8", other) == 0
        assert "No predictor is in force" in capsys.readouterr().out
    known = {"device": "d", "trainings": ["resnet50/cpu/training/8"], "functions": ["bert/cpu/function/1"]}
    platform.answers["GET /v1/predictor"] = (200, {"version": 1, "places": [known]})
    unknown = {"device": "d", "known": False, "training_degradation": 1.0, "function_degradation": 1.0}
    unknown |= {"training_degradation_upper": None, "function_degradation_upper": None}
    platform.answers["GET /v1/predictions"] = (200, {"version": 1, "predictions": [unknown]})
    assert smore("predictor", "ask", "resnet5/cpu/training/8", "brt/cpu") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "100.0 % (assumed) 100.0 % (assumed) nothing: an assumption" in shown and "90 %" not in shown
    assert "row of the training resnet5/cpu/training/8; did you mean resnet50/cpu/training/8?" in shown
    assert "row of the model brt/cpu; did you mean bert/cpu?" in shown
    assert smore("predictor", "ask", "resnet50/cpu/training/8", "bert/cpu", "-o", "json") == 0
    assert "row of" not in capsys.readouterr().out


def test_a_partition_is_measured_under_the_name_that_its_worker_reports(
    serve: Serve, started: Started, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    platform = serve()
    platform.answers["GET /v1/predictor"] = (200, {"version": 1, "places": []})
    platform.answers["GET /v1/gpus"] = (200, {"gpus": [{"id": "cpu0", "device": "CPU"}]})
    parts = [Partition(gpu=f"cpu{number}", kind="cpu", device=f"{number + 1}", share=0.5) for number in range(2)]
    machine(monkeypatch, *parts, runs=True)
    assert smore("profile", "--minutes", "5", "--out", "r.jsonl", "--gpu", "cpu1", "--window", "6") == 0
    [(measured, _), (imported, _), (fitted, _)] = started
    assert measured[0] == "profile"
    words = " ".join(measured)
    assert "--minutes 5 " in words and "--device cpu --cores 2 --share 0.5 --function-nice 5 --window 6" in words
    assert "--few" in measured
    assert (imported, fitted) == (("learning", "import", "r.jsonl"), ("learning", "retrain"))
    assert "goes on where r.jsonl ends" in capsys.readouterr().out
    assert smore("profile", "--gpu", "cpu9") == EXIT_USAGE


def test_a_gpu_is_measured_by_its_uuid_and_without_a_platform_the_rows_stay(
    started: Started, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(monkeypatch, Partition(gpu="gpu0", kind="cuda", device="GPU-1"), runs=False)
    assert smore("profile") == 0
    [(measured, variables)] = started
    assert measured[-2:] == ("--device", "cuda") and "--few" not in measured
    assert variables == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert "The rows stay in profile.jsonl" in capsys.readouterr().err


def test_what_is_said_of_a_version_is_a_line_for_each_place(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    told = {
        "version": 2,
        "created_at": "2026-01-31T12:00:00Z",
        "reason": "The first: a: good; b: better.",
        "places": [],
    }
    platform = serve()
    platform.answers |= {"GET /v1/predictor": (200, told), "GET /v1/gpus": (200, {"gpus": []})}
    assert smore("predictor", "show") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["version 2 of 2026-01-31 12:00:00 UTC: The first: a: good", "  b: better."]
