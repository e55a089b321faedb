"""How a function is kept ready, for people."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: The source of a forecast without numbers: the function's own gaps foresee more than any forecaster, so that a rule
#: goes by those.
OWN: Final = "gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmStatus:
    """
    ``mode``: a :class:`~smore.domain.function.Prewarming`; ``silence``: why the function's rule is not followed and its
    keep-alive holds, '' = it is followed; ``source``: whose forecast or rule is. ``holds``: windows (from, until,
    instances) in epoch seconds, until None = for ever. ``loaded``: instances that there are, those on their way
    included; ``unmet``: there is no room for what is wanted. ``parked`` instances lie in host memory, from where a load
    takes ``host_s`` and not ``load_s`` seconds.
    """

    function: str
    revision: int
    mode: str
    source: str
    silence: str
    wanted: int
    loaded: int
    unmet: bool
    load_s: float
    holds: Sequence[tuple[float, float | None, int]]
    parked: int = 0
    host_s: float = 0.0
