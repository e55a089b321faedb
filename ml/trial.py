"""
One challenger against one champion: fitted, judged on what was held back, and made into a table.

See ``ml/learning.py`` for the rules of judging.
"""

import io
import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

import msgspec
import numpy as np

from ml.evidence import Rows, hold_back, newest, pairs, points, samples_of
from ml.live import PlaceKey
from ml.rows import Profile, Workload
from ml.samples import DIRECTIONS, Direction, Floats, Samples
from smore.degradation import PlaceTable, Weight

RECIPE: Final = "ours"
SEED: Final = 0
#: Pairs that a fit needs: of fewer the 90 % bound is only the largest residual.
MIN_PAIRS: Final = 10
#: Held-back pairs that a judgement needs.
MIN_HELD: Final = 5
COVERAGE: Final = 0.9
#: Passes over the rows with several functions.
EPOCHS: Final = 30


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
    """Of ``ml/pairwise.py``, ``ml/table.py`` and ``ml/multiway.py``; imported by who fits: to find that nothing is due takes none of it."""
    from ml import pairwise, table

    def fit(samples: Samples, place: PlaceKey) -> Predictor:
        return pairwise.fit(samples, SEED, recipe=RECIPE, place=place)

    def place_table(profile: Profile, predictors: Mapping[Direction, Predictor]) -> PlaceTable:
        made = table.place_table(profile, predictors)
        return msgspec.structs.replace(made, weights=_weights(profile, made))

    return Craft(fit=fit, save=cast(Any, pairwise.save), load=pairwise.load, place_table=place_table)


def place_words(place: PlaceKey) -> str:
    return f"{place[0]} / {place[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    How one direction on one place was judged: ``new`` (nobody predicted it so far), ``better`` or ``kept``.

    Errors are RMSLE on the held-back samples, ``coverage`` the share of them within the challenger's bound, ``bias`` the mean of
    ln(1 + predicted) - ln(1 + measured). ``until``: the newest sample that the winner knows, epoch seconds. None = not known.
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


@dataclass(slots=True)
class Trial:
    """One challenger against one champion, place by place. ``former`` is the champion's manifest."""

    craft: Craft
    champion: Predictors
    former: Mapping[str, Any]
    verdicts: dict[PlaceKey, dict[Direction, Verdict]] = field(default_factory=dict)
    chosen: dict[PlaceKey, dict[Direction, Predictor]] = field(default_factory=dict)
    #: Places that are not in the table, and why.
    absent: dict[PlaceKey, str] = field(default_factory=dict)
    _profiles: dict[PlaceKey, Profile] = field(default_factory=dict)

    @property
    def won(self) -> bool:
        return any(one.verdict != "kept" for verdicts in self.verdicts.values() for one in verdicts.values())

    def judge(self, profile: Profile, rows: Rows) -> None:
        """Raises BadRow and whatever a fit raises."""
        place = profile.place.key
        self._profiles[place] = profile
        self.chosen[place], self.verdicts[place] = {}, {}
        for direction in DIRECTIONS:
            self._direction(profile, rows, direction)

    def _direction(self, profile: Profile, rows: Rows, direction: Direction) -> None:
        place = profile.place.key
        known = self.champion.get(place, {}).get(direction)
        found = points(profile, rows.observed, direction)
        if known is None and pairs(found) < MIN_PAIRS:
            return
        until = self._until(place, direction) if known is not None else None
        rest, held = hold_back(found, until)
        judged = pairs(held) >= (MIN_HELD if known is not None else 1) and pairs(rest) >= MIN_PAIRS
        challenger = champion = covered = bias = None
        if judged:
            judge, unseen = self.craft.fit(samples_of(rest, profile, direction), place), samples_of(held, profile, direction)
            expected = judge.predict(unseen)
            challenger = rmsle(expected, unseen.target)
            champion = rmsle(known.predict(unseen), unseen.target) if known is not None else None
            covered = float(np.mean(unseen.target <= judge.upper(unseen, COVERAGE)))
            bias = float(np.mean(_log(expected) - _log(unseen.target)))
        if known is None:
            verdict, why = "new", "nobody predicted it before"
            if challenger is not None:
                why += f"; RMSLE {challenger:.4f} on the newest {pairs(held)} pairs"
        elif challenger is None or champion is None:
            verdict = "kept"
            why = f"{pairs(held)} newer pairs held back and {pairs(rest)} to learn from, {MIN_HELD} and {MIN_PAIRS} are needed"
        else:
            # A champion that answers with what is no number loses.
            verdict = "kept" if champion <= challenger else "better"
            why = f"RMSLE {challenger:.4f} against {champion:.4f} on {pairs(held)} newer pairs"
        won = verdict != "kept"
        self.chosen[place][direction] = self.craft.fit(samples_of(found, profile, direction), place) if won else cast(Predictor, known)
        self.verdicts[place][direction] = Verdict(
            verdict=cast(Any, verdict),
            why=why,
            samples=len(found),
            pairs=pairs(found),
            held_samples=len(held),
            held_pairs=pairs(held),
            challenger=_finite(challenger),
            champion=_finite(champion),
            coverage=covered,
            bias=_finite(bias),
            until=_finite(newest(found) if won else until),
        )

    def _until(self, place: PlaceKey, direction: Direction) -> float:
        """The newest sample that the champion's predictor of this direction knows."""
        for one in self.former.get("places", []):
            if (one["device"], one["sharing_mode"]) == place:
                until = one["directions"].get(direction, {}).get("until")
                return -math.inf if until is None else float(until)
        return -math.inf

    def suspended(self) -> list[PlaceKey]:
        """Places that drifted and have not won since."""
        return [
            (device, mode)
            for device, mode in self.former.get("suspended", [])
            if (one := self.verdicts.get((device, mode), {}).get("function")) is None or one.verdict == "kept"
        ]

    def tables(self, rows: Rows) -> list[PlaceTable]:
        """Of every place that can be predicted whole and has not drifted. Raises BadRow, and Unusable where none can."""
        made = []
        suspended = self.suspended()
        for place, profile in self._profiles.items():
            lacking = _lacking(profile, self.chosen[place])
            if lacking or place in suspended:
                self.absent[place] = lacking or "its bounds did not hold, and no challenger has won since"
                continue
            made.append(overlay(self.craft.place_table(profile, self.chosen[place]), profile, rows))
        if not made and not suspended:
            raise Unusable("; ".join(f"{place_words(place)}: {why}" for place, why in self.absent.items()))
        return made

    def manifest(self) -> dict[str, Any]:
        places = [
            {"device": device, "sharing_mode": mode, "directions": {direction: asdict(one) for direction, one in verdicts.items()}}
            for (device, mode), verdicts in self.verdicts.items()
        ]
        absent = [{"device": device, "sharing_mode": mode, "why": why} for (device, mode), why in self.absent.items()]
        return {"places": places, "suspended": [list(place) for place in self.suspended()], "absent": absent}

    def words(self) -> str:
        """The verdicts in one line."""
        lines = []
        for place, verdicts in self.verdicts.items():
            told = [f"{direction} {one.verdict} ({one.why})" for direction, one in verdicts.items()]
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


