"""
The live leader: Redis' events in, the policy's decisions out.

One process leads at a time. It holds a lease that its deciding loop renews itself, so a stuck loop loses it; every
claim carries the fencing token, so what a former leader still sends is refused. Truth lives in Redis: a new leader
rebuilds the policy from one snapshot and follows the stream from there.
"""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Final, Literal, cast

import redis
from msgspec import UNSET

from scheduler.leader import foresight
from scheduler.leader.tables import ArrayTable
from scheduler.policy.budget import JobLoss
from scheduler.policy.decisions import Answer, Decision, Dispatch, End, Offload, Prewarm, Reasons, Throttle
from scheduler.policy.engine import Engine, Feasible
from scheduler.policy.events import (
    ClaimRefused,
    Event,
    FunctionKnown,
    FunctionRemoved,
    GpuLost,
    GpuReported,
    InstanceTold,
    InvocationArrived,
    InvocationHeld,
    InvocationSettled,
    PausesChanged,
    Steer,
    SteeringChanged,
    TableUpdated,
    TrafficMoved,
    WarmLimits,
)
from scheduler.policy.knobs import SmRule
from smore.domain.loss import Sample
from smore.messages import commands, stream
from smore.messages import reasons as reasons_message
from smore.messages.degradation import BadTable
from smore.messages.forecasts import BadForecast, PrewarmReport, PrewarmStatus, encode_prewarm_report
from smore.messages.reports import JobReport, WarmState, decode_report
from smore.messages.results import decode_execution
from smore.process import observability as metrics
from smore.process.device_name import NVML_COUNTER
from smore.process.settings import Settings
from smore.redis import fleet as wire
from smore.redis.catalog import Catalog
from smore.redis.celery import RUN, gpu_queue, message
from smore.redis.forecasts import Board
from smore.redis.queue import ANSWER_TTL_S, Claim, Ending, Queue
from smore.redis.records import LeasedInvocation, QueuedInvocation
from smore.redis.tables import Tables

log = metrics.logger(__name__)

#: How often it is told how functions are kept, and for how long that counts, seconds.
STATE_S = 2.0
STATE_TTL_S = 10.0
#: A round that only the time brings on waits at least so long, seconds.
_LEAST_S = 0.002
#: Telling the gate takes at most this part of the leader's time.
_TELLING: Final = 0.05
#: Counters that tell nothing of SMs.
_BLIND: Final = frozenset({NVML_COUNTER, "none"})
#: How long it is known why nobody leads: a few firings of beat.
_REFUSED_S: Final = 5
#: A GPU instance is gone when it has not reported for this many heartbeats.
LOST_HEARTBEATS = 4


class Fenced(Exception):
    """Another leader has taken over."""


class Refused(Exception):
    """The policy lacks what it decides by."""


