"""What a comparison leaves in its folder, and the page that is made of it."""

import csv
import json
import math
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

from lab.research.compare import section
from lab.research.compare.__main__ import main
from lab.research.compare.measures import MEASURES, undefined_policies
from lab.research.compare.policy_style import POLICY_STYLES, VERDICT_STYLES, scale
from lab.research.compare.policy_words import in_words
from lab.simulation import timeline, traces
from lab.simulation.policies import factory
from lab.simulation.result import GPU_COLUMNS, Result
from lab.simulation.simulator import simulate
from lab.simulation.world import load
from scheduler.policy.knobs import PRESETS

PRESET: dict[str, Any] = {
    "about": "two GPUs <and> little load",
    "world": {"functions": [{"model": "bert"}, {"model": "deepfm"}]},
    "configurations": {
        "light": {"gpus": [{"count": 2, "trainings": ["mobilenet/64"]}]},
        "heavy": {"gpus": [{"count": 2, "trainings": ["roberta/64"]}]},
    },
    "trace": {"kind": "poisson", "rate_per_min": 3000, "seconds": 2},
    "predictor": {"kind": "exact", "updates": 0},
    "policies": ["smore", "edf-util"],
}
ONE = {"gpus": [{"count": 1, "trainings": ["mobilenet/64"]}]}
SLICED = {"gpus": [{"name": "a", "sevenths": 4, "trainings": ["roberta/16"]}, {"name": "b", "sevenths": 3}]}
POLICIES = (
    "smore,random,random-all,smore-product-b5,smore-product-b20,random-budget-b20,smore-product-b20:order=deadline"
)
DECISION = {"full_us_8": 11.0, "full_us_1024": 18.0, "sampled_us_8": 9.0, "sampled_us_1024": 10.0}


def write_preset(path: Path, **changed: Any) -> str:
    path.write_text(yaml.safe_dump(PRESET | changed, sort_keys=False))
    return str(path)


