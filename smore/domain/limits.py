"""Limits of a project, which all of its keys share. smore/redis/lua/common.lua checks those of invocations."""

from dataclasses import asdict, dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a project may use; null = no limit."""

    rate_per_s: float | None = None
    """Invocations accepted a second, over time"""
    burst: int | None = None
    """Invocations accepted at once; null = 1"""
    depth: int | None = None
    """Invocations that may wait at a time"""
    concurrency: int | None = None
    """Invocations that may wait or run at a time"""
    warm_memory_mib: float | None = None
    """Memory of all warm instances together, MiB"""
    jobs: int | None = None
    """Trainings that may wait or run; null = ``SMORE_JOBS_PER_PROJECT``"""
    job_memory_mib: float | None = None
    """Memory kept for trainings on all GPU instances together, MiB"""
    gpus: int | None = None
    """GPU instances that its trainings may hold at a time"""
    promised: int | None = None
    """GPU instances for which its trainings may have promised ends, waiting or running; null = ``gpus``"""
    weight: float | None = None
    """Of two trainings that wait, the expected time left is divided by their projects' weights; null = 1"""
    share: float | None = None
    """
    What another training may cost one of its trainings whose owner says nothing, a fraction of its iteration time; null
    = 0, nobody trains beside it
    """

    def to_dict(self) -> dict[str, Any]:
        """The limits that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


NO_LIMITS: Final = Limits()
