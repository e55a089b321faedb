"""What a statement says of other trainings on the same GPU instances."""

import re
from dataclasses import replace

import pytest

from api import job_pairs
from api.job_views import explanation
from api.statements import stated
from smore.domain.job import JobState
from smore.domain.loss import Sums
from smore.postgres.history.values import Closed, Harvest
from smore.postgres.job_pairs import JobPair
from smore.postgres.jobs import Job

JOB = Job(
    id="j",
    project="p",
    name="night",
    argv=[],
    gpus=["g"],
    state=JobState.RUNNING,
    created_at=0.0,
    started_at=1.0,
    workload="a/cpu/training/4",
)


def pair(**measured: float) -> JobPair:
    return JobPair(
        job="j",
        attempt=1,
        other="o",
        other_attempt=1,
        guest=True,
        gpus=["g"],
        device="d",
        sharing_mode="m",
        from_at=10.0,
        until_at=10.0 + 11.8 * 60,
        predicted=1.1,
        **measured,
    )


@pytest.mark.parametrize(
    ("measured", "names", "words"),
    [
        (
            {"loss": 0.14, "loss_low": 0.09, "loss_high": 0.19},
            {"o": "sweep-7"},
            "beside sweep-7 for 11.8 min: lost 14 % (9 to 19 %) to it",
        ),
        ({"loss": -0.004, "loss_low": -0.02, "loss_high": 0.01}, {"o": "s"}, "lost 0 % (-2 to 1 %) to it"),
        ({"loss": 0.14}, {"o": "sweep-7"}, "lost about 14 % to it, by its profile's iteration time"),
        (
            {},
            {},
            "beside a training of another project for 11.8 min: what it lost to it is unmeasured: too few of its iterations"
            " beside it were reported",
        ),
        (
            {"beside_s": 0.3},
            {"o": "s"},
            "what it lost to it is unmeasured: it was never alone for long enough, and a/cpu/training/4 has no profile on d",
        ),
        ({"loss": 0.3, "held_s": 12.0}, {}, "and was held back for 12.0 s"),
    ],
)
def test_a_statement_names_what_each_other_training_cost(
    measured: dict[str, float], names: dict[str, str], words: str
) -> None:
    harvest = Harvest(seconds=0.0, invocations=0)
    statement = stated(JOB, {}, harvest, 1.0, [], [pair(**measured)], names, measured=True)
    assert words in statement.summary
    [beside] = statement.beside
    assert (beside.id, beside.guest, beside.predicted, beside.loss) == ("o", True, 1.1, measured.get("loss"))
    assert (beside.unmeasured is None) == ("loss" in measured)
    assert beside.seconds == pytest.approx(11.8 * 60)


def test_an_explanation_says_what_is_lost_to_those_who_are_there_and_why_it_is_not_known() -> None:
    unsaid = replace(JOB, workload="")
    others = [job_pairs.beside(pair(beside_s=0.3), {"o": "sweep-7"}, unsaid.workload)]
    told = explanation(unsaid, None, [], [], others, leading=True)
    assert told.summary.endswith(
        " Beside sweep-7 for 11.8 min: what it lost to it is unmeasured: it was never alone for long enough, and without a"
        " workload it has no profile."
    )


def closed(open_s: float, windows: int = 10, pace_s: float = 30.0, spread: float = 0.0) -> Closed:
    """Windows of 0.1 s a closed iteration, every ``pace_s``."""
    squares = windows * (windows - 1) * (spread * open_s) ** 2
    sums = Sums(windows, windows * open_s, windows * 0.1, squares)
    return Closed(sums=sums, first_at=0.0, last_at=(windows - 1) * pace_s)


@pytest.mark.parametrize(
    ("pace_s", "said"),
    [(30.0, "closed windows to go, about 90 s"), (469.0, "about 23 min"), (3600.0, "about 3.0 h")],
)
def test_what_is_missing_to_an_estimate_is_in_units_that_people_read(pace_s: float, said: str) -> None:
    harvest = Harvest(seconds=0.0, invocations=0)
    few = closed(0.105, 5, pace_s)
    statement = stated(JOB, {"g": few}, harvest, 1.0, [], measured=True)
    assert said in statement.summary


def test_what_is_not_proven_has_its_interim_estimate() -> None:
    harvest = Harvest(seconds=0.0, invocations=0)
    statement = stated(JOB, {"g": closed(0.106, spread=0.03)}, harvest, 1.0, [], measured=True)
    assert statement.verdict == "not_proven"
    assert "training lost about 6.0 % so far, between" in statement.summary
    assert (
        f"{(statement.loss_high or 0) * 100:.1f} % with 95 % confidence (budget 10 %): not proven" in statement.summary
    )
    assert re.search(r": not proven: at least [1-9]0* more closed windows?, about ", statement.summary)
