"""GPU instances, what is loaded there and who else computes there."""

from datetime import datetime

from pydantic import Field

from api.schemas.fields import Body, Schema, Whole


class StrangerBody(Body):
    """A process that nobody registered, as ``GET /v1/gpus`` lists it."""

    pid: Whole = Field(ge=1, le=2**31 - 1)
    """The number of the process on the machine of the GPU instance"""


class Warm(Schema):
    """A handler that is loaded on a GPU instance."""

    function: str
    """The name of the loaded function"""
    revision: int
    """The number of the loaded revision"""
    state: str
    """``loading``, ``idle`` or ``busy`` (a batch runs)"""
    memory_mib: float
    """Measured memory of its process on the device, MiB"""
    idle_s: float
    """Seconds since its last run"""


class Stranger(Schema):
    """A process on a GPU instance that nobody registered: until it is ``allowed`` nothing is placed beside it."""

    pid: int
    """The number of the process on its machine"""
    name: str
    """The name of its program; '' = not known"""
    memory_mib: float
    """Memory that it holds of the device, MiB"""
    allowed: bool
    """Whether an operator lets functions run beside it"""


class GpuJob(Schema):
    """A training on a GPU instance, as its worker reports it."""

    id: str
    """The id of the job"""
    project: str
    """The project that the training belongs to"""
    guest: bool = False
    """Whether another training, its host, was there first"""


class Gpu(Schema):
    """A GPU instance as of its last report."""

    id: str
    """The name of the GPU instance, unique on the platform"""
    kind: str
    """What computes there: ``gpu``, or ``cpu`` for a CPU partition"""
    device: str
    """The model of the device, as profiles and jobs name it"""
    sharing_mode: str
    """By what workloads share the device"""
    slots: int
    """The most batches that may run at a time"""
    running: int
    """Batches that run now"""
    utilisation: float
    """How busy the device was over the last heartbeat, 0 to 1, by ``utilisation_counter``"""
    function_utilisation: float
    """The part of ``utilisation`` that functions made, 0 to 1"""
    utilisation_counter: str
    """The name of the counter that measured the utilisation"""
    counters: dict[str, float] = {}
    """Every counter of the device by its name"""
    health: str = ""
    """Why nothing can run on the device; '' = it works"""
    memory_used_mib: float
    """Memory that functions use and that is kept for trainings, MiB"""
    memory_total_mib: float
    """All memory of the device, MiB"""
    paused: bool
    """Whether nothing is dispatched there"""
    draining: bool
    """Whether nothing more is placed there and idle instances are unloaded"""
    drained: bool
    """Whether it is drained and nothing runs, trains or is loaded there any more"""
    reported_at: datetime
    """When its worker reported this"""
    warm: list[Warm]
    """The loaded instances of the caller's project"""
    trainings: int = 0
    """How many trainings of all projects are there"""
    jobs: list[GpuJob] = []
    """Those of the trainings that are of the caller's project; for operators all"""
    strangers: list[Stranger] | None = None
    """Processes that nobody registered; null = it cannot tell who computes on it, as on CPU partitions"""


class Gpus(Schema):
    """All GPU instances that report."""

    gpus: list[Gpu]
    """The GPU instances in the order of their names"""
