"""The published degradation table (smore/messages/degradation.py) as the arrays that the policy reads."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from scheduler.policy.degradation import Degradation
from scheduler.policy.kernel import K_MAX, Floats
from smore.messages import degradation as wire


class ArrayTable:
    """A :class:`scheduler.policy.degradation.Table` over a published one; each place becomes arrays once."""

    def __init__(self, table: wire.Table) -> None:
        self._version = table.version
        self._places = {(place.device, place.sharing_mode): arrays(place) for place in table.places}

    @property
    def version(self) -> int:
        return self._version

    def at(self, device: str, sharing_mode: str) -> Degradation | None:
        return self._places.get((device, sharing_mode))


def arrays(place: wire.PlaceTable) -> Degradation:
    """One place's table, its matrices not copied."""
    j, f = len(place.trainings), len(place.functions)
    models: dict[str, int] = {}

    def model(workload: str) -> int:
        return models.setdefault(workload.split("/")[0], len(models))

    batches: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for index, workload in enumerate(place.functions):
        name, size, _, batch = workload.split("/")
        batches[f"{name}/{size}"].append((int(batch), index))

    def matrix(raw: bytes, *shape: int) -> Floats:
        return np.frombuffer(raw, "<f8").reshape(shape) if raw else np.zeros((1, f))

    training_model = np.array([model(workload) for workload in place.trainings] or [0], np.int64)
    function_model = np.array([model(workload) for workload in place.functions], np.int64)
    return Degradation(
        trainings={workload: index for index, workload in enumerate(place.trainings)},
        batches={name: sorted(sizes) for name, sizes in batches.items()},
        training_model=training_model,
        function_model=function_model,
        training=matrix(place.training, j, f),
        training_upper=matrix(place.training_upper, j, f),
        function=matrix(place.function, j, f),
        function_upper=matrix(place.function_upper, j, f),
        functions=matrix(place.function_on_function, f, f),
        functions_upper=matrix(place.function_on_function_upper, f, f),
        gamma=_weights(place.weights, "training", models),
        alpha=_weights(place.weights, "function", models),
        beta=_weights(place.weights, "functions", models),
        gain=matrix(place.usage_gain, f),
        cost=matrix(place.degradation, f),
    )


def _weights(listed: Sequence[wire.Weight], kind: wire.Kind, models: dict[str, int]) -> Floats:
    """
    [K_MAX + 1, M, M]. 1 up to k = 1; a weight that was never learned at k is that of k - 1 (docs/paper.md, A11, A12).
    """
    weights = np.ones((K_MAX + 1, max(1, len(models)), max(1, len(models))))
    learned = {
        (w.k, w.victim, w.other): w.value for w in listed if w.kind == kind and w.victim in models and w.other in models
    }
    for k in range(2, K_MAX + 1):
        weights[k] = weights[k - 1]
        for (at, victim, other), value in learned.items():
            if at == k:
                weights[k, models[victim], models[other]] = value
    return weights
