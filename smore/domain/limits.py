"""Limits of a project, which all of its keys share. smore/redis/lua/common.lua checks those of invocations."""

from dataclasses import asdict, dataclass
from typing import Any, Final


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
