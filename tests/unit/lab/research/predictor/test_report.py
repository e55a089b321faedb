"""Pictures and verdicts made of measured rows: hand-made ones here, so that every verdict is known beforehand."""

import io
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest

from lab.measure.plan import LADDERS
from lab.research.predictor import held_out, observations, pictures, published, report
from lab.research.predictor.measured import samples
from lab.research.predictor.noise import noise_rmsle
from lab.research.predictor.text import profile_text
from lab.simulation.metrics import wilson
from ml.predict.samples import DIRECTIONS, Floats, Samples
from ml.rows import (
    FEATURES,
    BadRow,
    Colocation,
    DeviceMode,
    Member,
    PlaceProfile,
    Role,
    Row,
    Solo,
    Timing,
    Workload,
    profiles,
    write,
)

GPU = DeviceMode(device="NVIDIA H100", sharing_mode="time-slice", driver="570, torch 2.13", counter="nvml-utilization")
CPU = DeviceMode(
    device="CPU partition: 1 core of X", sharing_mode="time-slice, functions nice 5", driver="Linux", counter="cpu-time"
)
MODELS = tuple(published.PUBLISHED)
BATCHES = (1, 2, 4, 8)


def workload(model: str, role: Role = "function", batch: int = 1) -> Workload:
    return Workload(model=model, preset="paper", role=role, batch=batch)


def timing(seconds: float) -> Timing:
    return Timing(n=100, mean=seconds, p50=seconds, p95=seconds, p99=seconds)


def solo(
    of: Workload,
    *,
    place: DeviceMode = GPU,
    utilisation: float | None = 0.5,
    seconds: float = 0.01,
    import_s: float = 1.0,
    wait_s: float = 0.0,
) -> Solo:
    return Solo(
        place=place,
        workload=of,
        features=dict.fromkeys(FEATURES, 1.0) | {"batch": float(of.batch), "flops": 1e6 * (1 + MODELS.index(of.model))},
        timing=timing(seconds),
        utilisation=utilisation,
        memory_utilisation=None,
        device_memory_bytes=None,
        input_wait_s=wait_s,
        cold_s={"import": import_s, "context": 0.1, "weights": 0.1, "first_run": 5.0},
        kernels={},
        seconds=4.0,
        at="2026-11-21T10:00:00+00:00",
    )


def together(
    *members: tuple[Workload, float], place: DeviceMode = GPU, repeat: int = 0, at: str = "2026-11-21T11:00:00+00:00"
) -> Colocation:
    """(workload, its degradation) each."""
    alone = timing(0.01)
    return Colocation(
        place=place,
        members=tuple(
            Member(workload=of, timing=timing(0.01 * (1 + lost)), control=alone, solo=alone) for of, lost in members
        ),
        utilisation=0.9,
        disturbance=None,
        seconds=12.0,
        at=at,
        repeat=repeat,
    )


def profile(rows: Iterable[Row]) -> PlaceProfile:
    (found,) = profiles(rows)
    return found


def square(
    lost: Callable[[int, int], tuple[float, float]], *, place: DeviceMode = GPU, repeats: int = 1, noise: float = 0.0
) -> list[Colocation]:
    """
    Every training beside every function; ``lost(i, j)``: degradations of both. Repeats differ by ``noise`` up and down
    in log space.
    """
    rows = []
    for i, training in enumerate(MODELS):
        for j, function in enumerate(MODELS):
            for repeat in range(repeats):
                factor = math.exp(noise * (-1) ** repeat)
                a, b = ((1 + value) * factor - 1 for value in lost(i, j))
                rows.append(
                    together((workload(training, "training"), a), (workload(function), b), place=place, repeat=repeat)
                )
    return rows


# ---- Observations ----------------------------------------------------------------------------------------------------


def levels(
    place: DeviceMode, share: Callable[[int, int], float | None], *, models: Sequence[str] = MODELS, wait_s: float = 0.0
) -> PlaceProfile:
    roles: tuple[Role, ...] = ("training", "function")
    return profile(
        solo(
            workload(model, role, batch),
            place=place,
            utilisation=share(i, k),
            wait_s=wait_s if role == "training" else 0.0,
        )
        for role in roles
        for i, model in enumerate(models)
        for k, batch in enumerate(BATCHES)
    )


