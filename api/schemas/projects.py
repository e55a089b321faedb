"""Projects and their limits."""

from datetime import datetime

from pydantic import BaseModel, Field

from api.schemas.fields import Body, Number, Whole
from smore.domain.limits import Limits


class LimitsBody(Body):
    """What is named is changed; null = no limit any more. See ``Limits``."""

    rate_per_s: Number | None = Field(default=None, allow_inf_nan=False)
    burst: Whole | None = None
    depth: Whole | None = None
    concurrency: Whole | None = None
    warm_memory_mib: Number | None = Field(default=None, allow_inf_nan=False)
    jobs: Whole | None = None
    job_memory_mib: Number | None = Field(default=None, allow_inf_nan=False)
    gpus: Whole | None = None
    weight: Number | None = Field(default=None, allow_inf_nan=False)
    share: Number | None = Field(default=None, allow_inf_nan=False)


class ProjectBody(Body):
    name: str


class Use(BaseModel):
    """
    What a project uses now. ``depth``: invocations that wait; ``concurrency``: invocations that wait or run;
    ``warm_memory_mib``: memory of its warm instances; ``jobs``: trainings that wait or run; ``job_memory_mib``: memory
    reserved for them; ``gpus``: GPU instances that they hold.
    """

    depth: int
    concurrency: int
    warm_memory_mib: float
    jobs: int
    job_memory_mib: float
    gpus: int = 0


class Project(BaseModel):
    """
    A project. ``limits``: those that were set for it; ``held``: those that hold, the defaults of the platform included;
    ``use``: what it uses, null = not asked for.
    """

    name: str
    created_at: datetime
    limits: Limits
    held: Limits
    use: Use | None = None


class Projects(BaseModel):
    projects: list[Project]
