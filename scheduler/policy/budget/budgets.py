"""
The budgets of all trainings: one closed loop for each GPU instance, what runs are charged, and when a GPU instance is
closed to functions.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from scheduler.policy import kernel
from scheduler.policy.budget.controller import DUTY, BudgetController
from scheduler.policy.cluster import Batch, Cluster
from scheduler.policy.decisions import Decision, Offload, Throttle, TokenBucket
from scheduler.policy.demand import Demand
from scheduler.policy.events import GpuReported
from scheduler.policy.knobs import BudgetRule, Knobs
from smore.domain.learned import LearnedCost
from smore.domain.loss import Step

#: How long a GPU instance is expected to stay closed before the first closing was seen to end, seconds, and the weight
#: of the newest closing in the moving average.
CLOSED_S: Final = 1.0
CLOSED_WEIGHT: Final = 0.2


class Budgets:
    """Rows are those of the cluster. Without a budget rule nothing is charged."""

    def __init__(self, knobs: Knobs, cluster: Cluster) -> None:
        self._knobs, self._cluster = knobs, cluster
        #: Row → its closed loop.
        self._controllers: dict[int, BudgetController] = {}
        #: What a former leader had learned of GPU instances that have not reported yet.
        self._recalled: dict[str, Mapping[str, LearnedCost]] = {}
        #: Row → the start of its worker that reported last.
        self._boots: dict[int, str] = {}
        #: Row → since when it is closed; how long closings there last.
        self._closed_at: dict[int, float] = {}
        self._closed_s: dict[int, float] = {}

    @property
    def any(self) -> bool:
        """Whether budgets are kept anywhere."""
        return bool(self._controllers)

    def kept(self, row: int) -> bool:
        """Whether a budget is kept on a row and something trains there."""
        return row in self._controllers and self._cluster.rows.item(kernel.JOBS, row) > 0

    def recall(self, costs: Mapping[str, Mapping[str, LearnedCost]]) -> None:
        """Go on with what a former leader had learned of what functions cost trainings."""
        self._recalled.update(costs)

    def learned(self) -> dict[str, dict[str, LearnedCost]]:
        """What functions cost trainings, by GPU instance and training, as far as windows have told."""
        return {self._cluster.names[row]: controller.learned() for row, controller in self._controllers.items()}

    # ---- reports -----------------------------------------------------------------------------------------------------

    def reported(self, row: int, event: GpuReported, decisions: list[Decision]) -> None:
        """A report: the closed loop may take a step, predictions are corrected, the GPU instance may open or close."""
        if self._knobs.budget_rule is not BudgetRule.NONE:
            self._control(row, event, decisions)
        controller = self._controllers.get(row)
        closed = event.closed or (controller is not None and controller.step is not Step.OPEN)
        if closed:
            self._closed_at.setdefault(row, event.at)
        elif row in self._closed_at:
            usual = self._closed_s.get(row, CLOSED_S)
            self._closed_s[row] = usual + CLOSED_WEIGHT * (event.at - self._closed_at.pop(row) - usual)
        self._cluster.govern(row, controller.factor if controller is not None else 1.0, closed, event.at)

    def _control(self, row: int, event: GpuReported, decisions: list[Decision]) -> None:
        controller = self._controllers.get(row)
        if controller is None:
            controller = self._controllers[row] = BudgetController()
            controller.recall(self._recalled.pop(event.gpu, {}))
        if self._boots.get(row, event.boot) != event.boot and controller.step is not Step.OPEN:
            # A worker that has restarted lets everything in.
            job = event.losses[0].id if event.losses else ""
            decisions.append(_throttle(event.gpu, controller, job))
        self._boots[row] = event.boot
        stepped = controller.judge(event.at, event.losses, event.function_utilisation)
        if stepped is None:
            return
        decisions.append(_throttle(event.gpu, controller, stepped))
        if controller.step is Step.OFFLOADED:
            decisions += [
                Offload(function=function, revision=revision, gpu=event.gpu) for function, revision, _ in event.warm
            ]

    def closed_left_s(self, row: int, now: float) -> float:
        """
        Seconds for which a closed row is expected to stay closed. One that is overdue by x is expected to take x more.
        """
        return abs(self._closed_at.get(row, now) + self._closed_s.get(row, CLOSED_S) - now)

    # ---- charges -----------------------------------------------------------------------------------------------------

    def charge_run(self, now: float, row: int, kind: int, run_s: float) -> float:
        """Charge what a run is predicted to cost the training, seconds of training time; returns it."""
        cost_s = self.cost_s(row, kind, run_s)
        self._charge(now, row, cost_s)
        return cost_s

    def cost_s(self, row: int, kind: int, run_s: float) -> float:
        """What a run of ``run_s`` seconds alone is predicted to cost the training of a row, seconds."""
        cluster = self._cluster
        cost_s: float = kernel.cost_s(cluster.rows, row, cluster.effects, kind, run_s)
        return cost_s

    def charge_load(self, now: float, demand: Demand, row: int) -> None:
        """A load costs training time as a run of its length does."""
        if self.kept(row):
            cluster = self._cluster
            load_s = demand.host_s if cluster.host(demand.column)[row] else demand.load_s
            self.charge_run(now, row, cluster.kind(demand, 1), load_s)

    def settle(self, now: float, batch: Batch, run_s: float) -> None:
        """A batch took ``run_s``: what it really cost replaces what was charged for it."""
        if batch.charge_s:
            expected_s = batch.run_s * (1.0 + batch.slowdown)
            self._charge(now, batch.row, batch.charge_s * (run_s / expected_s - 1.0))

    def refund(self, now: float, batch: Batch) -> None:
        """No member of a batch ran: it costs nothing."""
        if batch.charge_s:
            self._charge(now, batch.row, -batch.charge_s)

    def _charge(self, now: float, row: int, seconds: float) -> None:
        """Take corrected training time from the token bucket, and log it as predicted: corrections learn from it."""
        self._controllers[row].charged_s += seconds / float(self._cluster.rows[kernel.FACTOR, row])
        if self._knobs.budget_rule is BudgetRule.BUCKET:
            self._cluster.take_tokens(row, seconds, now)

    def buckets(self, now: float) -> list[TokenBucket]:
        """Of each GPU instance with a training."""
        cluster = self._cluster
        rows = np.flatnonzero(cluster.alive & (cluster.fact(kernel.JOBS) > 0)).tolist()
        return [
            TokenBucket(
                gpu=cluster.names[row],
                factor=float(cluster.rows[kernel.FACTOR, row]),
                tokens_s=float(kernel.tokens(cluster.rows, row, now, cluster.capacity_s)),
            )
            for row in rows
        ]


def _throttle(gpu: str, controller: BudgetController, job: str) -> Throttle:
    return Throttle(gpu=gpu, step=controller.step, duty=DUTY[controller.step], job=job, factor=controller.factor)
