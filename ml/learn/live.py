"""
Measured rows from the running platform: what executions and job windows in Postgres say about pairs of workloads and
about several workloads at a time (assumption A13: only runs with a fixed set of co-runners are measurements).

A measurement counts only if the co-runners did not change while it lasted, so that it measures their cost alone:

* **A function beside one training.** Runs that were warm, succeeded, and shared the GPU instance with one serverful job
  only, which was present before and after the run. At least :data:`MIN_RUNS` of them in a cell (the function's model
  and rows, the training's workload, device and sharing mode) make one row: their P99 over the P99 alone. The reference
  is the same workload on the same device and sharing mode without a job, if it ran as often, otherwise its profile.
* **A training beside one function.** Windows with :data:`MIN_ITERATIONS` shared iterations, in which exactly one
  function ran, one run at a time, and for :data:`COVER` of those iterations' time. The share is needed because an
  iteration counts as shared as soon as a function touches it: a function that works half of the time costs half of what
  the table means. The reference is the mean without a function, otherwise the profile.
* **A training beside a training.** Pairs that the job scheduler has measured (``smore.postgres.rows.JobPairRow``), in
  which the guest was held back for :data:`HELD` of the time at most and both run on one GPU instance: the mean iteration
  time beside the other one over that alone, both without functions.
* **Several at a time.** The same for a fixed set of two or more co-runners: functions with their rows, each as often as
  it ran at once, and at most one training. Exactly these functions were at work for :data:`COVER` of the run's time, or
  of the shared iterations' time. A run is at work while it computes (``run_s``), counted back from its end, because an
  execution begins with a wait for its instance, which is no load. Each set has its own rows, from as many runs or
  iterations as a pair needs.

Skipped, and counted by reason: runs beside which the functions changed, or one of them was cold, failed or is not
named; runs that report co-running functions of which no execution is recorded; two functions without a training, a
direction that the platform does not measure; windows in which no set was present for long enough. A long run meets a
change of co-runners more often than a short one of the same set, so the remaining runs are slightly too favourable.

A cell gets at most one row an hour (:data:`ROW_S`), of all that was measured since its last row, which keeps the rows
of a busy platform few.

The co-runners are known from the executions (failed and cold ones too), from what the worker noted at the start of a
run, and from the start and end of the jobs. A revision names its model in ``spec.profile.model``, a job its workload in
the tag ``workload``; without these names a run is skipped and counted. Rows of different devices or sharing modes are
never combined.

The module is longer than 500 lines: the two directions share the same timeline of runs and jobs.
"""

import json
import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import Engine, text

from ml.rows import BadRow, PlaceProfile, Solo, Timing, Workload
from smore.postgres.history.values import JOB_WINDOW_S

#: Version of an observed row. Rows of version 1 hold pairs only.
VERSION: Final = 2
_READ: Final = (1, VERSION)

#: Runs that a P99 needs (assumption A13).
MIN_RUNS: Final = 100
#: Iterations that a window's mean needs (assumption A13).
MIN_ITERATIONS: Final = 20
#: Share of the time of a run or of shared iterations in which the functions of a set were at work.
COVER: Final = 0.9
#: Seconds between two rows of a cell.
ROW_S: Final = 3600.0
#: Seconds around a job's start and end in which runs are not used: both are recorded only when the worker reports them.
EDGE_S: Final = 5.0
#: Age at which an execution is used, seconds: one that began later may end, and be recorded, later.
SETTLED_S: Final = 60.0
#: A pair of trainings of which one was held back for a larger part of the time is no measurement. Windows in which a guest
#: is held to measure what it costs take a small part of the time of every pair.
HELD: Final = 0.1
#: Bounds of one read of the history: seconds and executions.
LOOK_BACK_S: Final = 6 * 3600.0
MOST_RUNS: Final = 100_000

