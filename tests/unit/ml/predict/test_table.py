"""What stands in the cells of a table: measured, predicted, bounded, or nothing at all because something was wrong."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from lab.research.predictor.measured import build
from ml.predict.multiway import weights_of
from ml.predict.samples import Direction, Floats, Samples
from ml.predict.table import ENOUGH, NEWEST, pair_wise, place_table
from ml.rows import FEATURES, BadRow, Colocation, DeviceMode, Member, PlaceProfile, Role, Solo, Timing, Workload
from smore.domain.degradation import Weights
from smore.domain.function import Profile
from smore.messages.degradation import PlaceTable

PLACE = DeviceMode(device="CPU partition: 1 core", sharing_mode="time-slice", driver="d", counter="cpu-time")
DIRECTIONS: tuple[Direction, ...] = ("training", "function", "functions")


def workload(model: str, role: Role, batch: int = 1) -> Workload:
    return Workload(model=model, preset="cpu", role=role, batch=batch)


TRAININGS = [workload("bert", "training", 4), workload("vgg16", "training", 2)]
FUNCTIONS = [workload("bert", "function", 1), workload("deepfm", "function", 1), workload("deepfm", "function", 8)]


def timing(seconds: float) -> Timing:
    return Timing(n=100, mean=seconds, p50=seconds, p95=seconds, p99=seconds)


def solo(one: Workload, utilisation: float | None = 0.5, *, counter: str = "cpu-time") -> Solo:
    size = 1e6 * (1 + len(one.model)) * one.batch
    return Solo(
        place=replace(PLACE, counter=counter),
        workload=one,
        timing=timing(0.01 * one.batch),
        utilisation=utilisation,
        features=dict.fromkeys(FEATURES, 1.0) | {"flops": size, "batch": float(one.batch)},
        memory_utilisation=None,
        device_memory_bytes=None,
        input_wait_s=0.0,
        cold_s={},
        kernels={},
        seconds=4.0,
        at="2026-01-01T00:00:00+00:00",
    )


def together(*degraded: tuple[Workload, float], minute: int = 0, utilisation: float | None = None) -> Colocation:
    """A row in which each member's times are all (1 + degradation) x its times alone."""
    members = tuple(
        Member(workload=one, timing=timing(0.01 * (1 + degradation)), control=timing(0.01), solo=timing(0.01))
        for one, degradation in degraded
    )
    at = f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00+00:00"
    return Colocation(place=PLACE, members=members, utilisation=utilisation, disturbance=None, seconds=10.0, at=at)


def profile(*colocations: Colocation) -> PlaceProfile:
    return PlaceProfile(
        place=PLACE, solo={one: solo(one) for one in (*FUNCTIONS[::-1], *TRAININGS)}, colocations=list(colocations)
    )


class Fixed:
    """Predicts ``base`` + aggressor's batch / 100, and one more than that as the bound; remembers what it was asked."""

    def __init__(self, base: float) -> None:
        self.base = base
        self.asked: list[Samples] = []

    def predict(self, samples: Samples) -> Floats:
        self.asked.append(samples)
        return self.base + samples.aggressor[:, FEATURES.index("batch")] / 100

    def upper(self, samples: Samples, coverage: float = 0.9) -> Floats:
        assert coverage == 0.9
        return self.predict(samples) + 1.0


def predictors() -> dict[Direction, Fixed]:
    return {"training": Fixed(0.1), "function": Fixed(2.0), "functions": Fixed(0.5)}


def matrix(raw: bytes, rows: int) -> Floats:
    return np.frombuffer(raw, "<f8").reshape(rows, -1)


# ---- cells -----------------------------------------------------------------------------------------------------------


def test_names_and_shapes() -> None:
    table = place_table(profile(), predictors())

    assert table.trainings == ["bert/cpu/training/4", "vgg16/cpu/training/2"]
    assert table.functions == ["bert/cpu/function/1", "deepfm/cpu/function/1", "deepfm/cpu/function/8"]
    assert (table.device, table.sharing_mode) == PLACE.key
    assert table.function_rows("deepfm", "cpu") == [(1, 1), (8, 2)]
    assert matrix(table.solo_s, 1).tolist() == [[0.01, 0.01, 0.08]]
    assert table.alone_s() == {str(one): solo(one).timing.mean for one in sorted(TRAININGS)}


