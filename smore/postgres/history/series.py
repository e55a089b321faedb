"""
What the platform knows over time, as columns: of GPU instances, functions, trainings, the predictor and the harvest.

Every method is one to four statements. Postgres sums up the steps; what is left for Python is to put each sum into its place.
"""

# ruff: noqa: S608 - every SQL text is put together from names and expressions of this module

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, Final, Literal, TypeAlias

from psycopg.rows import dict_row
from sqlalchemy import Engine, func, select

from smore.domain.loss import Sums
from smore.postgres.driver import driver
from smore.postgres.history import histogram
from smore.postgres.history.reader import closed_windows

#: Points of a series at most, and about as many where nobody says of how many seconds a step is.
MOST: Final = 1500
USUAL: Final = 360
#: Steps that are chosen, seconds; beyond them whole days.
_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
#: The newest executions in which a calibration looks for comparable ones, for each that it wants.
_LOOKED_AT: Final = 10

Column: TypeAlias = list[Any]
By: TypeAlias = Literal["project", "function", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrid:
    """The steps of ``step_s`` seconds that hold [since, until), epoch seconds; ``since`` is a multiple of a step."""

    since: int
    until: float
    step_s: int

    @classmethod
    def over(cls, since: float, until: float, step_s: int | None = None, *, least_s: int = 60) -> "StepGrid":
        """
        Steps of whole ``least_s``: as long as asked for, or longer where they would be more than :data:`MOST`; about
        :data:`USUAL` of them where no length is asked for.
        """
        span = until - since
        least = max(least_s, span / (MOST - 1))
        if step_s is not None and step_s >= least:
            chosen = ceil(step_s / least_s) * least_s
        else:
            least = max(least, 0 if step_s is not None else span / USUAL)
            chosen = next((step for step in _STEPS if step >= least), ceil(least / _STEPS[-1]) * _STEPS[-1])
        return cls(since=int(since // chosen) * chosen, until=until, step_s=chosen)

    @property
    def at(self) -> list[int]:
        """When each step begins."""
        return list(range(self.since, ceil(self.until), self.step_s))

    @property
    def parameters(self) -> dict[str, Any]:
        """Of the statements here."""
        return {
            "since": datetime.fromtimestamp(self.since, UTC),
            "until": datetime.fromtimestamp(self.until, UTC),
            "every": timedelta(seconds=self.step_s),
        }

    def columns(self, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, Column]:
        """Columns out of rows, each of which begins with its step's begin; None where there is no row."""
        columns: dict[str, Column] = {name: [None] * len(self.at) for name in names}
        for at, *cells in rows:
            place = (at - self.since) // self.step_s
            for name, cell in zip(names, cells, strict=True):
                columns[name][place] = cell
        return columns


def _step(column: str) -> str:
    """SQL: the begin of the step in which a moment lies."""
    return f"date_bin(%(every)s::interval, {column}, TIMESTAMPTZ 'epoch')"


def _within(column: str) -> str:
    return f"{column} >= %(since)s AND {column} < %(until)s"


def _epoch(column: str) -> str:
    return f"extract(epoch FROM {column})::bigint"


def _gpus(table: str, at: str, samples: str) -> str:
    return f"""
        SELECT gpu, {_epoch("step")}, round(used / samples * 10000) / 10000, round(functions / samples * 10000) / 10000, memory
        FROM (
            SELECT gpu, {_step(at)} AS step, {samples} AS samples, sum(utilisation) AS used, sum(function_utilisation) AS functions,
                max(memory_used_mib) AS memory
            FROM {table} WHERE {_within(at)} WHICH GROUP BY 1, 2
        ) AS summed ORDER BY gpu
    """


_GPU_MINUTES: Final = _gpus("gpu_minutes", "minute", "sum(samples)")
_GPU_SECONDS: Final = _gpus("gpu_samples", "at", "count(*)")

#: Lives of a function's instances, joined where less than a step is between them.
_WARM: Final = """
    SELECT project, function, extract(epoch FROM lower(life))::float8 AS since,
        extract(epoch FROM upper(life) - %(every)s::interval)::float8 AS until
    FROM (
        SELECT project, function, unnest(range_agg(tstzrange(asked_at, ended_at + %(every)s::interval))) AS life
        FROM instances WHERE gpu = %(gpu)s AND asked_at < %(until)s AND (ended_at IS NULL OR ended_at >= %(since)s)
            AND (%(project)s::text IS NULL OR project = %(project)s) GROUP BY 1, 2
    ) AS joined ORDER BY lower(life) DESC LIMIT %(limit)s
"""
_CLOSED: Final = f"""
    SELECT {_epoch(_step("start_at"))},
        least(1, sum(extract(epoch FROM end_at - start_at)) / extract(epoch FROM %(every)s::interval))::float8
    FROM (SELECT DISTINCT start_at, end_at FROM loss_windows WHERE gpu = %(gpu)s AND {_within("start_at")}) AS once GROUP BY 1
"""
_DUTY: Final = f"""
    SELECT {_epoch(_step("at"))}, min(duty) FROM budget_steps
    WHERE gpu = %(gpu)s AND id >= (extract(epoch FROM %(since)s) * 1000)::bigint << 20 AND {_within("at")} GROUP BY 1
"""
_ENDED: Final = f"""
    SELECT {_epoch(_step("AT"))}, sum(succeeded + failed)::bigint FROM TABLE_
    WHERE gpu = %(gpu)s AND {_within("AT")} AND (%(project)s::text IS NULL OR project = %(project)s) GROUP BY 1
"""


def _quantile(share: float) -> str:
    # The smallest bucket that has so many times in it and below it; no time was longer than the worst one.
    return f"least(worst_s, {histogram.middle(f'(min(bucket) FILTER (WHERE upto >= {share} * times))')})"


_OF_FUNCTION: Final = "project = %(project)s AND function = %(function)s"


def _ended(part: str, which: str) -> str:
    """SQL: ``sums`` and ``quantiles`` of the minutes of functions, by ``part``."""
    return f"""
    minutes AS (
        SELECT {part} AS part, * FROM function_minutes WHERE {which} AND {_within("minute")}
    ), sums AS (
        SELECT part, sum(succeeded) AS succeeded, sum(failed) AS failed, sum(met) AS met, sum(cold) AS cold,
            sum(wait_s) / nullif(sum(succeeded), 0) AS wait_s, sum(load_s) / nullif(sum(cold), 0) AS load_s,
            sum(run_s) / nullif(sum(ran), 0) AS run_s, sum(total_s) / nullif(sum(succeeded), 0) AS whole_s,
            CASE WHEN sum(succeeded) > 0 THEN max(worst_s) END AS worst_s,
            bool_and(wholes IS NOT NULL OR succeeded = 0) AS told
        FROM minutes GROUP BY 1
    ), buckets AS (
        SELECT part, {histogram.bucket("v")} AS bucket, sum({histogram.count("v")}) AS n
        FROM minutes CROSS JOIN unnest(wholes) AS v GROUP BY 1, 2
    ), ranked AS (
        SELECT part, bucket, sum(n) OVER (PARTITION BY part ORDER BY bucket) AS upto, sum(n) OVER (PARTITION BY part) AS times FROM buckets
    ), quantiles AS (
        SELECT part, {_quantile(0.5)} AS p50, {_quantile(0.95)} AS p95, {_quantile(0.99)} AS p99
        FROM ranked JOIN sums USING (part) WHERE told GROUP BY part, worst_s
    )"""


_SUMS: Final = """coalesce(succeeded, 0)::bigint, coalesce(failed, 0)::bigint, coalesce(met, 0)::bigint,
        coalesce(cold, 0)::bigint, wait_s, load_s, run_s, whole_s, worst_s, p50, p95, p99"""
_FUNCTION: Final = f"""
    WITH {_ended(_step("minute"), f"{_OF_FUNCTION} AND (%(revision)s::int IS NULL OR revision = %(revision)s)")}, counted AS (
        -- A minute that nobody counted is not one without arrivals.
        SELECT {_step("m.minute")} AS part, coalesce(sum(a.n), 0) AS arrivals
        FROM counted_minutes AS m LEFT JOIN arrivals_minute AS a ON a.minute = m.minute AND {_OF_FUNCTION}
        WHERE {_within("m.minute")} GROUP BY 1
    )
    SELECT {_epoch("part")}, arrivals::bigint, {_SUMS}
    FROM counted FULL JOIN sums USING (part) LEFT JOIN quantiles USING (part)
"""
_OF_PROJECT: Final = "(%(project)s::text IS NULL OR project = %(project)s)"
_NAME: Final = "project || '/' || function"
_BY_FUNCTION: Final = (
    f"WITH {_ended(_NAME, _OF_PROJECT)} SELECT part, {_SUMS} FROM sums LEFT JOIN quantiles USING (part)"
)
_BY_REVISION: Final = (
    f"WITH {_ended('revision', _OF_FUNCTION)} SELECT part, {_SUMS} FROM sums LEFT JOIN quantiles USING (part)"
)
_RATES: Final = f"""
    SELECT part, {_epoch(_step("minute"))}, sum(arrivals)::bigint, sum(ended)::bigint
    FROM (
        SELECT {_NAME} AS part, minute, n AS arrivals, 0 AS ended FROM arrivals_minute WHERE {_within("minute")} AND {_OF_PROJECT}
        UNION ALL
        SELECT {_NAME}, minute, 0, succeeded + failed FROM function_minutes WHERE {_within("minute")} AND {_OF_PROJECT}
    ) AS both_ GROUP BY 1, 2
"""
FUNCTION_COLUMNS: Final = (
    "arrivals",
    "succeeded",
    "failed",
    "met",
    "cold",
    "wait_s",
    "load_s",
    "run_s",
    "whole_s",
    "worst_s",
    "p50",
    "p95",
    "p99",
)
_COLD_REASONS: Final = f"""
    SELECT kind, {_epoch(_step("at"))}, sum(n)::bigint FROM run_starts
    WHERE span = %(span)s AND {_OF_FUNCTION} AND {_within("at")} AND kind <> 'warm' GROUP BY 1, 2
"""

_JOB: Final = f"""
    WITH windows AS (
        SELECT {_step("at")} AS step, sum(solo_s * solo_count) / nullif(sum(solo_count), 0) AS alone_s,
            sum(shared_s * shared_count) / nullif(sum(shared_count), 0) AS beside_s, max(iterations) AS iterations
        FROM job_windows WHERE job = %(job)s AND {_within("at")} GROUP BY 1
    ), harvested AS (
        SELECT {_step("minute")} AS step, sum(seconds) AS seconds FROM job_minutes WHERE job = %(job)s AND {_within("minute")} GROUP BY 1
    )
    SELECT {_epoch("step")}, alone_s, beside_s, iterations,
        (SELECT duty FROM budget_steps
            WHERE job = %(job)s AND id < ((extract(epoch FROM of.step + %(every)s::interval) * 1000)::bigint << 20)
            ORDER BY id DESC LIMIT 1),
        -- Of the time before there were such minutes nothing is known.
        coalesce(seconds, CASE WHEN step >= (SELECT min(minute) FROM job_minutes) THEN 0 END)
    FROM (windows FULL JOIN harvested USING (step)) AS of
"""
JOB_COLUMNS: Final = ("alone_s", "beside_s", "iterations", "duty", "harvested_s")

_ATTEMPTS: Final = """
    SELECT j.id AS job, j.name, j.project, j.state, a.attempt, a.gpus, a.nodes, a.started_at, a.up_at, a.ended_at, a.why, a.message,
        a.exit_code, a.iterations_from, a.iterations, a.micro_batches,
        EXISTS (SELECT FROM job_pairs AS p WHERE p.job = a.job AND p.attempt = a.attempt AND p.guest) AS guest,
        CASE WHEN a.attempt = j.attempt THEN j.estimate_s END AS told_s,
        CASE WHEN a.attempt = j.attempt THEN j.estimate_90_s END AS told_90_s,
        CASE WHEN a.attempt = j.attempt THEN j.estimate_source ELSE '' END AS told_source
    FROM job_attempts AS a JOIN jobs AS j ON j.id = a.job
    WHERE a.started_at < %(until)s AND (a.ended_at IS NULL OR a.ended_at >= %(since)s)
        AND (%(project)s::text IS NULL OR j.project = %(project)s)
    ORDER BY a.started_at DESC, a.job, a.attempt LIMIT %(limit)s
"""

_CALIBRATION: Final = """
    SELECT project || '/' || function AS function, gpu, device, extract(epoch FROM finished_at)::float8 AS at,
        coalesce((predicted ->> 'function_degradation')::float8, 0) AS told,
        coalesce((predicted ->> 'function_degradation_upper')::float8, 0) AS bound,
        CASE WHEN known THEN run_s / (predicted ->> 'run_s')::float8 - 1 END AS measured, known
    FROM (
        SELECT *, coalesce((predicted ->> 'known')::boolean, false) AS known FROM executions
        WHERE finished_at IS NOT NULL AND (%(project)s::text IS NULL OR project = %(project)s) ORDER BY finished_at DESC LIMIT %(looked_at)s
    ) AS newest
    WHERE NOT cold AND run_s IS NOT NULL AND (predicted ->> 'run_s')::float8 > 0
    ORDER BY finished_at DESC
"""

_PART: Final[Mapping[By, str]] = {"project": "project", "function": _NAME, "gpu": "gpu"}


def _parts(table: str, at: str, *sums: str) -> str:
    """SQL: sums by step and part, and of each part over all steps, whose step is null."""
    names = ", ".join(f"s{number}" for number, _ in enumerate(sums))
    listed = ", ".join(f"{each} AS s{number}" for number, each in enumerate(sums))
    return f"""
        SELECT {_epoch("step")}, part, {names}
        FROM (
            SELECT {_step(at)} AS step, PART AS part, {listed} FROM {table} WHERE {_within(at)} AND {_OF_PROJECT}
            GROUP BY GROUPING SETS ((1, 2), (2))
        ) AS summed
    """


_HARVESTED: Final = _parts(
    "function_hours LEFT JOIN unnest(%(gpus)s::text[], %(prices)s::float8[]) AS priced (gpu, price) USING (gpu)",
    "hour",
    "sum(run_s)",
    "CASE WHEN bool_and(price IS NOT NULL OR run_s = 0) THEN sum(run_s * price) / 3600 END",
    "sum(succeeded + failed)::bigint",
    "sum(met)::bigint",
    "sum(cold)::bigint",
)
_DEVICES: Final = f"""
    SELECT gpu, (SELECT device FROM gpu_minutes AS m WHERE m.gpu = ran.gpu ORDER BY minute DESC LIMIT 1)
    FROM (SELECT DISTINCT gpu FROM function_hours WHERE run_s > 0 AND {_within("hour")} AND {_OF_PROJECT}) AS ran
"""
_SAVED: Final = _parts("instances", "asked_at", "sum(saved)::bigint")
#: The sums that an estimate needs, of all trainings of a part together.
_LOST: Final = _parts(
    "loss_hours",
    "hour",
    "sum(windows)",
    *(f"sum({name})" for name in ("open_s", "closed_s", "open_squared", "open_closed", "closed_squared")),
)
_TRAINED: Final = f"""
    SELECT PART, sum(extract(epoch FROM ended_at - greatest(started_at, %(since)s)))::float8
    FROM (
        SELECT project, unnest(a.gpus) AS gpu, a.started_at, least(a.ended_at, %(until)s) AS ended_at
        FROM job_attempts AS a JOIN jobs AS j ON j.id = a.job
        WHERE a.started_at < %(until)s AND (a.ended_at IS NULL OR a.ended_at > %(since)s) AND {_OF_PROJECT}
    ) AS held GROUP BY 1
"""


@dataclass(slots=True, kw_only=True)
class Part:
    """
    What a project, function or GPU instance (``key``) came to in the step from ``at``, None = in the whole window: seconds of
    runs, a batch counted once, and their price, None = one ran on a GPU instance without a price; ended invocations, those in
    time, cold starts and those that ``saved`` instances avoided; ``lost``: what functions cost the trainings, None = no window
    was closed; ``trained_s``, of the whole window alone: seconds for which trainings held GPU instances, each by itself.
    """

    at: int | None
    key: str
    run_s: float = 0.0
    money: float | None = None
    invocations: int = 0
    met: int = 0
    cold: int = 0
    saved: int = 0
    lost: Sums | None = None
    trained_s: float = 0.0


class Series:
    """Reads series. Raises SQLAlchemy's OperationalError where Postgres is away."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _rows(self, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
        with driver(self._engine) as connection, connection.transaction():
            return connection.execute(statement, parameters).fetchall()

    def _dicts(self, statement: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The rows by the names of their columns."""
        with (
            driver(self._engine) as connection,
            connection.transaction(),
            connection.cursor(row_factory=dict_row) as cursor,
        ):
            return cursor.execute(statement, parameters).fetchall()

    def has_gpu(self, gpu: str) -> bool:
        """Whether a GPU instance has ever been counted."""
        return bool(self._rows("SELECT FROM gpu_minutes WHERE gpu = %(gpu)s LIMIT 1", {"gpu": gpu}))

    def has_function(self, project: str, function: str) -> bool:
        """Whether there is such a function, or was."""
        named = {"project": project, "name": function}
        return bool(self._rows("SELECT FROM functions WHERE project = %(project)s AND name = %(name)s", named))

    def gpus(
        self, window: StepGrid, gpus: Sequence[str] | None, *, seconds: bool = False
    ) -> dict[str, dict[str, Column]]:
        """
        ``used`` and ``functions`` (0 to 1) and ``memory_mib`` of these GPU instances, or of all that reported (None), by
        name. ``seconds``: from their samples, not from their minutes.
        """
        rows_of: dict[str, list[Sequence[Any]]] = {gpu: [] for gpu in gpus or ()}
        # A condition that holds for None too would keep a prepared statement from using the index.
        which = "AND gpu = ANY(%(gpus)s)" if gpus else ""
        statement = (_GPU_SECONDS if seconds else _GPU_MINUTES).replace("WHICH", which)
        for gpu, *row in self._rows(statement, window.parameters | {"gpus": list(gpus or ())}):
            rows_of.setdefault(gpu, []).append(row)
        return {gpu: window.columns(("used", "functions", "memory_mib"), rows) for gpu, rows in rows_of.items()}

    def lanes(self, window: StepGrid, gpu: str, project: str | None) -> tuple[list[dict[str, Any]], dict[str, Column]]:
        """
        Of a GPU instance: the lives of warm instances of one project or of all (None), the newest :data:`MOST`, ``until`` None =
        it lives; and as columns what share of a step was ``closed``, the least ``duty`` that a step of a budget set in it, and
        how many of the project's invocations ``ended``.
        """
        of = window.parameters | {"gpu": gpu, "project": project, "limit": MOST}
        table, at = ("function_minutes", "minute") if window.step_s % 3600 else ("function_hours", "hour")
        warm = self._dicts(_WARM, of)
        columns = window.columns(("closed",), self._rows(_CLOSED, of))
        columns |= window.columns(("duty",), self._rows(_DUTY, of))
        columns |= window.columns(("ended",), self._rows(_ENDED.replace("TABLE_", table).replace("AT", at), of))
        return warm, columns

    def function(
        self, window: StepGrid, project: str, function: str, revision: int | None
    ) -> tuple[dict[str, Column], dict[str, Column]]:
        """:data:`FUNCTION_COLUMNS` of a function or of one revision, and its cold starts by reason, of all revisions."""
        of = window.parameters | {"project": project, "function": function, "revision": revision}
        columns = window.columns(FUNCTION_COLUMNS, self._rows(_FUNCTION, of))
        reasons: dict[str, list[Sequence[Any]]] = {}
        span = 60 if window.step_s % 3600 else 3600
        for kind, *row in self._rows(_COLD_REASONS, of | {"span": span}) if revision is None else ():
            reasons.setdefault(kind, []).append(row)
        return columns, {kind: window.columns(("n",), rows)["n"] for kind, rows in sorted(reasons.items())}

    def rates(self, window: StepGrid, project: str | None) -> dict[str, dict[str, Column]]:
        """``arrivals`` and ``ended`` in each step of each function (``project/name``) of a project, None = of all."""
        rows_of: dict[str, list[Sequence[Any]]] = {}
        for part, *row in self._rows(_RATES, window.parameters | {"project": project}):
            rows_of.setdefault(part, []).append(row)
        return {part: window.columns(("arrivals", "ended"), rows) for part, rows in rows_of.items()}

    def served(
        self, since: float, until: float, project: str | None, function: str | None
    ) -> dict[Any, dict[str, Any]]:
        """
        What ended in the whole minutes of [since, until): :data:`FUNCTION_COLUMNS` but arrivals of each function
        (``project/name``) of a project, None = of all, or of each revision of one of them.
        """
        window = {"since": datetime.fromtimestamp(since // 60 * 60, UTC), "until": datetime.fromtimestamp(until, UTC)}
        statement = _BY_FUNCTION if function is None else _BY_REVISION
        rows = self._rows(statement, window | {"project": project, "function": function})
        return {part: dict(zip(FUNCTION_COLUMNS[1:], cells, strict=True)) for part, *cells in sorted(rows)}

    def job(self, window: StepGrid, job: str) -> dict[str, Column]:
        """:data:`JOB_COLUMNS` of a job."""
        return window.columns(JOB_COLUMNS, self._rows(_JOB, window.parameters | {"job": job}))

    def job_lost(self, window: StepGrid, job: str) -> list[tuple[int, dict[int, Sums]]]:
        """
        What a job's windows had come to by rank, from its beginning to the end of each step in which one was closed: the
        step's begin, and the sums. What lies before ``window`` is in its first step.
        """
        told = closed_windows([job]).subquery().c
        every = window.parameters["every"]
        step = func.greatest(
            func.date_bin(every, told.start_at, datetime.fromtimestamp(0, UTC)), window.parameters["since"]
        )
        powers = (
            told.open_s,
            told.closed_s,
            told.open_s * told.open_s,
            told.open_s * told.closed_s,
            told.closed_s * told.closed_s,
        )
        sums = [func.count(), *(func.sum(power) for power in powers)]
        binned = select(told.rank, step.label("step"), *(each.label(f"s{n}") for n, each in enumerate(sums)))
        binned = binned.where(told.start_at < window.parameters["until"]).group_by(told.rank, step)
        of = binned.subquery().c
        upto = [func.sum(of[f"s{n}"]).over(partition_by=of.rank, order_by=of.step) for n in range(len(sums))]
        query = select(of.step, of.rank, *upto).order_by(of.step)
        found: list[tuple[int, dict[int, Sums]]] = []
        ranks: dict[int, Sums] = {}
        with self._engine.connect() as connection:
            for begin, rank, *cells in connection.execute(query):
                ranks = ranks | {rank: _sums(*cells)}
                at = int(begin.timestamp())
                if found and found[-1][0] == at:
                    found.pop()
                found.append((at, ranks))
        return found

    def attempts(self, since: float, until: float, project: str | None, limit: int) -> list[dict[str, Any]]:
        """
        The newest ``limit`` attempts of jobs that were going on in [since, until), of one project or of all (None). What was
        told at its start (``told_s``, ``told_90_s``, seconds from then) is known of a job's last attempt alone.
        """
        window = {"since": datetime.fromtimestamp(since, UTC), "until": datetime.fromtimestamp(until, UTC)}
        return self._dicts(_ATTEMPTS, window | {"project": project, "limit": limit})

    def calibration(self, project: str | None, limit: int) -> list[dict[str, Any]]:
        """
        Of the newest warm runs of one project, or of all (None), what was told of their degradation, its bound, and what was
        measured: None where the time alone was assumed (``known``). At most ``limit`` that are known.
        """
        return self._dicts(_CALIBRATION, {"project": project, "looked_at": limit * _LOOKED_AT})

    def devices(self, window: StepGrid, project: str | None) -> dict[str, str | None]:
        """The devices of the GPU instances on which functions of one project, or of all (None), ran; None = not known."""
        return dict(self._rows(_DEVICES, window.parameters | {"project": project}))

    def harvest(self, window: StepGrid, by: By, project: str | None, prices: Mapping[str, float]) -> list[Part]:
        """
        The parts of one project, or of all (None), by step and name, and each name's whole last. ``prices`` of an hour of a
        GPU instance by its name.
        """
        of, parts = window.parameters | {"project": project}, dict[tuple[int | None, str], Part]()
        of |= {"gpus": list(prices), "prices": list(prices.values())}

        def part(at: int | None, key: str) -> Part:
            return parts.setdefault((at, key), Part(at=at, key=key))

        for at, key, *cells in self._rows(_HARVESTED.replace("PART", _PART[by]), of):
            one = part(at, key)
            one.run_s, one.money, one.invocations, one.met, one.cold = cells
        for at, key, saved in self._rows(_SAVED.replace("PART", _PART[by]), of):
            part(at, key).saved = saved
        # A training loses to whatever ran beside it, not to one function.
        for at, key, *cells in self._rows(_LOST.replace("PART", _PART[by]), of) if by != "function" else ():
            part(at, key).lost = _sums(*cells)
        for key, trained_s in self._rows(_TRAINED.replace("PART", _PART[by]), of) if by != "function" else ():
            part(None, key).trained_s = trained_s
        return sorted(parts.values(), key=lambda each: (each.at is None, each.at or 0, each.key))


def _sums(windows: Any, open_s: float, closed_s: float, open2: float, both: float, closed2: float) -> Sums:
    """The squares of ``open - ratio closed`` out of the sums of products."""
    ratio = open_s / closed_s
    return Sums(int(windows), open_s, closed_s, max(0.0, open2 - 2 * ratio * both + ratio * ratio * closed2))
