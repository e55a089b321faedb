"""
One leader's rounds: what has changed in Postgres and in the reports, to the rule; its decisions, to Postgres and to the
workers.

A start is written before any worker is told of it. After any error the leader's state is thrown away, and rebuilt from
Postgres and the reports. What goes wrong with one training stops no other: it is passed over (scheduler/jobs/apart.py).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Final, assert_never

import redis
from sqlalchemy import Engine

from scheduler.jobs import ends, losses, wording
from scheduler.jobs.apart import Apart
from scheduler.jobs.attached import Attached
from scheduler.jobs.attempts import Attempt
from scheduler.jobs.board import Board
from scheduler.jobs.checkpoints import OldCheckpoints
from scheduler.jobs.job_rows import begun, ordered, submitted, taken_over
from scheduler.jobs.orders import Orders
from scheduler.jobs.pledges import Pledges
from scheduler.jobs.progress import ProgressLog
from scheduler.jobs.recording import Recording
from scheduler.jobs.sharing import KnownPairs, SharedAttempts
from scheduler.jobs.specs import Specs
from scheduler.jobs.variables import Variables
from scheduler.jobs.watch import Watch, node_of
from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.decisions import (
    Action as Acted,
)
from scheduler.policy.jobs.decisions import (
    BreaksAnswered,
    Decision,
    Finish,
    NotPromised,
    PlacesAnswered,
    Promised,
    PublishQueue,
    Requeue,
    Start,
    Stop,
    TrialAnswered,
)
from scheduler.policy.jobs.events import (
    AttemptOver,
    Ended,
    Event,
    JobProgressed,
    JobWithdrawn,
    LimitsChanged,
    ProjectLimit,
    RunsKnown,
    StartRefused,
)
from scheduler.policy.jobs.knobs import JobKnobs
from smore.domain.job import PLACED, RESERVE, STARTED, Action, JobState
from smore.domain.limits import Limits
from smore.messages.reports import Report
from smore.postgres.history.reader import Reader
from smore.postgres.job_ledger import Decided, JobLedger
from smore.postgres.jobs import Job, JobChange, JobStore
from smore.process import observability as metrics
from smore.process.settings import Settings
from smore.process.vault import NoKey, Sealed
from smore.redis.catalog import Catalog
from smore.redis.fleet import Fleet
from smore.redis.job_queue import JobQueue
from smore.redis.tables import Tables

log = metrics.logger(__name__)

#: How often the queue is published when nothing happens, and progress is written down, seconds.
SHOWN_S: Final = 1.0
NOTED_S: Final = 5.0
#: A gap between two rounds, seconds, after which silence says nothing.
_GAP_S: Final = 10.0
#: The time of day is corrected by less all the time, seconds.
_SET_BACK_S: Final = 1.0


class WentWrong(Exception):
    """Something went wrong with a training; the others had their round."""


class Lead:
    """
    The rule, the rows that it was told of, the attempts under way. Two clocks: ``now`` is the time of day, ``at`` runs
    steadily. ``apart`` outlives it.
    """

    def __init__(
        self,
        config: Settings,
        knobs: JobKnobs,
        client: "redis.Redis",
        engine: Engine,
        holder: str,
        apart: Apart,
    ) -> None:
        prefix = config.redis.prefix
        self._apart = apart
        self._settings, self._knobs = config.jobs, knobs
        self._queue, self._fleet, self._catalog = (
            JobQueue(client, prefix),
            Fleet(client, prefix),
            Catalog(client, prefix),
        )
        self._ledger, self._store = JobLedger(engine), JobStore(engine)
        self._known_pairs = KnownPairs(Tables(client, prefix), self._ledger.worse_since)
        self._specs = Specs(Reader(engine), self._known_pairs.alone_s, self._ledger.former)
        self._decide = JobPolicy(knobs).decide
        self._record = Recording(self._settings.record, knobs.name, self._settings.knobs)
        self._board = Board(self._queue, self._decide, self._specs, holder, knobs, apart)
        self._variables = Variables(self._ledger, config.secrets_file)
        self._orders = Orders(self._fleet, self._ledger.standing, self._variables.of)
        self._progress = ProgressLog(self._ledger, apart)
        self._old_checkpoints = OldCheckpoints(self._fleet, self._ledger, self._settings.checkpoints_days)
        self._attached = Attached(self._store, self._settings.silent_s, apart)
        self._watch = Watch(self._settings.silent_s, {}, 0.0)
        self._sharing = SharedAttempts(self._specs.alone_s)
        self._pledges = Pledges(self._ledger, self._fleet, apart)
        #: Jobs that the rule knows: the row as it was read last.
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[str, Attempt] = {}
        self._limits: Mapping[str, Limits] = {}
        self._nodes: dict[str, str] = {}
        #: Whose counters have begun.
        self._projects: set[str] = set()
        #: What the rule is told at the next round.
        self._next: list[Event] = []
        #: By how much the time of day was before the steady clock, seconds.
        self._ahead_s = -inf
        self._noted_at = self._shown_at = self._round_at = self._now = 0.0

    def begin(self, at: float) -> None:
        """Take the lead in Postgres; the first round tells the rule everything else."""
        token = self._ledger.lead()
        self._watch = Watch(self._settings.silent_s, self._queue.heard(), at)
        runs = self._ledger.runs()
        self._next = [RunsKnown(runs=runs)] if runs else []
        # From 0 on: what first appears as 1 is no increase, and no alert sees it.
        for kind in ("alone", "guest"):
            metrics.JOB_PLACEMENTS.labels(kind)
        for ended in (Ended.FAILED, Ended.LOST, Ended.OUTGROWN):
            metrics.JOB_RESTARTS.labels(ended.value)
        self._begin_counters(self._ledger.projects())
        log.info("leading the queue of trainings", token=token, setting=self._knobs.name)

    def round(self, now: float, at: float) -> float:
        """
        Decide once; returns when there is something to decide even if nothing happens, epoch seconds. Raises WentWrong
        where something did with a training, once the others have had their round.
        """
        began, self._apart.wrong, self._now = time.perf_counter(), "", now
        self._follow_clock(now - at)
        reports = self._fleet.reports()
        rows = [row for row in self._store.unfinished() if row.id not in self._apart.ids]
        self._attached.follow(at, rows, reports, paused=at - self._round_at > _GAP_S)
        self._round_at = at
        mine = {row.id: row for row in rows if row.source == STARTED}
        new = [row for row in mine.values() if row.id not in self._jobs]
        self._begin_counters({row.project for row in rows})
        self._take_over(at, [row for row in new if row.state in PLACED])
        events, self._next = self._next, []
        events += [*self._changed_limits(), *self._seen(at, reports), *self._known_pairs.changed(self._specs.kinds)]
        self._pledges.take_over(new)
        # Hosts before their guests.
        for row in sorted(new, key=self._placed_at):
            with self._apart.of(row.id):
                spec = self._specs.of(row.id, row.project, row.name, row.request)
                attempt = self._attempts.get(row.id)
                if attempt is not None:
                    attempt.parts = spec.way(attempt.parts.count)
                events += submitted(row, spec, attempt, now, self._pledges.promised(row))
        events += self._changed_rows(mine)
        self._jobs = mine
        events += self._followed(at, {report.gpu: report for report in reports})
        events += self._shared(at)
        decisions, wake_at = self._decide(now, events)
        self._record.note(now, events, decisions)
        for decision in decisions:
            self._perform(at, decision)
        for id_, attempt in self._under_way():
            with self._apart.of(id_):
                self._send(at, self._jobs[id_], attempt)
        self._orders.settle(at, reports, self._attempts)
        self._old_checkpoints.drop(at, reports)
        self._note(at)
        metrics.JOB_ROUND_SECONDS.observe(time.perf_counter() - began)
        self._board.answer(now)
        if events or decisions or at - self._shown_at > SHOWN_S:
            shown = self._board.show(now, self._jobs)
            self._note_losses({job.id: job.lost_s for job in shown})
            self._pledges.follow(now, shown, self._jobs, self._attempts)
            losses.show(rows, reports)
            self._shown_at = at
        if self._apart.wrong:
            raise WentWrong(self._apart.wrong)
        return now if self._next else wake_at

    def _under_way(self) -> list[tuple[str, Attempt]]:
        """The attempts under way, by the ids of their jobs, but for those that are passed over."""
        return [(id_, attempt) for id_, attempt in self._attempts.items() if id_ not in self._apart.ids]

    def _follow_clock(self, ahead_s: float) -> None:
        """``ahead_s``: of the time of day before the steady clock. The rule notices by itself, its successors do not."""
        if self._ahead_s - ahead_s > _SET_BACK_S:
            self._ledger.set_back(self._ahead_s - ahead_s)
        self._ahead_s = ahead_s

    # ---- what has happened -------------------------------------------------------------------------------------------

    def _take_over(self, at: float, rows: Sequence[Job]) -> None:
        """Attempts that a former leader has placed."""
        last = self._ledger.under_way([row.id for row in rows]) if rows else {}
        pairs = [pair for pair in self._ledger.pairs(last) if pair.attempt == last[pair.job].attempt]
        self._sharing.take_over(pairs)
        for row in rows:
            with self._apart.of(row.id):
                hosts = {pair.other: pair.gpus for pair in pairs if pair.job == row.id and pair.guest}
                self._attempts[row.id] = taken_over(row, last.get(row.id), hosts, at)

    def _begin_counters(self, projects: set[str]) -> None:
        for project in projects - self._projects:
            ends.begin(project)
            self._projects.add(project)

    def _changed_limits(self) -> list[Event]:
        limits = self._catalog.limits()
        if limits == self._limits:
            return []
        self._limits = limits
        return [limits_changed(limits)]

    def _seen(self, at: float, reports: Sequence[Report]) -> list[Event]:
        placed = {(attempt.job, attempt.attempt) for attempt in self._attempts.values()}
        expected = {gpu for attempt in self._attempts.values() for gpu in attempt.gpus}
        self._nodes |= {report.gpu: node_of(report) for report in reports}
        self._specs.see(reports)
        return self._watch.look(at, reports, expected, placed, self._fleet.paused(), self._fleet.allowed())

    def _placed_at(self, row: Job) -> float:
        attempt = self._attempts.get(row.id)
        return attempt.since_at if attempt is not None else inf

    def _changed_rows(self, mine: Mapping[str, Job]) -> list[Event]:
        """What owners and operators did to jobs that the rule knows."""
        events: list[Event] = []
        for id_, row in mine.items():
            attempt, before = self._attempts.get(id_), self._jobs.get(id_)
            if row.state is JobState.STOPPING and attempt is not None and not attempt.asked:
                attempt.asked = True
                attempt.stop = attempt.stop or "Its owner stopped it."
                events.append(JobWithdrawn(id=id_))
            if before is not None:
                events += ordered(row, before)
        gone = [id_ for id_ in self._jobs if id_ not in mine]
        for id_ in gone:
            self._board.over(id_, None)
        self._pledges.gone([self._jobs[id_] for id_ in gone], self._now)
        return [*events, *(JobWithdrawn(id=id_) for id_ in gone)]

    def _followed(self, at: float, reports: Mapping[str, Report]) -> list[Event]:
        """What has become of the attempts under way."""
        events: list[Event] = []
        for id_, attempt in self._under_way():
            with self._apart.of(id_):
                events += self._follow(at, id_, attempt, reports)
        return events

    def _follow(self, at: float, id_: str, attempt: Attempt, reports: Mapping[str, Report]) -> list[Event]:
        shared = self._settings.checkpoints is not None
        attempt.follow(at, reports, self._watch.lost, self._settings.up_s, shared=shared)
        attempt.check_guest()
        if attempt.up and self._jobs[id_].state is JobState.STARTING:
            self._ledger.run(id_, attempt.attempt)
        if attempt.over:
            over = AttemptOver(
                id=id_,
                attempt=attempt.attempt,
                ended=attempt.ended,
                iterations=attempt.checkpoint,
                home=attempt.home,
                memory_mib=attempt.outgrown_mib,
            )
            return [over]
        if at - self._noted_at > NOTED_S and attempt.iteration_s and self._progress.changed(attempt):
            progressed = JobProgressed(
                id=id_,
                attempt=attempt.attempt,
                iterations=attempt.iterations,
                iteration_s=attempt.iteration_s,
                length=attempt.length,
                memory_mib=attempt.memory_mib * (1 + RESERVE),
            )
            return [progressed]
        return []

    def _shared(self, at: float) -> list[Event]:
        """What trainings beside each other are measured to cost each other."""
        workloads = {id_: row.request.workload for id_, row in self._jobs.items()}
        return self._sharing.follow(at, self._attempts, workloads)

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def _perform(self, at: float, decision: Decision) -> None:
        match decision:
            case Start() | Stop() | Requeue() | Finish() | Promised() | NotPromised():
                if decision.id not in self._apart.ids:
                    with self._apart.of(decision.id):
                        self._change(at, decision)
            case PublishQueue() | TrialAnswered() | PlacesAnswered() | BreaksAnswered():
                raise AssertionError("nobody asked")
            case _:
                assert_never(decision)

    def _change(self, at: float, decision: Acted) -> None:
        match decision:
            case Start():
                self._start(at, decision)
            case Stop():
                attempt = self._attempts[decision.id]
                words = wording.stopped(decision)
                attempt.stop = attempt.stop or words
                self._ledger.note(decision.id, decision.attempt, Decided(kind="stop", message=words))
            case Requeue():
                self._requeue(decision)
            case Finish():
                self._finish(decision)
            case Promised() | NotPromised():
                self._pledges.decided(self._jobs[decision.id], decision)

    def _start(self, at: float, start: Start) -> None:
        length, row = start.reasons.length, self._jobs[start.id]
        reasons = asdict(start.reasons) | {"length": length._asdict()}
        nodes = list(dict.fromkeys(self._nodes[gpu] for gpu in start.gpus))
        told = (length.expected_s, length.most_s, length.source.value)
        hosts = [(beside, self._attempts[beside.id]) for beside in start.beside]
        pairs = self._sharing.begin(at, start.id, start.attempt, start.gpus, hosts, self._specs.places[start.gpus[0]])
        if not self._ledger.start(
            start.id,
            start.attempt,
            nodes,
            Decided(kind="start", gpus=start.gpus, reasons=reasons, message=wording.beside(start, self._jobs)),
            told,
            micro_batches=start.parts.count,
            pairs=pairs,
        ):
            self._next.append(StartRefused(id=start.id, attempt=start.attempt))
            return
        self._sharing.take_over(pairs)
        metrics.JOB_WAIT_SECONDS.observe(start.reasons.waited_s)
        metrics.JOB_PLACEMENTS.labels("guest" if start.beside else "alone").inc()
        log.info("training placed", job=start.id, attempt=start.attempt, gpus=start.gpus, beside=len(hosts))
        shares = {host.job: host.gpus for _, host in hosts}
        self._attempts[start.id] = begun(row, start, shares, at)

    def _requeue(self, requeue: Requeue) -> None:
        attempt = self._over(requeue.id)
        details = JobChange(
            exit_code=attempt.exit_code,
            why=attempt.ended.value,
            message=f"{attempt.stop} {wording.requeued(requeue)}".strip(),
            not_before=requeue.not_before,
            restarts=requeue.restarts,
            short_ends=requeue.short_ends,
            memory_mib=attempt.outgrown_mib,
        )
        decided = Decided(kind="requeue", message=details.message)
        if self._ledger.over(requeue.id, requeue.attempt, Action.REQUEUE, details, decided):
            metrics.JOB_RESTARTS.labels(attempt.ended.value).inc()
            self._pledges.ended(requeue.id, attempt.ended, self._jobs)
            log.info("training waits again", job=requeue.id, why=details.message)
        else:
            # Its owner has stopped it in this moment; the rule hears of it at the next round.
            row = self._jobs[requeue.id]
            if self._ledger.over(requeue.id, requeue.attempt, Action.END, details, Decided(kind="finish")):
                ends.tell(row, JobState.ENDED, attempt.exit_code, asked=True, why=attempt.stop)
                self._pledges.gone([row], self._now)

    def _finish(self, finish: Finish) -> None:
        attempt, row = self._over(finish.id), self._jobs[finish.id]
        details = JobChange(
            exit_code=attempt.exit_code,
            reason="" if finish.ended is Ended.STOPPED else attempt.reason,
            why=finish.ended.value,
            message=f"{attempt.stop} {wording.finished(finish, self._knobs)}".strip(),
        )
        action = Action.LOSE if finish.ended is Ended.LOST else Action.END
        decided = Decided(kind="finish", message=details.message)
        if not self._ledger.over(finish.id, attempt.attempt, action, details, decided, finish.ratios):
            return
        state = JobState.LOST if finish.ended is Ended.LOST else JobState.ENDED
        asked = finish.ended is Ended.STOPPED
        ends.tell(row, state, attempt.exit_code, asked=asked, reason=details.reason, why=details.message)
        succeeded, completion_s = finish.ended is Ended.SUCCEEDED, max(0.0, time.time() - row.created_at)
        self._board.over(finish.id, completion_s if succeeded else None)
        self._pledges.over(row, self._now, finish.ended)
        if succeeded:
            metrics.JOB_COMPLETION_SECONDS.observe(completion_s)
            for source, ratio in finish.ratios.items():
                metrics.JOB_ESTIMATE_RATIO.labels(source).observe(ratio)

    def _over(self, id_: str) -> Attempt:
        """The attempt, of which the last that was reported is written down before its end is."""
        attempt = self._attempts.pop(id_)
        self._progress.close(attempt)
        self._ledger.note_pairs(self._sharing.over(id_, attempt.attempt, self._round_at))
        self._variables.forget(id_)
        return attempt

    # ---- to workers, to Postgres, to people --------------------------------------------------------------------------

    def _send(self, at: float, row: Job, attempt: Attempt) -> None:
        try:
            self._orders.send(at, row, attempt, self._nodes)
        except (NoKey, Sealed) as error:
            attempt.refuse(f"Its variables cannot be read: {error}")

    def _note_losses(self, lost_s: Mapping[str, float]) -> None:
        """``lost_s``: what others beside each job have cost it, over all attempts."""
        for id_, attempt in self._under_way():
            if id_ in lost_s:
                attempt.lost_s = max(0.0, lost_s[id_] - self._jobs[id_].lost_s)

    def _note(self, at: float) -> None:
        if at - self._noted_at <= NOTED_S:
            return
        self._noted_at = at
        self._begin_counters(self._ledger.projects())
        self._progress.write([attempt for _, attempt in self._under_way()])
        self._ledger.note_pairs(self._sharing.changed())
        self._queue.note_heard(self._watch.heard)


def limits_changed(limits: Mapping[str, Limits]) -> LimitsChanged:
    """What the rule is told of the limits of all projects: of one that has none of these, nothing."""
    return LimitsChanged(
        limits={
            project: ProjectLimit(
                gpus=limit.gpus,
                weight=limit.weight if limit.weight is not None else 1.0,
                promised=limit.promised,
            )
            for project, limit in limits.items()
            if (limit.gpus, limit.weight, limit.promised) != (None, None, None)
        }
    )
