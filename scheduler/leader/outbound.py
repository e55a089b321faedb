"""
The policy's decisions performed: claims and ends on the queue, commands to workers, answers to gateways, publications.

Every claim and every end carries the fencing token; those of a former leader are refused (:class:`Fenced`).
"""

import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final, assert_never

import redis
from msgspec import UNSET

from scheduler.leader import foresight
from scheduler.leader.admission_board import AdmissionBoard
from scheduler.policy.decisions import (
    Answer,
    Decision,
    Dispatch,
    FinishBounds,
    Offload,
    Prewarm,
    PublishAdmission,
    PublishLearned,
    PublishPrewarmStatus,
    PublishStatus,
    QuestionAnswered,
    Reasons,
    Throttle,
)
from scheduler.policy.events import ClaimRefused, Event
from smore.domain.candidate import Candidate
from smore.domain.invocation import End
from smore.domain.learned import Learned, LearnedCost
from smore.messages import commands
from smore.messages import reasons as reasons_message
from smore.messages.forecasts import PrewarmReport, encode_prewarm_report
from smore.process import observability as metrics
from smore.process.settings import Settings
from smore.redis.celery import RUN, gpu_queue, message
from smore.redis.fleet import Fleet
from smore.redis.forecasts import PublishedForecasts
from smore.redis.learned import LearnedRecords
from smore.redis.queue import Claim, Queue

log = metrics.logger(__name__)

#: For how long a published prewarm status counts, seconds.
STATE_TTL_S: Final = 10.0
#: To how many digits the numbers of a candidate are written.
_DIGITS: Final = {
    "delay_s": 4,
    "run_s": 5,
    "finish_at": 4,
    "impact": 4,
    "function_degradation": 4,
    "function_degradation_upper": 4,
    "training_degradation": 4,
    "training_degradation_upper": 4,
}


class Fenced(Exception):
    """Another leader has taken over."""


