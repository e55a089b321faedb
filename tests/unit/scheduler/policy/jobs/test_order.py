"""Who starts first: the order of each setting, patience, orders of operators, and who may pass."""

from dataclasses import replace

import pytest

from scheduler.policy.jobs.decisions import Start, Turn, Wait
from scheduler.policy.jobs.events import (
    Ended,
    JobHeld,
    JobMoved,
    JobProgressed,
    JobWithdrawn,
    LimitsChanged,
    ProjectLimit,
)
from scheduler.policy.jobs.knobs import SETTINGS, job_setting, why_not_live
from scheduler.policy.setting import UnknownPolicy
from tests.support.driven_jobs import HOUR, NOW, DrivenJobs, gpus, started, stopped


def in_turn(jobs: DrivenJobs) -> list[str]:
    """Ends whatever runs, an hour each time, until nothing starts any more."""
    order = []
    while jobs.running:
        order += started(jobs.end(next(iter(jobs.running)), later=HOUR))
    return order


@pytest.mark.parametrize(
    ("setting", "order"),
    [
        ("fifo", ["long", "short", "middle"]),
        ("fifo-backfill", ["long", "short", "middle"]),
        ("sjf", ["short", "middle", "long"]),
        ("srsf", ["short", "middle", "long"]),
        ("tiresias", ["long", "short", "middle"]),
        ("smore-jobs", ["short", "middle", "long"]),
    ],
)
def test_each_setting_has_its_order(setting: str, order: list[str]) -> None:
    jobs = DrivenJobs(setting, gpus(1))
    jobs.submit("first", hours=0.5)
    for number, (name, hours) in enumerate({"long": 9, "short": 1, "middle": 3}.items()):
        jobs.submit(name, hours=hours, later=number)

    assert in_turn(jobs) == order


def test_orders_by_deadline_put_whoever_must_start_first_first() -> None:
    """``swaf`` counts the time that each needs, and gives up whoever is too late."""
    wanted = {
        "edf": ["late", "tight", "short", "free"],
        "swaf": ["tight", "short", "free", "late"],
    }
    for setting, order in wanted.items():
        jobs = DrivenJobs(setting, gpus(1))
        jobs.submit("first", hours=0.5)
        for name, hours, by in (("free", 1, None), ("short", 1, 20), ("tight", 9, 19), ("late", 5, 4)):
            jobs.submit(name, hours=hours, by=None if by is None else NOW + by * HOUR)

        assert in_turn(jobs) == order


def test_of_equals_who_came_first_goes_first() -> None:
    jobs = DrivenJobs("sjf", gpus(1))
    for name in ("first", "b", "a"):
        jobs.submit(name, later=1)

    assert in_turn(jobs) == ["b", "a"]


def test_whatever_fits_passes_a_gang_that_does_not() -> None:
    jobs = DrivenJobs("sjf", gpus(2))
    jobs.submit("first")
    assert started(jobs.submit("gang", count=2)) == []
    assert started(jobs.submit("longer", hours=9)) == ["longer"]


def test_fifo_lets_nobody_pass_who_waits_for_others_to_end() -> None:
    jobs = DrivenJobs("fifo", gpus(2))
    jobs.submit("first")
    jobs.submit("gang", count=2)

    assert started(jobs.submit("small", hours=0.01, later=1)) == []
    assert jobs.entry("small").why is Wait.ORDER
    # Who could not start even on an idle fleet holds nobody up.
    jobs.tell(JobWithdrawn(id="gang"))
    jobs.submit("never", count=3)
    assert "small" in jobs.running


def test_backfill_takes_who_ends_in_time() -> None:
    jobs = DrivenJobs("fifo-backfill", gpus(2))
    jobs.submit("first", hours=1)
    jobs.submit("gang", count=2)

    assert started(jobs.submit("longer", hours=2, later=1)) == []
    assert jobs.entry("longer").why is Wait.KEPT
    assert started(jobs.submit("shorter", hours=0.1, later=1)) == ["shorter"]


def test_who_passes_within_a_limit_ends_in_time_by_its_90_percent_length() -> None:
    """A declared length of 1.5 h is 3.3 h in one case of ten; the first of its project is to start after 2 h."""
    jobs = DrivenJobs("fifo-backfill", gpus(4))
    jobs.tell(LimitsChanged(limits={"p": ProjectLimit(gpus=3)}))
    jobs.submit("first", hours=2)
    jobs.submit("gang", count=3)

    assert started(jobs.submit("longer", hours=1.5, later=1)) == []
    assert started(jobs.submit("shorter", hours=0.5, later=1)) == ["shorter"]


