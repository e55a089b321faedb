"""
What a run is about: GPU instances with their trainings, functions, the monitor, failures; read from a document that is
checked field by field.

A world is data. Presets of worlds stand in ``presets/``; :func:`load` reads one, :func:`parse` any mapping of that
form. Whatever cannot be is refused with :class:`BadWorld`, whose message and ``field`` name the place.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import yaml
from numpy.typing import NDArray

from lab.simulation import interference as models
from lab.simulation.counter import read
from lab.simulation.interference import CONTEXT_MIB, Contention, InterferenceModel, Use
from smore.domain.errors import InvalidSpec
from smore.domain.function import FunctionSpec, Profile, WorkClass
from smore.domain.spelling import did_you_mean
from smore.domain.workload import CONSERVATIVE

PRESETS: Final = Path(__file__).parent / "presets"

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_WORD = re.compile(r"([a-z0-9]+)/([1-9][0-9]{0,5})")


class BadWorld(InvalidSpec):
    """A world that cannot be: the message and ``field`` name which part of it."""


def bad(path: str, message: str) -> BadWorld:
    return BadWorld(f"{path}: {message}", field=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A serverful job: a model and its batch."""

    model: str
    batch: int

    @property
    def pair(self) -> tuple[str, int]:
        return self.model, self.batch

    def __str__(self) -> str:
        return f"{self.model}/{self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """
    A GPU instance. Memory in MiB; ``slots``: batches at a time (docs/paper.md, A58); ``sevenths`` of a device, 7
    without MIG; ``budget`` of its training's degradation, a fraction (None: the policy's default).
    """

    name: str
    memory_mib: float = 24_576.0
    slots: int = 8
    training: Training | None = None
    sevenths: int = 7
    budget: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """
    A function: one invocation is one batch of ``batch`` rows of a model (docs/paper.md, A32).

    ``max_batch`` invocations may share a run, ``max_warm`` instances stand on one GPU instance. ``keep_alive_s`` -1: an
    idle instance is never offloaded for its age. ``max_attempts`` 2: retried once (A61). ``bulk`` > 0: it is of class
    batch, and so many invocations of it wait from the beginning, in generated traces the only ones.
    """

    name: str
    model: str
    batch: int = 1
    max_batch: int = 1
    max_warm: int = 4
    keep_alive_s: float = -1.0
    max_attempts: int = 2
    bulk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The GPU instance ``gpu`` is gone from ``at_s`` for ``seconds``; its job too. Instances must be loaded again."""

    gpu: str
    at_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """
    Seconds throughout.

    ``monitor_s``: interval of reports; a change of the warm set is reported after ``coalesce_s``; a report reaches the
    policy ``monitor_delay_s`` late. ``monitor_noise``: relative deviation of a reported utilisation. ``job_window_s``:
    span over which a training's degradation is measured. ``round_s``: how long the policy sleeps at most while
    something waits (docs/paper.md, A21). ``dispatch_s``: from a decision to the start. ``gate_s``: how often the policy
    says when a new invocation could end; what comes is refused where that is too late (0: nothing is). ``probe_share``:
    part of the time in which a GPU instance is closed, at random moments and for as long as its training's loss takes
    to measure (windows.py). ``closed_loop``: reports hold what is measured of iterations, by which a policy keeps budgets.
    ``lost_s``: silence after which a GPU instance counts as lost. ``keep_warm`` instances of every function stand on
    every GPU instance as long as they take no more than ``warm_share`` of the memory that the training leaves (A35);
    with ``burst`` > 0 as many as the mean rates of the trace ask for times ``burst``, where that is more (A39). This
    stands for a prewarmer that knows the mean rates beforehand, and is the same for every policy. ``deadline``: bounds
    of the factor on a function's P99 alone, drawn with the trace (A30).
    """

    name: str
    gpus: tuple[Gpu, ...]
    functions: tuple[Function, ...]
    interference_model: InterferenceModel = field(default_factory=InterferenceModel)
    monitor_s: float = 0.5
    monitor_delay_s: float = 0.0
    monitor_noise: float = 0.02
    coalesce_s: float = 0.03
    job_window_s: float = 10.0
    round_s: float = 0.005
    dispatch_s: float = 0.0
    gate_s: float = 0.0
    probe_share: float = 0.0
    closed_loop: bool = False
    lost_s: float = 2.0
    retry_s: float = 0.01
    keep_warm: int = 1
    warm_share: float = 0.3
    burst: float = 0.0
    deadline: tuple[float, float] = (1.0, 4.0)
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        """Refuses a cluster that cannot be: BadWorld or BadInterferenceModel."""
        if not self.gpus:
            raise bad("gpus", "at least one GPU instance is expected")
        if not self.functions:
            raise bad("functions", "at least one function is expected")
        for kind, names in (
            ("gpus", [gpu.name for gpu in self.gpus]),
            ("functions", [function.name for function in self.functions]),
        ):
            twice = (
                next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
            )
            if twice is not None:
                raise bad(kind, f"{twice!r} is there twice")
        for position, gpu in enumerate(self.gpus):
            path = f"gpus[{position}]"
            if not 1 <= gpu.slots <= 62:
                raise bad(f"{path}.slots", f"1..62 slots are expected, not {gpu.slots}")
            if gpu.sevenths not in models.SLICES:
                raise bad(
                    f"{path}.sevenths", f"one of {', '.join(map(str, models.SLICES))} is expected, not {gpu.sevenths}"
                )
            self.check_training(gpu, path)
            free = gpu.memory_mib - self.training_mib(gpu)
            if free < 0:
                raise bad(
                    f"{path}.memory_mib",
                    f"the training {gpu.training} needs {self.training_mib(gpu):.0f} MiB of {gpu.memory_mib:.0f}",
                )
        largest = max(gpu.memory_mib - self.training_mib(gpu) for gpu in self.gpus)
        for position, function in enumerate(self.functions):
            self.check_function(function, f"functions[{position}]")
            if self.memory_mib(function) > largest:
                need = self.memory_mib(function)
                raise bad(
                    f"functions[{position}]",
                    f"{function.name} needs {need:.0f} MiB, no GPU instance has more than {largest:.0f} free",
                )
        there = {gpu.name for gpu in self.gpus}
        for position, failure in enumerate(self.failures):
            if failure.gpu not in there:
                raise bad(f"failures[{position}].gpu", f"{failure.gpu!r} is none of the GPU instances")

    def check_training(self, gpu: Gpu, path: str) -> None:
        """
        Raises BadWorld or BadInterferenceModel for a training that the truth does not know, or that does not run on such a slice.
        """
        if gpu.training is not None:
            known(self.interference_model, gpu.training.model, "training", f"{path}.training")
            if gpu.sevenths != 7:
                models.slice_slowdown(gpu.training.model, gpu.sevenths)

    def check_function(self, function: Function, path: str) -> None:
        known(self.interference_model, function.model, "function", f"{path}.model")

    # ---- what follows from the truth ---------------------------------------------------------------------------------

    def contention(self, gpu: Gpu) -> Contention:
        return self.interference_model.on(gpu.sevenths, gpu.training.pair if gpu.training is not None else None)

    def alike(self, gpu: Gpu) -> tuple[object, ...]:
        """GPU instances with the same key have the same contention."""
        return gpu.sevenths, gpu.training

    def noise(self, n: int, seed: int) -> NDArray[np.float64]:
        """[n], by which the run time of each invocation of a run differs from its time alone."""
        return np.exp(self.interference_model.noise * np.random.default_rng([seed, 1]).standard_normal(n))

    def use(self, function: Function, rows: int) -> Use:
        return self.interference_model.use(function.model, "function", rows)

    def p99_s(self, function: Function, rows: int) -> float:
        """P99 of a run alone on a whole device (docs/paper.md, A30)."""
        return self.use(function, rows).seconds * self.interference_model.p99

    def load_s(self, function: Function) -> float:
        return self.interference_model.cold_s[function.model]

    def memory_mib(self, function: Function) -> float:
        """Of one instance: context, weights, and what a full run puts out."""
        return memory_mib(self.interference_model, function.model, "function", function.batch * function.max_batch)

    def training_mib(self, gpu: Gpu) -> float:
        return (
            memory_mib(self.interference_model, gpu.training.model, "training", gpu.training.batch)
            if gpu.training is not None
            else 0.0
        )

    def device(self, gpu: Gpu) -> str:
        """What a report says of it: every size of slice is a place of its own (A55)."""
        return (
            self.interference_model.device
            if gpu.sevenths == 7
            else f"{self.interference_model.device} {gpu.sevenths}/7"
        )

    def sharing_mode(self, gpu: Gpu) -> str:  # noqa: ARG002 - one truth has one sharing mode
        return self.interference_model.sharing_mode

    def workload(self, training: Training) -> str:
        return f"{training.model}/{self.interference_model.preset}/training/{training.batch}"

    def reading(self, gpu: Gpu, u: float, seed: int) -> float:
        """What the counter of a run reads of a training that demands ``u`` of the SMs of its GPU instance."""
        assert gpu.training is not None
        return read("training", *gpu.training.pair, (u,), seed)[0]

    def spec(self, function: Function, seed: int) -> FunctionSpec:
        """
        What a developer would have registered: P99 alone for each size of a batch (docs/paper.md, A28), utilisation as
        the run's counter reads it, the rest as declared.
        """
        sizes = sorted({min(1 << power, function.max_batch) for power in range(function.max_batch.bit_length() + 1)})
        memory, batch = self.memory_mib(function), function.batch
        return FunctionSpec(
            entrypoint="simulated:Function",
            deadline_s=self.deadline[1] * self.p99_s(function, batch),
            memory_mib=memory,
            max_batch=function.max_batch,
            max_warm=function.max_warm,
            keep_alive_s=function.keep_alive_s,
            max_attempts=function.max_attempts,
            max_pending=1_000_000,
            work_class=WorkClass.BATCH if function.bulk else WorkClass.STANDARD,
            profile=Profile(
                run_s={size * batch: self.p99_s(function, size * batch) for size in sizes},
                load_s=self.load_s(function),
                memory_mib=memory,
                usage_gain=read("function", function.model, batch, (self.use(function, batch).u,), seed)[0],
                degradation=CONSERVATIVE,
                model=f"{function.model}/{self.interference_model.preset}",
            ),
        )


