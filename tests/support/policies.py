"""Small policies whose every decision is plain to see."""

from collections.abc import Sequence
from math import inf
from random import Random

from scheduler.policy.decisions import Decision, Dispatch, Prewarm
from scheduler.policy.events import Event, GpuLost, GpuReported, InvocationArrived, InvocationSettled
from scheduler.policy.policy import Round
from smore.domain.invocation import Cause, End, EndAction, EndedFor

ACTIONS: tuple[EndAction, ...] = ("expire", "reject", "fail")


def dispatch(function: str, gpu: str, attempts: Sequence[tuple[str, int]]) -> Dispatch:
    return Dispatch(function=function, revision=1, gpu=gpu, attempts=attempts, cold=False, reasons=None)  # type: ignore[arg-type]


class Reacting:
    """A policy that answers with what :meth:`react` decides, and never wants to be woken."""

    def decide(self, now: float, events: Sequence[Event]) -> Round:
        return Round(self.react(now, events), inf)

    def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
        raise NotImplementedError


class AtOnce(Reacting):
    """Sends whatever arrives to the first GPU instance, at once, and keeps what it was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, Event]] = []

    def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
        self.heard += [(now, event) for event in events]
        return [
            dispatch(event.function, "gpu0", [(event.id, event.attempt)])
            for event in events
            if isinstance(event, InvocationArrived)
        ]

    def reports(self) -> list[tuple[float, GpuReported]]:
        return [(now, event) for now, event in self.heard if isinstance(event, GpuReported)]


class Reckless(Reacting):
    """
    Any GPU instance, any time, lost or not; ends some without reason, lets some wait until their deadline, loads at
    random.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._gpus: list[str] = []
        self._waiting: list[InvocationArrived] = []
        self._settled: set[tuple[str, int]] = set()

    def react(self, now: float, events: Sequence[Event]) -> list[Decision]:
        for event in events:
            if isinstance(event, InvocationArrived):
                self._waiting.append(event)
            elif isinstance(event, GpuReported | GpuLost) and event.gpu not in self._gpus:
                self._gpus.append(event.gpu)
            elif isinstance(event, InvocationSettled):
                assert (event.id, event.attempt) not in self._settled
                self._settled.add((event.id, event.attempt))
        decisions: list[Decision] = []
        kept = []
        for waiting in self._waiting:
            draw = self._random.random()
            gpu = self._random.choice(self._gpus)
            if now > waiting.deadline_at or draw < 0.05:
                action = self._random.choice(ACTIONS)
                decisions.append(
                    End(
                        function=waiting.function,
                        id=waiting.id,
                        action=action,
                        cause=Cause.DEADLINE_EXPIRED,
                        why=EndedFor.TOO_LATE,
                    )
                )
            elif draw < 0.7:
                decisions.append(dispatch(waiting.function, gpu, [(waiting.id, waiting.attempt)]))
            else:
                kept.append(waiting)
                if draw < 0.72:
                    decisions.append(Prewarm(function=waiting.function, revision=1, gpu=gpu))
        self._waiting = kept
        return decisions
