"""Figures of a comparison by configuration and by world, and how far the predictors of its worlds err."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from lab.research.compare.comparison import Comparison, Plan
from lab.research.compare.measures import interval_of
from lab.simulation.metrics import FIGURE_14, Interval
from lab.simulation.profiler import MEASURED_RMSLE, SIMULATED

#: Metrics of each configuration, as ``<metric>.<policy>.<configuration>``, and of each other world, as
#: ``<world>.<metric>.<policy>``.
EACH: Final = (*FIGURE_14, "dsr_admitted", "train_loss", "loaded")
#: Of each configuration with work of class batch.
OF_CLASSES: Final = ("missed", "bulk")


def intervals(compared: Comparison) -> dict[str, Interval]:
    """By configuration, of several, and by other world."""
    several = len(compared.configurations) > 1
    own = {
        f"{metric}.{policy}.{key}": interval_of(metric, by[policy][metric])
        for key, by in compared.configurations.items()
        if several
        for policy in compared.policies
        for metric in (*EACH, *OF_CLASSES)
        if metric in by[policy]
    }
    for world, configurations in compared.others.items():
        for policy in compared.policies:
            own |= {
                f"{world}.{metric}.{policy}": interval_of(metric, means(list(configurations.values()), policy, metric))
                for metric in (*EACH, "predictor_rmsle")
            }
            own |= {
                f"{world}.{metric}.{policy}.{key}": interval_of(metric, by[policy][metric])
                for key, by in configurations.items()
                if several
                for metric in ("dsr", "train_loss")
            }
    return own


def means(
    configurations: Sequence[Mapping[str, Mapping[str, Sequence[float]]]], policy: str, metric: str
) -> list[float]:
    """By seed, over the configurations in which all policies have a value, so that they are means over the same ones."""
    by_seed = [
        [
            by[policy][metric][seed]
            for by in configurations
            if not any(math.isnan(values[metric][seed]) for values in by.values())
        ]
        for seed in range(len(configurations[0][policy][metric]))
    ]
    return [math.fsum(values) / len(values) if values else math.nan for values in by_seed]


def predictor_errors(plan: Plan, compared: Comparison) -> dict[str, float]:
    """
    RMSLE by recipe of the predictor, ``predictor_rmsle.<recipe>``, with what the same recipe has on measured rows
    (``predictor_rmsle_measured``); by direction too, and without a recipe that of the preset.
    """
    figures: dict[str, float] = {}
    for policy in compared.policies:
        belief = plan.belief(policy)
        if belief.kind != "sampled" or f"predictor_rmsle.{belief.recipe}" in figures:
            continue
        values, measured = compared.values[policy], MEASURED_RMSLE.get(belief.recipe)
        for part in ("", *(f"_{direction}" for direction in SIMULATED)):
            figures[f"predictor_rmsle{part}.{belief.recipe}"] = interval_of("", values[f"predictor_rmsle{part}"]).mean
        if measured is not None:
            of = {direction: mean for direction, (mean, _, _) in measured.items()}
            figures[f"predictor_rmsle_measured.{belief.recipe}"] = math.fsum(of.values()) / len(of)
            figures |= {f"predictor_rmsle_measured_{name}.{belief.recipe}": value for name, value in of.items()}
    own = str((dict(plan.load().predictor) | dict(plan.predictor)).get("recipe", "ours"))
    for name in ("predictor_rmsle", "predictor_rmsle_measured"):
        if f"{name}.{own}" in figures:
            figures[name] = figures[f"{name}.{own}"]
    return figures


def errors_in_words(plan: Plan, compared: Comparison) -> list[str]:
    """A sentence for each recipe."""
    figures = predictor_errors(plan, compared)
    return [
        f"Predictor of {name.removeprefix('predictor_rmsle.')}: RMSLE {value:.3f} on pairs of this world that it had not"
        f" seen, {figures.get(name.replace('rmsle.', 'rmsle_measured.'), math.nan):.3f} on measured rows."
        for name, value in figures.items()
        if name.startswith("predictor_rmsle.")
    ]
