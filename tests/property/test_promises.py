"""
Promised ends on small fleets: every promise that is given is kept where lengths are sure, none is given that no schedule
could keep, and no start is let through after which none could.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.simulation.jobs.interference import Constant
from lab.simulation.jobs.simulator import simulate_jobs
from lab.simulation.jobs.traces import SimulatedJob
from lab.simulation.jobs.world import JobWorld
from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.decisions import NotPromised, Promised, Start
from scheduler.policy.jobs.events import JobSubmitted, RunsKnown
from scheduler.policy.jobs.knobs import SETTINGS, JobKnobs
from scheduler.policy.jobs.promises import MARGIN
from smore.domain.job import EARLIEST, PastRun
from tests.support.driven_jobs import NOW, gpus, spec_of

ALONE = replace(SETTINGS["smore-jobs"], sharing=SETTINGS["sjf"].sharing)
QUARTER = 900.0

#: Quarters of an hour after the one before, its length in quarters, how many GPU instances, and what it asks for: nothing,
#: the earliest end, or one so many tenths of its length after its arrival.
asking = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(1, 8), st.sampled_from([1, 1, 2, 3]), st.sampled_from([-1, 0, 12, 20, 40, 60])
    ),
    min_size=15,
    max_size=40,
)


@settings(max_examples=25, deadline=None)
@given(asking, st.sampled_from([3, 4]), st.sampled_from([inf, 1800.0]))
def test_every_promise_is_kept_where_lengths_are_known(
    script: list[tuple[int, int, int, int]], size: int, patience_s: float
) -> None:
    jobs, at = [], 0.0
    for number, (gap, quarters, count, tenths) in enumerate(script):
        at += gap * QUARTER
        until = at + tenths / 10 * quarters * QUARTER
        asks = {-1: None, 0: EARLIEST}.get(tenths, until)
        jobs.append(
            SimulatedJob(
                id=f"j{number}", submit_s=at, gpus=count, seconds=quarters * QUARTER, by=asks or None, asks=asks
            )
        )
    world = JobWorld(name="w", nodes=1, gpus=size, device="A", memory_mib=1000, interference=Constant(1.5))
    knobs = replace(ALONE, patience_s=patience_s, patience_lengths=0.1, patience_most_s=patience_s)
    result = simulate_jobs(world, jobs, knobs, seed=0)

    late = [
        job.id
        for job, by, end in zip(jobs, result.promised, result.end_s, strict=True)
        if by is not None and end > by + 1e-3
    ]
    assert late == []
    # Whatever nobody asked for is promised nothing.
    assert all(by is None or job.asks is not None for job, by in zip(jobs, result.promised, strict=True))


#: Quarters and GPU instances of jobs that run, and of those that are promised an end so many quarters later.
small = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=0, max_size=3)
promised = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 16)), min_size=1, max_size=4)


class Fleet:
    """Three GPU instances of which some are taken until they are surely free, and jobs with promises that wait."""

    def __init__(self, running: list[tuple[int, int]], knobs: JobKnobs = ALONE) -> None:
        self.policy = JobPolicy(knobs)
        ratios = [PastRun(project="p", name="", seconds=1.0, ratios={"declared": 1.0}) for _ in range(100)]
        self.policy.decide(NOW, [*gpus(3), RunsKnown(runs=ratios)])
        self.ready = [0.0] * 3
        for number, (quarters, count) in enumerate(running):
            if self.ready.count(0.0) >= count:
                self.submit(f"r{number}", quarters, count)
                for _ in range(count):
                    self.ready[self.ready.index(0.0)] = self.sure_s(f"r{number}")
        self.promises: dict[str, tuple[float, int, float]] = {}

    def submit(self, id_: str, quarters: int, count: int, by: float | None = None) -> list[object]:
        spec = spec_of(id_, duration_s=quarters * QUARTER, count=count, budget=0.0, by=by)
        spec = replace(spec, request=replace(spec.request, by=by))
        return list(self.policy.decide(NOW, [JobSubmitted(spec=spec, submitted_at=NOW)]).decisions)

    def sure_s(self, id_: str) -> float:
        return self.policy.jobs[id_].left(self.policy.lengths, NOW).surely_s

    def note(self, id_: str, decisions: Sequence[object]) -> None:
        """What became of a job that has asked."""
        length_s = self.sure_s(id_) if id_ in self.policy.jobs else 0.0
        for decision in decisions:
            if isinstance(decision, Promised):
                self.promises[id_] = length_s, self.policy.jobs[id_].needs.size, decision.by - NOW
            if isinstance(decision, Start):
                count = self.policy.jobs[decision.id].needs.size
                self.promises.pop(decision.id, None)
                for _ in range(count):
                    self.ready[self.ready.index(0.0)] = self.sure_s(decision.id)

    def keepable(self) -> bool:
        """Whether there is any schedule that keeps all promises of jobs that wait, by trying all."""
        return any(self._keeps(order) for order in permutations(self.promises.values())) or not self.promises

    def _keeps(self, order: Sequence[tuple[float, int, float]]) -> bool:
        """Each at the earliest moment from which on so many GPU instances are free until its end, given those before."""
        placed = [(0.0, at, 1) for at in self.ready]
        for length_s, count, by in order:
            moments = sorted({0.0, *(end for _, end, _ in placed)})
            start = next(
                at
                for at in moments
                if all(
                    sum(n for begin, end, n in placed if begin <= moment < end) + count <= 3
                    for moment in {at, *(begin for begin, _, _ in placed if at <= begin < at + length_s)}
                )
            )
            if start + MARGIN * length_s > by + 1e-3:
                return False
            placed.append((start, start + length_s, count))
        return True


@settings(max_examples=150, deadline=None)
@given(small, promised)
def test_nothing_is_promised_that_no_schedule_keeps(
    running: list[tuple[int, int]], asked: list[tuple[int, int, int]]
) -> None:
    """Nor is a promised job started so that another promise cannot be kept any more."""
    fleet = Fleet(running)
    for number, (quarters, count, until) in enumerate(asked):
        id_ = f"p{number}"
        by = NOW + until * QUARTER if until > 1 else EARLIEST
        fleet.note(id_, fleet.submit(id_, quarters, count, by))
        assert fleet.keepable()


@settings(max_examples=150, deadline=None)
@given(small, promised, st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=4))
def test_nobody_starts_after_whom_no_schedule_keeps_what_was_promised(
    running: list[tuple[int, int]], asked: list[tuple[int, int, int]], others: list[tuple[int, int]]
) -> None:
    fleet = Fleet(running)
    for number, (quarters, count, until) in enumerate(asked):
        id_ = f"p{number}"
        fleet.note(id_, fleet.submit(id_, quarters, count, NOW + until * QUARTER))
    for number, (quarters, count) in enumerate(others):
        fleet.note("", fleet.submit(f"o{number}", quarters, count))
        assert fleet.keepable()


@settings(max_examples=60, deadline=None)
@given(small, promised)
def test_what_is_told_as_the_earliest_would_be_promised(
    running: list[tuple[int, int]], asked: list[tuple[int, int, int]]
) -> None:
    fleet = Fleet(running)
    for number, (quarters, count, until) in enumerate(asked):
        [verdict] = [
            decision
            for decision in fleet.submit(f"p{number}", quarters, count, NOW + until * QUARTER / 4)
            if isinstance(decision, Promised | NotPromised)
        ]
        if isinstance(verdict, NotPromised):
            assert verdict.earliest is not None
            decisions = fleet.submit(f"again{number}", quarters, count, verdict.earliest)
            assert any(isinstance(decision, Promised) for decision in decisions)
