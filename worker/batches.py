"""
One batch from its message to its results: start, a seat in the warm pool, predict, finish.

Called by the Celery task (worker/tasks.py), in its thread. Two round trips to Redis and one to the runner where the
model is warm. Each kind of failure has one outcome: input and handler errors fail the invocation, a crash gives it
back, an answer that breaks the protocol fails it without another attempt.

What must stay true: in a batch only the invocation at fault may be charged an attempt, so a batch that fails as a whole
is given back and each member runs alone; and nobody is charged for memory that others took.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import redis
import structlog

from smore.domain.function import FunctionSpec, OnLate, WorkClass
from smore.domain.invocation import Cause, Encoding
from smore.messages.results import IDLE, Execution, encode_execution, error_result
from smore.process import observability
from smore.process.settings import WorkerSettings
from smore.redis.catalog import Catalog
from smore.redis.outage import is_outage
from smore.redis.queue import Queue, RunOutcome
from worker.batch import Batch, BatchPhase, Member, Run, Turn
from worker.device.device import Device
from worker.frames import BadFrame, Item
from worker.idle import end_idle, go_idle, may_return, runs_idle
from worker.outcomes import PAIR, of_both, outcomes_of, rows_of
from worker.pool.errors import LoadFailed, NoneLeft, Quarantined, Unservable
from worker.pool.pool import Pool, Seat
from worker.runner.runner_handle import RunnerDied, RunnerFailed, RunnerTimeout
from worker.training.run_gate import RunGate

log = observability.logger(__name__)

#: Seconds for which a result is held while Redis is away. The lease has ended long before: what the leader has returned
#: to the queue by then runs again, and this result is refused.
PATIENCE_S: Final = 30.0
#: Seconds that a batch waits for a seat that others hold, beyond its own deadline too: deadlines are decided in Redis,
#: not here.
SEAT_WAIT_S: Final = 10.0
#: Seconds that a batch waits at a shut run gate before it is given back: at most, for another GPU instance may take it,
#: and at least, however near its deadline is.
GATE_WAIT_S: Final = 1.0
GATE_LEAST_S: Final = 0.05
#: Seconds after its deadline at which a run is stopped whose function drops what is late: Redis' clock decides then.
LATE_MARGIN_S: Final = 0.01
#: How many times its limit a run on SCHED_IDLE may take: the least share of a platform is a twentieth.
IDLE_STRETCH: Final = 20.0
#: Seconds from SIGTERM to SIGKILL of a cancelled invocation's runner.
CANCEL_S: Final = 1.0

#: Why the platform refuses one output of a batch that ran.
_REFUSED: Final = frozenset({Cause.BAD_OUTPUT, Cause.RESULT_TOO_LARGE})
#: Ends of a run that its handler cannot print itself.
_NOTED: Final = frozenset(
    {
        Cause.CRASHED,
        Cause.OUT_OF_MEMORY,
        Cause.TIMED_OUT,
        Cause.CONTEXT_LOST,
        Cause.LOAD_FAILED,
        Cause.WORKER_LOST,
        Cause.DEADLINE_EXPIRED,
    }
)

T = TypeVar("T")


class Executor:
    """
    Runs batches, each in the thread that brings it, and keeps the list of those that run. Survives outages of Redis.

    ``jobs`` gives the ids of the jobs that run beside. ``tell`` adds a line to the log of a function: (function,
    revision, invocations, text). One lock guards the batches; it is never held during a call of
    Redis, of the pool's :meth:`~worker.pool.pool.Pool.acquire` or of a runner.
    """

    def __init__(
        self,
        *,
        config: WorkerSettings,
        device: Device,
        boot: str,
        queue: Queue,
        catalog: Catalog,
        pool: Pool,
        gate: RunGate,
        jobs: Callable[[], Sequence[str]],
        tell: Callable[[str, int, Sequence[str], str], None] = lambda *_: None,
    ) -> None:
        self._config = config
        self._tell = tell
        self._device = device
        self._boot = boot
        self._queue = queue
        self.catalog = catalog
        self._pool = pool
        self._gate = gate
        self._jobs = jobs
        self._may_return = may_return()
        self._lock = threading.Lock()
        self._batches: set[Batch] = set()
        #: Of the batches that came ahead and wait, the oldest first.
        self._turns: list[Turn] = []
        self._draining = threading.Event()
        #: When a message was last taken, monotonic seconds.
        self.consumed_at = time.monotonic()

    # ---- what runs ---------------------------------------------------------------------------------------------------

    def running(self) -> list[tuple[str, str, int]]:
        """(function, id, attempt) of everything whose lease is to be renewed."""
        with self._lock:
            return [
                (batch.function, member.id, member.attempt)
                for batch in self._batches
                if batch.begun
                for member in batch.owned()
            ]

    def batches(self) -> int:
        """How many batches this worker has."""
        with self._lock:
            return len(self._batches)

    def drain(self) -> None:
        """Begin no more: batches without a seat go back to the queue."""
        self._draining.set()

    @property
    def draining(self) -> bool:
        """Whether :meth:`drain` was called."""
        return self._draining.is_set()

    def cancel(self, function: str, id_: str, attempt: int) -> None:
        """End an invocation that is alone in its runner; in a batch the others go on and finish refuses its result."""
        self._disown(
            lambda batch, member: batch.function == function and member.id == id_ and member.attempt == attempt
        )

    def disown(self, ids: Iterable[str]) -> None:
        """These invocations belong to another worker by now: end those that are alone in their runners."""
        gone = frozenset(ids)
        if gone:
            self._disown(lambda _, member: member.id in gone)

    def _disown(self, matches: Callable[[Batch, Member], bool]) -> None:
        ending = []
        with self._lock:
            for batch in self._batches:
                members = [member for member in batch.members if matches(batch, member)]
                # While it is being finished Redis decides whose it is.
                if not members or batch.phase is BatchPhase.FINISHING:
                    continue
                batch.disowned.update(member.id for member in members)
                if batch.phase is BatchPhase.RUNNING and batch.seat is not None and not batch.owned():
                    # Still under the lock: once the batch is past RUNNING its runner may be another's.
                    self._pool.retire(batch.seat)
                    ending.append(batch.seat.runner)
        for runner in ending:
            threading.Thread(target=runner.stop, args=(CANCEL_S,), name="cancel", daemon=True).start()

    # ---- one batch ---------------------------------------------------------------------------------------------------

    def run(self, function: str, revision: int, attempts: Sequence[tuple[str, int]], ahead_s: float = 0.0) -> None:
        """
        Serve a message. Never raises for what a function, a runner or Redis did. ``ahead_s``: seconds for which it may
        wait for the end of the run before it, 0 = no instance is at work for another.
        """
        self.consumed_at = time.monotonic()
        try:
            if ahead_s:
                begun = self._queue.look(function, self._config.gpu, attempts)
            else:
                begun = self._queue.start(function, self._config.gpu, self._config.lease_s, attempts)
        except (redis.RedisError, OSError) as error:
            if not is_outage(error):
                raise
            # Whether Redis has started it is unknown: the lease gives it back either way.
            log.warning("not started: Redis does not serve", function=function, error=str(error))
            return
        members = [
            Member(id=id_, attempt=attempt, begun=invocation)
            for (id_, attempt), invocation in zip(attempts, begun, strict=True)
            if invocation is not None
        ]
        if not members:
            return
        batch = Batch(function, revision, members, ahead_s=ahead_s, begun=not ahead_s)
        with structlog.contextvars.bound_contextvars(**_context(batch)):
            with self._lock:
                self._batches.add(batch)
            try:
                self._serve(batch)
            finally:
                with self._lock:
                    self._batches.discard(batch)
                self._hand_over(function, revision)

    def _serve(self, batch: Batch) -> None:
        spec = self._patiently(lambda: self.catalog.revision(batch.function, batch.revision))
        if spec is None:
            self._fail(batch, Cause.FUNCTION_DELETED, "The function is gone.")
            return
        batch.drop_late = spec.on_late is OnLate.DROP
        try:
            run = self._behind(batch, spec) if batch.ahead_s else self._begin(batch, self._seat(batch, spec), spec)
        except Unservable as error:
            self._give_back(batch, Cause.WORKER_BUSY, str(error))
        except Quarantined as error:
            self._fail(batch, Cause.QUARANTINED, str(error))
        except LoadFailed as error:
            # Behind the first line is the log, which is for a deployment's canary and not for every caller.
            canary = any(member.begun.encoding is Encoding.CANARY for member in batch.members)
            message = str(error) if canary else str(error).partition("\n")[0]
            self._fail(batch, error.cause, message, error.traceback)
        else:
            if run is not None:
                self._await(batch, run, spec)

    def _seat(self, batch: Batch, spec: FunctionSpec) -> Seat:
        """
        A seat while the run gate is open. Raises what :meth:`Pool.acquire` raises, and Unservable where the gate stays
        shut.

        A load counts as the beginning of a run: once it has begun the run follows.
        """

        def wanted() -> bool:
            return not self.draining and bool(batch.owned())

        prepared = self._pool.prepare(batch.function, batch.revision, spec)
        deadline_at = min(member.begun.deadline_us for member in batch.members) / 1e6
        # Half of the time until the deadline: the other half is for another GPU instance.
        until = time.monotonic() + min(GATE_WAIT_S, max(GATE_LEAST_S, (deadline_at - time.time()) / 2))
        while True:
            if not self._gate.wait(until - time.monotonic(), wanted):
                raise Unservable("The gate is shut: training is protected here.")
            seat = self._pool.acquire(
                batch.function,
                batch.revision,
                spec,
                until=time.monotonic() + SEAT_WAIT_S,
                wanted=wanted,
                prepared=prepared,
            )
            if seat.cold or self._gate.open():
                return seat
            # The gate was shut while the batch waited for its seat. Nothing has run.
            self._pool.release(seat)

    # ---- a batch that came ahead -------------------------------------------------------------------------------------

    def _behind(self, batch: Batch, spec: FunctionSpec) -> Run | None:
        """
        The run of a batch that came ahead, which begins in the thread of the run ahead of it, at that one's end. Raises
        Unservable and Quarantined.
        """
        turn = Turn(batch, spec)
        with self._lock:
            self._turns.append(turn)
        # One may have ended by now.
        self._hand_over(batch.function, batch.revision)
        try:
            return turn.run.result(batch.ahead_s)
        except TimeoutError:
            with self._lock:
                waits = turn in self._turns
                if waits:
                    self._turns.remove(turn)
            if waits:
                raise Unservable("The run ahead of it takes longer than expected.") from None
            return turn.run.result()

    def _next(self, function: str, revision: int, *, take: bool) -> Turn | None:
        """The first that waits for an instance of a revision; ``take``: it waits no more."""
        key = function, revision
        with self._lock:
            turn = next((one for one in self._turns if (one.batch.function, one.batch.revision) == key), None)
            if turn is not None and take:
                self._turns.remove(turn)
        return turn

    def _hand_over(self, function: str, revision: int) -> None:
        """
        A run has ended: begin the one that waits for its instance. Before all else that is to be done about the end, and
        in this thread, because waking another takes as long as a short run.
        """
        turn = self._next(function, revision, take=False)
        if turn is None:
            return
        try:
            seat = self._pool.acquire(function, revision, turn.spec, until=-math.inf, wanted=lambda: True, load=False)
        except (NoneLeft, Quarantined) as error:
            turn = self._next(function, revision, take=True)
            if turn is not None:
                turn.run.set_exception(error)
            return
        except Unservable:
            return
        turn = self._next(function, revision, take=True)
        if turn is None:
            self._pool.release(seat)
            return
        try:
            turn.run.set_result(self._begin_behind(turn.batch, seat, turn.spec))
        except BaseException as error:  # noqa: BLE001 - it is for the thread that waits
            turn.run.set_exception(error)

    def _begin_behind(self, batch: Batch, seat: Seat, spec: FunctionSpec) -> Run | None:
        """As :meth:`_begin`. Raises Unservable where it may not begin: it would keep others waiting."""
        in_time = time.time() * 1e6 < min(member.begun.deadline_us for member in batch.members)
        if self.draining or not in_time or not self._gate.wait(0.0, lambda: True):
            self._pool.release(seat)
            raise Unservable("The worker is ending, the gate is shut, or its deadline has passed.")
        return self._begin(batch, seat, spec)

    def _starting(self, batch: Batch, members: Sequence[Member]) -> Callable[[], None]:
        """
        Tell Redis that a batch begins that came ahead; what is returned takes note of the answer. The runner need not wait
        for it: what was not begun by right is dropped with its result.
        """
        attempts = [(member.id, member.attempt) for member in members]
        answer = self._queue.starting(batch.function, self._config.gpu, self._config.lease_s, attempts)

        def answered() -> None:
            refused = set()
            try:
                refused = {id_ for (id_, _), begun in zip(attempts, answer(), strict=True) if not begun}
            except (redis.RedisError, OSError) as error:
                if not is_outage(error):
                    raise
                # Whether it was begun is unknown: Redis refuses the result, or the next report says so, if it was not.
                log.warning("start not answered: Redis does not serve", function=batch.function, error=str(error))
            with self._lock:
                batch.disowned.update(refused)
                batch.begun = True
            observability.AHEAD_REFUSED.labels(self._config.gpu).inc(len(refused))

        return answered

    # ---- a run -------------------------------------------------------------------------------------------------------

    def _begin(self, batch: Batch, seat: Seat, spec: FunctionSpec) -> Run | None:
        """Send a batch to its runner; None where there is nothing to be run any more: then it is settled."""
        with self._lock:
            members = batch.owned()
            batch.seat, batch.phase = seat, BatchPhase.RUNNING
            beside = sorted(
                {other.function for other in self._batches if other is not batch and other.phase is BatchPhase.RUNNING}
            )
        if not members:
            self._pool.release(seat)
            return None
        idle = self._device.handler_device == "cpu" and runs_idle(spec, members[0].begun, self._may_return)
        limit_s = spec.timeout_s * (IDLE_STRETCH if idle else 1.0)
        if batch.drop_late:
            last_us = max(member.begun.deadline_us for member in members)
            limit_s = min(limit_s, last_us / 1e6 - time.time() + LATE_MARGIN_S)
            if limit_s <= 0:
                # A cold start took all the time there was. The instance stays.
                self._settling(batch)
                self._pool.release(seat)
                self._drop(batch)
                return None
        items = [
            Item(
                encoding=member.begun.encoding.value,
                accept=member.begun.accept.value,
                rows=member.begun.rows,
                length=len(member.begun.payload),
            )
            for member in members
        ]
        payloads, ids = [member.begun.payload for member in members], [member.id for member in members]
        try:
            answered = _nothing if batch.begun else self._starting(batch, members)
        except (redis.RedisError, OSError) as error:
            self._settling(batch)
            self._pool.release(seat)
            if not is_outage(error):
                raise
            log.warning("not started: Redis does not serve", function=batch.function, error=str(error))
            return None
        if idle:
            go_idle(seat.runner.pid)
        try:
            answer = seat.runner.begin(items, payloads, ids, limit_s)
        except BaseException:
            self._end(batch, seat)
            raise
        return Run(
            seat=seat,
            members=members,
            items=items,
            payloads=payloads,
            limit_s=limit_s,
            beside=beside,
            jobs=list(self._jobs()),
            answered=answered,
            answer=answer,
            idle=idle,
        )

    def _await(self, batch: Batch, run: Run, spec: FunctionSpec) -> None:
        """Wait for the end of a run and settle it."""
        seat, members, items, limit_s = run.seat, run.members, run.items, run.limit_s
        during, examples_s = "", 0.0
        try:
            run.answered()
            try:
                ran = run.answer()
            finally:
                # Before its seat is another's: users would wait behind everything else.
                if run.idle and self._may_return:
                    end_idle(seat.runner.pid)
            examples_s = ran.run_s
            if spec.max_batch > 1 and items[0].encoding == Encoding.CANARY and ran.answers[0].form == "json":
                during = PAIR
                ids = [member.id for member in members]
                pair = seat.runner.predict(items[:1] * 2, run.payloads[:1] * 2, ids, limit_s)
                examples_s += pair.run_s
                ran = of_both(ran, pair)
        except RunnerDied as error:
            self._died(batch, seat, error, during)
            return
        except RunnerTimeout:
            self._end(batch, seat)
            longest_s = spec.timeout_s * (IDLE_STRETCH if run.idle else 1.0)
            if limit_s < longest_s:
                self._drop(batch)
                return
            log.warning("timed out", revision=batch.revision, timeout_s=longest_s)
            self._charge(batch, Cause.TIMED_OUT, f"{during}It ran longer than its limit of {longest_s:g} s.")
            return
        except RunnerFailed as error:
            self._failed(batch, seat, RunnerFailed(error.cause, f"{during}{error}", error.traceback))
            return
        except BadFrame as error:
            self._broke(batch, seat, error)
            return
        except BaseException:
            # A defect of the platform: the runner's state is unknown.
            self._end(batch, seat)
            raise
        self._settling(batch)
        self._pool.release(seat)
        self._hand_over(batch.function, batch.revision)
        self._pool.ran(seat, ran.run_s)
        work_class = WorkClass.BATCH if members[0].begun.bulk else WorkClass.STANDARD
        observability.RUN_SECONDS.labels(batch.function, self._config.gpu, work_class).observe(ran.run_s)
        for member, answer in zip(members, ran.answers, strict=True):
            if answer.cause in _REFUSED:
                self._say(batch, [member.id], answer.cause, answer.message)
        meta = encode_execution(
            Execution(
                boot=self._boot,
                cold=seat.cold,
                load_ms=seat.instance.phases if seat.cold else {},
                run_ms=ran.run_s * 1e3,
                batch=len(members),
                rows=rows_of(items, ran.answers),
                co=run.beside,
                jobs=run.jobs,
                pid=seat.runner.pid,
                device=self._device.description,
                sharing_mode=IDLE if run.idle else self._device.sharing_mode,
            )
        ).decode()
        self._finish(batch, meta, outcomes_of(members, ran, seat, examples_s))

    # ---- failures ----------------------------------------------------------------------------------------------------

    def _settling(self, batch: Batch) -> None:
        """Its runner has ended: from now on Redis decides whose its members are."""
        with self._lock:
            batch.phase = BatchPhase.FINISHING

    def _end(self, batch: Batch, seat: Seat) -> None:
        self._settling(batch)
        self._pool.release(seat, healthy=False)

    def _died(self, batch: Batch, seat: Seat, error: RunnerDied, during: str) -> None:
        members = batch.owned()
        self._end(batch, seat)
        if not members:
            return  # this worker has killed it, for a cancel
        if error.status is None:
            self._give_back(batch, Cause.WORKER_LOST, "The zygote ended.")
            return
        if seat.instance.evicted is Cause.WORKER_BUSY:
            self._give_back(batch, Cause.WORKER_BUSY, "Training needed the memory.")
            return
        log.warning(
            "runner died", revision=batch.revision, pid=seat.runner.pid, status=error.status, batch=len(batch.members)
        )
        exceeded = seat.instance.exceeded()
        cause, message = (Cause.OUT_OF_MEMORY, exceeded) if exceeded else (Cause.CRASHED, str(error))
        self._pool.crashed(seat, members[0].id, cause)
        self._retry(batch, cause, during + message)

    def _failed(self, batch: Batch, seat: Seat, error: RunnerFailed) -> None:
        culprit = batch.members[0].id
        match error.cause:
            case Cause.CONTEXT_LOST:
                self._context_lost(batch, seat, error)
            case Cause.DEVICE_FULL if self._pool.device_full(seat):
                # Ending it frees the memory that others needed.
                self._end(batch, seat)
                self._give_back(batch, error.cause, str(error))
            case Cause.OUT_OF_MEMORY | Cause.DEVICE_FULL:
                # How much it holds is unknown from now on: only its end gives the memory back.
                self._end(batch, seat)
                self._pool.crashed(seat, culprit, Cause.OUT_OF_MEMORY)
                self._retry(batch, Cause.OUT_OF_MEMORY, str(error), error.traceback)
            case _:
                self._settling(batch)
                self._pool.release(seat)
                self._charge(batch, error.cause, str(error), error.traceback)

    def _context_lost(self, batch: Batch, seat: Seat, error: RunnerFailed) -> None:
        """
        Only an invocation that ran alone, in a runner that nobody had used before, is certain to be at fault. Otherwise
        each runs again in that way.
        """
        culprit, certain = batch.members[0].id, seat.new and len(batch.members) == 1
        self._end(batch, seat)
        log.warning(
            "context lost", revision=batch.revision, pid=seat.runner.pid, error=str(error), batch=len(batch.members)
        )
        if certain:
            self._pool.crashed(seat, culprit, error.cause)
        self._requeue(batch, error.cause, str(error), error.traceback, refund=not certain, alone=not certain)

    def _broke(self, batch: Batch, seat: Seat, error: BadFrame) -> None:
        """The runner broke the protocol: no accident, so another GPU instance would do no better."""
        culprit = batch.members[0].id
        self._end(batch, seat)
        log.warning(
            "runner broke the protocol",
            revision=batch.revision,
            pid=seat.runner.pid,
            error=str(error),
            batch=len(batch.members),
        )
        self._pool.crashed(seat, culprit, Cause.CRASHED, broke=True)
        self._charge(batch, Cause.CRASHED, f"The runner broke the protocol: {error}.")

    def _charge(self, batch: Batch, cause: Cause, message: str, traceback: str = "") -> None:
        """The invocation is at fault; in a batch one of them is, and each is run alone to find out which."""
        if len(batch.members) > 1:
            self._requeue(batch, cause, message, traceback, refund=True, alone=True)
        else:
            self._fail(batch, cause, message, traceback)

    def _retry(self, batch: Batch, cause: Cause, message: str, traceback: str = "") -> None:
        """
        A crash may have been an accident: try again while attempts are left. In a batch no attempt is charged.
        """
        together = len(batch.members) > 1
        self._requeue(batch, cause, message, traceback, refund=together, alone=together)

    def _give_back(self, batch: Batch, cause: Cause, message: str) -> None:
        """Give back what never ran: nobody is at fault."""
        self._requeue(batch, cause, message, refund=True, alone=False)

    def _requeue(
        self, batch: Batch, cause: Cause, message: str, traceback: str = "", *, refund: bool, alone: bool
    ) -> None:
        self._settling(batch)
        attempts = [(member.id, member.attempt) for member in batch.owned()]
        self._note(batch, cause, message)
        # On a device that nothing can run on no attempt was made.
        refund = refund or bool(self._pool.health())
        if attempts:
            self._patiently(
                lambda: self._queue.requeue(
                    batch.function, cause, attempts, refund=refund, alone=alone, message=message, traceback=traceback
                )
            )

    def _drop(self, batch: Batch) -> None:
        """Every member is past its deadline, and its function drops what is late."""
        self._fail(batch, Cause.DEADLINE_EXPIRED, "It was stopped at its deadline (slo.on_late: drop).")

    def _note(self, batch: Batch, cause: Cause, message: str) -> None:
        """Say in the function's log what only the platform knows of a run."""
        if cause in _NOTED:
            self._say(batch, [member.id for member in batch.members], cause, message)

    def _say(self, batch: Batch, ids: Sequence[str], cause: str, message: str) -> None:
        """Add a line about these invocations to the function's log."""
        self._tell(batch.function, batch.revision, ids, f"{cause}: {message.partition(chr(10))[0]}")

    def _fail(self, batch: Batch, cause: Cause, message: str, traceback: str = "") -> None:
        if not batch.begun:
            # Who gets it next finds out.
            self._give_back(batch, cause, message)
            return
        self._settling(batch)
        self._note(batch, cause, message)
        blob = error_result(message, traceback)
        outcomes = [
            RunOutcome(id=member.id, attempt=member.attempt, action="fail", cause=cause, result=blob)
            for member in batch.owned()
        ]
        meta = encode_execution(
            Execution(
                boot=self._boot,
                batch=len(batch.members),
                device=self._device.description,
                sharing_mode=self._device.sharing_mode,
            )
        ).decode()
        self._finish(batch, meta, outcomes)

    def _finish(self, batch: Batch, meta: str, outcomes: Sequence[RunOutcome]) -> None:
        with self._lock:
            kept = [outcome for outcome in outcomes if outcome.id not in batch.disowned]
        if kept:
            self._patiently(lambda: self._queue.finish(batch.function, meta, kept, drop_late=batch.drop_late))

    def _patiently(self, call: Callable[[], T]) -> T | None:
        """Call Redis, and again for :data:`PATIENCE_S` while it restarts or is full. None where that goes on."""
        until = time.monotonic() + PATIENCE_S
        pause_s = 0.02
        while True:
            try:
                return call()
            except (redis.RedisError, OSError) as error:
                if not is_outage(error):
                    raise
                if time.monotonic() + pause_s > until:
                    log.error("given up: Redis does not serve", error=str(error))
                    return None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 1.0)


def _nothing() -> None:
    """Of a batch that was begun before it got its seat."""


def _context(batch: Batch) -> dict[str, object]:
    """What each line that is written about a batch carries, those of a load that it waits for included."""
    trace = batch.members[0].begun.trace
    shown: dict[str, object] = {"function": batch.function, "ids": [member.id for member in batch.members]}
    return shown | ({"trace": trace.partition("-")[0]} if trace else {})
