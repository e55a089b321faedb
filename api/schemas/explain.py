"""Why an invocation ended as it did, and what would become of another one."""

from datetime import datetime
from typing import Literal

from api.schemas.fields import Schema
from api.schemas.invocations import Degradation, Tried
from smore.domain.invocation import State


class Candidate(Schema):
    """
    One GPU instance as a decision weighed it. Degradations are fractions: 0.1 = ten per cent slower. null = unknown.
    """

    gpu: str
    """The name of the GPU instance"""
    warm: bool
    """Whether an idle instance of the function stood ready there"""
    delay_s: float | None = None
    """Seconds until the invocation could start there"""
    run_s: float | None = None
    """Seconds of its run there with nothing beside it"""
    finish_at: datetime | None = None
    """When it would have ended there"""
    impact: float | None = None
    """What the batch would cost the training, itself and the other batches there, weighed; the least is the best"""
    function_degradation: float | None = None
    """How much slower the function runs there than alone"""
    function_degradation_upper: float | None = None
    """The bound of ``function_degradation`` that holds for 90 %"""
    training_degradation: float | None = None
    """How much slower the training there becomes because of all functions beside it"""
    training_degradation_upper: float | None = None
    """The bound of ``training_degradation`` that holds for 90 %"""
    known: bool = False
    """Whether the degradations are from the degradation table, not declared or assumed"""
    refusal: str | None = None
    """The code of why it was not acceptable; null = it was"""


class Shadow(Schema):
    """Where a shadow policy, which decides nothing, would have placed the batch."""

    policy: str
    """The name of the shadow policy"""
    gpu: str | None = None
    """The GPU instance that it would have chosen; null = none"""


class Decision(Schema):
    """The reasons of one decision."""

    at: datetime | None = None
    """When it was decided; null in a dry run"""
    policy: str
    """The name of the policy that decided"""
    table: int
    """The version of the degradation table that it used; 0 = none"""
    seed: int
    """The seed of the policy's random choices"""
    priority: float | None = None
    """The function's priority then; null = the policy has none"""
    candidates: list[Candidate]
    """The best of the GPU instances that were weighed, the chosen one first"""
    refused: dict[str, int]
    """How many GPU instances were refused, by the code of the reason"""
    shadow: Shadow | None = None
    """Where a shadow policy would have placed the batch; null = there is none"""
    work_class: Literal["batch", "urgent"] | None = None
    """Of work of class batch, whether it was in its turn because of its deadline; null = it is of class standard"""


class Phases(Schema):
    """Milliseconds of an attempt by phase, as in ``Server-Timing``; null = not (yet) known."""

    queue: float | None = None
    """From the arrival, or from the end of the attempt before, to the claim by the scheduler, without ``schedule``"""
    schedule: float | None = None
    """What the decision itself took"""
    dispatch: float | None = None
    """From the decision until the GPU worker started on it"""
    load: float | None = None
    """Loading the function; 0 = an instance stood ready"""
    run: float | None = None
    """The run of the handler"""
    other: float | None = None
    """The wait for an instance and for the run gate, and the way of the result"""
    loading: dict[str, float] = {}
    """The parts of the load of a cold start, by name"""


class Side(Schema):
    """What was predicted of an attempt, or what was measured. Degradations are fractions: 0.1 = ten per cent slower."""

    run_s: float | None = None
    """Seconds of the run, with what slowed it down"""
    finish_at: datetime | None = None
    """When it would end, or ended"""
    slack_s: float | None = None
    """Seconds from its finish to its deadline; negative = late"""
    function_degradation: float | None = None
    """How much slower the function ran, or would run, than alone"""
    function_degradation_upper: float | None = None
    """The bound of ``function_degradation`` that holds for 90 %; of a prediction only"""
    training_degradation: float | None = None
    """How much slower the training beside it became, or would become"""
    training_degradation_upper: float | None = None
    """The bound of ``training_degradation`` that holds for 90 %; of a prediction only"""
    known: bool | None = None
    """Whether the prediction is from the degradation table; null = measured"""


