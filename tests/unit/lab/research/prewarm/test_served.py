"""The page of what keeping ready came to: rules on counted arrivals, from never to the oracle."""

import numpy as np
import pytest

from lab.research.prewarm.served import page, picture, points, since_counted, workload
from smore.domain.function import FunctionSpec, Profile
from smore.postgres.arrivals import ArrivalCounts, FunctionAccount

MINUTES = 300
PAST = ArrivalCounts(
    from_at=0.0, counted=[True] * MINUTES, counts={"p/clock": dict.fromkeys(range(0, MINUTES, 4), 1), "p/gone": {7: 2}}
)
SPECS = {"p/clock": FunctionSpec(entrypoint="m:C", profile=Profile(run_s={1: 0.1}, load_s=1.5, memory_mib=512.0))}


def test_counts_become_a_workload() -> None:
    work = workload(PAST, SPECS)
    assert work.names == ("p/clock", "p/gone")
    assert work.counts.shape == (2, MINUTES)
    assert (work.counts[0].sum(), work.counts[1, 7]) == (75, 2)
    np.testing.assert_allclose(work.memory_gb, [0.5, 0.25])


def test_rules_lie_between_never_and_the_oracle() -> None:
    found = {one.rule: one for one in points(workload(PAST, SPECS), 0, 60.0)}
    never, oracle = found["never"], found["oracle"]
    # The first fifth is learned from: 60 of the 75 are scored.
    assert (never.requests, never.cold, never.avoided) == (60, 1.0, 0)
    assert oracle.avoided >= max(one.avoided for one in found.values()) - 1
    assert oracle.idle_gb_h <= min(one.idle_gb_h for one in found.values() if one.avoided >= oracle.avoided)
    # Requests are three to five minutes apart.
    assert found["keep-alive 120 s"].cold == 1.0
    assert found["keep-alive 600 s"].cold < 0.05
    assert never.avoided_per_gb_h == pytest.approx(0.0)


def test_the_page_holds_its_picture_and_escapes_names() -> None:
    account = FunctionAccount(
        function="p/<b>",
        invocations=3,
        cold=1,
        hits=2,
        late=0,
        wasted=1,
        failed=0,
        open=0,
        cold_loads=1,
        saved=2,
        held_gb_s=3.0,
        idle_gb_s=2.0,
        wasted_gb_s=1.0,
        unforeseen={"never_seen": 1},
    )
    found = points(workload(PAST, SPECS), 0, 60.0)
    svg = picture(found, 60.0)
    made = page(PAST, [account], found, svg, 60.0)
    assert made.count("<svg") == 1
    assert "p/&lt;b&gt;" in made
    assert "never_seen 1" in made
    assert "300 of 300 minutes since 1970-01-01" in made
    assert "1 of 3 attempts were cold, 2 were saved a cold start, for 0.001 GB-hours" in made
    # The price in force stands out, in its row and as a ring.
    assert "<tr class=ours><td><div>priced 60 GB s</div></td>" in made
    # A reason is text; numbers stand to the right.
    assert '<td data-label="why cold"><div>never_seen 1</div></td>' in made
    assert '<td class=n data-label="cold"><div>1</div></td>' in made
    assert picture(found, 60.0) == svg


def test_a_price_of_ones_own_is_among_them() -> None:
    found = points(workload(PAST, SPECS), 0, 7.5)
    assert [one.rule for one in found].count("priced 7.5 GB s") == 1
    assert "the price in force, 7.5 GB s" in picture(found, 7.5).replace("<!-- ", "").replace(" -->", "")


def test_the_time_before_anything_was_counted_is_left_out() -> None:
    late = since_counted(ArrivalCounts(from_at=600.0, counted=[False] * 10 + [True] * 5, counts={"p/a": {8: 1, 12: 2}}))
    assert (late.from_at, late.counted, late.counts) == (1080.0, [False] * 2 + [True] * 5, {"p/a": {0: 1, 4: 2}})
    late = since_counted(ArrivalCounts(from_at=0.0, counted=[False, True, True], counts={"p/a": {2: 1}}))
    assert (late.from_at, late.counted, late.counts) == (60.0, [True, True], {"p/a": {1: 1}})
