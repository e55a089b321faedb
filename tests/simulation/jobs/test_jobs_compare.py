"""``python -m lab.research.compare compare`` for presets of trainings."""

import json
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

from lab.research.compare import trainings
from lab.research.compare.__main__ import main
from lab.research.compare.claims import ClaimVerdict
from lab.research.compare.trainings_settings import REMARKS, in_words
from lab.simulation.jobs.world import load_job_preset
from scheduler.policy.jobs.knobs import SETTINGS
from smore.traces.public import BUNDLED
from tests.support.documented import undocumented

COMPARE = ["compare", "--preset", "jobs-small", "--workers", "1"]


def test_the_last_line_has_figures_intervals_and_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main([*COMPARE, "--policies", "sjf,fifo-backfill,srsf", "--seeds", "4", "--json", "--out", str(out)]) == 0
    [line] = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    figures = document["figures"]

    advantage = figures["advantage.jct.fifo_backfill"]
    assert advantage == pytest.approx(figures["jct.fifo_backfill"] - figures["jct.sjf"], abs=1e-4)
    assert figures["advantage.jct.fifo_backfill.low"] < advantage < figures["advantage.jct.fifo_backfill.high"]
    assert document["intervals"]["advantage.jct.fifo_backfill"]["low"] == figures["advantage.jct.fifo_backfill.low"]
    # A share of the GPU time is better where it is larger.
    assert figures["advantage.gpu_share.srsf"] == pytest.approx(
        figures["gpu_share.sjf"] - figures["gpu_share.srsf"], abs=1e-4
    )
    assert 0 < figures["reduction.jct.srsf.fifo_backfill"] < 1
    assert document["claims"]["jct.srsf"].startswith("mean completion of sjf lower than srsf's:")
    assert len((out / "rows.csv").read_text().splitlines()) == 1 + 4 * 3

    page = (out / "index.html").read_text()
    assert "mean completion of sjf lower than fifo-backfill&#x27;s" in page
    assert '<td class=prose data-label="what it does">' in page
    assert "A job that was stopped goes on 62 s after it is started again." in page and "4 seeds are few" in page
    assert 'data-label="worst slowdown"' in page and "@media (max-width: 640px)" in page
    assert "prefers-color-scheme: dark" in page and "<script" not in page
    assert page.count("data:image/svg+xml;base64,") == 1 and "after figure" not in page
    assert '<a href="table.csv">' in page and '<a href="rows.csv">' in page
    table = (out / "table.csv").read_text().splitlines()
    assert table[0] == "policy,metric,mean,low,high"
    assert float(table[1].split(",")[2]) == pytest.approx(figures["jct.sjf"], rel=1e-4)


def test_a_cluster_and_trainings_of_ones_own_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset, trace = tmp_path / "mine.yaml", tmp_path / "mine.csv"
    preset.write_text("cluster: {nodes: 1, gpus: 2}\ntrace: {kind: made, jobs: 20}\npolicies: [sjf, fifo]\n")
    trace.write_text("submit_s,duration_s,gpus\n0,7200,2\n1,3600,1\n2,1800,1\n")
    command = ["compare", "--preset", str(preset), "--workers", "1", "--seeds", "2", "--json"]
    assert main([*command, "--trace", f"kind=csv,path={trace}", "--out", str(tmp_path / "out")]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]

    # Both smaller ones start when the first has ended.
    assert figures["jct.sjf"] == figures["jct.fifo"] == pytest.approx((2.0 + 3.0 + 2.5) / 3, abs=1e-3)
    assert figures["p95.sjf"] == pytest.approx(2.95, abs=1e-3)
    assert "reduction.p95.sjf.fifo" in figures
    assert '<section id="mine">' in (tmp_path / "out" / "index.html").read_text()
    # Without a cluster it is a preset of functions.
    preset.write_text("policies: [sjf]\n")
    assert main(command) == 2
    assert "gpus: at least one GPU instance is expected" in capsys.readouterr().err


