"""Functions and their revisions."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from api.schemas.fields import Body, Name, Number, Schema, Whole
from smore.domain.function import LONGEST_KEEP_ALIVE_S, MOST_WARM, Prewarming, TensorSpec


class Metadata(Body):
    """What names a function."""

    name: Name
    """The name under which the function is called, unique in its project"""
    labels: dict[str, str] = Field(default={})
    """Words for people, by name; the platform does nothing with them"""


class FunctionBody(Body):
    """
    A function.yaml: docs/guides/own-model.md has an example.
    """

    apiVersion: Literal["smore/v1"]  # noqa: N815 - as Kubernetes and its neighbours spell it
    """The version of the format of this document"""
    kind: Literal["Function"]
    """What the document describes: a function"""
    metadata: Metadata
    """What names the function, with its labels"""
    spec: dict[str, Any]
    """What it runs, what it takes and how it is kept ready: docs/reference/function-yaml.md lists the fields"""


class RollbackBody(Body):
    """Which revision is to take the traffic again."""

    revision: Whole = Field(ge=1, le=2**31 - 1)
    """The number of an earlier revision whose first run succeeded"""


class SloBody(Body):
    """A deadline for a function."""

    deadline_ms: Number | None = Field(ge=1, le=86_400_000, allow_inf_nan=False)
    """Milliseconds from arrival; null = the revision's own"""


def _never_or_from_zero(value: float) -> float:
    if -1 < value < 0:
        raise ValueError("-1 (never) or a number of seconds is expected")
    return value


KeepAlive = Annotated[
    Number,
    Field(ge=-1, le=LONGEST_KEEP_ALIVE_S, allow_inf_nan=False),
    AfterValidator(_never_or_from_zero),
    WithJsonSchema({"anyOf": [{"const": -1}, {"type": "number", "minimum": 0, "maximum": LONGEST_KEEP_ALIVE_S}]}),
]


class ScalingChanges(Body):
    """The fields of ``Scaling``; what is null or absent stays as it is."""

    min_warm: Whole | None = Field(default=None, ge=0, le=MOST_WARM)
    """Instances that are to stay loaded, over all GPU instances"""
    max_warm: Whole | None = Field(default=None, ge=1, le=MOST_WARM)
    """The most instances on each GPU instance"""
    keep_alive_s: KeepAlive | None = None
    """Seconds that an idle instance stays loaded; -1 = for ever"""
    prewarm: Prewarming | None = None
    """Who is to decide when instances are loaded ahead of arrivals"""


class FunctionChanges(Body):
    """What is to be other than it is."""

    scaling: ScalingChanges
    """How many instances are to stand ready, and for how long"""


class PlaceBody(Body):
    """Where a function is to be loaded or unloaded."""

    gpu: str | None = None
    """The name of one GPU instance; null = all"""


class Scaling(Schema):
    """How many instances of a function stand ready, and for how long."""

    min_warm: int
    """Instances that stay loaded, over all GPU instances"""
    max_warm: int
    """The most instances on each GPU instance"""
    keep_alive_s: float
    """Seconds that an idle instance stays loaded; -1 = for ever"""
    prewarm: str
    """Who decides when instances are loaded ahead of arrivals: ``auto``, ``off`` or ``paper``"""


class Function(Schema):
    """A function, as the revision that takes its traffic has it."""

    name: str
    """The name under which it is called, unique in its project"""
    project: str
    """The project whose keys may call it"""
    revision: int
    """The number of the revision that takes the traffic; 0 = none yet"""
    entrypoint: str = ""
    """The handler's class as ``module:Class``"""
    deadline_ms: float | None = None
    """Milliseconds from arrival to the deadline, where a call names none; null = no revision takes traffic"""
    precedence: bool = False
    """Whether it comes before the trainings beside it, as far as their budgets go"""
    inputs: tuple[TensorSpec, ...] | None = None
    """The tensors that it takes; null = JSON values"""
    outputs: tuple[TensorSpec, ...] | None = None
    """The tensors that it returns; null = JSON values"""
    scaling: Scaling | None = None
    """How many instances stand ready; null = no revision takes traffic"""


class Measured(Schema):
    """What the first run of a revision measured; null = not measured."""

    inputs: tuple[TensorSpec, ...] | None = None
    """The tensors that it took; null = JSON values"""
    outputs: tuple[TensorSpec, ...] | None = None
    """The tensors that it returned; null = JSON values"""
    load_ms: float | None = None
    """Milliseconds of the load, without what prepares its process and environment"""
    phases_ms: dict[str, float] = {}
    """Milliseconds of each phase of the load, by name"""
    run_ms: float | None = None
    """Milliseconds of one run of the example"""
    examples_ms: float | None = None
    """Milliseconds of all runs of the example, that of the load included"""
    memory_mib: float | None = None
    """Memory that the runner held after the runs, MiB"""
    peak_mib: float | None = None
    """The most of the machine's memory that it had held, MiB"""
    limit_mib: float | None = None
    """The most of the machine's memory that it may hold, MiB"""
    packages: list[str] = []
    """The versions of the required packages that function.yaml leaves open"""
    input_schema: dict[str, Any] | None = None
    """The JSON Schema of one input; null = the handler declares none"""
    output_schema: dict[str, Any] | None = None
    """The JSON Schema of one output; null = the handler declares none"""
    example: Any = None
    """The handler's example as a caller would send it; null = it is above 4 KiB, or JSON cannot say it"""


class Deployed(Function):
    """The function after a deploy."""

    created: bool
    """Whether this deploy made the revision; false: the same one was there already"""
    measured: Measured | None = None
    """What the revision's first run measured; null = nothing"""
    changed: list[str] = []
    """How its inputs and outputs differ from those of the revision before, in words"""
    warnings: list[str] = []
    """What keeps calls from being served now or soon may, in words"""


class Revision(Schema):
    """One immutable version of a function."""

    revision: int
    """Its number, counted from 1 for each function"""
    state: str
    """``pending`` (its first run is going on), ``active`` (that succeeded) or ``failed``"""
    entrypoint: str
    """The handler's class as ``module:Class``"""
    created_at: datetime
    """When it was deployed first"""
    error: str | None = None
    """Why its first run failed, with the log; null = it did not"""
    measured: Measured | None = None
    """What its first run measured; null = nothing"""
    artifact: str | None = None
    """The digest of the uploaded folder; null = a module of the platform"""
    requirements: list[str] = []
    """The packages of its environment, as pip names them"""


class Placed(Schema):
    """What a request to load or unload reached."""

    gpus: list[str]
    """The GPU instances that were asked to load or unload"""


class Functions(Schema):
    """All functions of a project."""

    functions: list[Function]
    """The functions in the order of their names"""


class Revisions(Schema):
    """All revisions of a function."""

    revisions: list[Revision]
    """The revisions, the newest first"""
