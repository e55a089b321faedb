"""
One challenger against one champion: fit it, judge both on held-back measurements, and make the table of the winners.

The rules by which a challenger wins: the module docstring of ``ml/learn/learning.py``.
"""

import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
import numpy as np

from ml.learn.dataset import Rows, groups, hold_back, newest, observations, points, samples_of
from ml.learn.live import PlaceKey
from ml.predict.multiway import Observation, Pairs, Side, learn, mean_error, published, weights_of
from ml.predict.pairwise import ARRAYS, MANIFEST, OURS, FittedPredictor, dump, load
from ml.predict.samples import DIRECTIONS, Direction, Floats
from ml.predict.table import pair_wise, place_table
from ml.rows import PlaceProfile, Workload
from smore.domain.degradation import Weights
from smore.messages.degradation import PlaceTable, Weight

#: Pairs that a fit needs: with fewer, the 90 % bound is only the largest residual.
MIN_PAIRS: Final = 10
#: Held-back pairs (for weights: sets of workloads) that a verdict needs.
MIN_HELD: Final = 5
COVERAGE: Final = 0.9
#: Passes over the observations of several workloads at a time.
EPOCHS: Final = 30
SIDES: Final[tuple[Side, ...]] = ("training", "function")


class Unusable(ValueError):
    """A stored predictor or table cannot be used; the message says which and why."""


Predictors: TypeAlias = Mapping[PlaceKey, Mapping[Direction, FittedPredictor]]


def place_words(place: PlaceKey) -> str:
    """The name of a device and sharing mode for messages."""
    return f"{place[0]} / {place[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeVerdict:
    """
    The verdict on one direction on one device and sharing mode: ``new`` (no predictor before), ``better`` or ``kept``.

    ``challenger`` and ``champion`` are RMSLE on the held-back samples, ``coverage`` the share of them within the
    challenger's bound, ``bias`` the mean of ln(1 + predicted) - ln(1 + measured), ``until`` the time of the newest
    sample that the winner was fitted on (epoch seconds). None = unknown.
    """

    verdict: Literal["new", "better", "kept"]
    why: str
    samples: int
    pairs: int
    held_samples: int
    held_pairs: int
    challenger: float | None
    champion: float | None
    coverage: float | None
    bias: float | None
    until: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVerdict:
    """
    The verdict on the weights of Eq. 3 or 4 on one device and sharing mode: ``better`` (newly learned weights),
    ``kept`` (the champion's, or ones if it has none) or ``dropped`` (ones replace the champion's).

    ``ones``, ``champion`` and ``challenger`` are mean absolute errors on the held-back observations, with weights of
    one, the champion's and the challenger's; ``until`` is the time of the newest observation that the published weights
    were learned from (epoch seconds). None = unknown.
    """

    verdict: Literal["better", "kept", "dropped"]
    why: str
    observations: int
    sets: int
    held_observations: int
    held_sets: int
    ones: float | None
    champion: float | None
    challenger: float | None
    until: float | None