def compare(out: Path, preset: str, *more: str) -> int:
    return main(["compare", "--preset", preset, "--workers", "1", "--json", "--out", str(out), *more])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of three comparisons: several configurations with changed worlds, one GPU instance, slices."""
    base = tmp_path_factory.mktemp("report")
    found = {name: base / name for name in ("many", "one", "sliced")}
    assert compare(found["many"], write_preset(base / "many.yaml"), "--seeds", "2", "--worlds", "1") == 0
    assert (
        compare(
            found["one"],
            write_preset(base / "one.yaml", configurations={"": ONE}),
            "--seeds",
            "1",
            "--policies",
            POLICIES,
        )
        == 0
    )
    assert (
        compare(found["sliced"], write_preset(base / "sliced.yaml", configurations={"": SLICED}), "--seeds", "1") == 0
    )
    return found


def svgs(folder: Path) -> set[str]:
    return {path.stem.partition("-")[2] for path in folder.glob("*.svg")}


def test_every_figure_of_the_paper_is_drawn_where_it_belongs(folders: dict[str, Path]) -> None:
    assert svgs(folders["many"]) == {"methods", "configurations", "requests", "gain"}
    assert svgs(folders["one"]) == {"methods", "tradeoff", "degradations", "requests", "admission", "utilisation"}
    assert svgs(folders["sliced"]) == {"methods", "slices"}
    for folder in folders.values():
        for picture in folder.glob("*.svg"):
            assert picture.read_text().lstrip().startswith("<?xml") and "<dc:date>" not in picture.read_text()


def test_raw_rows_and_a_table_with_intervals_are_written(folders: dict[str, Path]) -> None:
    with (folders["many"] / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (folders["many"] / "table.csv").open() as file:
        table = {(row["configuration"], row["figure"]): row for row in csv.DictReader(file)}

    # Two configurations, two policies, two seeds: of the preset's own world, of a changed one and of one without
    # interference.
    assert [row["world"] for row in rows].count("0") == 8
    assert [row["world"] for row in rows].count("calm") == [row["world"] for row in rows].count("1") == 8
    own = [float(row["dsr"]) for row in rows if row["world"] == "0" and row["policy"] == "smore"]
    mean = table["mean of all", "dsr.smore"]
    assert float(mean["mean"]) == pytest.approx(np.mean(own), rel=1e-5)
    assert float(mean["low"]) <= float(mean["mean"]) <= float(mean["high"])
    assert ("heavy", "sfd.edf-util") in table
    # Raw rows of every run of the own world, and of no other.
    assert len(list(folders["many"].glob("*.npz"))) == 8
    run = Result.read(folders["many"] / "heavy-seed1-edf-util.npz")
    row = next(
        row
        for row in rows
        if (row["world"], row["seed"], row["configuration"], row["policy"]) == ("0", "1", "heavy", "edf-util")
    )
    assert float((run.attempts > 0).mean()) == pytest.approx(float(row["admission"]))


def test_no_verdict_has_the_colour_of_a_policy() -> None:
    assert not {style[0] for style in VERDICT_STYLES.values()} & {style[0] for style in POLICY_STYLES}


def test_the_page_says_what_was_simulated_and_what_held(folders: dict[str, Path]) -> None:
    page = (folders["many"] / "index.html").read_text()

    assert "two GPUs &lt;and&gt; little load" in page
    assert "seeds 0 to 1" in page and "preset many, poisson at 3,000 a minute for 2 s" in page
    assert "deadlines met (DSR) of smore higher than edf-util&#x27;s" in page
    assert re.search("held|did not hold|cannot be said", page)
    # Deadlines met of all submitted and of all dispatched, and training lost, by configuration; the instances that
    # policies had.
    assert (
        page.count("by configuration: ") == 3
        and "effectiveness" in page
        and "Instances loaded on a GPU instance" in page
    )
    assert page.count("data:image/svg+xml;base64,") == 4
    assert "class='measured-panel'" not in page and "http" not in page.replace("http-equiv", "")


def test_the_page_explains_its_measures_and_stacks_its_tables(folders: dict[str, Path]) -> None:
    page = (folders["many"] / "index.html").read_text()

    measures = page.partition('<section id="measures">')[2]
    for name, measure in MEASURES.items():
        assert measure.definition.partition("'")[0] in measures, name
    # No table of them is wider than the page; what is an estimate, and how few the seeds are, stands there too.
    assert max(len(re.findall("<th[ >]", row)) for row in re.findall("<thead>.*?</thead>", page)) <= 7
    assert "counted, not estimated" in page and "2 seeds are few" in page
    assert escape(in_words("edf-util")) in page
    # On a narrow screen each cell carries its column's heading.
    assert 'data-label="DSR admitted"' in page and "@media (max-width: 640px)" in page
    assert "prefers-color-scheme: dark" in page
    assert '<a href="table.csv">' in page and '<a href="rows.csv">' in page


def test_what_a_policy_is_is_said_by_its_knobs() -> None:
    words = {name: in_words(name) for name in PRESETS}
    assert words.pop("smore-product-b10") == words["smore-product"]
    assert words["random-budget-b5"].startswith(
        "by arrival, on any GPU instance; what a training loses over time at most 5 %"
    )
    assert len({*words.values()}) == len(words), "policies that differ are told apart"
    assert words["elasticflow"].startswith("earliest deadline first, on the GPU instance of least predicted impact;")
    assert "at most 20 %" in words["smore-product-b20"] and "late invocations are executed" in words["random-all"]
    assert "own at most 95 %" in words["edf-util"] and "own at most 80 %" in in_words("edf-util:sm_cap=0.8")
    assert in_words("./mine.py:Mine").startswith("order and GPU instance by a placement rule of one's own")
    assert in_words("of-an-older-version") == ""


def test_an_undefined_figure_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No training runs, so trainings cannot lose: neither a number nor "one seed", but the reason and the seeds."""
    preset = write_preset(tmp_path / "idle.yaml", configurations={"": {"gpus": [{"count": 1}]}})
    out = tmp_path / "out"
    assert main(["compare", "--preset", preset, "--workers", "1", "--seeds", "2", "--out", str(out)]) == 0

    shown = capsys.readouterr().out
    assert "nan" not in shown.partition("{")[0]
    assert "SFD is undefined: all policies: no training ran in 2 of 2 seeds" in shown
    assert "lower than edf-util's: undefined, no training ran in 2 of 2 seeds" in shown
    page = (out / "index.html").read_text()
    assert "undefined<small>no training ran in 2 of 2 seeds</small>" in page
    assert "training lost is undefined: all policies: no training ran in 2 of 2 seeds" in page
    assert "nan" not in re.sub("base64,[^']*", "", page).replace("names", "")


def test_undefined_figures_are_told_by_policy() -> None:
    assert undefined_policies("cold", {"a": 0, "b": 0}, 5) == ""
    assert undefined_policies("cold", {"a": 5, "b": 0, "c": 5}, 5) == "a, c: nothing was dispatched in 5 of 5 seeds"
    both = undefined_policies("admission.bert", {"a": 1, "b": 2}, 5)
    assert both == "a: nothing of it was submitted in 1 of 5 seeds; b: nothing of it was submitted in 2 of 5 seeds"


def test_bars_that_differ_a_hundredfold_have_a_logarithmic_axis() -> None:
    for values, kind in (
        ([0.014, 0.983], "linear"),
        ([0.01, 1.6], "log"),
        ([0.0, 0.01, 1.6], "symlog"),
        ([], "linear"),
    ):
        axes = Figure().subplots()
        axes.bar(range(len(values)), values)
        scale(axes, [*values, math.nan])
        assert axes.get_yscale() == kind, values
        low, high = axes.get_ylim()
        assert all(value <= high for value in values) and all(value >= low for value in values)