class Outbound:
    """:meth:`begin` must be called before a leader's first decision."""

    def __init__(self, client: "redis.Redis", config: Settings, queue: Queue, board: AdmissionBoard) -> None:
        prefix = config.redis.prefix
        self._config, self._prefix, self._queue, self._board = config, prefix, queue, board
        self._fleet, self._forecasts = Fleet(client, prefix), PublishedForecasts(client, prefix)
        self._learned = LearnedRecords(client, prefix)
        self._token = ""
        self._clock_steps = 0
        #: GPU instances whose gauge shows how long runs of bulk work may be there.
        self._bounded: Set[str] = frozenset()
        #: The entry of the stream up to which events were read: a claim reads on from there.
        self.cursor = "0-0"
        #: How many invocations wait, by function that has any, as of the last status.
        self.waiting: Mapping[str, int] = {}
        #: Of the forecasts that the policy has, published beside the status.
        self.forecasts_version = 0
        #: What this leader has kept for the next one, by function.
        self.kept: dict[str, Learned] = {}
        self._costs: dict[str, Mapping[str, LearnedCost]] = {}

    def begin(self, token: str) -> None:
        """A leader begins, with its fencing token."""
        self._token = token
        self._board.begin()
        self.kept.clear()
        self._costs.clear()

    def perform(self, now: float, decisions: Sequence[Decision], began: float) -> list[Event]:
        """
        Perform decisions, claims in one round trip. Returns what the queue refused, for the policy.

        ``now``: Redis' clock, epoch seconds; ``began``: when the round began (``time.perf_counter``).
        """
        dispatches: list[Dispatch] = []
        endings: list[End] = []
        for decision in decisions:
            match decision:
                case Dispatch():
                    dispatches.append(decision)
                case End():
                    endings.append(decision)
                case Prewarm():
                    self._prewarm(decision)
                case Throttle():
                    self._throttle(now, decision)
                case Offload():
                    self._offload(decision)
                case QuestionAnswered():
                    self._queue.answer(decision.id, _answer_json(now, decision.answer, decision.bounds))
                case PublishAdmission():
                    self._board.take(now, decision)
                case PublishLearned():
                    self._keep(decision)
                case PublishStatus():
                    self._status(decision)
                case PublishPrewarmStatus():
                    self._prewarm_status(now, decision)
                case _:
                    assert_never(decision)
        if endings:
            self._end(endings)
        return self._dispatch(dispatches, began) if dispatches else []

    # ---- commands to workers -----------------------------------------------------------------------------------------

    def _prewarm(self, decision: Prewarm) -> None:
        command = commands.Prewarm(
            version=1,
            function=decision.function,
            revision=decision.revision,
            instances=decision.instances,
            until=decision.until_at,
        )
        self._fleet.send(decision.gpu, command)
        metrics.DECISIONS.labels("prewarm", "held" if decision.until_at else "wanted").inc()

    def _throttle(self, now: float, decision: Throttle) -> None:
        self._fleet.step(decision.gpu, decision.job, now, decision.step.value, decision.duty, decision.factor)
        metrics.DECISIONS.labels("throttle", decision.step.value).inc()
        log.warning(
            "degradation budget",
            gpu=decision.gpu,
            job=decision.job,
            step=decision.step.value,
            duty=decision.duty,
            factor=round(decision.factor, 3),
        )

    def _offload(self, decision: Offload) -> None:
        command = commands.Offload(
            version=1,
            function=decision.function,
            revision=decision.revision,
            keep=decision.keep,
            gone=decision.gone,
        )
        self._fleet.send(decision.gpu, command)
        metrics.DECISIONS.labels("offload", "decided").inc()

    # ---- publications ------------------------------------------------------------------------------------------------

    def _status(self, status: PublishStatus) -> None:
        """Gauges; and a difference of the arrays from a fresh count, which is a defect."""
        self.waiting = status.waiting
        for function in self._board.functions:
            metrics.QUEUE_DEPTH.labels(function).set(status.waiting.get(function, 0))
        for bucket in status.buckets:
            metrics.BUDGET_FACTOR.labels(bucket.gpu).set(bucket.factor)
            metrics.BUDGET_ACCOUNT.labels(bucket.gpu).set(bucket.tokens_s)
        for gpu in self._bounded - status.yields.keys():
            metrics.YIELD_SECONDS.remove(gpu)
        for gpu, seconds in status.yields.items():
            metrics.YIELD_SECONDS.labels(gpu).set(seconds)
        self._bounded = status.yields.keys()
        if status.differing:
            metrics.AUDIT_DIFFERENCES.inc(status.differing)
            log.error("the arrays differ from a fresh count", entries=status.differing)

    def _keep(self, learned: PublishLearned) -> None:
        costs = {
            gpu: of_trainings for gpu, of_trainings in learned.costs.items() if self._costs.get(gpu) != of_trainings
        }
        if learned.functions or costs:
            self._learned.keep(learned.functions, costs)
            self.kept.update(learned.functions)
            self._costs.update(costs)

    def _prewarm_status(self, now: float, status: PublishPrewarmStatus) -> None:
        """How functions are kept ready, for people (``GET /v1/prewarm``)."""
        silent = Counter(function.silence for function in status.functions if function.silence)
        metrics.PARKED.set(sum(function.parked for function in status.functions))
        for reason in foresight.SILENT:
            metrics.PREWARM_SILENT.labels(reason).set(silent[reason])
        if status.clock_steps != self._clock_steps:
            steps = status.clock_steps - self._clock_steps
            log.warning("the clock was set; minutes across it count for nothing", steps=steps)
            self._clock_steps = status.clock_steps
        settings = self._config.prewarm
        state = PrewarmReport(
            at=now,
            rule=settings.rule,
            on=settings.on,
            share=settings.share,
            forecasts=self.forecasts_version,
            jumps=status.clock_steps,
            functions=status.functions,
        )
        self._forecasts.put_state(encode_prewarm_report(state), STATE_TTL_S)

    # ---- the queue ---------------------------------------------------------------------------------------------------

    def _end(self, endings: Sequence[End]) -> None:
        done = self._queue.settle(self._token, endings)
        if done is None:
            raise Fenced
        for ending in endings:
            metrics.DECISIONS.labels(ending.action, ending.cause.value).inc()
            log.debug("ended by the policy", id=ending.id, action=ending.action, cause=ending.cause.value)

    def _dispatch(self, dispatches: Sequence[Dispatch], began: float) -> list[Event]:
        schedule_us, lease_s = int((time.perf_counter() - began) * 1e6), self._config.scheduler.dispatch_lease_s
        claims = []
        for dispatch in dispatches:
            queue = gpu_queue(dispatch.gpu)
            attempts = [[id_, attempt + 1] for id_, attempt in dispatch.attempts]
            ahead = {"ahead_s": min(dispatch.ahead_s, lease_s / 2)} if dispatch.ahead_s else {}
            claims.append(
                Claim(
                    function=dispatch.function,
                    gpu=dispatch.gpu,
                    celery_list=f"{self._prefix}{queue}",
                    message=message(RUN, [dispatch.function, dispatch.revision, attempts], queue, ahead),
                    decision=_reasons_json(dispatch.reasons, schedule_us).decode(),
                    schedule_us=schedule_us,
                    attempts=dispatch.attempts,
                    urgent=dispatch.reasons.work_class == "urgent",
                )
            )
        refused: list[Event] = []
        for dispatch, claim, claimed in zip(dispatches, claims, self._claim(claims, lease_s), strict=True):
            if claimed is None:
                raise Fenced
            how = "ahead" if dispatch.ahead_s else "cold" if dispatch.cold else "warm"
            metrics.DECISIONS.labels("dispatch", how).inc()
            if log.is_enabled_for(logging.DEBUG):
                _log(dispatch, claimed)
            if claim.urgent:
                metrics.BATCH_URGENT.inc(len(claimed))
            if dispatch.reasons.unforeseen:
                metrics.UNFORESEEN.labels(dispatch.function, dispatch.reasons.unforeseen).inc()
            if len(claimed) != len(dispatch.attempts):
                refused += [
                    ClaimRefused(id=id_, attempt=attempt) for id_, attempt in dispatch.attempts if id_ not in claimed
                ]
        return refused

    def _claim(self, claims: Sequence[Claim], lease_s: float) -> list[frozenset[str] | None]:
        if len(claims) > 1:
            return self._queue.claim(self._token, lease_s, claims)
        claimed, self.cursor = self._queue.claim_one(self._token, lease_s, claims[0], self.cursor)
        return [claimed]


