"""
Public measurements of co-location, to try predictors on data that nobody here has measured: tables of the publishers'
numbers.

========================= ===================================================================== ================================
file (.csv.gz or .csv)    what it is                                                            publisher
========================= ===================================================================== ================================
gavel_pairs               steps/s of two trainings on one GPU, and of each alone                Gavel, OSDI'20, MIT
parvagpu_a100             items/s of 1 to 5 processes of one model under MPS in a MIG instance  ParvaGPU, SC'24, MIT
========================= ===================================================================== ================================

None of them publishes the features of table III: they are derived here from the published architectures, see
``_ARCHITECTURES``. All functions raise BadRow, with file and line, for a file that is cut or has a row that cannot be
used; OSError where there is no file.
"""

import csv
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from ml.predict.samples import SOLO, Direction, Floats, Samples
from ml.rows import FEATURES, BadRow

T = TypeVar("T")
GPUS = ("k80", "p100", "v100")


class _Architecture(NamedTuple):
    """
    ``flops`` of one sample (twice the multiply-accumulates; forward and backward of a training, forward of a function),
    ``parameters``, ``outputs``: numbers that the layers put out for one sample in the forward pass. ``layers``:
    activations, conv, linear, norm, relu, embedding, pooling, dropout; an LSTM is none of these. ``batch``: the
    publisher's where its rows name none.
    """

    flops: float
    parameters: int
    outputs: int
    layers: tuple[int, int, int, int, int, int, int, int]
    source: str
    batch: int | None = None


