"""What is said of prewarming: how each function is kept ready, and why an invocation had to load an instance."""

from collections.abc import Mapping
from math import inf

from scheduler.policy import kernel
from scheduler.policy.cluster import Cluster
from scheduler.policy.demand import Demand
from scheduler.policy.prewarm.clock import MinuteClock
from scheduler.policy.prewarm.function import PrewarmedFunction
from scheduler.policy.prewarm.status import ColdStartReason
from smore.domain.prewarming import PrewarmStatus


class PrewarmReports:
    """Reads the prewarmer's functions; its clock straightens the times that are given."""

    def __init__(self, functions: Mapping[str, PrewarmedFunction], clock: MinuteClock) -> None:
        self._functions, self._clock = functions, clock

    @property
    def clock_steps(self) -> int:
        """Steps of the clock so far that were no passing of time."""
        return self._clock.steps

    def cold_start_reason(self, now: float, demand: Demand, cluster: Cluster) -> ColdStartReason:
        """Why an invocation of a revision must load an instance now. Asked before it is placed."""
        at = self._clock.straighten(now)
        entry = self._functions.get(demand.function)
        if entry is None:
            # No revision is in force: this is the first run of the first one.
            return ColdStartReason.NEVER_SEEN
        if entry.demand is not demand:
            return ColdStartReason.OTHER_REVISION
        if at < entry.retry_at:
            return ColdStartReason.LOAD_FAILED
        if entry.pending:
            return ColdStartReason.LATE
        cell = cluster.cells[demand.column, :, : len(cluster)]
        if (cell[kernel.RESIDENT][cluster.alive] > 0).any():
            return (
                ColdStartReason.HELD_ELSEWHERE
                if cluster.idle(demand.column)[cluster.alive].any()
                else ColdStartReason.MORE_AT_ONCE
            )
        if entry.unmet and entry.wanted:
            return ColdStartReason.NO_ROOM
        if entry.lost is ColdStartReason.EVICTED:
            return ColdStartReason.EVICTED
        if not entry.seen:
            return ColdStartReason.NEVER_SEEN
        if entry.silence:
            return ColdStartReason(entry.silence)
        alive_s = demand.spec.keep_alive_s
        if entry.lost is ColdStartReason.GIVEN_UP and (alive_s < 0 or at - entry.lost_at < alive_s):
            return ColdStartReason.GIVEN_UP
        return ColdStartReason.NOT_FORESEEN

    def statuses(self) -> list[PrewarmStatus]:
        """One for each function, by name."""
        return [
            PrewarmStatus(
                function=function,
                revision=entry.demand.revision,
                mode=entry.mode,
                source=entry.source,
                silence=str(entry.silence),
                wanted=entry.wanted,
                loaded=entry.loaded,
                unmet=entry.unmet,
                load_s=round(entry.demand.load_s, 4),
                holds=[
                    (
                        window.from_at - self._clock.offset,
                        None if window.until_at == inf else window.until_at - self._clock.offset,
                        window.instances,
                    )
                    for window in entry.followed
                ],
                parked=sum(len(row) for row in entry.parked.values()),
                host_s=round(entry.demand.host_s, 4),
            )
            for function, entry in sorted(self._functions.items())
        ]
