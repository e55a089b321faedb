"""What becomes of pairs that workers report, and of tables that cannot be used."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from scheduler.jobs.attempts import Attempt
from scheduler.jobs.sharing import KnownPairs, SharedAttempts
from scheduler.policy.jobs.decisions import BesideHost
from scheduler.policy.jobs.events import Event, GuestHeldBack, PairMeasured, PairsKnown
from scheduler.policy.jobs.spec import MicroBatches
from smore.messages.degradation import BadTable, Table
from smore.messages.reports import JobReport
from smore.postgres.job_pairs import JobPair
from smore.redis.tables import Tables
from tests.support import fake_platform
from tests.support.tables import of_trainings

PLACE = ("a device", "time-slice")


def attempt(job: str, **reported: Any) -> Attempt:
    """The guest runs its batch in two parts, in which an iteration takes twice as long."""
    under_way = Attempt(
        job=job,
        attempt=1,
        gpus=["g0"],
        since_at=0.0,
        awaited_at=0.0,
        began_with=0,
        checkpoint=0,
        home="",
        parts=MicroBatches(count=1, memory_mib=0.0, factor=2.0 if job == "guest" else 1.0),
    )
    under_way.ranks[0].report = JobReport(
        id=job, project="p", state="running", pid=1, memory_mib=1.0, iterations=1, attempt=1, **reported
    )
    return under_way


class Stage:
    """A host and a guest, of which the guest's profile says 0.1 s."""

    def __init__(self) -> None:
        self.sharing = SharedAttempts(lambda workload, _: 0.1 if workload == "light" else None)
        self.attempts = {"host": attempt("host"), "guest": attempt("guest")}
        costs = BesideHost("host", 1.2, 1.3, 1.1, 1.15)
        pairs = self.sharing.begin(0.0, "guest", 1, ["g0"], [(costs, self.attempts["host"])], PLACE)
        self.sharing.take_over(pairs)
        self.guest, self.host = pairs

    def follow(self, at: float) -> Sequence[Event]:
        return self.sharing.follow(at, self.attempts, {"host": "heavy", "guest": "light"})


def test_a_pair_is_seen_from_both_sides() -> None:
    stage = Stage()
    assert (stage.guest.job, stage.guest.other, stage.guest.guest, stage.guest.gpus) == ("guest", "host", True, ["g0"])
    assert (stage.guest.predicted, stage.guest.predicted_90) == (1.2, 1.3)
    assert (stage.host.job, stage.host.guest, stage.host.predicted, stage.host.predicted_90) == (
        "host",
        False,
        1.1,
        1.15,
    )


def test_the_first_minute_is_measured_and_reported_to_the_rule_once() -> None:
    stage = Stage()
    host = {"alone_s": 0.5, "alone_n": 100, "alone_se": 0.005, "beside": ["guest"], "beside_since": 10.0}
    guest = {"beside": ["host"], "beside_since": 10.0, "beside_s": 0.25, "beside_n": 50, "beside_se": 0.001}
    stage.attempts["host"] = attempt("host", **host, beside_s=0.6, beside_n=50, beside_se=0.006)
    stage.attempts["guest"] = attempt("guest", **guest, held_s=1.5)
    assert stage.follow(40.0) == []
    assert (stage.host.loss, stage.host.measured) == (pytest.approx(0.2), None)
    events = {event.id: event.slowdown for event in stage.follow(71.0) if isinstance(event, PairMeasured)}
    # The guest runs its batch in two parts, which alone take twice as long as its profile says.
    assert events == {"host": pytest.approx(1.2), "guest": pytest.approx(1.25 * 2.0)}
    assert (stage.guest.measured, stage.guest.held_s) == (pytest.approx(1.25), 1.5)
    assert (stage.guest.loss_low, stage.guest.alone_s) == (None, pytest.approx(0.2)), "a profile's time has no interval"
    assert {pair.job for pair in stage.sharing.changed()} == {"host", "guest"}
    stage.attempts["host"] = attempt("host", **host, beside_s=0.7, beside_n=90, beside_se=0.006)
    assert stage.follow(90.0) == []
    assert (stage.host.measured, stage.host.loss) == (pytest.approx(1.2), pytest.approx(0.4)), "the first minute stays"


def test_a_guest_that_comes_back_to_its_host_is_measured_again() -> None:
    stage = Stage()
    host = {"alone_s": 0.5, "alone_n": 100, "alone_se": 0.005, "beside": ["guest"], "beside_n": 50, "beside_se": 0.006}
    stage.attempts["host"] = attempt("host", **host, beside_since=10.0, beside_s=0.6)
    assert [event.slowdown for event in stage.follow(71.0) if isinstance(event, PairMeasured)] == [pytest.approx(1.2)]
    guest = stage.attempts.pop("guest")
    stage.follow(72.0)
    guest.attempt, stage.attempts["guest"] = 2, guest
    costs = BesideHost("host", 1.2, 1.3, 1.1, 1.15)
    stage.sharing.take_over(stage.sharing.begin(80.0, "guest", 2, ["g0"], [(costs, stage.attempts["host"])], PLACE))
    stage.attempts["host"] = attempt("host", **host, beside_since=90.0, beside_s=0.7)
    assert [event.slowdown for event in stage.follow(151.0) if isinstance(event, PairMeasured)] == [pytest.approx(1.4)]


