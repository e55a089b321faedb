"""The rows of lists that ``GET /v1/live`` streams too: GPU instances, queues, trainings."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from fastapi.concurrency import run_in_threadpool

from api.auth import is_operator
from api.dates import moment
from api.deps import Gateway
from api.invoke.admit import earliest
from api.schemas import gpus as gpu_schemas
from api.schemas import jobs as job_schemas
from api.schemas import queues as queue_schemas
from api.trainings import views
from api.trainings.names import saying
from smore.domain.job import OVER
from smore.domain.override import Override
from smore.messages.job_queue import PublishedQueue
from smore.messages.reports import JobReport, Report
from smore.redis.catalog import KeyEntry
from smore.redis.fleet import silent
from smore.redis.job_queue import JobQueue

if TYPE_CHECKING:
    from smore.postgres.jobs import Job


def published(gateway: Gateway) -> PublishedQueue | None:
    return JobQueue(gateway.client(), gateway.settings.redis.prefix).queue()


# ---- GPU instances -----------------------------------------------------------------------------------------------------


def gpus(
    gateway: Gateway,
    caller: KeyEntry,
    reports: Sequence[Report],
    queue: PublishedQueue | None,
    *,
    silent_too: bool,
) -> list[gpu_schemas.Gpu]:
    """
    By name; ``silent_too``: with those that are silent and not forgotten, of which the name alone is known. ``queue``: has
    the names of trainings.
    """
    fleet = gateway.fleet()
    paused, allowed = fleet.paused(), fleet.allowed()
    names = {job.id: job.name for job in queue.jobs} if queue is not None else {}
    rows = [_gpu(report, caller, paused, allowed, names) for report in reports]
    if silent_too:
        rows += [
            _silent(gpu, at, paused)
            for gpu, at in silent(fleet.seen(), {report.gpu for report in reports}, time.time()).items()
        ]
    return sorted(rows, key=lambda row: row.id)


def _gpu(
    report: Report, caller: KeyEntry, paused: frozenset[str], allowed: frozenset[str], names: dict[str, str]
) -> gpu_schemas.Gpu:
    training = {job.id: job for job in report.jobs if job.state not in OVER and not job.unseen}
    own = f"{caller.project}/"
    return gpu_schemas.Gpu(
        id=report.gpu,
        kind=report.kind,
        device=report.device,
        sharing_mode=report.sharing_mode,
        slots=report.slots,
        running=report.running,
        utilisation=report.utilisation,
        function_utilisation=report.function_utilisation,
        utilisation_counter=report.utilisation_counter,
        counters=dict(report.counters),
        health=report.health,
        memory_used_mib=report.memory_used_mib,
        memory_total_mib=report.memory_total_mib,
        node=report.node,
        duty=report.duty,
        closed_until=moment(report.closed_until) if report.closed else None,
        paused="*" in paused or f"g:{report.gpu}" in paused,
        reported_at=moment(report.at),
        warm=[
            gpu_schemas.Warm(
                function=one.function.removeprefix(own),
                revision=one.revision,
                state=one.state.value,
                memory_mib=one.memory_mib,
                idle_s=one.idle_s,
            )
            for one in report.warm
            if one.function.startswith(own)
        ],
        parked=[
            gpu_schemas.Parked(
                function=one.function.removeprefix(own),
                revision=one.revision,
                memory_mib=one.memory_mib,
                host_mib=one.host_mib,
                left_s=one.left_s,
            )
            for one in report.parked
            if one.function.startswith(own)
        ],
        quarantined=[revision.removeprefix(own) for revision in report.quarantined if revision.startswith(own)],
        trainings=len(training),
        jobs=[
            gpu_schemas.GpuJob(
                id=job.id,
                project=job.project,
                guest=job.guest,
                name=names.get(job.id, ""),
                budget=job.budget,
                loss=job.loss,
                loss_low=job.loss_low,
                loss_high=job.loss_high,
                loss_windows=job.loss_windows,
                iterations=job.iterations,
                held=job.held,
            )
            for job in training.values()
            if job.project == caller.project or is_operator(caller)
        ],
        draining=f"-g:{report.gpu}" in paused,
        drained=f"-g:{report.gpu}" in paused and not (report.running or report.warm or training),
        strangers=None
        if report.strangers is None
        else [
            gpu_schemas.Stranger(
                pid=one.pid,
                name=one.name,
                memory_mib=one.memory_mib,
                allowed=f"{report.gpu}|{one.pid}|{one.start}" in allowed,
            )
            for one in report.strangers
        ],
    )


def _silent(gpu: str, at: float, paused: frozenset[str]) -> gpu_schemas.Gpu:
    return gpu_schemas.Gpu(
        id=gpu,
        kind="",
        device="",
        sharing_mode="",
        slots=0,
        running=0,
        utilisation=0.0,
        function_utilisation=0.0,
        utilisation_counter="",
        memory_used_mib=0.0,
        memory_total_mib=0.0,
        paused="*" in paused or f"g:{gpu}" in paused,
        draining=f"-g:{gpu}" in paused,
        drained=False,
        reported_at=moment(at),
        silent_since=moment(at),
        warm=[],
    )


# ---- queues ------------------------------------------------------------------------------------------------------------


async def queues(gateway: Gateway, project: str | None) -> list[queue_schemas.Queue]:
    """Of a project's functions, None = of all projects', by name."""
    entries = sorted(
        (entry for entry in gateway.catalog.functions.values() if project in (None, entry.project)),
        key=lambda entry: (entry.name, entry.project),
    )
    specs = [await gateway.catalog.revision(entry.key, entry.revision) if entry.revision else None for entry in entries]
    own_s = [
        spec.deadline_s if spec is not None and entry.deadline_s is None else entry.deadline_s
        for entry, spec in zip(entries, specs, strict=True)
    ]
    if not entries:
        return []
    waiting = await gateway.queue.queues([entry.key for entry in entries])
    fleet, now = gateway.fleet(), time.time()
    paused, steering = await run_in_threadpool(lambda: (fleet.paused(), fleet.overrides(now)))
    rows = []
    for entry, queue, deadline_s in zip(entries, waiting, own_s, strict=True):
        steer = steering.get(entry.key, Override(function=entry.key))
        stopped = "*" in paused or f"f:{entry.key}" in paused
        named = {} if stopped else earliest(now * 1e6, queue.promised_us)
        rows.append(
            queue_schemas.Queue(
                function=entry.name,
                project=entry.project,
                depth=queue.depth,
                oldest_wait_s=max(0.0, now - queue.oldest_at) if queue.oldest_at is not None else 0.0,
                priority=queue.priority,
                paused=stopped,
                draining="-*" in paused or f"-f:{entry.key}" in paused,
                boost=steer.boost,
                boost_until=moment(steer.boost_until) if steer.boost_until is not None else None,
                pinned_to=list(steer.gpus),
                pinned_until=moment(steer.pin_until) if steer.pin_until is not None else None,
                deadline_ms=deadline_s * 1000 if deadline_s is not None else None,
                earliest_deadline_ms=cast("int | None", named.get("earliest_deadline_ms")),
            )
        )
    return rows


# ---- trainings ---------------------------------------------------------------------------------------------------------


class Trainings:
    """Jobs as their list shows them. What the records say of them is read once, what their workers say may be newer."""

    def __init__(self, gateway: Gateway, caller: KeyEntry, jobs: Sequence["Job"], queue: PublishedQueue | None) -> None:
        self.jobs = jobs
        ids = {job.id for job in jobs}
        self._entries = {entry.id: entry for entry in (queue.jobs if queue is not None else ()) if entry.id in ids}
        self._say = saying(gateway, caller, [entry.message for entry in self._entries.values()])
        self._past = views.past(gateway, jobs)
        self._promises = gateway.store().jobs.promises(ids)

    def row(self, job: "Job", reports: Sequence[JobReport]) -> job_schemas.Job:
        entry, promise = self._entries.get(job.id), self._promises.get(job.id)
        return views.shown(job, reports, entry, self._say, self._past.get(job.id), promise=promise)
