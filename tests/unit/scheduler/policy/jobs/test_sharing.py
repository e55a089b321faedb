"""Two trainings on one GPU instance: who starts beside whom, who does not and why, and what is counted meanwhile."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scheduler.policy.jobs.decisions import Decision, Doubt, Facts, Nearest, PairRefusal, Requeue, Start
from scheduler.policy.jobs.events import (
    Ended,
    GpuSeen,
    GuestHeldBack,
    JobMoved,
    JobProgressed,
    JobSubmitted,
    JobUnderWay,
    JobWithdrawn,
    PairKnown,
    PairMeasured,
    PairsKnown,
)
from scheduler.policy.jobs.knobs import SETTINGS, Sharing
from scheduler.policy.jobs.spec import MicroBatches
from scheduler.policy.setting import UnknownPolicy
from tests.support.driven_jobs import HOUR, NOW, DrivenJobs, gpus, spec_of, started, stopped


def pairs(**slowdowns: float) -> PairsKnown:
    """``ab`` = of workload a beside b, on device A."""
    return PairsKnown(pairs=[PairKnown("A", pair[0], pair[1], value, value) for pair, value in slowdowns.items()])


#: What a job says that may share.
SHARED: Mapping[str, Any] = {"workload": "a", "share": 1.0, "memory_mib": 8_000.0}


class Sharers(DrivenJobs):
    """Every pair of workloads a, b and c costs ``slowdown`` both; owners allow as much again, 8 GB each of 80."""

    def __init__(self, setting: str = "smore-jobs", slowdown: float = 1.25, nodes: tuple[int, ...] = (1,)) -> None:
        super().__init__(setting, gpus(*nodes))
        self.tell(pairs(**dict.fromkeys(("aa", "ab", "ac", "ba", "bb", "bc", "ca", "cb", "cc"), slowdown)))

    def share(self, id_: str, workload: str = "a", *, hours: float = 1.0, **fields: object) -> list[Decision]:
        return self.submit(id_, hours=hours, **{**SHARED, "workload": workload, **fields})

    def beside(self, id_: str) -> list[str]:
        return list(self.policy.jobs[id_].beside)

    def doubt(self, id_: str) -> Doubt:
        doubt = self.entry(id_).doubt
        assert doubt is not None
        return doubt

    def nearest(self, id_: str) -> Nearest:
        """The host that came closest, and why it starts not even there."""
        nearest = self.doubt(id_).nearest
        assert nearest is not None
        return nearest

    def facts(self, id_: str) -> Facts:
        return self.entry(id_).facts


def starts(decisions: list[Decision]) -> Start:
    [start] = [decision for decision in decisions if isinstance(decision, Start)]
    return start


@pytest.mark.parametrize("setting", ["smore-jobs", "sjf-bsbf", "sjf-ffs"])
def test_who_would_wait_starts_beside_another_one(setting: str) -> None:
    driven = Sharers(setting)
    driven.share("host", hours=1)
    start = starts(driven.share("guest", "b", hours=1))

    assert start.gpus == ("n0g0",)
    assert [(one.id, one.own, one.its) for one in start.beside] == [("host", 1.25, 1.25)]
    assert driven.entry("guest").guest
    assert driven.entry("guest").beside == ("host",)
    assert not driven.entry("host").guest
    facts = driven.facts("host")
    assert (facts.others, facts.slowdown, facts.measured, facts.part) == (["guest"], 1.25, False, 1.0)
    # Two on a GPU instance at most.
    assert started(driven.share("third")) == []
    assert driven.doubt("third") == Doubt({PairRefusal.FULL: 2}, None)


@pytest.mark.parametrize("setting", SETTINGS)
def test_where_owners_share_nothing_nobody_shares(setting: str) -> None:
    driven = Sharers(setting)
    driven.share("host", share=0.0)
    assert started(driven.share("guest")) == []


def test_free_gpu_instances_come_before_shared_ones() -> None:
    driven = Sharers(nodes=(1, 1))
    driven.share("host")
    assert starts(driven.share("next")).beside == ()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"workload": "x"}, PairRefusal.UNPROFILED),
        ({"share": 0.2}, PairRefusal.SHARE),
        ({"memory_mib": 70_000.0}, PairRefusal.MEMORY),
    ],
)
def test_why_a_job_starts_beside_nobody(fields: dict[str, object], reason: PairRefusal) -> None:
    driven = Sharers()
    driven.share("host", hours=0.05)
    assert started(driven.submit("guest", hours=3, **{**SHARED, **fields})) == []
    refused, nearest = driven.doubt("guest")
    if reason is PairRefusal.UNPROFILED:
        assert (refused, nearest) == ({reason: 1}, None)
    else:
        assert nearest is not None
        assert (refused, nearest.host, nearest.why) == ({}, "host", reason)
        assert (nearest.memory_mib, nearest.host_mib) == ({**SHARED, **fields}["memory_mib"], 8_000.0)


def test_two_that_would_end_later_on_average_wait() -> None:
    driven = Sharers(slowdown=1.6)
    driven.share("host", hours=0.05)
    assert started(driven.share("guest", hours=3)) == []
    assert driven.nearest("guest").why is PairRefusal.WAITING


def test_the_host_is_asked_too() -> None:
    driven = Sharers()
    driven.share("host", share=0.2)
    driven.share("guest")
    assert driven.nearest("guest").why is PairRefusal.ITS_SHARE
    driven.end("host")
    driven.share("unsaid", share=1.0, memory_mib=0.0)
    assert driven.entry("unsaid").doubt is None


@pytest.mark.parametrize(
    ("host", "guest", "why"),
    [(1.0, 0.5, PairRefusal.SHARE), (0.5, 1.0, PairRefusal.ITS_SHARE)],
    ids=["by the guest's owner", "by the host's owner"],
)
def test_owners_allow_what_a_pair_takes_in_nine_cases_of_ten(host: float, guest: float, why: PairRefusal) -> None:
    """Both are expected to take 1.25 times as long, and at most 1.6 times."""
    driven = Sharers()
    driven.tell(PairsKnown(pairs=[PairKnown("A", pair[0], pair[1], 1.25, 1.6) for pair in ("ab", "ba")]))
    driven.share("host", "a", share=host)

    assert started(driven.share("guest", "b", share=guest)) == []
    nearest = driven.nearest("guest")
    assert (nearest.why, nearest.own, nearest.its) == (why, (1.25, 1.6), (1.25, 1.6))


def test_who_says_no_memory_neither_shares_nor_is_shared_with() -> None:
    driven = Sharers()
    driven.share("host", memory_mib=0.0)
    driven.share("guest")
    assert driven.nearest("guest").why is PairRefusal.MEMORY_UNKNOWN
    driven.share("other", memory_mib=0.0)
    assert (driven.entry("other").doubt, driven.entry("other").unsaid) == (None, ["memory"])


def test_two_contexts_are_left_free() -> None:
    driven = Sharers()
    driven.tell(GpuSeen(gpu="n0g0", node="n0", device="A", memory_mib=80_000.0, context_mib=500.0))
    driven.share("host", memory_mib=40_000.0)
    driven.share("guest", memory_mib=35_500.0)
    nearest = driven.nearest("guest")
    assert (nearest.why, nearest.seen.memory_mib, nearest.seen.context_mib) == (PairRefusal.MEMORY, 80_000.0, 500.0)
    assert started(driven.share("fits", memory_mib=35_000.0)) == ["fits"]


def test_a_host_that_takes_more_memory_than_it_said_leaves_less() -> None:
    driven = Sharers()
    driven.share("host", hours=5)
    driven.tell(JobProgressed(id="host", attempt=1, iterations=10, iteration_s=1.0, memory_mib=75_000.0))
    assert started(driven.share("guest", "b", hours=1)) == []
    assert (driven.nearest("guest").why, driven.nearest("guest").host_mib) == (PairRefusal.MEMORY, 75_000.0)
    driven.tell(JobProgressed(id="host", attempt=1, iterations=20, iteration_s=1.0, memory_mib=9_000.0))
    assert driven.nearest("guest").host_mib == 75_000.0, "it may take it again"
    driven.end("host")
    assert driven.running["guest"]


def test_who_needs_too_much_memory_runs_in_the_fewest_micro_batches_that_fit() -> None:
    driven = Sharers()
    driven.share("host", memory_mib=40_000.0)
    ways = tuple(MicroBatches(count=2**k, memory_mib=60_000.0 / 2**k, factor=1 + k / 10) for k in (3, 1, 2))
    start = starts(driven.share("guest", memory_mib=60_000.0, micro_batches=ways))

    assert start.parts.count == 2
    assert start.beside[0].own == pytest.approx(1.25 * 1.1)
    assert driven.policy.jobs["guest"].slowdown == pytest.approx(1.25 * 1.1)
    # When it starts again alone, it runs its batch as a whole.
    driven.end("host")
    assert starts(driven.end("guest", Ended.PREEMPTED)).parts.count == 1
    assert driven.policy.jobs["guest"].parts.count == 1


def test_of_micro_batches_with_which_it_would_fit_its_owner_is_told() -> None:
    driven = Sharers()
    driven.share("host", memory_mib=40_000.0)
    ways = tuple(MicroBatches(count=count, memory_mib=72_000.0 / count) for count in (2, 4))
    assert started(driven.share("guest", memory_mib=72_000.0, not_allowed=ways)) == []
    assert driven.nearest("guest").fits == ways[0]
    assert started(driven.share("large", memory_mib=72_000.0, not_allowed=ways[:0])) == []
    assert driven.nearest("large").fits is None


def test_a_pair_that_does_little_is_formed_for_the_short_only() -> None:
    driven = Sharers(slowdown=1.9)
    driven.share("host", hours=10)
    driven.share("long", hours=3)
    nearest = driven.nearest("long")
    assert (nearest.why, nearest.gain) == (PairRefusal.LITTLE, pytest.approx(2 / 1.9))
    assert started(driven.share("short", "b", hours=0.5)) == ["short"]
    # The paper shares wherever waiting for that one host takes longer.
    paper = Sharers("sjf-bsbf", slowdown=1.8)
    paper.share("host", hours=10)
    assert started(paper.share("long", hours=3)) == ["long"]


@pytest.mark.parametrize(("slowdown", "expected"), [(1.9, ["middle"]), (2.1, [])])
def test_two_that_lose_no_work_together_share_for_longer_than_two_that_do(slowdown: float, expected: list[str]) -> None:
    """1.05 and 0.95 times the work of one; the guest is through within 0.15 or 0.17 of its wait."""
    driven = Sharers(slowdown=slowdown)
    driven.share("host", hours=10, share=2.0)
    assert started(driven.share("middle", "b", hours=0.8, share=2.0)) == expected
    assert expected or driven.nearest("middle").why is PairRefusal.LITTLE


def test_a_pair_that_does_little_is_formed_where_nobody_would_do_more_with_either() -> None:
    """1.75 both: 1.14 times the work of one."""
    driven = Sharers(slowdown=1.75)
    driven.share("host", hours=10)
    assert started(driven.share("long", hours=3)) == ["long"]

    for better in (pairs(aa=1.75, ac=1.2, ca=1.2), pairs(aa=1.75, ac=1.7, ca=1.7)):
        driven = Sharers(slowdown=1.75)
        driven.tell(better)
        driven.share("host", hours=10)
        # It may share and waits for a GPU instance of its own: it is too large for the host.
        driven.share("elsewhere", "c", hours=1, memory_mib=79_000.0)
        assert started(driven.share("long", hours=3)) == []
        assert driven.nearest("long").why is PairRefusal.LITTLE
    # Its own workload is nobody else.
    driven = Sharers(slowdown=1.75)
    driven.tell(pairs(ab=1.75, ba=1.75, bb=1.2))
    driven.share("host", hours=10)
    assert started(driven.share("long", "b", hours=3)) == ["long"]


def test_waiting_is_for_whoever_ends_first() -> None:
    """Beside the only willing host it would be better than waiting for that one, but another GPU instance comes free."""
    for setting, expected in (("sjf-bsbf", ["guest"]), ("smore-jobs", [])):
        driven = Sharers(setting, slowdown=1.5, nodes=(2,))
        driven.share("host", hours=20)
        driven.share("soon", hours=0.1, share=0.0)
        assert started(driven.share("guest", "b", hours=2)) == expected


def test_the_partner_with_whom_the_most_is_done() -> None:
    driven = Sharers(nodes=(2,))
    driven.tell(pairs(ca=1.5, ac=1.5, cb=1.1, bc=1.2))
    driven.share("host", "a", hours=5)
    driven.share("better", "b", hours=6)
    assert starts(driven.share("guest", "c", hours=1)).beside[0].id == "better"
    assert starts(driven.share("guest too", "c", hours=1)).beside[0].id == "host"


def test_a_gang_shares_with_several_and_takes_free_ones_first() -> None:
    driven = Sharers(nodes=(2, 2))
    driven.tell(pairs(aa=1.2, ab=1.1, ba=1.1))
    driven.share("one", "a", hours=5)
    driven.share("two", "b", hours=5)
    driven.share("three", "a", hours=5)
    start = starts(driven.share("gang", "a", count=3, hours=5))

    assert len(start.gpus) == 3
    assert start.gpus == tuple(sorted(start.gpus))
    assert start.beside[0].id == "two"
    assert len(start.beside) == 2
    assert driven.policy.jobs["gang"].slowdown == 1.2
    assert driven.policy.jobs["two"].slowdown == 1.1


def test_time_lost_to_others_is_no_time_run() -> None:
    driven = Sharers(slowdown=1.25)
    driven.share("host", hours=2)
    driven.share("guest", "b", hours=1)
    job = driven.policy.jobs["host"]
    end_at = driven.entry("host").end_at
    assert end_at is not None
    # The guest ends after 1.25 h; by then an hour of the host's two is done.
    assert end_at[0] == pytest.approx(NOW + 2.25 * HOUR)
    driven.tell(later=HOUR)
    assert job.running_s(driven.now) == HOUR
    assert job.alone_s(driven.now) == pytest.approx(0.8 * HOUR)
    driven.end("guest", later=0.25 * HOUR)
    decisions = driven.end("host", later=HOUR)
    assert decisions[-1].seconds == pytest.approx(2 * HOUR)  # type: ignore[union-attr]
    assert driven.policy.lengths.told_s(spec_of("x"))[0] == pytest.approx(2 * HOUR, rel=0.6)


def test_iterations_are_told_as_they_are_beside_another_one() -> None:
    driven = Sharers(slowdown=1.25)
    driven.share("host", iterations=1000, iteration_s={"A": 3.6}, duration_s=0.0)
    driven.share("guest", "b", hours=1)
    driven.tell(JobProgressed(id="host", attempt=1, iterations=200, iteration_s=4.5), later=0.25 * HOUR)
    assert driven.policy.jobs["host"].left(driven.policy.lengths, driven.now).expected_s == pytest.approx(0.8 * HOUR)


def test_a_measurement_replaces_what_was_predicted_until_somebody_comes_or_goes() -> None:
    driven = Sharers(slowdown=1.25)
    driven.share("host", hours=4)
    driven.share("guest", "b", hours=1)
    driven.tell(PairMeasured(id="host", attempt=1, slowdown=1.6), later=60.0)
    assert driven.policy.jobs["host"].slowdown == 1.6
    assert (driven.facts("host").slowdown, driven.facts("host").measured) == (1.6, True)
    driven.tell(pairs(aa=1.25, ab=1.3, ba=1.3))
    assert driven.policy.jobs["host"].slowdown == 1.6, "another table predicts, and does not measure"
    driven.tell(pairs(aa=1.25, ab=1.25, ba=1.25))
    driven.end("guest")
    assert driven.policy.jobs["host"].slowdown == 1.0
    # 1.6 is within what the owner allows, so the pair may be formed again; 2.1 is not.
    assert started(driven.share("again", "b", hours=1)) == ["again"]
    driven.tell(PairMeasured(id="host", attempt=1, slowdown=2.1))
    driven.end("again")
    assert started(driven.share("never", "b", hours=1)) == []
    assert driven.nearest("never").why is PairRefusal.WORSE
    assert started(driven.tell(pairs(ab=1.25, ba=1.25))) == ["never"]


def test_a_guest_that_is_held_back_ends_later_and_has_run_for_less() -> None:
    driven = Sharers(slowdown=1.25)
    driven.share("host", hours=1)
    driven.share("guest", "b", iterations=1000, iteration_s={"A": 3.6}, duration_s=0.0)
    driven.tell(GuestHeldBack(id="guest", attempt=1, part=0.25))
    assert (driven.facts("guest").slowdown, driven.facts("guest").part) == (5.0, 0.25)
    job = driven.policy.jobs["guest"]
    # Iterations are told without the time for which it is held back.
    driven.tell(JobProgressed(id="guest", attempt=1, iterations=100, iteration_s=4.5), later=0.5 * HOUR)
    assert job.alone_s(driven.now) == pytest.approx(0.1 * HOUR)
    assert job.left(driven.policy.lengths, driven.now).expected_s == pytest.approx(0.9 * HOUR)
    end_at = driven.entry("guest").end_at
    assert end_at is not None
    # Until the host ends, in 0.75 h, it does a fifth.
    assert end_at[0] == pytest.approx(driven.now + 0.75 * HOUR + 0.75 * HOUR)
    driven.tell(GuestHeldBack(id="guest", attempt=1, part=1.0))
    assert job.slowdown == 1.25
    driven.tell(GuestHeldBack(id="guest", attempt=1, part=0.05))
    driven.end("host")
    assert job.slowdown == 1.0


def test_a_pair_that_a_former_leader_has_measured_to_be_worse_is_not_formed_and_said_to_be() -> None:
    driven = Sharers()
    driven.share("host", hours=4)
    driven.tell(
        PairsKnown(pairs=[PairKnown("A", "a", "b", 1.25, 1.25, worse=True), PairKnown("A", "b", "a", 1.25, 1.25)])
    )
    assert started(driven.share("guest", "b", hours=1)) == []
    assert driven.nearest("guest").why is PairRefusal.WORSE


def test_a_host_that_ends_leaves_its_guest_where_it_is() -> None:
    driven = Sharers()
    driven.share("host", hours=1)
    driven.share("guest", "b", hours=3)
    driven.end("host")
    assert not driven.entry("guest").guest
    assert driven.beside("guest") == []
    assert starts(driven.share("next", "c", hours=3)).beside[0].id == "guest"


def test_a_gang_that_is_stopped_leaves_a_guest_on_a_part_of_its_gpu_instances() -> None:
    driven = Sharers(nodes=(2,))
    driven.share("gang", hours=5, count=2)
    [where] = starts(driven.share("guest", "b", hours=3)).gpus
    assert stopped([*driven.tell(JobWithdrawn(id="gang")), *driven.end("gang", Ended.STOPPED)]) == []
    assert driven.running["guest"] == (1, (where,))
    assert driven.beside("guest") == [] and not driven.entry("guest").guest
    assert driven.policy.jobs["guest"].slowdown == 1.0
    other = starts(driven.share("next", "c", hours=3))
    assert (other.gpus != (where,), other.beside) == (True, ()), "the rest of the gang's GPU instances is free"


def test_nobody_shares_what_is_kept_for_whoever_is_first() -> None:
    driven = Sharers(nodes=(2,))
    driven.share("host", hours=30)
    driven.share("other", hours=30)
    driven.submit("first", hours=1, count=2)
    driven.tell(later=20 * HOUR)
    assert started(driven.share("guest", hours=8)) == []
    assert driven.nearest("guest").why is PairRefusal.KEPT


def test_what_is_kept_in_a_round_is_kept_from_those_who_come_after_in_it() -> None:
    """The two are alike but for their lengths: the first does too little, the second would be short enough."""
    driven = Sharers(slowdown=1.8, nodes=(2,))
    driven.share("host", hours=30)
    driven.share("other", hours=30)
    driven.share("first", "b", hours=8, count=2)
    driven.tell(JobMoved(id="first"))
    assert started(driven.share("second", "b", hours=0.01, count=2)) == []
    driven = Sharers(slowdown=1.8, nodes=(2,))
    driven.share("host", hours=30)
    driven.share("other", hours=30)
    assert started(driven.share("second", "b", hours=0.01, count=2)) == ["second"]


def test_a_rule_that_takes_over_knows_hosts_and_guests() -> None:
    driven = Sharers()
    spec = spec_of("host", duration_s=4 * HOUR, share=1.0, workload="a", memory_mib=8_000.0)
    for id_, since_at in (("host", NOW - HOUR), ("guest", NOW - 0.5 * HOUR)):
        driven.tell(JobSubmitted(spec=replace(spec, id=id_), submitted_at=since_at, held=True))
        driven.tell(JobUnderWay(id=id_, attempt=1, gpus=("n0g0",), since_at=since_at, lost_s=360.0))
    driven.tell(later=HOUR)
    assert driven.policy.jobs["guest"].alone_s(driven.now) == pytest.approx(1.5 * HOUR - 360 - 0.2 * HOUR)
    assert driven.entry("guest").guest


def test_one_that_is_being_ended_takes_no_guest() -> None:
    driven = Sharers()
    driven.share("host", hours=1)
    driven.tell(JobWithdrawn(id="host"))
    assert started(driven.share("guest", hours=1)) == []
    assert driven.doubt("guest") == Doubt({PairRefusal.STOPPING: 1}, None)


def test_time_lost_is_kept_over_restarts() -> None:
    driven = Sharers(slowdown=1.25)
    driven.share("host", hours=4, restarts=1)
    driven.share("guest", "b", hours=1)
    [again] = [d for d in driven.end("host", Ended.FAILED, later=HOUR) if isinstance(d, Requeue)]
    assert again.id == "host"
    assert driven.policy.jobs["host"].alone_s(driven.now) == pytest.approx(0.8 * HOUR)


def test_what_preempts_does_not_share() -> None:
    with pytest.raises(UnknownPolicy, match="sharing"):
        replace(SETTINGS["srsf"], sharing=Sharing.GAIN)