def test_every_cell_without_a_measurement_is_predicted() -> None:
    table = place_table(profile(), predictors())

    # The aggressor is the function of the column, the training of the row, the function of the column.
    assert matrix(table.training, 2) == pytest.approx(np.array([[0.11, 0.11, 0.18]] * 2))
    assert matrix(table.function, 2) == pytest.approx(np.array([[2.04] * 3, [2.02] * 3]))
    assert matrix(table.function_on_function, 3) == pytest.approx(np.array([[0.51, 0.51, 0.58]] * 3))
    assert matrix(table.training_upper, 2) == pytest.approx(matrix(table.training, 2) + 1)
    assert set(table.measured) == {0}


def test_trainings_beside_trainings_are_measured_or_predicted() -> None:
    row = together((TRAININGS[1], 0.3), (TRAININGS[0], 0.7))
    table = place_table(profile(row), predictors() | {"trainings": Fixed(1.0)})

    # Measured where it was; the aggressor is the training of the column.
    assert matrix(table.training_on_training, 2) == pytest.approx(np.array([[1.04, 0.7], [0.3, 1.02]]))
    assert matrix(table.training_on_training_upper, 2)[0, 0] == pytest.approx(2.04)
    assert list(table.measured_trainings) == [0, 1, 1, 0]
    assert [cell.measured for cell in table.training_pairs()] == [False, True, True, False]


def test_without_a_predictor_of_trainings_nobody_is_paired() -> None:
    table = place_table(profile(together((TRAININGS[1], 0.3), (TRAININGS[0], 0.7))), predictors())

    assert list(table.training_pairs()) == []


def test_a_predictor_is_asked_for_all_pairs_by_their_features() -> None:
    asked = predictors()
    place_table(profile(), asked)

    samples = asked["function"].asked[0]
    assert (samples.direction, len(samples)) == ("function", 6)
    assert list(samples.victims) == ["bert", "deepfm", "deepfm"] * 2
    assert list(samples.aggressors) == ["bert"] * 3 + ["vgg16"] * 3
    assert samples.victim[:, FEATURES.index("batch")].tolist() == [1, 1, 8] * 2
    assert samples.aggressor[:, FEATURES.index("flops")].tolist() == [20e6] * 3 + [12e6] * 3


def test_a_measurement_takes_the_place_of_a_prediction() -> None:
    row = together((TRAININGS[1], 0.3), (FUNCTIONS[2], 4.0))
    pair = together((FUNCTIONS[1], 0.7), (FUNCTIONS[0], 0.9))
    table = place_table(profile(row, pair), predictors())

    assert matrix(table.training, 2)[1, 2] == pytest.approx(0.3)
    assert matrix(table.function, 2)[1, 2] == pytest.approx(4.0)
    assert list(table.measured) == [0, 0, 0, 0, 0, 1]
    # Each direction of a pair of functions in its own cell: the row suffers from the column.
    functions = matrix(table.function_on_function, 3)
    assert (functions[1, 0], functions[0, 1]) == (pytest.approx(0.7), pytest.approx(0.9))
    # The others stay.
    assert matrix(table.training, 2)[0, 2] == pytest.approx(0.18)


def test_no_degradation_is_below_nothing() -> None:
    row = together((TRAININGS[1], -0.05), (FUNCTIONS[2], -0.01))
    negative: dict[Direction, Fixed] = {direction: Fixed(-3.0) for direction in DIRECTIONS}
    table = place_table(profile(row), negative)

    for raw in (table.training, table.function, table.function_on_function, table.training_upper, table.function_upper):
        assert matrix(raw, 1).min() == 0.0


def test_the_newest_measurements_count_in_whatever_order_they_come() -> None:
    old = [together((TRAININGS[0], 9.0), (FUNCTIONS[0], 9.0), minute=minute) for minute in range(3)]
    new = [
        together((TRAININGS[0], 0.1 * (minute % 2)), (FUNCTIONS[0], 1.0), minute=60 + minute)
        for minute in range(NEWEST)
    ]
    table = place_table(profile(*new, *old), predictors())

    assert matrix(table.training, 2)[0, 0] == pytest.approx(0.04)
    assert matrix(table.function, 2)[0, 0] == pytest.approx(1.0)