# ---- from predictors to a table ----------------------------------------------------------------------------------------------------------


_Key: TypeAlias = tuple[Direction, Workload, Workload]
#: The directions that the platform measures itself.
_OVERLAID: Final[tuple[Direction, ...]] = ("training", "function")


def overlay(place: PlaceTable, profile: Profile, rows: Rows) -> PlaceTable:
    """
    The table with what the platform itself has measured since a pair's last profile (A14: the newest measured row replaces the other).

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
    return msgspec.structs.replace(place, **{name: values.tobytes() for name, values in cells.items()}, degradation=cost.tobytes())


def _weights(profile: Profile, place: PlaceTable) -> list[Weight]:
    """
    Weights of Eq. 3 and 4 learned from the rows with several functions, where rows that they have not seen say that they help.

    The platform's own history with several functions at once does not teach them yet.
    """
    from ml import multiway, table

    known = [row for row in profile.colocations if row.kind == "several" and all(m.workload in profile.solo for m in row.members)]
    if not known:
        return []
    pair = table.pair_wise(place)
    several = Profile(place=profile.place, solo=profile.solo, colocations=known)
    seen = multiway.evaluate(several, pair["training"], pair["function"], pair["functions"], epochs=EPOCHS, folds=5, seed=SEED)
    helps = {"training": seen.training, "function": seen.function, "functions": seen.function}
    learned = multiway.learn(several, pair["training"], pair["function"], pair["functions"], epochs=EPOCHS, seed=SEED).published()
    return [one for one in learned if (errors := helps[one.kind]) is not None and errors.learned < errors.ones]


# ---- predictors in one blob --------------------------------------------------------------------------------------------------------------

ARTIFACT_FORMAT: Final = 1
_INDEX: Final = "index.json"


def pack(predictors: Predictors, save: Callable[[Predictor, Path], None]) -> bytes:
    """A zip of a folder for each place and direction, and an index of them."""
    blob = io.BytesIO()
    index: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="smore-") as name, zipfile.ZipFile(blob, "w", zipfile.ZIP_DEFLATED) as archive:
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
    """The inverse of :func:`pack`. Raises Unusable for a blob that is cut or of another format, and what ``load`` raises."""
    found: dict[PlaceKey, dict[Direction, Predictor]] = {}
    with tempfile.TemporaryDirectory(prefix="smore-") as name:
        try:
            with zipfile.ZipFile(io.BytesIO(blob)) as archive:
                archive.extractall(name)  # which keeps to its folder
            index = json.loads(Path(name, _INDEX).read_text())
            if index["format"] != ARTIFACT_FORMAT:
                raise Unusable(f"the artifact has format {index['format']!r}, {ARTIFACT_FORMAT} is expected")
            entries = [(one["device"], one["sharing_mode"], one["direction"], str(one["folder"])) for one in index["predictors"]]
        except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise Unusable(f"the artifact is damaged: {error}") from error
        for device, mode, direction, folder in entries:
            found.setdefault((device, mode), {})[direction] = load(Path(name, folder))
    return found
