"""Generated pairs of workloads, for predictors."""

import numpy as np

from ml.predict.pairwise import FittedPredictor, log_target
from ml.predict.samples import SOLO, Direction, Floats, Ints, Samples
from ml.rows import FEATURES


def alone(mean_s: Floats, wait_s: Floats | float = 0.0) -> Floats:
    """:data:`SOLO` [n] of workloads of which only times are known."""
    known = {
        "mean_s": mean_s,
        "p50_s": 0.98 * mean_s,
        "p99_s": 1.2 * mean_s,
        "wait_s": wait_s + 0 * mean_s,
        "busy_s": mean_s - wait_s,
    }
    return np.column_stack([known.get(name, np.full(len(mean_s), np.nan)) for name in SOLO])


def world(count: int, seed: int, *, models: int = 8, noise: float = 0.1, direction: Direction = "training") -> Samples:
    """
    ``count`` pairs of configurations (a model in one of four batches), drawn without replacement. Each model has a
    weight as an aggressor and a sensitivity as a victim that no feature tells; the degradation also grows with the
    aggressor's share of the time.
    """
    generator = np.random.default_rng(seed)
    architecture = np.exp(generator.normal(2.0, 1.0, (models, len(FEATURES))))
    sensitive, heavy = generator.normal(0.0, 0.7, (2, models))
    speed = np.exp(generator.normal(0.0, 0.3, models))
    batches = np.array([1.0, 2.0, 4.0, 8.0])
    configuration = 4 * models
    drawn = generator.choice(configuration**2, count, replace=False)

    def side(which: Ints) -> tuple[Ints, Floats, Floats]:
        model, batch = which // 4, batches[which % 4]
        table = architecture[model].copy()
        table[:, FEATURES.index("flops")] *= 1e8 * batch
        table[:, FEATURES.index("memory_bytes")] *= 1e6 * batch
        table[:, FEATURES.index("batch")] = batch
        return model, table, 1e-3 * batch * speed[model] * architecture[model, 0]

    victim, victim_table, victim_s = side(drawn // configuration)
    aggressor, aggressor_table, aggressor_s = side(drawn % configuration)
    power = 1.2 * aggressor_s / (aggressor_s + victim_s) + sensitive[victim] + heavy[aggressor] - 0.5
    logs = np.exp(power) + generator.normal(0.0, noise, count)
    return Samples(
        name="world",
        direction=direction,
        victim=victim_table,
        aggressor=aggressor_table,
        victim_solo=alone(victim_s),
        aggressor_solo=alone(aggressor_s),
        target=np.expm1(logs),
        victims=[f"m{m}" for m in victim],
        aggressors=[f"m{m}" for m in aggressor],
        pair=np.arange(count),
    )


def rmsle(predictor: FittedPredictor, held: Samples) -> float:
    return float(np.sqrt(((log_target(held) - np.log1p(predictor.predict(held))) ** 2).mean()))


def halves(samples: Samples, count: int) -> tuple[Samples, Samples]:
    return samples.take(np.arange(count)), samples.take(np.arange(count, len(samples)))