def test_two_functions_of_one_kind_are_one_measurement() -> None:
    table = place_table(profile(together((FUNCTIONS[0], 0.4), (FUNCTIONS[0], 0.6))), predictors())

    assert matrix(table.function_on_function, 3)[0, 0] == pytest.approx(0.5)


def test_rows_with_several_functions_are_no_cells() -> None:
    row = together((TRAININGS[0], 0.9), (FUNCTIONS[0], 9.0), (FUNCTIONS[1], 9.0))

    assert place_table(profile(row), predictors()) == place_table(profile(), predictors())


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_the_bound_of_a_measurement_covers_90_percent_of_the_next_ones() -> None:
    generator = np.random.default_rng(0)
    truth, sigma, covered = 3.0, 0.1, []
    for _ in range(150):
        rows = []
        for minute, one in enumerate([one for one in FUNCTIONS for _ in range(NEWEST)]):
            noisy = math.expm1(math.log1p(truth) + generator.normal(0, sigma))
            rows.append(together((TRAININGS[0], 0.1), (one, noisy), minute=minute))
        upper = matrix(place_table(profile(*rows), predictors()).function_upper, 2)[0]
        following = np.expm1(np.log1p(truth) + generator.normal(0, sigma, (50, 3)))
        covered.append((following <= upper).mean())

    assert 0.88 < np.mean(covered) < 0.92


def test_without_enough_repeats_the_bound_of_a_measurement_is_the_predictors() -> None:
    rows = [together((TRAININGS[0], 0.3), (FUNCTIONS[0], 5.0), minute=minute) for minute in range(min(ENOUGH, NEWEST))]
    table = place_table(profile(*rows), predictors())

    # 0.11 + 1 for the training; for the function the bound of 3.04 is below what was measured.
    assert matrix(table.training_upper, 2)[0, 0] == pytest.approx(1.11)
    assert matrix(table.function_upper, 2)[0, 0] == pytest.approx(5.0)


def test_no_bound_is_below_its_value() -> None:
    class Careless(Fixed):
        def upper(self, samples: Samples, coverage: float = 0.9) -> Floats:
            return np.zeros(len(samples))

    careless: dict[Direction, Fixed] = {direction: Careless(1.0) for direction in DIRECTIONS}
    table = place_table(profile(), careless)

    assert table.training_upper == table.training


# ---- averages --------------------------------------------------------------------------------------------------------


def test_degradation_is_the_mean_over_trainings_of_both_sides() -> None:
    """A17: function 2 costs 0.18 each training, or 0.3 where measured, and suffers 2.04 and 4.0."""
    table = place_table(profile(together((TRAININGS[1], 0.3), (FUNCTIONS[2], 4.0))), predictors())

    assert matrix(table.degradation, 1)[0, 2] == pytest.approx(((0.18 + 2.04) + (0.3 + 4.0)) / 2)


def test_usage_gain_is_what_was_measured_or_the_share_that_is_left() -> None:
    """A16: 0.9 - 0.5 beside one training, 0.6 x (1 - 0.8) beside the other."""
    found = profile(together((TRAININGS[1], 0.3), (FUNCTIONS[2], 4.0), utilisation=0.9))
    found.solo[TRAININGS[0]] = solo(TRAININGS[0], 0.8)
    found.solo[FUNCTIONS[2]] = solo(FUNCTIONS[2], 0.6)
    table = place_table(found, predictors())

    assert matrix(table.usage_gain, 1)[0, 2] == pytest.approx((0.4 + 0.12) / 2)


def test_by_nvmls_counter_the_gain_is_the_share_as_profiled() -> None:
    """Beside a training any kernel runs all the time: 1.0 - 0.99 says nothing of what a function adds."""
    found = profile(together((TRAININGS[1], 0.3), (FUNCTIONS[2], 4.0), utilisation=1.0))
    found.solo = {one: solo(one, 0.99 if one in TRAININGS else 0.3, counter="nvml-utilization") for one in found.solo}

    assert matrix(place_table(found, predictors()).usage_gain, 1)[0].tolist() == pytest.approx([0.3] * 3)


