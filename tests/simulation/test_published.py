"""
Public measurements: what becomes of each row, features against the architectures they are derived from, and bad files.
"""

import csv
import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.measure.layers import table_iii
from lab.simulation.published import _FUNCTIONS, _TRAININGS, gavel, gavel_loaded, load, parvagpu, parvagpu_loaded
from ml.predict.samples import SOLO
from ml.rows import FEATURES, BadRow
from zoo.model import card

DATA = Path(__file__).parents[2] / "ml" / "data" / "interference"

GAVEL = "gpu,model1,batch1,scale1,model2,batch2,scale2,solo_tput1,solo_tput2,coloc_tput1,coloc_tput2"
PARVA = "model,Mig instance,Batch size,Workload Number,Throughput,Latency"
NAMES = {"gavel_pairs": GAVEL, "parvagpu_a100": PARVA}
READERS = {"gavel_pairs": gavel, "parvagpu_a100": parvagpu}


def write(folder: Path, name: str, *lines: str) -> Path:
    (folder / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join((NAMES[name], *lines, "")).encode()))
    return folder


def rows(name: str) -> list[dict[str, str]]:
    with gzip.open(DATA / f"{name}.csv.gz", "rt") as file:
        return list(csv.DictReader(file))


def feature(table: np.ndarray, name: str) -> list[float]:
    return list(table[:, FEATURES.index(name)])


def test_gavel_takes_both_directions_of_a_row(tmp_path: Path) -> None:
    k80 = gavel(write(tmp_path, "gavel_pairs", "k80,ResNet-18,16.0,1,LM,5.0,1,4.0,20.0,2.0,16.0"))[0]

    assert (k80.name, k80.direction) == ("gavel-k80", "trainings")
    assert list(zip(k80.victims, k80.aggressors, k80.target, strict=True)) == [
        ("ResNet-18", "LM", 1.0),
        ("LM", "ResNet-18", pytest.approx(0.25)),
    ]
    assert k80.pair[0] == k80.pair[1]
    assert feature(k80.victim, "batch") == [16, 5]
    assert feature(k80.victim, "flops") == [16 * 3.329e9, 5 * 1.531e9]
    assert np.array_equal(k80.victim, k80.aggressor[::-1])
    solo = dict(zip(SOLO, k80.victim_solo[0], strict=True))
    assert {name: value for name, value in solo.items() if value == value} == {
        "mean_s": 0.25,
        "p50_s": 0.25,
        "busy_s": 0.25,
        "wait_s": 0,
    }


def test_a_mirror_and_a_copy_are_one_measurement_and_another_value_is_a_second_one(tmp_path: Path) -> None:
    row = "k80,ResNet-18,16.0,1,LM,5.0,1,4.0,20.0,2.0,16.0"
    mirror = "k80,LM,5.0,1,ResNet-18,16.0,1,20.0,4.0,16.0,2.0"
    again = "k80,LM,5.0,1,ResNet-18,16.0,1,20.0,4.0,10.0,2.0"
    [k80, _, _] = gavel_loaded(write(tmp_path, "gavel_pairs", row, mirror, row, again))

    assert (k80.rows, k80.unfit, k80.repeated, len(k80.samples)) == (4, 0, 2, 4)
    assert set(k80.samples.pair) == {0}


def test_a_training_beside_itself_is_one_sample_where_both_sides_are_alike(tmp_path: Path) -> None:
    alike = "k80,LM,5.0,1,LM,5.0,1,20.0,20.0,10.0,10.0"
    unlike = "k80,LM,10.0,1,LM,10.0,1,20.0,20.0,10.0,5.0"
    [k80, _, _] = gavel_loaded(write(tmp_path, "gavel_pairs", alike, unlike))

    assert list(k80.samples.target) == [1.0, 1.0, 3.0]
    assert list(k80.samples.pair) == [0, 1, 1]
    assert k80.repeated == 0


def test_gavel_leaves_out_what_did_not_fit_and_other_places(tmp_path: Path) -> None:
    parts = gavel_loaded(
        write(
            tmp_path,
            "gavel_pairs",
            "k80,ResNet-18,16.0,1,LM,5.0,1,4.0,20.0,0.0,0.0",
            "k80,ResNet-18,16.0,1,LM,10.0,1,4.0,20.0,2.0,0.0",
            "k80,ResNet-18,16.0,2,LM,5.0,2,4.0,20.0,2.0,16.0",
            "k80_unconsolidated,ResNet-18,16.0,1,LM,5.0,1,4.0,20.0,2.0,16.0",
            "v100,A3C,,1,CycleGAN,,1,4.0,20.0,2.0,16.0",
        )
    )

    assert [(part.samples.name, part.rows, part.unfit, len(part.samples)) for part in parts] == [
        ("gavel-k80", 2, 2, 0),
        ("gavel-p100", 0, 0, 0),
        ("gavel-v100", 1, 0, 2),
    ]
    assert feature(parts[2].samples.victim, "batch") == [1, 1]


