"""Measured rows: what is read back, what is refused, Eq. 1, and that places never mix."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.research.predictor.measured import samples
from lab.research.predictor.noise import noise_rmsle
from ml import rows
from ml.predict.samples import METRICS
from ml.rows import (
    FEATURES,
    BadRow,
    Colocation,
    DeviceMode,
    Member,
    Row,
    Solo,
    Timing,
    Workload,
    degradation,
    pooled,
    profiles,
)

PLACE = DeviceMode(device="d", sharing_mode="time-slice", driver="1", counter="none")
TRAINING = Workload(model="bert", preset="cpu", role="training", batch=4)
FUNCTION = Workload(model="vgg16", preset="cpu", role="function", batch=1)
OTHER = Workload(model="deepfm", preset="cpu", role="function", batch=2)


def timing(p50: float, *, n: int = 100, mean: float | None = None, p99: float | None = None) -> Timing:
    return Timing(n=n, mean=p50 if mean is None else mean, p50=p50, p95=p50, p99=p50 if p99 is None else p99)


def solo(workload: Workload, p50: float = 0.1, *, place: DeviceMode = PLACE, **timings: Any) -> Solo:
    return Solo(
        place=place,
        workload=workload,
        features=dict.fromkeys(FEATURES, 1.0) | {"batch": float(workload.batch)},
        timing=timing(p50, **timings),
        utilisation=0.5,
        memory_utilisation=None,
        device_memory_bytes=None,
        input_wait_s=0.02,
        cold_s={"import": 1.0},
        kernels={},
        seconds=4,
        at="2026-01-01T00:00:00+00:00",
    )


def together(
    *sides: tuple[Workload, float], place: DeviceMode = PLACE, control: float = 0.1, repeat: int = 0
) -> Colocation:
    members = tuple(
        Member(workload=workload, timing=timing(measured), control=timing(control), solo=timing(0.1))
        for workload, measured in sides
    )
    return Colocation(
        place=place,
        members=members,
        utilisation=1.0,
        disturbance=0.0,
        seconds=12,
        at="2026-01-01T00:00:00+00:00",
        repeat=repeat,
    )


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    written: list[Row] = [solo(TRAINING), solo(FUNCTION), together((TRAINING, 0.12), (FUNCTION, 0.3))]
    for row in written:
        rows.write(tmp_path / "rows.jsonl", row)
    assert rows.read(tmp_path / "rows.jsonl") == written


def test_counters_are_numbers_and_older_rows_have_none() -> None:
    told = asdict(replace(solo(TRAINING), counters={"sm": 0.4, "power_limit_w": 700.0}))
    assert rows.parse(told) == replace(solo(TRAINING), counters={"sm": 0.4, "power_limit_w": 700.0})
    assert rows.parse({name: value for name, value in told.items() if name != "counters"}) == solo(TRAINING)
    with pytest.raises(BadRow, match="sm is"):
        rows.parse(told | {"counters": {"sm": float("nan")}})


def test_the_committed_rows_can_be_read() -> None:
    paths = sorted((Path(__file__).parents[3] / "ml" / "data").glob("*.jsonl"))
    for profile in profiles(row for path in paths for row in rows.read(path)):
        for direction in METRICS:
            found = samples(profile, direction, name="cpu")
            assert len(found) > 50
            assert (found.target > -0.5).all()


def test_a_training_names_a_wait_that_its_card_does_not() -> None:
    waiting = replace(TRAINING, preset="cpu-wait-0.6")
    assert (waiting.size, waiting.wait, str(waiting)) == ("cpu", "0.6", "bert/cpu-wait-0.6/training/4")
    assert (TRAINING.size, TRAINING.wait) == ("cpu", None)


def test_two_trainings_slow_each_other() -> None:
    other = replace(TRAINING, batch=8)
    row = together((TRAINING, 0.15), (other, 0.2))
    assert row.kind == "trainings"
    assert rows.parse(json.loads(json.dumps(asdict(row)))) == row
    (profile,) = profiles([solo(TRAINING), solo(other), row])
    measured = samples(profile, "trainings", name="d")
    assert measured.target.tolist() == pytest.approx([0.5, 1.0])
    assert measured.victim[:, FEATURES.index("batch")].tolist() == [4, 8]
    assert len(set(measured.pair.tolist())) == 1
    assert [len(samples(profile, direction, name="d")) for direction in METRICS if direction != "trainings"] == [0] * 3


def test_times_alone_of_two_campaigns_are_pooled_apart() -> None:
    earlier, later = together((TRAINING, 0.3), (FUNCTION, 0.4)), together((TRAINING, 0.3), (FUNCTION, 0.4), control=0.2)
    later = replace(later, members=tuple(replace(member, solo=timing(0.2)) for member in later.members))
    (profile,) = profiles([solo(TRAINING), solo(FUNCTION), earlier, solo(TRAINING, 0.2), solo(FUNCTION, 0.2), later])
    assert [[member.solo.p50 for member in row.members] for row in profile.colocations] == [[0.1, 0.1], [0.2, 0.2]]
    assert profile.solo[TRAINING].timing.p50 == 0.2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"row": "duo"}, "kind of row 'duo'"),
        ({"features": {"flops": 1.0}}, "features without"),
        ({"timing": {"n": 0, "mean": 1, "p50": 1, "p95": 1, "p99": 1}}, "positive"),
        ({"timing": {"n": 1, "mean": float("nan"), "p50": 1, "p95": 1, "p99": 1}}, "mean is nan"),
        ({"timing": {"n": 1, "mean": 1}}, "p50"),
        ({"cold_s": {"import": "long"}}, "import is 'long'"),
        ({"place": {"device": "d"}}, "sharing_mode"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    rows.write(path, solo(FUNCTION))
    with path.open("a") as file:
        file.write(json.dumps(asdict(solo(TRAINING)) | change) + "\n")
    with pytest.raises(BadRow, match=message) as caught:
        rows.read(path)
    assert str(caught.value).startswith("rows.jsonl:2: ")


def test_a_cut_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows.write(path, solo(FUNCTION))
    path.write_text(path.read_text()[:-10])
    with pytest.raises(BadRow, match=r"rows\.jsonl:1: "):
        rows.read(path)


def test_only_the_first_member_may_be_a_training() -> None:
    document = json.loads(json.dumps(asdict(together((FUNCTION, 0.1), (TRAINING, 0.1)))))
    with pytest.raises(BadRow, match="only the first"):
        rows.parse(document)


def test_degradation_by_hand() -> None:
    # 0.3 s beside the other against 0.1 s alone, of a machine that was as fast as ever.
    (member, _) = together((TRAINING, 0.3), (FUNCTION, 0.1)).members
    assert degradation(member, "mean") == pytest.approx(2.0)
    # The control says 0.144: half of that drift (in logarithms) is taken for the machine's.
    slow = replace(member, control=timing(0.144))
    assert degradation(slow, "mean") == pytest.approx(0.3 / 0.12 - 1)


def test_percentiles_are_by_nearest_rank() -> None:
    found = Timing.of([float(value) for value in range(100, 0, -1)])
    assert (found.n, found.mean, found.p50, found.p95, found.p99) == (100, 50.5, 50, 95, 99)
    with pytest.raises(BadRow, match="no run"):
        Timing.of([])


def test_the_reference_is_pooled() -> None:
    # The tail of the short one does not count.
    found = pooled([timing(0.1, p99=0.15), timing(0.12, p99=0.24), timing(0.2, n=5, p99=2.0)])
    assert found.p50 == pytest.approx(0.12)
    assert found.p99 == pytest.approx(0.12 * 1.75)
    assert found.n == 205


def test_places_never_come_together() -> None:
    elsewhere = replace(PLACE, sharing_mode="mps")
    found = profiles(
        [solo(TRAINING), solo(TRAINING, place=elsewhere), together((TRAINING, 0.1), (FUNCTION, 0.1), place=elsewhere)]
    )
    assert [(profile.place.sharing_mode, len(profile.solo), len(profile.colocations)) for profile in found] == [
        ("time-slice", 1, 0),
        ("mps", 1, 1),
    ]


def test_samples_by_direction() -> None:
    measured: list[Row] = [
        solo(TRAINING),
        solo(FUNCTION),
        solo(OTHER),
        together((TRAINING, 0.11), (FUNCTION, 0.2)),
        together((TRAINING, 0.12), (FUNCTION, 0.2), repeat=1),
        together((FUNCTION, 0.3), (OTHER, 0.4)),
        together((TRAINING, 0.2), (FUNCTION, 0.5), (OTHER, 0.5)),
    ]
    (profile,) = profiles(measured)
    training = samples(profile, "training", name="x")
    assert training.target == pytest.approx([0.1, 0.2])
    assert list(training.pair) == [0, 0]
    assert noise_rmsle(training) == pytest.approx(abs(np.log(1.1) - np.log(1.2)) / np.sqrt(2))
    assert samples(profile, "function", name="x").target == pytest.approx([1.0, 1.0])
    functions = samples(profile, "functions", name="x")
    assert (list(functions.victims), functions.target.tolist()) == (["vgg16", "deepfm"], pytest.approx([2.0, 3.0]))
    assert functions.victim[:, -1].tolist() == [1.0, 2.0]
    assert np.isnan(noise_rmsle(functions))


def test_samples_refuse_what_is_not_a_number() -> None:
    (profile,) = profiles([solo(TRAINING), solo(FUNCTION), together((TRAINING, 0.11), (FUNCTION, 0.2))])
    good = samples(profile, "training", name="x")
    with pytest.raises(BadRow, match="not a number"):
        replace(good, target=np.array([np.nan]))
    with pytest.raises(BadRow, match="shape"):
        replace(good, victim=np.zeros((1, 3)))
    with pytest.raises(BadRow, match="0 or less"):
        replace(good, target=np.array([-1.0]))
