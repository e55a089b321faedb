"""What the policy wants done, each with its reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from scheduler.policy import kernel
from scheduler.policy.kernel import Floats
from smore.domain.candidate import Candidate, Shadow
from smore.domain.invocation import End
from smore.domain.learned import Learned, LearnedCost
from smore.domain.loss import Step
from smore.domain.prewarming import PrewarmStatus


class Refusal(StrEnum):
    """Why a GPU instance was not chosen."""

    GONE = "gone"
    PAUSED = "paused"
    NO_SLOT = "no_slot"
    QUARANTINED = "quarantined"
    BUSY = "busy"
    MEMORY = "memory"
    SM = "sm"
    BESIDE_TRAINING = "beside_training"
    BUDGET = "budget"
    DEGRADATION = "degradation"
    OTHERS_DEADLINE = "others_deadline"
    DEADLINE = "deadline"
    PROTECTED = "protected"
    PINNED = "pinned"
    DRAINED = "drained"
    YIELDS = "yields"


#: The kernel's numbers in words.
REFUSALS: Mapping[int, Refusal] = {
    kernel.GONE: Refusal.GONE,
    kernel.IS_PAUSED: Refusal.PAUSED,
    kernel.NO_SLOT: Refusal.NO_SLOT,
    kernel.IS_QUARANTINED: Refusal.QUARANTINED,
    kernel.BUSY: Refusal.BUSY,
    kernel.NO_MEMORY: Refusal.MEMORY,
    kernel.NO_SM: Refusal.SM,
    kernel.BESIDE_TRAINING: Refusal.BESIDE_TRAINING,
    kernel.OVER_BUDGET: Refusal.BUDGET,
    kernel.TOO_SLOW: Refusal.DEGRADATION,
    kernel.BREAKS_OTHERS: Refusal.OTHERS_DEADLINE,
    kernel.TOO_LATE: Refusal.DEADLINE,
    kernel.IS_PROTECTED: Refusal.PROTECTED,
    kernel.IS_ELSEWHERE: Refusal.PINNED,
    kernel.IS_DRAINED: Refusal.DRAINED,
    kernel.YIELDS: Refusal.YIELDS,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reasons:
    """
    Why a decision came out as it did: the best candidates, the chosen one first, and how many were refused for what.

    ``numbers`` [C, kernel.CANDIDATE_FIELDS], ``counts`` [kernel codes] as the kernel left them: words are made where
    they are read.
    """

    policy: str
    table_version: int
    seed: int
    priority: float
    run_s: float
    load_s: float
    #: A load where it comes out of host memory.
    host_s: float
    names: Sequence[str]
    numbers: Floats
    counts: Sequence[int]
    shadow: Shadow | None = None
    #: Of a cold start, why no instance stood ready (prewarm/status.py: ColdStartReason).
    unforeseen: str = ""
    #: ``batch`` or ``urgent`` where it is bulk work; '' = it has users waiting.
    work_class: str = ""

    @property
    def candidates(self) -> list[Candidate]:
        candidates = []
        for name, line in zip(self.names, self.numbers.tolist(), strict=True):
            why, state, finish, impact, own, own_upper, training, training_upper, known = line
            warm, delay_s = state >= 0, self.host_s if state == kernel.HOST else self.load_s
            candidates.append(
                Candidate(
                    name,
                    warm,
                    0.0 if warm else delay_s,
                    self.run_s,
                    finish,
                    impact,
                    own,
                    own_upper,
                    training,
                    training_upper,
                    known > 0,
                    REFUSALS.get(int(why)),
                )
            )
        return candidates

    @property
    def refused(self) -> dict[Refusal, int]:
        return {REFUSALS[code]: count for code, count in enumerate(self.counts) if code and count}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reasons):
            return NotImplemented
        mine, theirs = (
            (
                reasons.policy,
                reasons.table_version,
                reasons.seed,
                reasons.priority,
                reasons.candidates,
                reasons.refused,
                reasons.shadow,
                reasons.unforeseen,
                reasons.work_class,
            )
            for reasons in (self, other)
        )
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    What would become of an invocation that came now, with nothing placed.

    ``row_gpu``: where it would go, None = nowhere so far; ``start_at`` and ``finish_at`` there (epoch seconds; nan
    where nowhere). ``earliest_deadline_at``: the earliest deadline that would be accepted as things are, None where
    another reason than time stands against it everywhere. ``budget_s``: seconds until the budgets of trainings allow it.
    ``yield_s``: for how long a run of bulk work may go on where only that stands against it, None = nowhere.
    """

    row_gpu: str | None
    cold: bool
    start_at: float
    finish_at: float
    earliest_deadline_at: float | None
    reasons: Reasons
    budget_s: float
    yield_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """
    Send ``attempts`` (id, attempt known so far) of one revision to a GPU instance as one batch. ``ahead_s``: seconds for
    which it may wait there for the first instance that becomes free, 0 = one is idle or is loaded for it.
    """

    function: str
    revision: int
    gpu: str
    attempts: Sequence[tuple[str, int]]
    cold: bool
    reasons: Reasons
    ahead_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarm:
    """
    Load what is missing of so many instances of a revision before anything can run there, and hold them until
    ``until_at`` (epoch seconds; 0 = for their keep-alive).
    """

    function: str
    revision: int
    gpu: str
    instances: int = 1
    until_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """
    A step of the closed loop of a budget: functions may work for ``duty`` of the time on a GPU instance, 1 = as they
    like.

    ``job``: the training on whose account, '' = it has gone; ``factor``: what predicted losses are multiplied by from
    now on.
    """

    gpu: str
    step: Step
    duty: float
    job: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """
    Unload a revision's idle instances from a GPU instance until ``keep`` are left. ``gone``: nothing of it stays in
    host memory either.
    """

    function: str
    revision: int
    gpu: str
    keep: int = 0
    gone: bool = False


