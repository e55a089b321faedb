"""What a worker knows of a batch, from its message to its results."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum

from smore.domain.function import FunctionSpec
from smore.redis.queue import StartedInvocation
from worker.frames import Item
from worker.pool.pool import Seat
from worker.runner.runner_handle import Ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One invocation of a batch, as this attempt began it."""

    id: str
    attempt: int
    begun: StartedInvocation


class BatchPhase(StrEnum):
    """Where a batch is: waiting for a seat, in its runner, or being finished in Redis."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHING = "finishing"


@dataclass(eq=False, slots=True)
class Batch:
    """What one message started; the mutable part is guarded by the executor (worker/batches.py)."""

    function: str
    revision: int
    members: Sequence[Member]
    phase: BatchPhase = BatchPhase.WAITING
    seat: Seat | None = None
    #: Whether what is past its deadline ends (``slo.on_late: drop``).
    drop_late: bool = False
    #: Of one that came ahead of the end of the run before it: seconds for which it may wait for a seat, 0 = it did not.
    ahead_s: float = 0.0
    #: Whether Redis was told that it begins, and has answered.
    begun: bool = True
    #: Ids that are no longer this worker's: cancelled, or given to another worker because their leases ended.
    disowned: set[str] = field(default_factory=set)

    def owned(self) -> list[Member]:
        """The members that are still this worker's."""
        return [member for member in self.members if member.id not in self.disowned]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    A batch that its runner has: ``limit_s`` seconds at most, ``beside`` batches of these functions and these ``jobs``;
    ``idle``: on SCHED_IDLE. ``answered`` takes note of what Redis says of its start; ``answer`` waits for its end.
    """

    seat: Seat
    members: list[Member]
    items: list[Item]
    payloads: list[bytes]
    limit_s: float
    beside: list[str]
    jobs: list[str]
    answered: Callable[[], None]
    answer: Callable[[], Ran]
    idle: bool


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A batch that waits for the end of another's run, and what comes of it: its run, None where nothing is left to do."""

    batch: Batch
    spec: FunctionSpec
    run: "Future[Run | None]" = field(default_factory=Future)
