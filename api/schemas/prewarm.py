"""How functions are kept loaded, and what that achieved."""

from datetime import datetime

from api.schemas.fields import Schema


class PrewarmHold(Schema):
    """A span in which instances stay loaded."""

    since: datetime
    """From when on they stay loaded"""
    until: datetime | None
    """Until when they stay loaded; null = for ever"""
    instances: int
    """At least so many stay loaded"""


class PrewarmCounts(Schema):
    """
    What keeping instances loaded achieved and cost. Loads ahead of arrivals are counted by outcome: ``hits``, ``late``,
    ``wasted``, ``failed``, ``open``.
    """

    invocations: int = 0
    """How many attempts of invocations ran"""
    cold: int = 0
    """How many of ``invocations`` waited for a load"""
    hits: int = 0
    """Loads ahead that were ready before the first use"""
    late: int = 0
    """Loads ahead for which a request waited"""
    wasted: int = 0
    """Loads ahead that nothing used"""
    failed: int = 0
    """Loads ahead that did not succeed"""
    open: int = 0
    """Loads ahead whose outcome is not known yet"""
    cold_loads: int = 0
    """Loads that a request asked for"""
    host_loads: int = 0
    """Loads of any kind out of pinned host memory"""
    saved: int = 0
    """Runs that found an instance only because it was loaded ahead or held for longer than its keep-alive"""
    held_gb_s: float = 0.0
    """Memory times time of loaded instances, GB-seconds"""
    idle_gb_s: float = 0.0
    """The part of ``held_gb_s`` without work, loads included"""
    wasted_gb_s: float = 0.0
    """The part of ``idle_gb_s`` by instances that were loaded ahead and never used"""
    unforeseen: dict[str, int] = {}
    """How many of ``cold`` there were by reason, as a code"""


class PrewarmFunction(Schema):
    """How one function is kept loaded."""

    function: str
    """The name of the function"""
    mode: str = ""
    """Who decides: ``auto``, ``off`` or ``paper``"""
    source: str = ""
    """The rule that decides now"""
    silence: str = ""
    """Why the rule does not decide and the keep-alive holds; '' = it decides"""
    wanted: int = 0
    """How many instances are to be loaded now"""
    loaded: int = 0
    """How many instances are loaded, or being loaded"""
    unmet: bool = False
    """Whether there is no room for those that are wanted"""
    load_s: float = 0.0
    """Seconds that a load takes, but out of pinned host memory"""
    parked: int = 0
    """How many instances are in pinned host memory"""
    host_s: float = 0.0
    """Seconds that a load from pinned host memory takes"""
    holds: list[PrewarmHold] = []
    """From when until when how many stay loaded"""
    counts: PrewarmCounts
    """What keeping it loaded achieved and cost"""


class Prewarm(Schema):
    """How functions are kept loaded."""

    since: datetime
    """From when on ``counts`` count"""
    leading: bool
    """Whether a leader has reported lately"""
    on: bool = False
    """Whether instances are loaded ahead of arrivals"""
    rule: str = ""
    """The rule of functions with ``prewarm: auto``"""
    share: float = 0.0
    """The fraction of a GPU instance's free memory that idle instances may hold for another one to be loaded ahead"""
    forecasts: int = 0
    """The version of the forecasts in use; 0 = none"""
    jumps: int = 0
    """How often the clock was set since the leader began"""
    counts: PrewarmCounts
    """What all functions together achieved and cost"""
    functions: list[PrewarmFunction]
    """How each function is kept loaded, by name"""
