"""zoo.train: it learns, it reports, and it stops when told."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import smore
from smore.tracking.ring import TrackReader
from tests.support.eventually import PATIENCE
from zoo.model import card
from zoo.train import Options, Stop, Training, main, parse

ROOT = Path(__file__).parents[3]


@pytest.fixture
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.usefixtures("one_thread")
def test_the_loss_falls_on_a_fixed_batch() -> None:
    training = Training(card("mobilenet"), Options(model="mobilenet", batch=8))
    losses = [training.iterate(0) for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]


def start(track: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "zoo.train", "--json", *arguments],
        cwd=ROOT,
        env=os.environ | {"SMORE_TRACK": str(track)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_job_reports_its_iterations_and_stops_on_sigterm(tmp_path: Path) -> None:
    path = tmp_path / "job.track"
    job = start(path, "--model", "mobilenet", "--batch", "2", "--input-wait", "0.5")
    try:
        reader = TrackReader(str(path))
        limit = time.monotonic() + 30 * PATIENCE
        steps: list[tuple[float, float]] = []
        while len(steps) < 10 and job.poll() is None and time.monotonic() < limit:
            steps += reader.read_new()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(timeout=0.02)  # polls, and leaves the core to the job
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate(timeout=30)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 0
    summary = json.loads(output)
    steps += reader.read_new()
    assert summary["stopped"] is True
    assert summary["iterations"] == len(steps) == reader.count >= 10
    assert reader.pid == job.pid
    # The last iterations were whole: their reported times hold the wait and a computation of about its length.
    assert summary["wait_s"] > 0
    assert all(duration > summary["wait_s"] for _, duration in steps[-3:])
    assert summary["p99_s"] >= summary["p50_s"] >= summary["wait_s"]


@pytest.mark.usefixtures("one_thread")
def test_a_job_ends_by_its_count_of_iterations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SMORE_TRACK", str(tmp_path / "job.track"))
    # The process of the tests keeps its signals.
    monkeypatch.setattr(Stop, "install", lambda _: None)
    main(["--json", "--model", "mobilenet", "--batch", "2", "--iterations", "4"])
    summary = json.loads(capsys.readouterr().out)
    assert (summary["iterations"], summary["stopped"]) == (4, False)


@pytest.mark.parametrize("wrong", [["--input-wait", "1"], ["--batch", "0"], ["--model", "gpt"]])
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--model", "resnet50", *wrong])


@pytest.mark.usefixtures("one_thread")
def test_a_batch_in_micro_batches_gives_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(micro_batches: int) -> torch.Tensor:
        monkeypatch.setenv("SMORE_MICRO_BATCHES", str(micro_batches))
        training = Training(card("vgg16"), Options(model="vgg16", batch=6))
        for part in training.module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        tracker = smore.track()
        for number in range(3):
            training.iterate(number, tracker.micro_batches)
        return torch.cat([weight.detach().flatten() for weight in training.module.parameters()])

    whole = trained(1)
    # 4 does not divide 6: a part counts by its rows.
    assert torch.allclose(trained(4), whole, rtol=0, atol=1e-5)
    assert not torch.equal(trained(4), whole)
