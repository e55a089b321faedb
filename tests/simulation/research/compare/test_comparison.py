"""Comparisons and the command line: what is paired, what comes out, how it fails."""

import json
import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from lab.research.compare import by_world, comparison
from lab.research.compare.__main__ import _command, main
from lab.research.compare.comparison import CALM, Cell, Plan, alike, alike_in_words
from lab.research.compare.measures import MEASURES, interval_of
from lab.simulation import policies, recipes, traces
from lab.simulation.result import Result
from lab.simulation.world import load
from scheduler.policy.decisions import Throttle
from scheduler.policy.policy import Policy
from smore.domain.loss import JobLoss, Sample
from tests.support.documented import undocumented
from tests.support.policy_events import NOW, function, gpu, known

PRESET = {
    "about": "two GPUs",
    "world": {"functions": [{"model": "bert"}, {"model": "deepfm"}, {"model": "vgg16"}]},
    "configurations": {
        "light": {"gpus": [{"count": 2, "trainings": ["mobilenet/64"]}]},
        "heavy": {"gpus": [{"count": 2, "trainings": ["roberta/64"]}]},
    },
    "trace": {"kind": "poisson", "rate_per_min": 1800, "seconds": 2},
    "predictor": {"kind": "exact", "updates": 100},
    "policies": ["smore", "edf-util"],
}


@pytest.fixture
def preset(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(PRESET, sort_keys=False))
    return str(path)


