"""The invocations of a run: what the trace says of each, and what has become of it."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lab.simulation.monitor import REVISION
from lab.simulation.result import EXPIRED, FAILED, HELD, REJECTED, STATUS, WAITING, Inconsistent
from lab.simulation.traces import Trace
from lab.simulation.world import World
from scheduler.policy.decisions import Dispatch, FinishBounds
from scheduler.policy.events import InvocationArrived
from smore.domain.invocation import End

_ENDS: Final = {"expire": EXPIRED, "reject": REJECTED, "fail": FAILED}


class Invocations:
    """
    Lists by number of the invocation, in order of arrival; times in seconds from the beginning of the trace, NaN where
    something never was. ``names`` of the functions, by index.
    """

    def __init__(self, world: World, trace: Trace, names: Sequence[str], seed: int) -> None:
        n = len(trace)
        self._names = names
        self._bulk = [function.bulk > 0 for function in world.functions]
        self._ids = [f"{number:09d}" for number in range(n)]
        self.function: list[int] = trace.index_in(names)[trace.function].tolist()
        self.rows: list[int] = trace.rows_in(world).tolist()
        self.arrival_s: list[float] = trace.arrival_s.tolist()
        self.deadline_s: list[float] = trace.deadlines_in(world).tolist()
        sizes = {
            key: world.use(world.functions[key[0]], key[1]).seconds
            for key in set(zip(self.function, self.rows, strict=True))
        }
        #: Time alone on a whole device, without noise.
        self.alone_s = [sizes[key] for key in zip(self.function, self.rows, strict=True)]
        #: A factor of the run time. It goes with the invocation, so that every policy meets the same.
        self.noise: list[float] = world.noise(n, seed).tolist()
        self.status = [WAITING] * n
        self.attempts = [0] * n
        self.gpu = [-1] * n
        self.dispatch_s, self.start_s, self.end_s, self.run_s = ([math.nan] * n for _ in range(4))
        self.cold = [False] * n
        #: How many have no end yet, how many wait, and how many of each function do.
        self.open = n
        self.waiting = 0
        self._queued = [0] * len(world.functions)

    def __len__(self) -> int:
        return len(self._ids)

    def id(self, number: int) -> str:
        return self._ids[number]

    def event(self, number: int) -> InvocationArrived:
        """It waits, new or again."""
        return InvocationArrived(
            function=self._names[self.function[number]],
            revision=REVISION,
            id=self._ids[number],
            attempt=self.attempts[number],
            arrival_at=self.arrival_s[number],
            deadline_at=self.deadline_s[number],
            rows=self.rows[number],
            bulk=self._bulk[self.function[number]],
        )

    def admitted(self, number: int, bounds: Sequence[FinishBounds | None]) -> bool:
        """
        Whether a gateway with such bounds (by function) lets it in, as smore/redis/lua/common.lua does, but that a run
        which has ended since counts until the next publication.
        """
        function = self.function[number]
        bound = bounds[function]
        if bound is None:
            return True
        backlog_s = bound.backlog_s + bound.each_s * max(0, self._queued[function] - bound.counted)
        backlog_s += bound.row_s * (self.rows[number] - 1)
        return self.arrival_s[number] + max(bound.floor_s, backlog_s) <= self.deadline_s[number]

    def queue(self, number: int) -> None:
        """It waits from now on."""
        self.status[number] = WAITING
        self.waiting += 1
        self._queued[self.function[number]] += 1

    def dispatch(self, decision: Dispatch, now: float) -> list[int]:
        """Its members, which wait no more."""
        members = []
        for id_, attempt in decision.attempts:
            number = int(id_)
            if self.status[number] != WAITING or self.attempts[number] != attempt:
                raise Inconsistent(
                    f"{id_} was dispatched as attempt {attempt}: it is {STATUS[self.status[number]]} as"
                    f" {self.attempts[number]}"
                )
            self.status[number] = HELD
            self._queued[self.function[number]] -= 1
            self.attempts[number] = attempt + 1
            self.dispatch_s[number] = now
            members.append(number)
        self.waiting -= len(members)
        return members

    def ended(self, decision: End, now: float) -> None:
        """The policy ends one that waits."""
        number = int(decision.id)
        if self.status[number] != WAITING:
            raise Inconsistent(f"{decision.id} was ended while it was {STATUS[self.status[number]]}")
        self.waiting -= 1
        self._queued[self.function[number]] -= 1
        self.end(number, _ENDS[decision.action], now)

    def end(self, number: int, status: int, now: float) -> None:
        self.status[number] = status
        self.end_s[number] = now
        self.open -= 1

    def rows_of_result(self) -> dict[str, NDArray[Any]]:
        """The arrays of :class:`~lab.simulation.result.Result` that go by invocation."""
        status = np.array(self.status, np.int8)
        if ((status == WAITING) | (status == HELD)).any():
            raise Inconsistent("an invocation has no end")
        return {
            "function": np.array(self.function, np.int32),
            "rows": np.array(self.rows, np.int32),
            "arrival_s": np.array(self.arrival_s, float),
            "deadline_s": np.array(self.deadline_s, float),
            "status": status,
            "attempts": np.array(self.attempts, np.int16),
            "gpu": np.array(self.gpu, np.int32),
            "dispatch_s": np.array(self.dispatch_s, float),
            "start_s": np.array(self.start_s, float),
            "end_s": np.array(self.end_s, float),
            "cold": np.array(self.cold, bool),
            "alone_s": np.array(self.alone_s, float),
            "run_s": np.array(self.run_s, float),
        }
