"""A simulated cluster for trainings, and the presets that describe one with its jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.simulation.jobs.interference import InterferenceModel, interference_of
from lab.simulation.world import Reader, read_preset
from scheduler.policy.jobs.spec import MicroBatches
from smore.traces.public import BUNDLED

PRESETS: Final = Path(__file__).parent / "presets"
DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWorld:
    """
    ``nodes`` of ``gpus`` GPU instances each, all of one kind. ``resume_s``: from the start of an attempt after the first
    until it goes on from its checkpoint. ``checkpoint_s``: an attempt that fails goes on from its last whole multiple of
    it (0: from where it was; one that is stopped for another job always does). ``restarts`` that owners allow.

    A node fails after an exponential time of mean ``node_days`` (0 = never) for ``repair_h``; its GPU instances count as
    lost after ``silent_s``. An attempt fails of itself with the probability ``attempts``. ``lengths``: owners say a
    length times e to the power of a normal error with this deviation; 0 = lengths are known exactly. ``share``: what each
    owner allows (JobRequest.share). ``noise``: the deviation of the logarithm of predicted over real slowdowns, drawn once for
    each pair and seed; 0 = they are known exactly. ``micro_batches``: in how many parts owners let a batch be run beside
    another job; of a job's memory the part ``per_row_memory`` is that of the rows which are there at a time, and each part
    after the first makes an iteration longer by ``part_cost``.
    """

    name: str
    nodes: int
    gpus: int
    device: str
    memory_mib: float
    interference: InterferenceModel
    resume_s: float = 0.0
    checkpoint_s: float = 0.0
    restarts: int = 0
    node_days: float = 0.0
    repair_h: float = 1.0
    attempts: float = 0.0
    silent_s: float = 60.0
    lengths: float = 0.0
    share: float = 0.0
    noise: float = 0.0
    micro_batches: tuple[int, ...] = ()
    per_row_memory: float = 0.0
    part_cost: float = 0.0

    def ways(self, memory_mib: float) -> tuple[MicroBatches, ...]:
        """How a job of this memory may run its batch in parts."""
        return tuple(
            MicroBatches(
                count=count,
                memory_mib=memory_mib * (1 - self.per_row_memory * (1 - 1 / count)),
                factor=1 + self.part_cost * (count - 1),
            )
            for count in self.micro_batches
        )

    @property
    def size(self) -> int:
        return self.nodes * self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPreset:
    """
    A world, its trace as a document (traces.py), and the policies that are compared by default, the first judged.
    ``truths``: the interference models under which each policy runs; the world has the first.
    """

    about: str
    world: JobWorld
    trace: Mapping[str, Any]
    policies: tuple[str, ...]
    truths: tuple[str, ...]


def job_presets() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def is_of_jobs(name: str) -> bool:
    """Whether a preset, or a .yaml file by its path, is of trainings: it describes a ``cluster``. Raises BadWorld."""
    if name.endswith((".yaml", ".yml")):
        _, raw = read_preset(name, PRESETS, ())
        return isinstance(raw, Mapping) and "cluster" in raw
    return name in job_presets()


def load_job_preset(
    name: str,
    *,
    truth: str = "",
    lengths: float = 0.0,
    noise: float = 0.0,
    among: Sequence[Path] = (BUNDLED,),
) -> JobPreset:
    """
    A preset of trainings by its name, or a .yaml file of that form by its path, with another interference model, wrong
    lengths or wrong predictions; files are looked for in the folders ``among``. Raises BadWorld.
    """
    path, raw = read_preset(name, PRESETS, job_presets())
    reader = Reader(raw, "")
    about = reader.word("about", "")
    cluster = Reader(reader.take("cluster", {}), "cluster")
    failures = Reader(reader.take("failures", {}), "failures")
    parts = Reader(reader.take("micro_batches", {}), "micro_batches")
    own = [str(one) for _, one in reader.items("truths")] or [reader.word("truth", "constant=1")]
    truths = (truth,) if truth else tuple(own)
    world = JobWorld(
        name=path.stem,
        nodes=cluster.whole("nodes", 8, 1, 10_000),
        gpus=cluster.whole("gpus", 8, 1, 10_000),
        device=cluster.word("device", "V100"),
        memory_mib=cluster.number("memory_mib", 32_768, 1, 1e9),
        interference=interference_of(truths[0], among),
        resume_s=reader.number("resume_s", 0, 0, 1e6),
        checkpoint_s=reader.number("checkpoint_s", 0, 0, 1e9),
        restarts=reader.whole("restarts", 0, 0, 1000),
        node_days=failures.number("node_days", 0, 0, 1e6),
        repair_h=failures.number("repair_h", 1, 0, 1e6),
        attempts=failures.number("attempts", 0, 0, 0.99),
        lengths=lengths,
        share=reader.number("share", 0, 0, 1e6),
        noise=noise,
        micro_batches=tuple(int(count) for _, count in parts.items("counts")),
        per_row_memory=parts.number("per_row_memory", 0, 0, 1),
        part_cost=parts.number("part_cost", 0, 0, 10),
    )
    trace, policies = reader.take("trace", {}), reader.take("policies", [])
    for part in (reader, cluster, failures, parts):
        part.end()
    return JobPreset(about=about, world=world, trace=trace, policies=tuple(map(str, policies)), truths=truths)
