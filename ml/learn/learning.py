"""
Learning in the running platform: fit a challenger, judge it, publish it or not, take it back, watch it.

``python -m ml.learn.learning retrain [--if-due] [--anew] | rollback | restore | import FILE... | show`` with the
platform's settings from the environment; stdout ends with one JSON object. The ``learn`` worker runs it as a child
(``scheduler/tasks/learn.py``), so that the memory of a fit comes back.

**Judging.** Per place and direction the newest part of what the champion has not seen is held back, whole pairs: half
of the pairs that have rows newer than its newest (without a champion a fifth of all pairs). The challenger is fitted
without those rows, the champion is as it is, both predict them, and the smaller RMSLE (Eq. 2) wins. What the champion
knew of a held-back pair the challenger may know too. The winner of each direction goes into the new version (a
challenger fitted once more, on all rows), which is published if a challenger has won anywhere. Where nobody has
predicted so far there is nothing to be better than. The weights of Eq. 3 and 4 are judged alike, by whole sets of
several workloads, profiled and observed, with the table that the winners give: learned ones replace the champion's
where their mean absolute error is smaller, and weights of one replace the champion's where those have become worse than
none.

**Failing.** Whatever goes wrong, the last good table stays where it is, and the reason stands in ``predictors``.

**Drift.** The published bound on a function's P99 beside a training should hold for nearly all of its runs. Where it
has held for less than :data:`DRIFT_COVERAGE` of :data:`DRIFT_RUNS` runs since it was published, that place is left out
of the table, so that readers take the conservative rule, until a challenger wins the direction of functions beside
trainings there. That is all: no test for the time of a change, no slow trend. Nothing watches the side of trainings,
whose windows rarely have one function alone.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from sqlalchemy import Engine

from ml.learn import live
from ml.learn.challenge import COVERAGE, RECIPE, Craft, Predictors, Trial, Unusable, craft, pack, place_words, unpack
from ml.learn.dataset import Rows, gather, read_file
from ml.learn.live import History, PlaceKey
from ml.measure.rows import profiles
from smore.domain.errors import NotFound, SmoreError
from smore.domain.predictor import PredictorState
from smore.messages.degradation import Table, Weight, decode, encode
from smore.postgres.predictors import Predictor as Version
from smore.postgres.predictors import Profiles
from smore.postgres.rows import make_engine
from smore.process import observability
from smore.process.settings import Settings, settings
from smore.redis.connection import connect
from smore.redis.tables import Tables

log = observability.logger(__name__)

#: The rows that come with the platform.
DATA: Final = Path(__file__).parents[1] / "data"
#: New rows since the last fit before another is worth its time (A14).
NEW_ROWS: Final = 50
DRIFT_RUNS: Final = 200
DRIFT_COVERAGE: Final = 0.75
#: Nice value of a fit.
NICE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What a command came to. ``kept``: the challenger is not better; ``failed``: something was wrong; either way the
    table is as before. ``stored``: rows are there.

    ``version`` is the predictor that this made, or tried to make.
    """

    result: Literal["published", "kept", "failed", "skipped", "stored"]
    reason: str
    version: int | None = None


