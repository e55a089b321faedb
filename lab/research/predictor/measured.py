"""What the laboratory makes of measured rows: the pairs of a profile, and a table of several profiles."""

from collections.abc import Mapping, Sequence

import numpy as np

from ml.predict.samples import METRICS, SOLO, Direction, Floats, Samples, features, sides, solo_features
from ml.predict.table import BoundedPredictor, place_table
from ml.rows import FEATURES, BadRow, PlaceProfile, Workload, degradation
from smore.domain.degradation import Weights
from smore.messages.degradation import BadTable, Table, decode, encode


def samples(profile: PlaceProfile, direction: Direction, *, name: str) -> Samples:
    """
    The pairs of a profile. A row with a member that has no solo row is skipped: nothing can be learned without
    features.
    """
    victims: list[Workload] = []
    aggressors: list[Workload] = []
    target: list[float] = []
    pair: list[int] = []
    pair_numbers: dict[frozenset[Workload], int] = {}
    for row in profile.colocations:
        for victim, aggressor in sides(row, direction):
            if victim.workload not in profile.solo or aggressor.workload not in profile.solo:
                continue
            victims.append(victim.workload)
            aggressors.append(aggressor.workload)
            target.append(degradation(victim, METRICS[direction]))
            pair.append(pair_numbers.setdefault(frozenset((victim.workload, aggressor.workload)), len(pair_numbers)))
    solo = profile.solo
    return Samples(
        name=name,
        direction=direction,
        victim=_stack([features(solo[w]) for w in victims], len(FEATURES)),
        aggressor=_stack([features(solo[w]) for w in aggressors], len(FEATURES)),
        victim_solo=_stack([solo_features(solo[w]) for w in victims], len(SOLO)),
        aggressor_solo=_stack([solo_features(solo[w]) for w in aggressors], len(SOLO)),
        target=np.array(target, float),
        victims=[w.model for w in victims],
        aggressors=[w.model for w in aggressors],
        pair=np.array(pair, np.int64),
    )


def _stack(rows: list[Floats], width: int) -> Floats:
    return np.stack(rows) if rows else np.zeros((0, width))


def build(
    profiles: Sequence[PlaceProfile],
    predictors: Mapping[tuple[str, str], Mapping[Direction, BoundedPredictor]],
    *,
    version: int,
    source: str,
    created_at: float,
    weights: Mapping[tuple[str, str], Weights] | None = None,
) -> Table:
    """
    The table of all devices and sharing modes, as a reader decodes it. ``predictors`` and ``weights`` have the key
    :attr:`ml.rows.DeviceMode.key`; ``created_at`` is in epoch seconds.

    Raises BadRow also for two profiles with one key, and for a profile without predictors (leave the profile out
    instead).
    """
    keys = [profile.place.key for profile in profiles]
    if len(set(keys)) != len(keys):
        raise BadRow("two profiles of one device and sharing mode: merge their rows first")
    places = [
        place_table(profile, predictors.get(key, {}), weights=(weights or {}).get(key))
        for key, profile in zip(keys, profiles, strict=True)
    ]
    try:
        return decode(encode(Table(version=version, source=source, created_at=created_at, places=places)))
    except BadTable as error:
        raise BadRow(f"the table cannot be published: {error}") from error