class FinishBounds(NamedTuple):
    """
    When a new invocation of a function could end, seconds from now: ``backlog_s`` behind what waits, ``floor_s`` on an
    idle platform.

    ``each_s``: how much later for each further invocation of the function that waits beside the ``counted`` ones.
    ``cold_s``: behind a cold start, where no instance stands ready (inf: no GPU instance could load it now; 0: one
    stands ready). The gate does not admit by it, but a refusal promises nothing earlier. ``row_s``: how much later for
    each further row of it.

    ``alone_s``: with nothing before it, as things are; it holds where none waits and fewer than ``busy`` batches of the
    revision are under way. ``quarantined``: the revision, where all GPU instances keep it out; 0 = not so.
    """

    backlog_s: float
    floor_s: float
    each_s: float
    counted: int
    cold_s: float = 0.0
    row_s: float = 0.0
    alone_s: float = 0.0
    busy: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswered:
    """The answer to the question ``id``; ``answer`` and ``bounds`` are None for an unknown revision."""

    id: str
    answer: Answer | None
    bounds: FinishBounds | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishAdmission:
    """
    What gateways admit by, by function: finish bounds (unknown revisions are missing) and P (Eq. 5).

    ``pressed``: budgets of trainings limit what is placed, so that the bounds change with each run.
    """

    bounds: Mapping[str, FinishBounds]
    priorities: Mapping[str, float]
    pressed: bool


class TokenBucket(NamedTuple):
    """
    The budget of a training as it stands: ``factor`` multiplies predicted costs on that GPU instance, ``tokens_s`` is
    the training time that functions may still cost, seconds (a debt is negative).
    """

    gpu: str
    factor: float
    tokens_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStatus:
    """
    ``waiting``: how many invocations wait, by function that has any; ``buckets``: of each GPU instance with a training;
    ``differing``: entries of the arrays that differ from a fresh count, of which each is a defect; ``yields``: the longest
    run of bulk work that is allowed on each GPU instance that bounds it, seconds.
    """

    waiting: Mapping[str, int]
    buckets: Sequence[TokenBucket]
    differing: int
    yields: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPrewarmStatus:
    """How each function is kept ready; ``clock_steps``: steps of the clock so far that were no passing of time."""

    functions: Sequence[PrewarmStatus]
    clock_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishLearned:
    """
    What was learned of functions since it was kept last; and, whether it has changed or not, of what they cost trainings,
    by GPU instance and training.
    """

    functions: Mapping[str, Learned]
    costs: Mapping[str, Mapping[str, LearnedCost]]


#: What changes queues and workers, and what is only published.
Action = Dispatch | End | Prewarm | Throttle | Offload
Publication = QuestionAnswered | PublishAdmission | PublishStatus | PublishPrewarmStatus | PublishLearned
Decision = Action | Publication