class Leader:
    """
    The deciding loop. ``lead`` returns when the lease is another's, ``stop`` is set, or the policy cannot decide over
    the GPU instances that report.

    Errors of Redis end it too: called again it goes on with the lease that it had, or a new one, from a fresh snapshot.
    """

    def __init__(
        self, client: "redis.Redis", config: Settings, stop: threading.Event, policy: Callable[[], Engine]
    ) -> None:
        self._redis = client
        self._config = config
        self._stop = stop
        self._make_policy = policy
        prefix = config.redis.prefix
        self._prefix = prefix
        self._queue = Queue(client, prefix, config.queue)
        self._fleet = wire.Fleet(client, prefix)
        self._catalog = Catalog(client, prefix)
        self._tables = Tables(client, prefix)
        #: The version that was looked at last, good or not.
        self._table_seen = 0
        self._board = Board(client, prefix)
        self._forecasts_seen = 0
        #: What was imported when rules were last taught what was counted.
        self._lesson = 0
        self._state_at = 0.0
        self._jumps = 0
        self._policy = policy()
        self._token = ""
        self._cursor = "0-0"
        #: Redis' clock minus ours, seconds.
        self._skew = 0.0
        self._known: set[tuple[str, int]] = set()
        #: Processes beside which functions may run though nobody registered them.
        self._allowed: frozenset[str] = frozenset()
        #: Functions whose feasibility the gate is told: function → newest revision.
        self._active: dict[str, int] = {}
        self._told: dict[str, float] = {}
        #: Questions to be answered at the end of the round.
        self._asked: list[stream.Asked] = []

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
            # Who leads, for people and for tests that strike it.
            self._redis.set(f"{self._prefix}leader:process", f"{socket.gethostname()}:{os.getpid()}")
            log.info("leading", token=self._token)
            metrics.LEADER.set(1)
            try:
                events = self._rebuild()
                self._perform(self._policy.decide(self._now(), events), time.perf_counter())
                self._follow()
            except Fenced:
                log.warning("fenced off")
            except Refused as error:
                self._refuse(str(error))
                self._queue.resign(self._token)
                return
            else:
                # Told to stop: the standby need not wait for the lease to run out.
                self._queue.resign(self._token)
                return
            finally:
                metrics.LEADER.set(0)

    def _refusal(self) -> str:
        """Why this policy cannot decide over the GPU instances that report, '' = it can."""
        knobs = self._policy.knobs
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
        # Asked again with every firing of beat; for who wants to know why nobody leads.
        self._redis.set(key, reason, ex=_REFUSED_S)

    def _follow(self) -> None:
        settings = self._config.scheduler
        next_renew = next_house = 0.0
        next_tell = inf
        found: list[Event] = []
        while not self._stop.is_set():
            mono = time.monotonic()
            if mono >= next_renew:
                held = self._queue.lead(self._token, settings.lease_s)
                if held != self._token:
                    self._token = held
                    raise Fenced
                next_renew = mono + settings.lease_s / 4
                if refusal := self._refusal():
                    raise Refused(refusal)
                found += [*self._new_table(), *self._new_forecasts()]
            entries = self._read(0.0 if found else self._pause_s(max(0.0, min(settings.tick_s, next_tell - mono))))
            began = time.perf_counter()
            decisions = self._policy.decide(self._now(), [*found, *self._events(entries)])
            metrics.DECISION_SECONDS.observe(time.perf_counter() - began)
            self._perform(decisions, began)
            self._answer()
            found = []
            # Behind the round: what the gate is told rests on all that has happened.
            if time.monotonic() >= next_house:
                found += self._housekeeping()
                next_house = time.monotonic() + settings.tick_s
                if not self._policy.pressed(self._now()):
                    next_tell = inf
                elif next_tell == inf:
                    next_tell = time.monotonic() + settings.gate_s
            elif time.monotonic() >= next_tell:
                told = time.monotonic()
                self._queue.publish_feasible(self._feasible(self._now()), {})
                next_tell = time.monotonic() + max(settings.gate_s, (time.monotonic() - told) / _TELLING)
        log.info("stopping", token=self._token)

    def _pause_s(self, tick_s: float) -> float:
        """Until the next tick, or the moment before it at which the policy has something to decide."""
        return min(tick_s, max(_LEAST_S, self._policy.next_at - self._now()))

    def _now(self) -> float:
        return time.time() + self._skew

    def _read(self, wait_s: float) -> list[tuple[str, bytes]]:
        """Entries after the cursor, waiting at the bell at most ``wait_s``."""
        entries = self._queue.events(self._cursor, wait_s)
        if entries:
            self._cursor = entries[-1][0]
        return entries

    # ---- in ----------------------------------------------------------------------------------------------------------

    def _rebuild(self) -> list[Event]:
        self._policy = self._make_policy()
        self._known.clear()
        self._told.clear()
        self._active.clear()
        self._measure_skew()
        snapshot = self._queue.snapshot()
        self._cursor = snapshot.last_event
        self._table_seen = self._forecasts_seen = self._lesson = 0
        events: list[Event] = [*self._ruled(), *self._new_table()]
        for function, entry in self._catalog.functions().items():
            if entry.revision:
                self._active[function] = entry.revision
                self._know(function, entry.revision, events)
                events.append(TrafficMoved(function=function, revision=entry.revision))
        events += self._counted()
        events += self._new_forecasts()
        for report in snapshot.reports:
            self._reported(report, events)
        for held in snapshot.held:
            self._held(held, events)
        for waiting in snapshot.waiting:
            self._know(waiting.function, waiting.revision, events)
            events.append(_arrival(waiting))
        return events

    def _new_table(self) -> list[Event]:
        """
        Another version of the degradation table, if one was published. One that cannot be used leaves the last good one
        in place.
        """
        version = self._tables.version()
        if version in (0, self._table_seen):
            return []
        self._table_seen = version
        try:
            table = self._tables.current()
        except BadTable as error:
            log.error("degradation table not used", version=version, error=str(error))
            return []
        if table is None:
            return []
        log.info("degradation table", version=table.version, source=table.source, places=len(table.places))
        return [TableUpdated(table=ArrayTable(table))]

    def _ruled(self) -> list[Event]:
        """What people have set: pauses and drains, boosts and pins, limits, processes that are allowed."""
        self._allowed = self._fleet.allowed()
        steers = [
            Steer(
                function=steer.function,
                boost=steer.boost,
                boost_until=inf if steer.boost_until is None else steer.boost_until,
                gpus=frozenset(steer.gpus),
                pin_until=inf if steer.pin_until is None else steer.pin_until,
            )
            for steer in self._fleet.steering(self._now()).values()
        ]
        mib = {
            name: limits.warm_memory_mib
            for name, limits in self._catalog.limits().items()
            if limits.warm_memory_mib is not None
        }
        return [PausesChanged(paused=self._fleet.paused()), SteeringChanged(steers=steers), WarmLimits(mib=mib)]

    def _new_forecasts(self) -> list[Event]:
        """Other forecasts, if some were published. What cannot be used leaves the last ones, which grow stale."""
        version = self._board.version() if self._policy.keeper is not None else 0
        if version in (0, self._forecasts_seen):
            return []
        self._forecasts_seen = version
        try:
            found = self._board.current()
        except BadForecast as error:
            log.error("forecasts not used", version=version, error=str(error))
            return []
        if found is None:
            return []
        # Rules that were taught before something was imported begin anew.
        taught = self._counted() if found.lesson != self._lesson else []
        self._lesson = found.lesson
        return [*taught, foresight.updated(found)]

    def _counted(self) -> list[Event]:
        """What was counted before this leader began."""
        if self._policy.keeper is None:
            return []
        try:
            found = self._board.counts()
        except BadForecast as error:
            log.error("counts not used", error=str(error))
            return []
        if found is None:
            return []
        self._lesson = found.lesson
        return [foresight.known(found)]

    def _held(self, held: LeasedInvocation, events: list[Event]) -> None:
        waiting = held.waiting
        self._know(waiting.function, waiting.revision, events)
        since = held.started_us / 1e6 or self._now()
        events.append(
            InvocationHeld(
                function=waiting.function,
                revision=waiting.revision,
                id=waiting.id,
                attempt=waiting.attempt,
                rows=waiting.rows,
                gpu=held.gpu,
                since_at=since,
                deadline_at=waiting.deadline_us / 1e6,
            )
        )

    def _know(self, function: str, revision: int, events: list[Event]) -> None:
        """Tell the policy of a revision before the first event that names it."""
        if (function, revision) in self._known:
            return
        spec = self._catalog.revision(function, revision)
        if spec is not None:
            self._known.add((function, revision))
            events.append(FunctionKnown(function=function, revision=revision, spec=spec))

    def _events(self, entries: Iterable[tuple[str, bytes]]) -> list[Event]:
        events: list[Event] = []
        for entry, raw in entries:
            try:
                event = stream.decode(raw)
            except ValueError:
                log.warning("unreadable event passed over", entry=entry)
                continue
            match event:
                case stream.Arrived():
                    self._know(event.function, event.revision, events)
                    events.append(
                        InvocationArrived(
                            function=event.function,
                            revision=event.revision,
                            id=event.id,
                            attempt=0,
                            arrival_at=event.arrival_us / 1e6,
                            deadline_at=event.deadline_us / 1e6,
                            rows=event.rows,
                            shape=event.shape,
                        )
                    )
                case stream.Settled():
                    if event.claimed_us:
                        metrics.QUEUE_WAIT_SECONDS.labels(event.function).observe(
                            (event.claimed_us - event.arrival_us) / 1e6
                        )
                    run_s, rows = _run(event.meta)
                    events.append(InvocationSettled(id=event.id, attempt=event.attempt, run_s=run_s, batch_rows=rows))
                case stream.Returned():
                    self._know(event.function, event.revision, events)
                    events.append(
                        InvocationArrived(
                            function=event.function,
                            revision=event.revision,
                            id=event.id,
                            attempt=event.attempt,
                            arrival_at=event.arrival_us / 1e6,
                            deadline_at=event.deadline_us / 1e6,
                            rows=event.rows,
                            shape=event.shape,
                            alone=bool(event.alone),
                        )
                    )
                case stream.Reported():
                    self._reported(event.report.encode(), events)
                case stream.CatalogChanged():
                    self._catalog_changed(event.function, events)
                case stream.Asked():
                    self._know(event.function, event.revision, events)
                    self._asked.append(event)
                case stream.Warmed():
                    self._warmed(event, events)
                case stream.Dispatched() | stream.Stepped():
                    pass  # our own doing: it is in the arrays already
        return events

    def _catalog_changed(self, function: str, events: list[Event]) -> None:
        if not function:
            events += self._ruled()
            return
        # An activated revision's spec holds what its canary measured.
        self._catalog.forget(function)
        self._known -= {known for known in self._known if known[0] == function}
        entry = self._catalog.functions().get(function)
        if entry is not None:
            if entry.revision:
                self._active[function] = entry.revision
            self._know(function, entry.revision, events)
            if entry.revision:
                events.append(TrafficMoved(function=function, revision=entry.revision))
        elif function in self._active:
            del self._active[function]
            self._told.pop(function, None)
            self._queue.forget_function(function)
            with suppress(KeyError):
                metrics.QUEUE_DEPTH.remove(function)
            events.append(FunctionRemoved(function=function))

    def _warmed(self, event: stream.Warmed, events: list[Event]) -> None:
        """An instance is ready, was used, or has ended."""
        if event.outcome != "open" and event.prewarmed and event.ended_us:
            metrics.PREWARMS.labels(event.function, event.outcome).inc()
        # A life is told of again and again; out of host memory hardly anything is loaded ahead, so that the first use
        # must not hide it.
        loaded = event.ready_us and not event.ended_us and (event.uses <= 1 if event.host else not event.used_us)
        events.append(
            InstanceTold(
                function=event.function,
                revision=event.revision,
                gpu=event.gpu,
                load_s=event.load_us / 1e6 if loaded else None,
                failed=bool(event.prewarmed) and event.why == "failed",
                evicted=event.why == "evicted",
                host=bool(event.host),
            )
        )

    def _reported(self, raw: bytes, events: list[Event]) -> None:
        try:
            report = decode_report(raw)
        except ValueError:
            log.warning("unreadable report passed over")
            return
        counts: Counter[tuple[str, int]] = Counter()
        loading: Counter[tuple[str, int]] = Counter()
        sizes: dict[tuple[str, int], float] = {}
        stretches: dict[tuple[str, int], float] = {}
        idle_mib = 0.0
        idle: list[tuple[str, int, float, float]] = []
        for instance in report.warm:
            self._know(instance.function, instance.revision, events)
            key = (instance.function, instance.revision)
            counts[key] += 1
            sizes[key] = max(instance.memory_mib, sizes.get(key, 0.0))
            stretches[key] = max(instance.longest_s, stretches.get(key, 0.0))
            if instance.state is WarmState.IDLE:
                idle_mib += instance.memory_mib
                idle.append((*key, instance.memory_mib, instance.idle_s))
            elif instance.state is WarmState.LOADING:
                loading[key] += 1
        for waiting in report.parked:
            self._know(waiting.function, waiting.revision, events)
            idle_mib += waiting.memory_mib
        degradations = [
            job.shared_s / job.solo_s - 1
            for job in report.jobs
            if job.solo_count >= 20 and job.shared_count >= 20 and job.solo_s
        ]
        events.append(
            GpuReported(
                gpu=report.gpu,
                boot=report.boot,
                at=self._now(),
                slots=report.slots,
                memory_total=report.memory_total_mib,
                memory_used=report.memory_used_mib,
                memory_idle=idle_mib,
                utilisation=report.utilisation,
                function_utilisation=report.function_utilisation,
                jobs=sum(job.state == "running" for job in report.jobs),
                warm=[(function, revision, count) for (function, revision), count in counts.items()],
                loading=[(function, revision, count) for (function, revision), count in loading.items()],
                sizes=[(function, revision, memory_mib) for (function, revision), memory_mib in sizes.items()],
                quarantined=list(report.quarantined),
                job_degradation=max(degradations, default=None),
                device=report.device,
                sharing_mode=report.sharing_mode,
                workloads=[job.workload for job in report.jobs if job.state == "running"],
                closed=report.closed,
                stretches=[(function, revision, seconds) for (function, revision), seconds in stretches.items()],
                losses=[_loss(job) for job in report.jobs if job.state == "running"],
                strangers=sum(
                    f"{report.gpu}|{one.pid}|{one.start}" not in self._allowed for one in report.strangers or ()
                ),
                idle=idle,
                parked=[(one.function, one.revision, self._now() + one.left_s) for one in report.parked],
            )
        )

    def _housekeeping(self) -> list[Event]:
        """
        Every tick: leases that ran out, records to drop, GPU instances that fell silent, what the gate and the history
        are told.
        """
        now = self._now()
        silent = LOST_HEARTBEATS * self._config.worker.heartbeat_s
        self._audit()
        lost = [name for name, at in self._policy.cluster.reported_at.items() if now - at > silent]
        for name in lost:
            log.warning("GPU instance lost", gpu=name)
        self._tell_kept(now)
        reaped, clock = self._queue.tick(self._token, self._cursor, *self._told_gate(now))
        if reaped < 0:
            raise Fenced
        if reaped:
            metrics.LEASES_REAPED.inc(reaped)
        self._skew = clock - time.time()
        return [GpuLost(gpu=name) for name in lost]

    def _audit(self) -> None:
        """
        The arrays are kept incrementally; here they are counted afresh. A difference is a defect, told and counted.
        """
        used, outstanding = self._policy.cluster.rebuilt()
        differing = int(
            (used != self._policy.cluster.used).sum() + (outstanding != self._policy.cluster.outstanding).sum()
        )
        if differing:
            metrics.AUDIT_DIFFERENCES.inc(differing)
            log.error("the arrays differ from a fresh count", entries=differing)

    def _measure_skew(self) -> None:
        seconds, micros = self._redis.time()
        self._skew = seconds + micros / 1e6 - time.time()

    def _told_gate(self, now: float) -> tuple[dict[str, str], dict[str, float]]:
        """
        What is published (:meth:`Queue.publish_feasible`): per function the earliest feasible finish for the gate, and
        P where it changed (the queue's order for people and tools).
        """
        priority: dict[str, float] = {}
        for function, revision in self._active.items():
            value = round(self._policy.priority(function, revision), 4)
            if self._told.get(function) != value:
                self._told[function] = priority[function] = value
            metrics.QUEUE_DEPTH.labels(function).set(self._policy.waiting.count(function))
        for gpu, factor, held_s in self._policy.accounts(now):
            metrics.BUDGET_FACTOR.labels(gpu).set(factor)
            metrics.BUDGET_ACCOUNT.labels(gpu).set(held_s)
        return self._feasible(now), priority

    def _feasible(self, now: float) -> dict[str, str]:
        """Of each function, in the words of the gate."""
        stamp = int(now * 1e6)
        told: dict[str, str] = {}
        for function, revision in self._active.items():
            bounds = self._policy.feasible(now, function, revision)
            if bounds is not None:
                times = (bounds.backlog_s, bounds.floor_s, bounds.each_s)
                told[function] = ":".join(map(str, (stamp, *map(_told_us, times), bounds.counted)))
        return told

    def _tell_kept(self, now: float) -> None:
        """Publish how functions are kept, for people (``GET /v1/prewarm``)."""
        keeper = self._policy.keeper
        if keeper is None or time.monotonic() < self._state_at:
            return
        self._state_at = time.monotonic() + STATE_S
        standings = keeper.standings()
        silent = Counter(one.silence for one in standings if one.silence)
        metrics.PARKED.set(sum(one.parked for one in standings))
        for reason in foresight.SILENT:
            metrics.PREWARM_SILENT.labels(reason).set(silent[reason])
        if keeper.jumps != self._jumps:
            log.warning("the clock was set; minutes across it count for nothing", steps=keeper.jumps - self._jumps)
            self._jumps = keeper.jumps
        state = PrewarmReport(
            at=now,
            rule=self._config.prewarm.rule,
            on=keeper.knobs.on,
            share=keeper.knobs.share,
            forecasts=self._forecasts_seen,
            jumps=keeper.jumps,
            functions=[
                PrewarmStatus(
                    function=one.function,
                    revision=one.revision,
                    mode=one.mode.value,
                    source=one.source,
                    silence=one.silence,
                    wanted=one.wanted,
                    loaded=one.loaded,
                    unmet=one.unmet,
                    load_s=one.load_s,
                    parked=one.parked,
                    host_s=one.host_s,
                    holds=[(begin, None if end == inf else end, count) for begin, end, count in one.holds],
                )
                for one in standings
            ],
        )
        self._board.tell(encode_prewarm_report(state), STATE_TTL_S)

    def _answer(self) -> None:
        """
        Tell gateways what would become of invocations that nobody has sent: after the round, so that nobody's placement
        waits for it.
        """
        asked, self._asked = self._asked, []
        for question in asked:
            now = self._now()
            if now - question.at_us / 1e6 > ANSWER_TTL_S:
                continue
            found = self._policy.ask(
                now, question.function, question.revision, question.rows, question.deadline_us / 1e6
            )
            bounds = self._policy.feasible(now, question.function, question.revision)
            self._queue.answer(question.id, _answer_json(now, found, bounds))

    # ---- out ---------------------------------------------------------------------------------------------------------

    def _perform(self, decisions: Sequence[Decision], began: float) -> None:
        """
        Carry decisions out, claims in one round trip. What the queue did not allow goes back to the policy as an event.
        """
        dispatches = [decision for decision in decisions if isinstance(decision, Dispatch)]
        endings = [decision for decision in decisions if isinstance(decision, End)]
        for decision in decisions:
            if isinstance(decision, Prewarm):
                command = commands.Prewarm(
                    version=1,
                    function=decision.function,
                    revision=decision.revision,
                    instances=decision.instances,
                    until=decision.until_at,
                )
                self._fleet.send(decision.gpu, command)
                metrics.DECISIONS.labels("prewarm", "held" if decision.until_at else "wanted").inc()
            elif isinstance(decision, Throttle):
                self._fleet.step(
                    decision.gpu, decision.job, self._now(), decision.step.value, decision.duty, decision.factor
                )
                metrics.DECISIONS.labels("throttle", decision.step.value).inc()
                log.warning(
                    "degradation budget",
                    gpu=decision.gpu,
                    job=decision.job,
                    step=decision.step.value,
                    duty=decision.duty,
                    factor=round(decision.factor, 3),
                )
            elif isinstance(decision, Offload):
                self._fleet.send(
                    decision.gpu,
                    commands.Offload(
                        version=1,
                        function=decision.function,
                        revision=decision.revision,
                        keep=decision.keep,
                        gone=decision.gone,
                    ),
                )
                metrics.DECISIONS.labels("offload", "decided").inc()
        if endings:
            self._end(endings)
        if dispatches:
            refused = self._dispatch(dispatches, began)
            if refused:
                self._perform(self._policy.decide(self._now(), refused), began)

    def _end(self, endings: Sequence[End]) -> None:
        done = self._queue.settle(
            self._token,
            [
                Ending(
                    function=e.function,
                    id=e.id,
                    action=cast("Literal['reject', 'expire', 'fail']", e.action),
                    cause=e.cause,
                    message=e.message,
                )
                for e in endings
            ],
        )
        if done is None:
            raise Fenced
        for ending in endings:
            metrics.DECISIONS.labels(ending.action, ending.cause.value).inc()

    def _dispatch(self, dispatches: Sequence[Dispatch], began: float) -> list[Event]:
        schedule_us = int((time.perf_counter() - began) * 1e6)
        claims = []
        for dispatch in dispatches:
            queue = gpu_queue(dispatch.gpu)
            attempts = [[id_, attempt + 1] for id_, attempt in dispatch.attempts]
            claims.append(
                Claim(
                    function=dispatch.function,
                    gpu=dispatch.gpu,
                    celery_list=f"{self._prefix}{queue}",
                    message=message(RUN, [dispatch.function, dispatch.revision, attempts], queue),
                    decision=_reasons_json(dispatch.reasons, schedule_us).decode(),
                    schedule_us=schedule_us,
                    attempts=dispatch.attempts,
                )
            )
        refused: list[Event] = []
        for dispatch, claimed in zip(dispatches, self._claim(claims), strict=True):
            if claimed is None:
                raise Fenced
            metrics.DECISIONS.labels("dispatch", "cold" if dispatch.cold else "warm").inc()
            if dispatch.reasons.unforeseen:
                metrics.UNFORESEEN.labels(dispatch.function, dispatch.reasons.unforeseen).inc()
            if len(claimed) != len(dispatch.attempts):
                refused += [
                    ClaimRefused(id=id_, attempt=attempt) for id_, attempt in dispatch.attempts if id_ not in claimed
                ]
        return refused

    def _claim(self, claims: Sequence[Claim]) -> list[frozenset[str] | None]:
        lease_s = self._config.scheduler.dispatch_lease_s
        if len(claims) > 1:
            return self._queue.claim(self._token, lease_s, claims)
        claimed, self._cursor = self._queue.claim_one(self._token, lease_s, claims[0], self._cursor)
        return [claimed]


