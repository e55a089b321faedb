"""What the prewarmer keeps of one function."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from scheduler.policy.demand import Demand
from scheduler.policy.prewarm.status import ColdStartReason
from scheduler.policy.prewarm.window import PrewarmRule, WarmWindow
from smore.domain.function import Prewarming


@dataclass(slots=True, eq=False)
class Pending:
    """A load that was asked for: how many instances a report shows once it is under way, and when it is given up."""

    instances: int
    until: float


@dataclass(slots=True, eq=False)
class PrewarmedFunction:
    """
    Times are straightened (clock.py); tables are by row of the cluster.

    ``windows``: what its rule wants from now on; ``silence``: why the rule is not followed, '' = it is; ``source``:
    whose word is. ``minute``: the one in which it was last called, ``count`` times, and ``before`` times in the one
    before that; ``rule_at``: the minute that its rule saw last. ``seen``: it was called before. ``wanted`` and
    ``loaded``: instances as last looked (loading ones included); ``look``: something has changed there since.
    """

    demand: Demand
    mode: Prewarming
    rule: PrewarmRule | None
    due_at: float = inf
    minute: float = -inf
    before: int = 0
    rule_at: float = -inf
    windows: Sequence[WarmWindow] = ()
    silence: str = ColdStartReason.NO_FORECAST
    source: str = ""
    seen: bool = False
    count: int = 0
    wanted: int = 0
    loaded: int = 0
    look: bool = True
    unmet: bool = False
    retry_at: float = -inf
    failures: int = 0
    lost: ColdStartReason | None = None
    lost_at: float = -inf
    #: Instances that a worker keeps for longer than its keep-alive, and until when.
    leased: dict[int, tuple[int, float]] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)
    #: Resident instances as last reported.
    resident: dict[int, int] = field(default_factory=dict)
    #: When instances in host memory go.
    parked: dict[int, Sequence[float]] = field(default_factory=dict)

    @property
    def followed(self) -> Sequence[WarmWindow]:
        """``windows`` while the rule is followed."""
        return () if self.silence else self.windows
