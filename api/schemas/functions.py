"""Functions and their revisions."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from api.schemas.fields import Body, Name, Number, Whole
from smore.domain.function import LONGEST_KEEP_ALIVE_S, MOST_WARM, Prewarming, TensorSpec


class Metadata(Body):
    """``name``: of the function; ``labels``: words for people, by name."""

    name: Name
    labels: dict[str, str] = Field(default={})


class FunctionBody(Body):
    """
    A function.yaml: docs/guides/own-model.md has an example.
    """

    apiVersion: Literal["smore/v1"]  # noqa: N815 - as Kubernetes and its neighbours spell it
    kind: Literal["Function"]
    metadata: Metadata
    spec: dict[str, Any]


class RollbackBody(Body):
    revision: Whole = Field(ge=1, le=2**31 - 1)


class SloBody(Body):
    """``deadline_ms``: from arrival; null = the revision's own."""

    deadline_ms: Number | None = Field(ge=1, le=86_400_000, allow_inf_nan=False)


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
    max_warm: Whole | None = Field(default=None, ge=1, le=MOST_WARM)
    keep_alive_s: KeepAlive | None = None
    prewarm: Prewarming | None = None


class FunctionChanges(Body):
    """``scaling``: what is to be other than it is."""

    scaling: ScalingChanges


class PlaceBody(Body):
    """One GPU instance, or none for all."""

    gpu: str | None = None


class Scaling(BaseModel):
    """
    ``min_warm``: instances that stay loaded, in all; ``max_warm``: the most on each GPU instance; ``keep_alive_s``:
    seconds that an idle instance stays loaded, -1 = for ever; ``prewarm``: the rule that loads instances ahead of
    arrivals.
    """

    min_warm: int
    max_warm: int
    keep_alive_s: float
    prewarm: str


class Function(BaseModel):
    """
    A function. ``revision``: the one that takes the traffic, 0 = none yet; ``deadline_ms``: from arrival; ``inputs``
    and ``outputs``: its tensors, null = JSON values.
    """

    name: str
    project: str
    revision: int
    entrypoint: str = ""
    deadline_ms: float | None = None
    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None
    scaling: Scaling | None = None


class Measured(BaseModel):
    """
    What the first run of a revision measured. ``inputs`` and ``outputs``: its tensors, null = JSON values; ``load_ms``:
    milliseconds of the load, without what prepares its process and environment; ``phases_ms``: milliseconds of each phase
    of the load; ``run_ms``: milliseconds of one run of the example, ``examples_ms``: of all its runs, that of the load
    included; ``memory_mib``: what the runner held then; ``peak_mib``: the most that it had held of the machine's memory,
    and ``limit_mib``: what it may; ``packages``: the versions of required packages that function.yaml leaves open.
    ``input_schema`` and ``output_schema``: the JSON Schema of one input and of one output, null = the handler declares
    none.
    """

    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None
    load_ms: float | None = None
    phases_ms: dict[str, float] = {}
    run_ms: float | None = None
    examples_ms: float | None = None
    memory_mib: float | None = None
    peak_mib: float | None = None
    limit_mib: float | None = None
    packages: list[str] = []
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None


class Deployed(Function):
    """
    The function after a deploy. ``created`` false: the same revision was there already; ``measured``: what its canary
    measured, null = nothing; ``changed``: how its inputs and outputs differ from those of the revision before, in words;
    ``warnings``: what keeps calls from being served now or soon may, in words.
    """

    created: bool
    measured: Measured | None = None
    changed: list[str] = []
    warnings: list[str] = []


class Revision(BaseModel):
    """
    One immutable version of a function. ``error``: why its canary failed, with the log; ``artifact``: the digest of the
    uploaded folder, null = a module of the platform.
    """

    revision: int
    state: str
    entrypoint: str
    created_at: datetime
    error: str | None = None
    measured: Measured | None = None
    artifact: str | None = None
    requirements: list[str] = []


class Placed(BaseModel):
    """``gpus``: the GPU instances that were asked to load or unload."""

    gpus: list[str]


class Functions(BaseModel):
    functions: list[Function]


class Revisions(BaseModel):
    revisions: list[Revision]
