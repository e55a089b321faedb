"""GPU instances as the rule for trainings sees them: seen, closed, silent."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from scheduler.policy.jobs.events import Event, GpuLost, GpuSeen
from smore.domain.job import JobState
from smore.messages.reports import Report

#: A gap between two looks, seconds, after which it was the looking that stood still and not the GPU instances.
_GAP_S: Final = 10.0


class Watch:
    """
    ``heard``: when each GPU instance reported last, on the clock of ``at`` (epoch seconds); those that are silent for
    ``silent_s`` are ``lost`` until they report again.
    """

    def __init__(self, silent_s: float, heard: Mapping[str, float], at: float) -> None:
        self._silent_s = silent_s
        self.heard = dict(heard)
        self.lost: set[str] = set()
        self._looked_at = max(self.heard.values(), default=at)
        self._seen: dict[str, GpuSeen] = {}

    def look(
        self,
        at: float,
        reports: Sequence[Report],
        expected: Collection[str],
        placed: Collection[tuple[str, int]],
        paused: Collection[str],
        allowed: Collection[str],
    ) -> list[Event]:
        """
        What has changed. ``expected``: GPU instances on which jobs are; ``placed``: (job, attempt) that the rule placed;
        ``paused`` and ``allowed`` as smore.redis.fleet.Fleet has them.
        """
        gap_s = at - self._looked_at
        if gap_s > _GAP_S or gap_s < 0:
            self.heard = {gpu: heard_at + gap_s for gpu, heard_at in self.heard.items()}
        self._looked_at = at
        events: list[Event] = []
        for report in reports:
            self.heard[report.gpu] = at
            self.lost.discard(report.gpu)
            events += self._changed(_seen(report, placed, paused, allowed))
        here = {report.gpu for report in reports}
        for gpu in sorted({*self.heard, *expected} - here - self.lost):
            if at - self.heard.setdefault(gpu, at) > self._silent_s:
                self.lost.add(gpu)
                self._seen.pop(gpu, None)
                events.append(GpuLost(gpu=gpu))
            elif gpu in self._seen:
                events += self._changed(replace(self._seen[gpu], closed="silent"))
        return events

    def _changed(self, seen: GpuSeen) -> list[GpuSeen]:
        if self._seen.get(seen.gpu) == seen:
            return []
        self._seen[seen.gpu] = seen
        return [seen]


def node_of(report: Report) -> str:
    """A worker of the version before does not name its node: it counts as a node of its own."""
    return report.node or report.gpu


def _seen(
    report: Report, placed: Collection[tuple[str, int]], paused: Collection[str], allowed: Collection[str]
) -> GpuSeen:
    others = [
        job
        for job in report.jobs
        if job.state in (JobState.RUNNING, JobState.STARTING) and not job.unseen and (job.id, job.attempt) not in placed
    ]
    return GpuSeen(
        gpu=report.gpu,
        node=node_of(report),
        device=report.device,
        memory_mib=report.memory_total_mib,
        mig=report.kind == "mig",
        closed=_closed(report, paused, allowed),
        attached=len(others),
        held=sum(instance.held for instance in report.warm),
        context_mib=report.context_mib,
    )


def _closed(report: Report, paused: Collection[str], allowed: Collection[str]) -> str:
    """Why it takes no training, '' = it does."""
    if report.health:
        return "unhealthy"
    if f"-g:{report.gpu}" in paused:
        return "drained"
    if f"g:{report.gpu}" in paused or "*" in paused:
        return "paused"
    strangers = report.strangers or ()
    if any(f"{report.gpu}|{process.pid}|{process.start}" not in allowed for process in strangers):
        return "protected"
    return ""