def known(interference_model: InterferenceModel, model: str, role: str, path: str) -> None:
    if model not in interference_model.demands[role]:
        raise bad(path, f"{model!r} is not known; known are {', '.join(sorted(interference_model.demands[role]))}")


@cache
def workloads() -> Mapping[str, Any]:
    """Table III of the eight models by role: FLOPs and memory are affine in the batch (``data/README.md``)."""
    models_read: dict[str, Any] = json.loads((models.DATA / "workloads.json").read_text())["models"]
    return models_read


#: An inference keeps so much of all that its layers put out at a time: each output is freed when the next layer has
#: read it.
INFERENCE_SHARE: Final = 0.1


def memory_mib(interference_model: InterferenceModel, model: str, role: str, batch: int) -> float:
    """Of a process: context, weights (with gradients and momentum where it trains) and what the layers put out."""
    measured = interference_model.measured.get(f"{model}/{interference_model.preset}/{role}/{batch}")
    if measured is not None and measured.memory_mib:
        return measured.memory_mib
    at_none, each = workloads()[model][role]["memory_bytes"]
    return CONTEXT_MIB + float(at_none + each * batch * (INFERENCE_SHARE if role == "function" else 1.0)) / 2**20


# ---- documents -------------------------------------------------------------------------------------------------------