def test_the_rule_hears_for_which_part_of_the_time_a_guest_may_run_when_that_changes() -> None:
    stage = Stage()
    said = []
    for held in (1.0, 0.25, 0.25, 1.0):
        stage.attempts["guest"] = attempt("guest", guest=True, held=held)
        said.append(stage.follow(20.0))
    told = [GuestHeldBack(id="guest", attempt=1, part=part) for part in (0.25, 1.0)]
    assert said == [[], [told[0]], [], [told[1]]]


def test_the_next_leader_counts_no_time_held_twice() -> None:
    stage = Stage()
    stage.attempts["guest"] = attempt("guest", held_s=10.0)
    stage.follow(20.0)
    assert stage.guest.held_s == 10.0
    stage.sharing = SharedAttempts(lambda *_: None)
    stage.sharing.take_over([stage.guest, stage.host])
    stage.attempts["guest"] = attempt("guest", held_s=12.0)
    stage.follow(30.0)
    assert stage.guest.held_s == 12.0


def test_a_pair_that_ends_early_is_measured_over_what_it_had() -> None:
    stage = Stage()
    reported = {"beside": ["guest"], "beside_since": 10.0, "beside_s": 0.6, "beside_n": 30, "beside_se": 0.005}
    stage.attempts["host"] = attempt("host", **reported)
    stage.follow(30.0)
    del stage.attempts["guest"]
    stage.follow(31.0)
    assert (stage.host.until_at, stage.host.measured) == (31.0, None), "nobody knows what it takes alone"
    assert (stage.host.beside_s, stage.host.alone_s) == (0.6, None), "a statement says so"
    for iterations in (5, 40):
        error = 0.005 if iterations == 40 else 0.0
        stage.attempts["host"] = attempt("host", alone_s=0.5, alone_n=iterations, alone_se=error)
        stage.follow(35.0)
    assert (stage.host.measured, stage.host.loss) == (pytest.approx(1.2), pytest.approx(0.2))
    assert stage.host.loss_low is not None
    assert stage.sharing.over("guest", 1, 31.0)[0].measured is None, "nothing was told of it"
    assert isinstance(stage.sharing.over("host", 1, 32.0)[0], JobPair)


class FakeTables:
    def __init__(self) -> None:
        self.number, self.table = 0, cast("Table | None", None)
        self.broken = False

    def version(self) -> int:
        return self.number

    def current(self) -> Table | None:
        if self.broken:
            raise BadTable("cut")
        return self.table


def test_pairs_are_those_of_the_published_table_and_of_the_places_that_there_are() -> None:
    report = fake_platform.report()
    tables = FakeTables()
    worse: set[tuple[str, str, str]] = set()
    pairs = KnownPairs(cast("Tables", tables), lambda _: worse)
    here = (report.device, report.sharing_mode)
    assert pairs.changed([here]) == [PairsKnown(pairs=[])]
    assert pairs.changed([here]) == []
    tables.number, tables.table = 1, of_trainings(report, {("a/s/training/1", "b/s/training/1"): 0.1})
    [event] = pairs.changed([here])
    assert isinstance(event, PairsKnown)
    assert ("a/s/training/1", "b/s/training/1", pytest.approx(1.1), pytest.approx(1.15)) in [
        (pair.workload, pair.beside, pair.slowdown, pair.most) for pair in event.pairs
    ]
    worse.add((report.device, "b/s/training/1", "a/s/training/1"))
    tables.number = 2
    [event] = pairs.changed([here])
    assert isinstance(event, PairsKnown)
    assert {(pair.workload, pair.beside) for pair in event.pairs if pair.worse} == {
        ("b/s/training/1", "a/s/training/1")
    }
    assert len(event.pairs) == 4
    assert pairs.changed([("another device", here[1])]) == [PairsKnown(pairs=[])], "tables of other places say nothing"
    both = [here, (report.device, "another mode")]
    assert pairs.changed(both) == [PairsKnown(pairs=[])], "nor those of one mode where there are two"
    tables.number, tables.broken = 3, True
    assert pairs.changed([here]) == [PairsKnown(pairs=[])]


def test_the_published_table_has_times_alone_of_its_own_place() -> None:
    report = fake_platform.report()
    here, pair = (report.device, report.sharing_mode), ("a/s/training/1", "b/s/training/1")
    tables = FakeTables()
    pairs = KnownPairs(cast("Tables", tables), lambda _: set())
    pairs.changed([here])
    assert pairs.alone_s(pair[0], here) is None
    tables.number, tables.table = 1, of_trainings(report, {pair: 0.1}, alone_s=dict.fromkeys(pair, 0.25))
    pairs.changed([here])
    assert pairs.alone_s(pair[0], here) == 0.25
    assert pairs.alone_s("c/s/training/1", here) is None
    assert pairs.alone_s(pair[0], ("another device", here[1])) is None
    tables.number, tables.broken = 2, True
    pairs.changed([here])
    assert pairs.alone_s(pair[0], here) is None