#: Derived, not measured: counted with torch's FLOP counter and the rules of lab.measure.layers on each architecture as
#: its source describes it, in the size in which the publisher's scripts run it. Trainings first (Gavel), then functions
#: (ParvaGPU; images of 224 x 224, Inception too). Transformer: 32 tokens and 3,000 words a side are an assumption; the
#: tables of words are 7 % of its parameters. LM: a sample is 35 tokens, of 33,278 words. BERT: 128 tokens.
#: Recommendation: one hidden layer of 200 and all 20,108 films, where the publisher leaves out those that no user of a
#: batch has seen. A3C: a sample is a step of the job, 20 frames in each of 4 workers. CycleGAN: a step of both
#: generators and both discriminators.
_TRAININGS: Mapping[str, _Architecture] = {
    "ResNet-18": _Architecture(
        3.329e9, 11_173_962, 1_851_914, (9, 20, 1, 20, 9, 0, 1, 0), "arXiv:1512.03385 table 1; CIFAR: 3x3 stem"
    ),
    "ResNet-50": _Architecture(
        2.430e10, 25_557_032, 32_040_424, (17, 53, 1, 53, 17, 0, 2, 0), "arXiv:1512.03385 table 1, ImageNet"
    ),
    "Transformer": _Architecture(
        8.864e9, 47_262_720, 4_388_608, (30, 0, 97, 30, 12, 4, 0, 48), "arXiv:1706.03762 table 3, base"
    ),
    "LM": _Architecture(
        1.531e9, 13_987_678, 1_297_730, (0, 0, 1, 0, 0, 1, 0, 2), "PyTorch word_language_model; words: arXiv:1609.07843"
    ),
    "Recommendation": _Architecture(
        4.022e7, 8_063_508, 40_616, (1, 0, 2, 0, 0, 0, 0, 1), "Recoder autoencoder; films: arXiv:1802.05814"
    ),
    "A3C": _Architecture(
        2.742e10, 3_249_639, 33_516_080, (4, 4, 2, 0, 4, 0, 4, 0), "arXiv:1602.01783; network of rl_a3c_pytorch", 1
    ),
    "CycleGAN": _Architecture(
        2.099e12, 28_285_832, 784_355_976, (38, 58, 0, 52, 28, 0, 0, 0), "arXiv:1703.10593 section 7, 256 x 256", 1
    ),
}
_FUNCTIONS: Mapping[str, _Architecture] = {
    "resnet50": _Architecture(
        8.178e9, 25_557_032, 32_040_424, (17, 53, 1, 53, 17, 0, 2, 0), "arXiv:1512.03385 table 1"
    ),
    "resnet101": _Architecture(
        1.560e10, 44_549_160, 47_394_280, (34, 104, 1, 104, 34, 0, 2, 0), "arXiv:1512.03385 table 1"
    ),
    "resnet152": _Architecture(
        2.303e10, 60_192_808, 66_360_808, (51, 155, 1, 155, 51, 0, 2, 0), "arXiv:1512.03385 table 1"
    ),
    "vgg16": _Architecture(
        3.094e10, 138_357_544, 28_676_072, (15, 13, 3, 0, 15, 0, 6, 2), "arXiv:1409.1556 table 1, D"
    ),
    "vgg19": _Architecture(
        3.926e10, 143_667_240, 31_285_224, (18, 16, 3, 0, 18, 0, 6, 2), "arXiv:1409.1556 table 1, E"
    ),
    "densenet121": _Architecture(
        5.668e9, 7_978_856, 38_561_256, (121, 120, 1, 121, 121, 0, 5, 0), "arXiv:1608.06993 table 1"
    ),
    "densenet169": _Architecture(
        6.720e9, 14_149_480, 45_648_616, (169, 168, 1, 169, 169, 0, 5, 0), "arXiv:1608.06993 table 1"
    ),
    "densenet201": _Architecture(
        8.583e9, 20_013_928, 57_565_416, (201, 200, 1, 201, 201, 0, 5, 0), "arXiv:1608.06993 table 1"
    ),
    "inceptionv3": _Architecture(
        5.676e9, 27_161_264, 14_256_728, (96, 96, 2, 96, 96, 0, 14, 1), "arXiv:1512.00567 table 1 + auxiliary"
    ),
    "mobilenetv2": _Architecture(
        6.015e8, 3_504_872, 19_464_296, (35, 52, 1, 52, 35, 0, 1, 1), "arXiv:1801.04381 table 2"
    ),
    "bert": _Architecture(
        7.892e10, 335_150_082, 66_718_722, (49, 0, 146, 49, 0, 3, 0, 74), "arXiv:1810.04805 section 3, large"
    ),
}
_ARCHITECTURES: Mapping[Direction, Mapping[str, _Architecture]] = {"trainings": _TRAININGS, "functions": _FUNCTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """
    Samples, and the numbers of the file's rows for one device: ``rows`` read, ``unfit`` of them that did not fit into
    memory, ``repeated`` of them that repeat an earlier row. Neither of the two makes a sample.
    """

    samples: Samples
    rows: int
    unfit: int
    repeated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A workload in a row: steps (Gavel) or runs (ParvaGPU) a second, alone and together with the other workload."""

    model: str
    batch: int
    alone: float
    together: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """A victim beside ``others`` copies of the aggressor."""

    victim: _Side
    aggressor: _Side
    others: int = 1
    pair: int


def load(folder: Path) -> list[Samples]:
    """All co-locations of :func:`gavel` and :func:`parvagpu`. Try a predictor on each device separately."""
    return [*gavel(folder), *parvagpu(folder)]


def gavel(folder: Path) -> list[Samples]:
    """
    Two trainings on one GPU, direction "trainings": ``gavel-k80``, ``gavel-p100``, ``gavel-v100``; see
    :func:`gavel_loaded`.
    """
    return [part.samples for part in gavel_loaded(folder)]


def parvagpu(folder: Path) -> list[Samples]:
    """
    A function beside copies of itself, direction "functions": ``parvagpu-a100-1g`` to ``7g``; see
    :func:`parvagpu_loaded`.
    """
    return [part.samples for part in parvagpu_loaded(folder)]


def gavel_loaded(folder: Path) -> list[Loaded]:
    """
    Both sides of a row are victims of each other: throughput alone over throughput together, minus 1. Jobs of one
    worker only.

    The file has each pair in both orders with the same numbers, which is one measurement and counts once. A pair has
    one pair number in both directions and on all three GPUs. For the V100 the publisher clips retention at 1, so no
    degradation there is negative and some are exactly 0. A throughput gives the mean time of a step, which also stands
    for the median and the busy time; the tail is unknown.
    """
    rows = [row for _, row in _read(folder, "gavel_pairs", _gavel_row) if row is not None]
    pair_numbers: dict[frozenset[tuple[str, int]], int] = {}
    loaded = []
    for gpu in GPUS:
        of_gpu = [row for row in rows if row[0] == gpu]
        fit = [sides for _, *sides in of_gpu if all(side.together for side in sides)]
        by_sides: dict[tuple[_Side, _Side], _Sample] = {}
        repeated = 0
        for first, second in fit:
            pair = pair_numbers.setdefault(
                frozenset(((first.model, first.batch), (second.model, second.batch))), len(pair_numbers)
            )
            repeated += (first, second) in by_sides
            by_sides[first, second] = _Sample(victim=first, aggressor=second, pair=pair)
            by_sides[second, first] = _Sample(victim=second, aggressor=first, pair=pair)
        samples = _samples(f"gavel-{gpu}", "trainings", list(by_sides.values()))
        loaded.append(Loaded(samples=samples, rows=len(of_gpu), unfit=len(of_gpu) - len(fit), repeated=repeated))
    return loaded


def _gavel_row(row: Mapping[str, str]) -> tuple[str, _Side, _Side] | None:
    """GPU and both sides; None for another kind of GPU or for jobs with more than one worker."""
    if row["gpu"] not in GPUS or (_whole(row, "scale1"), _whole(row, "scale2")) != (1, 1):
        return None
    first, second = (_gavel_side(row, number) for number in "12")
    return row["gpu"], first, second


def _gavel_side(row: Mapping[str, str], number: str) -> _Side:
    model = row["model" + number]
    batch = _architecture("trainings", model).batch
    if row["batch" + number]:
        batch = _whole(row, "batch" + number)
    elif batch is None:
        raise BadRow(f"{model} without a batch")
    alone, together = _number(row, "solo_tput" + number, positive=True), _number(row, "coloc_tput" + number)
    return _Side(model=model, batch=batch, alone=alone, together=together)


def parvagpu_loaded(folder: Path) -> list[Loaded]:
    """
    One of k processes of a model at a batch is the victim, the k - 1 others together are the aggressor, for k of 2 to
    5.

    The aggressor's FLOPs, memory and batch are k - 1 times those of one process; its other features are those of one
    process. The target is latency among k over latency alone, minus 1. Latency is batch / throughput: the published
    latency is that, rounded to whole milliseconds, which is too coarse for a run of 5 ms (a row in which the two
    disagree is refused). The latency is a mean, not the P99 that this direction has elsewhere; it also stands for the
    median and the busy time. Targets are raw: noise makes some negative.

    A pair is a model at a batch, with one number over all k and all slices. Its samples are therefore not repeats of
    one measurement, and ``lab.research.predictor.noise.noise_rmsle`` does not apply. Rows of k = 1 are the reference and make
    no sample.
    """
    throughputs: dict[tuple[int, str, int, int], tuple[str, float]] = {}
    rows, unfit, repeated = Counter[int](), Counter[int](), Counter[int]()
    for where, (key, throughput) in _read(folder, "parvagpu_a100", _parvagpu_row):
        first, first_throughput = throughputs.setdefault(key, (where, throughput))
        if first_throughput != throughput:
            raise BadRow(f"{where}: another throughput than in {first}")
        rows[key[0]] += 1
        unfit[key[0]] += not throughput
        repeated[key[0]] += bool(throughput) and first != where
    pair_numbers: dict[tuple[str, int], int] = {}
    samples: dict[int, list[_Sample]] = {part: [] for part in sorted(rows)}
    for (part, model, batch, processes), (where, throughput) in throughputs.items():
        if processes == 1 or not throughput:
            continue
        _, alone = throughputs.get((part, model, batch, 1), ("", 0.0))
        if not alone:
            raise BadRow(f"{where}: {model} at batch {batch} was not measured alone in {part}g")
        side = _Side(model=model, batch=batch, alone=alone / batch, together=throughput / batch)
        pair = pair_numbers.setdefault((model, batch), len(pair_numbers))
        samples[part].append(_Sample(victim=side, aggressor=side, others=processes - 1, pair=pair))
    arrays = {part: _samples(f"parvagpu-a100-{part}g", "functions", samples[part]) for part in samples}
    return [
        Loaded(samples=arrays[part], rows=rows[part], unfit=unfit[part], repeated=repeated[part]) for part in arrays
    ]


def _parvagpu_row(row: Mapping[str, str]) -> tuple[tuple[int, str, int, int], float]:
    """(sevenths of the GPU, model, batch, processes) and the throughput of one process."""
    _architecture("functions", row["model"])
    part, batch, processes = (_whole(row, name) for name in ("Mig instance", "Batch size", "Workload Number"))
    throughput, latency = _number(row, "Throughput"), _number(row, "Latency")
    if not throughput == latency == 0 and (throughput == 0 or abs(latency - batch / throughput) > 1e-3):
        raise BadRow(f"a latency of {latency} s does not go with a throughput of {throughput}")
    return (part, row["model"], batch, processes), throughput


def _samples(name: str, direction: Direction, samples: list[_Sample]) -> Samples:
    """The arrays of ``samples`` in their order."""
    return Samples(
        name=name,
        direction=direction,
        victim=np.array([_features(direction, s.victim) for s in samples]).reshape(-1, len(FEATURES)),
        aggressor=np.array([_features(direction, s.aggressor, s.others) for s in samples]).reshape(-1, len(FEATURES)),
        victim_solo=np.array([_solo(s.victim) for s in samples]).reshape(-1, len(SOLO)),
        aggressor_solo=np.array([_solo(s.aggressor) for s in samples]).reshape(-1, len(SOLO)),
        target=np.array([s.victim.alone / s.victim.together - 1 for s in samples], float),
        victims=[s.victim.model for s in samples],
        aggressors=[s.aggressor.model for s in samples],
        pair=np.array([s.pair for s in samples], np.int64),
    )


def _features(direction: Direction, side: _Side, copies: int = 1) -> Floats:
    """
    Table III [12] of ``copies`` processes.

    Memory is an estimate like that of lab.measure.layers, at four bytes a number: the outputs of all layers, and the
    parameters (three times in a training: with gradients and the optimiser's first moment).
    """
    architecture = _ARCHITECTURES[direction][side.model]
    memory = 4 * (architecture.parameters * (3 if direction == "trainings" else 1) + architecture.outputs * side.batch)
    return np.array(
        [
            architecture.flops * side.batch * copies,
            architecture.parameters,
            memory * copies,
            *architecture.layers,
            side.batch * copies,
        ],
        float,
    )


def _solo(side: _Side) -> Floats:
    """:data:`SOLO` as far as a throughput gives it: seconds of a step, all of them busy."""
    seconds = 1 / side.alone
    values = {"mean_s": seconds, "p50_s": seconds, "busy_s": seconds, "wait_s": 0.0}
    return np.array([values.get(name, math.nan) for name in SOLO])


def _architecture(direction: Direction, model: str) -> _Architecture:
    if model not in _ARCHITECTURES[direction]:
        raise BadRow(f"unknown model {model!r}")
    return _ARCHITECTURES[direction][model]


def _number(row: Mapping[str, str], name: str, *, positive: bool = False) -> float:
    """A finite number that is not negative."""
    number = float(row[name])
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise BadRow(f"{name} is {row[name]!r}")
    return number


def _whole(row: Mapping[str, str], name: str) -> int:
    """A whole number of at least 1; the publishers write some as 16.0."""
    number = _number(row, name, positive=True)
    if number != int(number):
        raise BadRow(f"{name} is {row[name]!r}")
    return int(number)


def _read(folder: Path, name: str, parse: Callable[[Mapping[str, str]], T]) -> list[tuple[str, T]]:
    """The parsed rows of a table, each with its position ``file:line``."""
    packed = folder / f"{name}.csv.gz"
    path = packed if packed.exists() else packed.with_suffix("")
    rows: list[tuple[str, T]] = []
    with (gzip.open if path == packed else open)(path, "rt", encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise BadRow("the row does not have as many cells as the header")
                rows.append((f"{path.name}:{reader.line_num}", parse(row)))
            if not rows:
                raise BadRow("no row")
        except KeyError as error:
            raise BadRow(f"{path.name}:{reader.line_num}: the column {error.args[0]!r} is missing") from error
        except (ValueError, EOFError, zlib.error, gzip.BadGzipFile, csv.Error) as error:
            raise BadRow(f"{path.name}:{max(1, reader.line_num)}: {error}") from error
    return rows
