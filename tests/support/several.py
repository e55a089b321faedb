"""What several workloads cost each other in a made-up world, for tests of Eq. 3 and 4."""

import random
from collections.abc import Callable

from smore.domain.degradation import Neighbour

MODELS = ("vgg16", "mobilenet", "deepvit", "resnet50", "bert", "roberta", "deepfm", "segnet")


class Generator:
    """
    Pairs drawn at random and a truth for several functions: ``truth(sum of pairs, k)``.

    Eight models; degradations of trainings 0.02..0.3, of functions 0.5..4 by a training and 0.3..1.5 by a function.
    """

    def __init__(self, truth: Callable[[float, int], float], noise: float = 0.0) -> None:
        self._truth, self._noise = truth, noise
        self._random = random.Random(7)
        draw = self._random.uniform
        self.tr = {(i, j): draw(0.02, 0.3) for i in MODELS for j in MODELS}
        self.fn = {(j, i): draw(0.5, 4.0) for i in MODELS for j in MODELS}
        self.ff = {(j, w): draw(0.3, 1.5) for w in MODELS for j in MODELS}

    def training(self) -> tuple[str, list[Neighbour[str]], float]:
        k = self._random.randint(2, 4)
        i, functions = self._random.choice(MODELS), self._random.choices(MODELS, k=k)
        neighbours = [Neighbour(j, self.tr[i, j]) for j in functions]
        return i, neighbours, self._actual(sum(one.degradation for one in neighbours), k)

    def function(self) -> tuple[str, Neighbour[str], list[Neighbour[str]], float]:
        k = self._random.randint(2, 4)
        i, j, others = self._random.choice(MODELS), self._random.choice(MODELS), self._random.choices(MODELS, k=k - 1)
        training = Neighbour(i, self.fn[j, i])
        neighbours = [Neighbour(w, self.ff[j, w]) for w in others]
        plain = training.degradation + sum(one.degradation for one in neighbours)
        return j, training, neighbours, self._actual(plain, k)

    def _actual(self, plain: float, k: int) -> float:
        return self._truth(plain, k) * (1 + self._random.gauss(0, self._noise))


def super_additive(plain: float, k: int) -> float:
    """Every further function makes all of them worse."""
    return plain * (1 + 0.35 * (k - 1))


def processor_sharing(plain: float, k: int) -> float:
    """Neighbours stand in each other's way too, so that together they cost less than the sum."""
    return plain / (1 + 0.2 * (k - 1))
