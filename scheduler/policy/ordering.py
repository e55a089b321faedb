"""
Which lane is tried next in a round: by weighted shares of the run time (start-time fair queueing), by Eq. 5 with
ageing, by deadline or by arrival.

Starvation bounds. By shares, with weights by Eq. 5 (SFQ): over any interval in which a function f waits,
``service(g) / w_g - service(f) / w_f`` is at most one batch for every other function g, where bulk work counts as a
function of its own; what a token bucket must still earn for the function whose turn it is, no function after it takes.
By P with ``ageing_per_s`` > 0: a function whose head has waited ``1 / ageing_per_s`` seconds longer than any other's
comes before it whatever their priorities are, because normalised priorities differ by at most one. An invocation waits
at most until its deadline: then it expires.
"""

from collections.abc import Mapping
from math import inf
from typing import Final

from scheduler.policy.classes import Classes
from scheduler.policy.cluster import Cluster
from scheduler.policy.demand import Demand
from scheduler.policy.events import InvocationArrived
from scheduler.policy.knobs import ClassRule, Knobs, Order
from scheduler.policy.lanes import Lane
from scheduler.policy.overrides import Overrides
from scheduler.policy.own_rule import OwnRule
from smore.domain.placement_rule import WaitingBatch

#: No function's weight is smaller than this part of the largest, whatever its P is.
LEAST_SHARE: Final = 0.25

#: The revision of each lane that holds something, and the invocation at its head.
Heads = dict[Lane, tuple[Demand, InvocationArrived]]
#: A lane's place in a round: smaller comes first. The lane itself is the last part.
OrderKey = tuple[float, float, float, str, Lane]


class Ordering:
    """The order of one policy, over the functions of its cluster."""

    def __init__(self, knobs: Knobs, cluster: Cluster, overrides: Overrides, classes: Classes) -> None:
        self._knobs, self._cluster, self._overrides, self.classes = knobs, cluster, overrides, classes
        self._bulk_last = knobs.classes in (ClassRule.TIER, ClassRule.TEMPORAL)
        self._rule = OwnRule(knobs.name, knobs.rule) if knobs.rule is not None else None
        #: Function → its SFQ tag: the run time that it has had, divided by its weight, seconds; the same of bulk work.
        self._tags: tuple[dict[str, float], dict[str, float]] = {}, {}
        #: The tag of the function that was placed last, before that placement.
        self._virtual_time = 0.0
        #: The largest P of all revisions; None = to be computed.
        self._largest: float | None = None

    def begins(self, function: str, bulk: bool) -> None:
        """
        An invocation arrived, and no other of its function and class waits.

        What was idle starts at the current virtual time (SFQ), so idleness earns no credit.
        """
        tags = self._tags[bulk]
        tags[function] = max(self._virtual_time, tags.get(function, 0.0))

    def placed(self, demand: Demand, run_s: float, bulk: bool) -> None:
        """A batch of a function was placed: its tag advances by the run time over its weight."""
        tags, function = self._tags[bulk], demand.function
        self._virtual_time = tags[function]
        tags[function] += run_s / self.weight(demand, bulk)

    def tag(self, function: str, waiting: bool, bulk: bool = False) -> float:
        """The tag at which a function's next invocation starts, seconds; ``waiting``: others wait already."""
        tag = self._tags[bulk].get(function, 0.0)
        return tag if waiting else max(tag, self._virtual_time)

    def weight(self, demand: Demand, bulk: bool = False) -> float:
        """
        Eq. 5 over the largest one, :data:`LEAST_SHARE` to 1, or of bulk work that is not urgent the knob
        ``batch_share``; times the boost that an administrator gave the function.
        """
        if bulk and demand.function not in self.classes.urgent:
            return self._knobs.batch_share * self._overrides.boost(demand.function)
        if self._largest is None:
            self._largest = max((demand.priority for demand in self._cluster.demands), default=0.0)
        share = max(LEAST_SHARE, demand.priority / self._largest) if self._largest > 0 else 1.0
        return share * self._overrides.boost(demand.function)

    def priorities_changed(self) -> None:
        """P of some revision has changed."""
        self._largest = None

    def key(self, now: float, lane: Lane, demand: Demand, head: InvocationArrived) -> OrderKey:
        """The place of a lane under every order but by P. Raises BadRule."""
        if self._rule is not None:
            batch = waiting_batch(demand, head.rows, head.arrival_at, head.deadline_at, self._overrides)
            return self._rule.order(now, batch), head.deadline_at, head.arrival_at, head.id, lane
        if self._knobs.order is Order.ARRIVAL:
            return head.arrival_at, head.deadline_at, 0.0, head.id, lane
        if self._knobs.order is Order.SHARES:
            priority = demand.priority * self._overrides.boost(lane[0])
            tag = inf if lane[3] and self._bulk_last else self._tags[lane[3]][lane[0]]
            return tag, -priority, head.deadline_at, head.id, lane
        return head.deadline_at, head.arrival_at, 0.0, head.id, lane

    def by_priority(
        self, now: float, heads: Mapping[Lane, tuple[Demand, InvocationArrived]]
    ) -> list[tuple[float, Lane]]:
        """
        Lanes by their function's Eq. 5, normalised to 0..1, plus ageing, highest first; ties by function, so that
        replays agree.

        A function ages with its oldest head, and its own lanes keep their order (earliest deadline first).
        """
        oldest: dict[str, float] = {}
        highest: dict[str, float] = {}
        for lane, (demand, head) in heads.items():
            oldest[lane[0]] = min(oldest.get(lane[0], now), head.arrival_at)
            highest[lane[0]] = max(highest.get(lane[0], 0.0), demand.priority * self._overrides.boost(lane[0]))
        scale = max(highest.values(), default=0.0) or 1.0
        ranks = {
            function: highest[function] / scale + self._knobs.ageing_per_s * (now - oldest[function])
            for function in oldest
        }
        return sorted(((ranks[lane[0]], lane) for lane in heads), key=lambda item: (-item[0], item[1][0]))


def waiting_batch(
    demand: Demand, rows: int, arrival_at: float, deadline_at: float, overrides: Overrides
) -> WaitingBatch:
    """What a rule of one's own sees of a batch."""
    return WaitingBatch(
        function=demand.function,
        revision=demand.revision,
        arrival_at=arrival_at,
        deadline_at=deadline_at,
        rows=rows,
        run_s=demand.run_s(rows),
        priority=demand.priority * overrides.boost(demand.function),
        memory_mib=demand.memory_mib,
    )
