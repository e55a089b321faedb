"""What gateways admit by, as the leader publishes it: finish bounds of each function, and P where it changed."""

from scheduler.policy.decisions import FinishBounds, PublishAdmission
from smore.redis.queue import Queue
from smore.redis.submission import NEVER_S


class AdmissionBoard:
    """The last publication of the policy, in the words of the gateways (:meth:`Queue.publish_feasible`)."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        #: Function → P as published.
        self._published: dict[str, float] = {}
        #: Function → its bounds as text; P of the functions whose P is not published yet.
        self.bounds: dict[str, str] = {}
        self.priorities: dict[str, float] = {}
        #: Whether budgets limit what is placed, so that bounds must be published oftener.
        self.pressed = False

    def begin(self) -> None:
        """A leader begins: what a former one published is unknown."""
        self._published.clear()
        self.bounds, self.priorities, self.pressed = {}, {}, False

    @property
    def functions(self) -> list[str]:
        """Functions that the last publication named."""
        return list(self._published)

    def forget(self, function: str) -> None:
        """A function was deleted."""
        self._published.pop(function, None)
        self.bounds.pop(function, None)
        self.priorities.pop(function, None)

    def take(self, now: float, admission: PublishAdmission) -> None:
        """A new publication, as of ``now`` (epoch seconds)."""
        stamp = int(now * 1e6)
        self.bounds = {function: _text(stamp, bounds) for function, bounds in admission.bounds.items()}
        for function, priority in admission.priorities.items():
            value = round(priority, 4)
            if self._published.get(function) != value:
                self._published[function] = self.priorities[function] = value
        self.pressed = admission.pressed

    def publish(self) -> None:
        """Publish the bounds; P goes with the next tick (:meth:`ticked`)."""
        self._queue.publish_feasible(self.bounds, {})

    def ticked(self) -> None:
        """A tick has published everything (:meth:`Queue.tick`)."""
        self.priorities = {}


def _text(stamp: int, bounds: FinishBounds) -> str:
    before = map(_microseconds, (bounds.backlog_s, bounds.floor_s, bounds.each_s))
    after = map(_microseconds, (bounds.cold_s, bounds.row_s, bounds.alone_s))
    kept_out = bounds.quarantined or ""
    return ":".join(map(str, (stamp, *before, bounds.counted, *after, bounds.busy, kept_out)))


def _microseconds(seconds: float) -> int:
    """Whole microseconds, whatever the estimate: digits are all that gateways read. From NEVER_S on it is never."""
    return int(min(max(0.0, seconds), NEVER_S) * 1e6)
