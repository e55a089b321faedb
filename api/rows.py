"""The rows of lists that ``GET /v1/live`` streams too: GPU instances, queues, trainings."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from api.auth import is_operator
from api.dates import moment
from api.deps import Gateway
from api.invoke.admit import earliest
from api.schemas import gpus as schemas
from api.trainings import views
from api.trainings.names import saying
from smore.domain.job import OVER
from smore.domain.override import Override
from smore.messages.job_queue import PublishedQueue
from smore.messages.reports import JobReport, Report
from smore.redis.catalog import FunctionEntry, KeyEntry
from smore.redis.fleet import FleetState
from smore.redis.gateway_queue import FunctionQueue
from smore.redis.job_queue import JobQueue

if TYPE_CHECKING:
    from smore.postgres.jobs import Job


def published(gateway: Gateway) -> PublishedQueue | None:
    return JobQueue(gateway.client(), gateway.settings.redis.prefix).queue()


# ---- GPU instances -----------------------------------------------------------------------------------------------------


def gpus(
    fleet: FleetState, caller: KeyEntry, queue: PublishedQueue | None, *, silent_too: bool
) -> list[dict[str, Any]]:
    """
    By name, as :class:`api.schemas.gpus.Gpu` has them; ``silent_too``: with those that are silent and not forgotten, of
    which the name alone is known. ``queue``: has the names of trainings.
    """
    names = {job.id: job.name for job in queue.jobs} if queue is not None else {}
    rows = [_gpu(report, caller, fleet.paused, fleet.allowed, names) for report in fleet.reports]
    if silent_too:
        rows += [_silent(gpu, at, fleet.paused) for gpu, at in fleet.silent(time.time()).items()]
    return sorted(rows, key=lambda row: row["id"])


def _gpu(
    report: Report, caller: KeyEntry, paused: frozenset[str], allowed: frozenset[str], names: dict[str, str]
) -> dict[str, Any]:
    training = {job.id: job for job in report.jobs if job.state not in OVER and not job.unseen}
    own, sees_all = f"{caller.project}/", is_operator(caller)
    draining = f"-g:{report.gpu}" in paused
    return schemas.Gpu.row(
        report,
        id=report.gpu,
        closed_until=moment(report.closed_until) if report.closed else None,
        silent_since=None,
        memory_warm_mib=sum(one.memory_mib for one in report.warm),
        paused="*" in paused or f"g:{report.gpu}" in paused,
        draining=draining,
        drained=draining and not (report.running or report.warm or training),
        reported_at=moment(report.at),
        warm=[
            schemas.Warm.row(one, function=one.function.removeprefix(own))
            for one in report.warm
            if one.function.startswith(own)
        ],
        parked=[
            schemas.Parked.row(one, function=one.function.removeprefix(own))
            for one in report.parked
            if one.function.startswith(own)
        ],
        quarantined=[revision.removeprefix(own) for revision in report.quarantined if revision.startswith(own)],
        trainings=len(training),
        jobs=[
            schemas.GpuJob.row(job, name=names.get(job.id, ""))
            for job in training.values()
            if sees_all or job.project == caller.project
        ],
        strangers=None
        if report.strangers is None
        else [
            schemas.Stranger.row(one, allowed=f"{report.gpu}|{one.pid}|{one.start}" in allowed)
            for one in report.strangers
        ],
    )


def _silent(gpu: str, at: float, paused: frozenset[str]) -> dict[str, Any]:
    return schemas.Gpu(
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
    ).model_dump()


# ---- queues ------------------------------------------------------------------------------------------------------------


#: Of a function of which nobody has decided anything.
_AS_IT_IS: Final = Override(function="")


class WaitingRow(NamedTuple):
    """What waits for a function, and what people have decided of it. ``deadline_s``: its own, None = none is known."""

    entry: FunctionEntry
    queue: FunctionQueue
    deadline_s: float | None
    paused: bool
    draining: bool
    steer: Override

    def row(self, now: float) -> dict[str, Any]:
        """At the epoch second ``now``, as :class:`api.schemas.queues.Queue` has it."""
        queue, steer = self.queue, self.steer
        named = {} if self.paused else earliest(now * 1e6, queue.promised_us)
        return {
            "function": self.entry.name,
            "project": self.entry.project,
            "depth": queue.depth,
            "batch": queue.bulk,
            "oldest_wait_s": max(0.0, now - queue.oldest_at) if queue.oldest_at is not None else 0.0,
            "priority": queue.priority,
            "paused": self.paused,
            "draining": self.draining,
            "boost": steer.boost,
            "boost_until": moment(steer.boost_until) if steer.boost_until is not None else None,
            "pinned_to": list(steer.gpus),
            "pinned_until": moment(steer.pin_until) if steer.pin_until is not None else None,
            "deadline_ms": self.deadline_s * 1000 if self.deadline_s is not None else None,
            "earliest_deadline_ms": named.get("earliest_deadline_ms"),
        }


async def queues(
    gateway: Gateway, project: str | None, paused: frozenset[str], overrides: Mapping[str, Override]
) -> dict[str, WaitingRow]:
    """
    By key, of a project's functions, None = of all projects', in the order of names; ``paused``, ``overrides``: as of
    :class:`FleetState`.
    """
    entries = sorted(
        (entry for entry in gateway.catalog.functions.values() if project in (None, entry.project)),
        key=lambda entry: (entry.name, entry.project),
    )
    if not entries:
        return {}
    keys = [entry.key for entry in entries]
    found = {}
    for key, entry, queue in zip(keys, entries, await gateway.queue.queues(keys), strict=True):
        spec = await gateway.catalog.revision(key, entry.revision) if entry.revision else None
        own = spec.deadline_s if spec is not None and entry.deadline_s is None else entry.deadline_s
        stopped, draining = "*" in paused or f"f:{key}" in paused, "-*" in paused or f"-f:{key}" in paused
        found[key] = WaitingRow(entry, queue, own, stopped, draining, overrides.get(key, _AS_IT_IS))
    return found


# ---- trainings ---------------------------------------------------------------------------------------------------------


class TrainingRows:
    """Jobs as their list shows them. What the records say of them is read once, what their workers say may be newer."""

    def __init__(
        self,
        gateway: Gateway,
        caller: KeyEntry,
        jobs: Sequence["Job"],
        queue: PublishedQueue | None,
        known: Mapping[str, views.Past] = views.NOTHING_KNOWN,
    ) -> None:
        ids = {job.id for job in jobs}
        entries = {entry.id: entry for entry in (queue.jobs if queue is not None else ()) if entry.id in ids}
        said = [*(entry.message for entry in entries.values()), *(job.reason for job in jobs)]
        say = saying(gateway, caller, said)
        self.jobs = jobs = [replace(job, reason=say(job.reason)) for job in jobs]
        self.past = views.past(gateway, jobs, known)
        promises = gateway.store().jobs.promises(ids)
        self._recorded = {
            job.id: views.recorded(job, entries.get(job.id), say, promise=promises.get(job.id)) for job in jobs
        }

    def row(self, job: "Job", reports: Sequence[JobReport]) -> dict[str, Any]:
        """As :class:`api.schemas.jobs.Job` has it."""
        return self._recorded[job.id] | views.reported(job, reports, self.past.get(job.id))