def test_who_takes_what_is_kept_ends_in_time_on_the_device_that_it_takes() -> None:
    """Its length of 1 h is that on the fast device, which is taken; on the slow one it is 3 h."""
    slow = [replace(gpu, gpu=f"a{gpu.gpu}", device="A slow one") for gpu in gpus(2)]
    jobs = DrivenJobs("fifo-backfill", slow + gpus(1, device="B"))
    jobs.submit("taken", hours=9, device="B")
    jobs.submit("first", hours=2, device="A slow one")
    jobs.submit("gang", count=2, device="A slow one")

    times = {"A slow one": 3.0, "B": 1.0}
    assert started(jobs.submit("longer", iterations=3600, iteration_s=times, later=1)) == []
    assert started(jobs.submit("shorter", iterations=900, iteration_s=times, later=1)) == ["shorter"]


def test_patience_is_by_the_clock_and_then_gpu_instances_are_kept() -> None:
    """Short jobs that keep coming hold a gang up for 12 hours and twice its length, and no longer."""
    jobs = DrivenJobs("smore-jobs", gpus(2))
    jobs.submit("early", hours=1)
    jobs.submit("gang", hours=2, count=2)
    for hour in range(16):
        jobs.submit(f"short{hour}", hours=1, later=HOUR / 2)
        first = next(iter(jobs.running))
        assert "gang" not in started(jobs.end(first, later=HOUR / 2))
    # Its patience ends now; one GPU instance is busy, so the other is kept for it.
    kept = jobs.tell(later=HOUR)
    assert started(kept) == []
    running = next(iter(jobs.running))
    jobs.end(running, later=1)
    assert "gang" in jobs.running


def test_a_length_that_was_told_cannot_starve() -> None:
    """Whatever was said, patience ends after 14 days."""
    jobs = DrivenJobs("smore-jobs", gpus(1))
    jobs.submit("first")
    jobs.submit("years", hours=10 * 365 * 24)
    assert jobs.wake_at == jobs.now + 14 * 24 * HOUR
    jobs.submit("short", later=14 * 24 * HOUR)

    assert started(jobs.end("first", later=1)) == ["years"]


def test_a_start_says_whose_turn_it_was() -> None:
    jobs = DrivenJobs("smore-jobs", gpus(1))
    jobs.submit("first")
    jobs.submit("waits", hours=1)
    jobs.submit("moved", hours=5)
    jobs.tell(JobMoved(id="moved"))
    [_, start] = jobs.end("first", later=HOUR)

    assert isinstance(start, Start)
    assert (start.id, start.reasons.turn, start.reasons.waited_s) == ("moved", Turn.MOVED, HOUR)
    [_, start] = jobs.end("moved", later=24 * HOUR)
    assert isinstance(start, Start)
    assert (start.id, start.reasons.turn) == ("waits", Turn.PATIENCE)


def test_gpu_instances_are_kept_for_whom_an_operator_moved() -> None:
    jobs = DrivenJobs("smore-jobs", gpus(2))
    jobs.submit("first", hours=1)
    jobs.submit("gang", hours=9, count=2)
    jobs.tell(JobMoved(id="gang"))

    assert started(jobs.submit("small", hours=2)) == []
    entry = jobs.entry("small")
    assert entry.why is Wait.KEPT
    assert entry.facts.others == ["gang"]
    assert started(jobs.submit("tiny", hours=0.1)) == ["tiny"]
    jobs.end("tiny", later=1)
    jobs.end("first", later=1)
    assert set(jobs.running) == {"gang"}


def test_a_reservation_does_not_move_away_when_others_overrun() -> None:
    jobs = DrivenJobs("smore-jobs", gpus(2))
    jobs.submit("first", hours=1)
    jobs.submit("gang", hours=1, count=2)
    jobs.tell(JobMoved(id="gang"))
    # The first should have ended; by what is expected of it now a job of half an hour would fit, and must not start.
    jobs.tell(later=3 * HOUR)

    assert started(jobs.submit("short", hours=0.2)) == []


def test_a_reservation_goes_on_elsewhere_when_its_gpu_instance_is_closed() -> None:
    fleet = gpus(3)
    jobs = DrivenJobs("smore-jobs", fleet)
    jobs.submit("first", hours=1)
    jobs.submit("second", hours=2)
    jobs.submit("gang", hours=1, count=2)
    jobs.tell(JobMoved(id="gang"))
    free = next(gpu for gpu in fleet if gpu.gpu not in {name for _, names in jobs.running.values() for name in names})
    jobs.tell(type(free)(gpu=free.gpu, node=free.node, device="A", memory_mib=free.memory_mib, closed="drained"))

    jobs.end("first", later=HOUR)
    assert started(jobs.submit("small", hours=3)) == []
    jobs.end("second", later=HOUR)
    assert set(jobs.running) == {"gang"}