def _arrival(waiting: QueuedInvocation) -> InvocationArrived:
    return InvocationArrived(
        function=waiting.function,
        revision=waiting.revision,
        id=waiting.id,
        attempt=waiting.attempt,
        arrival_at=waiting.arrival_us / 1e6,
        deadline_at=waiting.deadline_us / 1e6,
        rows=waiting.rows,
        shape=waiting.shape,
        alone=waiting.alone,
    )


def _loss(job: JobReport) -> JobLoss:
    return JobLoss(
        id=job.id,
        budget=job.budget,
        recent=Sample(mean=job.recent_s, sd=job.recent_sd, n=job.recent_n) if job.recent_n else None,
        closed=Sample(mean=job.closed_s, sd=job.closed_sd, n=job.closed_n) if job.closed_n else None,
        windows=job.windows,
    )


def _told_us(seconds: float) -> int:
    """Whole microseconds, whatever the estimate: digits are all that the gate reads. What takes a year is never."""
    return int(min(max(0.0, seconds), 365.25 * 86_400) * 1e6)


def _run(meta: str) -> tuple[float | None, int]:
    """(run seconds, rows) of a worker's execution record; (None, 0) where it was cold or did not run to the end."""
    if not meta:
        return None, 0
    try:
        execution = decode_execution(meta)
    except ValueError:
        return None, 0
    return (execution.run_ms / 1000, execution.rows) if execution.run_ms and not execution.cold else (None, 0)


