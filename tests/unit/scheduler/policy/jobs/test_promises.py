"""Ends that are promised: when one is, who may start then, and what becomes of it."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler.policy.jobs.decisions import (
    BreaksAnswered,
    Decision,
    NotPromised,
    PairRefusal,
    Promised,
    Start,
    Turn,
    Unpromised,
    Wait,
)
from scheduler.policy.jobs.events import (
    BreaksAsked,
    Ended,
    GpuLost,
    JobHeld,
    JobSubmitted,
    JobUnderWay,
    LimitsChanged,
    PairKnown,
    PairsKnown,
    ProjectLimit,
    RunsKnown,
)
from scheduler.policy.jobs.knobs import SETTINGS, job_setting
from smore.domain.job import EARLIEST, PastRun
from tests.support.driven_jobs import HOUR, NOW, DrivenJobs, gpus, spec_of, started
from tests.support.fresh_counts import differing

#: Owners are right, so what is sure is a little more than what they say.
RIGHT = RunsKnown(runs=[PastRun(project="p", name="", seconds=1.0, ratios={"declared": 1.0})] * 100)


def driven(*nodes: int, setting: str = "smore-jobs", **changed: Any) -> DrivenJobs:
    jobs = DrivenJobs(job_setting(setting, **changed), gpus(*nodes))
    jobs.tell(RIGHT)
    return jobs


def ask(jobs: DrivenJobs, id_: str, by_h: float | None, *, hours: float = 1.0, **said: Any) -> list[Decision]:
    """``by_h`` from now on, None = the earliest that there is."""
    by = EARLIEST if by_h is None else jobs.now + by_h * HOUR
    request = {"duration_s": hours * HOUR, "budget": 0.0, "by": by} | said
    spec = spec_of(id_, **request)
    spec = replace(spec, by=by or None, request=replace(spec.request, by=by))
    return jobs.tell(JobSubmitted(spec=spec, submitted_at=jobs.now))


def verdict(decisions: list[Decision]) -> Promised | NotPromised:
    [found] = [one for one in decisions if isinstance(one, Promised | NotPromised)]
    return found


def test_a_promised_job_waits_until_its_latest_start_and_then_comes_first() -> None:
    jobs = driven(1)
    jobs.submit("runs", hours=1, budget=0.0)
    told = verdict(ask(jobs, "promised", 9, hours=4))
    assert isinstance(told, Promised)
    assert 4 * HOUR < told.by - told.latest_start_at < 5 * HOUR

    jobs.submit("shorter", hours=2, budget=0.0, later=60)
    assert started(jobs.end("runs", later=1 * HOUR - 60)) == ["shorter"]
    # Whoever would surely end too late for it starts later, though it is shorter.
    jobs.submit("too-late", hours=3, budget=0.0)
    decisions = jobs.end("shorter", later=2 * HOUR)
    [start] = [one for one in decisions if isinstance(one, Start)]
    assert (start.id, start.reasons.turn) == ("promised", Turn.ORDER)


def test_whoever_waits_for_a_promise_is_told_whose() -> None:
    jobs = driven(1, 1)
    jobs.submit("runs", hours=1, budget=0.0, gpus=("n0g0",))
    ask(jobs, "promised", 4, hours=2, count=2, name="nightly")
    jobs.submit("long", hours=9, budget=0.0)

    entry = jobs.entry("long")
    assert entry.why is Wait.PROMISED
    assert entry.facts.others == ["nightly"]


def test_the_rule_wakes_when_a_promise_has_no_time_left() -> None:
    jobs = driven(1, 1)
    told = verdict(ask(jobs, "promised", 9, hours=4, count=2, gpus=("n0g0", "n1g0")))
    assert isinstance(told, Promised)
    assert "promised" in jobs.running

    jobs = driven(1)
    jobs.submit("runs", hours=1, budget=0.0)
    told = verdict(ask(jobs, "promised", 9, hours=4))
    jobs.submit("small", hours=0.2, budget=0.0)
    assert isinstance(told, Promised)
    assert jobs.wake_at == pytest.approx(told.latest_start_at)


def test_what_cannot_be_kept_is_not_promised_and_the_earliest_is_told() -> None:
    jobs = driven(1)
    jobs.submit("runs", hours=4, budget=0.0)
    told = verdict(ask(jobs, "late", 3, hours=1))
    assert isinstance(told, NotPromised)
    assert told.why is Unpromised.OTHERS
    assert told.earliest is not None and 5 * HOUR < told.earliest - NOW < 6 * HOUR
    assert "late" not in jobs.policy.jobs

    assert isinstance(verdict(ask(jobs, "again", (told.earliest - NOW) / HOUR, hours=1)), Promised)
    # Beside that one it is later.
    queued = verdict(ask(jobs, "queued", 6, hours=1, unless="queue"))
    assert isinstance(queued, NotPromised) and queued.earliest is not None and queued.earliest > told.earliest
    assert "queued" in jobs.policy.jobs
    assert isinstance(verdict(ask(jobs, "short", 0.5, hours=1)), NotPromised)
    earliest = verdict(ask(jobs, "earliest", None, hours=1))
    assert isinstance(earliest, Promised) and earliest.by == pytest.approx(queued.earliest, abs=1)


@pytest.mark.parametrize(
    ("said", "setting", "why"),
    [
        ({"hours": 0.0}, "smore-jobs", Unpromised.UNKNOWN),
        ({"hours": 2.0}, "smore-jobs", Unpromised.LENGTH),
        ({"count": 3}, "smore-jobs", Unpromised.LIMIT),
        ({}, "edf", Unpromised.SETTING),
        ({}, "swaf", Unpromised.SETTING),
    ],
)
def test_why_nothing_is_promised(said: dict[str, Any], setting: str, why: Unpromised) -> None:
    """Its length is not known, or longer than the time until then; the project's limit; a setting that promises nothing."""
    jobs = driven(4, setting=setting)
    jobs.tell(LimitsChanged(limits={"p": ProjectLimit(gpus=4, promised=2)}))
    told = verdict(ask(jobs, "asks", 2, **said))
    assert isinstance(told, NotPromised)
    assert told.why is why