def test_a_preset_of_several_truths_says_the_worst_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--policies", "smore-jobs,sjf-bsbf,sjf", "--seeds", "2", "--predictor", "noise=0.25"]
    command = ["compare", "--preset", "jobs-small-shared", "--workers", "1", *words]
    assert main([*command, "--json", "--out", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    figures = document["figures"]

    assert document["truths"] == ["constant=1.1", "constant=1.5"]
    assert undocumented(figures, "docs/research/trainings.md") == set()
    ratios = {name: value for name, value in figures.items() if name.startswith("ratio.smore_jobs.sjf.")}
    assert len(ratios) == 2 * 3
    worst = figures["worst_ratio.smore_jobs.sjf"]
    assert worst == max(value for name, value in ratios.items() if not name.endswith((".low", ".high")))
    assert figures["worst_ratio.smore_jobs.sjf.low"] <= worst <= figures["worst_ratio.smore_jobs.sjf.high"]
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 2 * 2 * 3
    page = (tmp_path / "index.html").read_text()
    assert "2 seeds are few: a 95 % interval then reaches 12.7 standard errors" in page
    assert "Ratio of mean completions by slowdown" in page and page.count("data:image/svg+xml;base64,") == 2
    assert main([*command, "--seeds", "1"]) == 0
    assert "mean completion of smore-jobs over the others':" in capsys.readouterr().out


def test_runs_of_a_seed_under_several_truths_narrow_no_interval() -> None:
    series = {"sjf": [1.0, 3.0, 2.5], "fifo": [2.0, 3.5, 4.5]}
    of_one = {policy: dict.fromkeys(trainings.REDUCED, of) for policy, of in series.items()}
    of_two = {policy: dict.fromkeys(trainings.REDUCED, 2 * of) for policy, of in series.items()}
    one = trainings.plan("jobs-small", "sjf,fifo", 3, "constant=1.5", 0.0, 0.0, ())
    two = replace(one, truths=("constant=1.5", "constant=1.5"))
    for name, interval in trainings.intervals(one, of_one).items():
        assert trainings.intervals(two, of_two)[name] == pytest.approx(interval), name


def test_promised_over_length_is_the_median_of_all_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not the mean of the seeds' medians: a seed in which few are promised an end counts as its jobs do."""
    plan = trainings.plan("jobs-small", "sjf,fifo", 2, "", 0.0, 0.0, ())
    others = {name: [1.0, 2.0] for name in trainings.REDUCED}
    by = {"sjf": others | {"told_over_length": [1.0, 1.0, 1.0, 9.0, 9.0]}, "fifo": others | {"told_over_length": []}}
    found = trainings.intervals(plan, by)
    assert found["told_over_length.sjf"].mean == 1.0 and isnan(found["told_over_length.fifo"].mean)
    assert "advantage.told_over_length.fifo" not in found

    asked = ["--policies", "smore-jobs,sjf", "--seeds", "2", "--trace", "ask=0.5,by=earliest", "--json"]
    assert main([*COMPARE, *asked, "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["told_over_length.smore_jobs"] >= 1.0
    assert "promised over length" in (tmp_path / "index.html").read_text()
    assert "told_over_length" not in (tmp_path / "rows.csv").read_text()


def test_without_json_a_table_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPARE, "--policies", "smore-jobs,fifo", "--seeds", "1", "--lengths", "0.5"]) == 0
    shown = capsys.readouterr().out
    assert "mean completion of smore-jobs lower than fifo's" in shown
    assert "above 0" in shown and "mean over seeds of each seed's own reduction" in shown
    assert "±" not in shown
    assert ClaimVerdict.UNKNOWN in shown
    assert "One seed has no interval, and no claim can be made from it" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policies", "lifo"], "'lifo' is not a policy"),
        (["--policies", "sjf:patience_s=-1"], "patience_s"),
        (["--policies", "sjf,sjf"], "each once"),
        (["--worlds", "3"], "worlds: it is for functions"),
        (["--open"], "--open shows the page of --out"),
        (["--trace", "load=-1"], "trace.load"),
        (["--trace", "lode=1"], "lode"),
        (["--lengths", "-1"], "lengths"),
        (["--truth", "digest"], "truth"),
        (["--predictor", "kind=exact"], "noise=NUMBER is all"),
        (["--predictor", "noise=-1"], "noise in 0..10"),
        (["--preset", "jobs-pollux", "--data", "/nowhere"], "no interference/gavel_pairs.csv in /nowhere"),
        (["--preset", "jobs-philly", "--data", "/nowhere"], "no jobs/philly.csv in /nowhere"),
        (["--preset", "jobs-muri", "--data", "/nowhere"], "no jobs/muri_traces.csv in /nowhere"),
        (["--preset", "fig14", "--lengths", "1"], "presets of trainings"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMPARE, "--seeds", "1", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1


def test_settings_that_coincide_are_named_and_where_nobody_shares() -> None:
    """Nobody shares in the first preset, so sharing brings nothing."""
    alone = trainings.plan("jobs-small", "sjf-bsbf,sjf,fifo", 1, "", 0.0, 0.0, ())
    by = {policy: {"jct": [2.0], "guests": [0.0]} for policy in alone.policies} | {
        "fifo": {"jct": [3.0], "guests": [0.0]}
    }
    words = trainings.same_in_words(alone, by)
    assert "The same decisions in every seed" in words and ": sjf-bsbf, sjf." in words
    assert "Nobody shares in this preset" in words and "jobs-small-shared" in words
    shared = trainings.plan("jobs-small-shared", "sjf-bsbf,fifo", 1, "", 0.0, 0.0, ())
    assert trainings.same_in_words(shared, {"sjf-bsbf": by["sjf"], "fifo": by["fifo"]}) == ""


def test_intervals_stay_within_what_a_figure_can_be() -> None:
    plan = trainings.plan("jobs-small", "sjf,fifo", 2, "", 0.0, 0.0, ())
    by = {
        policy: {"jct": [0.1, 4.0], "p95": [0.1, 4.0], "wait": [0.0, 3.0], "gpu_share": [0.5, 0.99]}
        for policy in plan.policies
    } | {"fifo": {"jct": [5.0, 4.1], "p95": [5.0, 4.1], "wait": [5.0, 3.0], "gpu_share": [0.5, 0.99]}}
    found = trainings.intervals(plan, by)
    assert found["jct.sjf"].low == found["wait.sjf"].low == found["gpu_share.sjf"].low == 0.0
    assert found["gpu_share.sjf"].high == found["reduction.jct.sjf.fifo"].high == 1.0
    assert found["advantage.jct.fifo"].low < 0


def test_what_settings_are_and_cost_is_said_by_their_knobs() -> None:
    world = load_job_preset("jobs-small").world
    words = {name: in_words(name, world) for name in SETTINGS}
    assert "In the style of Pollux, not Pollux itself" in words["pollux-style"]
    assert (
        "chosen anew every 60 s" in words["pollux-style"] and "costs 30 s, a resumption after" in words["pollux-style"]
    )
    assert "a failure 62 s" in words["pollux-style"] and "goes on 62 s after" in words["srsf"]
    assert "Two queues, the second for jobs that have had 8 GPU hours" in words["tiresias"]
    assert "is first" in words["smore-jobs"] and "is first" not in words["sjf"] and "62 s" not in words["sjf"]
    assert "waited 2 h" in in_words("smore-jobs:patience_s=7200", world)
    assert len(set(words.values())) == len(SETTINGS), "settings that differ are told apart"
    assert REMARKS.keys() <= SETTINGS.keys()


def test_the_number_of_processes_changes_nothing() -> None:
    plan = trainings.plan("jobs-small-shared", "smore-jobs,sjf-bsbf", 2, "", 0.0, 0.25, (BUNDLED,))
    one, two = (trainings.values(plan, workers, lambda *_: None) for workers in (1, 2))
    assert one == two
