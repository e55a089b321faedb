"""
Interference models of what others have measured: ``python -m lab.simulation.outside`` writes them to ``data/``.

Nobody has measured our eight models beside each other on a GPU. In each of these worlds a workload of ours has a
*stand-in* among those that were measured, and keeps its own run time, so that arrivals and deadlines are those of the
other worlds and interference alone differs:

``gavel-v100``
    Gavel's pairs of trainings on a V100 (lab/simulation/published.py): what each loses to each as measured, several added up.
    A function's stand-in is a training too, so it weighs as long as it runs. Demands of SMs, which Gavel does not
    publish, are those of ``digest``, so no check of SMs knows anything of what is lost. A pair that did not fit
    into the memory is taken as the dearest that was measured of its victim.
``parvagpu-a100``
    ParvaGPU's one to five processes of a model under MPS on a whole A100: the law of ``digest`` with the exponent 0.95
    (its rows fit 0.9 to 1.0) and for each model and batch the demand that comes nearest to its rows. What an inference in
    a closed loop demands stands for what a training of the batch demands.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from lab.simulation import published
from lab.simulation.fit import lines
from lab.simulation.interference import BATCHES, DATA, MODELS, ROLES, InterferenceModel, encode
from ml.predict.samples import Samples

#: Where the publishers' rows are.
ROWS: Final = Path(__file__).parents[2] / "ml" / "data" / "interference"

_GAVEL: Final[Mapping[str, str]] = {
    "vgg16": "ResNet-50",
    "mobilenet": "ResNet-18",
    "deepvit": "Transformer",
    "resnet50": "ResNet-50",
    "bert": "LM",
    "roberta": "Transformer",
    "deepfm": "Recommendation",
    "segnet": "CycleGAN",
}
_PARVA: Final[Mapping[str, str]] = {
    "vgg16": "vgg16",
    "mobilenet": "mobilenetv2",
    "deepvit": "inceptionv3",
    "resnet50": "resnet50",
    "bert": "bert",
    "roberta": "bert",
    "deepfm": "mobilenetv2",
    "segnet": "vgg19",
}
_BATCH: Final = 11  # of FEATURES
_EXPONENT: Final = 0.95
#: Demands that are tried.
_STEP: Final = 0.01


def gavel_v100(folder: Path = ROWS) -> InterferenceModel:
    samples = next(one for one in published.gavel(folder) if one.name == "gavel-v100")
    lost: dict[str, dict[str, float]] = {}
    sizes: dict[str, set[int]] = {}
    for number, (victim, aggressor) in enumerate(zip(samples.victims, samples.aggressors, strict=True)):
        names = [
            f"{model}/{int(side[number, _BATCH])}"
            for model, side in ((victim, samples.victim), (aggressor, samples.aggressor))
        ]
        lost.setdefault(names[0], {})[names[1]] = max(0.0, float(samples.target[number]))
        sizes.setdefault(victim, set()).add(int(samples.victim[number, _BATCH]))
    model = InterferenceModel(name="gavel-v100")
    measured = {}
    for name in MODELS:
        batches = sorted(sizes[_GAVEL[name]])
        for role in ROLES:
            for position, batch in enumerate(BATCHES[role]):
                stand_in = f"{_GAVEL[name]}/{batches[min(position, len(batches) - 1)]}"
                measured[f"{name}/{model.preset}/{role}/{batch}"] = replace(model.use(name, role, batch), name=stand_in)
    used = sorted({use.name for use in measured.values()})
    pairs = {one: {other: round(lost[one].get(other, max(lost[one].values())), 4) for other in used} for one in used}
    return replace(model, measured=measured, pairs=pairs)


def parvagpu_a100(folder: Path = ROWS) -> InterferenceModel:
    samples = next(one for one in published.parvagpu(folder) if one.name == "parvagpu-a100-7g")
    model = InterferenceModel(name="parvagpu-a100")
    law = replace(model.function, exponent=_EXPONENT)
    measured = {}
    for name in MODELS:
        for role in ROLES:
            for batch in BATCHES[role]:
                measured[f"{name}/{model.preset}/{role}/{batch}"] = replace(
                    model.use(name, role, batch), u=_demand(samples, _PARVA[name], batch)
                )
    return replace(model, training=law, function=law, measured=measured)


def _demand(samples: Samples, model: str, batch: int) -> float:
    """That comes nearest in logarithms to the slowdowns of all numbers of processes that were measured."""
    own = [
        number
        for number, victim in enumerate(samples.victims)
        if victim == model and int(samples.victim[number, _BATCH]) == batch
    ]
    processes = 1 + samples.aggressor[own, _BATCH] / batch
    demands = np.arange(_STEP, 1.0 + _STEP / 2, _STEP)
    fitted = _EXPONENT * np.log(np.maximum(1.0, demands[:, None] * processes[None, :]))
    errors = ((fitted - np.log1p(samples.target[own])[None, :]) ** 2).sum(axis=1)
    return round(float(demands[int(errors.argmin())]), 2)


def main() -> None:
    for made in (gavel_v100(), parvagpu_a100()):
        document = {"command": "python -m lab.simulation.outside", "truth": encode(made)}
        (DATA / f"{made.name}.json").write_text(lines(json.loads(json.dumps(document))) + "\n")


if __name__ == "__main__":
    main()
