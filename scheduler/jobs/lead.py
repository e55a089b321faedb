"""
One leader's rounds: what has changed in Postgres and in the reports, to the rule; its decisions, to Postgres and to the
workers.

A start is written before any worker is told of it. After any error the leader's state is thrown away, and rebuilt from
Postgres and the reports.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Final, assert_never

from scheduler.jobs import board
from scheduler.jobs.attached import Attached
from scheduler.jobs.attempts import Attempt
from scheduler.jobs.checkpoints import OldCheckpoints
from scheduler.jobs.orders import Orders
from scheduler.jobs.recording import Recording
from scheduler.jobs.sharing import KnownPairs, Sharing
from scheduler.jobs.specs import Specs
from scheduler.jobs.watch import Watch, node_of
from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.decisions import (
    Decision,
    Finish,
    PlacesAnswered,
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
    JobHeld,
    JobMoved,
    JobProgressed,
    JobSubmitted,
    JobUnderWay,
    JobWithdrawn,
    LimitsChanged,
    PlacesAsked,
    ProjectLimit,
    QueueAsked,
    Run,
    RunsKnown,
    StartRefused,
    TrialAsked,
)
from scheduler.policy.jobs.job import Phase
from scheduler.policy.jobs.knobs import JobKnobs
from smore.domain.job import PLACED, STARTED, Action, JobState
from smore.domain.limits import Limits
from smore.messages.reports import Report
from smore.postgres.history.reader import Reader
from smore.postgres.job_ledger import Decided, JobLedger, Progress
from smore.postgres.jobs import Change, Job, JobStore
from smore.process import observability as metrics
from smore.process.settings import Settings
from smore.process.vault import NoKey, Sealed, Vault, unseal_env
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


class Lead:
    """
    The rule, the rows that it was told of, the attempts under way. Two clocks: ``now`` is the time of day, ``at`` runs
    steadily.
    """

    def __init__(
        self,
        config: Settings,
        knobs: JobKnobs,
        queue: JobQueue,
        fleet: Fleet,
        catalog: Catalog,
        ledger: JobLedger,
        store: JobStore,
        reader: Reader,
        tables: Tables,
        holder: str,
    ) -> None:
        self._config, self._settings, self._setting, self._holder = config, config.jobs, knobs.name, holder
        self._queue, self._fleet, self._catalog = queue, fleet, catalog
        self._ledger, self._store = ledger, store
        self._known = KnownPairs(tables, ledger.worse_since)
        self._specs = Specs(reader, self._known.alone_s)
        self._policy = JobPolicy(knobs)
        self._record = Recording(self._settings.record, knobs.name, self._settings.knobs)
        self._orders = Orders(fleet, ledger.standing, self._env_of)
        self._old_checkpoints = OldCheckpoints(fleet, ledger, self._settings.checkpoints_days)
        self._attached = Attached(store, self._settings.silent_s)
        self._watch = Watch(self._settings.silent_s, {}, 0.0)
        self._sharing = Sharing(self._specs.alone_s)
        #: Jobs that the rule knows: the row as it was read last.
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[str, Attempt] = {}
        self._limits: Mapping[str, Limits] = {}
        self._nodes: dict[str, str] = {}
        #: What the rule is told at the next round.
        self._next: list[Event] = []
        #: What was written down last of each attempt.
        self._noted: dict[str, Progress] = {}
        #: By how much the time of day was before the steady clock, seconds.
        self._ahead_s = -inf
        self._noted_at = self._shown_at = self._round_at = 0.0
        self._env: dict[str, dict[str, str]] = {}

    def begin(self, at: float) -> None:
        """Take the lead in Postgres; the first round tells the rule everything else."""
        token = self._ledger.lead()
        self._watch = Watch(self._settings.silent_s, self._queue.heard(), at)
        runs = [
            Run(project=run.project, name=run.name, seconds=run.seconds, ratios=run.ratios)
            for run in self._ledger.runs()
        ]
        self._next = [RunsKnown(runs=runs)] if runs else []
        log.info("leading the queue of trainings", token=token, setting=self._setting)

    def round(self, now: float, at: float) -> float:
        """Decide once; returns when there is something to decide even if nothing happens, epoch seconds."""
        began = time.perf_counter()
        self._follow_clock(now - at)
        reports = self._fleet.reports()
        rows = self._store.unfinished()
        self._attached.follow(at, rows, reports, paused=at - self._round_at > _GAP_S)
        self._round_at = at
        mine = {row.id: row for row in rows if row.source == STARTED}
        new = [row for row in mine.values() if row.id not in self._jobs]
        self._take_over(at, [row for row in new if row.state in PLACED])
        events, self._next = self._next, []
        events += [*self._changed_limits(), *self._seen(at, reports), *self._known.changed(self._specs.kinds)]
        # Hosts before their guests.
        for row in sorted(new, key=self._placed_at):
            events += self._submitted(row, now)
        events += self._changed_rows(mine)
        self._jobs = mine
        events += self._followed(at, {report.gpu: report for report in reports})
        events += self._shared(at)
        decisions, wake_at = self._policy.decide(now, events)
        self._record.note(now, events, decisions)
        for decision in decisions:
            self._perform(at, decision)
        for id_, attempt in self._attempts.items():
            self._send(at, self._jobs[id_], attempt)
        self._orders.settle(at, reports, self._attempts)
        self._old_checkpoints.drop(at, reports)
        self._note(at)
        metrics.JOB_ROUND_SECONDS.observe(time.perf_counter() - began)
        self._answer(now)
        if events or decisions or at - self._shown_at > SHOWN_S:
            self._show(now, at)
        return now if self._next else wake_at

    def _follow_clock(self, ahead_s: float) -> None:
        """``ahead_s``: of the time of day before the steady clock. The rule notices by itself, its successors do not."""
        if self._ahead_s - ahead_s > _SET_BACK_S:
            self._ledger.set_back(self._ahead_s - ahead_s)
        self._ahead_s = ahead_s

    # ---- what has happened -------------------------------------------------------------------------------------------

    def _take_over(self, at: float, rows: Sequence[Job]) -> None:
        """Attempts that a former leader has placed."""
        last = self._ledger.under_way([row.id for row in rows]) if rows else {}
        self._sharing.take_over([pair for pair in self._ledger.pairs(last) if pair.attempt == last[pair.job].attempt])
        for row in rows:
            attempt = last.get(row.id)
            self._attempts[row.id] = _attempt(
                row,
                row.attempt,
                row.gpus,
                since_at=attempt.started_at if attempt is not None else row.created_at,
                began_with=attempt.iterations_from if attempt is not None else 0,
                at=at,
                up=row.state is JobState.RUNNING,
            )
            if attempt is not None:
                self._attempts[row.id].micro_batches = attempt.micro_batches
                self._attempts[row.id].lost_s = attempt.lost_s

    def _changed_limits(self) -> list[Event]:
        limits = self._catalog.limits()
        if limits == self._limits:
            return []
        self._limits = limits
        told = {
            project: ProjectLimit(gpus=limit.gpus, weight=limit.weight if limit.weight is not None else 1.0)
            for project, limit in limits.items()
            if limit.gpus is not None or limit.weight is not None
        }
        return [LimitsChanged(limits=told)]

    def _seen(self, at: float, reports: Sequence[Report]) -> list[Event]:
        placed = {(attempt.job, attempt.attempt) for attempt in self._attempts.values()}
        expected = {gpu for attempt in self._attempts.values() for gpu in attempt.gpus}
        self._nodes |= {report.gpu: node_of(report) for report in reports}
        self._specs.see(reports)
        return self._watch.look(at, reports, expected, placed, self._fleet.paused(), self._fleet.allowed())

    def _submitted(self, row: Job, now: float) -> list[Event]:
        queued_s = max(0.0, now - row.queued_at) if row.state is JobState.QUEUED and row.queued_at else 0.0
        events: list[Event] = [
            JobSubmitted(
                spec=self._specs.of(row.id, row.project, row.name, row.request),
                submitted_at=row.created_at,
                attempt=row.attempt - 1 if row.state in PLACED else row.attempt,
                waited_s=row.waited_s + queued_s,
                ran_s=row.ran_s,
                iterations=row.iterations,
                restarts=row.restarts,
                short_ends=row.short_ends,
                not_before=row.not_before or 0.0,
                home=row.home,
                held=row.state is JobState.HELD,
                moved=row.moved,
                lost_s=row.lost_s,
            )
        ]
        attempt = self._attempts.get(row.id)
        if attempt is not None:
            events.append(
                JobUnderWay(
                    id=row.id,
                    attempt=row.attempt,
                    gpus=tuple(row.gpus),
                    since_at=attempt.since_at,
                    stopping=row.state is JobState.STOPPING,
                    micro_batches=attempt.micro_batches,
                    lost_s=attempt.lost_s,
                )
            )
        return events

    def _placed_at(self, row: Job) -> float:
        attempt = self._attempts.get(row.id)
        return attempt.since_at if attempt is not None else inf

    def _changed_rows(self, mine: Mapping[str, Job]) -> list[Event]:
        """What owners and operators did to jobs that the rule knows."""
        events: list[Event] = []
        for id_, row in mine.items():
            attempt, before, job = self._attempts.get(id_), self._jobs.get(id_), self._policy.jobs.get(id_)
            if row.state is JobState.STOPPING and attempt is not None and not attempt.asked:
                attempt.asked = True
                attempt.stop = attempt.stop or "Its owner stopped it."
                events.append(JobWithdrawn(id=id_))
            if before is None or job is None:
                continue
            if row.state is JobState.HELD and job.phase is not Phase.HELD:
                events.append(JobHeld(id=id_, held=True))
            elif row.state is JobState.QUEUED and job.phase is Phase.HELD:
                events.append(JobHeld(id=id_, held=False))
            if row.moved > before.moved:
                events.append(JobMoved(id=id_))
        return [*events, *(JobWithdrawn(id=id_) for id_ in self._jobs if id_ not in mine)]

    def _followed(self, at: float, reports: Mapping[str, Report]) -> list[Event]:
        """What has become of the attempts under way."""
        events: list[Event] = []
        shared = self._settings.checkpoints is not None
        for id_, attempt in self._attempts.items():
            attempt.follow(at, reports, self._watch.lost, self._settings.up_s, shared=shared)
            if id_ in self._policy.jobs:
                attempt.check_guest(self._policy.jobs[id_].parts.memory_mib)
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
                events.append(over)
            elif at - self._noted_at > NOTED_S and attempt.iteration_s and self._progress_of(attempt) is not None:
                events.append(
                    JobProgressed(
                        id=id_,
                        attempt=attempt.attempt,
                        iterations=attempt.iterations,
                        iteration_s=attempt.iteration_s,
                        length=attempt.length,
                    )
                )
        return events

    def _shared(self, at: float) -> list[Event]:
        """What trainings beside each other are measured to cost each other."""
        for id_, attempt in self._attempts.items():
            if id_ in self._policy.jobs:
                attempt.lost_s = max(0.0, self._policy.lost_s(id_) - self._jobs[id_].lost_s)
        workloads = {id_: row.workload for id_, row in self._jobs.items()}
        factors = {id_: job.parts.factor for id_, job in self._policy.jobs.items()}
        return self._sharing.follow(at, self._attempts, workloads, factors)

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def _perform(self, at: float, decision: Decision) -> None:
        match decision:
            case Start():
                self._start(at, decision)
            case Stop():
                attempt = self._attempts[decision.id]
                attempt.stop = attempt.stop or decision.message
                self._ledger.note(decision.id, decision.attempt, Decided(kind="stop", message=decision.message))
            case Requeue():
                self._requeue(decision)
            case Finish():
                self._finish(decision)
            case PublishQueue() | TrialAnswered() | PlacesAnswered():
                raise AssertionError("nobody asked")
            case _:
                assert_never(decision)

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
            Decided(kind="start", gpus=start.gpus, reasons=reasons, message=board.beside(start, self._jobs)),
            told,
            micro_batches=start.micro_batches,
            pairs=pairs,
        ):
            self._next.append(StartRefused(id=start.id, attempt=start.attempt))
            return
        self._sharing.take_over(pairs)
        metrics.JOB_WAIT_SECONDS.observe(start.reasons.waited_s)
        metrics.JOB_PLACEMENTS.labels("guest" if start.beside else "alone").inc()
        log.info("training placed", job=start.id, attempt=start.attempt, gpus=start.gpus, beside=len(hosts))
        attempt = self._attempts[start.id] = _attempt(
            row, start.attempt, start.gpus, since_at=at, began_with=self._policy.jobs[start.id].iterations, at=at
        )
        attempt.micro_batches = start.micro_batches
        attempt.hosts = {host.job: host.gpus for _, host in hosts}

    def _requeue(self, requeue: Requeue) -> None:
        attempt, job = self._over(requeue.id), self._policy.jobs[requeue.id]
        details = Change(
            exit_code=attempt.exit_code,
            why=attempt.ended.value,
            message=f"{attempt.stop} {requeue.message}".strip(),
            not_before=requeue.not_before,
            restarts=job.restarts,
            short_ends=job.short_ends,
            memory_mib=attempt.outgrown_mib,
        )
        decided = Decided(kind="requeue", message=details.message)
        if self._ledger.over(requeue.id, requeue.attempt, Action.REQUEUE, details, decided):
            metrics.JOB_RESTARTS.labels(attempt.ended.value).inc()
            log.info("training waits again", job=requeue.id, why=details.message)
        else:
            # Its owner has stopped it in this moment; the rule hears of it at the next round.
            self._ledger.over(requeue.id, requeue.attempt, Action.END, details, Decided(kind="finish"))

    def _finish(self, finish: Finish) -> None:
        attempt, row = self._over(finish.id), self._jobs[finish.id]
        details = Change(
            exit_code=attempt.exit_code,
            reason="" if finish.ended is Ended.STOPPED else attempt.reason,
            why=finish.ended.value,
            message=f"{attempt.stop} {finish.message}".strip(),
        )
        action = Action.LOSE if finish.ended is Ended.LOST else Action.END
        decided = Decided(kind="finish", message=details.message)
        if not self._ledger.over(finish.id, attempt.attempt, action, details, decided, finish.ratios):
            return
        log.info("training over", job=finish.id, ended=finish.ended.value, why=details.message)
        if finish.ended is Ended.SUCCEEDED:
            metrics.JOB_COMPLETION_SECONDS.observe(max(0.0, time.time() - row.created_at))
            for source, ratio in finish.ratios.items():
                metrics.JOB_ESTIMATE_RATIO.labels(source).observe(ratio)

    def _over(self, id_: str) -> Attempt:
        """The attempt, of which the last that was reported is written down before its end is."""
        attempt = self._attempts.pop(id_)
        progress = self._progress_of(attempt)
        self._ledger.progress([progress] if progress is not None else [])
        self._ledger.note_pairs(self._sharing.over(id_, attempt.attempt, self._round_at))
        self._noted.pop(id_, None)
        self._env.pop(id_, None)
        return attempt

    # ---- to workers, to Postgres, to people --------------------------------------------------------------------------

    def _send(self, at: float, row: Job, attempt: Attempt) -> None:
        try:
            self._orders.send(at, row, attempt, self._nodes)
        except (NoKey, Sealed) as error:
            attempt.refuse(f"Its variables cannot be read: {error}")

    def _env_of(self, row: Job) -> dict[str, str]:
        if row.id not in self._env:
            sealed, env = self._ledger.env(row.id), dict[str, str]()
            if sealed is not None:
                env = unseal_env(Vault.open(self._config.secrets_file), row.project, row.name, sealed)
            self._env[row.id] = env
        return self._env[row.id]

    def _progress_of(self, attempt: Attempt) -> Progress | None:
        """What is to be written down, None = nothing is new."""
        progress = Progress(
            job=attempt.job,
            attempt=attempt.attempt,
            iterations=attempt.iterations,
            began_with=attempt.began_with,
            checkpoint=attempt.checkpoint,
            home=attempt.home,
            lost_s=attempt.lost_s,
        )
        return progress if self._noted.get(attempt.job) != progress else None

    def _note(self, at: float) -> None:
        if at - self._noted_at <= NOTED_S:
            return
        self._noted_at = at
        new = [progress for each in self._attempts.values() if (progress := self._progress_of(each)) is not None]
        self._ledger.progress(new)
        self._noted |= {progress.job: progress for progress in new}
        self._ledger.note_pairs(self._sharing.changed())
        self._queue.note_heard(self._watch.heard)

    def _answer(self, now: float) -> None:
        for question in self._queue.questions():
            if question.job:
                for places in self._policy.decide(now, [PlacesAsked(id=question.job)]).decisions:
                    if isinstance(places, PlacesAnswered):
                        self._queue.answer(question.id, board.stands(places))
                continue
            spec = self._specs.of(question.id, question.project, question.name, question.request)
            for answer in self._policy.decide(now, [TrialAsked(spec=spec)]).decisions:
                if isinstance(answer, TrialAnswered):
                    self._queue.answer(question.id, board.answered(answer, question.project, question.name))

    def _show(self, now: float, at: float) -> None:
        self._shown_at = at
        for answer in self._policy.decide(now, [QueueAsked()]).decisions:
            if isinstance(answer, PublishQueue):
                self._queue.publish(board.published(answer, self._jobs, now, self._holder, self._setting))
                board.count(self._jobs, answer.kept)


def _attempt(
    row: Job,
    attempt: int,
    gpus: Sequence[str],
    *,
    since_at: float,
    began_with: int,
    at: float,
    up: bool = False,
) -> Attempt:
    return Attempt(
        job=row.id,
        attempt=attempt,
        gpus=gpus,
        since_at=since_at,
        awaited_at=at,
        grace_s=row.request.grace_s,
        began_with=began_with,
        checkpoint=row.iterations,
        home=row.home,
        up=up,
    )
