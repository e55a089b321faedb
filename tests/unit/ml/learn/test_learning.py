"""What a challenger learns from and is judged by; artifacts; drift. Without servers."""

import io
import json
import math
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from ml.learn import learning
from ml.learn.challenge import Challenge, Unusable, overlay, pack, rmsle, unpack
from ml.learn.dataset import Point, Rows, gather, hold_back, observations, points, samples_of
from ml.learn.live import History, Observed, TimedRun, TrainedJob
from ml.predict.multiway import mean_error, weights_of
from ml.predict.samples import Samples
from ml.predict.table import pair_wise, place_table
from ml.rows import BadRow, Colocation, PlaceProfile, profiles, write
from smore.domain.degradation import Weights
from smore.messages.degradation import PlaceTable, Table
from tests.support.measured import (
    PLACE,
    T0,
    alone_s,
    function,
    pairs,
    sets,
    slowdown,
    solo,
    solos,
    timing,
    together,
    training,
)

HERE = PLACE.key


def profile(count: int = 24, **kind: Any) -> PlaceProfile:
    (found,) = profiles([*solos(), *pairs(count, **kind)])
    return found


def rows_of(count: int = 24) -> Rows:
    return Rows(rows=[*solos(), *pairs(count)])


# What is held back


def point(pair: int, at: float) -> Point:
    return Point(victim=training(batch=pair + 1), aggressor=function(), value=0.1, at=at)


def test_without_a_champion_the_newest_fifth_is_held_back() -> None:
    found = [point(pair, at=pair) for pair in range(10)]

    rest, held = hold_back(found, None)
    assert (rest, held) == (found[:8], found[8:])


def test_whole_pairs_are_held_back() -> None:
    found = [point(pair, at=pair) for pair in range(10)] + [point(0, at=20.0)]

    rest, held = hold_back(found, None)
    assert held == [found[0], found[9], found[10]]
    assert not {one.group for one in rest} & {one.group for one in held}


def test_with_a_champion_half_of_what_it_has_not_seen_is_held_back() -> None:
    known = [point(pair, at=pair) for pair in range(10)]
    new = [point(pair, at=100.0 + pair) for pair in range(10, 14)]

    rest, held = hold_back([*known, *new], seen_until=50.0)
    assert held == new[2:]
    assert rest == [*known, *new[:2]]


def test_what_the_champion_knew_of_a_pair_the_challenger_may_know() -> None:
    found = [point(0, at=1.0), point(0, at=60.0), point(0, at=70.0), point(1, at=2.0)]

    rest, held = hold_back(found, seen_until=50.0)
    assert held == found[1:3]
    assert rest == [found[0], found[3]]


def test_nothing_newer_is_nothing_to_judge_by() -> None:
    assert hold_back([point(0, at=1.0)], seen_until=1.0)[1] == []


# Rows


def write_all(path: Path, count: int = 12) -> None:
    for row in [*solos(), *pairs(count)]:
        write(path, row)


def test_rows_of_the_checkout_and_stored_ones_once_each(tmp_path: Path) -> None:
    write_all(tmp_path / "a.jsonl")
    stored = [("1", json.loads(line)) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    new = json.loads(json.dumps(asdict(together(training(), function(), T0 + 1e6))))

    found = gather(tmp_path, [*stored, ("2", new)])
    assert found.manifest() == {
        "checkout": 28,
        "stored": 1,
        "observed": 0,
        "total": 29,
        "digest": found.digest,
        "passed_over": [],
    }
    assert found.digest == gather(tmp_path, []).digest
    write(tmp_path / "b.jsonl", solo(training()))
    assert gather(tmp_path, []).digest != found.digest


def test_a_cut_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_all(path, 2)
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(BadRow, match=r"a\.jsonl:18"):
        gather(tmp_path, [])


@pytest.mark.parametrize("wrong", [{"version": 9}, {"features": {"flops": 1.0}}, {"at": "yesterday"}])
def test_a_row_that_cannot_be_used_is_refused_in_a_file_and_passed_over_in_the_store(
    wrong: dict[str, object], tmp_path: Path
) -> None:
    document = asdict(solo(training())) | wrong
    (tmp_path / "a.jsonl").write_text(json.dumps(document) + "\n")

    with pytest.raises(BadRow):
        gather(tmp_path, [])
    (tmp_path / "a.jsonl").unlink()
    found = gather(tmp_path, [("abc", document)])
    assert (found.rows, len(found.passed)) == ([], 1)


def test_features_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(asdict(solo(training(), flops=math.nan))) + "\n")

    with pytest.raises(BadRow, match="flops is nan"):
        gather(tmp_path, [])