def test_observation_i_holds_for_models_that_differ_and_stay_in_a_band() -> None:
    found = observations.observation_i(levels(GPU, lambda i, k: 0.2 + 0.08 * i + 0.05 * k))

    assert found.held is True
    assert "16 of 16" in found.parts[1].numbers
    assert "15 points" in found.parts[1].numbers


@pytest.mark.parametrize(
    ("share", "parts"),
    [(lambda i, k: 0.5 + 0.01 * i, [False, True]), (lambda i, k: 0.1 + 0.08 * i + 0.1 * k, [True, False])],
    ids=["alike", "wide"],
)
def test_observation_i_does_not_hold(share: Callable[[int, int], float], parts: list[bool]) -> None:
    found = observations.observation_i(levels(GPU, share))

    assert [part.held for part in found.parts] == parts
    assert found.held is False


def test_observation_i_cannot_be_said_without_a_counter_or_with_few_models() -> None:
    assert observations.observation_i(levels(GPU, lambda i, k: None)).held is None
    assert observations.observation_i(levels(GPU, lambda i, k: 0.5, models=MODELS[:1])).held is None


def test_levels_that_were_set_are_not_a_finding() -> None:
    """On a CPU partition the share of a training follows from the wait that was set."""
    found = observations.observation_i(levels(CPU, lambda i, k: 0.2 + 0.08 * i, wait_s=0.01))

    assert [part.held for part in found.parts] == [None, True]
    assert found.held is None
    assert "set and not found" in found.details[0]
    assert "takes all of its time" in found.details[1]


def test_observation_ii_holds_where_functions_differ_more_than_repeats() -> None:
    rows = square(lambda i, j: (0.05 * j, 0.2 * j), repeats=2, noise=0.005)

    found = observations.observation_ii(profile(rows))

    assert [part.held for part in found.parts] == [True, True]
    assert any("0.0 % to" in detail for detail in found.details)


def test_observation_ii_does_not_hold_where_every_function_costs_the_same() -> None:
    """The training makes a difference here, the function makes none."""
    rows = square(lambda i, j: (0.2 + 0.1 * i, 0.2 * j), repeats=2, noise=0.01)

    found = observations.observation_ii(profile(rows))

    assert [part.held for part in found.parts] == [False, True]
    assert found.held is False


def test_observation_ii_cannot_be_said_without_repeats() -> None:
    assert observations.observation_ii(profile(square(lambda i, j: (0.05 * j, 0.2 * j)))).held is None


def several(rule: Callable[[float], float], *, rising: bool = True) -> list[Row]:
    """
    A world in which function ``j`` costs everybody 0.1 (j + 1), and several cost ``rule(sum)``; with the paper's
    ladders.

    ``rule`` gets the sum of the pair-wise degradations.
    """
    cost = {model: 0.1 * (j + 1) for j, model in enumerate(MODELS)}
    rows: list[Row] = [*square(lambda i, j: (cost[MODELS[j]], cost[MODELS[i]]))]
    rows += [
        together((workload(a), cost[b]), (workload(b), cost[a])) for a, b in combinations_with_replacement(MODELS, 2)
    ]
    for training in ("vgg16", "bert"):
        for names in combinations_with_replacement(MODELS[:5], 2):
            sums = [cost[training] + cost[names[1]], cost[training] + cost[names[0]]]
            functions = [(workload(name), rule(summed)) for name, summed in zip(names, sums, strict=True)]
            rows.append(together((workload(training, "training"), rule(sum(cost[name] for name in names))), *functions))
    for training, function in LADDERS:
        for k in (2, 4, 8):
            lost = 0.4 * k if rising else 5.0 / k
            rows.append(together((workload(training, "training", 2), lost), *[(workload(function), lost)] * k))
    return rows


def test_observation_iii_holds_for_a_world_that_adds_up() -> None:
    found = observations.observation_iii(profile(several(lambda summed: 0.8 * summed)))

    assert [part.held for part in found.parts] == [True, True, True]
    # Three ladders of three lengths give two steps each, VGG-16 at another batch beside one and two DeepViT a fourth,
    # in both directions.
    assert "14 of 14" in found.parts[0].numbers


