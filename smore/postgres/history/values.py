"""Values that :class:`smore.postgres.history.reader.Reader` returns. Times in epoch seconds."""

from dataclasses import dataclass
from typing import Any, Final

from smore.domain.invocation import State
from smore.domain.loss import Sums

#: A serverful job has one row for this many seconds: its last report in them.
JOB_WINDOW_S: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PastInvocation:
    """
    An invocation in the history, finished or not. ``gate_s``: the earliest feasible finish that the admission gate
    compared with its deadline, seconds from arrival.
    """

    id: str
    project: str
    function: str
    revision: int
    state: State
    cause: str
    attempt: int
    starts: int
    arrival_at: float
    deadline_at: float
    claimed_at: float | None
    started_at: float | None
    finished_at: float | None
    gpu: str
    rows: int
    key_id: str
    trace: str
    gate_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One attempt on a GPU instance; see :class:`smore.postgres.rows.ExecutionRow`. None = not known (yet)."""

    invocation: str
    attempt: int
    gpu: str
    state: State
    cause: str
    cold: bool | None
    load_s: dict[str, float] | None
    run_s: float | None
    batch: int | None
    rows: int | None
    co_runners: list[str] | None
    jobs: list[str] | None
    predicted: dict[str, Any] | None
    claimed_at: float | None
    started_at: float | None
    finished_at: float | None

    @property
    def degradation(self) -> float | None:
        """
        The measured degradation: the run time over the time that the decision expected for it alone, minus one. None
        where the run was cold or did not end, or that time was assumed: the function is not in the degradation table.
        """
        predicted = self.predicted or {}
        alone_s = predicted.get("run_s") if predicted.get("known") else None
        return self.run_s / alone_s - 1 if self.run_s is not None and alone_s and not self.cold else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastDecision:
    """A dispatch; ``decision``: its reasons (smore/messages/reasons.py), without what is null."""

    at: float
    decision: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWindow:
    """See :class:`smore.postgres.rows.JobWindowRow`."""

    solo_s: float
    solo_count: int
    shared_s: float
    shared_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """
    Sums over the closed windows of a rank of a job. ``first_at``, ``last_at``: when the first and the last window
    began, epoch seconds.
    """

    first_at: float
    last_at: float
    sums: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """
    Runs of functions beside a job: seconds, a batch counted once, and the number of invocations.
    """

    seconds: float
    invocations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTotal:
    """``batches`` of ``rows`` rows that ran, for ``run_s`` seconds in all."""

    rows: int
    batches: int
    run_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """
    All ended invocations of a revision; seconds are sums over them.

    ``total_s``: arrival to end of those that succeeded, of which ``wait_s`` until the start and ``run_s`` in the run of
    their batch; ``failed_s``: arrival to end of the others; ``rows``: of those that succeeded; ``last_at``: the latest
    end, epoch seconds.
    """

    function: str
    revision: int
    succeeded: int
    failed: int
    rows: int
    total_s: float
    failed_s: float
    wait_s: float
    run_s: float
    last_at: float
    batches: tuple[BatchTotal, ...]
