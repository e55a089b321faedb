"""How long jobs take: sources, and quantiles learnt from how wrong a source was."""

import random

import pytest

from scheduler.policy.jobs.events import Ended, JobProgressed, RunsKnown
from scheduler.policy.jobs.lengths import ASSUMED_S, LEAST_S, Lengths, LengthSource, Recent
from smore.domain.job import PastRun
from tests.support.driven_jobs import HOUR, DrivenJobs, gpus, spec_of


def run(seconds: float, *, project: str = "p", name: str = "n", **ratios: float) -> PastRun:
    return PastRun(project=project, name=name, seconds=seconds, ratios=ratios)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"iterations": 100, "iteration_s": {"A": 2.0, "B": 1.0}, "duration_s": 9.0, "name": "n"},
            (100.0, LengthSource.PROFILE),
        ),
        (
            {"iterations": 100, "iteration_s": {"A": 2.0, "B": 1.0}, "device": "A"},
            (200.0, LengthSource.PROFILE),
        ),
        (
            {"iterations": 100, "iteration_s": {"A": 2.0}, "device": "C", "duration_s": 9.0},
            (9.0, LengthSource.DECLARED),
        ),
        (
            {"iterations": 100, "iteration_s": {"A": 2.0}, "former_s": {"A": 3.0}, "device": "A"},
            (300.0, LengthSource.FORMER),
        ),
        ({"iterations": 100, "name": "n"}, (30.0, LengthSource.NAME)),
        ({"name": "other"}, (40.0, LengthSource.PROJECT)),
        ({"project": "q"}, (50.0, LengthSource.PLATFORM)),
    ],
)
def test_the_best_source_is_taken(fields: dict[str, object], expected: tuple[float, LengthSource]) -> None:
    lengths = Lengths()
    for seconds in (20.0, 30.0, 40.0):
        lengths.learn(run(seconds))
    for seconds in (40.0, 60.0):
        lengths.learn(run(seconds, name="third"))
    for seconds in (50.0, 60.0, 70.0, 80.0):
        lengths.learn(run(seconds, project="r"))
    spec = spec_of("j", **fields)

    assert lengths.told_s(spec) == expected


def test_where_nothing_is_known_an_hour_is_assumed() -> None:
    lengths = Lengths()
    length = lengths.left(*lengths.told_s(spec_of("j")), 0.0, "p")

    assert (length.expected_s, length.source) == (ASSUMED_S, LengthSource.ASSUMED)
    assert length.most_s > 5 * ASSUMED_S


def test_quantiles_become_those_of_what_a_source_was_wrong_by() -> None:
    """Owners say half of what it takes, with a log-normal error of 0.3."""
    lengths, draw = Lengths(), random.Random(1)
    for _ in range(200):
        lengths.learn(run(100.0, declared=2.0 * draw.lognormvariate(0.0, 0.3)))
    length = lengths.left(1000.0, LengthSource.DECLARED, 0.0, "p")

    assert length.expected_s == pytest.approx(2000.0, rel=0.1)
    assert length.most_s == pytest.approx(2000.0 * 1.47, rel=0.15)
    # Of what has run for longer than most others the rest is counted from there.
    late = lengths.left(1000.0, LengthSource.DECLARED, 2500.0, "p")
    assert 100.0 < late.expected_s < 1500.0
    outlived = lengths.left(1000.0, LengthSource.DECLARED, 1e6, "p")
    assert outlived[:3] == (5e5, 2e6, 2e6)


def test_the_last_values_count_and_a_prior_stays() -> None:
    recent = Recent(3, prior=[1.0])
    for value in (9.0, 9.0, 2.0, 3.0, 4.0):
        recent.add(value)

    assert recent.ordered == [1.0, 2.0, 3.0, 4.0]


def test_a_finished_job_teaches_and_the_order_follows() -> None:
    """Jobs take four times what was declared, until one that declared more goes first."""
    jobs = DrivenJobs("sjf", gpus(1))
    for number in range(20):
        jobs.submit(f"job{number}", hours=1)
    jobs.submit("profiled", hours=0, iterations=3600, iteration_s={"A": 2.0})
    for _ in range(15):
        if "profiled" not in jobs.running:
            jobs.end(next(iter(jobs.running)), later=4 * HOUR)

    assert "profiled" in jobs.running
    [*_, last] = jobs.queue()
    assert last.length.expected_s > 2 * HOUR


