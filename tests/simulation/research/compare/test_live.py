"""A live comparison against a platform that a test scripts: what is sent, how it is counted, and what is published."""

import csv
import json
import math
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lab.bench import live as here
from lab.research.compare import live, live_report
from lab.research.compare.live import SHARED, Calibration, LiveComparison, Look, Plan, Run
from lab.simulation import metrics, policies, world
from lab.simulation.predictor import Belief, table
from lab.simulation.simulator import simulate
from lab.simulation.traces import Trace
from smore.domain.loss import ClosedWindow, Loss

PRESET: dict[str, Any] = {
    "about": "one core",
    "world": {
        "truth": "cpu-partition",
        "deadline": [20, 40],
        "functions": [{"model": "deepfm"}, {"model": "bert", "max_batch": 4}],
        "gpus": [{"count": 1, "memory_mib": 2048, "trainings": ["resnet50/2"], "budget": 0.5}],
    },
    "trace": {"kind": "poisson", "rate_per_min": 7, "seconds": 2},
    "predictor": {"kind": "exact", "updates": 0},
    "policies": ["smore:sm_rule=none", "random"],
}
CALIBRATION = Calibration(
    device="a core",
    sharing_mode="time-slice",
    solo_s={"deepfm": 0.004, "bert": 0.02},
    network_s=0.003,
    looks=[Look(rate_per_s=10.0, met=1.0), Look(rate_per_s=40.0, met=0.5)],
    deadline_s={"deepfm": 0.1, "bert": 0.5},
)


def window(closed_s: float, open_s: float, start: float = 0.0) -> ClosedWindow:
    return ClosedWindow(
        start=start,
        end=start + 1,
        before_s=open_s,
        before_n=7,
        closed_s=closed_s,
        closed_n=7,
        closed_sd=0.0,
        after_s=open_s,
        after_n=7,
    )


class Fake:
    """
    A platform that does in no time what each policy is scripted for: the share that it meets, all of it dispatched.
    """

    def __init__(self, shares: dict[str, float]) -> None:
        self.shares = shares
        self.asked: list[tuple[str, Trace]] = []

    def calibrate(self) -> Calibration:
        return CALIBRATION

    def run(self, policy: str, trace: Trace) -> Run:
        self.asked.append((policy, trace))
        n = len(trace)
        met = np.arange(n) < round(self.shares[policy] * n)
        return Run(
            status=np.where(met, 200, 429),
            latency_s=np.where(met, 0.5 * trace.deadline_s, 0.001),
            dispatched={
                name: int((met & (trace.function == index)).sum()) for index, name in enumerate(trace.functions)
            },
            on_time=int(met.sum()),
            runs=[("deepfm", 0.006), ("bert", 0.03)],
            utilisation=0.9,
            alone=0.8,
            windows={"train-resnet50": [window(0.1, 0.11, start) for start in range(4)]},
            load=1.0,
        )


def preset(folder: Path, **changed: Any) -> world.Preset:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(PRESET | changed, sort_keys=False))
    return world.load(str(path))


def plan(folder: Path, **changed: Any) -> Plan:
    found = preset(folder)
    fields: dict[str, Any] = {
        "preset": found,
        "policies": found.policies,
        "repeats": 2,
        "load": 0.5,
        "seconds": 2.0,
    }
    return Plan(**(fields | changed))


def outcome(folder: Path, platform: Fake, **changed: Any) -> LiveComparison:
    return live.compare(platform, plan(folder, **changed), lambda _: None, lambda *_: None)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fake, LiveComparison]:
    """Two policies, two repeats."""
    platform = Fake({"smore:sm_rule=none": 0.5, "random": 0.75})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "HALVINGS", 2)
        return platform, outcome(tmp_path_factory.mktemp("served"), platform)