class Learning:
    """
    The learned part of one platform. Several may be used at once: one at a time works, by a lock in Postgres.

    Postgres away is SQLAlchemy's OperationalError, Redis away redis-py's error. ``data`` is the folder of the
    checkout's rows.
    """

    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        *,
        data: Path = DATA,
        made: Craft | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._profiles = Profiles(engine)
        self._tables = tables
        self._data = data
        self._made = made
        self._clock = clock

    @property
    def _craft(self) -> Craft:
        self._made = self._made or craft()
        return self._made

    # ---- commands ----------------------------------------------------------------------------------------------------

    def retrain(self, *, asked: bool = True, anew: bool = False) -> Outcome:
        """
        Look at what is new, and fit where that is asked for or due: :data:`NEW_ROWS` rows more than at the last fit,
        other files in the checkout, or no champion. ``anew``: as if there were no champion (its artifact is of another
        version, say).
        """
        with self._profiles.working(wait=False) as mine:
            if not mine:
                return Outcome(result="skipped", reason="Another process is at it.")
            champion = self._profiles.champion()
            self._republish(champion)
            try:
                rows = gather(self._data, self._profiles.documents())
            except (ValueError, OSError) as error:
                return self._unreadable(error, asked)
            passed, drift = self._look(rows, champion)
            champion = self._profiles.champion()
            if not (asked or anew or self._due(rows, champion)):
                return drift or Outcome(result="skipped", reason=f"Fewer than {NEW_ROWS} new rows since the last fit.")
            if not rows.rows:
                return Outcome(result="skipped", reason="Nothing has been measured so far.")
            return self._challenge(rows, None if anew else champion, passed)

    def roll_back(self) -> Outcome:
        """
        Take the champion back: the one before is published again, under a new version, because versions only grow.

        It stays until :data:`NEW_ROWS` rows have come, or a retrain is asked for. Raises NotFound where there is none
        before, Unusable where that one is damaged.
        """
        with self._profiles.working(wait=True):
            champion = self._profiles.champion()
            if champion is None:
                raise NotFound("No predictor is published.")
            former = self._profiles.before(_origin(champion))
            if former is None:
                raise NotFound(f"There is no predictor before version {_origin(champion)}.")
            blob, artifact = self._profiles.blobs(former.version)
            try:
                table = decode(blob)
                unpack(artifact, self._craft.load)
            except (ValueError, OSError) as error:
                raise Unusable(f"Version {former.version} cannot be published again: {error}") from error
            # What there is now has been seen: the next fit by itself waits for more.
            manifest = {**former.manifest, "copy_of": _origin(former), "rows": champion.manifest.get("rows")}
            manifest.pop("drift", None)
            version = self._profiles.begin(manifest)
            reason = f"Rolled back from version {champion.version} to version {_origin(former)}."
            self._crown(version, reason, manifest, table, artifact, PredictorState.ROLLED_BACK, reason)
            return Outcome(result="published", reason=reason, version=version)

    def restore(self) -> Outcome:
        """Put the champion's table where Redis has another one or none."""
        with self._profiles.working(wait=False) as mine:
            if not mine:
                return Outcome(result="skipped", reason="Another process is at it.")
            champion = self._profiles.champion()
            if not self._republish(champion):
                return Outcome(
                    result="skipped",
                    reason="The champion's table is where it belongs." if champion else "There is no champion.",
                )
            assert champion is not None
            return Outcome(
                result="published", reason=f"Version {champion.version} was missing.", version=champion.version
            )

    def take_in(self, paths: Sequence[Path]) -> Outcome:
        """Store the rows of files. All or none: raises BadRow, with file and line, OSError, InvalidInput."""
        documents = [asdict(row) for path in paths for row in read_file(path)]
        new = self._profiles.add(documents, "imported")
        return Outcome(result="stored", reason=f"{new} of {len(documents)} rows are new.")

    def show(self) -> dict[str, Any]:
        """What is published, stored and was tried."""
        champion = self._profiles.champion()
        return {
            "champion": champion.version if champion else None,
            "published": self._tables.version(),
            "rows": [asdict(count) for count in self._profiles.counts()],
            "predictors": [asdict(one) for one in self._profiles.predictors()],
        }

    # ---- looking -----------------------------------------------------------------------------------------------------

    def _republish(self, champion: Version | None) -> bool:
        """Whether something was published."""
        if champion is None or self._tables.version() == champion.version:
            return False
        try:
            table = decode(self._profiles.blobs(champion.version)[0])
        except ValueError as error:
            log.error("the champion's table cannot be published", version=champion.version, error=str(error))
            return False
        self._tables.publish(table)
        log.info("degradation table restored", version=champion.version)
        return True

    def _look(self, rows: Rows, champion: Version | None) -> tuple[Mapping[str, int], Outcome | None]:
        """
        Take new rows out of the platform's history, and watch for drift: (what was passed over for what, drift if there
        is any).
        """
        until = self._clock() - live.SETTLED_S
        history = live.read(self._engine, since=until - live.LOOK_BACK_S, until=until)
        drift = self._watch(history, champion) if champion is not None else None
        found = live.live_rows(history, live.solo_rows(profiles(rows.rows)), rows.observed)
        self._profiles.add([row.document() for row in found.rows], "live")
        rows.observed += found.rows
        rows.counts["observed"] += len(found.rows)
        self._profiles.forget(rows.outlived)
        return found.passed, drift

    def _due(self, rows: Rows, champion: Version | None) -> bool:
        # To leave a place out was no fit.
        last = next((one for one in self._profiles.predictors() if "drift" not in one.manifest), None)
        if last is None or rows.digest != (last.manifest.get("rows") or {}).get("digest"):
            return True
        return self._profiles.added_since(last.created_at) >= (NEW_ROWS if champion else 1)

    def _unreadable(self, error: Exception, asked: bool) -> Outcome:
        reason, last = f"The rows cannot be read: {error}", self._profiles.last()
        if not asked and last is not None and last.reason == reason:
            return Outcome(result="failed", reason=reason, version=last.version)
        return self._reject(self._profiles.begin({}), reason, {})

    def _watch(self, history: History, champion: Version) -> Outcome | None:
        """Leave out of the table the places where its bounds do not hold."""
        try:
            table = decode(self._profiles.blobs(champion.version)[0])
        except ValueError:
            return None  # _republish has said so
        drifted = {place: seen for place, seen in coverage(history, table).items() if seen.drifted}
        if not drifted:
            return None
        words = "; ".join(
            f"{place_words(place)}: {seen.covered} of {seen.runs} runs within their bound"
            for place, seen in drifted.items()
        )
        suspended = [*champion.manifest.get("suspended", []), *map(list, drifted)]
        manifest = {
            **champion.manifest,
            "suspended": suspended,
            "drift": {place_words(place): asdict(seen) for place, seen in drifted.items()},
        }
        version = self._profiles.begin(manifest)
        kept = [place for place in table.places if (place.device, place.sharing_mode) not in drifted]
        artifact = self._profiles.blobs(champion.version)[1]
        reason = f"Drift: {words}. Left out of the table, where {COVERAGE:.0%} are promised."
        self._crown(version, reason, manifest, msgspec.structs.replace(table, places=kept), artifact)
        return Outcome(result="published", reason=reason, version=version)

    # ---- a challenger ------------------------------------------------------------------------------------------------

    def _challenge(self, rows: Rows, champion: Version | None, passed: Mapping[str, int]) -> Outcome:
        manifest: dict[str, Any] = {"recipe": RECIPE, "rows": rows.manifest(), "live_passed_over": dict(passed)}
        version = self._profiles.begin(manifest)
        try:
            trial = Trial(
                self._craft, self._artifact(champion), champion.manifest if champion else {}, self._weights(champion)
            )
            for profile in profiles(rows.rows):
                trial.judge(profile, rows)
            manifest |= trial.manifest()
            if not trial.won:
                return self._reject(version, f"Not better: {trial.words()}", manifest, kept=True)
            places = trial.tables()
            table = Table(version=version, source=f"predictor {version}", created_at=self._clock(), places=places)
            blob, artifact = encode(table), pack(trial.chosen, self._craft.save)
            decode(blob)
        except (ValueError, OSError, np.linalg.LinAlgError) as error:
            return self._reject(version, f"Failed: {error}", manifest)
        except Exception as error:
            self._reject(version, f"Failed: {type(error).__name__}: {error}", manifest)
            raise
        reason = f"Better: {trial.words()}" if champion else f"The first: {trial.words()}"
        self._crown(version, reason, manifest, table, artifact)
        return Outcome(result="published", reason=reason, version=version)

    def _artifact(self, champion: Version | None) -> Predictors:
        if champion is None:
            return {}
        try:
            return unpack(self._profiles.blobs(champion.version)[1], self._craft.load)
        except (ValueError, OSError) as error:
            raise Unusable(
                f"the predictors of version {champion.version} cannot be read ({error}); --anew begins without them"
            ) from error

    def _weights(self, champion: Version | None) -> Mapping[PlaceKey, Sequence[Weight]]:
        if champion is None:
            return {}
        try:
            table = decode(self._profiles.blobs(champion.version)[0])
        except ValueError as error:
            raise Unusable(
                f"the table of version {champion.version} cannot be read ({error}); --anew begins without it"
            ) from error
        return {(place.device, place.sharing_mode): place.weights for place in table.places}

    def _reject(self, version: int, reason: str, manifest: Mapping[str, Any], *, kept: bool = False) -> Outcome:
        self._profiles.reject(version, reason=reason, manifest=manifest)
        log.info("predictor rejected", version=version, reason=reason)
        return Outcome(result="kept" if kept else "failed", reason=reason, version=version)

    def _crown(
        self,
        version: int,
        reason: str,
        manifest: Mapping[str, Any],
        table: Table,
        artifact: bytes,
        former: PredictorState = PredictorState.RETIRED,
        former_reason: str | None = None,
    ) -> None:
        """First in Postgres: what dies before Redis has the table too, the next :meth:`restore` makes good."""
        table = msgspec.structs.replace(table, version=version, created_at=self._clock())
        self._profiles.crown(
            version,
            reason=reason,
            manifest=manifest,
            table=encode(table),
            artifact=artifact,
            former=former,
            former_reason=former_reason,
        )
        self._tables.publish(table)
        log.info("degradation table published", version=version, reason=reason)


