"""Measured rows as a profiling run would have written them, of a made-up device: what ``ml`` learns from in tests."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import combinations, product

from ml.learn.live import Observed
from ml.rows import FEATURES, Colocation, DeviceMode, Member, Role, Row, Solo, Timing, Workload

PLACE = DeviceMode(device="CPU partition: 1 core of X", sharing_mode="time-slice", driver="d", counter="cpu-time")
MODELS = ("resnet50", "bert", "vgg16", "deepfm")
#: Epoch seconds of the first row; the next one comes a minute later.
T0 = 1_790_000_000.0


def training(model: str = "resnet50", batch: int = 8) -> Workload:
    return Workload(model=model, preset="cpu", role="training", batch=batch)


def function(model: str = "resnet50", batch: int = 1) -> Workload:
    return Workload(model=model, preset="cpu", role="function", batch=batch)


def alone_s(workload: Workload) -> float:
    """Mean seconds of an iteration or a run."""
    return 0.01 * (1 + MODELS.index(workload.model)) * workload.batch * (3 if workload.role == "training" else 1)


def slowdown(victim: Workload, aggressor: Workload) -> float:
    """The truth of the made-up device: a fraction that grows with the aggressor's time and falls with the victim's."""
    return 0.3 * float((alone_s(aggressor) / alone_s(victim)) ** 0.5)


def timing(mean_s: float, n: int = 200) -> Timing:
    return Timing(n=n, mean=mean_s, p50=mean_s * 0.98, p95=mean_s * 1.1, p99=mean_s * 1.2)


def solo(workload: Workload, at: float = T0, place: DeviceMode = PLACE, **features: float) -> Solo:
    size = 1.0 + MODELS.index(workload.model)
    known = {name: size * (2 + number) for number, name in enumerate(FEATURES)} | {"batch": float(workload.batch)}
    known["flops"] = 1e9 * alone_s(workload)
    return Solo(
        place=place,
        workload=workload,
        features=known | features,
        timing=timing(alone_s(workload)),
        utilisation=0.6,
        memory_utilisation=None,
        device_memory_bytes=None,
        input_wait_s=0.3 * alone_s(workload) if workload.role == "training" else 0.0,
        cold_s={},
        kernels={},
        seconds=4.0,
        at=moment(at),
    )


def together(
    first: Workload, second: Workload, at: float, factor: float = 1.0, place: DeviceMode = PLACE
) -> Colocation:
    """Two workloads side by side; ``factor`` makes both of them slower than the truth."""
    members = tuple(
        Member(
            workload=one,
            timing=timing(alone_s(one) * (1 + factor * slowdown(one, other))),
            control=timing(alone_s(one)),
            solo=timing(alone_s(one)),
        )
        for one, other in ((first, second), (second, first))
    )
    return Colocation(place=place, members=members, utilisation=0.9, disturbance=0.0, seconds=8.0, at=moment(at))


def solos(place: DeviceMode = PLACE, batches: Sequence[int] = (2, 8)) -> list[Row]:
    roles: tuple[Role, ...] = ("training", "function")
    return [
        solo(Workload(model=model, preset="cpu", role=role, batch=batch), place=place)
        for model, role, batch in product(MODELS, roles, batches)
    ]


def pairs(
    count: int, *, start: float = T0, skip: int = 0, factor: float = 1.0, place: DeviceMode = PLACE
) -> Iterator[Colocation]:
    """``count`` of the 64 pairs of a training and a function after the first ``skip``, a minute apart."""
    space = [
        (training(a, x), function(b, y))
        for shift in range(4)
        for x, y in ((2, 2), (8, 8), (2, 8), (8, 2))
        for a, b in ((MODELS[i], MODELS[(i + shift) % 4]) for i in range(4))
    ]
    for number, (first, second) in enumerate(space[skip : skip + count]):
        yield together(first, second, start + 60.0 * number, factor, place)


def sets(first: int, last: int, factor: float) -> list[Observed]:
    """
    A training beside two functions, one set an hour, from the platform's own runs: ``factor`` times what both cost by
    themselves.

    From the ``first`` to before the ``last``; all 8 x 28 sets come before one recurs.
    """
    trainings, functions = (
        [make(model, batch) for model in MODELS for batch in (2, 8)] for make in (training, function)
    )
    couples = list(combinations(functions, 2))
    found = []
    for number in range(first, last):
        victim, beside = trainings[number % 8], couples[(number // 8 + 5 * number) % 28]
        slow = factor * sum(slowdown(victim, one) for one in beside)
        found.append(
            Observed(
                place=PLACE.key,
                direction="training",
                victim=victim,
                aggressor=beside[0],
                others=beside[1:],
                n=200,
                seconds=1 + slow,
                alone_s=1.0,
                alone_n=200,
                alone_from="live",
                at=T0 + 1e6 + 3600.0 * number,
            )
        )
    return found


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