PlaceKey: TypeAlias = tuple[str, str]
#: Device and sharing mode, direction, victim, co-runners: the training first if there is one, then the functions,
#: sorted.
Cell: TypeAlias = tuple[PlaceKey, str, Workload, tuple[Workload, ...]]
#: Solo rows by device and sharing mode.
Alone: TypeAlias = Mapping[PlaceKey, Mapping[Workload, Solo]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """
    One observed row: the run times of a victim beside the same co-runners, ``aggressor`` and, of several at a time,
    ``others``.

    ``direction`` is the victim's role, where the aggressor has the other one; ``trainings``: both are trainings.
    ``seconds`` is the time beside them over ``n`` runs, iterations or (``trainings``) pairs, ``alone_s`` the time without
    them over ``alone_n``: P99 of a function, mean of a training. ``alone_from`` names the source of the reference.
    ``at`` is the time of the last run, epoch seconds.
    """

    place: PlaceKey
    direction: Literal["training", "function", "trainings"]
    victim: Workload
    aggressor: Workload
    n: int
    seconds: float
    alone_s: float
    alone_n: int
    alone_from: Literal["live", "profile"]
    at: float
    others: tuple[Workload, ...] = ()

    @property
    def beside(self) -> tuple[Workload, ...]:
        """All co-runners."""
        return self.aggressor, *self.others

    @property
    def cell(self) -> Cell:
        return self.place, self.direction, self.victim, self.beside

    @property
    def degradation(self) -> float:
        """Eq. 1 as a raw fraction: noise may make it negative."""
        return self.seconds / self.alone_s - 1.0

    def document(self) -> dict[str, Any]:
        """The JSON form that ``smore.postgres.predictors`` stores; :func:`parse` reads it."""
        return asdict(self) | {
            "row": "observed",
            "version": VERSION,
            "place": {"device": self.place[0], "sharing_mode": self.place[1]},
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(),
        }


def parse(document: Mapping[str, Any]) -> Observed:
    """An observed row from its JSON form. Raises BadRow, KeyError, TypeError or ValueError for anything else."""
    if document.get("version") not in _READ or document.get("row") != "observed":
        raise BadRow(
            f"an observed row of version {VERSION} or before is expected, not {document.get('row')!r}"
            f" {document.get('version')!r}"
        )
    values = {key: value for key, value in document.items() if key not in ("row", "version")}
    row = Observed(
        **values
        | {
            "place": (values["place"]["device"], values["place"]["sharing_mode"]),
            "victim": Workload(**values["victim"]),
            "aggressor": Workload(**values["aggressor"]),
            "at": datetime.fromisoformat(values["at"]).timestamp(),
            "others": tuple(Workload(**other) for other in values.get("others", ())),
        }
    )
    if row.direction not in ("training", "function", "trainings"):
        raise BadRow(f"the direction is {row.direction!r}")
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in (row.seconds, row.alone_s)):
        raise BadRow(f"{row.seconds} s beside and {row.alone_s} s alone: positive times are expected")
    return row