@dataclass(slots=True)
class Challenge:
    """
    One challenger against one champion, by device and sharing mode. ``former`` is the champion's manifest, ``weights``
    are the weights in its table; where it has none, weights of one hold.
    """

    champion: Predictors
    former: Mapping[str, Any]
    weights: Mapping[PlaceKey, Sequence[Weight]] = field(default_factory=dict)
    verdicts: dict[PlaceKey, dict[Direction, ChallengeVerdict]] = field(default_factory=dict)
    chosen: dict[PlaceKey, dict[Direction, FittedPredictor]] = field(default_factory=dict)
    #: Devices and sharing modes without a table, with the reason.
    excluded: dict[PlaceKey, str] = field(default_factory=dict)
    weight_verdicts: dict[PlaceKey, dict[Side, WeightVerdict]] = field(default_factory=dict)
    _tables: dict[PlaceKey, PlaceTable] = field(default_factory=dict)

    @property
    def won(self) -> bool:
        directions = [judged.verdict for by_direction in self.verdicts.values() for judged in by_direction.values()]
        weights = [judged.verdict for by_side in self.weight_verdicts.values() for judged in by_side.values()]
        return any(verdict != "kept" for verdict in (*directions, *weights))

    def judge(self, profile: PlaceProfile, rows: Rows) -> None:
        """
        Judge every direction of one device and sharing mode, then the weights, on the table that the winners give. No
        table is made where a direction lacks a predictor or where the bounds have drifted.

        Raises BadRow and whatever a fit raises.
        """
        place = profile.place.key
        self.chosen[place], self.verdicts[place], self.weight_verdicts[place] = {}, {}, {}
        for direction in DIRECTIONS:
            self._judge_direction(profile, rows, direction)
        if lacking := _lacking(profile, self.chosen[place]):
            self.excluded[place] = lacking
        elif place in self.suspended():
            self.excluded[place] = "its bounds did not hold, and no challenger has won since"
        else:
            table = overlay(place_table(profile, self.chosen[place]), profile, rows)
            observed_sets = observations(profile, rows.observed)
            weights = [
                weight for side in SIDES for weight in self._judge_weights(place, side, observed_sets, pair_wise(table))
            ]
            self._tables[place] = msgspec.structs.replace(table, weights=weights)

    def _judge_direction(self, profile: PlaceProfile, rows: Rows, direction: Direction) -> None:
        place = profile.place.key
        present = self.champion.get(place, {}).get(direction)
        measured = points(profile, rows.observed, direction)
        if present is None and groups(measured) < MIN_PAIRS:
            return
        until = self._seen_until(place, "directions", direction) if present is not None else None
        rest, held = hold_back(measured, until)
        judgeable = groups(held) >= (MIN_HELD if present is not None else 1) and groups(rest) >= MIN_PAIRS
        challenger = champion = coverage = bias = None
        if judgeable:
            judge = OURS.fit(samples_of(rest, profile, direction), place=place)
            unseen = samples_of(held, profile, direction)
            expected = judge.predict(unseen)
            challenger = rmsle(expected, unseen.target)
            champion = rmsle(present.predict(unseen), unseen.target) if present is not None else None
            coverage = float(np.mean(unseen.target <= judge.upper(unseen, COVERAGE)))
            bias = float(np.mean(_log(expected) - _log(unseen.target)))
        if present is None:
            verdict, why = "new", "no predictor before"
            if challenger is not None:
                why += f"; RMSLE {challenger:.4f} on the newest {groups(held)} pairs"
        elif challenger is None or champion is None:
            verdict = "kept"
            why = (
                f"{groups(held)} newer pairs held back and {groups(rest)} to learn from; {MIN_HELD} and {MIN_PAIRS} are"
                " needed"
            )
        else:
            # A NaN error of the champion compares false, so the champion loses.
            verdict = "kept" if champion <= challenger else "better"
            why = f"RMSLE {challenger:.4f} against {champion:.4f} on {groups(held)} newer pairs"
        won = verdict != "kept"
        self.chosen[place][direction] = (
            OURS.fit(samples_of(measured, profile, direction), place=place) if won else cast(FittedPredictor, present)
        )
        self.verdicts[place][direction] = ChallengeVerdict(
            verdict=cast(Any, verdict),
            why=why,
            samples=len(measured),
            pairs=groups(measured),
            held_samples=len(held),
            held_pairs=groups(held),
            challenger=_finite(challenger),
            champion=_finite(champion),
            coverage=coverage,
            bias=_finite(bias),
            until=_finite(newest(measured) if won else until),
        )

    def _judge_weights(
        self, place: PlaceKey, side: Side, of_place: Sequence[Observation], pairs: Pairs
    ) -> list[Weight]:
        """Judge the weights of Eq. 3 or 4 and return those to publish."""
        measured = [observation for observation in of_place if observation.side == side]
        former = [
            weight for weight in self.weights.get(place, ()) if (weight.kind == "training") == (side == "training")
        ]
        if not measured:
            return former
        until = self._seen_until(place, "weights", side) if former else None
        rest, held = hold_back(measured, until)
        ones = champion = challenger = None
        verdict, why = "kept", f"{groups(held)} newer sets held back; {MIN_HELD} are needed"
        if groups(held) >= MIN_HELD:
            ones = champion = mean_error(Weights(), held, pairs)
            if former:
                champion = mean_error(weights_of(former), held, pairs)
            challenger = mean_error(learn(rest, pairs, epochs=EPOCHS), held, pairs)
            verdict = "better" if challenger < min(ones, champion) else "dropped" if ones < champion else "kept"
            why = (
                f"mean error {challenger:.4f} against {champion:.4f}, with ones {ones:.4f}, on {groups(held)} newer"
                " sets"
            )
        won = verdict == "better"
        self.weight_verdicts[place][side] = WeightVerdict(
            verdict=cast(Any, verdict),
            why=why,
            observations=len(measured),
            sets=groups(measured),
            held_observations=len(held),
            held_sets=groups(held),
            ones=ones,
            champion=champion,
            challenger=challenger,
            until=_finite(newest(measured) if won else until if verdict == "kept" else None),
        )
        if won:
            return published(learn(measured, pairs, epochs=EPOCHS))
        return former if verdict == "kept" else []

    def _seen_until(self, place: PlaceKey, part: Literal["directions", "weights"], name: str) -> float:
        """Time of the newest measurement that the champion's predictor or weights were fitted on; -inf if unknown."""
        for entry in self.former.get("places", []):
            if (entry["device"], entry["sharing_mode"]) == place:
                until = entry.get(part, {}).get(name, {}).get("until")
                return -math.inf if until is None else float(until)
        return -math.inf

    def suspended(self) -> list[PlaceKey]:
        """Devices and sharing modes that have drifted and where no challenger has won since."""
        return [
            (device, mode)
            for device, mode in self.former.get("suspended", [])
            if (judged := self.verdicts.get((device, mode), {}).get("function")) is None or judged.verdict == "kept"
        ]

    def tables(self) -> list[PlaceTable]:
        """The tables that were made. Raises Unusable if there is none, unless drift is the only reason."""
        if not self._tables and not self.suspended():
            raise Unusable("; ".join(f"{place_words(place)}: {why}" for place, why in self.excluded.items()))
        return list(self._tables.values())

    def manifest(self) -> dict[str, Any]:
        places = [
            {
                "device": device,
                "sharing_mode": mode,
                "directions": {direction: asdict(judged) for direction, judged in verdicts.items()},
                "weights": {side: asdict(judged) for side, judged in self.weight_verdicts[device, mode].items()},
            }
            for (device, mode), verdicts in self.verdicts.items()
        ]
        excluded = [
            {"device": device, "sharing_mode": mode, "why": why} for (device, mode), why in self.excluded.items()
        ]
        return {"places": places, "suspended": [list(place) for place in self.suspended()], "absent": excluded}

    def words(self) -> str:
        """The verdicts as one line of text."""
        lines = []
        for place, verdicts in self.verdicts.items():
            verdict_words = [f"{direction} {judged.verdict} ({judged.why})" for direction, judged in verdicts.items()]
            verdict_words += [
                f"weights of the {side} {judged.verdict} ({judged.why})"
                for side, judged in self.weight_verdicts[place].items()
            ]
            lines.append(f"{place_words(place)}: {', '.join(verdict_words) or 'too few pairs'}")
        lines += [f"{place_words(place)} is left out: {why}" for place, why in self.excluded.items()]
        return "; ".join(lines) + "."


