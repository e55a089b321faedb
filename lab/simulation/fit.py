"""
The interference model of a measured device mode: demands from solo rows, the parameters of
:class:`lab.simulation.interference.Law` and the bandwidths fitted.

What is compared is the mean time of every member of every co-location (Eq. 1), in log space as Eq. 2 does. Half of the
sets of members, drawn at random, is fitted by Levenberg and Marquardt's method with a weak prior that keeps what no row
tells about near the default value; the other half is held out, and its error stands in the result. Repeats of one set
are on one side.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lab.simulation.interference import (
    FUNCTION_DEMANDS,
    TRAINING_DEMANDS,
    Z99,
    InterferenceModel,
    Law,
    Use,
    encode,
)
from ml.rows import FEATURES, BadRow, Colocation, PlaceProfile, Workload, degradation, profiles, read
from smore.domain.function import FunctionSpec

Floats = NDArray[np.float64]

#: (role, parameter of its law) in the order in which they are fitted.
FITTED: Final = (
    *(("training", name) for name in ("memory", "exponent", "crowd", "by_function")),
    *(("function", name) for name in ("memory", "exponent", "crowd", "by_training", "by_function", "short")),
)
#: Where the prior is centred, and how far a parameter may leave it (a deviation in log space) for the price of one
#: residual of 0.1.
PRIOR: Final = {"memory": 0.20, "exponent": 1.3, "crowd": 0.03, "by_function": 0.5, "by_training": 1.0, "short": 0.3}
LOOSE: Final = 2.0
RESIDUAL: Final = 0.1
ROUNDS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """
    ``errors``: RMSLE and MAE of both halves, all and by kind; ``*_constant``: of the fitted half's mean; ``noise``: of
    repeats.
    """

    interference_model: InterferenceModel
    errors: Mapping[str, float]
    pairs: int
    held: int
    rows: str
    place: tuple[str, str]


def fit(path: Path, *, name: str, seed: int = 0) -> Fit:
    """
    From the rows of a file, under a name. Raises BadRow for a file of several places or with too few co-locations,
    OSError where there is none.
    """
    profiles_read = profiles(read(path))
    if len(profiles_read) != 1:
        raise BadRow(f"{path.name}: rows of {len(profiles_read)} places, one is expected")
    profile = profiles_read[0]
    # Two trainings on one GPU are simulated elsewhere (lab/simulation/jobs).
    usable = [
        row
        for row in profile.colocations
        if row.kind != "trainings" and all(member.workload in profile.solo for member in row.members)
    ]
    sets = sorted({_key(row) for row in usable})
    if len(sets) < 8:
        raise BadRow(f"{path.name}: {len(sets)} sets of members with solo rows, at least 8 are expected")
    order = np.random.default_rng([seed, 7]).permutation(len(sets))
    fitted = {sets[index] for index in order[: (len(sets) + 1) // 2]}
    inside = [row for row in usable if _key(row) in fitted]
    outside = [row for row in usable if _key(row) not in fitted]
    base = _base(profile, name)
    make = _maker(base)
    target = _observed(inside)

    def residuals(parameters: Floats) -> Floats:
        apart = _predicted(make(parameters), inside) - target
        return np.concatenate([apart, RESIDUAL * parameters / LOOSE])

    interference_model = make(least_squares(residuals, np.zeros(len(FITTED) + len(_bandwidths(base)))))
    errors: dict[str, float] = {}
    for name, rows in (("fitted", inside), ("held_out", outside)):
        errors |= {
            f"{name}.{key}": value for key, value in _errors(interference_model, rows, statistics.fmean(target)).items()
        }
    noise = _noise(usable)
    if noise is not None:
        errors["noise"] = noise
    return Fit(
        interference_model=interference_model,
        errors=errors,
        pairs=len(inside),
        held=len(outside),
        rows=path.name,
        place=profile.place.key,
    )


def document(fit: Fit, *, command: str) -> str:
    """The file that ``truth.load`` reads: the command, the errors, the parameters."""
    fields = {
        "command": command,
        "rows": fit.rows,
        "device": fit.place[0],
        "sharing_mode": fit.place[1],
        "colocations": {"fitted": fit.pairs, "held_out": fit.held},
        "errors": {name: round(value, 4) for name, value in fit.errors.items()},
        "truth": _rounded(encode(fit.interference_model)),
    }
    return lines(fields) + "\n"


def lines(value: object, depth: int = 0) -> str:
    """JSON with a line for each field of a mapping, but lists on one."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    pad = " " * (depth + 1)
    return (
        "{\n"
        + ",\n".join(f"{pad}{json.dumps(name)}: {lines(one, depth + 1)}" for name, one in value.items())
        + "\n"
        + " " * depth
        + "}"
    )


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def _key(row: Colocation) -> tuple[str, ...]:
    return tuple(sorted(str(member.workload) for member in row.members))


