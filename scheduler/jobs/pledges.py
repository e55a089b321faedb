"""
The promises of trainings, written down: what was decided of each, and what has become of it; and what functions may cost a
promised training so that it is kept, told to its workers.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from scheduler.jobs import wording
from scheduler.jobs.apart import Apart
from scheduler.jobs.attempts import Attempt
from scheduler.policy.jobs.decisions import Expected, NotPromised, Pledge, Promised
from scheduler.policy.jobs.events import Ended
from smore.domain.job import PromiseState
from smore.messages.commands import SetBudget
from smore.postgres.job_ledger import Decided, JobLedger
from smore.postgres.job_promises import JobPromise
from smore.postgres.jobs import Job
from smore.process import observability as metrics
from smore.redis.fleet import Fleet

#: Promises that are not over.
STANDING: Final = frozenset({PromiseState.KEPT_SO_FAR, PromiseState.AT_RISK})
#: How an attempt that ends puts its job's promise at risk.
CAUSES: Final[Mapping[Ended, str]] = {Ended.LOST: "host_lost", Ended.FAILED: "failed"}
#: Values of the label of ``smore_job_promises_total``.
OUTCOMES: Final = ("given", "refused", "kept", "broken", "broken_host_lost", "broken_failed", "withdrawn")
#: What differs by less is not told again.
_STEP: Final = 0.1
#: What functions may cost a job, and another training: fractions of its iteration time.
_Costs = tuple[float, float]


class Pledges:
    """``apart`` keeps what goes wrong with one training from the others."""

    def __init__(self, ledger: JobLedger, fleet: Fleet, apart: Apart) -> None:
        self._ledger, self._fleet, self._apart = ledger, fleet, apart
        #: Of jobs that are not over: what was written last of their promises.
        self._known: dict[str, JobPromise] = {}
        #: What others may cost each job, as it was written down last.
        self._told: dict[str, _Costs] = {}
        # From 0 on: what first appears as 1 is no increase, and no alert sees it.
        for outcome in OUTCOMES:
            metrics.JOB_PROMISES.labels(outcome)

    def take_over(self, rows: Iterable[Job]) -> None:
        """Jobs of which the rule is told now."""
        asked = [row.id for row in rows if row.request.by is not None]
        if asked:
            self._known |= self._ledger.promises(asked)

    def promised(self, row: Job) -> float | None:
        """The moment that a job was promised, 0 = none was, None = it is not decided."""
        known = self._known.get(row.id)
        if known is None:
            return None if row.request.by is not None and not row.attempt else 0.0
        return known.by or 0.0 if known.outcome in STANDING else 0.0

    def decided(self, row: Job, verdict: Promised | NotPromised) -> None:
        """Write down what the rule has decided; a job that is refused is over."""
        if isinstance(verdict, Promised):
            promise = JobPromise(
                by=verdict.by, latest_start_at=verdict.latest_start_at, outcome=PromiseState.KEPT_SO_FAR
            )
            refuse, label = False, "given"
        else:
            promise = JobPromise(
                by=None,
                earliest=verdict.earliest,
                outcome=PromiseState.NONE,
                why=verdict.why.value,
                message=wording.unpromised(verdict),
            )
            refuse, label = row.request.unless == "refuse", "refused"
        decided = Decided(kind="promise", message=wording.decided(verdict))
        if self._ledger.promise(row.id, row.attempt, promise, decided, refuse=refuse):
            self._known[row.id] = promise
            metrics.JOB_PROMISES.labels(label).inc()

    def follow(
        self, now: float, jobs: Iterable[Expected], rows: Mapping[str, Job], attempts: Mapping[str, Attempt]
    ) -> None:
        """Write down which promises are at risk or broken, and tell workers what functions may cost; ``now``: epoch seconds."""
        for job in jobs:
            known = self._known.get(job.id)
            if job.promise is None or known is None or known.outcome not in STANDING or job.id not in rows:
                continue
            with self._apart.of(job.id):
                row = rows[job.id]
                # What has set it back is told until it is over.
                why = known.why if known.why in CAUSES.values() else job.promise.at_risk
                outcome = PromiseState.AT_RISK if job.promise.at_risk else PromiseState.KEPT_SO_FAR
                if now > job.promise.by:
                    self._broken(row, known, why or "others")
                elif (outcome, why) != (known.outcome, known.why):
                    self._note(row, known, outcome, why)
                if job.id in attempts and attempts[job.id].up:
                    self._hold(row, job.promise, attempts[job.id])

    def ended(self, id_: str, attempt: Ended, rows: Mapping[str, Job]) -> None:
        """An attempt is over that is followed by another one: if the promise breaks, that was the cause."""
        known, cause = self._known.get(id_), CAUSES.get(attempt)
        self._told.pop(id_, None)
        if known is not None and cause is not None and known.outcome in STANDING:
            self._note(rows[id_], known, known.outcome, cause)

    def over(self, row: Job, now: float, ended: Ended) -> None:
        """A job is over for good."""
        known = self._known.pop(row.id, None)
        self._told.pop(row.id, None)
        if known is None or known.by is None or known.outcome not in STANDING:
            return
        if ended is Ended.SUCCEEDED and now <= known.by:
            self._note(row, known, PromiseState.KEPT, "")
            metrics.JOB_PROMISES.labels("kept").inc()
        elif ended is Ended.STOPPED:
            self._note(row, known, PromiseState.WITHDRAWN, "")
            metrics.JOB_PROMISES.labels("withdrawn").inc()
        else:
            self._broken(row, known, CAUSES.get(ended) or known.why or "longer")
        self._known.pop(row.id, None)

    def gone(self, rows: Collection[Job], now: float) -> None:
        """Jobs that are over without an attempt: their owners stopped them."""
        for row in rows:
            with self._apart.of(row.id):
                self.over(row, now, Ended.STOPPED)

    def _broken(self, row: Job, known: JobPromise, why: str) -> None:
        self._note(row, known, PromiseState.BROKEN, why)
        # Of a lost host nobody could know; an attempt that fails is its owner's.
        metrics.JOB_PROMISES.labels(f"broken_{why}" if why in CAUSES.values() else "broken").inc()

    def _note(self, row: Job, known: JobPromise, outcome: PromiseState, why: str) -> None:
        words = wording.promise(outcome, why)
        self._ledger.note_promise(row.id, row.attempt, outcome, why, Decided(kind="promise", message=words))
        self._known[row.id] = JobPromise(
            by=known.by, latest_start_at=known.latest_start_at, outcome=outcome, why=why, message=known.message
        )

    def _hold(self, row: Job, pledge: Pledge, attempt: Attempt) -> None:
        """Tell the workers of a running job what others may cost it, where they report otherwise: an earlier leader may have told them."""
        said = row.request.budget, row.request.share
        wanted = min(said[0], pledge.budget), min(said[1], pledge.share)
        reported = {
            rank.gpu: (rank.report.budget, rank.report.share) for rank in attempt.ranks if rank.report is not None
        }
        behind = [gpu for gpu, costs in reported.items() if _differ(costs, wanted, said)]
        for gpu in behind:
            self._fleet.send(gpu, SetBudget(version=1, id=row.id, budget=wanted[0], share=wanted[1]))
        if behind and _differ(self._told.get(row.id, reported[behind[0]]), wanted, said):
            self._told[row.id] = wanted
            self._ledger.note(row.id, row.attempt, Decided(kind="budget", message=wording.costs(wanted, said)))


def _differ(told: _Costs, wanted: _Costs, said: _Costs) -> bool:
    """Whether what was told is to be told anew; what owners say holds exactly."""
    return any(abs(b - a) > _STEP * a or b == c != a for a, b, c in zip(told, wanted, said, strict=True))