def test_promises_of_a_project_are_for_so_many_gpus_as_it_may_have() -> None:
    jobs = driven(4)
    jobs.tell(LimitsChanged(limits={"p": ProjectLimit(gpus=2)}))
    assert isinstance(verdict(ask(jobs, "one", 9)), Promised)
    assert isinstance(verdict(ask(jobs, "two", 9)), Promised)
    assert isinstance(verdict(ask(jobs, "three", 9)), NotPromised)
    jobs.end("one", later=60)
    assert isinstance(verdict(ask(jobs, "four", 9)), Promised)


def test_a_promise_outlives_a_leader_and_a_failure() -> None:
    jobs = driven(1)
    promised = replace(spec_of("promised", duration_s=HOUR, budget=0.0, restarts=1), by=None)
    jobs.tell(
        JobSubmitted(spec=promised, submitted_at=NOW, attempt=0, promised=NOW + 6 * HOUR),
        JobUnderWay(id="promised", attempt=1, gpus=("n0g0",), since_at=NOW),
    )
    jobs.running["promised"] = 1, ("n0g0",)
    jobs.submit("long", hours=9, budget=0.0)
    assert started(jobs.end("promised", Ended.FAILED, later=2 * HOUR)) == []
    # It rests before its restart, and nobody takes its place meanwhile.
    assert started(jobs.tell(later=11)) == ["promised"]


def test_a_promise_that_does_not_hold_blocks_nobody_and_comes_first() -> None:
    jobs = driven(1, 1)
    jobs.submit("runs", hours=1, budget=0.0, gpus=("n0g0",))
    assert isinstance(verdict(ask(jobs, "promised", 4, hours=2, count=2)), Promised)
    jobs.tell(GpuLost(gpu="n1g0"))
    # For two there is no room, whatever becomes of the others.
    assert started(jobs.submit("other", hours=9, budget=0.0)) == []
    assert started(jobs.end("runs", later=HOUR)) == ["other"]
    jobs.tell(*gpus(1, 1)[1:])
    assert jobs.policy.queue.latest["promised"] < jobs.now + HOUR
    assert started(jobs.end("other", later=2 * HOUR)) == ["promised"]