def test_observation_iii_does_not_hold_where_the_sum_tells_nothing() -> None:
    generator = np.random.default_rng(0)

    found = observations.observation_iii(profile(several(lambda summed: generator.uniform(0, 5))))

    assert [part.held for part in found.parts] == [True, False, False]
    assert (
        observations.observation_iii(profile(several(lambda summed: 0.8 * summed, rising=False))).parts[0].held is False
    )


def test_observation_iii_cannot_be_said_from_pairs_alone() -> None:
    found = observations.observation_iii(profile(square(lambda i, j: (0.1, 0.1))))

    assert [part.held for part in found.parts] == [None, None, None]


def test_several_whose_pairs_are_unknown_are_left_out() -> None:
    rows = several(lambda summed: summed)
    alone = [row for row in rows if isinstance(row, Colocation) and row.kind == "several"]

    assert observations.several_skill(profile(alone), "training") == (None, 0)


@pytest.mark.parametrize(
    ("import_s", "verdict"), [(1.0, True), (0.01, False)], ids=["a hundred warm runs", "less than the longest deadline"]
)
def test_observation_iv(import_s: float, verdict: bool) -> None:
    found = profile(
        solo(workload(model), import_s=import_s, seconds=0.01 if import_s == 1.0 else 0.1) for model in MODELS
    )

    assert observations.observation_iv(found).held is verdict


def test_observation_iv_cannot_be_said_of_two_models() -> None:
    assert observations.observation_iv(profile(solo(workload(model)) for model in MODELS[:2])).held is None


def test_a_cold_start_counts_what_the_paper_counts_at_the_smallest_batch() -> None:
    found = profile([solo(workload("bert", batch=4), import_s=9.0), solo(workload("bert", batch=1), seconds=0.02)])

    (cold,) = observations.cold_starts(found)

    assert cold.workload.batch == 1
    assert cold.cold_s == pytest.approx(1.2)  # without the first run
    assert cold.ratio == pytest.approx(60)


# ---- Numbers ---------------------------------------------------------------------------------------------------------


def test_deviation_is_pooled_over_groups() -> None:
    spread = observations.pooled([[0.0, math.e - 1], [1.0], [3.0, 3.0, 3.0]])

    assert (spread.deviation, spread.freedom) == (pytest.approx(math.sqrt(0.5 / 3)), 3)
    assert math.isnan(observations.pooled([[1.0]]).deviation)


def test_two_functions_of_one_kind_are_one_measurement_not_two_repeats() -> None:
    found = observations.cells(profile([together((workload("bert"), 0.2), (workload("bert"), 0.4))]), "functions")

    assert found == {(workload("bert"), workload("bert")): [pytest.approx(0.3)]}
    assert observations.noise(found).freedom == 0


def test_counts_and_noise_floors_of_the_checkout_are_those_of_the_evaluation_and_the_data_card() -> None:
    (measured,) = profiles(report.gather([report.DATA]))
    by_direction = {direction: observations.cells(measured, direction) for direction in DIRECTIONS}
    repeated = {direction: observations.repeated_pairs(of) for direction, of in by_direction.items()}
    assert repeated == {"training": 20, "function": 20, "functions": 10, "trainings": 20}
    for direction, of in by_direction.items():
        floor = noise_rmsle(samples(measured, direction, name="checkout"))
        assert observations.noise(of).deviation == pytest.approx(floor), direction
    ((preset, part),) = report.by_preset(measured)
    words = profile_text(part, preset)
    assert "68 workloads alone, 320 rows of a training with a function, 104 of two functions, 218 of two" in words
    assert "Of these, 4 workloads and 18 rows name another wait for input" in words


def test_a_repeated_pair_weighs_as_much_as_another() -> None:
    measured = {
        (workload("bert", "training", 1), workload("vgg16")): [0.1, 0.3],
        (workload("bert", "training", 2), workload("vgg16")): [0.6],
    }

    assert observations.by_models(measured) == {("bert", "vgg16"): [pytest.approx(0.2), pytest.approx(0.6)]}


def test_wilson() -> None:
    low, high = wilson(0.9, 100)

    assert (low, high) == (pytest.approx(0.826, abs=1e-3), pytest.approx(0.945, abs=1e-3))