def test_samples_of_measured_and_observed_pairs() -> None:
    known = profile(12)
    seen = Observed(
        place=HERE,
        direction="function",
        victim=function("bert", 2),
        aggressor=training("vgg16", 2),
        n=100,
        seconds=0.3,
        alone_s=0.1,
        alone_n=100,
        alone_from="live",
        at=T0,
    )
    elsewhere = replace(seen, place=(HERE[0], "mps"))
    unprofiled = replace(seen, victim=function("bert", 4))

    found = points(known, [seen, elsewhere, unprofiled], "function")
    assert len(found) == 13
    samples = samples_of(found, known, "function")
    assert samples.target[-1] == pytest.approx(2.0)
    assert (samples.victims[-1], samples.aggressors[-1]) == ("bert", "vgg16")
    assert len(points(known, [seen], "training")) == 12
    # Of several at a time it is no pair.
    several_ = replace(seen, others=(function("vgg16", 8),))
    assert len(points(known, [several_], "function")) == 12
    (one,) = observations(known, [several_, seen, replace(several_, victim=function("bert", 4))])
    assert (one.victim, one.beside, one.actual) == (seen.victim, several_.beside, seen.degradation)


def test_newer_rows_of_the_platform_replace_older_ones(tmp_path: Path) -> None:
    seen = Observed(
        place=HERE,
        direction="function",
        victim=function("bert", 2),
        aggressor=training("vgg16", 2),
        n=100,
        seconds=0.3,
        alone_s=0.1,
        alone_n=100,
        alone_from="live",
        at=T0,
    )
    other = replace(seen, place=(HERE[0], "mps"))
    several_ = replace(seen, others=(function("vgg16", 8),))
    stored = {str(number): replace(seen, at=T0 + number) for number in range(4)} | {"other": other, "several": several_}

    found = gather(tmp_path, [(id_, row.document()) for id_, row in stored.items()])
    assert found.observed == [stored["2"], stored["3"], other, several_]
    assert found.outlived == ["0", "1"]


# Judging