def test_what_is_measured_is_believed_and_taught() -> None:
    jobs = DrivenJobs(fleet=gpus(1))
    jobs.submit("job", hours=100, iterations=1000)
    jobs.tell(JobProgressed(id="job", attempt=1, iterations=100, iteration_s=2.0), later=100)
    length = jobs.entry("job").length
    assert (length.expected_s, length.source) == (1800.0, LengthSource.MEASURED)
    jobs.tell(later=800)
    assert jobs.entry("job").length.expected_s == 1000.0
    [finish] = jobs.end("job", later=1000)
    assert finish.ratios == {"declared": pytest.approx(1900 / 360_000), "measured": 1.0}  # type: ignore[union-attr]


def test_what_happened_before_a_take_over_is_told() -> None:
    jobs = DrivenJobs(fleet=gpus(1))
    jobs.tell(RunsKnown(runs=[run(500.0, name="nightly") for _ in range(5)]))
    jobs.submit("job", hours=0, name="nightly")

    assert jobs.entry("job").length.source is LengthSource.NAME
    assert jobs.entry("job").length.expected_s == 500.0


def test_what_is_left_of_a_job_that_has_run_follows_what_was_learnt_of_longer_ones() -> None:
    """A longer run that changes neither quantile changes what is left of a job that had outlived all others."""
    driven = DrivenJobs("sjf", gpus(1))

    def learn(ratio: float) -> RunsKnown:
        return RunsKnown(runs=[PastRun(project="q", name="", seconds=1.0, ratios={"declared": ratio})])

    driven.tell(learn(1000.0))
    driven.submit("again", hours=0.01, restarts=1)
    driven.end("again", Ended.FAILED, later=15 * HOUR)
    driven.submit("other", hours=1)
    driven.tell(later=60.0)
    assert driven.entry("again").length.expected_s == pytest.approx(7.5 * HOUR)
    # The queue is compared with a fresh count after each call.
    driven.tell(learn(2000.0))
    assert driven.entry("again").length.expected_s == pytest.approx(5 * HOUR)


def test_a_length_is_sure_once_its_source_was_right_often_enough() -> None:
    """A few good ratios are no reason to promise: until there are 20, twice what was told is what is sure."""
    lengths = Lengths()
    for _ in range(19):
        lengths.learn(run(100.0, declared=1.0))
    assert lengths.left(1000.0, LengthSource.DECLARED, 100.0, "p").surely_s >= 1900.0
    for _ in range(100):
        lengths.learn(run(100.0, declared=1.0))
    length = lengths.left(1000.0, LengthSource.DECLARED, 0.0, "p")

    assert length.most_s == 1000.0
    assert length.surely_s == 1000.0
    assert lengths.left(1000.0, LengthSource.DECLARED, 1100.0, "p").surely_s > LEAST_S
    # One in twenty takes five times as long: that is within nine cases of ten, and not within 97 of a hundred.
    for number in range(100):
        lengths.learn(run(100.0, declared=5.0 if number % 20 == 0 else 1.0))
    length = lengths.left(1000.0, LengthSource.DECLARED, 0.0, "p")
    assert (length.most_s, length.surely_s) == (1000.0, 5000.0)


def test_owners_of_a_project_that_err_alike_are_judged_by_themselves() -> None:
    """Those of q say a quarter of what it takes, those of p what it takes; of r nobody has seen enough."""
    lengths = Lengths()
    for number in range(100):
        lengths.learn(run(100.0, project="pq"[number % 2], declared=1.0 if number % 2 == 0 else 4.0))
    lengths.learn(run(100.0, project="r", declared=1.0))
    expected = {project: lengths.left(1000.0, LengthSource.DECLARED, 0.0, project).expected_s for project in "pq"}

    assert expected == {"p": 1000.0, "q": 4000.0}
    assert lengths.left(1000.0, LengthSource.DECLARED, 0.0, "r").most_s == 4000.0
    # A profile is nobody's word.
    lengths.learn(run(100.0, project="q", profile=4.0))
    assert lengths.left(1000.0, LengthSource.PROFILE, 0.0, "q") == lengths.left(1000.0, LengthSource.PROFILE, 0.0, "p")
