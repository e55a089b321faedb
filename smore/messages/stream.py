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
    version: int


class Arrived(Entry, frozen=True, tag="a"):
    function: str
    revision: int
    id: str
    arrival_us: int
    deadline_us: int
    rows: int
    shape: str
    key_id: str
    trace: str
    #: What the gate held against the deadline: the earliest feasible finish, from arrival; 0 = it knew of none.
    gate_us: int = 0


class Dispatched(Entry, frozen=True, tag="d"):
    function: str
    gpu: str
    at_us: int
    attempts: list[tuple[str, int]]
    decision: str


class Returned(Entry, frozen=True, tag="q"):
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
    alone: int


class Settled(Entry, frozen=True, tag="t"):
    function: str
    revision: int
    id: str
    attempt: int
    starts: int
    state: str
    cause: str
    gpu: str
    arrival_us: int
    deadline_us: int
    claimed_us: int
    started_us: int
    finished_us: int
    rows: int
    key_id: str
    trace: str
    schedule_us: int
    #: smore.messages.results.Execution as JSON, '' where there was none.
    meta: str


class Reported(Entry, frozen=True, tag="r"):
    gpu: str
    at_us: int
    #: JSON, see smore.messages.reports.Report.
    report: str


class CatalogChanged(Entry, frozen=True, tag="c"):
    function: str
    at_us: int


class Stepped(Entry, frozen=True, tag="b"):
    """
    A step of the closed loop of a training's budget (scheduler/policy/budget/controller.py). ``job`` '' = the training has gone.
    """

    gpu: str
    job: str
    at_us: int
    step: str
    duty: float
    #: What predicted losses are multiplied by there from now on.
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


class Warmed(Entry, frozen=True, tag="w"):
    """
    A GPU worker reports a resident model: when it is ready, first used, ended, and every minute between.

    ``id``: of this life, the worker's ``boot`` and a number. ``prewarmed`` 1: it was loaded ahead. ``outcome`` and
    ``why``: see worker/pool/lifecycle.py; '' = it lives. ``load_us``, ``busy_us``, ``idle_us``: so far. ``uses``: runs;
    ``saved``: those that found it only because it was loaded ahead or held for longer than its keep-alive. 0 = did not
    happen. ``host`` 1: it was loaded out of pinned host memory, where its weights had been parked.
    """

    function: str
    revision: int
    gpu: str
    boot: str
    id: str
    prewarmed: int
    outcome: str
    why: str
    at_us: int
    asked_us: int
    ready_us: int
    used_us: int
    ended_us: int
    load_us: int
    busy_us: int
    idle_us: int
    uses: int
    saved: int
    memory_kib: int
    host: int = 0


Event = Arrived | Dispatched | Returned | Settled | Reported | CatalogChanged | Stepped | Asked | Warmed

decode = msgspec.msgpack.Decoder(Event).decode
encode = msgspec.msgpack.Encoder().encode