def test_usage_gain_stays_within_a_whole_device() -> None:
    found = profile(
        together((TRAININGS[1], 0.3), (FUNCTIONS[2], 4.0), utilisation=0.2),
        together((TRAININGS[0], 0.3), (FUNCTIONS[2], 4.0), utilisation=0.4),
    )

    assert matrix(place_table(found, predictors()).usage_gain, 1)[0, 2] == 0.0


def test_utilisations_of_two_counters_are_not_compared() -> None:
    found = profile(together((TRAININGS[1], 0.3), (FUNCTIONS[2], 4.0), utilisation=0.9))
    found.solo[TRAININGS[1]] = solo(TRAININGS[1], 0.1, counter="sm-active")
    table = place_table(found, predictors())

    # The other training alone: 0.5 x (1 - 0.5).
    assert matrix(table.usage_gain, 1)[0].tolist() == [0.25] * 3


def test_without_a_counter_the_gain_is_as_if_nothing_was_declared() -> None:
    found = profile(together((TRAININGS[1], 0.3), (FUNCTIONS[2], 4.0)))
    found.solo = {one: solo(one, None) for one in found.solo}

    assert matrix(place_table(found, predictors()).usage_gain, 1)[0].tolist() == [Profile().usage_gain] * 3


# ---- gaps and faults -------------------------------------------------------------------------------------------------


def test_functions_by_functions_are_transferred_where_nothing_was_measured() -> None:
    """A7 (b): the other function stands where the predictor of functions by trainings expects the training."""
    asked = predictors()
    del asked["functions"]
    table = place_table(profile(), asked)

    assert matrix(table.function_on_function, 3) == pytest.approx(np.array([[2.01, 2.01, 2.08]] * 3))
    assert [samples.direction for samples in asked["function"].asked] == ["function"] * len(asked["function"].asked)


@pytest.mark.parametrize("direction", ["training", "function"])
def test_a_direction_without_a_predictor_is_an_error(direction: Direction) -> None:
    asked = predictors()
    del asked[direction]

    with pytest.raises(BadRow, match=direction):
        place_table(profile(), asked)


def test_a_place_without_trainings_has_functions_alone() -> None:
    found = PlaceProfile(place=PLACE, solo={one: solo(one) for one in FUNCTIONS})
    table = build([found], {PLACE.key: {"functions": Fixed(0.5)}}, version=1, source="s", created_at=0.0).places[0]

    assert (table.trainings, table.training, table.measured) == ([], b"", b"")
    assert matrix(table.usage_gain, 1)[0].tolist() == [0.5] * 3
    assert matrix(table.degradation, 1)[0].tolist() == [0.0] * 3


def test_a_place_without_functions_is_an_error() -> None:
    with pytest.raises(BadRow, match="no function"):
        place_table(PlaceProfile(place=PLACE, solo={one: solo(one) for one in TRAININGS}), predictors())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_feature_that_is_not_a_number_is_an_error(bad: float) -> None:
    found = profile()
    found.solo[FUNCTIONS[1]] = replace(solo(FUNCTIONS[1]), features=solo(FUNCTIONS[1]).features | {"flops": bad})  # type: ignore[operator]

    with pytest.raises(BadRow, match="deepfm/cpu/function/1: flops is"):
        place_table(found, predictors())


def test_a_missing_feature_is_an_error() -> None:
    found = profile()
    found.solo[FUNCTIONS[1]] = replace(solo(FUNCTIONS[1]), features={})

    with pytest.raises(BadRow, match="deepfm/cpu/function/1: flops is None"):
        place_table(found, predictors())


def test_a_measurement_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(BadRow, match="vgg16/cpu/training/2 by bert"):
        place_table(profile(together((TRAININGS[1], math.nan), (FUNCTIONS[0], 1.0))), predictors())


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_prediction_that_is_not_a_number_is_an_error(direction: Direction, bad: float) -> None:
    with pytest.raises(BadRow, match=f"direction {direction}: {bad} for bert beside bert"):
        place_table(profile(), predictors() | {direction: Fixed(bad)})