@pytest.fixture
def undragged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator as the rows have it: tests of what is sent need no calibration of it."""
    monkeypatch.setattr(live, "fitted_slowdown", lambda *_: 1.0)


@pytest.fixture(autouse=True)
def terminated_as_before() -> Iterator[None]:
    """A live comparison ends its platform when it is terminated; the process of the tests ends as it did."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_every_policy_gets_the_same_arrivals_and_the_first_one_takes_turns(served: tuple[Fake, LiveComparison]) -> None:
    platform, found = served

    assert [name for name, _ in platform.asked] == ["smore:sm_rule=none", "random", "random", "smore:sm_rule=none"]
    (_, first), (_, second), (_, third), (_, fourth) = platform.asked
    assert first is second and third is fourth
    assert not np.array_equal(first.arrival_s, third.arrival_s)
    # Half of twenty a second, not the preset's seven a minute.
    assert 5 < len(first) < 40 and found.rates == [first.rate_per_s, third.rate_per_s]
    assert found.slowdown_factor > 0


@pytest.mark.usefixtures("undragged")
def test_deadlines_follow_the_times_of_calibration(tmp_path: Path) -> None:
    platform = Fake({"random": 1.0})

    outcome(tmp_path, platform, policies=("random",), repeats=1)

    trace = platform.asked[0][1]
    assert np.isnan(trace.factor).all()
    p99 = world.load(str(tmp_path / "tiny.yaml")).worlds[""].interference_model.p99
    factors = trace.deadline_s / (p99 * np.array([0.004, 0.02])[trace.function])
    assert factors.min() >= 20 and factors.max() <= 40


def test_the_simulated_world_has_the_times_at_hand_and_larger_batches_in_proportion(tmp_path: Path) -> None:
    before = preset(tmp_path).worlds[""]
    after = live.calibrated_world(before, CALIBRATION)

    assert after.interference_model.use("bert", "function", 1).seconds == pytest.approx(0.02)
    grown = (
        after.interference_model.use("bert", "function", 4).seconds
        / before.interference_model.use("bert", "function", 4).seconds
    )
    assert grown == pytest.approx(0.02 / before.interference_model.use("bert", "function", 1).seconds)
    assert after.interference_model.use("resnet50", "training", 2) == before.interference_model.use(
        "resnet50", "training", 2
    )
    assert after.dispatch_s == CALIBRATION.network_s
    assert (after.interference_model.device, after.interference_model.sharing_mode) == ("a core", "time-slice")


def test_with_its_drag_the_simulator_meets_as_many_deadlines_as_calibration_did(tmp_path: Path) -> None:
    bare = preset(tmp_path).worlds[""]

    def met(drag: float) -> float:
        return float(
            np.mean(
                [
                    live._look(
                        live.calibrated_world(bare, CALIBRATION, drag),
                        CALIBRATION,
                        look.rate_per_s,
                        live.CALIBRATED_WITH,
                    )
                    for look in CALIBRATION.looks
                ]
            )
        )

    drag = live.fitted_slowdown(bare, CALIBRATION)

    assert drag > 1 and met(1.0) > 0.9
    assert met(drag) == pytest.approx(0.75, abs=0.03)


# ---- how it is counted -----------------------------------------------------------------------------------------------


def test_figures_of_a_run_by_hand() -> None:
    trace = Trace(
        name="four",
        functions=("deepfm", "bert"),
        duration_s=1.0,
        arrival_s=np.arange(4) / 10,
        function=np.array([0, 0, 1, 1]),
        rows=np.ones(4, np.int64),
        factor=np.full(4, np.nan),
        deadline_s=np.full(4, 0.2),
    )
    run = Run(
        # Well and in time, well and late, refused, no answer.
        status=np.array([200, 200, 429, 0]),
        latency_s=np.array([0.1, 0.3, 0.01, math.inf]),
        dispatched={"deepfm": 2, "bert": 1},
        on_time=2,
        runs=[("deepfm", 0.006), ("deepfm", 0.008)],
        utilisation=0.9,
        alone=0.75,
        windows={"one": [window(0.1, 0.12)], "other": [window(0.2, 0.2), window(0.2, 0.24)]},
    )

    found = live.measured_figures(run, trace, {"deepfm": 0.004, "bert": 0.02})

    expected = {
        "dsr": 1 / 4,
        "dsr_admitted": 1 / 3,
        "admission": 3 / 4,
        "gui": 0.15,
        "sfd": (0.2 + 0.1) / 2,
        "sld": (0.5 + 1.0) / 2,
        "dsr_platform": 2 / 4,
        "refused": 1 / 4,
        "utilisation": 0.9,
        "admission.deepfm": 1.0,
        "admission.bert": 0.5,
    }
    assert found == pytest.approx(expected)


