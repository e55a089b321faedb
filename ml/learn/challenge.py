"""
One challenger against one champion: fitted, judged on what was held back, and made into a table.

See ``ml/learn/learning.py`` for the rules of judging.
"""

import io
import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

import msgspec
import numpy as np

from ml.learn.dataset import Rows, groups, hold_back, newest, observations, points, samples_of
from ml.learn.live import PlaceKey
from ml.measure.rows import Profile, Workload
from ml.predict.multiway import Observation, Pairs, Side, Weights, learn, mean_error
from ml.predict.samples import DIRECTIONS, Direction, Floats, Samples
from ml.predict.table import pair_wise, place_table
from smore.messages.degradation import PlaceTable, Weight

RECIPE: Final = "ours"
SEED: Final = 0
#: Pairs that a fit needs: of fewer the 90 % bound is only the largest residual.
MIN_PAIRS: Final = 10
#: Held-back pairs (sets, for weights) that a judgement needs.
MIN_HELD: Final = 5
COVERAGE: Final = 0.9
#: Passes over the observations of several at a time.
EPOCHS: Final = 30
SIDES: Final[tuple[Side, ...]] = ("training", "function")


class Unusable(ValueError):
    """What was learned cannot be used; the message says what and why."""


class Predictor(Protocol):
    """What is fitted for one place and direction."""

    def predict(self, samples: Samples) -> Floats: ...

    def upper(self, samples: Samples, coverage: float = COVERAGE) -> Floats: ...


