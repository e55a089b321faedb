"""
Learning in the running platform: fits a challenger, judges it against the champion, publishes the better one, rolls
back, and watches for drift.

``python -m ml.learn.learning retrain [--if-due] [--anew] | rollback | restore | import FILE... | show`` takes the
platform's settings from the environment. Standard output ends with one JSON object. The ``learn`` worker runs it as a
child process (``scheduler/tasks/learn.py``), so that the memory of a fit is freed.

**Judging.** For each device and sharing mode, and each direction, the newest measurements that the champion has not
seen are held back, by whole pairs: half of the pairs with rows newer than the champion's newest row (without a
champion, a fifth of all pairs). The challenger is fitted without those rows. Both predict them, and the smaller RMSLE
(Eq. 2) wins. Older measurements of a held-back pair stay in the training rows, because the champion has seen them too.
The new version takes the winner of each direction (a winning challenger is fitted once more, on all rows). The version
is published if a challenger has won at least one direction. A direction that no predictor covers yet is won by the
challenger. The weights of Eq. 3 and 4 are judged in the same way, by whole sets of several workloads, profiled and
observed, on the table that the winners give: learned weights replace the champion's where their mean absolute error is
smaller, and weights of one replace the champion's where the champion's are worse than ones.

**Failing.** After any error the last good table stays published, and the reason is stored in ``predictors``.

**Drift.** The published bound on a function's P99 beside a training should hold for nearly all of its runs. Where it
held for less than :data:`DRIFT_COVERAGE` of at least :data:`DRIFT_RUNS` runs since it was published, that device and
sharing mode is left out of the table, and readers take the conservative rule, until a challenger wins the direction of
functions beside trainings there. There is no test for when the change happened or for slow trends. The degradation of
trainings is not watched, because their windows rarely hold one function alone.
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
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from sqlalchemy import Engine

from ml.learn import live
from ml.learn.challenge import (
    COVERAGE,
    Challenge,
    Predictors,
    Unusable,
    pack,
    place_words,
    unpack,
)
from ml.learn.dataset import Rows, gather, read_file
from ml.learn.live import History, PlaceKey
from ml.predict.pairwise import OURS
from ml.rows import profiles
from smore.domain.errors import NotFound, SmoreError
from smore.domain.predictor import PredictorState
from smore.domain.predictor import PredictorVersion as Version
from smore.messages.degradation import Table, Weight, decode, encode
from smore.postgres.connection import make_engine
from smore.postgres.predictors import Profiles
from smore.process import observability
from smore.process.environment import settings
from smore.process.settings import Settings
from smore.redis.connection import connect
from smore.redis.tables import Tables

log = observability.logger(__name__)

#: Folder of the measured rows that are part of the checkout.
DATA: Final = Path(__file__).parents[1] / "data"
#: New rows since the last fit that make another fit due (assumption A14: refit after 50 new rows).
NEW_ROWS: Final = 50
DRIFT_RUNS: Final = 200
DRIFT_COVERAGE: Final = 0.75
#: Nice value of the process that fits.
NICE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningResult:
    """
    The result of a command. ``published``: a table was published. ``kept``: the challenger is not better. ``failed``:
    an error. ``skipped``: nothing to do. ``stored``: rows were stored. The table changes only with ``published``.

    ``version`` is the predictor version that the command made or tried to make.
    """

    result: Literal["published", "kept", "failed", "skipped", "stored"]
    reason: str
    version: int | None = None


@dataclass(eq=False)
class Learning:
    """
    The learned predictors of one platform. Several processes may use it: a lock in Postgres admits one writer at a
    time.

    Raises SQLAlchemy's OperationalError while Postgres is away, and redis-py's error while Redis is away. ``data`` is
    the folder of the checkout's measured rows.
    """

    engine: Engine
    tables: Tables
    data: Path = DATA
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._profiles = Profiles(self.engine)

    # ---- commands ----------------------------------------------------------------------------------------------------

    def retrain(self, *, asked: bool = True, anew: bool = False) -> LearningResult:
        """
        Read new history, and fit if ``asked`` or if a fit is due: :data:`NEW_ROWS` new rows since the last fit, changed
        files in the checkout, or no champion. ``anew`` ignores the champion (for example because its artifact is of
        another format).
        """
        with self._profiles.exclusive(wait=False) as locked:
            if not locked:
                return LearningResult(result="skipped", reason="Another process holds the learning lock.")
            champion = self._profiles.champion()
            self._republish(champion)
            try:
                rows = gather(self.data, self._profiles.documents())
            except (ValueError, OSError) as error:
                return self._unreadable(error, asked)
            skipped_counts, drift = self._read_history(rows, champion)
            champion = self._profiles.champion()
            if not (asked or anew or self._due(rows, champion)):
                return drift or LearningResult(
                    result="skipped", reason=f"Fewer than {NEW_ROWS} new rows since the last fit."
                )
            if not rows.rows:
                return LearningResult(result="skipped", reason="Nothing has been measured so far.")
            return self._challenge(rows, None if anew else champion, skipped_counts)

    def roll_back(self) -> LearningResult:
        """
        Withdraw the champion: the predictor before it is published again under a new version, because versions only
        grow.

        It stays until :data:`NEW_ROWS` new rows have come or a retrain is asked for. Raises NotFound if there is no
        earlier predictor, Unusable if the earlier one is damaged.
        """
        with self._profiles.exclusive(wait=True):
            champion = self._profiles.champion()
            if champion is None:
                raise NotFound("No predictor is published.")
            former = self._profiles.before(_origin(champion))
            if former is None:
                raise NotFound(f"There is no predictor before version {_origin(champion)}.")
            blob, artifact = self._profiles.blobs(former.version)
            try:
                table = decode(blob)
                unpack(artifact)
            except (ValueError, OSError) as error:
                raise Unusable(f"Version {former.version} cannot be published again: {error}") from error
            # The rows of now count as seen by this version, so the next automatic fit waits for new ones.
            manifest = {**former.manifest, "copy_of": _origin(former), "rows": champion.manifest.get("rows")}
            manifest.pop("drift", None)
            version = self._profiles.begin(manifest)
            reason = f"Rolled back from version {champion.version} to version {_origin(former)}."
            self._promote(version, reason, manifest, table, artifact, PredictorState.ROLLED_BACK, reason)
            return LearningResult(result="published", reason=reason, version=version)

    def restore(self) -> LearningResult:
        """Publish the champion's table if Redis holds another version or none."""
        with self._profiles.exclusive(wait=False) as locked:
            if not locked:
                return LearningResult(result="skipped", reason="Another process holds the learning lock.")
            champion = self._profiles.champion()
            if not self._republish(champion):
                return LearningResult(
                    result="skipped",
                    reason="The champion's table is published already." if champion else "There is no champion.",
                )
            assert champion is not None
            return LearningResult(
                result="published",
                reason=f"Redis did not hold the table of version {champion.version}.",
                version=champion.version,
            )

    def take_in(self, paths: Sequence[Path]) -> LearningResult:
        """Store the rows of files, all or none. Raises BadRow with file and line, OSError, or InvalidInput."""
        documents = [asdict(row) for path in paths for row in read_file(path)]
        new = self._profiles.add(documents, "imported")
        return LearningResult(result="stored", reason=f"{new} of {len(documents)} rows are new.")

    def show(self) -> dict[str, Any]:
        """The published version, the numbers of stored rows, and the predictors that were made or tried."""
        champion = self._profiles.champion()
        return {
            "champion": champion.version if champion else None,
            "published": self.tables.version(),
            "rows": [asdict(count) for count in self._profiles.counts()],
            "predictors": [asdict(predictor) for predictor in self._profiles.predictors()],
        }

    # ---- new history -------------------------------------------------------------------------------------------------

    def _republish(self, champion: Version | None) -> bool:
        """Publish the champion's table if Redis lacks it; return whether it was published."""
        if champion is None or self.tables.version() == champion.version:
            return False
        try:
            table = decode(self._profiles.blobs(champion.version)[0])
        except ValueError as error:
            log.error("the champion's table cannot be published", version=champion.version, error=str(error))
            return False
        self.tables.publish(table)
        log.info("degradation table restored", version=champion.version)
        return True

    def _read_history(self, rows: Rows, champion: Version | None) -> tuple[Mapping[str, int], LearningResult | None]:
        """
        Store new rows from the platform's history, and check for drift. Returns the counts of runs and windows that
        were skipped, by reason, and the result of the drift check (None without drift).
        """
        until = self.clock() - live.SETTLED_S
        history = live.read(self.engine, since=until - live.LOOK_BACK_S, until=until)
        drift = self._check_drift(history, champion) if champion is not None else None
        live_rows = live.live_rows(history, live.solo_rows(profiles(rows.rows)), rows.observed)
        self._profiles.add([row.document() for row in live_rows.rows], "live")
        rows.observed += live_rows.rows
        rows.counts["observed"] += len(live_rows.rows)
        self._profiles.forget(rows.outlived)
        return live_rows.passed, drift

    def _due(self, rows: Rows, champion: Version | None) -> bool:
        # A version that only leaves a drifted table out is not a fit.
        last_fit = next(
            (predictor for predictor in self._profiles.predictors() if "drift" not in predictor.manifest), None
        )
        if last_fit is None or rows.digest != (last_fit.manifest.get("rows") or {}).get("digest"):
            return True
        return self._profiles.added_since(last_fit.created_at) >= (NEW_ROWS if champion else 1)

    def _unreadable(self, error: Exception, asked: bool) -> LearningResult:
        reason, last = f"The rows cannot be read: {error}", self._profiles.last()
        if not asked and last is not None and last.reason == reason:
            return LearningResult(result="failed", reason=reason, version=last.version)
        return self._reject(self._profiles.begin({}), reason, {})

    def _check_drift(self, history: History, champion: Version) -> LearningResult | None:
        """Publish the table without the devices and sharing modes whose bounds do not hold; None without drift."""
        try:
            table = decode(self._profiles.blobs(champion.version)[0])
        except ValueError:
            return None  # _republish has logged the error
        drifted = {place: covered for place, covered in coverage(history, table).items() if covered.drifted}
        if not drifted:
            return None
        words = "; ".join(
            f"{place_words(place)}: {covered.covered} of {covered.runs} runs within their bound"
            for place, covered in drifted.items()
        )
        suspended = [*champion.manifest.get("suspended", []), *map(list, drifted)]
        manifest = {
            **champion.manifest,
            "suspended": suspended,
            "drift": {place_words(place): asdict(covered) for place, covered in drifted.items()},
        }
        version = self._profiles.begin(manifest)
        kept = [place for place in table.places if (place.device, place.sharing_mode) not in drifted]
        artifact = self._profiles.blobs(champion.version)[1]
        reason = f"Drift: {words}. Left out of the table, whose bounds should hold for {COVERAGE:.0%} of runs."
        self._promote(version, reason, manifest, msgspec.structs.replace(table, places=kept), artifact)
        return LearningResult(result="published", reason=reason, version=version)

    # ---- a challenger ------------------------------------------------------------------------------------------------

    def _challenge(self, rows: Rows, champion: Version | None, skipped_counts: Mapping[str, int]) -> LearningResult:
        manifest: dict[str, Any] = {
            "recipe": OURS.name,
            "rows": rows.manifest(),
            "live_passed_over": dict(skipped_counts),
        }
        version = self._profiles.begin(manifest)
        try:
            challenge = Challenge(
                self._artifact(champion), champion.manifest if champion else {}, self._weights(champion)
            )
            for profile in profiles(rows.rows):
                challenge.judge(profile, rows)
            manifest |= challenge.manifest()
            if not challenge.won:
                return self._reject(version, f"Not better: {challenge.words()}", manifest, kept=True)
            places = challenge.tables()
            table = Table(version=version, source=f"predictor {version}", created_at=self.clock(), places=places)
            blob, artifact = encode(table), pack(challenge.chosen)
            decode(blob)
        except (ValueError, OSError, np.linalg.LinAlgError) as error:
            return self._reject(version, f"Failed: {error}", manifest)
        except Exception as error:
            self._reject(version, f"Failed: {type(error).__name__}: {error}", manifest)
            raise
        reason = f"Better: {challenge.words()}" if champion else f"The first: {challenge.words()}"
        self._promote(version, reason, manifest, table, artifact)
        return LearningResult(result="published", reason=reason, version=version)

    def _artifact(self, champion: Version | None) -> Predictors:
        if champion is None:
            return {}
        try:
            return unpack(self._profiles.blobs(champion.version)[1])
        except (ValueError, OSError) as error:
            raise Unusable(
                f"the predictors of version {champion.version} cannot be read ({error}); --anew fits without them"
            ) from error

    def _weights(self, champion: Version | None) -> Mapping[PlaceKey, Sequence[Weight]]:
        if champion is None:
            return {}
        try:
            table = decode(self._profiles.blobs(champion.version)[0])
        except ValueError as error:
            raise Unusable(
                f"the table of version {champion.version} cannot be read ({error}); --anew fits without it"
            ) from error
        return {(place.device, place.sharing_mode): place.weights for place in table.places}

    def _reject(self, version: int, reason: str, manifest: Mapping[str, Any], *, kept: bool = False) -> LearningResult:
        self._profiles.reject(version, reason=reason, manifest=manifest)
        log.info("predictor rejected", version=version, reason=reason)
        return LearningResult(result="kept" if kept else "failed", reason=reason, version=version)

    def _promote(
        self,
        version: int,
        reason: str,
        manifest: Mapping[str, Any],
        table: Table,
        artifact: bytes,
        former: PredictorState = PredictorState.RETIRED,
        former_reason: str | None = None,
    ) -> None:
        """
        Publish a version: first in Postgres, then in Redis. If the process dies in between, the next :meth:`restore`
        publishes the table from Postgres.
        """
        table = msgspec.structs.replace(table, version=version, created_at=self.clock())
        self._profiles.promote(
            version,
            reason=reason,
            manifest=manifest,
            table=encode(table),
            artifact=artifact,
            former=former,
            former_reason=former_reason,
        )
        self.tables.publish(table)
        log.info("degradation table published", version=version, reason=reason)