# ---- history in Postgres --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """
    One batch on a GPU instance from ``start`` to ``end`` (epoch seconds), of which it computed for ``run_s`` seconds.

    ``model`` is ``architecture/size``, '' if not named. ``sound``: it was warm and succeeded. ``beside``: other
    functions ran when it started. ``jobs``: ids of the serverful jobs that ran when it started.
    """

    gpu: str
    place: PlaceKey
    model: str
    rows: int
    run_s: float
    start: float
    end: float
    sound: bool
    beside: bool
    jobs: tuple[str, ...]

    @property
    def workload(self) -> Workload:
        return _function(self.model, self.rows)

    @property
    def worked_from(self) -> float:
        """When it began to compute: ``run_s`` before its end (the report's delay is neglected)."""
        return max(self.start, self.end - self.run_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedJob:
    """
    A serverful job. ``workload`` is None if the job does not name it. ``began`` and ``ended`` are the worker's reports,
    epoch seconds, inf = not yet.
    """

    id: str
    gpus: tuple[str, ...]
    workload: Workload | None
    created: float
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationWindow:
    """
    A job's iterations in the ``window_s`` seconds before ``end`` (smore.postgres.rows.JobWindowRow); means in seconds.
    """

    job: str
    gpu: str
    place: PlaceKey
    end: float
    window_s: float
    solo_s: float
    solo_count: int
    shared_s: float
    shared_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """
    What a training lost to another one until ``at`` (epoch seconds): mean iteration times in seconds. ``by_profile``:
    ``alone_s`` is that of its profile.
    """

    training: Workload | None
    beside: Workload | None
    place: PlaceKey
    at: float
    alone_s: float
    beside_s: float
    by_profile: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Runs, jobs, windows and measured pairs of trainings of one span of time."""

    runs: Sequence[TimedRun] = ()
    jobs: Sequence[TrainedJob] = ()
    windows: Sequence[IterationWindow] = ()
    pairs: Sequence[Pair] = ()


_RUNS = """
WITH newest AS (
    SELECT * FROM executions
    WHERE finished_at >= :since AND finished_at < :until AND coalesce(started_at, claimed_at) IS NOT NULL
    ORDER BY finished_at DESC LIMIT :most
)
SELECT e.gpu, max(e.device), max(e.sharing_mode), max(r.spec -> 'profile' ->> 'model'), max(e.rows), max(e.run_s),
    extract(epoch FROM min(coalesce(e.started_at, e.claimed_at)))::float8, extract(epoch FROM max(e.finished_at))::float8,
    bool_and(e.state = 'succeeded' AND e.cold IS FALSE AND e.run_s > 0 AND e.rows > 0 AND e.started_at IS NOT NULL),
    bool_or(coalesce(e.co_runners, '[]') <> '[]'), max(coalesce(e.jobs, '[]')::text)
FROM newest AS e
LEFT JOIN invocations AS i ON i.id = e.invocation
LEFT JOIN revisions AS r ON r.project = e.project AND r.function = e.function AND r.number = i.revision
GROUP BY e.gpu, coalesce(e.decision_id::text, e.invocation || '/' || e.attempt)
"""

_JOBS = """
SELECT id, gpus, workload, extract(epoch FROM created_at)::float8, extract(epoch FROM started_at)::float8,
    extract(epoch FROM ended_at)::float8
FROM jobs WHERE coalesce(ended_at, 'infinity') >= :since
"""

_WINDOWS = """
SELECT job, gpu, device, sharing_mode, extract(epoch FROM at)::float8, window_s, solo_s, solo_count, shared_s, shared_count
FROM job_windows WHERE at >= :since AND at < :until ORDER BY at
"""

_PAIRS = """
SELECT job.workload, other.workload, pair.device, pair.sharing_mode,
    extract(epoch FROM least(pair.until_at, :until))::float8, pair.alone_s, pair.beside_s, pair.loss_low IS NULL
FROM job_pairs AS pair JOIN jobs AS job ON job.id = pair.job JOIN jobs AS other ON other.id = pair.other
WHERE pair.measured IS NOT NULL AND pair.alone_s > 0 AND pair.beside_s > 0
    AND pair.held_s <= :held * extract(epoch FROM least(pair.until_at, :until) - pair.from_at)
    AND cardinality(job.gpus) = 1 AND cardinality(other.gpus) = 1
    AND coalesce(pair.until_at, 'infinity') >= :since AND pair.from_at < :until
ORDER BY 5
"""


def read(engine: Engine, *, since: float, until: float) -> History:
    """The history of [since, until), epoch seconds. At most the newest :data:`MOST_RUNS` executions are read."""
    bounds = {"since": datetime.fromtimestamp(since, UTC), "until": datetime.fromtimestamp(until, UTC)}
    with engine.connect() as connection:
        runs = [
            TimedRun(
                gpu=gpu,
                place=(device or "", mode or ""),
                model=model or "",
                rows=rows or 0,
                run_s=run_s or 0.0,
                start=start,
                end=end,
                sound=bool(sound),
                beside=beside,
                jobs=tuple(json.loads(jobs)),
            )
            for gpu, device, mode, model, rows, run_s, start, end, sound, beside, jobs in connection.execute(
                text(_RUNS), bounds | {"most": MOST_RUNS}
            )
        ]
        jobs = [
            TrainedJob(
                id=id_,
                gpus=tuple(gpus),
                workload=_training(workload or None),
                created=created,
                began=math.inf if began is None else began,
                ended=math.inf if ended is None else ended,
            )
            for id_, gpus, workload, created, began, ended in connection.execute(
                text(_JOBS), {"since": bounds["since"]}
            )
        ]
        windows = [
            IterationWindow(
                job=job,
                gpu=gpu,
                place=(device, mode),
                end=at + JOB_WINDOW_S,
                window_s=window_s,
                solo_s=solo_s,
                solo_count=solo_count,
                shared_s=shared_s,
                shared_count=shared_count,
            )
            for job, gpu, device, mode, at, window_s, solo_s, solo_count, shared_s, shared_count in connection.execute(
                text(_WINDOWS), bounds
            )
        ]
        pairs = [
            Pair(
                training=_training(training),
                beside=_training(beside),
                place=(device, mode),
                at=at,
                alone_s=alone_s,
                beside_s=beside_s,
                by_profile=by_profile,
            )
            for training, beside, device, mode, at, alone_s, beside_s, by_profile in connection.execute(
                text(_PAIRS), bounds | {"held": HELD}
            )
        ]
    return History(runs=runs, jobs=jobs, windows=windows, pairs=pairs)


def _function(name: str, rows: int) -> Workload:
    model, preset = name.split("/")
    return Workload(model=model, preset=preset, role="function", batch=rows)


def _training(name: str | None) -> Workload | None:
    parts = (name or "").split("/")
    if len(parts) != 4 or parts[2] != "training" or not parts[3].isdecimal():
        return None
    return Workload(model=parts[0], preset=parts[1], role="training", batch=int(parts[3]))


# ---- rows of a history -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRows:
    """New rows, and the number of skipped runs and windows by reason."""

    rows: Sequence[Observed] = ()
    passed: Mapping[str, int] = field(default_factory=dict)


def live_rows(history: History, alone: Alone, before: Iterable[Observed] = ()) -> LiveRows:
    """
    The rows of a history. Cells with a workload that has no solo row in ``alone`` are skipped, because nothing can be
    learned from them.

    ``before`` are the rows that exist already: a cell starts after its last row, so that no run counts twice.
    """
    passed: Counter[str] = Counter()
    measured_until: dict[Cell, float] = {}
    for row in before:
        measured_until[row.cell] = max(row.at, measured_until.get(row.cell, -math.inf))
    rows = [
        *_functions(history, alone, measured_until, passed),
        *_trainings(history, alone, measured_until, passed),
        *_pairs(history, alone, measured_until, passed),
    ]
    rows = [row for row in rows if row.at >= measured_until.get(row.cell, -math.inf) + ROW_S]
    return LiveRows(rows=rows, passed=dict(sorted(passed.items())))


def undisturbed(
    history: History, passed: "Counter[str] | None" = None
) -> Iterator[tuple[TimedRun, Workload | None, tuple[Workload, ...]]]:
    """
    Runs whose co-runners did not change, each with the training beside it (None = none) and the functions beside it
    (sorted). Ordered by GPU instance, then by time. ``passed`` counts the skipped runs by reason.
    """
    skipped: Counter[str] = Counter() if passed is None else passed
    lives = _jobs_by_gpu(history.jobs)
    for gpu, runs in _runs_by_gpu(history.runs).items():
        earlier: list[TimedRun] = []
        for position, run in enumerate(runs):
            earlier = [other for other in earlier if other.end > run.start]
            later = runs[position + 1 : bisect_left(runs, run.end, lo=position + 1, key=lambda other: other.start)]
            others = [*earlier, *later]
            earlier.append(run)
            if not run.sound:
                skipped["not warm or not succeeded"] += 1
            elif not run.model:
                skipped["function not named"] += 1
            elif run.beside and not others:
                skipped["functions beside not recorded"] += 1
            elif (functions := _functions_beside(run, others)) is None:
                skipped["functions beside changed or not known"] += 1
            elif (present_jobs := _steady(run.start, run.end, run.jobs, lives.get(gpu, []))) is None:
                skipped["jobs changed or several"] += 1
            elif present_jobs and present_jobs[0].workload is None:
                skipped["job not named"] += 1
            elif len(functions) == 1 and not present_jobs:
                skipped["two functions without a training"] += 1
            else:
                yield run, present_jobs[0].workload if present_jobs else None, functions


def _functions_beside(run: TimedRun, others: Sequence[TimedRun]) -> tuple[Workload, ...] | None:
    """
    The functions that were at work beside a run for :data:`COVER` of its time. () = nothing else ran; None = they
    changed.
    """
    if not others:
        return ()
    if not all(other.sound and other.model for other in others):
        return None
    at_work = _at_work(others, run.worked_from, run.end)
    functions, seconds = max(at_work.items(), key=lambda item: item[1])
    steady = functions and seconds >= COVER * (run.end - run.worked_from)
    return tuple(sorted(_function(*model_rows) for model_rows in functions)) if steady else None


def _at_work(runs: Iterable[TimedRun], start: float, end: float) -> dict[tuple[tuple[str, int], ...], float]:
    """
    Seconds of [start, end) in which each set of functions was at work; the key () stands for none.

    A set is a sorted tuple of (model, rows), one item for each concurrent run. Plain tuples, not workloads, because
    this is called very often.
    """
    changes = []
    for run in runs:
        began, ended = max(start, run.worked_from), min(end, run.end)
        if began < ended:
            changes += [(began, True, run.model, run.rows), (ended, False, run.model, run.rows)]
    seconds: dict[tuple[tuple[str, int], ...], float] = defaultdict(float)
    present: list[tuple[str, int]] = []
    last = start
    for moment, begins, model, rows in sorted(changes):
        seconds[tuple(present)] += moment - last
        last = moment
        if begins:
            insort(present, (model, rows))
        else:
            present.remove((model, rows))
    seconds[()] += end - last
    return seconds


def _runs_by_gpu(runs: Iterable[TimedRun]) -> dict[str, list[TimedRun]]:
    by_gpu: dict[str, list[TimedRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.start):
        by_gpu[run.gpu].append(run)
    return by_gpu


def _jobs_by_gpu(jobs: Iterable[TrainedJob]) -> dict[str, list[TrainedJob]]:
    by_gpu: dict[str, list[TrainedJob]] = defaultdict(list)
    for job in jobs:
        for gpu in job.gpus:
            by_gpu[gpu].append(job)
    return by_gpu


def _steady(start: float, end: float, noted: Sequence[str], jobs: Sequence[TrainedJob]) -> list[TrainedJob] | None:
    """
    The job (or none, as an empty list) that was present during the whole interval and that the worker reported too;
    None if the jobs changed, were several, or differ from the report.
    """
    present = [job for job in jobs if job.created < end and job.ended > start]
    if {job.id for job in present} != set(noted) or len(present) > 1:
        return None
    lasting = all(start >= job.began + EDGE_S and end <= job.ended - EDGE_S for job in present)
    return present if lasting else None


def _functions(
    history: History, alone: Alone, measured_until: Mapping[Cell, float], passed: "Counter[str]"
) -> Iterator[Observed]:
    shared: dict[Cell, list[TimedRun]] = defaultdict(list)
    solo: dict[tuple[PlaceKey, Workload], list[float]] = defaultdict(list)
    for run, training, functions in undisturbed(history, passed):
        beside = functions if training is None else (training, *functions)
        if not {run.workload, *beside} <= alone.get(run.place, {}).keys():
            passed["not profiled here"] += 1
        elif not beside:
            solo[run.place, run.workload].append(run.run_s)
        else:
            shared[run.place, "function", run.workload, beside].append(run)
    for cell, runs in shared.items():
        place, _, function, beside = cell
        new = [run for run in runs if run.end > measured_until.get(cell, -math.inf)]
        if len(new) < MIN_RUNS:
            passed["too few runs yet"] += len(new)
            continue
        timing = Timing.of(run.run_s for run in new)
        without = solo[place, function]
        enough = len(without) >= MIN_RUNS
        reference = Timing.of(without) if enough else alone[place][function].timing
        yield Observed(
            place=place,
            direction="function",
            victim=function,
            aggressor=beside[0],
            others=beside[1:],
            n=timing.n,
            seconds=timing.p99,
            alone_s=reference.p99,
            alone_n=reference.n,
            alone_from="live" if enough else "profile",
            at=max(run.end for run in new),
        )


def _trainings(
    history: History, alone: Alone, measured_until: Mapping[Cell, float], passed: "Counter[str]"
) -> Iterator[Observed]:
    jobs, lives, runs = {job.id: job for job in history.jobs}, _jobs_by_gpu(history.jobs), _runs_by_gpu(history.runs)
    without: dict[tuple[str, str], IterationWindow] = {}
    free_from: dict[tuple[str, str], float] = {}
    shared: dict[Cell, list[tuple[IterationWindow, IterationWindow | None]]] = defaultdict(list)
    for window in sorted(history.windows, key=lambda window: window.end):
        key = window.job, window.gpu
        if window.solo_count >= MIN_ITERATIONS and not _has_neighbours(window, lives[window.gpu]):
            without[key] = window
        # Windows overlap: a job reports every ten seconds over the last sixty.
        if window.shared_count < MIN_ITERATIONS or window.end - window.window_s < free_from.get(key, -math.inf):
            continue
        job = jobs.get(window.job)
        if job is None or job.workload is None:
            passed["window: job not named"] += 1
        elif len(job.gpus) > 1:
            # Its iterations also wait for the other GPU instances.
            passed["window: job on several GPU instances"] += 1
        elif not (functions := _fixed_functions(window, job, lives[window.gpu], runs.get(window.gpu, []))):
            passed["window: co-runners changed"] += 1
        elif not {job.workload, *functions} <= alone.get(window.place, {}).keys():
            passed["window: not profiled here"] += 1
        else:
            cell: Cell = window.place, "training", job.workload, functions
            free_from[key] = window.end
            if window.end - window.window_s >= measured_until.get(cell, -math.inf):
                shared[cell].append((window, without.get(key)))
    for cell, windows in shared.items():
        place, _, training, functions = cell
        references = {(solo.job, solo.gpu, solo.end): solo for _, solo in windows if solo is not None}.values()
        live, profile = _mean((solo.solo_s, solo.solo_count) for solo in references), alone[place][training].timing
        n, seconds = _mean((window.shared_s, window.shared_count) for window, _ in windows)
        yield Observed(
            place=place,
            direction="training",
            victim=training,
            aggressor=functions[0],
            others=functions[1:],
            n=n,
            seconds=seconds,
            alone_s=live[1] if references else profile.mean,
            alone_n=live[0] if references else profile.n,
            alone_from="live" if references else "profile",
            at=max(window.end for window, _ in windows),
        )


def _has_neighbours(window: IterationWindow, jobs: Sequence[TrainedJob]) -> bool:
    """Whether another training was on the window's GPU instance."""
    start = window.end - window.window_s
    return any(job.id != window.job and job.created < window.end and job.ended > start for job in jobs)


def _pairs(
    history: History, alone: Alone, measured_until: Mapping[Cell, float], passed: "Counter[str]"
) -> Iterator[Observed]:
    by_cell: dict[Cell, list[Pair]] = defaultdict(list)
    for pair in history.pairs:
        if pair.training is None or pair.beside is None:
            passed["pair: job not named"] += 1
        elif not {pair.training, pair.beside} <= alone.get(pair.place, {}).keys():
            passed["pair: not profiled here"] += 1
        else:
            cell: Cell = pair.place, "trainings", pair.training, (pair.beside,)
            if pair.at > measured_until.get(cell, -math.inf):
                by_cell[cell].append(pair)
    for (place, _, training, (beside, *_)), pairs in by_cell.items():
        yield Observed(
            place=place,
            direction="trainings",
            victim=training,
            aggressor=beside,
            n=len(pairs),
            seconds=math.fsum(pair.beside_s for pair in pairs) / len(pairs),
            alone_s=math.fsum(pair.alone_s for pair in pairs) / len(pairs),
            alone_n=len(pairs),
            alone_from="profile" if all(pair.by_profile for pair in pairs) else "live",
            at=max(pair.at for pair in pairs),
        )


def _mean(parts: Iterable[tuple[float, int]]) -> tuple[int, float]:
    """(count, mean) of parts given as (mean, count); (0, 0) without parts."""
    listed = list(parts)
    count = sum(n for _, n in listed)
    return count, math.fsum(mean * n for mean, n in listed) / count if count else 0.0


def _fixed_functions(
    window: IterationWindow, job: TrainedJob, jobs: Sequence[TrainedJob], runs: Sequence[TimedRun]
) -> tuple[Workload, ...]:
    """
    The functions that were at work beside the job during the whole window; () if they changed or are unknown. ``runs``
    are sorted by start.
    """
    start = window.end - window.window_s
    if _steady(start, window.end, [job.id], jobs) is None:
        return ()
    # A run that began before the window and reaches into it began at most this long before: its run time is limited.
    first = bisect_left(runs, start - SETTLED_S, key=lambda run: run.start)
    inside = [run for run in runs[first : bisect_right(runs, window.end, key=lambda run: run.start)] if run.end > start]
    if not all(run.sound and run.model and run.place == window.place for run in inside):
        return ()
    at_work = _at_work(inside, start, window.end)
    at_work.pop(())
    functions, seconds = max(at_work.items(), key=lambda item: item[1], default=((), 0.0))
    if len(functions) == 1 and (len(at_work) > 1 or any(run.beside for run in inside)):
        return ()
    # Iterations that other functions touched are among the shared ones, so this bounds their share too.
    steady = seconds >= COVER * window.shared_s * window.shared_count
    return tuple(sorted(_function(*model_rows) for model_rows in functions)) if steady else ()


def solo_rows(profiles: Iterable[PlaceProfile]) -> Alone:
    """The solo rows that :func:`live_rows` takes as ``alone``."""
    return {profile.place.key: profile.solo for profile in profiles}