def _log(dispatch: Dispatch, claimed: Collection[str]) -> None:
    """A placed batch: the GPU instances that were weighed, the chosen one first, and why others were refused."""
    log.debug(
        "dispatch",
        function=dispatch.function,
        revision=dispatch.revision,
        gpu=dispatch.gpu,
        ids=sorted(claimed),
        cold=dispatch.cold,
        **weighed(dispatch.reasons),
    )


def weighed(reasons: Reasons) -> dict[str, object]:
    """The GPU instances that were weighed, the best one first, and how many were refused for what: for a line of a log."""
    return {
        "candidates": [
            {name: getattr(candidate, name) for name in ("gpu", "warm", "delay_s", "run_s", "impact", "refusal")}
            for candidate in map(_rounded, reasons.candidates)
        ],
        "refused": {code.value: count for code, count in reasons.refused.items()},
    }


def _answer_json(now: float, found: Answer | None, bounds: FinishBounds | None) -> bytes:
    """The answer to a question; ``found`` None = the revision is not known here."""
    if found is None:
        return reasons_message.encode_answer(reasons_message.DryRunAnswer(known=False, at=now))
    return reasons_message.encode_answer(
        reasons_message.DryRunAnswer(
            at=now,
            gpu=found.row_gpu,
            cold=found.cold,
            start_at=found.start_at,
            finish_at=found.finish_at,
            earliest_deadline_at=found.earliest_deadline_at,
            finish_s=bounds.backlog_s if bounds is not None else None,
            reasons=_reasons_message(found.reasons, 0),
            budget_s=found.budget_s,
            yield_s=found.yield_s,
        )
    )


def _reasons_json(reasons: Reasons, schedule_us: int) -> bytes:
    return reasons_message.encode_reasons(_reasons_message(reasons, schedule_us))


def _reasons_message(reasons: Reasons, schedule_us: int) -> reasons_message.Reasons:
    """The policy's reasons as they are written: rounded, for they are many."""
    return reasons_message.Reasons(
        policy=reasons.policy,
        table=reasons.table_version,
        seed=reasons.seed,
        priority=round(reasons.priority, 4),
        schedule_us=schedule_us,
        candidates=list(map(_rounded, reasons.candidates)),
        refused={code.value: count for code, count in reasons.refused.items()},
        shadow=reasons.shadow,
        unforeseen=reasons.unforeseen or UNSET,
        work_class=reasons.work_class or UNSET,
    )


def _rounded(candidate: Candidate) -> Candidate:
    return replace(candidate, **{name: round(getattr(candidate, name), digits) for name, digits in _DIGITS.items()})