Predictors: TypeAlias = Mapping[PlaceKey, Mapping[Direction, Predictor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Craft:
    """How predictors are made, kept and turned into a place's table."""

    fit: Callable[[Samples, PlaceKey], Predictor]
    save: Callable[[Predictor, Path], None]
    load: Callable[[Path], Predictor]
    place_table: Callable[[Profile, Mapping[Direction, Predictor]], PlaceTable]


def craft() -> Craft:
    """
    Of ``ml/predict/pairwise.py`` and ``ml/predict/table.py``; the first is imported by who fits: to find that nothing
    is due takes none of it.
    """
    from ml.predict import pairwise

    def fit(samples: Samples, place: PlaceKey) -> Predictor:
        return pairwise.fit(samples, SEED, recipe=RECIPE, place=place)

    return Craft(fit=fit, save=cast(Any, pairwise.save), load=pairwise.load, place_table=place_table)


def place_words(place: PlaceKey) -> str:
    return f"{place[0]} / {place[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    How one direction on one place was judged: ``new`` (nobody predicted it so far), ``better`` or ``kept``.

    Errors are RMSLE on the held-back samples, ``coverage`` the share of them within the challenger's bound, ``bias``
    the mean of ln(1 + predicted) - ln(1 + measured). ``until``: the newest sample that the winner knows, epoch seconds.
    None = not known.
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
class Weighed:
    """
    How the weights of one sum on one place were judged: ``better`` (newly learned), ``kept`` (the champion's, or ones
    where it has none) or ``dropped`` (ones in place of the champion's).

    Errors are mean absolute errors on the held-back observations, with ones, the champion's weights and the
    challenger's; ``until`` is the newest observation that published weights know, epoch seconds. None = not known.
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
class Trial:
    """
    One challenger against one champion, place by place. ``former`` is the champion's manifest, ``weights`` are those of
    its table: a place that it lacks has weights of one.
    """

    craft: Craft
    champion: Predictors
    former: Mapping[str, Any]
    weights: Mapping[PlaceKey, Sequence[Weight]] = field(default_factory=dict)
    verdicts: dict[PlaceKey, dict[Direction, Verdict]] = field(default_factory=dict)
    chosen: dict[PlaceKey, dict[Direction, Predictor]] = field(default_factory=dict)
    #: Places that are not in the table, and why.
    absent: dict[PlaceKey, str] = field(default_factory=dict)
    weighed: dict[PlaceKey, dict[Side, Weighed]] = field(default_factory=dict)
    _tables: dict[PlaceKey, PlaceTable] = field(default_factory=dict)

    @property
    def won(self) -> bool:
        directions = [one.verdict for place in self.verdicts.values() for one in place.values()]
        weights = [one.verdict for place in self.weighed.values() for one in place.values()]
        return any(verdict != "kept" for verdict in (*directions, *weights))

    def judge(self, profile: Profile, rows: Rows) -> None:
        """
        Every direction of a place, then its weights, with the table that the winners give. A place that cannot be
        predicted whole, or that has drifted, has no table.

        Raises BadRow and whatever a fit raises.
        """
        place = profile.place.key
        self.chosen[place], self.verdicts[place], self.weighed[place] = {}, {}, {}
        for direction in DIRECTIONS:
            self._direction(profile, rows, direction)
        if lacking := _lacking(profile, self.chosen[place]):
            self.absent[place] = lacking
        elif place in self.suspended():
            self.absent[place] = "its bounds did not hold, and no challenger has won since"
        else:
            made = overlay(self.craft.place_table(profile, self.chosen[place]), profile, rows)
            found = observations(profile, rows.observed)
            weights = [weight for side in SIDES for weight in self._weigh(place, side, found, pair_wise(made))]
            self._tables[place] = msgspec.structs.replace(made, weights=weights)

    def _direction(self, profile: Profile, rows: Rows, direction: Direction) -> None:
        place = profile.place.key
        known = self.champion.get(place, {}).get(direction)
        found = points(profile, rows.observed, direction)
        if known is None and groups(found) < MIN_PAIRS:
            return
        until = self._until(place, "directions", direction) if known is not None else None
        rest, held = hold_back(found, until)
        judged = groups(held) >= (MIN_HELD if known is not None else 1) and groups(rest) >= MIN_PAIRS
        challenger = champion = covered = bias = None
        if judged:
            judge, unseen = (
                self.craft.fit(samples_of(rest, profile, direction), place),
                samples_of(held, profile, direction),
            )
            expected = judge.predict(unseen)
            challenger = rmsle(expected, unseen.target)
            champion = rmsle(known.predict(unseen), unseen.target) if known is not None else None
            covered = float(np.mean(unseen.target <= judge.upper(unseen, COVERAGE)))
            bias = float(np.mean(_log(expected) - _log(unseen.target)))
        if known is None:
            verdict, why = "new", "nobody predicted it before"
            if challenger is not None:
                why += f"; RMSLE {challenger:.4f} on the newest {groups(held)} pairs"
        elif challenger is None or champion is None:
            verdict = "kept"
            why = (
                f"{groups(held)} newer pairs held back and {groups(rest)} to learn from, {MIN_HELD} and {MIN_PAIRS} are"
                " needed"
            )
        else:
            # A champion that answers with what is no number loses.
            verdict = "kept" if champion <= challenger else "better"
            why = f"RMSLE {challenger:.4f} against {champion:.4f} on {groups(held)} newer pairs"
        won = verdict != "kept"
        self.chosen[place][direction] = (
            self.craft.fit(samples_of(found, profile, direction), place) if won else cast(Predictor, known)
        )
        self.verdicts[place][direction] = Verdict(
            verdict=cast(Any, verdict),
            why=why,
            samples=len(found),
            pairs=groups(found),
            held_samples=len(held),
            held_pairs=groups(held),
            challenger=_finite(challenger),
            champion=_finite(champion),
            coverage=covered,
            bias=_finite(bias),
            until=_finite(newest(found) if won else until),
        )

    def _weigh(self, place: PlaceKey, side: Side, of_place: Sequence[Observation], pairs: Pairs) -> list[Weight]:
        """Judge the weights of Eq. 3 or 4, and choose."""
        found = [one for one in of_place if one.side == side]
        former = [
            weight for weight in self.weights.get(place, ()) if (weight.kind == "training") == (side == "training")
        ]
        if not found:
            return former
        until = self._until(place, "weights", side) if former else None
        rest, held = hold_back(found, until)
        ones = champion = challenger = None
        verdict, why = "kept", f"{groups(held)} newer sets held back, {MIN_HELD} are needed"
        if groups(held) >= MIN_HELD:
            ones = champion = mean_error(Weights(), held, pairs)
            if former:
                champion = mean_error(Weights.of(former), held, pairs)
            challenger = mean_error(learn(rest, pairs, epochs=EPOCHS), held, pairs)
            verdict = "better" if challenger < min(ones, champion) else "dropped" if ones < champion else "kept"
            why = (
                f"mean error {challenger:.4f} against {champion:.4f}, with ones {ones:.4f}, on {groups(held)} newer"
                " sets"
            )
        won = verdict == "better"
        self.weighed[place][side] = Weighed(
            verdict=cast(Any, verdict),
            why=why,
            observations=len(found),
            sets=groups(found),
            held_observations=len(held),
            held_sets=groups(held),
            ones=ones,
            champion=champion,
            challenger=challenger,
            until=_finite(newest(found) if won else until if verdict == "kept" else None),
        )
        if won:
            return learn(found, pairs, epochs=EPOCHS).published()
        return former if verdict == "kept" else []

    def _until(self, place: PlaceKey, part: Literal["directions", "weights"], name: str) -> float:
        """The newest measurement that the champion's predictor of a direction, or its weights of a sum, know."""
        for one in self.former.get("places", []):
            if (one["device"], one["sharing_mode"]) == place:
                until = one.get(part, {}).get(name, {}).get("until")
                return -math.inf if until is None else float(until)
        return -math.inf

    def suspended(self) -> list[PlaceKey]:
        """Places that drifted and have not won since."""
        return [
            (device, mode)
            for device, mode in self.former.get("suspended", [])
            if (one := self.verdicts.get((device, mode), {}).get("function")) is None or one.verdict == "kept"
        ]

    def tables(self) -> list[PlaceTable]:
        """Of every place that has one. Raises Unusable where none has, unless all that had one have drifted."""
        if not self._tables and not self.suspended():
            raise Unusable("; ".join(f"{place_words(place)}: {why}" for place, why in self.absent.items()))
        return list(self._tables.values())

    def manifest(self) -> dict[str, Any]:
        places = [
            {
                "device": device,
                "sharing_mode": mode,
                "directions": {direction: asdict(one) for direction, one in verdicts.items()},
                "weights": {side: asdict(one) for side, one in self.weighed[device, mode].items()},
            }
            for (device, mode), verdicts in self.verdicts.items()
        ]
        absent = [{"device": device, "sharing_mode": mode, "why": why} for (device, mode), why in self.absent.items()]
        return {"places": places, "suspended": [list(place) for place in self.suspended()], "absent": absent}

    def words(self) -> str:
        """The verdicts in one line."""
        lines = []
        for place, verdicts in self.verdicts.items():
            told = [f"{direction} {one.verdict} ({one.why})" for direction, one in verdicts.items()]
            told += [f"weights of the {side} {one.verdict} ({one.why})" for side, one in self.weighed[place].items()]
            lines.append(f"{place_words(place)}: {', '.join(told) or 'too few pairs'}")
        lines += [f"{place_words(place)} is left out: {why}" for place, why in self.absent.items()]
        return "; ".join(lines) + "."


def _lacking(profile: Profile, predictors: Mapping[Direction, Predictor]) -> str:
    """Why a place cannot have a table, '' where it can."""
    roles = {workload.role for workload in profile.solo}
    if "function" not in roles:
        return "no function was profiled"
    needed: list[Direction] = ["training", "function"] if "training" in roles else ["functions"]
    missing = [direction for direction in needed if direction not in predictors]
    return f"fewer than {MIN_PAIRS} pairs of the direction {', '.join(missing)}" if missing else ""


def _finite(value: float | None) -> float | None:
    """For JSON, which has no other numbers."""
    return value if value is not None and math.isfinite(value) else None


def _log(fractions: Floats) -> Floats:
    logs: Floats = np.log1p(np.maximum(fractions, 0.0))
    return logs


def rmsle(predicted: Floats, measured: Floats) -> float:
    """Eq. 2: root mean square of the differences of ln(1 + degradation); what noise made negative counts as none."""
    return float(np.sqrt(np.mean((_log(predicted) - _log(measured)) ** 2)))


# ---- from predictors to a table --------------------------------------------------------------------------------------


_Key: TypeAlias = tuple[Direction, Workload, Workload]
#: The directions that the platform measures itself.
_OVERLAID: Final[tuple[Direction, ...]] = ("training", "function")


def overlay(place: PlaceTable, profile: Profile, rows: Rows) -> PlaceTable:
    """
    The table with what the platform itself has measured since a pair's last profile (A14: the newest measured row
    replaces the other).

    The bound keeps its distance in log space. ``degradation`` (A17) follows.
    """
    profiled: dict[_Key, float] = {}
    latest: dict[_Key, tuple[float, float]] = {}
    bare = Profile(place=profile.place, solo=profile.solo)
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
    names = [f"{direction}{kind}" for direction in _OVERLAID for kind in ("", "_upper")]
    cells = {name: np.frombuffer(getattr(place, name)).reshape(len(place.trainings), -1).copy() for name in names}
    row_of = {name: index for index, name in enumerate(place.trainings)}
    column_of = {name: index for index, name in enumerate(place.functions)}
    for (direction, victim, aggressor), (_, value) in latest.items():
        training, function = (victim, aggressor) if direction == "training" else (aggressor, victim)
        cell = row_of[str(training)], column_of[str(function)]
        upper = cells[f"{direction}_upper"]
        upper[cell] = (1.0 + value) * (1.0 + upper[cell]) / (1.0 + cells[direction][cell]) - 1.0
        cells[direction][cell] = value
    cost = (cells["training"] + cells["function"]).mean(axis=0)
    return msgspec.structs.replace(
        place, **{name: values.tobytes() for name, values in cells.items()}, degradation=cost.tobytes()
    )


# ---- predictors in one blob ------------------------------------------------------------------------------------------

ARTIFACT_FORMAT: Final = 1
_INDEX: Final = "index.json"


def pack(predictors: Predictors, save: Callable[[Predictor, Path], None]) -> bytes:
    """A zip of a folder for each place and direction, and an index of them."""
    blob = io.BytesIO()
    index: list[dict[str, str]] = []
    with (
        tempfile.TemporaryDirectory(prefix="smore-") as name,
        zipfile.ZipFile(blob, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for (device, mode), of_place in predictors.items():
            for direction, predictor in of_place.items():
                folder = Path(name, str(len(index)))
                save(predictor, folder)
                index.append({"device": device, "sharing_mode": mode, "direction": direction, "folder": folder.name})
                for path in sorted(folder.rglob("*")):
                    archive.write(path, path.relative_to(name))
        archive.writestr(_INDEX, json.dumps({"format": ARTIFACT_FORMAT, "predictors": index}))
    return blob.getvalue()


def unpack(blob: bytes, load: Callable[[Path], Predictor]) -> Predictors:
    """
    The inverse of :func:`pack`. Raises Unusable for a blob that is cut or of another format, and what ``load`` raises.
    """
    found: dict[PlaceKey, dict[Direction, Predictor]] = {}
    with tempfile.TemporaryDirectory(prefix="smore-") as name:
        try:
            with zipfile.ZipFile(io.BytesIO(blob)) as archive:
                archive.extractall(name)  # which keeps to its folder
            index = json.loads(Path(name, _INDEX).read_text())
            if index["format"] != ARTIFACT_FORMAT:
                raise Unusable(f"the artifact has format {index['format']!r}, {ARTIFACT_FORMAT} is expected")
            entries = [
                (one["device"], one["sharing_mode"], one["direction"], str(one["folder"]))
                for one in index["predictors"]
            ]
        except (
            zipfile.BadZipFile,
            zipfile.LargeZipFile,
            EOFError,
            OSError,
            KeyError,
            TypeError,
            json.JSONDecodeError,
        ) as error:
            raise Unusable(f"the artifact is damaged: {error}") from error
        for device, mode, direction, folder in entries:
            found.setdefault((device, mode), {})[direction] = load(Path(name, folder))
    return found
