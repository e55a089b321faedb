"""
The order of measurements: any first part of the plan is as informative as its length allows.

The pairs of the paper's space (8 training models x 4 batches x 8 function models x 4 batches = 1,024) are measured in
rounds. A round has every training model with every function model once, along the diagonals of a Latin square, each
pair at another batch; the next round shifts the batches. A run that stops after n pairs has measured every model about
equally often. Pairs of trainings are measured along the same diagonals.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ml.rows import Role, Workload

#: (training, function) whose degradation over 1..8 concurrent invocations the paper shows (section II-C, figure 3).
LADDERS = (("deepfm", "mobilenet"), ("vgg16", "deepvit"), ("roberta", "vgg16"))
#: Models of the other sets of several functions. They are few, so that each weight of Eq. 3 and 4 is observed more than
#: once.
SEVERAL_TRAININGS = ("mobilenet", "vgg16", "bert", "deepfm")
SEVERAL_FUNCTIONS = ("mobilenet", "deepfm", "resnet50", "roberta")
#: Positions of a model's batches, in the order in which a plan with few batches uses them. The first ones are those of
#: the sets of several functions.
TRAINING_POSITIONS = (1, 2, 0, 3)
FUNCTION_POSITIONS = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Workloads to measure together, a training first. ``repeat`` > 0: the set was measured before."""

    members: tuple[Workload, ...]
    repeat: int = 0

    @property
    def pair(self) -> bool:
        """Whether it is one training with one function, measured for the first time."""
        return [member.role for member in self.members] == ["training", "function"] and self.repeat == 0

    @property
    def trainings(self) -> bool:
        """Whether it is two trainings."""
        return [member.role for member in self.members] == ["training", "training"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """
    How many runs of each kind. ``repeated`` pairs, ``repeated_functions`` pairs of functions and
    ``repeated_trainings`` pairs of trainings are measured ``times`` times in all. All pairs of the trainings ``named``
    are measured beside the first ``trainings`` of the plan.

    ``positions``: the first rounds of pairs use that many of each model's four batches, so that few workloads have to
    be measured alone; 1 = every training at its second batch and every function at its first, as in the sets of several
    functions. ``pairs_first``: all pairs before the other kinds.
    """

    pairs: int = 240
    functions: int = 64
    several: int = 60
    trainings: int = 0
    named: Sequence[Workload] = ()
    repeated: int = 20
    repeated_functions: int = 10
    repeated_trainings: int = 20
    times: int = 5
    k_max: int = 4
    positions: int | None = None
    pairs_first: bool = False


class Plan:
    """
    All runs in order. ``batches(model, role)`` gives the four batches of a model; ``models`` are in table I's order.
    Deterministic for a seed.
    """

    def __init__(
        self, models: Sequence[str], preset: str, batches: Callable[[str, Role], Sequence[int]], *, seed: int = 0
    ) -> None:
        self._models, self._preset, self._batches = models, preset, batches
        self._seed = seed

    def _workload(self, model: str, role: Role, position: int) -> Workload:
        sizes = self._batches(model, role)
        return Workload(model=model, preset=self._preset, role=role, batch=sizes[position % len(sizes)])

    def pairs(self, positions: int | None = None) -> Iterator[Run]:
        """The whole space of training x function; ``positions`` as in :class:`Amounts`."""
        if positions is None:
            yield from self._pairs()
            return
        count = len(self._models)
        yielded: set[Run] = set()
        chosen = itertools.product(TRAINING_POSITIONS[:positions], FUNCTION_POSITIONS[:positions])
        for training, function in chosen:
            for shift in range(count):
                for i in range(count):
                    run = self._pair(i, training, (i + shift) % count, function)
                    yielded.add(run)
                    yield run
        yield from (run for run in self._pairs() if run not in yielded)

    def _pair(self, i: int, training: int, j: int, function: int) -> Run:
        return Run(
            members=(
                self._workload(self._models[i], "training", training),
                self._workload(self._models[j], "function", function),
            )
        )

    def _pairs(self) -> Iterator[Run]:
        count = len(self._models)
        for round_ in range(16):
            for shift in range(count):
                for i in range(count):
                    j = (i + shift) % count
                    # Over sixteen rounds every pair of models gets every pair of batches once.
                    training = (i + shift + round_) % 4
                    function = (i + 2 * shift + round_ // 4) % 4
                    yield self._pair(i, training, j, function)

    def functions(self, *, smallest_first: bool = False) -> Iterator[Run]:
        """
        Every pair of functions at the smallest batch, and the other half of the square with another batch on one side
        (assumption A7: functions beside functions are pairs too). ``smallest_first`` puts the smallest batches first.
        """
        count = len(self._models)
        square = [(i, (i + shift) % count) for shift in range(count) for i in range(count)]
        if smallest_first:
            square.sort(key=lambda pair: pair[0] > pair[1])
        for i, j in square:
            second = 0 if i <= j else 2
            yield Run(
                members=(
                    self._workload(self._models[i], "function", 0),
                    self._workload(self._models[j], "function", second),
                )
            )

    def trainings(self) -> Iterator[Run]:
        """All pairs of trainings, each once: it has two directions. A training has itself as a partner too."""
        count = len(self._models)
        yielded: set[frozenset[Workload]] = set()
        for round_ in range(16):
            for shift in range(count):
                for i in range(count):
                    members = (
                        self._workload(self._models[i], "training", (i + shift + round_) % 4),
                        self._workload(
                            self._models[(i + shift) % count], "training", (i + 2 * shift + round_ // 4) % 4
                        ),
                    )
                    if frozenset(members) not in yielded:
                        yielded.add(frozenset(members))
                        yield Run(members=members)

    def several(self, amount: int, k_max: int) -> Iterator[Run]:
        """
        Ladders of one function up to eight at a time, then sets of two to ``k_max`` functions of few models beside a
        training.
        """
        yielded: set[Run] = set()
        ladders = [pair for pair in LADDERS if set(pair) <= set(self._models)]
        for k in (2, 4, 8):
            for training, function in ladders:
                run = self._together(training, [function] * k)
                yielded.add(run)
                yield run
        trainings = [model for model in SEVERAL_TRAININGS if model in self._models] or list(self._models)
        functions = [model for model in SEVERAL_FUNCTIONS if model in self._models] or list(self._models)
        generator = random.Random(self._seed)
        # With few models there may be fewer sets than asked for.
        for _ in range(100 * amount):
            k = 2 + len(yielded) % (k_max - 1)
            run = self._together(generator.choice(trainings), sorted(generator.choices(functions, k=k)))
            if run not in yielded:
                yielded.add(run)
                yield run

    def _together(self, training: str, functions: Sequence[str]) -> Run:
        members = (
            self._workload(training, "training", 1),
            *(self._workload(name, "function", 0) for name in functions),
        )
        return Run(members=members)

    def runs(self, amounts: Amounts) -> list[Run]:
        """The whole plan. The kinds are mixed in proportion; with ``pairs_first``, the others after the pairs."""
        pairs = _first(self.pairs(amounts.positions), amounts.pairs)
        # The repeated sets are spread over the whole list, and their repeats over the whole time.
        functions = _first(self.functions(smallest_first=amounts.positions is not None), amounts.functions)
        trainings = [
            *(Run(members=pair) for pair in itertools.combinations_with_replacement(amounts.named, 2)),
            *_first(self.trainings(), amounts.trainings),
        ]
        chosen = [
            *_spread(pairs, amounts.repeated),
            *_spread(functions, amounts.repeated_functions),
            *_spread(trainings, amounts.repeated_trainings),
        ]
        repeats = [Run(members=run.members, repeat=number) for number in range(1, amounts.times) for run in chosen]
        kinds = {
            "pairs": pairs,
            "functions": functions,
            "trainings": trainings,
            "several": _first(self.several(amounts.several, amounts.k_max), amounts.several),
            "repeats": repeats,
        }
        return [*(kinds.pop("pairs") if amounts.pairs_first else ()), *_mixed(kinds)]


def _first(runs: Iterator[Run], amount: int) -> list[Run]:
    return [run for run, _ in zip(runs, range(amount), strict=False)]


def _spread(runs: Sequence[Run], amount: int) -> Sequence[Run]:
    return runs[:: max(1, len(runs) // max(1, amount))][:amount]


def _mixed(kinds: Mapping[str, Sequence[Run]]) -> list[Run]:
    """The runs of all kinds, each kind in its order and spread evenly over the whole."""
    placed = [
        ((position + 0.5) / len(runs), kind, position) for kind, runs in kinds.items() for position in range(len(runs))
    ]
    return [kinds[kind][position] for _, kind, position in sorted(placed)]