class Constant:
    """Predicts one number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def predict(self, samples: Samples) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.full(len(samples), self.value)

    def upper(self, samples: Samples, coverage: float = 0.9) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.full(len(samples), 2 * self.value)


def judged(champion: Any, rows: Rows, until: float) -> Challenge:
    known = {HERE: {"function": champion}} if champion is not None else {}
    former = {"places": [{"device": HERE[0], "sharing_mode": HERE[1], "directions": {"function": {"until": until}}}]}
    found = Challenge(known, former if known else {})  # type: ignore[arg-type]
    found.judge(profiles(rows.rows)[0], rows)
    return found


def test_the_better_one_wins_each_direction() -> None:
    rows = rows_of(32)
    until = T0 + 60 * 15.5

    worse = judged(Constant(9.0), rows, until)
    verdict = worse.verdicts[HERE]["function"]
    assert verdict.verdict == "better"
    assert verdict.held_pairs == 8
    assert cast(float, verdict.challenger) < cast(float, verdict.champion)
    assert not isinstance(worse.chosen[HERE]["function"], Constant)

    class Oracle(Constant):
        def predict(self, samples: Samples) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            victims = [
                function(model, int(batch)) for model, batch in zip(samples.victims, samples.victim[:, -1], strict=True)
            ]
            aggressors = [
                training(model, int(batch))
                for model, batch in zip(samples.aggressors, samples.aggressor[:, -1], strict=True)
            ]
            return np.array(
                [slowdown(victim, aggressor) for victim, aggressor in zip(victims, aggressors, strict=True)]
            )

    oracle = Oracle(0.0)
    kept = judged(oracle, rows, until)
    assert kept.verdicts[HERE]["function"].verdict == "kept"
    assert kept.verdicts[HERE]["function"].until == until
    assert kept.chosen[HERE]["function"] is oracle
    # Nobody predicted the other direction so far.
    assert kept.verdicts[HERE]["training"].verdict == "new"


def test_a_champion_that_answers_with_no_number_loses() -> None:
    assert judged(Constant(math.nan), rows_of(32), T0 + 60 * 15.5).verdicts[HERE]["function"].verdict == "better"


def test_too_few_newer_pairs_keep_the_champion() -> None:
    found = judged(Constant(9.0), rows_of(24), T0 + 60 * 16.5)

    assert found.verdicts[HERE]["function"].verdict == "kept"
    assert "4 newer pairs held back" in found.verdicts[HERE]["function"].why


def test_too_few_pairs_make_no_predictor() -> None:
    found = judged(None, rows_of(9), 0.0)

    assert not found.won
    with pytest.raises(Unusable, match="fewer than 10 pairs of the direction training, function"):
        found.tables()


def test_rmsle_by_hand() -> None:
    assert rmsle(np.array([math.e - 1, 0.0]), np.array([0.0, -0.5])) == pytest.approx(math.sqrt(0.5))


# The table


def test_what_the_platform_measured_since_stands_in_the_table() -> None:
    known = profile(32)
    predictors = judged(None, rows_of(32), 0.0).chosen[HERE]
    place = place_table(known, predictors)
    measured = known.colocations[0]
    victim, aggressor = measured.members[1].workload, measured.members[0].workload
    seen = Observed(
        place=HERE,
        direction="function",
        victim=victim,
        aggressor=aggressor,
        n=100,
        seconds=0.4,
        alone_s=0.1,
        alone_n=100,
        alone_from="live",
        at=T0 + 1e6,
    )
    cell = place.trainings.index(str(aggressor)), place.functions.index(str(victim))

    newer = overlay(place, known, Rows(observed=[seen]))
    assert newer.cell(newer.function, *cell) == pytest.approx(3.0)
    distance = (1 + place.cell(place.function_upper, *cell)) / (1 + place.cell(place.function, *cell))
    assert 1 + newer.cell(newer.function_upper, *cell) == pytest.approx(4.0 * distance)
    mean = np.frombuffer(newer.degradation)[cell[1]]
    assert mean == pytest.approx(
        np.mean([newer.cell(newer.training, i, cell[1]) + newer.cell(newer.function, i, cell[1]) for i in range(8)])
    )
    assert newer.training == place.training
    # A profile that is younger than it counts more.
    assert overlay(place, known, Rows(observed=[replace(seen, at=T0 - 1)])) == place


# Weights


def weigh(observed: list[Observed], former: Challenge | None = None) -> Challenge:
    """A trial of which the weights alone are of interest, against the weights of another."""
    rows = Rows(rows=rows_of(32).rows, observed=observed)
    weights = {HERE: former.tables()[0].weights} if former is not None else {}
    found = Challenge({}, former.manifest() if former is not None else {}, weights)
    found.judge(profiles(rows.rows)[0], rows)
    return found


def error_of(weights: Weights, place: PlaceTable, observed: list[Observed]) -> float:
    return mean_error(weights, observations(profile(32), observed), pair_wise(place))


def test_weights_learned_from_the_platforms_own_runs() -> None:
    found = weigh(sets(0, 60, 1.5))

    verdict = found.weight_verdicts[HERE]["training"]
    assert (verdict.verdict, verdict.sets, verdict.held_sets, verdict.until) == (
        "better",
        60,
        12,
        sets(59, 60, 1.5)[0].at,
    )
    assert found.weight_verdicts[HERE].keys() == {"training"}
    (place,) = found.tables()
    # They hold for sets that were not among what they learned from.
    later, ones = sets(60, 90, 1.5), Weights()
    assert error_of(weights_of(place.weights), place, later) < error_of(ones, place, later) / 2
    assert found.manifest()["places"][0]["weights"]["training"]["verdict"] == "better"
    assert "weights of the training better (mean error " in found.words()


def test_weights_that_do_not_help_are_not_published() -> None:
    """What was seen at first does not hold for the newest, which are held back."""
    found = weigh([*sets(0, 48, 2.5), *sets(48, 60, 1.0)])

    verdict = found.weight_verdicts[HERE]["training"]
    assert verdict.verdict == "kept"
    assert cast(float, verdict.challenger) > cast(float, verdict.ones)
    assert found.tables()[0].weights == []


def test_few_sets_cannot_tell() -> None:
    found = weigh(sets(0, 20, 1.5))

    assert found.weight_verdicts[HERE]["training"].why == "4 newer sets held back; 5 are needed"
    assert found.tables()[0].weights == []


def test_learned_weights_replace_the_champions_only_where_they_are_better() -> None:
    champion = weigh(sets(0, 60, 1.5))
    weights = champion.tables()[0].weights

    # Nothing new: they stay, and what they know stays what it was.
    same = weigh(sets(0, 60, 1.5), champion)
    assert same.weight_verdicts[HERE]["training"].verdict == "kept"
    assert same.weight_verdicts[HERE]["training"].until == champion.weight_verdicts[HERE]["training"].until
    assert same.tables()[0].weights == weights
    # Co-location costs more than it did.
    more = weigh([*sets(0, 60, 1.5), *sets(60, 100, 2.5)], champion)
    verdict = more.weight_verdicts[HERE]["training"]
    assert (verdict.verdict, verdict.held_sets) == ("better", 20)
    assert cast(float, verdict.challenger) < cast(float, verdict.champion)
    assert more.tables()[0].weights != weights
    # Co-location costs less than the plain sums now, and what came before still weighs on the challenger: ones are
    # better than both.
    none = weigh([*sets(0, 80, 1.5), *sets(80, 100, 0.5)], champion)
    assert none.weight_verdicts[HERE]["training"].verdict == "dropped"
    assert none.weight_verdicts[HERE]["training"].until is None
    assert none.tables()[0].weights == []
    assert more.won


def test_profiled_sets_teach_too_and_pairs_do_not() -> None:
    rows = [*rows_of(32).rows, *several(60)]
    found = Challenge({}, {})
    found.judge(profiles(rows)[0], Rows(rows=rows))

    assert found.weight_verdicts[HERE].keys() == {"training", "function"}
    gamma = [one.value for one in found.tables()[0].weights if one.kind == "training" and one.k == 2]
    assert 1.1 < np.mean(gamma) < 1.9
    assert weigh([]).weight_verdicts[HERE] == {}


def several(count: int) -> list[Colocation]:
    """Sets as a profiling run measures them; the functions cost the training half as much again as the sum of both."""
    found = []
    for number, row in enumerate(sets(0, count, 1.5)):
        first = together(row.victim, row.aggressor, T0 + 1e5 + number)
        slowed, one = first.members
        (_, other) = together(row.victim, row.others[0], T0).members
        slow = replace(slowed, timing=timing(alone_s(row.victim) * row.seconds))
        found.append(replace(first, members=(slow, one, other)))
    return found


# Artifacts


def artifact() -> bytes:
    return pack(judged(None, rows_of(24), 0.0).chosen)


def test_an_artifact_and_back() -> None:
    chosen = judged(None, rows_of(24), 0.0).chosen
    samples = samples_of(points(profile(24), (), "function"), profile(24), "function")

    found = unpack(pack(chosen))
    assert found.keys() == {HERE}
    assert found[HERE].keys() == {"training", "function"}
    assert (found[HERE]["function"].predict(samples) == chosen[HERE]["function"].predict(samples)).all()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_cut_artifact_is_refused(share: float) -> None:
    blob = artifact()

    with pytest.raises(Unusable, match="damaged"):
        unpack(blob[: int(share * len(blob))])


def test_an_artifact_of_another_version_is_refused() -> None:
    blob = io.BytesIO()
    with zipfile.ZipFile(blob, "w") as archive:
        archive.writestr("index.json", json.dumps({"format": 2, "predictors": []}))

    with pytest.raises(Unusable, match="format 2, 1 is expected"):
        unpack(blob.getvalue())


def test_a_damaged_byte_is_found() -> None:
    blob = bytearray(artifact())
    blob[200] ^= 0xFF

    with pytest.raises(ValueError, match=r"damaged|Bad"):
        unpack(bytes(blob))


# Drift


def published() -> Table:
    predictors = judged(None, rows_of(32), 0.0).chosen[HERE]
    return Table(version=1, source="s", created_at=T0, places=[place_table(profile(32), predictors)])


def beside(count: int, run_s: float, **changes: object) -> History:
    runs = [
        TimedRun(
            gpu="cpu0",
            place=HERE,
            model="bert/cpu",
            rows=2,
            run_s=run_s,
            start=T0 + 100 + number,
            end=T0 + 100.5 + number,
            sound=True,
            beside=False,
            jobs=("j1",),
        )
        for number in range(count)
    ]
    job = TrainedJob(id="j1", gpus=("cpu0",), workload=training("vgg16", 8), created=T0, began=T0, ended=math.inf)
    return History(runs=[replace(run, **changes) for run in runs], jobs=[job])  # type: ignore[arg-type]


def bound(table: Table) -> float:
    place: PlaceTable = table.places[0]
    row, column = place.trainings.index("vgg16/cpu/training/8"), place.functions.index("bert/cpu/function/2")
    return solo(function("bert", 2)).timing.p99 * (1 + place.cell(place.function_upper, row, column))


def test_runs_within_their_bound_are_no_drift() -> None:
    table = published()

    (seen,) = learning.coverage(beside(400, 0.99 * bound(table)), table).values()
    assert (seen.runs, seen.covered, seen.drifted) == (400, 400, False)


def test_runs_beyond_their_bound_are_drift_once_there_are_enough() -> None:
    table = published()
    slow = 1.01 * bound(table)

    assert learning.coverage(beside(200, slow), table)[HERE].drifted
    assert not learning.coverage(beside(199, slow), table)[HERE].drifted
    assert learning.coverage(beside(300, slow), msgspec.structs.replace(table, created_at=T0 + 1000)) == {}
    assert learning.coverage(beside(300, slow, place=(HERE[0], "mps")), table) == {}
    assert learning.coverage(beside(300, slow, model="unknown/cpu"), table) == {}
