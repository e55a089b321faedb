"""The published degradation table (smore/messages/degradation.py) as the arrays that the policy reads."""

from collections import defaultdict

import numpy as np

from scheduler.policy.degradation import Degradation, weight_arrays
from scheduler.policy.kernel import Floats
from smore.messages import degradation as wire


class ArrayTable:
    """A :class:`scheduler.policy.degradation.PolicyTable` over a published one; each place becomes arrays once."""

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
    gamma, alpha, beta = weight_arrays(place.learned(), models)
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
        gamma=gamma,
        alpha=alpha,
        beta=beta,
        gain=matrix(place.usage_gain, f),
        cost=matrix(place.degradation, f),
    )