def _origin(version: Version) -> int:
    """The version that first held these predictors, if this one is a roll-back to it."""
    return int(version.manifest.get("copy_of") or version.version)


# ---- drift -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCoverage:
    """Number of runs beside a training since a table was published, and how many of them met their bound."""

    runs: int
    covered: int

    @property
    def drifted(self) -> bool:
        return self.runs >= DRIFT_RUNS and self.covered < DRIFT_COVERAGE * self.runs


def coverage(history: History, table: Table) -> dict[PlaceKey, BoundCoverage]:
    """
    Count, by device and sharing mode, the undisturbed runs of one function beside one training that the table has a
    bound for.
    """
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
    return {place: BoundCoverage(runs=count, covered=covered[place]) for place, count in runs.items()}


# ---- the command -----------------------------------------------------------------------------------------------------


@contextmanager
def learning(config: Settings) -> Iterator[Learning]:
    """The platform that the settings name. Raises ValueError if they name no Postgres or no Redis."""
    if config.postgres.url is None or config.redis.url is None:
        raise ValueError("SMORE_POSTGRES__URL and SMORE_REDIS__URL must be set")
    engine = make_engine(config.postgres.url, "learn")
    try:
        with connect(config) as client:
            yield Learning(engine, Tables(client, config.redis.prefix))
    finally:
        engine.dispose()


