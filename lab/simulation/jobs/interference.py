"""
The interference model: what jobs that share a GPU cost each other in a simulation; no rule sees it. Alone, a job takes
the time that its trace says.

``constant=X``: each takes X times as long beside another one. ``muri``: by the publisher's own times of CPU, GPU and
network in an iteration, the largest over the three of max(1, sum of busy shares) to the power of 1.1, times 1.02.
``gavel-v100``, ``gavel-p100``, ``gavel-k80``: measured pairs of trainings, of which each application stands for one at the
middle of the batches that were measured. They are of one GPU each, and stand for gangs too: all rows of more GPUs have no
throughput together. A pair that did not fit into memory is infinitely slow, and no rule is told of it.
"""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Final, Protocol

from lab.simulation.jobs.traces import SimulatedJob
from lab.simulation.rows import locate, read_number, read_rows
from lab.simulation.world import bad
from smore.traces.public import BUNDLED
from smore.traces.recorded import refuse

#: Of the law of Muri's pairs: how slowdowns grow with what is asked of a resource, and what sharing itself costs.
EXPONENT, OVERHEAD = 1.1, 1.02
GAVEL_GPUS: Final = ("v100", "p100", "k80")
#: Which of Gavel's trainings stands for an application of Pollux's workloads.
GAVEL_MODELS: Final[Mapping[str, str]] = {
    "imagenet": "ResNet-50",
    "yolov3": "CycleGAN",
    "deepspeech2": "LM",
    "bert": "Transformer",
    "cifar10": "ResNet-18",
    "ncf": "Recommendation",
}


class InterferenceModel(Protocol):
    """What co-location really costs."""

    def slowdown(self, job: SimulatedJob, beside: Sequence[SimulatedJob]) -> float:
        """How many times longer an iteration of ``job`` takes with others on its slowest GPU; 1 alone."""
        ...

    def workload(self, job: SimulatedJob) -> str:
        """What it is to a rule: jobs that cost others the same, and others them, have the same name."""
        ...


class Constant:
    """The same for every pair."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def slowdown(self, job: SimulatedJob, beside: Sequence[SimulatedJob]) -> float:
        del job  # whatever it is
        return self._factor if beside else 1.0

    def workload(self, job: SimulatedJob) -> str:
        del job
        return "any"


class Muri:
    """By the busy shares of each resource."""

    def slowdown(self, job: SimulatedJob, beside: Sequence[SimulatedJob]) -> float:
        if not beside:
            return 1.0
        everybody = (job, *beside)
        missing = next((one.id for one in everybody if not one.busy_s), None)
        if missing is not None:
            raise bad("truth", f"muri needs times of CPU, GPU and network, and {missing} has none")
        shares = [sum(one.busy_s[place] / one.iteration_s for one in everybody) for place in range(len(job.busy_s))]
        return OVERHEAD * float(max(1.0, *shares) ** EXPONENT)

    def workload(self, job: SimulatedJob) -> str:
        shares = ",".join(f"{busy_s / job.iteration_s:.6g}" for busy_s in job.busy_s)
        return f"{job.model}/{job.batch}@{job.gpus}:{shares}"


class Gavel:
    """By the measured pairs of a file (columns of Gavel's publishers) on one kind of GPU."""

    def __init__(self, path: Path, gpu: str) -> None:
        names = (
            "gpu",
            *(f"{field}{side}" for field in ("model", "batch", "scale", "solo_tput", "coloc_tput") for side in "12"),
        )
        rows = [
            (line, row)
            for line, row in read_rows(path, names)
            if row["gpu"] == gpu and all(float(row["scale" + side] or 0) == 1 for side in "12")
        ]
        if not rows:
            raise refuse(path, 0, "gpu", f"no row of {gpu}")
        batches: dict[str, set[str]] = {}
        for _, row in rows:
            for side in "12":
                batches.setdefault(row["model" + side], set()).add(row["batch" + side])
        middle = {
            model: sorted(measured, key=lambda batch: float(batch or 0))[len(measured) // 2]
            for model, measured in batches.items()
        }
        #: (training, the other one) → slowdown of the former.
        self._pairs: dict[tuple[str, str], float] = {}
        for line, row in rows:
            if any(row["batch" + side] != middle[row["model" + side]] for side in "12"):
                continue
            for side, other in ("12", "21"):
                alone, together = (
                    read_number(path, line, field + side, row[field + side]) for field in ("solo_tput", "coloc_tput")
                )
                pair = row["model" + side], row["model" + other]
                self._pairs[pair] = max(1.0, alone / together) if together else inf

    def slowdown(self, job: SimulatedJob, beside: Sequence[SimulatedJob]) -> float:
        return max((self._of_pair(job, other) for other in beside), default=1.0)

    def _of_pair(self, job: SimulatedJob, other: SimulatedJob) -> float:
        models = []
        for one in (job, other):
            if one.model not in GAVEL_MODELS:
                raise bad("truth", f"gavel knows the applications {', '.join(GAVEL_MODELS)}, not {one.model!r}")
            models.append(GAVEL_MODELS[one.model])
        return self._pairs.get((models[0], models[1]), inf)

    def workload(self, job: SimulatedJob) -> str:
        return job.model


def interference_of(name: str, among: Sequence[Path] = (BUNDLED,)) -> InterferenceModel:
    """``muri``, ``constant=1.25`` or ``gavel-v100``; files are looked for in the folders ``among``. Raises BadWorld."""
    kind, _, value = name.partition("=")
    if name == "muri":
        return Muri()
    if name.removeprefix("gavel-") in GAVEL_GPUS and name.startswith("gavel-"):
        return Gavel(locate("interference/gavel_pairs.csv", among), name.removeprefix("gavel-"))
    try:
        factor = float(value) if kind == "constant" else 0.0
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor < 1000.0:
        raise bad(
            "truth",
            f"muri, gavel-v100, gavel-p100, gavel-k80 or constant=X with X of at least 1 is expected, not {name!r}",
        )
    return Constant(factor)
