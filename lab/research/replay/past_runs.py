"""What replays read of the history, of all projects. Times in epoch seconds."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import RowMapping, func, select, tuple_

from smore.domain.function import FunctionSpec
from smore.domain.invocation import State
from smore.messages.specs import unpack_spec
from smore.postgres.history.reader import Reader
from smore.postgres.rows import DecisionRow, ExecutionRow, InvocationRow, JobRow, JobWindowRow, RevisionRow
from smore.postgres.sums import GpuMinuteRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """
    An ended invocation with its last attempt, for replays. ``function`` is ``<project>/<name>``; times in epoch seconds.

    ``attempt``: 0 = never dispatched; ``run_s``: of the whole batch, of ``batch`` invocations with ``batch_rows`` rows
    (None = it did not run to the end); ``slowdown``: the degradation that the decision expected; ``load_s``: a cold
    start, all phases; ``wait_s``: from the dispatch to the start.
    """

    id: str
    function: str
    revision: int
    state: State
    attempt: int
    arrival_at: float
    deadline_at: float
    finished_at: float
    rows: int
    gpu: str
    run_s: float | None
    batch: int | None
    batch_rows: int | None
    cold: bool | None
    load_s: float | None
    slowdown: float
    wait_s: float | None

    @property
    def met(self) -> bool:
        return self.state is State.SUCCEEDED and self.finished_at <= self.deadline_at


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """A GPU instance over a span: means of its samples, and its device as of the last one."""

    gpu: str
    device: str
    sharing_mode: str
    memory_total_mib: float
    utilisation: float
    function_utilisation: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse:
    """
    A serverful job on a GPU instance over a span: mean seconds of an iteration alone, and of any iteration; None = there
    was none.
    """

    job: str
    gpu: str
    windows: int
    solo_s: float | None
    mean_s: float | None


#: Rows that a long query fetches at once.
_PAGE: Final = 1000


class PastRuns(Reader):
    """The history with what a replay needs of it."""

    def served(self, since: float, until: float, most: int) -> tuple[list[Served], int]:
        """
        The newest ``most`` invocations that arrived in [since, until) and have ended, in order of arrival, and how many
        there were in all. Cancelled invocations are in neither.
        """
        row, run = InvocationRow, ExecutionRow
        ended = (State.SUCCEEDED, State.FAILED, State.REJECTED, State.EXPIRED)
        which = (
            row.arrival_at >= _moment(since),
            row.arrival_at < _moment(until),
            row.state.in_(ended),
            row.finished_at.is_not(None),
        )
        columns = (
            row.id,
            row.project,
            row.function,
            row.revision,
            row.state,
            row.attempt,
            row.arrival_at,
            row.deadline_at,
            row.finished_at,
            row.rows,
            row.gpu,
            run.run_s,
            run.batch,
            run.rows.label("batch_rows"),
            run.cold,
            run.load_s,
            run.predicted,
            run.claimed_at,
            run.started_at,
        )
        query = select(*columns).outerjoin(run, (run.invocation == row.id) & (run.attempt == row.attempt))
        query = query.where(*which).order_by(row.arrival_at.desc(), row.id.desc()).limit(most)
        with self._connect() as connection:
            count = connection.execute(select(func.count()).select_from(row).where(*which)).scalar_one()
            served = [_served(line) for line in connection.execution_options(yield_per=_PAGE).execute(query).mappings()]
        served.reverse()
        return served, count

    def gpu_use(self, since: float, until: float) -> list[GpuUse]:
        """Of every GPU instance that reported in the whole minutes that begin in [since, until), by name."""
        row = GpuMinuteRow
        begin = _moment(since).replace(second=0, microsecond=0)
        which = (row.minute >= begin, row.minute < _moment(until))
        samples = func.sum(row.samples)
        means = (func.sum(row.utilisation) / samples, func.sum(row.function_utilisation) / samples, samples)
        query = select(row.gpu, *means, func.max(row.minute)).where(*which).group_by(row.gpu).order_by(row.gpu)
        with self._connect() as connection:
            means_of = connection.execute(query).all()
            newest = tuple_(row.gpu, row.minute).in_([(gpu, last) for gpu, *_, last in means_of])
            columns = (row.gpu, row.device, row.sharing_mode, row.memory_total_mib)
            last = {minute.gpu: minute for minute in connection.execute(select(*columns).where(newest))}
        return [
            GpuUse(
                gpu=gpu,
                device=last[gpu].device,
                sharing_mode=last[gpu].sharing_mode,
                memory_total_mib=last[gpu].memory_total_mib,
                utilisation=float(busy),
                function_utilisation=float(part),
                samples=samples,
            )
            for gpu, busy, part, samples, _ in means_of
        ]

    def job_use(self, since: float, until: float) -> list[JobUse]:
        """Of every job on every GPU instance in [since, until), those of most windows first."""
        row = JobWindowRow

        # Weighted by the number of iterations: a window without any has 0 seconds.
        alone, beside = func.sum(row.solo_count), func.sum(row.shared_count)
        spent = func.sum(row.solo_s * row.solo_count), func.sum(row.shared_s * row.shared_count)
        columns = (
            func.count(),
            spent[0] / func.nullif(alone, 0),
            (spent[0] + spent[1]) / func.nullif(alone + beside, 0),
        )
        query = select(row.job, row.gpu, *columns).where(row.at >= _moment(since), row.at < _moment(until))
        query = query.group_by(row.job, row.gpu).order_by(func.count().desc(), row.job, row.gpu)
        with self._connect() as connection:
            return [
                JobUse(job=job, gpu=gpu, windows=windows, solo_s=_float(solo), mean_s=_float(mean))
                for job, gpu, windows, solo, mean in connection.execute(query)
            ]

    def policies(self, since: float, until: float) -> dict[str, int]:
        """
        How many dispatches each policy decided in [since, until), the busiest first; '' where a decision does not say.
        """
        name = func.coalesce(DecisionRow.decision["policy"].astext, "")
        query = (
            select(name, func.count())
            .where(DecisionRow.at >= _moment(since), DecisionRow.at < _moment(until))
            .group_by(name)
        )
        with self._connect() as connection:
            return {str(policy): int(n) for policy, n in connection.execute(query.order_by(func.count().desc(), name))}

    def specs(self, revisions: Collection[tuple[str, int]]) -> dict[tuple[str, int], FunctionSpec]:
        """Specs of (``<project>/<name>``, revision), with what their canaries measured; missing revisions are left out."""
        wanted = [(*function.split("/", 1), number) for function, number in revisions]
        row = RevisionRow
        query = select(row.project, row.function, row.number, row.spec)
        query = query.where(tuple_(row.project, row.function, row.number).in_(wanted))
        with self._connect() as connection:
            return {
                (f"{project}/{function}", number): unpack_spec(spec)
                for project, function, number, spec in connection.execute(query)
            }

    def job_terms(self, jobs: Collection[str]) -> dict[str, tuple[str, float]]:
        """Workload ('' = not said) and budget of jobs, by id."""
        with self._connect() as connection:
            return {
                str(job): (workload, budget)
                for job, workload, budget in connection.execute(
                    select(JobRow.id, JobRow.workload, JobRow.budget).where(JobRow.id.in_(jobs))
                )
            }


def _served(row: RowMapping) -> Served:
    started, claimed, load = row["started_at"], row["claimed_at"], row["load_s"]
    return Served(
        id=row["id"],
        function=f"{row['project']}/{row['function']}",
        revision=row["revision"],
        state=State(row["state"]),
        attempt=row["attempt"],
        arrival_at=row["arrival_at"].timestamp(),
        deadline_at=row["deadline_at"].timestamp(),
        finished_at=row["finished_at"].timestamp(),
        rows=row["rows"],
        gpu=row["gpu"] or "",
        run_s=row["run_s"],
        batch=row["batch"],
        batch_rows=row["batch_rows"],
        cold=row["cold"],
        load_s=sum(load.values()) if load else None,
        slowdown=float((row["predicted"] or {}).get("function_degradation") or 0.0),
        wait_s=(started - claimed).total_seconds() if started is not None and claimed is not None else None,
    )


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