def yield_to_others(config: Settings) -> None:
    """Lower this process's priority, and keep it on the cores reserved for the platform."""
    os.nice(max(0, NICE - os.nice(0)))
    if config.platform_cores:
        os.sched_setaffinity(0, {int(core) for core in config.platform_cores.split(",")})


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ml.learn.learning", description="Fit, publish and inspect the platform's degradation predictors."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    retrain = commands.add_parser("retrain", help="fit a challenger, and publish it if it is better")
    retrain.add_argument("--if-due", action="store_true", help="only if a fit is due (enough new rows)")
    retrain.add_argument("--anew", action="store_true", help="ignore the present champion")
    commands.add_parser("rollback", help="publish the previous predictor again")
    commands.add_parser("restore", help="publish the champion's table to Redis if it is missing")
    commands.add_parser("import", help="store measured rows from files").add_argument("files", nargs="+", type=Path)
    commands.add_parser("show", help="show the published version, stored rows and past predictors")
    options = parser.parse_args(arguments)
    config = settings()
    observability.configure(config, "learn")
    yield_to_others(config)
    try:
        with learning(config) as platform:
            if options.command == "show":
                print(json.dumps(platform.show(), default=datetime.timestamp))
                return 0
            result = _run_command(platform, options)
    except (SmoreError, ValueError, OSError) as error:
        result = LearningResult(result="failed", reason=str(error))
    print(json.dumps(asdict(result)), flush=True)
    return 1 if result.result == "failed" else 0


def _run_command(platform: Learning, options: argparse.Namespace) -> LearningResult:
    match options.command:
        case "retrain":
            return platform.retrain(asked=not options.if_due, anew=options.anew)
        case "rollback":
            return platform.roll_back()
        case "restore":
            return platform.restore()
        case _:
            return platform.take_in(options.files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
