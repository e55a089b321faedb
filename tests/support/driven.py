"""An engine under test: driven through its one door, with the answers to its questions at hand."""

from collections.abc import Sequence
from math import inf

from scheduler.policy.cluster import Cluster
from scheduler.policy.decisions import (
    Answer,
    Decision,
    FinishBounds,
    PublishAdmission,
    PublishStatus,
    QuestionAnswered,
    TokenBucket,
)
from scheduler.policy.engine import Engine
from scheduler.policy.events import AdmissionDue, Event, QuestionAsked, StatusDue
from scheduler.policy.knobs import PRESETS, Knobs
from scheduler.policy.lanes import Lanes
from scheduler.policy.load import LoadSwitch
from scheduler.policy.prewarm.prewarmer import Prewarmer


class DrivenEngine:
    """``wake_at`` is that of the last call of :meth:`decide`."""

    def __init__(
        self, knobs: Knobs = PRESETS["smore-product"], shadow: Knobs | None = None, prewarmer: Prewarmer | None = None
    ) -> None:
        self.engine = Engine(knobs, shadow, prewarmer)
        self.wake_at = inf

    @property
    def cluster(self) -> Cluster:
        return self.engine.cluster

    @property
    def waiting(self) -> Lanes:
        return self.engine.waiting

    @property
    def load(self) -> LoadSwitch:
        return self.engine.load

    def decide(self, now: float, events: Sequence[Event]) -> list[Decision]:
        decisions, self.wake_at = self.engine.decide(now, events)
        return decisions

    def ask(self, now: float, function: str, revision: int, rows: int, deadline_at: float) -> Answer | None:
        """What would become of an invocation that came now; None for an unknown revision."""
        question = QuestionAsked(id="q", function=function, revision=revision, rows=rows, deadline_at=deadline_at)
        (answered,) = self.decide(now, [question])
        assert isinstance(answered, QuestionAnswered) and answered.id == "q"
        return answered.answer

    def bounds(self, now: float, function: str, revision: int) -> FinishBounds | None:
        """By what gateways admit; None for an unknown revision."""
        return self._admission(now, {function: revision}).bounds.get(function)

    def pressed(self, now: float) -> bool:
        return self._admission(now, {}).pressed

    def buckets(self, now: float) -> Sequence[TokenBucket]:
        (status,) = self.decide(now, [StatusDue()])
        assert isinstance(status, PublishStatus) and not status.differing
        return status.buckets

    def _admission(self, now: float, revisions: dict[str, int]) -> PublishAdmission:
        (admission,) = self.decide(now, [AdmissionDue(revisions=revisions)])
        assert isinstance(admission, PublishAdmission)
        return admission