def _lacking(profile: PlaceProfile, predictors: Mapping[Direction, FittedPredictor]) -> str:
    """Why no table can be made for a profile, '' if one can."""
    roles = {workload.role for workload in profile.solo}
    if "function" not in roles:
        return "no function was profiled"
    needed: list[Direction] = ["training", "function"] if "training" in roles else ["functions"]
    missing = [direction for direction in needed if direction not in predictors]
    return f"fewer than {MIN_PAIRS} pairs of the direction {', '.join(missing)}" if missing else ""


def _finite(value: float | None) -> float | None:
    """None instead of NaN and infinities, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def _log(fractions: Floats) -> Floats:
    logs: Floats = np.log1p(np.maximum(fractions, 0.0))
    return logs


def rmsle(predicted: Floats, measured: Floats) -> float:
    """Eq. 2: root mean square of the differences of ln(1 + degradation); negative degradations (noise) count as 0."""
    return float(np.sqrt(np.mean((_log(predicted) - _log(measured)) ** 2)))


# ---- from predictors to a table --------------------------------------------------------------------------------------


_Key: TypeAlias = tuple[Direction, Workload, Workload]
#: The directions that the running platform measures.
_OVERLAID: Final[tuple[Direction, ...]] = ("training", "function", "trainings")
#: The matrix of each of them in the table; its rows are trainings.
_MATRICES: Final[Mapping[Direction, str]] = {
    "training": "training",
    "function": "function",
    "trainings": "training_on_training",
}


def overlay(place: PlaceTable, profile: PlaceProfile, rows: Rows) -> PlaceTable:
    """
    The table with the measurements that the running platform has made since a pair was last profiled (assumption A14:
    the newest measured row replaces older ones).

    A bound keeps its distance from the value in log space. ``degradation`` (assumption A17: the mean cost over
    trainings) is computed again.
    """
    profiled: dict[_Key, float] = {}
    latest: dict[_Key, tuple[float, float]] = {}
    bare = PlaceProfile(place=profile.place, solo=profile.solo)
    for direction in _OVERLAID:
        for point in points(profile, (), direction):
            key = direction, point.victim, point.aggressor
            profiled[key] = max(point.at, profiled.get(key, -math.inf))
        for point in points(bare, rows.observed, direction):
            key = direction, point.victim, point.aggressor
            if point.at > profiled.get(key, -math.inf):
                latest[key] = max((point.at, max(0.0, point.value)), latest.get(key, (-math.inf, 0.0)))
    if not latest:
        return place
    names = [f"{matrix}{kind}" for matrix in _MATRICES.values() for kind in ("", "_upper")]
    cells = {name: np.frombuffer(getattr(place, name)).reshape(len(place.trainings), -1).copy() for name in names}
    row_of = {name: index for index, name in enumerate(place.trainings)}
    column_of = {name: index for index, name in enumerate(place.functions)}
    for (direction, victim, aggressor), (_, value) in latest.items():
        if direction == "trainings" and not place.training_on_training:
            continue  # too few pairs were measured for a predictor
        row, column = (aggressor, victim) if direction == "function" else (victim, aggressor)
        cell = row_of[str(row)], (row_of if direction == "trainings" else column_of)[str(column)]
        expected, upper = (cells[f"{_MATRICES[direction]}{kind}"] for kind in ("", "_upper"))
        upper[cell] = (1.0 + value) * (1.0 + upper[cell]) / (1.0 + expected[cell]) - 1.0
        expected[cell] = value
    cost = (cells["training"] + cells["function"]).mean(axis=0)
    return msgspec.structs.replace(
        place, **{name: values.tobytes() for name, values in cells.items()}, degradation=cost.tobytes()
    )


# ---- predictors in one blob ------------------------------------------------------------------------------------------

ARTIFACT_FORMAT: Final = 1
_INDEX: Final = "index.json"


def pack(predictors: Predictors) -> bytes:
    """A zip file with one folder for each device, sharing mode and direction, and an index."""
    blob = io.BytesIO()
    index: list[dict[str, str]] = []
    with zipfile.ZipFile(blob, "w", zipfile.ZIP_DEFLATED) as archive:
        for (device, mode), of_place in predictors.items():
            for direction, predictor in of_place.items():
                folder = str(len(index))
                index.append({"device": device, "sharing_mode": mode, "direction": direction, "folder": folder})
                for name, content in dump(predictor).items():
                    archive.writestr(f"{folder}/{name}", content)
        archive.writestr(_INDEX, json.dumps({"format": ARTIFACT_FORMAT, "predictors": index}))
    return blob.getvalue()


def unpack(blob: bytes) -> Predictors:
    """
    The inverse of :func:`pack`. Raises Unusable for a damaged blob or another format, and BadArtifact for a
    damaged predictor.
    """
    predictors: dict[PlaceKey, dict[Direction, FittedPredictor]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            index = json.loads(archive.read(_INDEX))
            if index["format"] != ARTIFACT_FORMAT:
                raise Unusable(f"the artifact has format {index['format']!r}, {ARTIFACT_FORMAT} is expected")
            for entry in index["predictors"]:
                files = {name: archive.read(f"{entry['folder']}/{name}") for name in (ARRAYS, MANIFEST)}
                of_place = predictors.setdefault((entry["device"], entry["sharing_mode"]), {})
                of_place[entry["direction"]] = load(files)
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        zlib.error,
        EOFError,
        OSError,
        KeyError,
        TypeError,
        json.JSONDecodeError,
    ) as error:
        raise Unusable(f"the artifact is damaged: {error}") from error
    return predictors
