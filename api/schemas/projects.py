"""Projects and their limits."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, Field

from api.schemas.fields import Body, Name, Number, Whole
from smore.domain.job import MOST_SHARE
from smore.domain.limits import Limits

#: Of any limit.
_MOST: Final = 1e9
Count = Annotated[Whole, Field(ge=0, le=_MOST)]
Amount = Annotated[Number, Field(ge=0, le=_MOST, allow_inf_nan=False)]


class LimitsBody(Body):
    """What is named is changed; null = no limit any more; ``burst`` needs a ``rate_per_s``. See ``Limits``."""

    rate_per_s: Annotated[Number, Field(ge=0.001, le=_MOST, allow_inf_nan=False)] | None = None
    burst: Annotated[Whole, Field(ge=1, le=_MOST)] | None = None
    depth: Count | None = None
    concurrency: Count | None = None
    warm_memory_mib: Amount | None = None
    jobs: Count | None = None
    job_memory_mib: Amount | None = None
    gpus: Count | None = None
    weight: Annotated[Number, Field(ge=0.01, le=_MOST, allow_inf_nan=False)] | None = None
    share: Annotated[Number, Field(ge=0, le=MOST_SHARE, allow_inf_nan=False)] | None = None


class ProjectBody(Body):
    name: Name


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
