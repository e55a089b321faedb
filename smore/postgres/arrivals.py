"""
Prewarming in Postgres: what forecasters learn from, and what prewarming achieved.

Arrivals per minute (:class:`ArrivalCounts`), imported arrivals (:class:`Imported`), instances and cold starts by function
(:class:`FunctionAccount`), and fitted forecasters. A minute that nobody counted is not a minute without arrivals. Imported
arrivals have tables of their own: forecasters learn from them, and no count, limit or statement contains them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil, floor
from typing import Any, Final

from sqlalchemy import Engine, case, delete, exists, false, func, or_, select, text
from sqlalchemy.orm import Session

from smore.postgres.rows import ForecasterRow, InstanceRow, TraceCountRow, TraceRow, value_of
from smore.postgres.sums import ArrivalsMinuteRow, CountedMinuteRow, RunStartsRow

MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
#: The kind of a warm run (RunStartsRow.kind).
WARM: Final = "warm"
#: Minutes before now that a fit and a forecast use: two days, so that each minute of the day occurs twice.
SPAN_MIN: Final = 2 * 1440
#: A minute counts as counted where the platform was up in at least so many of its seconds.
LEAST_SECONDS: Final = 50
#: Forecasters that are kept.
KEPT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalCounts:
    """
    Arrivals per minute from ``from_at`` (epoch seconds) on. ``counted`` [T]: whether each minute was counted; ``counts``:
    function (``<project>/<name>``) → minute → arrivals, minutes without arrivals left out.

    ``imported``: function → minute → arrivals of a trace, 0 included, in minutes that were not counted here.
    """

    from_at: float
    counted: Sequence[bool]
    counts: Mapping[str, Mapping[int, int]]
    imported: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """
    Arrivals that were recorded elsewhere. On this platform they count as arrivals in [from_at, until_at), epoch seconds.

    ``functions``: function (its name in the project) → (name in the file, arrivals). ``digest``: SHA-256 of the file.
    """

    id: int
    name: str
    digest: str
    created_at: float
    from_at: float
    until_at: float
    functions: Mapping[str, tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionAccount:
    """
    One function over a span, with the instances whose load was asked for in it.

    ``hits``, ``late``, ``wasted``, ``failed``, ``open``: loads ahead of requests, by outcome; ``cold_loads``: loads that a
    request asked for; ``host_loads``: those of all these that came from pinned host memory, which is faster than a cold
    start. ``saved``: runs that were warm only because the instance was loaded ahead or kept for longer than its
    keep-alive. Memory times seconds, in GB-seconds: ``held_gb_s``: from the request to load to the end; ``idle_gb_s``:
    of this, without work, loads included (T_waste); ``wasted_gb_s``: of that, of instances that were loaded ahead and
    never used. ``unforeseen``: cold starts by reason.
    """

    function: str
    invocations: int
    cold: int
    hits: int = 0
    late: int = 0
    wasted: int = 0
    failed: int = 0
    open: int = 0
    cold_loads: int = 0
    saved: int = 0
    held_gb_s: float = 0.0
    idle_gb_s: float = 0.0
    wasted_gb_s: float = 0.0
    unforeseen: Mapping[str, int]
    host_loads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A forecaster as it was stored."""

    version: int
    created_at: float
    manifest: Mapping[str, Any]
    model: bytes