def last(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_compare_prints_figures_with_intervals(
    preset: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    argv = ["compare", "--preset", preset, "--seeds", "2", "--workers", "1"]
    assert main(argv) == 0

    printed = capsys.readouterr()
    document = json.loads(printed.out.splitlines()[-1])
    assert document["command"] == "python -m lab.research.compare " + " ".join(argv)
    figures, intervals = document["figures"], document["intervals"]
    for metric in ("dsr", "gui", "sfd", "sld"):
        for policy in ("smore", "edf_util"):
            name = f"{metric}.{policy}"
            assert intervals[name]["low"] <= figures[name] <= intervals[name]["high"]
        sign = 1 if metric in ("dsr", "gui") else -1
        expected = sign * (figures[f"{metric}.smore"] - figures[f"{metric}.edf_util"])
        assert figures[f"advantage.{metric}.edf_util"] == pytest.approx(expected, abs=1e-5)
        assert figures[f"not_worse.{metric}.edf_util"] in (0, 1)
    for metric in ("dsr", "train_loss"):
        each = [figures[f"{metric}.edf_util.{configuration}"] for configuration in ("light", "heavy")]
        assert figures[f"{metric}.edf_util"] == pytest.approx(sum(each) / 2, abs=1e-5)
    # Where a policy admits nothing in a configuration, the mean of all is over the others.
    assert figures["dsr_admitted.edf_util.heavy"] is None
    assert figures["dsr_admitted.edf_util"] is not None
    assert figures["loaded_at_start.smore"] == figures["loaded_at_start.edf_util"] == 3
    assert undocumented(figures, "docs/research/simulation.md") == set()
    assert "4/4 cells (configuration and seed)" in printed.err and "s left" in printed.err
    rows = [line for line in printed.out.splitlines() if line.startswith(("smore  ", "edf-util  "))]
    assert len(rows) > 2 * len(MEASURES) / 3 and max(map(len, rows)) <= shutil.get_terminal_size().columns
    assert "small.yaml: 2 seeds, 2 configurations;" in printed.out
    assert "2 seeds are few: a 95 % interval then reaches 12.7 standard errors" in printed.out
    assert (
        "smore compared with each other policy" in printed.out
        and "(DSR) of smore higher than edf-util's" in printed.out
    )


def test_processes_do_not_change_figures(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for workers in ("1", "2"):
        assert (
            main(
                [
                    "compare",
                    "--preset",
                    preset,
                    "--seeds",
                    "2",
                    "--policies",
                    "edf-util,random",
                    "--workers",
                    workers,
                    "--json",
                ]
            )
            == 0
        )
        found.append(last(capsys))

    assert found[0]["figures"] == found[1]["figures"]
    assert found[0]["intervals"] == found[1]["intervals"]


def test_worlds_are_drawn_around_the_truth_and_counted(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--preset", preset, "--seeds", "1", "--worlds", "2", "--workers", "1", "--json"]) == 0

    document = last(capsys)
    figures = document["figures"]
    for metric in ("dsr", "gui", "sfd", "sld"):
        assert figures[f"worlds.{metric}.edf_util"] in (0.0, 0.5, 1.0)
        # One seed says nothing.
        assert figures[f"holds.{metric}.edf_util"] is None
        assert "cannot be said" in document["claims"][f"{metric}.edf_util"]
    assert undocumented(figures, "docs/research/simulation.md") == set()
    # Where nothing interferes no training is slowed down by anybody.
    assert figures["calm.sfd.edf_util"] == 0.0
    plan = Plan(preset=preset, policies=("smore",), seeds=(0,), worlds=2)
    factors = plan.drawn(1)
    assert factors != plan.drawn(2) and plan.drawn(0) == {}
    assert all(0.7 <= factor <= 1.3 for factor in factors.values())
    assert {"exponent", "growth", "u.training.vgg16", "b.function.bert"} <= set(factors)
    assert len(factors) == 2 + 2 * 16
    assert plan.drawn(CALM) == {} and not plan.load(CALM).worlds["light"].interference_model.interference
    assert [cell.world for cell in plan.cells()] == [0, 0, CALM, CALM, 1, 1, 2, 2]
    assert plan.load(1).worlds["light"].interference_model.training.exponent == pytest.approx(1.3 * factors["exponent"])


def test_other_worlds_of_a_preset_stand_beside_its_own(
    preset: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what each is told, and with how far its predictor errs in them and on measured rows."""
    whole = recipes.estimator

    def small(name: str, seed: int) -> recipes.Estimator:
        """A forest of 20 trees: 54 are fitted here, and 200 trees each say nothing else."""
        made: Any = whole(name, seed)
        return cast("recipes.Estimator", made.set_params(n_estimators=20) if name == "paper" else made)

    monkeypatch.setattr(recipes, "estimator", small)
    document = dict(PRESET) | {
        "predictor": {"kind": "sampled", "recipe": "linear", "updates": 10},
        "configurations": {"light": {"gpus": [{"count": 2, "trainings": ["mobilenet/64"]}]}},
        "other_worlds": {"turns-too": {"truth": "turns"}, "less": {"factors": {"u": 0.5}}},
    }
    Path(preset).write_text(yaml.safe_dump(document, sort_keys=False))
    argv = ["compare", "--preset", preset, "--seeds", "1", "--world-seeds", "1", "--workers", "1", "--json"]
    assert main([*argv, "--policies", "smore-ours,smore,edf-util"]) == 0

    figures = last(capsys)["figures"]
    assert (
        figures["turns_too.train_loss.edf_util"]
        != figures["train_loss.edf_util"]
        != figures["less.train_loss.edf_util"]
    )
    assert figures["predictor_rmsle"] == figures["predictor_rmsle.linear"] != figures["predictor_rmsle.paper"]
    assert figures["predictor_rmsle_measured.paper"] == pytest.approx((0.054 + 0.213 + 0.138) / 3, abs=1e-6)
    assert figures["turns_too.predictor_rmsle.smore_ours"] != figures["predictor_rmsle.smore_ours"]
    own = [name for name in figures if not name.startswith(("turns_too.", "less."))]
    assert undocumented(own, "docs/research/simulation.md") == set()
    # Whoever names an interference model gets that alone.
    assert not Plan(preset=preset, policies=("smore",), seeds=(0,), truth="turns").others


def test_means_in_another_world_are_over_the_same_configurations() -> None:
    one = {"a": {"sld": [1.0, 2.0]}, "b": {"sld": [3.0, 4.0]}}
    other = {"a": {"sld": [5.0, 6.0]}, "b": {"sld": [7.0, math.nan]}}
    assert by_world.means([one, other], "a", "sld") == [3.0, 2.0]
    assert by_world.means([one, other], "b", "sld") == [5.0, 4.0]


def test_a_training_without_a_budget_has_the_policy_s() -> None:
    world = load("fig14-paper").worlds["vgg16-same"]
    for name in ("smore-product-b5", "random-budget-b5"):
        assert {gpu.budget for gpu in policies.asked(world, name).gpus} == {0.05}
    named = replace(world, gpus=tuple(replace(gpu, budget=0.3) for gpu in world.gpus))
    assert {gpu.budget for gpu in policies.asked(named, "smore-product-b5").gpus} == {0.3}


@pytest.mark.parametrize(
    ("policy", "recipe"),
    [
        ("smore", "paper"),
        ("smore:sm_rule=none", "paper"),
        ("elasticflow", "paper"),
        ("smore-ours", "ours"),
        ("smore-product-b10", "ours"),
        ("random-budget-b10", "ours"),
    ],
)
def test_who_is_named_after_the_paper_is_told_by_its_forest(policy: str, recipe: str) -> None:
    assert policies.belief(policy, {"recipe": "ours"}, {}).recipe == recipe
    assert policies.belief(policy, {"recipe": "ours"}, {"recipe": "linear"}).recipe == "linear"


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("smore", False),
        ("smore-ours", False),
        ("smore-ours:closed_loop=true", True),
        ("smore-product-b10", True),
        ("random-budget-b10", True),
        ("smore-product-b10:closed_loop=false", False),
    ],
)
def test_a_comparison_tells_measured_losses_to_the_product_and_its_random_twin_alone(policy: str, told: bool) -> None:
    """The live leader, and a run that stands for it, tells them to every policy."""

    def throttles(engine: Policy) -> bool:
        lost = JobLoss(
            id="j", budget=0.1, recent=Sample(mean=0.13, sd=0.002, n=20), closed=Sample(mean=0.1, sd=0.002, n=30)
        )
        engine.decide(NOW, [known([[0.01]]), function(0)])
        report = gpu("a", functions=1, losses=[lost], function_utilisation=1.0)
        return [type(decision) for decision in engine.decide(NOW, [report]).decisions] == [Throttle]

    assert throttles(policies.compared(policy)(0)) == told
    if "closed_loop" not in policy:
        assert throttles(policies.factory(policy)(0))


def test_every_policy_of_a_cell_meets_the_same(preset: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    plan = Plan(preset=preset, policies=("smore", "edf-util"), seeds=(5,), out=out)

    comparison.run_cell(plan, Cell(configuration="light", seed=5))

    one, other = (Result.read(path) for path in sorted(out.glob("*.npz")))
    assert (one.arrival_s == other.arrival_s).all() and (one.deadline_s == other.deadline_s).all()
    assert {one.meta["policy"], other.meta["policy"]} == {"smore", "edf-util"}
    assert one.meta["warm_at_start"] == other.meta["warm_at_start"] == [[1, 1, 1], [1, 1, 1]]


def test_run_and_trace_write_the_same_bytes_again(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = []
    for number in range(2):
        trace, rows = tmp_path / f"trace{number}.npz", tmp_path / f"rows{number}.npz"
        assert main(["trace", "--preset", preset, "--seed", "4", "--out", str(trace)]) == 0
        assert last(capsys)["figures"]["invocations"] == len(traces.read(trace))
        assert (
            main(
                [
                    "run",
                    "--preset",
                    preset,
                    "--policy",
                    "smore",
                    "--seed",
                    "4",
                    "--configuration",
                    "heavy",
                    "--out",
                    str(rows),
                ]
            )
            == 0
        )
        assert last(capsys)["figures"]["sim_per_s"] > 0
        written.append((trace.read_bytes(), rows.read_bytes()))

    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["compare", "--preset", "fig99"], "preset: 'fig99' is not known"),
        (["compare", "--preset", "job-muri"], "small, jobs-constant, jobs-memory, jobs-muri, jobs-philly"),
        (["compare", "--preset", "job-muri"], "did you mean jobs-muri"),
        (["compare", "--policies", "smore,psychic"], "'psychic' is not a policy"),
        (["compare", "--policies", "smore:psychic=1"], "'psychic' is not a knob"),
        (["compare", "--policies", "edf-util:sm_cap=-1"], "sm_cap: -1.0 is out of range"),
        (["compare", "--policies", "edf-util:sm_cap"], "'sm_cap' is not of the form knob=value"),
        (["compare", "--policies", "smore,smore"], "policies: at least one policy is expected, each once"),
        (["compare", "--factors", "speed=2"], "speed: no parameter of the interference model has this name"),
        (["compare", "--truth", "moon"], "truth: 'moon' is not known; known are digest, turns, cpu-partition"),
        (["compare", "--factors", "u=much"], "factors.u: a number is expected"),
        (["compare", "--trace", "rate_per_min=-5"], "trace.rate_per_min: a number in"),
        (["compare", "--predictor", "kind=guess"], "predictor.kind: one of sampled, exact, none is expected"),
        (["run", "--policy", "psychic"], "'psychic' is not a policy"),
        (
            ["run", "--policy", "smore", "--configuration", "dark"],
            "configuration: there is no 'dark'; there are light, heavy",
        ),
        (
            ["run", "--policy", "smore", "--trace", "kind=azure", "--data", "/nowhere"],
            "no azure2019/invocations.csv in /nowhere",
        ),
        (
            ["run", "--policy", "smore", "--trace", "kind=azure,folder=azure2019/d01"],
            "`smore data fetch azure2019` brings all of it",
        ),
        (["run", "--policy", "smore", "--trace", "kind=csv,path=/nowhere/mine.csv"], "/nowhere/mine.csv: No such file"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    preset: str, more: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = [] if "--preset" in more else ["--preset", preset]
    workers = ["--workers", "1", "--seeds", "1"] if more[0] == "compare" else []

    assert main([*more, *extra, *workers]) == 2

    error = capsys.readouterr().err.strip()
    assert error.startswith(f"python -m lab.research.compare {more[0]}: ")
    assert why in error
    assert "\n" not in error


HEADER = "function,revision,arrival_at,deadline_at,rows"
CLUSTER = {"gpus": [{"count": 1, "memory_mib": 1000, "trainings": ["roberta/64"]}]}


@pytest.mark.parametrize(
    ("trace", "cluster", "why"),
    [
        ("bert,1,10.0,12.0,1\nbert,1,ten,12.0,1", None, "history.csv:3: arrival_at: a number is expected, not 'ten'"),
        ("bert,1,10.0,9.0,1", None, "history.csv:2: deadline_at: 9 is not after the arrival at 10"),
        ("bert,1,10.0,-3,1", None, "history.csv:2: deadline_at: a number of at least 0 is expected, not '-3'"),
        ("bert,1,10.0,12.0", None, "history.csv:2: row: 5 columns are expected, not 4"),
        ("yolo,1,10.0,12.0,1", None, "history.csv:2: function: 'yolo' is not known"),
        ("bert,1,10.0,12.0,1", CLUSTER, "gpus[0].memory_mib: the training roberta/64 needs"),
        ("bert,1,10.0,12.0,1", {"gpus": []}, "gpus: at least one GPU instance is expected"),
        (
            "bert,1,10.0,12.0,1",
            {"gpus": [{"sevenths": 5}]},
            "gpus[0].sevenths: one of 1, 2, 3, 4, 7 is expected, not 5",
        ),
        ("bert,1,10.0,12.0,1", {"gpus": [{"count": 1}], "round_s": -1}, "round_s: a number in"),
    ],
)
def test_a_bad_trace_or_cluster_is_told_by_line_and_field(
    tmp_path: Path, trace: str, cluster: dict[str, Any] | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "history.csv").write_text(f"{HEADER}\n{trace}\n")
    document = PRESET | {"trace": {"kind": "history", "path": str(tmp_path / "history.csv")}}
    if cluster is not None:
        document["configurations"] = {"odd": cluster}
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    assert main(["compare", "--preset", str(tmp_path / "odd.yaml"), "--seeds", "1", "--workers", "1"]) == 2

    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert why in error[0]


def test_a_rule_of_ones_own_is_compared(preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The guide's rule, which keeps away from trainings where it can; here every GPU instance has one."""
    guide = Path(__file__).parents[4] / "docs" / "guides" / "own-policy.md"
    rule = tmp_path / "mine.py"
    rule.write_text(guide.read_text().partition("```python\n")[2].partition("```")[0])
    policies = f"smore-product,{rule}:Mine,{rule}:Mine:tau_training=0.01"
    assert (
        main(["compare", "--preset", preset, "--seeds", "1", "--policies", policies, "--workers", "1", "--json"]) == 0
    )

    figures = last(capsys)["figures"]
    mine = re.sub(r"\W", "_", f"{rule}:Mine")
    assert figures[f"dsr.{mine}"] > 0.5
    # The engine keeps the budgets: with a tenth of it less is placed.
    assert figures[f"admission.{mine}_tau_training_0_01"] < figures[f"admission.{mine}"]


def test_knobs_of_a_policy_are_set_after_its_name(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A threshold that admits nothing is another policy under its own name."""
    policies = "edf-util,edf-util:sm_cap=0.01"
    assert (
        main(["compare", "--preset", preset, "--seeds", "1", "--policies", policies, "--workers", "1", "--json"]) == 0
    )

    figures = last(capsys)["figures"]
    assert figures["admission.edf_util"] > 0.2
    assert figures["admission.edf_util_sm_cap_0_01"] == 0.0


def test_a_command_is_written_down_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "lab.research.compare"])
    assert _command(["compare", "--trace", "kind=csv,path=my file.csv"]) == (
        "smore compare --trace 'kind=csv,path=my file.csv'"
    )


@pytest.mark.parametrize(
    ("started", "name"),
    [("lab.research.compare", "smore compare"), ("lab.simulation", "python -m lab.research.compare compare")],
)
def test_help_has_the_name_by_which_it_was_called(
    started: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", started, "compare", "--help"])
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {name} ")


def test_a_trace_of_ones_own_is_compared(preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("function,arrival_s,deadline_s\n" + "".join(f"bert,{at / 10},2\n" for at in range(20)))
    words = [
        "--policies",
        "smore,random,smore:sm_cap=1",
        "--seeds",
        "2",
        "--workers",
        "1",
        "--out",
        str(tmp_path / "o"),
    ]
    assert main(["compare", "--preset", preset, "--trace", f"kind=csv,path={path}", *words]) == 0
    shown = capsys.readouterr().out
    document = json.loads(shown.splitlines()[-1])
    assert document["figures"]["dsr.random"] > 0 and document["same"] == [["smore", "smore:sm_cap=1"]]
    page = (tmp_path / "o" / "index.html").read_text()
    for text in (shown, page):
        assert "The trace that was run: csv mine.csv, 20 invocations in 2.9 s (bert 20)." in text
        assert "Its arrivals are the same in every seed." in text
        assert "The same decisions in every seed" in text and ": smore, smore:sm_cap=1." in text
        assert "equal in every seed" in text and "if the deficit is at most 1 point" in text
    assert "of its own trace, which was not run: " in page
    path.write_text(path.read_text() + "bert,3,never\n")
    assert main(["compare", "--preset", preset, "--trace", f"kind=csv,path={path}", *words]) == 2
    assert "mine.csv:22: deadline_s: a number is expected, not 'never'" in capsys.readouterr().err


def test_an_interval_of_a_share_stays_within_what_a_share_can_be() -> None:
    share, difference = (interval_of(metric, [0.98, 1.0, 0.9]) for metric in ("dsr", "harvest"))
    assert share.high == 1.0 < difference.high and share.low == difference.low
    assert interval_of("admission.bert", [0.0, 0.2]).low == 0.0
    assert interval_of("gui", [-0.3, 0.2]).low == pytest.approx(-1.0)
    # What was measured may be negative itself.
    assert interval_of("sfd", [-0.2, -0.1]).low == pytest.approx(-0.15)
    assert math.isnan(interval_of("dsr", [1.0]).low)


def test_policies_whose_figures_are_equal_are_named() -> None:
    figures = {"a": [1.0, math.nan], "b": [1.0, 2.0], "c": [1.0, math.nan], "d": [3.0, 2.0]}
    assert alike(figures) == [["a", "c"]]
    assert alike_in_words([]) == ""


def test_fit_is_refused_without_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--rows", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "x.json")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