def _origin(version: Version) -> int:
    """The version whose predictors these are, before they were rolled back to."""
    return int(version.manifest.get("copy_of") or version.version)


# ---- drift -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Runs beside a training since a table was published, and how many of them ended within their bound."""

    runs: int
    covered: int

    @property
    def drifted(self) -> bool:
        return self.runs >= DRIFT_RUNS and self.covered < DRIFT_COVERAGE * self.runs


def coverage(history: History, table: Table) -> dict[PlaceKey, Seen]:
    """By place, for undisturbed runs of one function beside one training that the table knows."""
    runs: Counter[PlaceKey] = Counter()
    covered: Counter[PlaceKey] = Counter()
    places = {(place.device, place.sharing_mode): place for place in table.places}
    rows = {key: {name: index for index, name in enumerate(place.trainings)} for key, place in places.items()}
    batches: dict[tuple[PlaceKey, str], list[tuple[int, int]]] = {}
    for run, training, functions in live.undisturbed(history):
        place = places.get(run.place)
        if place is None or training is None or functions or run.start <= table.created_at:
            continue
        row = rows[run.place].get(str(training))
        if (run.place, run.model) not in batches:
            batches[run.place, run.model] = place.function_rows(*run.model.split("/"))
        column = next((index for batch, index in batches[run.place, run.model] if batch >= run.rows), None)
        if row is None or column is None:
            continue
        solo_s = memoryview(place.solo_s).cast("d")[column]
        runs[run.place] += 1
        covered[run.place] += run.run_s <= solo_s * (1.0 + place.cell(place.function_upper, row, column))
    return {place: Seen(runs=count, covered=covered[place]) for place, count in runs.items()}


