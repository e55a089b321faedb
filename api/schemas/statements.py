"""What functions and other trainings cost a training, over its whole time."""

from datetime import datetime

from api.schemas.fields import Schema
from api.schemas.jobs import Beside
from smore.domain.job import BudgetStep
from smore.domain.loss import Verdict


class BudgetSpan(Schema):
    """A budget that held for a while, and what functions cost the job then."""

    since: datetime
    """From when on the budget held"""
    until: datetime
    """Until when the budget held"""
    budget: float
    """The most that the job might lose to functions then, a fraction of its iteration time"""
    windows: int
    """How many closed windows of that time ``loss`` rests on"""
    loss: float | None = None
    """What functions cost it then, a fraction of its iteration time; null = not enough data"""
    loss_low: float | None = None
    """Lower bound of the 95 % interval of ``loss``"""
    loss_high: float | None = None
    """Upper bound of the 95 % interval of ``loss``"""
    verdict: Verdict
    """Whether the budget was kept, as in a statement"""


class Statement(Schema):
    """
    What a job gave and lost, over all its attempts. Of several ranks the one with the highest bound counts. Each budget
    is judged by the windows of its own time.
    """

    id: str
    """The id of the job"""
    name: str
    """The name that the job had"""
    state: str
    """The state of the job, as ``Job`` has it"""
    budget: float
    """The most that it may lose to functions, a fraction of its iteration time"""
    since: datetime | None = None
    """When its first attempt started, with which the account begins; null = none has"""
    until: datetime | None = None
    """When it ended; of one that goes on now"""
    harvested_s: float = 0.0
    """Seconds of its GPU instances in which functions ran beside it; a batch counts once"""
    harvested_since: datetime | None = None
    """From when on the history has what functions ran"""
    invocations: int = 0
    """How many invocations ran beside it in ``harvested_s``"""
    windows: int = 0
    """How many closed windows of all attempts ``loss`` rests on"""
    loss: float | None = None
    """What functions cost it, a fraction of its iteration time; 0 where none ran, null = not enough data"""
    loss_low: float | None = None
    """Lower bound of the 95 % interval of ``loss``"""
    loss_high: float | None = None
    """Upper bound of the 95 % interval of ``loss``"""
    kept: bool | None = None
    """Whether ``loss_high`` is within the budget; null = not enough data"""
    verdict: Verdict
    """
    ``kept`` or ``not_kept``, with 95 % confidence; ``not_proven``: more closed windows are needed; ``unmeasured``: its
    iterations are not compared. Where one of ``past_budgets`` was not kept it is ``not_kept`` for good
    """
    missing_windows: int = 0
    """Closed windows under ``budget`` that are missing for a loss"""
    missing_s: float | None = None
    """About how many seconds ``missing_windows`` take; null = cannot be told yet"""
    windows_to_go: int | None = None
    """
    Closed windows under ``budget`` until it is proven if loss and scatter stay as they are, which jumps while the
    interval is wide; null = it cannot be told, or the job is over
    """
    to_go_s: float | None = None
    """About how many seconds ``windows_to_go`` take; null = cannot be told, or the job is over"""
    past_budgets: list[BudgetSpan] = []
    """The budgets that held before, the first one first"""
    steps: list[BudgetStep] = []
    """The last hundred steps of the closed loop, the newest first"""
    beside: list[Beside] = []
    """
    The other trainings with which it shared GPU instances, the first ones first; ``loss`` to functions says nothing of
    those
    """
    summary: str
    """What it gave and lost, in one line"""