def test_parvagpu_sets_a_process_beside_all_others(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        "parvagpu_a100",
        "bert,2,4,3,40.0,0.1",
        "bert,2,4,1,80.0,0.05",
        "bert,2,4,2,50.0,0.08",
        "bert,2,4,4,0.0,0.0",
        "bert,7,4,1,90.0,0.044",
        "bert,7,4,2,90.0,0.044",
        "bert,7,4,2,90.0,0.044",
    )
    small, large = parvagpu_loaded(folder)

    assert [small.samples.name, large.samples.name] == ["parvagpu-a100-2g", "parvagpu-a100-7g"]
    assert small.samples.direction == "functions"
    assert list(small.samples.target) == pytest.approx([1.0, 0.6])
    assert (small.rows, small.unfit, small.repeated) == (4, 1, 0)
    assert (large.rows, large.unfit, large.repeated, len(large.samples)) == (3, 0, 1, 1)
    assert set(small.samples.pair) == set(large.samples.pair) == {0}
    one, others = small.samples.victim[0], small.samples.aggressor[0]
    multiplied = {FEATURES[i] for i in np.flatnonzero(one != others)}
    assert multiplied == {"flops", "memory_bytes", "batch"}
    assert np.array_equal(others[one != others], 2 * one[one != others])
    assert small.samples.victim_solo[0][SOLO.index("mean_s")] == 0.05


def test_a_plain_file_is_read_too(tmp_path: Path) -> None:
    lines = (f"bert,1,1,{processes},10,0.1" for processes in (1, 2))
    (tmp_path / "parvagpu_a100.csv").write_text("\n".join((PARVA, *lines)))

    assert [len(samples.target) for samples in parvagpu(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("gavel_pairs", ["k80,ResNet-19,16,1,LM,5,1,4,20,2,16"], "gavel_pairs.csv.gz:2: .*'ResNet-19'"),
        ("gavel_pairs", ["k80,LM,5,1,bert,5,1,4,20,2,16"], ":2: .*'bert'"),
        (
            "gavel_pairs",
            ["k80,LM,5,1,LM,5,1,4,4,2,2", "k80,LM,5,1,LM,5,1,nan,4,2,2"],
            "gavel_pairs.csv.gz:3: solo_tput1 is 'nan'",
        ),
        ("gavel_pairs", ["k80,LM,5,1,LM,5,1,0,4,2,2"], ":2: solo_tput1 is '0'"),
        ("gavel_pairs", ["k80,LM,5,1,LM,5,1,4,4,2,-2"], ":2: coloc_tput2 is '-2'"),
        ("gavel_pairs", ["k80,LM,5,1,LM,5,1,4,4,2,fast"], ":2: .*'fast'"),
        ("gavel_pairs", ["k80,LM,5.5,1,LM,5,1,4,4,2,2"], ":2: batch1 is '5.5'"),
        ("gavel_pairs", ["k80,LM,,1,LM,5,1,4,4,2,2"], ":2: LM without a batch"),
        ("gavel_pairs", ["k80,LM,5,1,LM,5,1,4,4,2"], ":2: the row does not have as many cells"),
        ("gavel_pairs", ["k80,LM,5,1,LM,5,1,4,4,2,2,9,9"], ":2: the row does not have as many cells"),
        ("gavel_pairs", [], ":1: no row"),
        ("parvagpu_a100", ["gpt,1,1,1,10,0.1"], ":2: .*'gpt'"),
        ("parvagpu_a100", ["bert,1,1,1,10,0.1", "bert,1,1,2,10,inf"], ":3: Latency is 'inf'"),
        ("parvagpu_a100", ["bert,1,1,1,10,0.1", "bert,1,1,2,10,0.2"], ":3: a latency of 0.2 s does not go with"),
        ("parvagpu_a100", ["bert,1,1,1,10,0"], ":2: a latency"),
        ("parvagpu_a100", ["bert,1,1,1,0,0.1"], ":2: a latency"),
        ("parvagpu_a100", ["bert,1,1,2,10,0.1"], ":2: bert at batch 1 was not measured alone"),
        ("parvagpu_a100", ["bert,1,1,1,0,0", "bert,1,1,2,10,0.1"], ":3: bert at batch 1 was not measured alone"),
        (
            "parvagpu_a100",
            ["bert,1,1,1,10,0.1", "bert,1,1,1,20,0.05"],
            ":3: another throughput than in parvagpu_a100.csv.gz:2",
        ),
    ],
)
def test_a_bad_row_is_refused_with_its_place(tmp_path: Path, name: str, lines: list[str], message: str) -> None:
    with pytest.raises(BadRow, match=message):
        READERS[name](write(tmp_path, name, *lines))


