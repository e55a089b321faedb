"""How functions are kept loaded, and what that achieved."""

from datetime import datetime

from pydantic import BaseModel


class PrewarmHold(BaseModel):
    """At least ``instances`` stay loaded from ``since`` on; ``until`` null = for ever."""

    since: datetime
    until: datetime | None
    instances: int


class PrewarmCounts(BaseModel):
    """
    What keeping instances loaded achieved and cost. Loads ahead by outcome: ``hits`` (ready before the first use),
    ``late`` (a request waited for it), ``wasted``, ``failed``, ``open``. ``cold``: how many of ``invocations`` attempts
    waited for a load, ``unforeseen``: why, by code; ``cold_loads``: loads that a request waited for; ``host_loads``:
    loads from pinned host memory; ``saved``: runs that found an instance only because it was loaded ahead or held for
    longer than its keep-alive. GB-seconds of memory: ``held`` in all, ``idle`` without work (loads included),
    ``wasted`` by instances that were loaded ahead and never used.
    """

    invocations: int = 0
    cold: int = 0
    hits: int = 0
    late: int = 0
    wasted: int = 0
    failed: int = 0
    open: int = 0
    cold_loads: int = 0
    host_loads: int = 0
    saved: int = 0
    held_gb_s: float = 0.0
    idle_gb_s: float = 0.0
    wasted_gb_s: float = 0.0
    unforeseen: dict[str, int] = {}


class PrewarmFunction(BaseModel):
    """
    How one function is kept loaded. ``mode``: auto, off or paper; ``source``: the rule that decides; ``silence``: why
    the rule does not decide and the keep-alive holds, '' = it decides. ``wanted`` instances, ``loaded`` or loading
    ones; ``unmet``: there is no room for those that are wanted. ``parked`` instances are in pinned host memory, from
    where a load takes ``host_s`` seconds instead of ``load_s``.
    """

    function: str
    mode: str = ""
    source: str = ""
    silence: str = ""
    wanted: int = 0
    loaded: int = 0
    unmet: bool = False
    load_s: float = 0.0
    parked: int = 0
    host_s: float = 0.0
    holds: list[PrewarmHold] = []
    counts: PrewarmCounts


class Prewarm(BaseModel):
    """
    How functions are kept loaded. ``leading`` false: no leader has reported lately; ``forecasts``: the version in use,
    0 = none; ``jumps``: how often the clock was set since the leader began; ``counts``: over all functions since
    ``since``.
    """

    since: datetime
    leading: bool
    on: bool = False
    rule: str = ""
    share: float = 0.0
    forecasts: int = 0
    jumps: int = 0
    counts: PrewarmCounts
    functions: list[PrewarmFunction]
