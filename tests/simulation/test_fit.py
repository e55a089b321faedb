"""The fit to measured rows, on rows that a known truth made."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from lab.simulation import fit, interference
from lab.simulation.interference import InterferenceModel, Law
from ml import rows
from ml.rows import FEATURES, BadRow, Colocation, DeviceMode, Member, Solo, Workload
from tests.support.measured import timing

pytestmark = pytest.mark.numeric

PLACE = DeviceMode(device="CPU partition: 1 core of X", sharing_mode="time-slice", driver="d", counter="cpu-time")
MODELS = ("vgg16", "bert", "deepfm", "mobilenet")
#: Functions lose by all that a training does, it by a third of them: a lower priority.
KNOWN = replace(
    InterferenceModel(),
    training=Law(exponent=1.1, crowd=0.05, by_function=0.35, memory=0.5),
    function=Law(exponent=1.4, crowd=0.0, by_training=1.2, short=0.0, memory=0.2),
)


def workload(model: str, role: str) -> Workload:
    return Workload(model=model, preset="cpu", role=role, batch=64 if role == "training" else 1)  # type: ignore[arg-type]


def solo(one: Workload) -> Solo:
    use = KNOWN.use(one.model, one.role, one.batch)
    return Solo(
        place=PLACE,
        workload=one,
        features=dict.fromkeys(FEATURES, 2.0**20) | {"memory_bytes": 400.0 * 2**20},
        timing=timing(use.seconds),
        utilisation=use.u,
        memory_utilisation=None,
        device_memory_bytes=None,
        input_wait_s=0.0,
        cold_s={"import": 0.5, "weights": 0.25},
        kernels={},
        seconds=4.0,
        at="2026-01-01T00:00:00+00:00",
    )


def together(random: np.random.Generator, *members: Workload) -> Colocation:
    first = members[0]
    place = KNOWN.on(7, (first.model, first.batch) if first.role == "training" else None)
    functions = [one for one in members if one.role == "function"]
    slow, each = place.slowdowns([place.kind(one.model, one.batch) for one in functions])
    slows = [slow, *each] if first.role == "training" else each
    found = []
    for one, by in zip(members, slows, strict=True):
        alone = KNOWN.use(one.model, one.role, one.batch).seconds
        measured = timing(alone * by * float(np.exp(0.02 * random.standard_normal())))
        found.append(Member(workload=one, timing=measured, control=timing(alone), solo=timing(alone)))
    return Colocation(
        place=PLACE, members=tuple(found), utilisation=1.0, disturbance=0.0, seconds=8.0, at="2026-01-01T00:01:00+00:00"
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    random = np.random.default_rng(0)
    trainings, functions = ([workload(model, role) for model in MODELS] for role in interference.ROLES)
    for one in (*trainings, *functions):
        rows.write(path, solo(one))
    for first, second in (*product(trainings, functions), *product(functions, functions)):
        rows.write(path, together(random, first, second))
    for first, k in product(trainings, range(2, 7)):
        rows.write(path, together(random, first, *(functions[index] for index in random.integers(0, 4, k))))
    return path


def test_a_known_truth_is_found_again(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fit.fit(measured, name="known")

    assert found.pairs + found.held == 16 + 16 + 20
    assert found.errors["held_out.rmsle"] < 0.06 < found.errors["held_out.rmsle_constant"]
    assert found.errors["held_out.rmsle"] < 0.25 * found.errors["held_out.rmsle_constant"]
    use = found.interference_model.use("bert", "training", 64)
    assert (use.u, use.memory_mib, found.interference_model.cold_s["bert"]) == (0.80, 400.0, 0.75)

    (tmp_path / "known.json").write_text(fit.document(found, command="the command"))
    monkeypatch.setattr(interference, "DATA", tmp_path)
    again = interference.load("known")
    assert again.use("vgg16", "function", 1).seconds == pytest.approx(0.003, rel=1e-5)
    assert again.training.exponent == pytest.approx(found.interference_model.training.exponent, rel=1e-5)
    assert json.loads((tmp_path / "known.json").read_text())["command"] == "the command"


def test_the_same_rows_give_the_same_file(measured: Path) -> None:
    one, other = (fit.document(fit.fit(measured, name="known", seed=3), command="c") for _ in range(2))

    assert one == other


def test_too_few_rows_are_refused(measured: Path, tmp_path: Path) -> None:
    lines = measured.read_text().splitlines()
    few, mixed, blind = (tmp_path / f"{name}.jsonl" for name in ("few", "mixed", "blind"))
    few.write_text("\n".join(lines[:12]) + "\n")
    mixed.write_text("\n".join([*lines, lines[0].replace("time-slice", "mps")]) + "\n")
    blind.write_text("\n".join([lines[0].replace('"utilisation":0.55', '"utilisation":null'), *lines[1:]]) + "\n")

    for path, why in ((few, "at least 8"), (mixed, "2 places"), (blind, "a utilisation is needed")):
        with pytest.raises(BadRow, match=why):
            fit.fit(path, name="x")


def test_least_squares_finds_the_bottom() -> None:
    def residuals(x: np.ndarray) -> np.ndarray:
        return np.array([10.0 * (x[1] - x[0] ** 2), 1.0 - x[0]])

    assert fit.least_squares(residuals, np.array([-1.2, 1.0])).tolist() == pytest.approx([1.0, 1.0], abs=1e-3)


def test_the_committed_fit_is_a_truth() -> None:
    found = interference.load("cpu-partition")

    assert len(found.measured) == 64
    assert found.sharing_mode.startswith("time-slice")
    assert found.use("bert", "function", 3).seconds == pytest.approx(
        (found.use("bert", "function", 2).seconds + found.use("bert", "function", 4).seconds) / 2
    )