class Reader:
    """A mapping that knows its path: every error names its field, and what nobody read is refused."""

    def __init__(self, raw: object, path: str) -> None:
        if not isinstance(raw, Mapping):
            raise bad(path or "document", "a mapping is expected")
        self._raw = dict(raw)
        self._path = path
        #: Fields that may be there.
        self._asked: set[str] = set()

    def path(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def has(self, key: str) -> bool:
        self._asked.add(key)
        return key in self._raw

    def take(self, key: str, default: object = None) -> Any:
        self._asked.add(key)
        return self._raw.pop(key, default)

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise bad(self.path(key), f"a number in {low:g}..{high:g} is expected, not {value!r}")
        return float(value)

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        value = self.number(key, default, low, high)
        if value != int(value):
            raise bad(self.path(key), f"a whole number is expected, not {value!r}")
        return int(value)

    def word(self, key: str, default: str, among: Sequence[str] = ()) -> str:
        value = self.take(key, default)
        if not isinstance(value, str) or (among and value not in among):
            wanted = f"one of {', '.join(among)}" if among else "a text"
            raise bad(self.path(key), f"{wanted} is expected, not {value!r}")
        return value

    def items(self, key: str) -> list[tuple[str, Any]]:
        value = self.take(key, [])
        if not isinstance(value, list):
            raise bad(self.path(key), "a list is expected")
        return [(f"{self.path(key)}[{position}]", one) for position, one in enumerate(value)]

    def end(self) -> None:
        if self._raw:
            name = str(next(iter(self._raw)))
            raise bad(self.path(name), f"unknown field{did_you_mean(name, sorted(self._asked))}")


def training(raw: object, path: str) -> Training | None:
    """``mobilenet/64``, or none."""
    if raw is None or raw == "none":
        return None
    match = _WORD.fullmatch(raw) if isinstance(raw, str) else None
    if match is None:
        raise bad(path, f"{raw!r} is not of the form model/batch, such as mobilenet/64")
    return Training(model=match[1], batch=int(match[2]))


def _gpus(reader: Reader) -> list[Gpu]:
    """Each entry makes ``count`` GPU instances; trainings are dealt out in turn."""
    gpus: list[Gpu] = []
    for path, raw in reader.items("gpus"):
        entry = Reader(raw, path)
        count = entry.whole("count", 1, 1, 100_000)
        memory, slots = entry.number("memory_mib", 24_576, 1, 2**20), entry.whole("slots", 8, 1, 62)
        sevenths, given = entry.whole("sevenths", 7, 1, 7), entry.take("trainings", [])
        name = entry.word("name", "gpu")
        budget = entry.number("budget", 0.1, 1e-4, 100) if entry.has("budget") else None
        entry.end()
        if not isinstance(given, list):
            raise bad(f"{path}.trainings", "a list is expected")
        trainings = [training(one, f"{path}.trainings[{position}]") for position, one in enumerate(given)] or [None]
        for number in range(count):
            one = trainings[number % len(trainings)]
            gpus.append(
                Gpu(
                    name=f"{name}{len(gpus)}",
                    memory_mib=memory,
                    slots=slots,
                    training=one,
                    sevenths=sevenths,
                    budget=budget,
                )
            )
    return gpus


def _functions(reader: Reader) -> list[Function]:
    functions = []
    for path, raw in reader.items("functions"):
        entry = Reader(raw, path)
        model = entry.word("model", "")
        name = entry.word("name", model)
        if _NAME.fullmatch(name) is None:
            raise bad(f"{path}.name", f"{name!r} is not a name (a-z, 0-9, inner '-' and '.')")
        functions.append(
            Function(
                name=name,
                model=model,
                batch=entry.whole("batch", 1, 1, 1024),
                max_batch=entry.whole("max_batch", 1, 1, 1024),
                max_warm=entry.whole("max_warm", 4, 1, 62),
                keep_alive_s=entry.number("keep_alive_s", -1, -1, 1e6),
                max_attempts=entry.whole("max_attempts", 2, 1, 100),
                bulk=entry.whole("bulk", 0, 0, 10**6),
            )
        )
        entry.end()
    return functions


def parse(raw: object, path: str = "", *, base: InterferenceModel | None = None) -> World:
    """
    A world from its document. Raises BadWorld or :class:`lab.simulation.interference.BadInterferenceModel`, which name the
    field.
    """
    reader = Reader(raw, path)
    name = reader.word("name", "world")
    ground = models.load(reader.word("truth", "digest")) if base is None else base
    if base is not None:
        reader.take("truth")
    device = reader.take("device")
    if device is not None:
        ground = replace(ground, device=str(device))
    factors = reader.take("factors", {})
    if not isinstance(factors, Mapping):
        raise bad(reader.path("factors"), "a mapping from parameters to factors is expected")
    ground = ground.scaled(cast("Mapping[str, float]", factors))
    if not reader.take("interference", True):
        ground = replace(ground, interference=False)
    deadline = reader.take("deadline", [1.0, 4.0])
    numbers = (
        isinstance(deadline, list | tuple)
        and len(deadline) == 2
        and all(isinstance(one, int | float) for one in deadline)
    )
    if not numbers or not 0 < deadline[0] <= deadline[1]:
        raise bad(reader.path("deadline"), f"two factors 0 < low <= high are expected, not {deadline!r}")
    gpus, functions = _gpus(reader), _functions(reader)
    failures = []
    for where, one in reader.items("failures"):
        entry = Reader(one, where)
        failures.append(
            Failure(
                gpu=entry.word("gpu", ""),
                at_s=entry.number("at_s", 0, 0, 1e9),
                seconds=entry.number("seconds", 1, 0.001, 1e9),
            )
        )
        entry.end()
    world = World(
        name=name,
        gpus=tuple(gpus),
        functions=tuple(functions),
        interference_model=ground,
        monitor_s=reader.number("monitor_s", 0.5, 0.001, 3600),
        monitor_delay_s=reader.number("monitor_delay_s", 0, 0, 3600),
        monitor_noise=reader.number("monitor_noise", 0.02, 0, 1),
        coalesce_s=reader.number("coalesce_s", 0.03, 0, 3600),
        job_window_s=reader.number("job_window_s", 10, 0.001, 1e6),
        round_s=reader.number("round_s", 0.005, 1e-4, 3600),
        dispatch_s=reader.number("dispatch_s", 0, 0, 10),
        gate_s=reader.number("gate_s", 0, 0, 3600),
        probe_share=reader.number("probe_share", 0, 0, 0.5),
        closed_loop=bool(reader.take("closed_loop", False)),
        lost_s=reader.number("lost_s", 2, 0, 3600),
        retry_s=reader.number("retry_s", 0.01, 1e-4, 3600),
        keep_warm=reader.whole("keep_warm", 1, 0, 62),
        warm_share=reader.number("warm_share", 0.3, 0, 1),
        burst=reader.number("burst", 0, 0, 100),
        deadline=(float(deadline[0]), float(deadline[1])),
        failures=tuple(failures),
    )
    reader.end()
    return world


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Another world of a preset: the name of its interference model ('' = the preset's) and factors on its parameters."""

    truth: str
    factors: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """
    A file of ``presets/``: worlds that are run alike and reported together, and what they are run with.

    ``worlds``: by configuration. ``trace``: the document of the trace (``traces.py``). ``predictor``: table, sampled or
    none (``predictor.py``). ``policies``: those compared by default. ``others``: name to the interference model and
    factors of a world in which the same is compared besides.
    """

    name: str
    about: str
    worlds: Mapping[str, World]
    trace: Mapping[str, Any]
    predictor: Mapping[str, Any]
    policies: tuple[str, ...]
    others: Mapping[str, "Other"]


def names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def unknown_preset(name: str, known: Sequence[str]) -> BadWorld:
    """The refusal of a name that none of the ``known`` presets has."""
    return bad("preset", f"{name!r} is not known; known are {', '.join(known)}{did_you_mean(name, known)}")


def read_preset(name: str, folder: Path, known: Sequence[str]) -> tuple[Path, object]:
    """
    (path, document) of one of the ``known`` presets of a folder by its name, or of a .yaml file by its path. Raises
    BadWorld where there is none, or it is not YAML.
    """
    given = name.endswith((".yaml", ".yml"))
    path = Path(name) if given else folder / f"{name}.yaml"
    if given and not path.is_file():
        raise bad("preset", f"there is no file {name}")
    if not given and name not in known:
        raise unknown_preset(name, known)
    try:
        return path, yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise bad(path.name, f"not YAML: {' '.join(str(error).split())}") from error


def load(
    name: str, *, factors: Mapping[str, float] | None = None, interference: bool = True, interference_model: str = ""
) -> Preset:
    """
    A preset by name, or a file of that form by its path. Its truth, or another one by its name, with every parameter
    times its factor, or without interference.

    Raises BadWorld for a name that does not exist.
    """
    path, raw = read_preset(name, PRESETS, names())
    reader = Reader(raw, "")
    about, shared = reader.word("about", ""), Reader(reader.take("world", {}), "world")
    common = {key: shared.take(key) for key in list(shared._raw)}
    configurations = reader.take("configurations") or {"": {}}
    if not isinstance(configurations, Mapping):
        raise bad("configurations", "a mapping from names to what differs is expected")
    worlds = {}
    for key, differs in configurations.items():
        if not isinstance(differs, Mapping):
            raise bad(f"configurations.{key}", "a mapping is expected")
        document = common | dict(differs) | {"name": str(key) or path.stem}
        if interference_model:
            document["truth"] = interference_model
        if factors:
            document["factors"] = dict(factors)
        if not interference:
            document["interference"] = False
        worlds[str(key)] = parse(document, f"configurations.{key}" if key else "world")
    others = _others(reader)
    trace, predictor, policies = reader.take("trace", {}), reader.take("predictor", {}), reader.take("policies", [])
    for key, value, kind in (
        ("trace", trace, Mapping),
        ("predictor", predictor, Mapping),
        ("policies", policies, list),
    ):
        if not isinstance(value, kind):
            raise bad(key, f"a {'list' if kind is list else 'mapping'} is expected")
    reader.end()
    return Preset(
        name=path.stem,
        about=about,
        worlds=worlds,
        trace=trace,
        predictor=predictor,
        policies=tuple(map(str, policies)),
        others=others,
    )


def _others(reader: Reader) -> dict[str, Other]:
    raw = reader.take("other_worlds", {})
    if not isinstance(raw, Mapping):
        raise bad("other_worlds", "a mapping from names to interference models is expected")
    others = {}
    for key, document in raw.items():
        entry = Reader(document, f"other_worlds.{key}")
        factors = entry.take("factors", {})
        if not isinstance(factors, Mapping):
            raise bad(entry.path("factors"), "a mapping from parameters to factors is expected")
        others[str(key)] = Other(truth=entry.word("truth", ""), factors=dict(factors))
        entry.end()
    return others