def test_a_training_without_a_window_and_a_policy_without_a_run_have_no_figure() -> None:
    trace = Trace(
        name="one",
        functions=("deepfm",),
        duration_s=1.0,
        arrival_s=np.zeros(1),
        function=np.zeros(1, np.int64),
        rows=np.ones(1, np.int64),
        factor=np.full(1, np.nan),
        deadline_s=np.ones(1),
    )
    run = Run(
        status=np.array([429]),
        latency_s=np.array([0.01]),
        dispatched={},
        on_time=0,
        runs=[],
        utilisation=math.nan,
        alone=math.nan,
        windows={"one": [window(0.1, 0.12)], "other": []},
    )

    found = live.measured_figures(run, trace, {"deepfm": 0.004})

    assert {name for name, value in found.items() if math.isnan(value)} == {
        "dsr_admitted",
        "gui",
        "sfd",
        "sld",
        "utilisation",
    }
    assert (found["dsr"], found["refused"]) == (0, 1)


def test_simulated_figures_are_what_would_be_measured(tmp_path: Path) -> None:
    one = live.calibrated_world(preset(tmp_path).worlds[""], CALIBRATION)
    trace = live.scaled(plan(tmp_path), one, 0, 40.0)
    told = table(one, Belief(kind="exact", updates=0), 0)
    exclusive, result = (
        simulate(one, each, policies.factory("random"), seed=0, table=told) for each in (trace.none(), trace)
    )

    found = live.simulated_figures(result, exclusive, 2.0)

    plain = metrics.figures(result, exclusive)
    assert 0 < plain["train_loss"] < 1
    assert found["sfd"] == pytest.approx(1 / (1 - plain["train_loss"]) - 1)
    assert found["sld"] == pytest.approx(2 * plain["sld"] + 1)


# ---- what is published -----------------------------------------------------------------------------------------------


def test_figures_name_both_sides_and_how_they_agree(served: tuple[Fake, LiveComparison]) -> None:
    _, found = served

    figures, intervals = live_report.figures(found)

    assert all(map(math.isfinite, figures.values()))
    assert figures["dsr.random"] > figures["dsr.smore_sm_rule_none"]
    for metric in SHARED:
        assert f"simulated.{metric}.random" in figures and f"mae.{metric}" in figures
    assert figures["mae.dsr"] == pytest.approx(
        np.mean(
            [
                abs(figures[f"dsr.{name}"] - figures[f"simulated.dsr.{name}"])
                for name in ("random", "smore_sm_rule_none")
            ]
        ),
        abs=0.05,
    )
    assert intervals["dsr.random"]["low"] <= figures["dsr.random"] <= intervals["dsr.random"]["high"]
    # Eight windows of both repeats, each a tenth longer when open.
    assert figures["train_loss.random"] == pytest.approx(0.1)
    # Surely less than a half, the budget that the preset's training names.
    assert figures["statements_proven"] == 1.0


def test_budgets_are_the_policies_where_trainings_name_none(served: tuple[Fake, LiveComparison]) -> None:
    """Of budgets of 0.05, 0.1 and 0.2 a loss of 0.08 to 0.12 proves that the first was broken and the last kept."""
    _, found = served
    world = found.plan.world
    free = replace(found.plan.preset, worlds={"": replace(world, gpus=(replace(world.gpus[0], budget=None),))})
    lost = Loss(mean=0.1, low=0.08, high=0.12, windows=8)
    losses = {f"smore-product-b{percent}": {"train-resnet50": lost} for percent in (5, 10, 20)}

    told = replace(found, plan=replace(found.plan, preset=free), losses=losses)

    assert [live.budget(told.plan.world, name) for name in losses] == [0.05, 0.1, 0.2]
    assert live.budget(world, "smore-product-b5") == 0.5
    assert told.statements_proven == pytest.approx(2 / 3)


