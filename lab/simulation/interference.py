"""
The interference model: what co-location really costs in the simulator. No policy sees it.

Its formula is not the predictor's, else every experiment would be circular. With u the demand for
multiprocessors and b that for memory bandwidth of each active workload, both 0..1, and n active workloads on a GPU
instance::

    slow_i = (1 + memory b_i (sum of b over the others)) max(1, U_i)^exponent (1 + crowd (n - 1))
    U_i    = u_i + by_training u_training + by_function (sum of u over the other functions)
    slow_i of a function beside a training: + short min(1, short_s / exec_i) u_training   (time sharing only)

``by_training`` and ``by_function`` are 1 in the formula as first chosen; they, and parameters of each role's own, are
what measured rows need besides (functions at a lower priority lose more than they cost). Each run of a function takes
its time alone times ``slow`` times a lognormal noise. A load occupies bandwidth and counts in ``b`` alone.

A truth of turns (``turns``) is another law, for devices that give themselves to one workload at a time: u is then the
part of its time that a workload alone holds the device, and who wants it while others hold it waits for as many turns.
With q_j the part of its time in which a slowed workload holds the device or waits for it::

    slow_i = 1 + u_i (sum of q over the others)
    q_j    = 1 - (1 - u_j) / slow_j

For two trainings alike it gives 1.85 at u = 0.9 and 1.71 at 0.8, Gavel's medians over pairs being 1.87 on a K80 and
1.70 on a P100.

The default demands are guesses, chosen in view of the paper's observations II and III: that those come out
is a calibration, not evidence.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from smore.domain.errors import InvalidSpec

DATA: Final = Path(__file__).parent / "data"

#: Table I: the eight models.
MODELS: Final = ("vgg16", "mobilenet", "deepvit", "resnet50", "bert", "roberta", "deepfm", "segnet")
ROLES: Final = ("training", "function")

#: (u, b) of each model at the reference batch: demand of SMs and of memory bandwidth.
TRAINING_DEMANDS: Final = {
    "vgg16": (0.55, 0.45),
    "mobilenet": (0.25, 0.20),
    "deepvit": (0.75, 0.40),
    "resnet50": (0.78, 0.50),
    "bert": (0.80, 0.45),
    "roberta": (0.82, 0.45),
    "deepfm": (0.22, 0.30),
    "segnet": (0.60, 0.45),
}
FUNCTION_DEMANDS: Final = {
    "vgg16": (0.35, 0.30),
    "mobilenet": (0.10, 0.08),
    "deepvit": (0.15, 0.10),
    "resnet50": (0.30, 0.20),
    "bert": (0.70, 0.35),
    "roberta": (0.12, 0.10),
    "deepfm": (0.08, 0.10),
    "segnet": (0.38, 0.30),
}
#: Table I: seconds of a warm run and of a cold start.
WARM_S: Final = {
    "vgg16": 0.003,
    "mobilenet": 0.009,
    "deepvit": 0.011,
    "resnet50": 0.013,
    "bert": 0.037,
    "roberta": 0.010,
    "deepfm": 0.008,
    "segnet": 0.050,
}
COLD_S: Final = {
    "vgg16": 1.2,
    "mobilenet": 1.0,
    "deepvit": 2.4,
    "resnet50": 1.5,
    "bert": 2.6,
    "roberta": 5.2,
    "deepfm": 0.6,
    "segnet": 1.6,
}
#: The batch at which the demands and times above hold: the middle one of A54 for trainings, one row for functions.
REFERENCE_BATCH: Final = {"training": 64, "function": 1}
#: The four batches of each side (A6, A54): what a predictor is trained on.
BATCHES: Final = {"training": (16, 32, 64, 128), "function": (1, 8, 16, 32)}
#: Seconds of a training iteration over those of a warm run of the same rows: forward, and twice that backward.
ITERATION: Final = 3.0
#: MiB that a process holds besides its model: device context and framework .
CONTEXT_MIB: Final = 450.0

#: Slowdown of a training on a slice of g/7 of an A100 against the whole of it. The log has no 1g of BERT:
#: out of memory.
SLICE_CURVES: Final[Mapping[str, Mapping[int, float]]] = {
    "MobileNet 64": {4: 1.02, 3: 1.03, 2: 1.11, 1: 1.23},
    "ResNet 64": {4: 1.05, 3: 1.00, 2: 1.12, 1: 1.72},
    "ResNet 512": {4: 1.34, 3: 1.53, 2: 2.39, 1: 4.47},
    "Embedding 64": {4: 1.06, 3: 1.06, 2: 1.20, 1: 1.59},
    "BERT 4": {4: 1.62, 3: 1.80, 2: 3.07},
    "Transformer 32": {4: 1.68, 3: 1.87, 2: 3.15, 1: 6.10},
}
#: Which curve stands for which of our models: its own, or the nearest in kind and demand.
SLICE_CURVE_OF: Final = {
    "vgg16": "ResNet 512",
    "mobilenet": "MobileNet 64",
    "deepvit": "Transformer 32",
    "resnet50": "ResNet 64",
    "bert": "BERT 4",
    "roberta": "Transformer 32",
    "deepfm": "Embedding 64",
    "segnet": "ResNet 512",
}
#: The 99th percentile of a normal deviate.
Z99: Final = 2.3263478740408408
#: Sevenths of a device that a MIG slice may have; 7 is the whole of it.
SLICES: Final = (1, 2, 3, 4, 7)


class BadInterferenceModel(InvalidSpec):
    """Parameters that cannot be: the message and ``field`` name which."""


def _bad(name: str, message: str) -> BadInterferenceModel:
    return BadInterferenceModel(f"{name}: {message}", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """
    How one role suffers; the module says what the parameters mean.

    Dimensionless and at least 0, but ``short_s`` in seconds. ``exponent`` is at most 5, the others at most 10.
    """

    memory: float = 0.20
    exponent: float = 1.3
    crowd: float = 0.01
    by_training: float = 1.0
    by_function: float = 1.0
    short: float = 0.3
    short_s: float = 0.002

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value, most = getattr(self, name), 5.0 if name == "exponent" else 10.0
            if not isinstance(value, int | float) or not 0.0 <= value <= most:
                raise _bad(name, f"a number in 0..{most:g} is expected, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """
    A workload as it uses a whole device: demands ``u`` and ``b`` (0..1), and seconds of one run or iteration alone.

    ``seconds`` is the mean without noise. ``memory_mib`` of its process (0) and ``features``, table III in its order
    (empty), where they were measured.
    """

    u: float
    b: float
    seconds: float
    memory_mib: float = 0.0
    features: tuple[float, ...] = ()
    #: Its name among ``InterferenceModel.pairs``.
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceModel:
    """
    Parameters of an interference model.

    ``demands``: role → model → (u, b) at the role's reference batch; with the batch, u grows as batch^``growth`` up to
    1, and times so that work (u x time) is proportional to rows. ``measured`` (``<model>/<preset>/<role>/<batch>`` →
    Use) goes before them where it knows a workload. ``noise``: deviation of the logarithm of a run time. ``cold_s``:
    seconds of a load, model → seconds; ``load_b``: what it demands of bandwidth. ``interference`` False: everything
    runs as if alone. ``time_sharing`` False: without the term of short functions. ``turns``: the law of turns in place
    of the other. ``pairs``: in place of any law, what each loses to each, by ``Use.name`` (fractions); several add up.
    """

    name: str = "digest"
    device: str = "simulated RTX 3090"
    sharing_mode: str = "time-slice"
    preset: str = "paper"
    training: Law = field(default_factory=Law)
    function: Law = field(default_factory=Law)
    demands: Mapping[str, Mapping[str, tuple[float, float]]] = field(
        default_factory=lambda: {"training": TRAINING_DEMANDS, "function": FUNCTION_DEMANDS}
    )
    warm_s: Mapping[str, float] = field(default_factory=lambda: WARM_S)
    cold_s: Mapping[str, float] = field(default_factory=lambda: COLD_S)
    measured: Mapping[str, Use] = field(default_factory=dict)
    growth: float = 0.4
    noise: float = 0.05
    load_b: float = 0.3
    interference: bool = True
    time_sharing: bool = True
    turns: bool = False
    pairs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role, demands in self.demands.items():
            for model, (u, b) in demands.items():
                if not (0.0 < u <= 1.0 and 0.0 <= b <= 1.0):
                    raise _bad(f"demands.{role}.{model}", f"u in 0..1 and b in 0..1 are expected, not {(u, b)}")
        for name, most in (("growth", 1.0), ("noise", 1.0), ("load_b", 1.0)):
            if not 0.0 <= getattr(self, name) <= most:
                raise _bad(name, f"a number in 0..{most:g} is expected, not {getattr(self, name)!r}")

    def use(self, model: str, role: str, batch: int) -> Use:
        """Raises BadInterferenceModel for a model that this truth does not know."""
        use = self.measured.get(f"{model}/{self.preset}/{role}/{batch}")
        if use is not None:
            return use
        sizes = self._measured_batches(model, role)
        if sizes:
            return self._between(model, role, sizes, batch)
        demand, warm = self.demands[role].get(model), self.warm_s.get(model)
        if demand is None or warm is None:
            raise _bad(
                "model", f"{model!r} is not known as a {role}; known are {', '.join(sorted(self.demands[role]))}"
            )
        base, b = demand
        reference = REFERENCE_BATCH[role]
        u = min(1.0, base * (batch / reference) ** self.growth)
        alone = warm
        if role == "training":
            # A training's iteration at its reference batch: forward and backward of as many rows.
            alone = ITERATION * warm * reference ** (1.0 - self.growth)
        return Use(u=u, b=b, seconds=alone * (batch / reference) * base / u)

    def _measured_batches(self, model: str, role: str) -> list[int]:
        prefix = f"{model}/{self.preset}/{role}/"
        return sorted(int(name.removeprefix(prefix)) for name in self.measured if name.startswith(prefix))

    def _between(self, model: str, role: str, sizes: Sequence[int], batch: int) -> Use:
        """
        As the next measured batch with room for it; the time by a straight line between two, beyond the largest in
        proportion.
        """
        uses = [self.measured[f"{model}/{self.preset}/{role}/{size}"] for size in sizes]
        above = next((position for position, size in enumerate(sizes) if size > batch), None)
        if above is None:
            return replace(uses[-1], seconds=uses[-1].seconds * batch / sizes[-1])
        if above == 0:
            return uses[0]
        part = (batch - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
        return replace(
            uses[above], seconds=uses[above - 1].seconds + part * (uses[above].seconds - uses[above - 1].seconds)
        )

    def batches(self, model: str, role: str) -> tuple[int, ...]:
        """The four batches of a model: the measured ones where there are any."""
        return tuple(self._measured_batches(model, role)) or BATCHES[role]

    @property
    def p99(self) -> float:
        """P99 of a run alone over its time without noise."""
        return math.exp(Z99 * self.noise)

    @property
    def mean(self) -> float:
        """Mean of a run alone over its time without noise."""
        return math.exp(0.5 * self.noise**2)

    def scaled(self, factors: Mapping[str, float]) -> "InterferenceModel":
        """
        Every demand and exponent times a factor, for runs at +-30 %.

        Names: ``exponent``, ``memory``, ``crowd``, ``short``, ``growth``, ``load_b``, ``noise``, ``cold_s``, ``u`` and
        ``b`` (all of them), ``u.<role>.<model>`` and ``b.<role>.<model>``. Demands stay within 0..1. Raises BadInterferenceModel
        for another name.
        """
        known = set(self.knobs()) | {"u", "b", "cold_s"}
        for name, factor in factors.items():
            if name not in known:
                raise _bad(name, "no parameter of the interference model has this name")
            if not 0.0 <= factor <= 100.0:
                raise _bad(name, f"a factor in 0..100 is expected, not {factor!r}")

        def by(*names: str) -> float:
            return math.prod(factors.get(name, 1.0) for name in names)

        def law(old: Law) -> Law:
            return replace(
                old, **{name: getattr(old, name) * by(name) for name in ("exponent", "memory", "crowd", "short")}
            )

        def demand(kind: str, role: str, model: str, value: float) -> float:
            return min(1.0, value * by(kind, f"{kind}.{role}.{model}"))

        return replace(
            self,
            training=law(self.training),
            function=law(self.function),
            demands={
                role: {
                    model: (demand("u", role, model, u), demand("b", role, model, b))
                    for model, (u, b) in demands.items()
                }
                for role, demands in self.demands.items()
            },
            measured={
                name: replace(
                    use,
                    u=demand("u", name.split("/")[2], name.split("/")[0], use.u),
                    b=demand("b", name.split("/")[2], name.split("/")[0], use.b),
                )
                for name, use in self.measured.items()
            },
            cold_s={model: seconds * by("cold_s") for model, seconds in self.cold_s.items()},
            growth=min(1.0, self.growth * by("growth")),
            noise=self.noise * by("noise"),
            load_b=min(1.0, self.load_b * by("load_b")),
        )

    def knobs(self) -> list[str]:
        """Names of every single parameter that :meth:`scaled` takes, in an order that never changes."""
        models = [
            f"{kind}.{role}.{model}" for kind in ("u", "b") for role in ROLES for model in sorted(self.demands[role])
        ]
        return ["exponent", "memory", "crowd", "short", "growth", "load_b", "noise", *models]

    def on(self, slice_: int, training: tuple[str, int] | None) -> "Contention":
        """
        The truth of one GPU instance: a slice of ``slice_`` sevenths (A55) with a training (model, batch) or none.

        Raises BadInterferenceModel for a slice that does not exist, or on which the training does not run.
        """
        return Contention(self, slice_, training)


def mean_over_alone(p99: float) -> float:
    """Mean of a run alone over its time without noise, from its P99 over that (both of a lognormal)."""
    return math.exp(0.5 * (math.log(p99) / Z99) ** 2)


def slice_slowdown(model: str, slice_: int) -> float:
    """Of a training on a slice against the whole device. Raises BadInterferenceModel where it does not fit."""
    if slice_ == 7:
        return 1.0
    curve = SLICE_CURVE_OF.get(model)
    slowdown = SLICE_CURVES[curve].get(slice_) if curve is not None else None
    if slowdown is None:
        raise _bad("slice", f"no measured curve of {model} on {slice_}/7 of a device: it does not fit there")
    return slowdown


class Contention:
    """
    The truth of one GPU instance, made quick: what is active is one integer, and each such state is computed once.

    A *kind* is a model with its rows, numbered as they are met; the state is the sum of :meth:`code` over active
    batches, plus the number of loads. :meth:`state` gives (slowdown of the training, min(1, U), the functions' part of
    that, slowdown by kind).
    """

    #: Up to 4,095 loads and 63 batches of one kind at a time.
    LOAD_BITS: Final = 12
    KIND_BITS: Final = 6
    #: States that are remembered: a bound on memory, far beyond what eight slots and eight kinds can make.
    REMEMBERED: Final = 100_000

    def __init__(self, interference_model: InterferenceModel, slice_: int, training: tuple[str, int] | None) -> None:
        if slice_ not in SLICES:
            raise _bad("slice", f"one of {', '.join(map(str, SLICES))} sevenths is expected, not {slice_!r}")
        self._truth, self._share = interference_model, slice_ / 7.0
        self.training: Use | None = None
        if training is not None:
            use = interference_model.use(training[0], "training", training[1])
            self.training = self._sliced(use, slice_slowdown(training[0], slice_))
        self._uses: list[Use] = []
        self._kinds: dict[tuple[str, int], int] = {}
        self._states: dict[int, tuple[float, float, float, dict[int, float]]] = {}

    def _sliced(self, use: Use, slowdown: float | None = None) -> Use:
        # A55: demands of a slice are those of the device times 7/g. Beyond 1 the run itself takes longer.
        u = use.u / self._share
        seconds = use.seconds * (max(1.0, u) if slowdown is None else slowdown)
        return replace(use, u=min(1.0, u), b=min(1.0, use.b / self._share), seconds=seconds)

    def kind(self, model: str, rows: int) -> int:
        number = self._kinds.get((model, rows))
        if number is None:
            number = self._kinds[model, rows] = len(self._uses)
            self._uses.append(self._sliced(self._truth.use(model, "function", rows)))
        return number

    def alone(self, kind: int) -> Use:
        """The function on this GPU instance without anything beside it."""
        return self._uses[kind]

    @staticmethod
    def code(kind: int) -> int:
        """What one active batch of a kind adds to the state; 1 is what a load adds."""
        return 1 << (Contention.LOAD_BITS + Contention.KIND_BITS * kind)

    def state(self, code: int) -> tuple[float, float, float, dict[int, float]]:
        state = self._states.get(code)
        if state is None:
            if len(self._states) >= self.REMEMBERED:
                self._states.clear()
            state = self._states[code] = self._compute(code)
        return state

    def _compute(self, code: int) -> tuple[float, float, float, dict[int, float]]:
        mask = (1 << self.KIND_BITS) - 1
        loads = code & ((1 << self.LOAD_BITS) - 1)
        active: list[int] = []
        rest, kind = code >> self.LOAD_BITS, 0
        while rest:
            active += [kind] * (rest & mask)
            rest >>= self.KIND_BITS
            kind += 1
        training, slow = self.slowdowns(active, loads)
        turns = self._truth.turns and self._truth.interference
        # Under turns each uses what it does of its work in a second.
        functions_u = sum(
            self._uses[kind].u / (lost if turns else 1.0) for kind, lost in zip(active, slow, strict=True)
        )
        total = functions_u + (self.training.u / (training if turns else 1.0) if self.training is not None else 0.0)
        share = functions_u / total if total else 0.0
        busy = min(1.0, total)
        return training, busy, busy * share, dict(zip(active, slow, strict=True))

    def slowdowns(self, active: Sequence[int], loads: int = 0) -> tuple[float, list[float]]:
        """(of the training, 1.0 without one; of each active batch, given by its kind). Without noise."""
        interference_model, training = self._truth, self.training
        if not interference_model.interference:
            return 1.0, [1.0] * len(active)
        uses = [self._uses[kind] for kind in active]
        if interference_model.pairs:
            return _added(interference_model.pairs, [use.name for use in uses], training.name if training else "")
        if interference_model.turns:
            slowdowns = _turns([use.u for use in (*uses, *([training] if training is not None else []))])
            return (slowdowns[-1] if training is not None else 1.0), slowdowns[: len(uses)]
        n = len(uses) + (training is not None)
        b = (
            sum(use.b for use in uses)
            + loads * interference_model.load_b
            + (training.b if training is not None else 0.0)
        )
        u = sum(use.u for use in uses)
        of_training = 1.0
        if training is not None:
            law = interference_model.training
            of_training = _slow(law, training.b * (b - training.b), training.u + law.by_function * u, n)
        of_functions = []
        law = interference_model.function
        for use in uses:
            beside = law.by_training * training.u if training is not None else 0.0
            one = _slow(law, use.b * (b - use.b), use.u + beside + law.by_function * (u - use.u), n)
            if training is not None and interference_model.time_sharing:
                one += law.short * min(1.0, law.short_s / use.seconds) * training.u
            of_functions.append(one)
        return of_training, of_functions


def _slow(law: Law, bandwidth: float, demand: float, n: int) -> float:
    return float((1.0 + law.memory * bandwidth) * max(1.0, demand) ** law.exponent * (1.0 + law.crowd * (n - 1)))


def _added(
    pairs: Mapping[str, Mapping[str, float]], functions: Sequence[str], training: str
) -> tuple[float, list[float]]:
    """(of the training, '' without one; of each function): what each loses to each other one, added up."""
    beside = [pairs[training], *(pairs[name] for name in functions)] if training else [pairs[n] for n in functions]
    names = [training, *functions] if training else list(functions)
    slow = [
        1.0 + sum(lost[other] for number, other in enumerate(names) if number != own) for own, lost in enumerate(beside)
    ]
    return (slow[0], slow[1:]) if training else (1.0, slow)


#: The law of turns is solved by so many steps at most, or until none changes a slowdown by more than this.
_STEPS: Final = 200
_CLOSE: Final = 1e-9


def _turns(u: Sequence[float]) -> list[float]:
    """Slowdowns of workloads that share a device by turns: the smallest that agree with each other."""
    slow = [1.0] * len(u)
    for _ in range(_STEPS):
        holds = [1.0 - (1.0 - one) / lost for one, lost in zip(u, slow, strict=True)]
        total = sum(holds)
        before, slow = slow, [1.0 + one * (total - held) for one, held in zip(u, holds, strict=True)]
        if max((abs(new - old) for new, old in zip(slow, before, strict=True)), default=0.0) < _CLOSE:
            break
    return slow


# ---- data ------------------------------------------------------------------------------------------------------------


def load(name: str) -> InterferenceModel:
    """
    The truth of a name: ``digest``, ``turns``, or one of ``data/`` (``cpu-partition``; ``gavel-v100`` and
    ``parvagpu-a100``, which ``outside.py`` makes). Raises BadInterferenceModel for another.
    """
    if name in ("digest", "turns"):
        return InterferenceModel(name=name, turns=name == "turns")
    path = DATA / f"{name}.json"
    if "/" in name or not path.is_file():
        known = ["digest", "turns", *sorted(path.stem for path in DATA.glob("*.json") if path.stem != "workloads")]
        raise _bad("truth", f"{name!r} is not known; known are {', '.join(known)}")
    return decode(json.loads(path.read_text())["truth"])


def encode(interference_model: InterferenceModel) -> dict[str, Any]:
    """Plain JSON; :func:`decode` is the inverse."""

    def plain(law: Law) -> dict[str, float]:
        return {name: getattr(law, name) for name in law.__slots__}

    simple = (
        "name",
        "device",
        "sharing_mode",
        "preset",
        "growth",
        "noise",
        "load_b",
        "interference",
        "time_sharing",
        "turns",
    )
    return {name: getattr(interference_model, name) for name in simple} | {
        "training": plain(interference_model.training),
        "function": plain(interference_model.function),
        "demands": {
            role: {model: list(pair) for model, pair in demands.items()}
            for role, demands in interference_model.demands.items()
        },
        "warm_s": dict(interference_model.warm_s),
        "cold_s": dict(interference_model.cold_s),
        "measured": {
            name: [use.u, use.b, use.seconds, use.memory_mib, list(use.features), *([use.name] if use.name else [])]
            for name, use in sorted(interference_model.measured.items())
        },
        "pairs": {name: dict(lost) for name, lost in interference_model.pairs.items()},
    }


def decode(raw: Mapping[str, Any]) -> InterferenceModel:
    """Raises BadInterferenceModel for parameters that cannot be, KeyError or TypeError for what is no truth at all."""
    values = dict(raw)
    values["training"], values["function"] = Law(**values["training"]), Law(**values["function"])
    values["demands"] = {
        role: {model: (u, b) for model, (u, b) in demands.items()} for role, demands in values["demands"].items()
    }
    values["measured"] = {
        name: Use(u=u, b=b, seconds=seconds, memory_mib=memory, features=tuple(features), name="".join(called))
        for name, (u, b, seconds, memory, features, *called) in values["measured"].items()
    }
    return InterferenceModel(**values)
