"""GPU instances, what is loaded there and who else computes there."""

from datetime import datetime

from pydantic import BaseModel, Field

from api.schemas.fields import Body, Whole


class StrangerBody(Body):
    """A process that nobody registered, as ``GET /v1/gpus`` lists it."""

    pid: Whole = Field(ge=1, le=2**31 - 1)


class Warm(BaseModel):
    """A handler that is loaded on a GPU instance; ``idle_s``: seconds since its last run."""

    function: str
    revision: int
    state: str
    memory_mib: float
    idle_s: float


class Stranger(BaseModel):
    """A process on a GPU instance that nobody registered: until it is ``allowed`` nothing is placed beside it."""

    pid: int
    name: str
    memory_mib: float
    allowed: bool


class GpuJob(BaseModel):
    """A training on a GPU instance, as its worker reports it; ``guest``: another one was there first, its host."""

    id: str
    project: str
    guest: bool = False


class Gpu(BaseModel):
    """
    A GPU instance as of its last report. ``utilisation`` and ``function_utilisation``: 0 to 1 over the last heartbeat,
    by the counter ``utilisation_counter``; ``counters``: every counter of the device by its name. ``health``: why
    nothing can run on the device, "" = it works. ``draining``: nothing more is placed there and idle instances are
    unloaded; ``drained``: nothing runs, trains or is loaded there any more. ``warm``: of the caller's project.
    ``trainings`` are there; ``jobs``: those of them of the caller's project, for operators of all projects.
    ``strangers`` null = it cannot tell who computes on it, as on CPU partitions.
    """

    id: str
    kind: str
    device: str
    sharing_mode: str
    slots: int
    running: int
    utilisation: float
    function_utilisation: float
    utilisation_counter: str
    counters: dict[str, float] = {}
    health: str = ""
    memory_used_mib: float
    memory_total_mib: float
    paused: bool
    draining: bool
    drained: bool
    reported_at: datetime
    warm: list[Warm]
    trainings: int = 0
    jobs: list[GpuJob] = []
    strangers: list[Stranger] | None = None


class Gpus(BaseModel):
    gpus: list[Gpu]