def test_what_a_promised_job_may_lose_to_functions_counts() -> None:
    jobs = driven(1)
    assert isinstance(verdict(ask(jobs, "asks", 1.5, hours=1, budget=1.0)), NotPromised)
    assert isinstance(verdict(ask(jobs, "asks", 1.5, hours=1, budget=0.1)), Promised)


def test_a_promised_job_shares_only_while_it_surely_ends_in_time() -> None:
    """The pair costs each at most twice its time."""
    for by_h, beside in ((1.5, []), (4.0, ["guest"])):
        jobs = driven(1)
        jobs.tell(PairsKnown(pairs=[PairKnown("A", "a", "a", 1.2, 2.0)]))
        alike: dict[str, Any] = {"workload": "a", "memory_mib": 20_000.0, "share": 2.0, "budget": 0.0}
        assert isinstance(verdict(ask(jobs, "promised", by_h, **alike)), Promised)
        assert started(jobs.submit("guest", hours=1, **alike)) == beside
        if not beside:
            doubt = jobs.entry("guest").doubt
            assert doubt is not None and doubt.nearest is not None
            assert doubt.nearest.why is PairRefusal.PROMISED


@pytest.mark.parametrize(
    ("closed", "gpus_of_project", "broken"),
    [((), None, []), (("n0g0",), None, ["promised"]), ((), 2, ["promised"]), ((), 3, [])],
)
def test_what_a_change_would_break_is_known_before(
    closed: tuple[str, ...], gpus_of_project: int | None, broken: list[str]
) -> None:
    jobs = driven(3)
    jobs.submit("runs", hours=1, budget=0.0, gpus=("n0g1",))
    assert isinstance(verdict(ask(jobs, "promised", 9, hours=1, count=3)), Promised)
    limits = {"p": ProjectLimit(gpus=gpus_of_project)} if gpus_of_project is not None else {}
    [answer] = jobs.tell(BreaksAsked(closed=closed, limits=limits))
    assert isinstance(answer, BreaksAnswered) and answer.jobs == broken
    # Nothing has changed by the question.
    assert differing(jobs.policy) == 0
    assert started(jobs.end("runs", later=HOUR)) == ["promised"]


def test_a_held_job_keeps_its_promise_and_nothing_is_kept_for_it() -> None:
    jobs = driven(1)
    jobs.submit("runs", hours=1, budget=0.0)
    ask(jobs, "promised", 9, hours=4)
    jobs.tell(JobHeld(id="promised", held=True))
    jobs.submit("long", hours=9, budget=0.0)
    assert started(jobs.end("runs", later=HOUR)) == ["long"]
    assert jobs.policy.promises.of("promised") == NOW + 9 * HOUR


@pytest.mark.parametrize("where", [{"count": 2}, {"gpus": ("n0g1",)}])
def test_a_promise_is_at_risk_where_gpu_instances_come_back_smaller(where: dict[str, Any]) -> None:
    jobs = driven(2)
    jobs.submit("runs", hours=1, budget=0.0, count=2)
    assert isinstance(verdict(ask(jobs, "promised", 9, memory_mib=40_000.0, **where)), Promised)
    for memory, risk in ((20_000.0, "closed"), (80_000.0, "")):
        jobs.tell(*gpus(2, memory=memory))
        promise = jobs.entry("promised").promise
        assert promise is not None and promise.at_risk == risk
        told = verdict(ask(jobs, "late", 2, hours=1, memory_mib=40_000.0, **where))
        assert isinstance(told, NotPromised) and (told.others is None) == (risk != "")


def test_where_nobody_waits_all_settings_start_the_same() -> None:
    def starts(setting: str) -> list[str]:
        jobs = driven(4, setting=setting)
        found = started(ask(jobs, "a", 20, hours=3, unless="queue"))
        for name in "bcd":
            found += started(jobs.submit(name, hours=ord(name) - 96, later=60))
        return found

    assert {tuple(starts(name)) for name, knobs in SETTINGS.items() if not knobs.elastic} == {("a", "b", "c", "d")}
