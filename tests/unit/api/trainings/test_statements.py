"""What a statement says of other trainings on the same GPU instances."""

import re
from dataclasses import replace

import pytest

from api.trainings import pairs as job_pairs
from api.trainings.budgets import too_long
from api.trainings.statements import Span, stated
from api.trainings.views import explanation
from smore.domain.job import JobRequest, JobState
from smore.domain.loss import Sums
from smore.postgres.history.values import Closed, Harvest
from smore.postgres.job_pairs import JobPair
from smore.postgres.jobs import Job

JOB = Job(
    id="j",
    project="p",
    name="night",
    request=JobRequest(workload="a/cpu/training/4"),
    gpus=["g"],
    state=JobState.RUNNING,
    created_at=0.0,
    started_at=1.0,
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
    unsaid = replace(JOB, request=JobRequest())
    others = [job_pairs.beside(pair(beside_s=0.3), {"o": "sweep-7"}, unsaid.request.workload)]
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
    harvest = Harvest(seconds=3.0, invocations=3)
    few = closed(0.105, 5, pace_s)
    statement = stated(JOB, {1: few}, harvest, 1.0, [], measured=True)
    assert said in statement.summary


def test_what_is_not_proven_has_its_interim_estimate() -> None:
    harvest = Harvest(seconds=3.0, invocations=3)
    statement = stated(JOB, {1: closed(0.106, spread=0.03)}, harvest, 1.0, [], measured=True)
    assert statement.verdict == "not_proven"
    assert "training lost about 6.0 % so far, between" in statement.summary
    assert (
        f"{(statement.loss_high or 0) * 100:.1f} % with 95 % confidence (budget 10 %): not proven" in statement.summary
    )
    assert re.search(r": not proven: at least [1-9]0* more closed windows?, about ", statement.summary)


RAN = Harvest(seconds=3.0, invocations=3)


def spans(first: float, last: float, *, since: Closed | None = None) -> list[Span]:
    """A budget of ``first`` for a day, in which the job lost 6 %, and one of ``last`` ever since."""
    later = {1: since} if since is not None else {}
    return [
        Span(since=0.0, until=86_400.0, budget=first, closed={1: closed(0.106)}),
        Span(since=86_400.0, until=None, budget=last, closed=later),
    ]


@pytest.mark.parametrize(
    ("first", "last", "since", "verdict", "past"),
    [
        (0.3, 0.05, None, "not_proven", "kept"),
        (0.3, 0.05, closed(0.102), "kept", "kept"),
        (0.05, 0.3, None, "not_kept", "not_kept"),
        (0.05, 0.3, closed(0.102), "not_kept", "not_kept"),
    ],
)
def test_a_budget_that_is_set_later_does_not_judge_what_was_before(
    first: float, last: float, since: Closed | None, verdict: str, past: str
) -> None:
    job = replace(JOB, request=JobRequest(budget=last))
    statement = stated(job, {1: closed(0.106)}, RAN, 1.0, [], spans=spans(first, last, since=since), measured=True)
    assert (statement.verdict, statement.budget, [span.verdict for span in statement.past_budgets]) == (
        verdict,
        last,
        [past],
    )
    assert statement.loss == pytest.approx(0.06)
    words = f"with 95 % confidence (budget {first * 100:g} %): {past.replace('_', ' ')}; since then "
    assert "until 1970-01-02 00:00 UTC training lost <= 6." in statement.summary
    assert words in statement.summary


def test_what_no_function_ran_beside_lost_nothing_to_functions() -> None:
    noisy = {1: closed(0.12)}
    statement = stated(JOB, noisy, Harvest(seconds=0.0, invocations=0), 1.0, [], measured=True)
    assert (statement.verdict, statement.kept, statement.windows) == ("kept", True, 10)
    assert (statement.loss, statement.loss_low, statement.loss_high) == (0.0, 0.0, 0.0)
    assert statement.summary == (
        "0.0 function-seconds harvested; no function ran beside it, so it lost nothing to functions (budget 10 %): kept"
    )


def test_ranks_count_together_on_whatever_gpu_instance_they_were() -> None:
    pair = replace(JOB, gpus=["g", "h"])
    one = stated(pair, {1: closed(0.101)}, RAN, 1.0, [], measured=True)
    assert (one.loss, one.windows) == (None, 0), "nothing is known of the second rank"
    both = stated(pair, {1: closed(0.101, 20), 2: closed(0.105)}, RAN, 1.0, [], measured=True)
    assert (both.loss, both.windows) == (pytest.approx(0.05), 10)


@pytest.mark.parametrize(("iterations_s", "fits"), [([None, None], True), ([1.3], True), ([None, 1.6], False)])
def test_what_no_window_can_hold_cannot_be_proven(iterations_s: list[float | None], fits: bool) -> None:
    why = too_long(iterations_s, 10.0)
    assert (why == "") is fits
    statement = stated(JOB, {}, RAN, 1.0, [], measured=True, too_long=why)
    assert (
        "cannot be proven: seven of its iterations take 11.2 s, and a window is at most 10 s" in statement.summary
    ) is (not fits)
    assert statement.windows_to_go == (8 if fits else None)


@pytest.mark.parametrize(("state", "early"), [(JobState.RUNNING, True), (JobState.ENDED, False)])
def test_a_job_that_reported_no_iteration_yet_may_have_begun_just_now(state: JobState, early: bool) -> None:
    statement = stated(replace(JOB, state=state), {}, RAN, 1.0, [], measured=False)
    assert statement.verdict == "unmeasured"
    assert ("too early, or its iterations are not compared" in statement.summary) is early
