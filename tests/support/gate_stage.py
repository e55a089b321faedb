"""Invocations through the gate, the engine and their runs, on a clock of its own: what is promised, and what becomes of it."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import cast

from api.invoke.admit import earliest
from scheduler.policy.decisions import Dispatch, FinishBounds
from scheduler.policy.events import Event, InvocationArrived, InvocationSettled
from smore.domain.invocation import End
from tests.support.driven import DrivenEngine

#: A leader publishes so often, seconds.
TICK_S = 0.1


class GateStage:
    """
    ``run_s``: what a batch really takes, seconds: of its beginning, its function and its rows. The gate reads what was
    last published, as smore/redis/lua/common.lua does; an arrival is heard of ``heard_s`` later. ``teaches``: False =
    runs raise, so that their times say nothing.
    """

    def __init__(
        self,
        engine: DrivenEngine,
        now: float,
        run_s: Callable[[float, str, int], float],
        heard_s: float = 0.0,
        *,
        teaches: bool = True,
    ) -> None:
        self.engine, self.now, self._teaches = engine, now, teaches
        self._run_s, self._heard_s = run_s, heard_s
        self._published: dict[str, FinishBounds] = {}
        self._due: list[tuple[float, int, str, object]] = []
        self._sent: dict[str, InvocationArrived] = {}
        self._queued: dict[str, int] = {}
        #: Function → its batches under way.
        self._busy: dict[str, int] = {}
        self._order = count()
        #: Invocation → when it ended, inf = it expired.
        self.ended: dict[str, float] = {}
        self._push(now, "tick", None)
        self.until(now)

    def until(self, at: float) -> None:
        """All that happens until then."""
        while self._due and self._due[0][0] <= at:
            self.now, _, what, data = heappop(self._due)
            match what:
                case "tick":
                    self._decide([])
                    self.publish()
                    self._push(self.now + TICK_S, "tick", None)
                case "heard":
                    self._decide([cast(InvocationArrived, data)])
                case "over":
                    self._over(cast("tuple[str, list[str], float, int]", data))
                case _:
                    self._decide([])
        self.now = at

    def publish(self) -> None:
        """What gateways are told, as of now."""
        for function, revision in self.engine.cluster.columns:
            told = self.engine.bounds(self.now, function, revision)
            assert told is not None
            self._published[function] = told

    def send(self, function: str, within_s: float, rows: int = 1) -> str:
        """Its id, '' where the gate refuses it."""
        if self._bound_s(function, rows)[0] > within_s:
            return ""
        id_ = f"{len(self._sent):05}"
        self._sent[id_] = InvocationArrived(
            function=function,
            revision=1,
            id=id_,
            attempt=0,
            arrival_at=self.now,
            deadline_at=self.now + within_s,
            rows=rows,
        )
        self._queued[function] = self._queued.get(function, 0) + 1
        self._push(self.now + self._heard_s, "heard", self._sent[id_])
        return id_

    def named_ms(self, function: str, rows: int = 1) -> int:
        """The earliest deadline that a refusal names, milliseconds."""
        return cast(int, earliest(0, self._bound_s(function, rows)[1] * 1e6)["earliest_deadline_ms"])

    def late(self, ids: Sequence[str]) -> list[str]:
        """Those that were not in time."""
        return [id_ for id_ in ids if self.ended[id_] > self._sent[id_].deadline_at + 1e-9]

    def _bound_s(self, function: str, rows: int) -> tuple[float, float]:
        """By what the gate admits, and what a refusal names, without its margin."""
        told = self._published[function]
        queued, wider = self._queued.get(function, 0), told.row_s * (rows - 1)
        backlog_s = told.backlog_s + told.each_s * max(0, queued - told.counted)
        if not queued and self._busy.get(function, 0) < told.busy:
            backlog_s = told.alone_s
        bound = max(told.floor_s, backlog_s + wider)
        return _us(bound), _us(max(bound, told.cold_s + wider if told.cold_s else 0.0))

    def _decide(self, events: list[Event]) -> None:
        for decision in self.engine.decide(self.now, events):
            if isinstance(decision, End):
                self._queued[decision.function] -= 1
                self.ended[decision.id] = inf
            elif isinstance(decision, Dispatch):
                ids = [id_ for id_, _ in decision.attempts]
                self._queued[decision.function] -= len(ids)
                self._busy[decision.function] = self._busy.get(decision.function, 0) + 1
                rows = sum(self._sent[id_].rows for id_ in ids)
                run_s = self._run_s(self.now, decision.function, rows)
                self._push(self.now + run_s, "over", (decision.function, ids, run_s, rows))
        if self.now < self.engine.wake_at < inf:
            self._push(self.engine.wake_at, "wake", None)

    def _over(self, run: tuple[str, list[str], float, int]) -> None:
        function, ids, run_s, rows = run
        self._busy[function] -= 1
        for id_ in ids:
            self.ended[id_] = self.now
        self._decide(
            [
                InvocationSettled(
                    id=id_, attempt=1, run_s=run_s if self._teaches and id_ == ids[-1] else None, batch_rows=rows
                )
                for id_ in ids
            ]
        )

    def _push(self, at: float, what: str, data: object) -> None:
        heappush(self._due, (at, next(self._order), what, data))


def _us(seconds: float) -> float:
    """As published, in whole microseconds."""
    return int(seconds * 1e6) / 1e6
