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


class Parked(Schema):
    """A model whose weights lie in pinned host memory: the next load of its revision comes out of it."""

    function: str
    """The function whose weights they are"""
    revision: int
    """The revision whose weights they are"""
    memory_mib: float
    """What its process still holds of the device, MiB"""
    host_mib: float
    """What it holds of the host's memory, MiB"""
    left_s: float
    """Seconds until it is let go of"""


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
    name: str = ""
    """The training's name; '' = the job scheduler has not published it"""
    budget: float = 0.0
    """The most that it may lose to functions, a fraction of its iteration time"""
    loss: float | None = None
    """What it lost lately to functions on this GPU instance, a fraction; null = not enough data"""
    loss_low: float | None = None
    """The lower end of the 95 % interval of ``loss``"""
    loss_high: float | None = None
    """The upper end of the 95 % interval of ``loss``"""
    loss_windows: int = 0
    """How many closed windows ``loss`` rests on"""
    iterations: int = 0
    """Iterations that its present attempt has made"""
    held: float = 1.0
    """The part of the time in which it may run beside its host; 1 = freely"""


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
    memory_warm_mib: float = 0.0
    """Memory of warm instances, those of other projects too, MiB"""
    node: str = ""
    """The name of its machine; '' = not told"""
    duty: float = 1.0
    """The part of the time in which functions may work beside a training, 0 to 1"""
    closed_until: datetime | None = None
    """A closed window is at hand: nothing starts there before this moment at the latest; null = none is"""
    silent_since: datetime | None = None
    """When it reported last, and of it no more than its name is known; null = it reports"""
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
    parked: list[Parked] = []
    """The models of the caller's project in pinned host memory"""
    quarantined: list[str] = []
    """Revisions of the caller's project that it keeps out after crashes, ``FUNCTION@REVISION``"""
    trainings: int = 0
    """How many trainings of all projects are there"""
    jobs: list[GpuJob] = []
    """Those of the trainings that are of the caller's project; for operators all"""
    strangers: list[Stranger] | None = None
    """Processes that nobody registered; null = it cannot tell who computes on it, as on CPU partitions"""


class Gpus(Schema):
    """All GPU instances that report, or that are asked for while they are silent."""

    gpus: list[Gpu]
    """The GPU instances in the order of their names"""