def _answer_json(now: float, found: Answer | None, bounds: Feasible | None) -> bytes:
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
        )
    )


def _reasons_json(reasons: Reasons, schedule_us: int) -> bytes:
    return reasons_message.encode_reasons(_reasons_message(reasons, schedule_us))


def _reasons_message(reasons: Reasons, schedule_us: int) -> reasons_message.Reasons:
    """The policy's reasons as they are written: rounded, for they are many."""
    shadow = reasons.shadow
    return reasons_message.Reasons(
        policy=reasons.policy,
        table=reasons.table_version,
        seed=reasons.seed,
        priority=round(reasons.priority, 4),
        schedule_us=schedule_us,
        candidates=[
            reasons_message.Candidate(
                gpu=candidate.gpu,
                warm=candidate.warm,
                delay_s=round(candidate.start_delay_s, 4),
                run_s=round(candidate.run_s, 5),
                finish_at=round(candidate.finish_at, 4),
                impact=round(candidate.impact, 4),
                function_degradation=round(candidate.function_degradation, 4),
                function_degradation_upper=round(candidate.function_degradation_upper, 4),
                training_degradation=round(candidate.training_degradation, 4),
                training_degradation_upper=round(candidate.training_degradation_upper, 4),
                known=candidate.known,
                refusal=candidate.refusal,
            )
            for candidate in reasons.candidates
        ],
        refused={code.value: count for code, count in reasons.refused.items()},
        shadow=None if shadow is None else reasons_message.Shadow(policy=shadow.policy, gpu=shadow.gpu),
        unforeseen=reasons.unforeseen or UNSET,
    )
