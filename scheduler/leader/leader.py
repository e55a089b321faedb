"""
The live leader: Redis' events in, the policy's decisions out.

One process leads at a time. It holds a lease that its deciding loop renews itself, so a stuck loop loses it; every
claim carries the fencing token, so those of a former leader are refused. Truth lives in Redis: a new leader
rebuilds the policy from one snapshot and follows the stream from there.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

import redis

from scheduler.leader.admission_board import AdmissionBoard
from scheduler.leader.inbound import Inbound
from scheduler.leader.outbound import Fenced, Outbound, weighed
from scheduler.policy.decisions import QuestionAnswered
from scheduler.policy.events import AdmissionDue, Event, LearnedDue, PrewarmStatusDue, QuestionAsked, StatusDue
from scheduler.policy.knobs import Knobs, SmRule
from scheduler.policy.policy import Policy
from smore.domain.own_rule import BadRule
from smore.process import observability as metrics
from smore.process.device_name import NVML_COUNTER
from smore.process.settings import Settings
from smore.redis import fleet as wire
from smore.redis.queue import Queue
from smore.redis.submission import NEVER_S

log = metrics.logger(__name__)

#: How often it is published how functions are kept ready, seconds.
STATE_S: Final = 2.0
#: How often what was learned is kept for the next leader, seconds.
LEARNED_S: Final = 1.0
#: How often debug lines say why functions wait, seconds, and for how many of them.
WAITS_S: Final = 1.0
MOST_WAITS: Final = 20
#: A round that only the time brings on waits at least so long, seconds.
_LEAST_S: Final = 0.002
#: Publishing bounds between ticks takes at most this part of the leader's time.
_PUBLISHING: Final = 0.05
#: Counters that say nothing of SMs.
_BLIND: Final = frozenset({NVML_COUNTER, "none"})
#: How long it can be read why nobody leads: many looks of a standby, seconds.
_REFUSED_S: Final = 5


class PolicyRefused(Exception):
    """The policy lacks what it decides by."""


class Leader:
    """
    The deciding loop. ``lead`` returns when the lease is another's, ``stop`` is set, or the policy cannot decide over
    the GPU instances that report.

    Errors of Redis end it too: called again it goes on with the lease that it had, or a new one, from a fresh snapshot.
    ``policy`` makes a policy with ``knobs``; ``prewarms``: whether it takes forecasts. ``without_rule`` makes the one that
    decides after a placement rule of an operator's own has failed, for as long as this process lives.
    """

    def __init__(
        self,
        client: "redis.Redis",
        config: Settings,
        stop: threading.Event,
        policy: Callable[[], Policy],
        knobs: Knobs,
        *,
        prewarms: bool,
        without_rule: Callable[[], Policy] | None = None,
    ) -> None:
        self._redis, self._config, self._stop = client, config, stop
        self._make_policy, self._knobs, self._prewarms = policy, knobs, prewarms
        self._without_rule = without_rule
        self._prefix = config.redis.prefix
        self._queue = Queue(client, self._prefix, config.queue)
        self._fleet = wire.Fleet(client, self._prefix)
        self._board = AdmissionBoard(self._queue)
        self._inbound = Inbound(client, config, self._queue, self._board, self._now, prewarms)
        self._outbound = Outbound(client, config, self._queue, self._board)
        self._policy = policy()
        self._token = ""
        #: Redis' clock minus ours, seconds.
        self._skew = 0.0
        #: When the policy has something to decide even if nothing happens, epoch seconds.
        self._wake_at = inf
        #: What the gauge of GPU instances that report shows.
        self._shown_gpus: set[str] = set()
        #: When the prewarm status is due, what was learned, and debug lines of what waits, seconds of the monotonic clock.
        self._status_at = self._learned_at = self._waits_at = 0.0

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def lead(self) -> None:
        lease_s = self._config.scheduler.lease_s
        # Where its lease ran out and nobody else took it (everything stood still), it is taken again at once.
        while True:
            if refusal := self._refusal():
                self._refuse(refusal)
                return
            self._token = self._queue.lead(self._token, lease_s)
            if not self._token:
                return
            # Who leads, for people and for tests that end it.
            self._redis.set(f"{self._prefix}leader:process", f"{socket.gethostname()}:{os.getpid()}")
            log.info("leading", token=self._token)
            metrics.LEADER.set(1)
            try:
                self._decide(self._rebuild(), time.perf_counter())
                self._follow()
            except Fenced:
                log.warning("fenced off")
            except BadRule as error:
                # It failed within a round, of which nothing was carried out: a new policy begins from a fresh snapshot.
                if self._without_rule is None:
                    raise
                self._make_policy, self._without_rule = self._without_rule, None
                metrics.PLACEMENT_RULE_FAILURES.inc()
                log.error("the placement rule failed; the platform's own decides from now on", reason=str(error))
            except PolicyRefused as error:
                self._refuse(str(error))
                self._queue.resign(self._token)
                return
            else:
                # It was asked to stop: the standby need not wait for the lease to run out.
                self._queue.resign(self._token)
                return
            finally:
                metrics.LEADER.set(0)
                # Changes reach the next leader alone.
                metrics.PAUSED.clear()
                metrics.DRAINED.clear()
                metrics.GPU_REPORTING.clear()
                self._shown_gpus = set()

    def _refusal(self) -> str:
        """Why this policy cannot decide over the GPU instances that report, '' = it can."""
        knobs = self._knobs
        if knobs.sm_rule is SmRule.NONE:
            return ""
        blind = [
            report for report in self._fleet.reports() if report.utilisation_counter in _BLIND and not report.health
        ]
        if not blind:
            return ""
        what = ", ".join(f"{report.gpu} ({report.utilisation_counter})" for report in blind)
        return (
            f"the policy {knobs.name} checks SMs (sm_rule={knobs.sm_rule.value}), and no counter tells those of {what}"
        )

    def _refuse(self, reason: str) -> None:
        key = f"{self._prefix}leader:refused"
        if self._redis.get(key) != reason.encode():
            log.error("nobody may lead", reason=reason)
        # Written again at each look of a standby; for who wants to know why nobody leads.
        self._redis.set(key, reason, ex=_REFUSED_S)

    def _follow(self) -> None:
        settings = self._config.scheduler
        next_renew = next_tick = 0.0
        next_publication = inf
        events: list[Event] = []
        while not self._stop.is_set():
            mono = time.monotonic()
            if mono >= next_renew:
                held = self._queue.lead(self._token, settings.lease_s)
                if held != self._token:
                    self._token = held
                    raise Fenced
                next_renew = mono + settings.lease_s / 4
                if refusal := self._refusal():
                    raise PolicyRefused(refusal)
                self._show_gpus()
                events += [*self._inbound.new_table(), *self._inbound.new_forecasts()]
            due_s = max(0.0, min(settings.tick_s, next_publication - mono))
            entries = self._read(0.0 if events else self._pause_s(due_s))
            began = time.perf_counter()
            events += self._inbound.events(entries)
            self._decide(events, began, measured=True)
            # After the round, so that nobody's placement waits for an answer.
            self._ask(self._inbound.questions())
            events = []
            if time.monotonic() >= next_tick:
                events += self._tick()
                next_tick = time.monotonic() + settings.tick_s
                if not self._board.pressed:
                    next_publication = inf
                elif next_publication == inf:
                    next_publication = time.monotonic() + settings.gate_s
            elif time.monotonic() >= next_publication:
                published = time.monotonic()
                self._ask([AdmissionDue(revisions=self._inbound.active)])
                self._board.publish()
                next_publication = time.monotonic() + max(settings.gate_s, (time.monotonic() - published) / _PUBLISHING)
        log.info("stopping", token=self._token)

    def _show_gpus(self) -> None:
        """Set the gauge of which GPU instances report."""
        reporting = self._inbound.reporting()
        shown = {*reporting, *wire.silent(self._fleet.seen(), reporting, self._now())}
        for gpu in shown:
            metrics.GPU_REPORTING.labels(gpu).set(gpu in reporting)
        for gpu in self._shown_gpus - shown:
            metrics.GPU_REPORTING.remove(gpu)
        self._shown_gpus = shown

    def _pause_s(self, tick_s: float) -> float:
        """Until the next tick, or the moment before it at which the policy has something to decide."""
        return min(tick_s, max(_LEAST_S, self._wake_at - self._now()))

    def _now(self) -> float:
        return time.time() + self._skew

    def _read(self, wait_s: float) -> list[tuple[str, bytes]]:
        """Entries after the cursor; waits at most ``wait_s`` to be woken."""
        entries = self._queue.events(self._outbound.cursor, wait_s)
        if entries:
            self._outbound.cursor = entries[-1][0]
        return entries

    # ---- rounds ------------------------------------------------------------------------------------------------------

    def _decide(self, events: Sequence[Event], began: float, *, measured: bool = False) -> None:
        """Rounds until the queue refuses nothing: what it refuses is the next round's event."""
        while True:
            now = self._now()
            decisions, self._wake_at = self._policy.decide(now, events)
            if measured:
                metrics.DECISION_SECONDS.observe(time.perf_counter() - began)
                measured = False
            events = self._outbound.perform(now, decisions, began)
            if not events:
                return

    def _ask(self, questions: Sequence[Event]) -> None:
        """Have questions answered and publications made; nothing is placed."""
        if questions:
            self._decide(questions, time.perf_counter())

    def _log_waiting(self) -> None:
        """Why functions wait: what becomes of another invocation without a deadline, asked as a dry run asks it."""
        revisions = self._inbound.active
        waiting = [function for function in self._outbound.waiting if function in revisions]
        now = self._now()
        questions: list[Event] = [
            QuestionAsked(
                id=function, function=function, revision=revisions[function], rows=1, deadline_at=now + NEVER_S
            )
            for function in waiting[:MOST_WAITS]
        ]
        answers = self._policy.decide(now, questions)[0] if questions else []
        for answered in answers:
            if isinstance(answered, QuestionAnswered) and answered.answer is not None:
                reasons = weighed(answered.answer.reasons)
                log.debug("waits", function=answered.id, waiting=self._outbound.waiting[answered.id], **reasons)

    def _rebuild(self) -> list[Event]:
        """A new policy; returns all that it must be given first."""
        self._policy = self._make_policy()
        self._outbound.begin(self._token)
        seconds, micros = self._redis.time()
        self._skew = seconds + micros / 1e6 - time.time()
        snapshot = self._queue.snapshot()
        self._outbound.cursor = snapshot.last_event
        return self._inbound.begin(snapshot)

    def _tick(self) -> list[Event]:
        """
        What is due every tick: leases that ran out, records to drop, publications, GPU instances that have fallen
        silent (returned as events).
        """
        due: list[Event] = [AdmissionDue(revisions=self._inbound.active), StatusDue()]
        if self._prewarms and time.monotonic() >= self._status_at:
            self._status_at = time.monotonic() + STATE_S
            self._outbound.forecasts_version = self._inbound.forecasts_version
            due.append(PrewarmStatusDue())
        if time.monotonic() >= self._learned_at:
            self._learned_at = time.monotonic() + LEARNED_S
            due.append(LearnedDue(revisions=self._inbound.active, kept=self._outbound.kept))
        self._ask(due)
        if log.is_enabled_for(logging.DEBUG) and time.monotonic() >= self._waits_at:
            self._waits_at = time.monotonic() + WAITS_S
            self._log_waiting()
        reaped, clock = self._queue.tick(self._token, self._outbound.cursor, self._board.bounds, self._board.priorities)
        self._board.ticked()
        if reaped < 0:
            raise Fenced
        if reaped:
            metrics.LEASES_REAPED.inc(reaped)
        lost = self._inbound.lost()
        self._skew = clock - time.time()
        return lost