def _base(profile: PlaceProfile, name: str) -> InterferenceModel:
    """What solo rows tell: demands, times, memory, cold starts and noise."""
    measured: dict[str, Use] = {}
    cold: dict[str, list[float]] = {}
    spread: list[float] = []
    for workload, solo in sorted(profile.solo.items()):
        demands = TRAINING_DEMANDS if workload.role == "training" else FUNCTION_DEMANDS
        if workload.model not in demands:
            raise BadRow(f"{workload}: the model has no demands to begin with")
        if solo.utilisation is None or not 0 < solo.utilisation <= 1.5:
            raise BadRow(f"{workload}: a utilisation is needed, not {solo.utilisation!r}")
        measured[str(workload)] = Use(
            u=min(1.0, solo.utilisation),
            b=demands[workload.model][1],
            seconds=solo.timing.mean,
            memory_mib=max(FunctionSpec(entrypoint="").memory_mib, solo.features["memory_bytes"] / 2**20),
            features=tuple(float(solo.features[name]) for name in FEATURES),
        )
        if workload.role == "function":
            cold.setdefault(workload.model, []).append(math.fsum(solo.cold_s.values()))
            spread.append(math.log(solo.timing.p99 / solo.timing.p50) / Z99)

    def smallest(role: str) -> dict[str, Workload]:
        return {w.model: w for w in sorted((w for w in profile.solo if w.role == role), key=lambda w: -w.batch)}

    functions = smallest("function")
    return InterferenceModel(
        name=name,
        device=f"simulated {profile.place.device}",
        sharing_mode=profile.place.sharing_mode,
        preset=next(iter(profile.solo)).preset,
        demands={
            role: {model: (measured[str(w)].u, measured[str(w)].b) for model, w in smallest(role).items()}
            for role in ("training", "function")
        },
        warm_s={model: measured[str(w)].seconds for model, w in functions.items()},
        cold_s={model: statistics.median(values) for model, values in sorted(cold.items())},
        measured=measured,
        growth=0.0,
        noise=statistics.median(spread),
        load_b=0.3,
    )


def _bandwidths(base: InterferenceModel) -> list[tuple[str, str]]:
    return sorted({(name.split("/")[2], name.split("/")[0]) for name in base.measured})


def _maker(base: InterferenceModel) -> Callable[[Floats], InterferenceModel]:
    """Parameters as logarithms of factors on the prior's centre; bandwidths stay within 0..1."""
    sides = _bandwidths(base)

    def make(parameters: Floats) -> InterferenceModel:
        factors = np.exp(np.clip(parameters, -8.0, 8.0)).tolist()
        values: dict[str, dict[str, float]] = {"training": {}, "function": {}}
        for (role, name), factor in zip(FITTED, factors, strict=False):
            values[role][name] = min(5.0 if name == "exponent" else 10.0, PRIOR[name] * factor)
        b = dict(zip(sides, factors[len(FITTED) :], strict=True))

        def bandwidth(role: str, model: str, value: float) -> float:
            return float(min(1.0, value * b[role, model]))

        return replace(
            base,
            training=Law(**values["training"]),
            function=Law(**values["function"]),
            demands={
                role: {model: (u, bandwidth(role, model, value)) for model, (u, value) in demands.items()}
                for role, demands in base.demands.items()
            },
            measured={
                name: replace(use, b=bandwidth(name.split("/")[2], name.split("/")[0], use.b))
                for name, use in base.measured.items()
            },
        )

    return make


