"""The profiler on a CPU partition: real processes, its rows, going on, and what it refuses."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.measure import device, profile
from lab.measure.layers import table_iii
from ml import rows
from zoo.train import Options, Training

#: One core that this process may use.
CORE = str(min(os.sched_getaffinity(0)))


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[rows.Row]]:
    monkeypatch.setattr(profile, "SOLO_S", 0.4)
    monkeypatch.setattr(profile, "CONTROL_S", {"training": 0.1, "function": 0.1})
    out = tmp_path / "rows.jsonl"

    def run(*words: str, parallel: bool = True) -> list[rows.Row]:
        """``parallel``: start all workloads at once."""
        few = ["--functions", "0", "--several", "0", "--repeated", "0", "--repeated-functions", "0", "--window", "1.5"]
        here = ["--device", "cpu", "--cores", CORE, "--models", "mobilenet"]
        here += ["--parallel"] * parallel
        assert profile.main(["--out", str(out), *here, "--order", "pairs", *few, *words]) == 0
        return rows.read(out)

    return run


def test_measures_goes_on_and_names_its_place(
    measure: Callable[..., list[rows.Row]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Trainings fail at first: they are named, and the others go on. The next start measures what is left."""
    start = device.CpuPartition.start

    def break_trainings(self: device.CpuPartition, argv: list[str], role: rows.Role) -> object:
        return start(self, argv if role == "function" else [sys.executable, "-c", ""], role)

    with monkeypatch.context() as broken:
        broken.setattr(device.CpuPartition, "start", break_trainings)
        function, functions = measure("--pairs", "1", "--functions", "1")
    assert "mobilenet/cpu/training/4 could not be measured: its process ended" in capsys.readouterr().err
    more = measure("--pairs", "1", "--functions", "1")
    assert more[:2] == [function, functions]
    training, together = more[2:]
    assert isinstance(training, rows.Solo)
    assert isinstance(function, rows.Solo)
    assert isinstance(together, rows.Colocation) and isinstance(functions, rows.Colocation)
    assert (functions.kind, together.kind) == ("functions", "pair")
    assert (training.workload.role, function.workload.role) == ("training", "function")
    assert set(training.cold_s) == set(function.cold_s) == {"import", "context", "weights", "first_run"}
    assert function.features["conv"] == 52
    assert training.features["flops"] > function.features["flops"]
    assert training.input_wait_s > 0
    assert function.kernels["per_run"] > 50
    assert together.place == training.place
    assert together.place.device.startswith("CPU partition: 1 core of ")
    assert together.place.sharing_mode == "time-slice, functions nice 5"
    assert together.utilisation is not None
    assert "/" not in training.command.replace("python -m lab.measure.profile", "")
    assert all(member.timing.n >= 1 for member in together.members)
    assert '"runs_done": 2' in capsys.readouterr().out.splitlines()[-1]
    # The same plan again measures nothing more.
    assert measure("--pairs", "1", "--functions", "1") == more
    # Rows of another sharing mode are not added to these.
    other = ["--out", str(tmp_path / "rows.jsonl"), "--device", "cpu", "--cores", CORE, "--function-nice", "0"]
    assert profile.main(other) == 2
    assert "use another file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--models", "gpt"], ["--cores", "999"], ["--function-nice", "20"], ["--k-max", "9"]]
)
def test_wrong_words_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        profile.parse(["--out", "x.jsonl", "--device", "cpu", *wrong])


def test_no_time_measures_nothing(measure: Callable[..., list[rows.Row]], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    assert measure("--pairs", "1", "--minutes", "0.001", parallel=False) == []


def test_table_iii_of_a_training_by_hand() -> None:
    from zoo.model import card

    training = Training(card("deepfm"), Options(model="deepfm", batch=16))
    found = table_iii(training.module, 16, lambda: training.iterate(0), training=True)
    assert tuple(found) == rows.FEATURES
    parameters = sum(p.numel() for p in training.module.parameters())
    # Three hidden layers with ReLU and dropout, one output and the dense part's linear term; four embeddings.
    assert [found[name] for name in ("linear", "relu", "activations", "dropout", "norm", "conv", "batch")] == [
        5,
        3,
        3,
        3,
        0,
        0,
        16,
    ]
    assert found["embedding"] == 3
    assert found["parameters"] == parameters
    assert found["memory_bytes"] > 3 * 4 * parameters
    # Forward, and backward to weights and to inputs: three products of each linear layer.
    deep = 390 * 2560 + 2 * 2560 * 2560 + 2560
    assert found["flops"] == pytest.approx(3 * 2 * 16 * (deep + 13), rel=0.05)