def test_the_page_opens_in_the_browser_and_is_the_same_again(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def browser(url: str) -> bool:
        """Opens the first page alone."""
        opened.append(url)
        return len(opened) == 1

    monkeypatch.setattr("webbrowser.open", browser)
    assert main(["report", str(folders["sliced"]), "--out", str(tmp_path), "--open"]) == 0
    assert opened == [(tmp_path / "index.html").as_uri()]
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["report", str(folders["sliced"]), "--out", str(tmp_path), "--open"]) == 0
    assert "no browser opens" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    assert main(["compare", "--preset", write_preset(tmp_path / "x.yaml"), "--open"]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_report_puts_comparisons_together_and_measurements_apart(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "decision.json").write_text(
        "noise\n" + json.dumps({"command": "python -m lab.bench.decision", "figures": DECISION}) + "\n"
    )
    live = {
        "figures": {"dsr.smore": 0.9, "dsr.random": 0.5},
        "intervals": {"dsr.smore": {"low": 0.88, "high": 0.92}},
        "device": "a CPU",
    }
    (tmp_path / "live.json").write_text(json.dumps(live))
    measured = ["--decision", str(tmp_path / "decision.json"), "--measured", str(tmp_path / "live.json")]

    assert (
        main(["report", str(folders["one"]), str(folders["sliced"]), *measured, "--out", str(tmp_path / "page")]) == 0
    )

    assert capsys.readouterr().out.splitlines()[0] == str(tmp_path / "page" / "index.html")
    page = (tmp_path / "page" / "index.html").read_text()
    simulated, _, apart = page.partition('<section id="measured">')
    assert "measured-panel'" not in simulated.split("<main>")[1] and "kind simulated" not in apart
    assert apart.count("class='measured-panel'") == 2
    for preset in ("one", "sliced"):
        assert f'id="{preset}"' in simulated
        # In another folder the tables are copied beside the page.
        assert f'<a href="{preset}-table.csv">' in simulated
        table = tmp_path / "page" / f"{preset}-table.csv"
        assert table.read_bytes() == (folders[preset] / "table.csv").read_bytes()
    assert "after figure 17" in apart and "after figure 18" in simulated


def test_without_matplotlib_one_line_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("lab.research.compare.pictures", "lab.research.style"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr("lab.research.compare.pictures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert compare(tmp_path / "out", write_preset(tmp_path / "x.yaml"), "--seeds", "1") == 2

    error = capsys.readouterr().err.strip()
    assert "matplotlib is not installed" in error and "\n" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "decision.json:1: figures: the last line is no result of a benchmark"),
        ("[]", "decision.json:1: figures: the last line is no result of a benchmark"),
        ('a\n{"figures": {"p50_ms": 1}}', "decision.json:2: figures: none begins with full_us_ or sampled_us_"),
    ],
)
def test_what_is_no_measurement_is_refused(
    folders: dict[str, Path], tmp_path: Path, content: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "decision.json").write_text(content)

    assert (
        main(
            [
                "report",
                str(folders["one"]),
                "--decision",
                str(tmp_path / "decision.json"),
                "--out",
                str(tmp_path / "page"),
            ]
        )
        == 2
    )

    error = capsys.readouterr().err.strip()
    assert why in error and "\n" not in error


def test_a_folder_without_a_comparison_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page")]) == 2
    assert "comparison.json: No such file or directory" in capsys.readouterr().err
    (tmp_path / "comparison.json").write_text('{"version": 99}')
    with pytest.raises(section.BadReport, match="version: 1 is expected"):
        section.read(tmp_path)


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def test_utilisation_over_time_has_the_integral_that_the_run_had(tmp_path: Path) -> None:
    """Bins are exact: their mean is what the simulator integrated. Nothing is loaded in this run, and nothing fails."""
    found = load(write_preset(tmp_path / "x.yaml"))
    world = found.worlds["heavy"]
    given = traces.of({**found.trace, "rate_per_min": 12_000}, world, 3)
    result = simulate(world, given, factory("fifo"), seed=3)
    busy, alive = (result.gpus[:, GPU_COLUMNS.index(name)] for name in ("busy_s", "alive_s"))

    shared, alone = timeline.utilisation(world, result, 0.1)

    assert len(shared) == len(alone) == 20
    assert shared.mean() == pytest.approx(float((busy / alive).mean()), rel=1e-6)
    assert alone.tolist() == pytest.approx([0.82] * 20)
    assert (shared >= alone - 1e-9).all() and shared.max() <= 1.0 + 1e-9


def test_requests_and_admission_count_what_came(folders: dict[str, Path]) -> None:
    found = section.read(folders["one"])
    result = found.run("", "smore", 0)

    submitted, admitted = timeline.requests(result)
    share, total = timeline.admission([result, result], 1.0)

    assert submitted.sum() == len(result.status) and admitted.sum() == (result.attempts > 0).sum()
    assert share.shape == (2, 2) and (admitted <= submitted).all()
    for function in range(2):
        of = result.function == function
        assert total[function] == pytest.approx(float((result.attempts[of] > 0).mean()))
    gpus = timeline.by_gpu(result)
    assert gpus[0].exclusive == pytest.approx(0.25)
    assert gpus[0].admitted == pytest.approx(float((result.attempts > 0).mean()))