def test_a_prediction_of_another_shape_is_an_error() -> None:
    class Short(Fixed):
        def predict(self, samples: Samples) -> Floats:
            return super().predict(samples)[:-1]

    with pytest.raises(BadRow, match="shape"):
        place_table(profile(), predictors() | {"training": Short(1.0)})


def test_a_workload_without_a_solo_row_is_not_in_the_table() -> None:
    strange = workload("segnet", "function")
    table = place_table(profile(together((TRAININGS[0], 0.5), (strange, 1.0))), predictors())

    assert "segnet/cpu/function/1" not in table.functions
    assert set(table.measured) == {0}


# ---- the whole -------------------------------------------------------------------------------------------------------


def test_a_built_table_is_as_a_reader_decodes_it() -> None:
    weights = Weights(learned={("training", 2, "bert", "deepfm"): 1.5})
    other = PlaceProfile(place=replace(PLACE, device="NVIDIA H100"), solo={FUNCTIONS[0]: solo(FUNCTIONS[0])})
    asked = {PLACE.key: predictors(), other.place.key: predictors()}
    table = build([profile(), other], asked, version=3, source="ours", created_at=1.5, weights={PLACE.key: weights})

    assert (table.version, table.source, table.created_at) == (3, "ours", 1.5)
    first, second = table.place(*PLACE.key), table.place(*other.place.key)
    assert first is not None
    assert second is not None
    assert (weights_of(first.weights), second.weights) == (weights, [])
    assert second.functions == ["bert/cpu/function/1"]


def test_one_bad_place_means_no_table() -> None:
    other = PlaceProfile(place=replace(PLACE, device="NVIDIA H100"), solo={FUNCTIONS[0]: solo(FUNCTIONS[0])})

    with pytest.raises(BadRow, match="functions"):
        build([profile(), other], {PLACE.key: predictors()}, version=1, source="s", created_at=0.0)
    with pytest.raises(BadRow, match="two profiles"):
        build([profile(), profile()], {PLACE.key: predictors()}, version=1, source="s", created_at=0.0)


def test_what_no_reader_would_take_is_not_built() -> None:
    slashed = Workload(model="a/b", preset="cpu", role="function", batch=1)
    found = PlaceProfile(place=PLACE, solo={slashed: solo(slashed)})

    with pytest.raises(BadRow, match="cannot be published"):
        build([found], {PLACE.key: predictors()}, version=1, source="s", created_at=0.0)


def test_pairs_of_a_table_for_the_multiway_weights() -> None:
    table = place_table(profile(together((TRAININGS[1], 0.3), (FUNCTIONS[2], 4.0))), predictors())
    pairs = pair_wise(table)

    assert pairs["training"](TRAININGS[1], FUNCTIONS[2]) == pytest.approx(0.3)
    assert pairs["function"](FUNCTIONS[2], TRAININGS[1]) == pytest.approx(4.0)
    assert pairs["functions"](FUNCTIONS[0], FUNCTIONS[2]) == pytest.approx(0.58)
    with pytest.raises(KeyError):
        pairs["training"](workload("segnet", "training"), FUNCTIONS[0])


def test_a_hundred_by_a_hundred_is_assembled_at_once() -> None:
    """
    The part that is not the predictor's: 100 x 100 workloads with 1,000 measured pairs. It takes about 0.1 s; the bound
    is generous.
    """
    trainings = [workload(f"m{number % 8}", "training", 1 + number) for number in range(100)]
    functions = [workload(f"m{number % 8}", "function", 1 + number) for number in range(100)]
    generator = np.random.default_rng(0)
    found = PlaceProfile(place=PLACE, solo={one: solo(one) for one in (*trainings, *functions)})
    found.colocations = [
        together((trainings[i], 0.1), (functions[j], 1.0), minute=minute)
        for minute, (i, j) in enumerate(generator.integers(0, 100, (1000, 2)).tolist())
    ]
    begin = time.process_time()
    table = build([found], {PLACE.key: predictors()}, version=1, source="s", created_at=0.0)

    assert time.process_time() - begin < 1.0
    place: PlaceTable = table.places[0]
    assert (len(place.training), len(place.function_on_function)) == (80_000, 80_000)
