"""What a replay says of itself; tests/integration/lab/research has its command."""

import math
from pathlib import Path

import pytest

from lab.research.replay.replay import STEP_S, _attached, _write, doubt
from smore.messages.reports import JobReport, Report


@pytest.mark.parametrize(
    ("happened", "force", "doubtful"),
    [(0.1, 0.149, False), (0.1, 0.151, True), (0.1, 0.049, True), (math.nan, 0.1, False), (0.1, math.nan, False)],
)
def test_a_median_far_from_what_happened_makes_the_replay_doubtful(
    happened: float, force: float, doubtful: bool
) -> None:
    words = doubt({"happened": {"p50_s": happened}, "force": {"p50_s": force}, "other": {"p50_s": 0.1}})
    assert ("What is simulated of other policies is doubtful here" in words) is doubtful


def report(*jobs: JobReport) -> Report:
    return Report(
        gpu="g",
        boot="b",
        at=0.0,
        kind="cpu",
        device="a CPU",
        sharing_mode="time-slice",
        slots=3,
        memory_total_mib=2000.0,
        memory_used_mib=10.0,
        utilisation=0.7,
        utilisation_counter="cpu-time",
        function_utilisation=0.1,
        running=1,
        jobs=jobs,
    )


def training(id_: str, memory_mib: float, state: str = "running", unseen: str = "") -> JobReport:
    return JobReport(
        id=id_, project="p", state=state, pid=1, memory_mib=memory_mib, iterations=0, measured=False, unseen=unseen
    )


def test_a_training_that_tells_no_iterations_counts_by_its_report() -> None:
    found = _attached(
        report(training("small", 10.0), training("large", 20.0), training("elsewhere", 30.0, unseen="no"))
    )
    assert found is not None
    assert (found.job, found.gpu, found.solo_s) == ("large", "g", STEP_S)
    assert _attached(report(training("over", 10.0, state="succeeded"))) is None
    assert _attached(None) is None


def test_every_column_is_written(tmp_path: Path) -> None:
    columns = {"happened": {"dsr": 0.9, "sfd": math.nan}, "other": {"dsr": 1.0}, "other_2": {"dsr": 0.5}}
    heads = {"happened": "happened", "other": "simulated: edf-util", "other_2": "simulated: random"}
    path = _write(tmp_path / "new", heads, columns)
    assert path.read_text().splitlines() == [
        "column,policy,figure,value",
        "happened,happened,dsr,0.9",
        "other,simulated: edf-util,dsr,1.0",
        "other_2,simulated: random,dsr,0.5",
    ]