@pytest.mark.parametrize(("name", "column"), [(name, column) for name in NAMES for column in NAMES[name].split(",")])
def test_a_missing_column_is_named(tmp_path: Path, name: str, column: str) -> None:
    row = {
        "gavel_pairs": "k80,LM,5,1,LM,5,1,4,4,2,2",
        "parvagpu_a100": "bert,1,1,1,10,0.1",
    }
    (tmp_path / f"{name}.csv").write_text(f"{NAMES[name].replace(column, 'other')}\n{row[name]}\n")

    with pytest.raises(BadRow, match=f"{name}.csv:2: the column '{column}' is missing"):
        READERS[name](tmp_path)


@pytest.mark.parametrize("kept", [5, 200, -9])
def test_a_cut_file_is_refused(tmp_path: Path, kept: int) -> None:
    write(tmp_path, "gavel_pairs", *(f"k80,LM,{n},1,ResNet-18,16,1,4.{n},4,2,2" for n in range(1, 200)))
    path = tmp_path / "gavel_pairs.csv.gz"
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(BadRow, match=r"gavel_pairs.csv.gz:\d+: "):
        gavel(tmp_path)


def test_a_damaged_file_and_one_that_is_not_packed_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "gavel_pairs", *(f"k80,LM,{n},1,ResNet-18,16,1,4.{n},4,2,2" for n in range(1, 200)))
    path = tmp_path / "gavel_pairs.csv.gz"
    whole = path.read_bytes()
    for damaged in (
        whole[:-8] + b"\0\0\0\0" + whole[-4:],
        whole[:40] + bytes(20) + whole[60:],
        b"plain",
        gzip.compress(b"gpu\n\xff\xfe\n"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(BadRow, match=r"gavel_pairs.csv.gz:\d+: "):
            gavel(tmp_path)


def test_a_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path)


@pytest.mark.parametrize(("name", "training"), [("ResNet-50", True), ("resnet50", False)])
def test_derived_features_are_those_that_the_zoo_measures(tmp_path: Path, name: str, training: bool) -> None:
    with torch.device("meta"):
        module = card("resnet50").build("paper").train(training)
        image = torch.ones(1, 3, 224, 224)

    def run() -> None:
        with torch.set_grad_enabled(training):
            answer = module(image)
        if training:
            answer.sum().backward()

    measured = table_iii(module, 1, run, training=training)
    if training:
        write(tmp_path, "gavel_pairs", f"k80,{name},1,1,{name},1,1,4,4,2,2")
        derived = gavel(tmp_path)[0].victim[0]
    else:
        write(tmp_path, "parvagpu_a100", f"{name},1,1,1,10,0.1", f"{name},1,1,2,5,0.2")
        derived = parvagpu(tmp_path)[0].victim[0]

    # The zoo's shortcut is a module even where it passes its input on, so that those outputs are counted there.
    memory = FEATURES.index("memory_bytes")
    assert derived[memory] == pytest.approx(measured.pop("memory_bytes"), rel=0.07)
    assert dict(zip(FEATURES, derived, strict=True)) | measured == pytest.approx(
        dict(zip(FEATURES, derived, strict=True)), rel=1e-3
    )


def test_parameters_are_those_of_the_published_architectures() -> None:
    lstm = 2 * (8 * 200 * 200 + 8 * 200)
    convolutions = (1 * 32 * 25 + 32) + (32 * 32 * 25 + 32) + (32 * 64 * 16 + 64) + (64 * 64 * 9 + 64)
    bert = 24 * (12 * 1024**2 + 13 * 1024) + (30528 + 512 + 2 + 2) * 1024 + 1024 * 1024 + 1024 + 2 * 1024 + 2
    attention, forward = 4 * (512 * 512 + 512) + 1024, 2 * 512 * 2048 + 2048 + 512 + 1024

    assert _TRAININGS["LM"].parameters == 33278 * 200 + lstm + 200 * 33278 + 33278
    assert _TRAININGS["Recommendation"].parameters == 2 * 20108 * 200 + 200 + 20108
    assert _TRAININGS["A3C"].parameters == convolutions + 4 * 512 * (1024 + 512) + 8 * 512 + 513 + 6 * 513
    assert _FUNCTIONS["bert"].parameters == bert
    assert _TRAININGS["Transformer"].parameters == 6 * (3 * attention + 2 * forward) + 2 * 3000 * 512 + 2 * 51 * 512


def test_costs_are_those_of_the_published_architectures() -> None:
    lm = 35 * (2 * 8 * 200 * 200 + 200 * 33278)
    attention = 2 * 128 * 128 * 1024
    bert = 24 * (12 * 1024**2 * 128 + attention) + 1024 * 1024 + 2 * 1024

    assert _TRAININGS["LM"].flops == pytest.approx(6 * lm, rel=0.01)
    assert _TRAININGS["Recommendation"].flops == pytest.approx((2 + 3) * 2 * 20108 * 200, rel=0.01)
    assert _FUNCTIONS["bert"].flops == pytest.approx(2 * bert, rel=0.01)


def test_gavel_counts_each_measurement_once() -> None:
    parts = gavel_loaded(DATA)

    # 26 configurations: 676 ordered pairs in the file. A pair of two configurations makes two samples, one beside
    # itself makes one.
    assert [(p.samples.name, p.rows, p.unfit, p.repeated, len(p.samples)) for p in parts] == [
        ("gavel-k80", 676, 87, 283, 589),
        ("gavel-p100", 676, 20, 316, 656),
        ("gavel-v100", 676, 40, 306, 636),
    ]
    for part in parts:
        samples = part.samples
        sides = Counter(zip(map(bytes, samples.victim), map(bytes, samples.aggressor), strict=True))
        assert set(sides.values()) == {1}
        assert set(Counter(samples.pair.tolist()).values()) == {1, 2}
        assert len(set(samples.victims)) == 7
    assert (parts[2].samples.target == 0).sum() > 0
    assert parts[2].samples.target.min() == 0


def test_gavel_targets_are_the_published_retentions_turned_over() -> None:
    published: dict[str, list[float]] = {}
    for row in rows("gavel_pairs"):
        if row["scale1"] == row["scale2"] == "1" and float(row["coloc_tput1"]):
            published.setdefault(f"gavel-{row['gpu']}", []).append(1 / float(row["retention1"]) - 1)

    # As victim first: the file's mirrors make one such row of every direction.
    for samples in gavel(DATA):
        assert sorted(samples.target) == pytest.approx(sorted(published[samples.name]))


def test_parvagpu_targets_are_the_published_latencies_without_their_rounding() -> None:
    latency = {tuple(row.values())[:4]: float(row["Latency"]) for row in rows("parvagpu_a100")}
    batches = FEATURES.index("batch")
    assert [(p.samples.name[-2:], p.rows, p.unfit, p.repeated, len(p.samples)) for p in parvagpu_loaded(DATA)] == [
        ("1g", 495, 239, 0, 189),
        ("2g", 495, 174, 0, 243),
        ("3g", 495, 123, 0, 283),
        ("4g", 495, 120, 0, 286),
        ("7g", 495, 72, 0, 326),
    ]
    for samples in parvagpu(DATA):
        for model, victim, aggressor, target in zip(
            samples.victims, samples.victim, samples.aggressor, samples.target, strict=True
        ):
            batch, others = int(victim[batches]), round(aggressor[batches] / victim[batches])
            key = (model, samples.name[-2], str(batch))
            alone, together = latency[*key, "1"], latency[*key, str(others + 1)]
            assert (together - 6e-4) / (alone + 6e-4) - 1 <= target <= (together + 6e-4) / (alone - 6e-4) - 1


def test_parvagpu_numbers_a_model_at_a_batch_alike_in_every_slice() -> None:
    names: dict[int, set[tuple[str, float]]] = {}
    for samples in parvagpu(DATA):
        for number, model, victim in zip(samples.pair, samples.victims, samples.victim, strict=True):
            names.setdefault(int(number), set()).add((model, victim[-1]))

    assert all(len(found) == 1 for found in names.values())
    assert len(names) == len(set.union(*names.values()))


def test_all_co_locations_come_together() -> None:
    assert [samples.name for samples in load(DATA)] == [
        *(f"gavel-{gpu}" for gpu in ("k80", "p100", "v100")),
        *(f"parvagpu-a100-{part}g" for part in (1, 2, 3, 4, 7)),
    ]
