"""Limits of a project, which all of its keys share. smore/redis/lua/common.lua checks those of invocations."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from smore.domain.errors import InvalidSpec
from smore.domain.job import MOST_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    None = no limit.

    ``rate_per_s``: invocations accepted a second, over time; ``burst``: how many of them at once (None = 1); ``depth``:
    invocations that wait; ``concurrency``: invocations that wait or run; ``warm_memory_mib``: memory of all warm
    instances together, MiB; ``jobs``: trainings that wait or run (None = as the platform's settings say);
    ``job_memory_mib``: what is kept for them on all GPU instances together, MiB; ``gpus``: GPU instances that they hold at
    a time; ``weight``: of two trainings that wait, the expected time left is divided by their projects' weights (None =
    1); ``share``: what another training may cost one of its trainings whose owner says nothing (JobRequest.share; None =
    0, nobody trains beside it).
    """

    rate_per_s: float | None = None
    burst: int | None = None
    depth: int | None = None
    concurrency: int | None = None
    warm_memory_mib: float | None = None
    jobs: int | None = None
    job_memory_mib: float | None = None
    gpus: int | None = None
    weight: float | None = None
    share: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The limits that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


NO_LIMITS: Final = Limits()

_LEAST: Final = {
    "rate_per_s": 0.001,
    "burst": 1,
    "depth": 0,
    "concurrency": 0,
    "warm_memory_mib": 0.0,
    "jobs": 0,
    "job_memory_mib": 0.0,
    "gpus": 0,
    "weight": 0.01,
    "share": 0.0,
}
_MOST: Final = 1e9
_MOSTS: Final = {"share": MOST_SHARE}


def parse_limits(raw: Mapping[str, Any]) -> Limits:
    """Raises InvalidSpec that names the field."""
    names = [field.name for field in fields(Limits)]
    for name, value in raw.items():
        if name not in names:
            raise InvalidSpec(f"{name}: there is no such limit; there are {', '.join(names)}", field=name)
        if value is None:
            continue
        whole = name in ("burst", "depth", "concurrency", "jobs", "gpus")
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not math.isfinite(value):
            raise InvalidSpec(f"{name}: a {'whole ' if whole else ''}number is expected", field=name)
        most = _MOSTS.get(name, _MOST)
        if not _LEAST[name] <= value <= most:
            raise InvalidSpec(f"{name}: {value:g} is not from {_LEAST[name]:g} to {most:g}", field=name)
    if raw.get("burst") is not None and raw.get("rate_per_s") is None:
        raise InvalidSpec("burst: it needs a rate_per_s", field="burst")
    return Limits(**raw)
