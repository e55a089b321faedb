"""Projects and their limits."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from api.schemas.fields import Body, Name, Number, Schema, Whole
from smore.domain.job import MOST_SHARE
from smore.domain.limits import Limits

#: Of any limit.
_MOST: Final = 1e9
Count = Annotated[Whole, Field(ge=0, le=_MOST)]
Amount = Annotated[Number, Field(ge=0, le=_MOST, allow_inf_nan=False)]


class LimitsBody(Body):
    """What is named is changed; null = no limit any more; ``burst`` needs a ``rate_per_s``. See ``Limits``."""

    rate_per_s: Annotated[Number, Field(ge=0.001, le=_MOST, allow_inf_nan=False)] | None = None
    """Invocations to accept a second, over time; null = no limit"""
    burst: Annotated[Whole, Field(ge=1, le=_MOST)] | None = None
    """Invocations to accept at once; null = 1"""
    depth: Count | None = None
    """Invocations that may wait at a time; null = no limit"""
    concurrency: Count | None = None
    """Invocations that may wait or run at a time; null = no limit"""
    warm_memory_mib: Amount | None = None
    """Memory of all warm instances together, MiB; null = no limit"""
    jobs: Count | None = None
    """Trainings that may wait or run; null = ``SMORE_JOBS_PER_PROJECT``"""
    job_memory_mib: Amount | None = None
    """Memory kept for trainings on all GPU instances together, MiB; null = no limit"""
    gpus: Count | None = None
    """GPU instances that the project's trainings may hold at a time; null = no limit"""
    promised: Count | None = None
    """GPU instances for which the project's trainings may have promised ends, waiting or running; null = ``gpus``"""
    weight: Annotated[Number, Field(ge=0.01, le=_MOST, allow_inf_nan=False)] | None = None
    """By what the expected time left of its waiting trainings is divided; null = 1"""
    share: Annotated[Number, Field(ge=0, le=MOST_SHARE, allow_inf_nan=False)] | None = None
    """
    What another training may cost one of its trainings whose owner says nothing, a fraction of its iteration time; null
    = 0, nobody trains beside it
    """


class ProjectBody(Body):
    """A project that is to be made."""

    name: Name
    """The name of the new project, unique on the platform"""


class Use(Schema):
    """What a project uses now."""

    depth: int
    """How many invocations wait"""
    concurrency: int
    """How many invocations wait or run"""
    warm_memory_mib: float
    """Memory of its warm instances, MiB"""
    jobs: int
    """How many trainings wait or run"""
    job_memory_mib: float
    """Memory that is reserved for its trainings, MiB"""
    gpus: int = 0
    """How many GPU instances its trainings hold"""


class Project(Schema):
    """A project: what its keys share."""

    name: str
    """The name of the project, unique on the platform"""
    created_at: datetime
    """When the project was made"""
    limits: Limits
    """The limits that were set for it"""
    held: Limits
    """The limits that hold, the defaults of the platform included"""
    use: Use | None = None
    """What it uses now; null = not asked for"""


class Projects(Schema):
    """All projects of the platform."""

    projects: list[Project]
    """The projects in the order of their names"""