class ArrivalStore:
    """
    Reads and writes of arrivals, traces, instances and forecasters. Raises SQLAlchemy's OperationalError where Postgres
    is away.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # ---- counts ------------------------------------------------------------------------------------------------------

    def past(self, since: float, until: float) -> ArrivalCounts:
        """Arrivals in the whole minutes of [since, until), of all functions of all projects."""
        begin, end = floor(since / MINUTE_S) * MINUTE_S, floor(until / MINUTE_S) * MINUTE_S
        minutes = max(0, int((end - begin) / MINUTE_S))
        counted = [False] * minutes
        counts: dict[str, dict[int, int]] = {}
        row, minute_row = ArrivalsMinuteRow, CountedMinuteRow
        with self._engine.connect() as connection:
            span = (minute_row.minute >= _moment(begin), minute_row.minute < _moment(end))
            for minute, seconds in connection.execute(select(minute_row.minute, minute_row.seconds).where(*span)):
                if int(seconds).bit_count() >= LEAST_SECONDS:
                    counted[int((minute.timestamp() - begin) / MINUTE_S)] = True
            columns = (row.project, row.function, row.minute, row.n)
            for project, function, minute, n in connection.execute(
                select(*columns).where(row.minute >= _moment(begin), row.minute < _moment(end)).order_by(row.minute)
            ):
                counts.setdefault(f"{project}/{function}", {})[int((minute.timestamp() - begin) / MINUTE_S)] = n
            imported = self._imported(connection, begin, counted)
        return ArrivalCounts(from_at=begin, counted=counted, counts=counts, imported=imported)

    # ---- what was imported -------------------------------------------------------------------------------------------

    def import_trace(
        self, project: str, *, name: str, digest: str, from_at: float, counts: Mapping[str, tuple[str, Sequence[int]]]
    ) -> Imported:
        """
        Store arrivals. ``counts``: function → (name in the file, arrivals in each minute from ``from_at`` on), all of one
        length.
        """
        minutes = max(len(each) for _, each in counts.values())
        with Session(self._engine) as session:
            row = TraceRow(
                project=project,
                name=name,
                digest=digest,
                from_at=_moment(from_at),
                until_at=_moment(from_at + minutes * MINUTE_S),
            )
            session.add(row)
            session.flush()
            session.add_all(
                TraceCountRow(trace=row.id, function=function, source=source, counts=list(each))
                for function, (source, each) in counts.items()
            )
            session.commit()
            sums = {function: (source, sum(each)) for function, (source, each) in counts.items()}
            return value_of(Imported, row, functions=sums)

    def traces(self, project: str) -> list[Imported]:
        """The newest first."""
        total = (
            select(func.coalesce(func.sum(text("n")), 0))
            .select_from(func.unnest(TraceCountRow.counts).alias("n"))
            .scalar_subquery()
        )
        with Session(self._engine) as session:
            rows = session.scalars(
                select(TraceRow).where(TraceRow.project == project).order_by(TraceRow.id.desc())
            ).all()
            by_trace: dict[int, dict[str, tuple[str, int]]] = {row.id: {} for row in rows}
            columns = (TraceCountRow.trace, TraceCountRow.function, TraceCountRow.source, total)
            for trace, function, source, n in session.execute(
                select(*columns).where(TraceCountRow.trace.in_(by_trace))
            ):
                by_trace[trace][function] = (source, int(n))
            return [value_of(Imported, row, functions=by_trace[row.id]) for row in rows]

    def remove_trace(self, project: str, id_: int) -> bool:
        """Delete an imported trace. False where there is no such trace."""
        with Session(self._engine) as session, session.begin():
            gone = session.execute(
                delete(TraceRow).where(TraceRow.project == project, TraceRow.id == id_).returning(TraceRow.id)
            ).all()
            return bool(gone)

    @staticmethod
    def _imported(connection: Any, begin: float, counted: Sequence[bool]) -> dict[str, dict[int, int]]:
        """Imported arrivals by function, in minutes that were not counted; where two traces have one, the newer counts."""
        end = begin + len(counted) * MINUTE_S
        columns = (TraceRow.project, TraceCountRow.function, TraceRow.from_at, TraceCountRow.counts)
        rows = (
            select(*columns)
            .join(TraceCountRow, TraceCountRow.trace == TraceRow.id)
            .where(TraceRow.until_at > _moment(begin), TraceRow.from_at < _moment(end))
            .order_by(TraceRow.id)
        )
        imported: dict[str, dict[int, int]] = {}
        for project, function, from_at, counts in connection.execute(rows):
            first = int((from_at.timestamp() - begin) / MINUTE_S)
            minutes = imported.setdefault(f"{project}/{function}", {})
            for minute in range(max(0, first), min(len(counted), first + len(counts))):
                if not counted[minute]:
                    minutes[minute] = counts[minute - first]
        return imported

    # ---- what it came to ---------------------------------------------------------------------------------------------

    def account(self, since: float, until: float, project: str | None = None) -> list[FunctionAccount]:
        """By function, over [since, until); ``project`` None = all."""
        row = InstanceRow
        which = [row.asked_at >= _moment(since), row.asked_at < _moment(until)]
        if project is not None:
            which.append(row.project == project)
        # A row is a minute old at most. An instance whose worker is gone ends once its successor reports.
        gb = row.memory_mib / 1024.0
        idle_s, held_s = row.load_s + row.idle_s, row.load_s + row.idle_s + row.busy_s
        never = (row.prewarmed.is_(True)) & (row.uses == 0)
        sums: dict[str, Any] = {
            "hits": func.count().filter(row.outcome == "hit"),
            "cold_loads": func.count().filter(row.outcome == "cold"),
            "saved": func.sum(row.saved),
            "held_gb_s": func.sum(gb * held_s),
            "idle_gb_s": func.sum(gb * idle_s),
            "wasted_gb_s": func.sum(case((never, gb * idle_s), else_=0.0)),
            "host_loads": func.count().filter(row.host.is_(True)),
        }
        sums |= {name: func.count().filter(row.outcome == name) for name in ("late", "wasted", "failed", "open")}
        query = select(row.project, row.function, *sums.values()).where(*which).group_by(row.project, row.function)
        lives: dict[str, dict[str, Any]] = {}
        with self._engine.connect() as connection:
            for owner, name, *values in connection.execute(query):
                lives[f"{owner}/{name}"] = dict(zip(sums, values, strict=True))
            runs = self._runs(connection, since, until, project)
        accounts = []
        for function in sorted({*lives, *runs}):
            why = runs.get(function, Counter())
            invocations, warm = why.total(), why.pop(WARM, 0)
            accounts.append(
                FunctionAccount(
                    function=function,
                    invocations=invocations,
                    cold=invocations - warm,
                    unforeseen=dict(why),
                    **lives.get(function, {}),
                )
            )
        return accounts

    @staticmethod
    def _runs(connection: Any, since: float, until: float, project: str | None) -> dict[str, Counter[str]]:
        """
        Function → kind → runs that ended in the whole minutes around [since, until). Kind: ``warm``, or why the run was
        cold.
        """
        row = RunStartsRow
        parts = [
            (row.span == span) & (row.at >= _moment(low)) & (row.at < _moment(high))
            for span, low, high in spans(since, until)
        ]
        query = select(row.project, row.function, row.kind, func.sum(row.n)).where(or_(false(), *parts))
        if project is not None:
            query = query.where(row.project == project)
        kinds: dict[str, Counter[str]] = {}
        for owner, name, kind, n in connection.execute(query.group_by(row.project, row.function, row.kind)):
            kinds.setdefault(f"{owner}/{name}", Counter())[kind] = int(n)
        return kinds

    # ---- forecasters -------------------------------------------------------------------------------------------------

    def store(self, manifest: Mapping[str, Any], model: bytes) -> int:
        """Store a fitted forecaster and return its version. Only the newest :data:`KEPT` stay."""
        with Session(self._engine) as session, session.begin():
            row = ForecasterRow(manifest=dict(manifest), model=model)
            session.add(row)
            session.flush()
            kept = select(ForecasterRow.version).order_by(ForecasterRow.version.desc()).limit(KEPT)
            session.execute(delete(ForecasterRow).where(ForecasterRow.version.not_in(kept)))
            return row.version

    def fit_due(self, now: float, old_s: float) -> bool:
        """Whether there are arrivals to fit on, and no forecaster that is younger than ``old_s`` seconds."""
        begin = _moment(now - SPAN_MIN * MINUTE_S)
        arrivals = or_(exists().where(ArrivalsMinuteRow.minute >= begin), exists().where(TraceRow.until_at > begin))
        fresh = exists().where(ForecasterRow.created_at > _moment(now - old_s))
        with self._engine.connect() as connection:
            return bool(connection.execute(select(arrivals & ~fresh)).scalar_one())

    def newest(self) -> Fitted | None:
        with Session(self._engine) as session:
            row = session.scalars(select(ForecasterRow).order_by(ForecasterRow.version.desc()).limit(1)).first()
            return value_of(Fitted, row) if row is not None else None


def spans(since: float, until: float) -> Iterator[tuple[int, float, float]]:
    """
    The whole minutes around [since, until) as (seconds of a row's span, from, to), epoch seconds: whole hours, and
    minutes before and after them.
    """
    begin, end = floor(since / MINUTE_S) * MINUTE_S, ceil(until / MINUTE_S) * MINUTE_S
    first = min(ceil(begin / HOUR_S) * HOUR_S, end)
    last = max(floor(end / HOUR_S) * HOUR_S, first)
    for span, low, high in ((MINUTE_S, begin, first), (HOUR_S, first, last), (MINUTE_S, last, end)):
        if low < high:
            yield int(span), low, high


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
