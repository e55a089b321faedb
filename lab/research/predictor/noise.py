"""How much measurements of one pair differ: what no predictor can know."""

import numpy as np

from ml.predict.samples import Floats, Samples


def noise_rmsle(measured: Samples) -> float:
    """
    RMSLE to be expected of a predictor that knows the true degradation of each pair: the deviation of repeated
    measurements in log space, pooled over :func:`repeats`. NaN without repeats.
    """
    squares, freedom = repeats(measured).sum(axis=0)
    return float(np.sqrt(squares / freedom)) if freedom else float("nan")


def repeats(measured: Samples) -> Floats:
    """
    Of each pair that was measured more than once [n, 2]: the squared deviations from its mean in log space, and their
    degrees of freedom (measurements, less one for the mean).
    """
    logs = np.log1p(np.maximum(measured.target, 0.0))
    parts = []
    # In the function-on-function direction a pair number covers both directions, which the victim's features
    # distinguish. The two sides of a function beside itself were measured at once and are no repeat.
    keys = [(int(p), v.tobytes()) for p, v in zip(measured.pair, measured.victim, strict=True)]
    once = {
        key for key, v, a in zip(keys, measured.victim, measured.aggressor, strict=True) if not np.array_equal(v, a)
    }
    # In a fixed order: whoever draws from them draws the same again.
    for key in sorted(once):
        values = logs[[k == key for k in keys]]
        if len(values) > 1:
            parts.append(np.array([((values - values.mean()) ** 2).sum(), len(values) - 1]))
    return np.stack(parts) if parts else np.zeros((0, 2))