def test_ticks_keep_their_distance() -> None:
    assert pictures._ticks(0.0, 1.0) == [0.0, 0.1, 0.25, 0.5, 1.0]
    assert pictures._ticks(-0.3, 40.0) == [0.0, -0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


# ---- Files -----------------------------------------------------------------------------------------------------------


def written(path: Path, rows: Iterable[Row]) -> Path:
    path.parent.mkdir(exist_ok=True)
    for row in rows:
        write(path, row)
    return path


def full(place: DeviceMode) -> list[Row]:
    """Something of everything, at one batch."""
    roles: tuple[Role, ...] = ("training", "function")
    rows: list[Row] = [solo(workload(model, role), place=place) for model in MODELS for role in roles]
    return rows + [replace(row, place=place) for row in several(lambda summed: summed)]


PICTURES = ("utilisation", "pairs", "functions", "trainings", "concurrency", "cold-start")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """The pictures of two places, of one of them many rows: the folder, and what was printed."""
    folder = tmp_path_factory.mktemp("drawn")
    data = folder / "data"
    written(data / "a.jsonl", full(GPU))
    written(data / "b.jsonl", [solo(workload("bert"), place=replace(GPU, sharing_mode="mps"))])
    with redirect_stdout(io.StringIO()) as printed:
        assert report.main(["profiles", "--data", str(data), "--out", str(folder / "out")]) == 0
    return folder / "out", [Path(line) for line in printed.getvalue().split()]


def test_two_places_give_two_sets(drawn: tuple[Path, list[Path]]) -> None:
    folder, printed = drawn
    shared, mps = sorted(folder.iterdir(), key=lambda folder: "mps" in folder.name)
    names = {f"{name}.svg" for name in PICTURES} | {"report.md"}
    assert {path.name for path in shared.iterdir()} == {path.name for path in mps.iterdir()} == names
    assert sorted(printed) == sorted([*shared.iterdir(), *mps.iterdir()])
    assert "64 of the 1,024 pairs" in (shared / "report.md").read_text()
    text = (mps / "report.md").read_text()
    assert "0 of the 1,024 pairs" in text
    assert "Sharing mode: mps" in text
    assert text.count("**cannot be said**") == 4


def test_places_that_read_alike_are_kept_apart() -> None:
    one, other = (PlaceProfile(place=replace(GPU, sharing_mode=mode)) for mode in ("time slice", "time-slice"))

    assert report.folder_name(one, "cpu") != report.folder_name(other, "cpu")
    assert report.folder_name(one, "cpu") != report.folder_name(one, "paper")


def test_presets_are_not_mixed() -> None:
    small = replace(workload("bert", "training"), preset="cpu")
    found = profile(
        [solo(workload("bert")), solo(small), together((small, 0.1), (replace(workload("bert"), preset="cpu"), 0.1))]
    )

    assert [(preset, len(part.solo), len(part.colocations)) for preset, part in report.by_preset(found)] == [
        ("cpu", 1, 1),
        ("paper", 1, 0),
    ]
    waits = replace(small, preset="cpu-wait-0.6")
    found = profile(
        [solo(small), solo(waits), together((small, 0.1), (waits, 0.2)), together((small, 0.1), (small, 0))]
    )
    ((preset, part),) = report.by_preset(found)
    described = observations.as_described(part)
    assert (preset, len(part.solo), len(part.colocations)) == ("cpu", 2, 2)
    assert ([*described.solo], len(described.colocations)) == ([small], 1)
    with pytest.raises(BadRow, match="two presets"):
        list(report.by_preset(profile([together((small, 0.1), (workload("bert"), 0.1))])))


@pytest.mark.parametrize(
    "rows",
    [
        [
            together((workload("bert", "training"), 0.1), (workload("vgg16"), 0.2)),
            replace(solo(workload("bert")), cold_s={}, utilisation=None),
        ],
        [
            together((workload("bert"), -0.1), (workload("bert"), -0.2)),
            together(
                (workload("deepfm", "training"), 0.1), (workload("mobilenet"), 30.0), (workload("mobilenet"), 40.0)
            ),
        ],
    ],
    ids=["one pair, no counter and no start", "only negative, one step"],
)
def test_few_rows_are_drawn_too(rows: list[Row], tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", rows)

    for what in ("profiles", "predictor"):
        assert report.main([what, "--data", str(data), "--out", str(tmp_path / what)]) == 0

    (text,) = (tmp_path / "predictor").glob("*/report.md")
    assert text.read_text().count("fewer than 20") == 4


def test_the_same_rows_give_the_same_files(drawn: tuple[Path, list[Path]], tmp_path: Path) -> None:
    again = list(report.report_profiles(profiles(full(GPU)), tmp_path, pictures.draw_profile))

    assert len(again) == len(PICTURES) + 1
    for path in again:
        assert path.read_bytes() == (drawn[0] / path.relative_to(tmp_path)).read_bytes()
        assert b"dc:date" not in path.read_bytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), ("", "no rows in"), ('{"version": 1', "rows.jsonl:1:"), ('{"version": 7}\n', "version 7")],
    ids=["absent", "empty", "cut", "another version"],
)
def test_what_cannot_be_read_is_one_line(
    content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "rows.jsonl"
    if content is not None:
        data.write_text(content)

    assert report.main(["profiles", "--data", str(data), "--out", str(tmp_path / "out")]) == 2

    complaint = capsys.readouterr().err
    assert words in complaint
    assert complaint.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = written(tmp_path / "rows.jsonl", [solo(workload("bert"))])

    assert report.main(["profiles", "--data", str(data), "--out", str(data)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---- Predictor -------------------------------------------------------------------------------------------------------


class Mean:
    """Predicts the mean it was fitted on; its bound is the largest value it was fitted on."""

    def __init__(self, fitted: Samples, seed: int) -> None:
        self._target = fitted.target

    def predict(self, samples: Samples) -> Floats:
        return np.full(len(samples), self._target.mean())

    def upper(self, samples: Samples, coverage: float = 0.9) -> Floats:
        assert coverage == 0.9
        return np.full(len(samples), self._target.max())


def pairs(direction: str = "training") -> Samples:
    rows: list[Row] = [solo(workload(model, role)) for model in MODELS for role in ("training", "function")]
    rows += square(lambda i, j: (0.1 * i, 0.3 * j), repeats=2, noise=0.01)
    return samples(profile(rows), direction, name="made")  # type: ignore[arg-type]


def test_a_pair_is_never_judged_by_a_predictor_that_has_seen_it() -> None:
    measured = pairs()
    parts: list[set[int]] = []

    def fit(training: Samples, seed: int) -> Mean:
        parts.append(set(training.pair.tolist()))
        return Mean(training, seed)

    judged = held_out.judge(measured, fit)

    assert judged is not None
    everything = set(measured.pair.tolist())
    left_out = [everything - part for part in parts]
    assert len(parts) == held_out.FOLDS
    assert sorted(pair for part in left_out for pair in part) == sorted(everything)
    for part in left_out:
        mask = np.isin(measured.pair, list(part))
        assert judged.predicted[mask] == pytest.approx(measured.target[~mask].mean())


def test_error_skill_and_coverage_by_hand() -> None:
    measured = pairs().take(np.arange(2))
    judged = held_out.JudgedPredictions(
        samples=replace(measured, target=np.array([0.0, math.e - 1])),
        predicted=np.array([0.0, 0.0]),
        upper=np.array([0.0, 1.0]),
        constant=np.full(2, math.exp(0.5) - 1),
    )

    assert judged.rmsle == pytest.approx(math.sqrt(0.5))
    assert judged.skill == pytest.approx(-1)
    assert judged.covered == 0.5
    assert judged.of_model("victim") == {"vgg16": (pytest.approx(math.sqrt(0.5)), 2)}


def test_too_few_pairs_are_not_judged() -> None:
    measured = pairs()

    assert held_out.judge(measured.take(measured.pair < held_out.LEAST_PAIRS - 1), Mean) is None


def test_the_predictor_of_each_place_is_drawn(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", [*full(GPU), *full(CPU)])

    assert report.main(["predictor", "--data", str(data), "--out", str(tmp_path / "out"), "--png"]) == 0

    names = {"calibration.svg", "calibration.png", "errors.svg", "errors.png", "report.md"}
    folders = list((tmp_path / "out").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == names
        text = (folder / "report.md").read_text()
        assert "| training slowed by a function | 64 | 64 |" in text
        assert "| function slowed by a function | 36 | 72 |" in text