# ---- the command -----------------------------------------------------------------------------------------------------


@contextmanager
def learning(config: Settings) -> Iterator[Learning]:
    """Of the platform that the settings name. Raises ValueError where they do not."""
    if config.postgres.url is None or config.redis.url is None:
        raise ValueError("SMORE_POSTGRES__URL and SMORE_REDIS__URL must be set")
    engine = make_engine(config.postgres.url, "learn")
    try:
        with connect(config) as client:
            yield Learning(engine, Tables(client, config.redis.prefix))
    finally:
        engine.dispose()


def yield_to_others(config: Settings) -> None:
    """Low priority, and only the cores that are the platform's own."""
    os.nice(max(0, NICE - os.nice(0)))
    if config.platform_cores:
        os.sched_setaffinity(0, {int(core) for core in config.platform_cores.split(",")})


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ml.learn.learning", description="What the platform has learned of degradation."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    retrain = commands.add_parser("retrain", help="fit, judge, and publish where it is better")
    retrain.add_argument("--if-due", action="store_true", help="only where enough is new")
    retrain.add_argument("--anew", action="store_true", help="as if there were no champion")
    commands.add_parser("rollback", help="publish the predictor before this one again")
    commands.add_parser("restore", help="put the champion's table into a Redis that lost it")
    commands.add_parser("import", help="store the rows of files").add_argument("files", nargs="+", type=Path)
    commands.add_parser("show", help="what is published, stored and was tried")
    options = parser.parse_args(arguments)
    config = settings()
    observability.configure(config, "learn")
    yield_to_others(config)
    try:
        with learning(config) as door:
            if options.command == "show":
                print(json.dumps(door.show()))
                return 0
            outcome = _carry_out(door, options)
    except (SmoreError, ValueError, OSError) as error:
        outcome = Outcome(result="failed", reason=str(error))
    print(json.dumps(asdict(outcome)), flush=True)
    return 1 if outcome.result == "failed" else 0


def _carry_out(door: Learning, options: argparse.Namespace) -> Outcome:
    match options.command:
        case "retrain":
            return door.retrain(asked=not options.if_due, anew=options.anew)
        case "rollback":
            return door.roll_back()
        case "restore":
            return door.restore()
        case _:
            return door.take_in(options.files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