def test_held_jobs_wait_and_their_time_does_not_count() -> None:
    jobs = DrivenJobs("smore-jobs", gpus(1))
    jobs.submit("first", hours=1)
    jobs.submit("other", hours=5)
    jobs.submit("held", hours=1)
    jobs.tell(JobHeld(id="held", held=True))
    assert jobs.entry("held").why is Wait.HELD
    jobs.end("first", later=HOUR)
    assert set(jobs.running) == {"other"}

    jobs.tell(JobHeld(id="held", held=False), later=HOUR)
    assert jobs.entry("held").waited_s == 0.0
    assert started(jobs.end("other", later=HOUR)) == ["held"]


def test_the_weight_of_a_project_divides_what_is_left() -> None:
    jobs = DrivenJobs("sjf", gpus(1))
    jobs.submit("first")
    jobs.submit("light", hours=2)
    jobs.submit("heavy", hours=3, project="q")
    jobs.tell(LimitsChanged(limits={"q": ProjectLimit(weight=2.0)}))

    assert in_turn(jobs) == ["heavy", "light"]


def test_a_project_holds_no_more_than_its_limit() -> None:
    jobs = DrivenJobs("smore-jobs", gpus(4))
    jobs.tell(LimitsChanged(limits={"p": ProjectLimit(gpus=2)}))
    jobs.submit("a")
    assert started(jobs.submit("gang", count=2, hours=0.5)) == []
    entry = jobs.entry("gang")
    assert (entry.why, entry.start_at is not None) == (Wait.LIMIT, True)
    assert started(jobs.submit("b")) == ["b"]
    assert started(jobs.submit("other", count=2, project="q")) == ["other"]
    # By an operator's order it is first: no other job of its project takes what it is waiting for.
    jobs.tell(JobMoved(id="gang"))
    jobs.submit("c", hours=0.9)
    jobs.end("a", later=1)
    assert "c" not in jobs.running
    assert started(jobs.end("b", later=1)) == ["gang"]


def test_a_clock_that_is_set_back_takes_nobodys_patience() -> None:
    jobs = DrivenJobs("smore-jobs", gpus(1))
    jobs.submit("first", hours=1)
    jobs.submit("long", hours=6)
    jobs.tell(later=20 * HOUR)
    jobs.now -= 15 * HOUR
    jobs.tell()
    assert jobs.entry("long").waited_s == 20 * HOUR
    jobs.tell(later=4 * HOUR)
    jobs.submit("short", hours=0.1)

    assert started(jobs.end("first")) == ["long"]


def test_srsf_stops_a_long_job_for_a_short_one_and_tiresias_at_its_look() -> None:
    jobs = DrivenJobs("srsf", gpus(1))
    jobs.submit("long", hours=9)
    assert stopped(jobs.submit("short", hours=1, later=60)) == ["long"]
    assert started(jobs.end("long", Ended.PREEMPTED)) == ["short"]

    jobs = DrivenJobs("tiresias", gpus(1))
    jobs.submit("first", hours=20)
    assert stopped(jobs.submit("second", hours=20, later=60)) == []
    assert jobs.wake_at % 120 == 0
    assert stopped(jobs.tell(later=jobs.wake_at - jobs.now)) == []
    # The first has eight GPU hours at the next whole look after them.
    at = jobs.wake_at
    assert NOW + 8 * HOUR <= at <= NOW + 8 * HOUR + 120
    assert stopped(jobs.tell(later=at - jobs.now)) == ["first"]
    assert started(jobs.end("first", Ended.PREEMPTED)) == ["second"]


def test_what_is_measured_orders_running_jobs() -> None:
    """A running job that is nearly through is not stopped for a shorter one."""
    jobs = DrivenJobs("srsf", gpus(1))
    jobs.submit("long", hours=9, iterations=9000)
    jobs.tell(JobProgressed(id="long", attempt=1, iterations=8990, iteration_s=3.6), later=60)

    assert stopped(jobs.submit("short", hours=0.1)) == []


def test_settings_that_preempt_may_not_lead_live() -> None:
    reasons = {name: why_not_live(knobs) for name, knobs in SETTINGS.items()}

    assert {name for name, reason in reasons.items() if reason} == {"srsf", "tiresias", "pollux-style"}
    assert "checkpoint" in str(reasons["srsf"])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"patience_s": -1}, "patience_s"),
        ({"order": "nobody"}, "order"),
        ({"colour": 1}, "not a knob"),
        ({"short_ends": 0}, "short_ends"),
        ({"elastic": True}, "elastic"),
        ({"change_s": -1}, "change_s"),
    ],
)
def test_knobs_out_of_range_are_named(changed: dict[str, object], words: str) -> None:
    with pytest.raises(UnknownPolicy, match=words):
        job_setting("smore-jobs", **changed)
    with pytest.raises(UnknownPolicy, match=r"did you mean fifo\? There are smore-jobs, fifo"):
        job_setting("lifo")