class Attempt(Tried):
    """One attempt: its decision, where its time went, and what was predicted of it against what was measured."""

    job_names: dict[str, str] = {}
    """The names of those of ``jobs`` that are of its project, by id"""
    worker_seen_at: datetime | None = None
    """
    Its worker was lost (it died, or was cut off), and had reported last in the second from then; null = it was not
    """
    phases_ms: Phases
    """Where its time went, phase by phase"""
    predicted: Side | None = None
    """What the decision expected of it; null = no decision is known"""
    measured: Side
    """What it came to; a null member was not measured"""
    decision: Decision | None = None
    """The decision that placed it, with its reasons; null = not known"""


class GateKnew(Schema):
    """What admission compared: times from arrival. null = unknown."""

    allowed_ms: float
    """Milliseconds that the deadline left"""
    needed_ms: float | None = None
    """Milliseconds until the earliest feasible finish"""
    now_ms: float | None = None
    """What an invocation would need that arrives now; null also while nothing could be placed (all is paused, say)"""


class Waits(Schema):
    """Why an invocation waits."""

    before: int
    """How many invocations of its function have earlier deadlines"""
    paused: str = ""
    """``function`` or ``platform`` where that is paused, else ''"""
    decision: Decision | None = None
    """How the scheduler sees the GPU instances now; null = it did not answer"""
    detail: str
    """What it waits for, in words"""


class Explanation(Schema):
    """Why an invocation went as it did."""

    id: str
    """The id of the explained invocation"""
    function: str
    """The name of the function that it called"""
    revision: int
    """The number of the revision that ran, or is to run"""
    state: State
    """Where it stands, or how it ended"""
    cause: str = ""
    """The code of why it ended as it did, ``ok`` = it succeeded; '' = it has not ended"""
    summary: str
    """What became of it, in a few sentences"""
    traceback: str = ""
    """Of an error that its handler raised, as long as its result is kept"""
    rows: int
    """How many rows its input has; of JSON values 1"""
    arrival_at: datetime
    """When the request reached the gateway"""
    deadline_at: datetime
    """Until when it must have ended"""
    finished_at: datetime | None = None
    """When it ended; null = it has not"""
    slack_s: float | None = None
    """Seconds from its finish to its deadline; negative = late, null = it has not ended"""
    gate: GateKnew
    """What admission compared when it arrived"""
    waits: Waits | None = None
    """What it waits for; null = it does not wait"""
    attempts: list[Attempt]
    """Its attempts, the first one first"""
    complete: bool
    """Whether the history has all of it; false: ask again"""


class DryRun(Schema):
    """What would become of an invocation; nothing was placed."""

    outcome: Literal["placed", "waits", "late", "refused"]
    """
    ``placed`` (at once, on ``gpu``), ``waits`` (taken, and placed when what ``decision.refused`` names has changed),
    ``refused`` (by the gate), ``late`` (taken, and would expire)
    """
    reason: str = ""
    """
    A stable code, '' where it would be placed: the ``code`` of the error that an invocation would get (``draining``,
    ``quarantined``, ``limit_reached``, ``queue_full``, ``slo_infeasible``, ``deadline_expired``) or what it would wait
    for (``paused``, or as ``decision.refused`` names it: ``pinned`` where there are no GPU instances but those that it
    may not go to)
    """
    feasible: bool
    """
    Whether its deadline can be met as things are; false where it would wait for somebody to end a pause, a drain or a
    pin
    """
    detail: str
    """The outcome and its reason, in words"""
    gpu: str | None = None
    """Where it would run at once; null = nowhere yet"""
    cold: bool | None = None
    """Whether the function would have to be loaded there first; null = it would not be placed at once"""
    start_at: datetime | None = None
    """When it would start; null = it would not be placed at once"""
    finish_at: datetime | None = None
    """When it would end; of one that ``waits`` this counts what waits before it; null = not known"""
    deadline_at: datetime
    """Until when it would have to end"""
    predicted: Degradation | None = None
    """What it and the training there would cost each other; null = it would not be placed at once"""
    earliest_deadline_ms: float | None = None
    """The earliest deadline that would be accepted, milliseconds from now; null = not known, or not a matter of time"""
    earliest_deadline_at: datetime | None = None
    """``earliest_deadline_ms`` as an instant"""
    decision: Decision
    """How the scheduler sees the GPU instances now"""
