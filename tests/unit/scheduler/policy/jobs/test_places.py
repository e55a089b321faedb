"""Where jobs start: gangs, memory, kinds, nodes, pins; and what is said of those that do not."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler.policy.jobs.decisions import JobRefusal, PlacesAnswered, Unfit, Wait
from scheduler.policy.jobs.events import (
    Ended,
    GpuLost,
    GpuSeen,
    JobMoved,
    LimitsChanged,
    PlacesAsked,
    ProjectLimit,
    StartRefused,
)
from tests.support.driven_jobs import HOUR, DrivenJobs, gpus, started, stopped


def nodes(jobs: DrivenJobs, id_: str) -> list[str]:
    return sorted({name.partition("g")[0] for name in jobs.running[id_][1]})


def test_a_gang_goes_to_one_node_and_leaves_whole_nodes_free() -> None:
    jobs = DrivenJobs(fleet=gpus(4, 3, 2))
    jobs.submit("pair", count=2)
    assert nodes(jobs, "pair") == ["n2"]
    jobs.submit("single")
    assert nodes(jobs, "single") == ["n1"]
    jobs.submit("four", count=4)
    assert nodes(jobs, "four") == ["n0"]


def test_where_no_node_is_enough_it_takes_the_fewest() -> None:
    jobs = DrivenJobs(fleet=gpus(3, 2, 2))
    jobs.submit("five", count=5)

    assert nodes(jobs, "five") in (["n0", "n1"], ["n0", "n2"])
    # The ranks of a node follow each other.
    names = [name.partition("g")[0] for name in jobs.running["five"][1]]
    assert names == sorted(names)


def test_a_gang_is_of_one_kind() -> None:
    other = [replace(gpu, gpu=f"b{gpu.gpu}", device="B") for gpu in gpus(2)]
    jobs = DrivenJobs(fleet=gpus(2) + other)
    jobs.submit("single", device="A")
    jobs.submit("gang", count=2)
    assert all(name.startswith("b") for name in jobs.running["gang"][1])
    assert started(jobs.submit("three", count=2)) == []
    assert jobs.entry("three").why is Wait.BUSY


def test_it_goes_where_it_ends_first() -> None:
    slow = [replace(gpu, gpu=f"a{gpu.gpu}", device="A slow one") for gpu in gpus(1)]
    jobs = DrivenJobs(fleet=slow + gpus(1, device="B"))
    jobs.submit("job", iterations=1000, iteration_s={"A slow one": 3.0, "B": 1.0})

    assert jobs.running["job"][1] == ("n0g0",)


def test_memory_must_be_there() -> None:
    large = [replace(gpu, gpu=f"large{place}", memory_mib=160_000.0) for place, gpu in enumerate(gpus(2))]
    jobs = DrivenJobs(fleet=gpus(2) + large)
    jobs.submit("large", memory_mib=100_000.0)
    assert jobs.running["large"][1][0].startswith("large")
    jobs.submit("gang", count=2, memory_mib=100_000.0)
    entry = jobs.entry("gang")
    assert entry.why is Wait.BUSY
    assert (JobRefusal.MEMORY, "", 2) in entry.facts.refused


def test_ties_go_where_fewer_instances_are_held() -> None:
    first, second = gpus(2)
    jobs = DrivenJobs(fleet=[replace(first, held=3), second])
    jobs.submit("job")

    assert jobs.running["job"][1] == (second.gpu,)


def test_slices_form_no_gangs() -> None:
    jobs = DrivenJobs(fleet=[replace(gpu, mig=True) for gpu in gpus(4)])
    assert started(jobs.submit("gang", count=2)) == []
    assert started(jobs.submit("single")) == ["single"]
    assert jobs.entry("gang").why is Wait.TOO_FEW


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"closed": "drained"}, JobRefusal.CLOSED),
        ({"closed": "paused"}, JobRefusal.CLOSED),
        ({"attached": 1}, JobRefusal.ATTACHED),
    ],
)
def test_closed_gpu_instances_take_nothing(change: dict[str, Any], refused: JobRefusal) -> None:
    [gpu] = gpus(1)
    jobs = DrivenJobs(fleet=[replace(gpu, **change)])
    assert started(jobs.submit("pinned", gpus=("n0g0",))) == []
    assert started(jobs.submit("any")) == []

    entry = jobs.entry("pinned")
    assert (entry.why, entry.start_at) == (Wait.PINNED, None)
    assert [(place.refused, place.seen) for place in entry.facts.places] == [(refused, replace(gpu, **change))]
    assert jobs.entry("any").why is Wait.TOO_FEW
    assert started(jobs.tell(gpu)) == ["any"] or "pinned" in jobs.running


def test_a_pin_waits_for_just_those() -> None:
    jobs = DrivenJobs(fleet=gpus(3))
    jobs.submit("first", gpus=("n0g1",), hours=2)
    jobs.submit("pinned", gpus=("n0g1", "n0g2"))

    entry = jobs.entry("pinned")
    assert entry.why is Wait.PINNED
    assert [(place.gpu, place.refused, place.trains) for place in entry.facts.places] == [
        ("n0g1", JobRefusal.BUSY, ["first"])
    ]
    assert entry.start_at is not None
    assert entry.start_at[0] == jobs.now + 2 * HOUR
    jobs.end("first", later=HOUR)
    assert jobs.running["pinned"] == (1, ("n0g1", "n0g2"))


def test_other_trainings_of_the_project_are_named_and_those_of_others_are_not() -> None:
    jobs = DrivenJobs(fleet=gpus(2))
    jobs.submit("j1", name="day", gpus=("n0g0",))
    jobs.submit("j2", name="theirs", project="q", gpus=("n0g1",))
    jobs.submit("j3", name="night", gpus=("n0g0", "n0g1"))
    [answer] = jobs.tell(PlacesAsked(id="j3"))
    assert isinstance(answer, PlacesAnswered)
    assert answer.places == jobs.entry("j3").facts.places
    assert [place.trains for place in answer.places] == [["day"], ["j2"]]


def test_a_lost_gpu_instance_ends_the_whole_gang() -> None:
    jobs = DrivenJobs(fleet=gpus(2, 2))
    jobs.submit("gang", count=4, restarts=1)
    assert stopped(jobs.tell(GpuLost(gpu="n1g0"), GpuLost(gpu="n1g1"))) == ["gang"]
    # The others are its until their ranks have ended.
    assert started(jobs.submit("small", later=1)) == []
    decisions = jobs.end("gang", Ended.LOST, later=1)
    assert started(decisions) == ["small"]
    assert jobs.entry("gang").why is Wait.BACK_OFF
    jobs.tell(later=20)
    assert jobs.entry("gang").why is Wait.TOO_FEW
    jobs.tell(*gpus(2, 2))
    jobs.end("small", later=1)
    assert jobs.running["gang"][0] == 2


def test_a_start_that_did_not_happen_is_tried_again() -> None:
    jobs = DrivenJobs(fleet=gpus(1))
    jobs.submit("job")
    jobs.running.clear()

    jobs.tell(StartRefused(id="job", attempt=1))
    assert jobs.running["job"] == (2, ("n0g0",))
    jobs.tell(StartRefused(id="job", attempt=1))
    assert jobs.running["job"] == (2, ("n0g0",))


def test_expected_times_follow_the_queue() -> None:
    jobs = DrivenJobs("sjf", gpus(2))
    jobs.submit("a", hours=1)
    jobs.submit("b", hours=2)
    for name, hours in {"third": 3, "first": 1, "gang": 2}.items():
        jobs.submit(name, hours=hours, count=2 if name == "gang" else 1)
    expected = {job.id: job for job in jobs.queue()}

    starts = {id_: (job.start_at[0] - jobs.now) / HOUR for id_, job in expected.items() if job.start_at}
    assert [job.id for job in expected.values()] == ["first", "gang", "third"]
    # At 1 h the first goes; at 2 h both are free for the gang, which ends at 4 h.
    assert starts == {"first": 1.0, "gang": 2.0, "third": 4.0}
    for job in expected.values():
        assert job.start_at is not None
        assert job.end_at is not None
        assert job.start_at[0] <= job.start_at[1] <= job.end_at[1]
        assert job.end_at[0] == pytest.approx(job.start_at[0] + job.length.expected_s)


def test_a_dry_run_says_what_would_happen_and_changes_nothing() -> None:
    jobs = DrivenJobs(fleet=gpus(2))
    answer = jobs.ask(count=2)
    assert len(answer.gpus) == 2
    assert jobs.ask(count=2) == answer
    jobs.submit("first", hours=3)
    answer = jobs.ask(count=2)
    assert answer.gpus == ()
    assert answer.expected is not None
    assert answer.expected.start_at is not None
    assert answer.expected.start_at[0] == jobs.now + 3 * HOUR
    assert answer.expected.place == 1
    assert jobs.queue() == []
    assert not jobs.policy.jobs.keys() - {"first"}


@pytest.mark.parametrize(
    ("asked", "misfit"),
    [
        ({"count": 5}, (Unfit.GANG, "count", 4, "")),
        ({"count": 3, "project": "q"}, (Unfit.LIMIT, "count", 2, 3)),
        ({"memory_mib": 90_000.0}, (Unfit.MEMORY, "memory", 80_000.0, "")),
        ({"device": "Z"}, (Unfit.DEVICE, "device", 0, "Z")),
        ({"gpus": ("nowhere",)}, (Unfit.UNSEEN, "gpus", 6, "nowhere")),
        ({"gpus": ("mig0", "mig1")}, (Unfit.MIG, "gpus", 1, "")),
        ({"gpus": ("mig0",), "memory_mib": 20_000.0}, (Unfit.PIN_MEMORY, "memory", 10_000.0, "")),
    ],
)
def test_what_could_never_start_is_refused_with_the_field(asked: dict[str, object], misfit: tuple[object, ...]) -> None:
    slices = [
        GpuSeen(gpu=f"mig{place}", node="n9", device="slice", memory_mib=10_000.0, mig=True) for place in range(2)
    ]
    jobs = DrivenJobs(fleet=gpus(3, 1) + slices)
    jobs.tell(LimitsChanged(limits={"q": ProjectLimit(gpus=2)}))

    assert jobs.ask(**asked).misfit == misfit


def test_no_gpu_instance_stands_idle_for_whoever_waits_for_its_project_s_limit() -> None:
    jobs = DrivenJobs(fleet=gpus(2))
    jobs.tell(LimitsChanged(limits={"q": ProjectLimit(gpus=1)}))
    jobs.submit("first", project="q", hours=2)
    jobs.submit("other", hours=1)
    jobs.submit("second", project="q", hours=1)
    jobs.tell(JobMoved(id="second"))
    assert started(jobs.submit("long", hours=9)) == []
    assert started(jobs.end("other")) == ["long"]
    # What its project gives back is kept for it.
    jobs.submit("short", hours=0.5)
    assert started(jobs.end("first")) == ["second"]


def test_why_gpu_instances_are_closed_is_said_of_a_job_that_waits() -> None:
    fleet = gpus(3)
    jobs = DrivenJobs(fleet=fleet)
    jobs.tell(
        replace(fleet[0], closed="drained"), replace(fleet[1], closed="paused"), replace(fleet[2], closed="paused")
    )
    jobs.submit("one")
    assert jobs.entry("one").facts.refused == [(JobRefusal.CLOSED, "drained", 1), (JobRefusal.CLOSED, "paused", 2)]


def test_what_stands_against_a_job_is_said_of_every_gpu_instance() -> None:
    fleet = gpus(5)
    jobs = DrivenJobs(fleet=[*fleet, *gpus(1, device="B"), replace(fleet[0], gpu="small", memory_mib=100.0)])
    jobs.tell(replace(fleet[1], closed="drained"), replace(fleet[2], attached=1), GpuLost(gpu=fleet[3].gpu))
    jobs.submit("one", gpus=("n0g4",))
    jobs.submit("gang", count=2, device="A", memory_mib=1000.0, hours=9)
    [answer] = jobs.tell(PlacesAsked(id="gang"))
    assert isinstance(answer, PlacesAnswered)
    assert {place.gpu: place.refused for place in answer.places} == {
        "n0g0": JobRefusal.DEVICE,
        "n0g1": JobRefusal.CLOSED,
        "n0g2": JobRefusal.ATTACHED,
        "n0g3": JobRefusal.LOST,
        "n0g4": JobRefusal.BUSY,
        "small": JobRefusal.MEMORY,
    }
    for id_ in ("one", "nobody"):
        assert jobs.tell(PlacesAsked(id=id_)) == [PlacesAnswered(id=id_, places=())]
