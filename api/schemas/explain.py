"""Why an invocation ended as it did, and what would become of another one."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from api.schemas.invocations import Degradation
from smore.domain.invocation import State


class Candidate(BaseModel):
    """
    One GPU instance as a decision weighed it. Seconds: ``delay_s`` until it could start, ``run_s`` of the invocation
    alone. ``impact``: what the policy orders candidates by. Degradations are fractions as in ``Degradation``. null =
    unknown. ``refusal``: the code of why it was not acceptable, null = it was.
    """

    gpu: str
    warm: bool
    delay_s: float | None = None
    run_s: float | None = None
    finish_at: datetime | None = None
    impact: float | None = None
    function_degradation: float | None = None
    function_degradation_upper: float | None = None
    training_degradation: float | None = None
    training_degradation_upper: float | None = None
    known: bool = False
    refusal: str | None = None


class Shadow(BaseModel):
    """Where a shadow policy, which decides nothing, would have placed the batch; ``gpu`` null = nowhere."""

    policy: str
    gpu: str | None = None


class Decision(BaseModel):
    """
    The reasons of one decision. ``candidates``: the best of them, the chosen one first; ``refused``: how many GPU
    instances were refused, by code; ``table``: the version of the degradation table, 0 = none.
    """

    at: datetime | None = None
    policy: str
    table: int
    seed: int
    priority: float | None = None
    candidates: list[Candidate]
    refused: dict[str, int]
    shadow: Shadow | None = None


class Phases(BaseModel):
    """
    Milliseconds, null = not (yet) known: as in ``Server-Timing``, and ``other``: the wait for an instance and for the
    run gate, and the way of the result. ``loading``: the parts of a cold start.
    """

    queue: float | None = None
    schedule: float | None = None
    dispatch: float | None = None
    load: float | None = None
    run: float | None = None
    other: float | None = None
    loading: dict[str, float] = {}


class Side(BaseModel):
    """
    What was predicted of an attempt, or what was measured. ``slack_s``: seconds from its finish to its deadline,
    negative = late. ``*_upper``: the bound that holds for 90 %, of a prediction only; ``known``: the prediction is from
    the degradation table.
    """

    run_s: float | None = None
    finish_at: datetime | None = None
    slack_s: float | None = None
    function_degradation: float | None = None
    function_degradation_upper: float | None = None
    training_degradation: float | None = None
    training_degradation_upper: float | None = None
    known: bool | None = None


class Attempt(BaseModel):
    """
    One attempt: its decision, where its time went, and what was predicted of it against what was measured. ``job_names``:
    of those of its ``jobs`` that are of its project. ``finished_at``: when it ended, null = it has not; the state
    ``queued`` says that the invocation waited again then. ``worker_seen_at``: its worker was lost (it died, or was cut
    off), and had reported last in the second from then.
    """

    attempt: int
    gpu: str
    state: State
    cause: str = ""
    cold: bool | None = None
    batch: int | None = None
    rows: int | None = None
    co_runners: list[str] = []
    jobs: list[str] = []
    job_names: dict[str, str] = {}
    finished_at: datetime | None = None
    worker_seen_at: datetime | None = None
    phases_ms: Phases
    predicted: Side | None = None
    measured: Side
    decision: Decision | None = None


class GateKnew(BaseModel):
    """
    Admission compared ``needed_ms`` (the earliest feasible finish) with ``allowed_ms`` (the deadline), both from
    arrival; ``now_ms``: what an invocation would need that arrives now, null also while nothing could be placed (all is
    paused, say). null = unknown.
    """

    allowed_ms: float
    needed_ms: float | None = None
    now_ms: float | None = None


class Waits(BaseModel):
    """
    Why an invocation waits. ``before``: how many of its function have earlier deadlines; ``decision``: how the
    scheduler sees the GPU instances now, null = it did not answer; ``detail``: the same in words.
    """

    before: int
    paused: str = ""
    decision: Decision | None = None
    detail: str


class Explanation(BaseModel):
    """
    Why an invocation went as it did. ``summary``: in words; ``slack_s``: seconds from its finish to its deadline;
    ``complete`` false: the history does not have all of it yet, ask again; ``traceback``: of an error that its handler
    raised, as long as its result is kept.
    """

    id: str
    function: str
    revision: int
    state: State
    cause: str = ""
    summary: str
    traceback: str = ""
    rows: int
    arrival_at: datetime
    deadline_at: datetime
    finished_at: datetime | None = None
    slack_s: float | None = None
    gate: GateKnew
    waits: Waits | None = None
    attempts: list[Attempt]
    complete: bool


class DryRun(BaseModel):
    """
    What would become of an invocation; nothing was placed.

    ``outcome``: ``placed`` (at once, on ``gpu``), ``waits`` (taken, and placed when what ``decision.refused`` names has
    changed; then ``finish_at`` counts what waits before it), ``refused`` (by the gate), ``late`` (taken, and would
    expire). ``reason`` is a stable code, '' where it would be placed: the ``code`` of the error that an invocation
    would get (``draining``, ``quarantined``, ``limit_reached``, ``queue_full``, ``slo_infeasible``,
    ``deadline_expired``) or what it would wait for (``paused``, or as ``decision.refused`` names it:
    ``pinned`` where there are no GPU instances but those that it may not go to). ``feasible``: its deadline can be met
    as things are; false where it would wait for somebody to end a pause, a drain or a pin. ``predicted``: of itself and of
    the training there. ``earliest_deadline_*``: the earliest deadline that would be accepted, from now and as an
    instant, null = not known or not a matter of time.
    """

    outcome: Literal["placed", "waits", "late", "refused"]
    reason: str = ""
    feasible: bool
    detail: str
    gpu: str | None = None
    cold: bool | None = None
    start_at: datetime | None = None
    finish_at: datetime | None = None
    deadline_at: datetime
    predicted: Degradation | None = None
    earliest_deadline_ms: float | None = None
    earliest_deadline_at: datetime | None = None
    decision: Decision
