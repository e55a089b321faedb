"""
The events of the stream, which the leader and the history read.

Every entry is one msgpack array ``[tag, version, …]``, its fields in the order of the class here: the Lua scripts get
the names from these classes (smore/redis/scripts.py), other writers use :data:`encode`. A reader accepts its own
version and the one before (there is only version 1 so far). Times are integer microseconds of Redis' clock; ids are
text.
"""

import msgspec

VERSION = 1


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    #: Of the entry's format.
    version: int


class Arrived(Entry, frozen=True, tag="a"):
    """An invocation was accepted and waits in its function's queue."""

    function: str
    revision: int
    id: str
    arrival_us: int
    deadline_us: int
    rows: int
    shape: str
    key_id: str
    trace: str
    #: The earliest feasible finish that the admission gate compared with the deadline, counted from the arrival; 0 = none
    #: was published.
    gate_us: int = 0
    #: 1: it is of class batch.
    bulk: int = 0


class Dispatched(Entry, frozen=True, tag="d"):
    """The leader claimed the invocations of one batch and sent them to a GPU instance."""

    function: str
    gpu: str
    at_us: int
    #: Id and number of the attempt, of each invocation of the batch.
    attempts: list[tuple[str, int]]
    #: The decision with its reasons, as JSON.
    decision: str


class Returned(Entry, frozen=True, tag="q"):
    """An attempt ended without a result, and its invocation waits in the queue again."""

    function: str
    revision: int
    id: str
    attempt: int
    cause: str
    gpu: str
    at_us: int
    arrival_us: int
    deadline_us: int
    rows: int
    shape: str
    #: 1: it must run in a batch of its own.
    alone: int
    #: 1: it is of class batch.
    bulk: int = 0


class Settled(Entry, frozen=True, tag="t"):
    """An invocation reached a final state: it succeeded, failed, expired or was cancelled."""

    function: str
    revision: int
    id: str
    attempt: int
    #: Attempts in which user code began.
    starts: int
    #: The final state.
    state: str
    cause: str
    gpu: str
    arrival_us: int
    deadline_us: int
    #: When the leader claimed it; 0 = never.
    claimed_us: int
    #: When a GPU worker began its last attempt; 0 = never.
    started_us: int
    finished_us: int
    rows: int
    key_id: str
    trace: str
    #: How long the leader's round had taken when it dispatched the last attempt; 0 = never dispatched.
    schedule_us: int
    #: ``smore.messages.results.Execution`` as JSON; '' where nothing ran.
    meta: str


class Reported(Entry, frozen=True, tag="r"):
    """A GPU worker reports the state of its GPU instance: memory, warm instances, trainings, health."""

    gpu: str
    at_us: int
    #: ``smore.messages.reports.Report`` as JSON.
    report: str


class CatalogChanged(Entry, frozen=True, tag="c"):
    """A function was deployed, changed, rolled back or deleted: readers read it again from the catalog."""

    function: str
    at_us: int


class Stepped(Entry, frozen=True, tag="b"):
    """The controller of a training's budget (scheduler/policy/budget/controller.py) took another step."""

    gpu: str
    #: The training's id; '' = the training has gone.
    job: str
    at_us: int
    #: How far functions are kept from the training now (controller.py: Step).
    step: str
    #: The part of the time in which functions may run there from now on.
    duty: float
    #: The cost correction from now on: predicted costs are multiplied by it.
    factor: float


class Asked(Entry, frozen=True, tag="k"):
    """
    A gateway asks the leader what would become of an invocation; the answer goes to a list of its own
    (smore/messages/reasons.py: DryRunAnswer).
    """

    id: str
    function: str
    revision: int
    rows: int
    deadline_us: int
    at_us: int
    #: 1: it is of class batch.
    bulk: int = 0


class Wanted(Entry, frozen=True, tag="n"):
    """
    A call was refused because no instance stood ready, and would have been in time with one; at most one a second and
    function is told.
    """

    function: str
    revision: int
    at_us: int


class Warmed(Entry, frozen=True, tag="w"):
    """A GPU worker reports a warm instance: when it is ready, when it is first used, each minute, and when it ends."""

    function: str
    revision: int
    gpu: str
    #: Of the worker's process.
    boot: str
    #: Of the instance: ``boot`` and a number.
    id: str
    #: 1: it was loaded before any request needed it.
    prewarmed: int
    #: What its load ahead came to: open, hit, late, wasted or failed; cold = a request asked for the load.
    outcome: str
    #: What ended it (worker/pool/lifecycle.py: Ending); '' = it lives.
    why: str
    at_us: int
    #: When its load was asked for.
    asked_us: int
    #: When it could serve; 0 = not yet.
    ready_us: int
    #: When it first ran; 0 = not yet.
    used_us: int
    #: When it ended; 0 = it lives.
    ended_us: int
    #: How long its load took.
    load_us: int
    #: How long it has run, so far.
    busy_us: int
    #: How long it has waited for a run, so far.
    idle_us: int
    #: Runs so far.
    uses: int
    #: Runs that were warm only because it was loaded ahead or kept for longer than its keep-alive.
    saved: int
    memory_kib: int
    #: 1: its weights came from pinned host memory, where they were parked.
    host: int = 0


Event = Arrived | Dispatched | Returned | Settled | Reported | CatalogChanged | Stepped | Asked | Wanted | Warmed

decode = msgspec.msgpack.Decoder(Event).decode
encode = msgspec.msgpack.Encoder().encode