def _observed(rows: Sequence[Colocation]) -> Floats:
    """ln(1 + degradation of the mean) of every member of every row."""
    slowdowns = [degradation(member, "mean") for row in rows for member in row.members]
    return np.log1p(np.maximum(slowdowns, 0.0))


def _predicted(interference_model: InterferenceModel, rows: Sequence[Colocation]) -> Floats:
    slowdowns: list[float] = []
    for row in rows:
        first = row.members[0].workload
        training = (first.model, first.batch) if first.role == "training" else None
        place = interference_model.on(7, training)
        functions = [member.workload for member in row.members if member.workload.role == "function"]
        slow, each = place.slowdowns([place.kind(w.model, w.batch) for w in functions])
        slowdowns += [slow, *each] if training is not None else each
    return np.log(slowdowns)


def _errors(interference_model: InterferenceModel, rows: Sequence[Colocation], constant: float) -> dict[str, float]:
    predicted, observed = _predicted(interference_model, rows), _observed(rows)
    kinds = np.array(
        [
            ("several." if row.kind == "several" else "pair." if row.kind == "pair" else "functions.")
            + member.workload.role
            for row in rows
            for member in row.members
        ]
    )
    errors = {
        "rmsle": float(np.sqrt(np.mean((predicted - observed) ** 2))),
        "mae": float(np.mean(np.abs(np.expm1(predicted) - np.expm1(observed)))),
        "mae_constant": float(np.mean(np.abs(math.expm1(constant) - np.expm1(observed)))),
        "rmsle_constant": float(np.sqrt(np.mean((constant - observed) ** 2))),
    }
    for kind in sorted(set(kinds.tolist())):
        here = kinds == kind
        errors[f"rmsle.{kind}"] = float(np.sqrt(np.mean((predicted[here] - observed[here]) ** 2)))
        errors[f"mae.{kind}"] = float(np.mean(np.abs(np.expm1(predicted[here]) - np.expm1(observed[here]))))
    return errors


def _noise(rows: Sequence[Colocation]) -> float | None:
    """Pooled deviation of repeats in log space, the least RMSLE that any truth can have; None without repeats."""
    repeats: dict[tuple[str, ...], list[Floats]] = {}
    for row in rows:
        # The members of a set in one order, so that repeats can be laid side by side.
        ordered = replace(row, members=tuple(sorted(row.members, key=lambda member: str(member.workload))))
        repeats.setdefault(_key(row), []).append(_observed([ordered]))
    several = [np.stack(values) for values in repeats.values() if len(values) > 1]
    freedom = sum((len(values) - 1) * values.shape[1] for values in several)
    if not freedom:
        return None
    return math.sqrt(sum(float(((values - values.mean(axis=0)) ** 2).sum()) for values in several) / freedom)


def least_squares(residuals: Callable[[Floats], Floats], start: Floats) -> Floats:
    """
    Levenberg and Marquardt (Nocedal and Wright 2006, ch. 10) with differences for derivatives; a local minimum near
    ``start``.
    """
    x, damping = start.copy(), 1e-2
    now = residuals(x)
    for _ in range(ROUNDS):
        step = 1e-4
        jacobian = np.column_stack([(residuals(x + step * direction) - now) / step for direction in np.eye(len(x))])
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ now
        moved = False
        while damping < 1e8:
            change = np.linalg.solve(normal + damping * np.diag(np.maximum(normal.diagonal(), 1e-9)), -gradient)
            trial = residuals(x + change)
            if trial @ trial < now @ now:
                better = 1.0 - (trial @ trial) / (now @ now)
                x, now, damping, moved = x + change, trial, damping / 5.0, True
                break
            damping *= 5.0
        if not moved or better < 1e-6:
            break
    return x