def test_the_page_keeps_what_was_measured_apart(served: tuple[Fake, LiveComparison], tmp_path: Path) -> None:
    _, found = served
    told = here.document(found, "smore compare --live")

    page = here.publish(tmp_path, found, told).read_text()

    _, conditions, measured, simulated, agreement, measures = page.split("<section id=")
    assert "100 % at 10/s, 50 % at 40/s" in conditions and "The capacity is 20.0 in time a second" in conditions
    assert "measured-panel" in measured and "kind simulated" not in measured
    assert "kind measured" not in simulated and "measured-panel" not in simulated
    assert "Spearman" in agreement and "<img" not in agreement
    assert "deadlines met by the platform's clock" in unescape(measures)
    assert {path.name for path in tmp_path.glob("*.svg")} == {"live-measured.svg", "live-simulated.svg"}
    assert json.loads((tmp_path / "live.json").read_text())["figures"] == told["figures"]
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["side"] for row in rows] == ["measured"] * 4 + ["simulated"] * 4
    assert {row["refused"] for row in rows if row["side"] == "simulated"} == {"0.0"}


@pytest.mark.usefixtures("undragged")
def test_raw_rows_are_kept_with_those_of_the_trace(tmp_path: Path) -> None:
    platform = Fake({"random": 1.0})
    live.compare(
        platform,
        plan(tmp_path, policies=("random",), repeats=1),
        lambda _: None,
        lambda name, run, trace: run.write(tmp_path / f"{name}.npz", trace),
    )

    with np.load(tmp_path / "repeat0-random.npz") as stored:
        assert stored["status"].tolist() == [200] * len(platform.asked[0][1])
        assert np.array_equal(stored["deadline_s"], platform.asked[0][1].deadline_s)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--preset", "fig14"], "configurations: a live comparison runs one configuration"),
        (["--preset", "small"], "functions[2]: a live comparison sends one row each"),
        (["--preset", "mig"], "gpus[0].sevenths: a live comparison uses whole GPU instances"),
        (["--preset", "nothing"], "'nothing' is not known"),
        (["--policies", "best"], "'best' is not a policy"),
    ],
)
def test_what_cannot_be_run_live_is_one_line_before_a_platform_starts(
    argv: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here.Here, "_rig", lambda *_: pytest.fail("a platform was started"))

    assert here.main(argv) == 2

    error = capsys.readouterr().err.strip()
    assert why in error and "\n" not in error


def test_a_platform_without_a_capacity_is_no_comparison(tmp_path: Path) -> None:
    class Dead(Fake):
        def calibrate(self) -> Calibration:
            return replace(CALIBRATION, looks=[Look(rate_per_s=10.0, met=0.0)])

    with pytest.raises(RuntimeError, match="no deadline was met at any rate"):
        outcome(tmp_path, Dead({}))


# ---- the devices at hand ---------------------------------------------------------------------------------------------


def test_a_platform_gets_the_policy_with_its_knobs_and_the_preset_s_functions(tmp_path: Path) -> None:
    rig = here.Here(tmp_path, preset(tmp_path).worlds[""], 0)._rig("smore:sm_rule=none:guard=0.1")

    assert rig._environment["SMORE_POLICY__NAME"] == "smore"
    assert json.loads(rig._environment["SMORE_POLICY__KNOBS"]) == {"sm_rule": "none", "guard": 0.1}
    assert [one.model for one in rig.functions] == ["deepfm", "bert"]
    assert len(rig._partitions) == 1


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ([{"count": 999, "trainings": ["resnet50/2"]}], "gpus: 999 are wanted"),
        ([{"count": 1, "trainings": ["none"]}, {"count": 1, "trainings": ["resnet50/2"]}], "gpus: "),
    ],
)
def test_gpu_instances_that_are_not_at_hand_are_refused(tmp_path: Path, gpus: list[dict[str, Any]], why: str) -> None:
    one = preset(tmp_path, world=PRESET["world"] | {"gpus": gpus}).worlds[""]

    with pytest.raises(world.BadWorld, match=why):
        here.Here(tmp_path, one, 0)


def test_a_platform_that_is_up_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in here.SERVERS:
        monkeypatch.setenv(name, "of the platform that is up")
    seen: list[set[str]] = []

    def stop(*_: object) -> None:
        seen.append(set(os.environ) & set(here.SERVERS))
        raise RuntimeError("enough")

    monkeypatch.setattr(live, "compare", stop)
    monkeypatch.setattr(here, "Here", lambda *_: None)

    assert here.main([]) == 2
    assert seen == [set()]
