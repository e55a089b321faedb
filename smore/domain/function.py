"""
Functions and their immutable revisions. :func:`parse_spec` reads the ``spec`` of a ``function.yaml``; its errors name the
field.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from smore.domain.artifact import Artifact, parse_artifact, parse_requirements
from smore.domain.errors import InvalidSpec
from smore.domain.quote import quoted
from smore.domain.spelling import did_you_mean
from smore.domain.tensors import DATATYPES, ITEM_BYTES
from smore.domain.workload import CONSERVATIVE, parse_model

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
#: A result names its tensors in ``name:datatype:d0,d1;…`` (smore/messages/stream.py), so a name has none of those
#: marks.
TENSOR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}")
ENTRYPOINT = re.compile(r"[A-Za-z_][\w]*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

_RESERVED = ("SMORE_", "LD_", "PYTHON", "MALLOC_", "CUDA_", "PATH", "HOME", "TMPDIR")
SECRET_NAME = re.compile(rf"(?!{'|'.join(_RESERVED)})[A-Z][A-Z0-9_]{{0,63}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One named tensor."""

    name: str
    """The tensor's name, unique among the inputs or outputs"""
    datatype: str
    """A datatype of the Open Inference Protocol"""
    shape: tuple[int, ...]
    """The sizes of its axes; the first is -1 (rows), -1 elsewhere is any size"""

    def row_bytes(self) -> int | None:
        """Bytes of one row, or None where an axis is free or the datatype has no fixed size."""
        if self.datatype not in ITEM_BYTES or any(size < 0 for size in self.shape[1:]):
            return None
        total = ITEM_BYTES[self.datatype]
        for size in self.shape[1:]:
            total *= size
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """
    A function's demand: declared at first, then measured online.

    ``run_s`` maps rows in a batch to the warm run time in seconds; ``usage_gain`` and ``degradation`` are the averages
    of assumptions A16 and A17 (fractions), whose quotient is the priority of Eq. 5; ``utilisation`` is the share of a
    GPU instance that it uses alone, 0 = not declared: its usage gain stands for it. ``model`` names its profiled model
    (smore/domain/workload.py), '' = it has no profile: then ``degradation`` stands for what it costs a training and what
    a training costs it.
    """

    run_s: Mapping[int, float] = field(default_factory=lambda: {1: 0.05})
    load_s: float = 1.0
    memory_mib: float = 256.0
    usage_gain: float = 0.2
    degradation: float = CONSERVATIVE
    utilisation: float = 0.0
    model: str = ""

    def run_time_s(self, rows: int) -> float:
        """Seconds of a batch of ``rows``; see :func:`between_sizes`."""
        sizes = sorted(self.run_s)
        lower, upper, part = between_sizes(sizes, rows)
        lower_s = self.run_s[sizes[lower]] if lower >= 0 else 0.0
        return lower_s + part * (self.run_s[sizes[upper]] - lower_s)


def between_sizes(sizes: Sequence[int], rows: int) -> tuple[int, int, float]:
    """
    The run time of ``rows`` from those of the known batch sizes (rising): between two of them on a line, below the
    smallest that one's, beyond the largest in proportion to the rows.

    Returns the positions of the sizes on both sides, -1 = no rows at all, which take no time; and how far it is from the
    one to the other, more than 1 beyond the largest.
    """
    position = bisect_left(sizes, rows)
    if position == len(sizes):
        return -1, position - 1, rows / sizes[-1]
    if position == 0 or sizes[position] == rows:
        return position, position, 0.0
    lower = sizes[position - 1]
    return position - 1, position, (rows - lower) / (sizes[position] - lower)


class Prewarming(StrEnum):
    """
    Who decides when idle instances stand ready: the platform's rule, nobody (idle instances go by their keep-alive
    alone), or LS-LSTM as the paper has it.
    """

    AUTO = "auto"
    OFF = "off"
    PAPER = "paper"


class OnLate(StrEnum):
    """What becomes of a run that is past its deadline: it goes on to its end, or it ends as ``expired``."""

    FINISH = "finish"
    DROP = "drop"


class WorkClass(StrEnum):
    """
    What the platform owes an invocation: a run in time, or, to bulk work, what others leave, a small share at the least,
    and the deadline once that comes near.
    """

    STANDARD = "standard"
    BATCH = "batch"


class RevisionState(StrEnum):
    """Only a revision that has been ``active`` (its canary passed) can take the traffic."""

    PENDING = "pending"
    ACTIVE = "active"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec:
    """
    One revision's description. ``inputs`` None = JSON values (see smore/handler.py). Units are in the names.

    ``min_warm`` instances stand ready somewhere at any time; there are at most ``max_warm`` on each GPU instance.
    ``memory_mib`` 0 = it uses no memory of the GPU, and gets none. ``artifact`` None = the entrypoint is one of the
    platform's own modules; else it is imported from that uploaded folder, in an environment with ``requirements`` where
    there are any.
    """

    entrypoint: str
    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None
    deadline_s: float = 5.0
    on_late: OnLate = OnLate.FINISH
    #: It runs as if no training were there, up to what the trainings beside it may lose.
    precedence: bool = False
    memory_mib: float = 256.0
    max_batch: int = 1
    max_warm: int = 1
    #: Idle seconds after which a warm instance is offloaded where no rule decides; -1 = never, whatever a rule decides.
    keep_alive_s: float = 600.0
    min_warm: int = 0
    prewarm: Prewarming = Prewarming.AUTO
    max_attempts: int = 3
    max_pending: int = 1000
    timeout_s: float = 60.0
    payload_bytes: int = 8 << 20
    profile: Profile = field(default_factory=Profile)
    artifact: Artifact | None = None
    requirements: tuple[str, ...] = ()
    #: Names of the project's secrets that its runners find in their environment.
    secrets: tuple[str, ...] = ()
    #: Of its invocations; a call may lower it, never raise it.
    work_class: WorkClass = WorkClass.STANDARD


#: More than every bound. A larger value becomes this one, which the bound of its field refuses.
_MOST = 1e18
#: Characters of a duration or a size.
_LONGEST = 40
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|KB|MB|GB|B)")
_BYTES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "KB": 1e3, "MB": 1e6, "GB": 1e9}


def duration_s(value: object, field_name: str) -> float:
    """Seconds from ``"800ms"``, ``"5s"``, ``"10m"``, ``"1h"``, ``"1d"`` or a number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST:
        return float(value)
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= _LONGEST else None
    if match is None:
        raise InvalidSpec.at(field_name, f"{quoted(value)} is not a duration such as 800ms, 5s or 10m")
    return min(float(match[1]) * _SECONDS[match[2]], _MOST)


def size_bytes(value: object, field_name: str) -> int:
    """Bytes from ``"1.2GiB"``, ``"200MiB"``, ``"8MB"`` or a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= _LONGEST else None
    if match is None:
        raise InvalidSpec.at(field_name, f"{quoted(value)} is not a size such as 200MiB")
    return int(min(float(match[1]) * _BYTES[match[2]], _MOST))


class _Reader:
    """Reads a mapping. It knows its own path, so every error names its field."""

    def __init__(self, raw: object, path: str) -> None:
        if not isinstance(raw, Mapping):
            raise InvalidSpec.at(path, "a mapping is expected")
        self._raw = dict(raw)
        self._known: list[str] = []
        self._path = path

    def path(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def take(self, key: str, default: object = None) -> Any:
        self._known.append(key)
        return self._raw.pop(key, default)

    def section(self, key: str) -> "_Reader":
        value = self.take(key)
        return _Reader({} if value is None else value, self.path(key))

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidSpec.at(self.path(key), f"a number in {low:g}..{high:g} is expected, not {quoted(value)}")
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        value = self.number(key, default, low, high)
        if value != int(value):
            raise InvalidSpec.at(self.path(key), f"a whole number is expected, not {quoted(value)}")
        return int(value)

    def seconds(self, key: str, default: float, low: float, high: float) -> float:
        value = duration_s(self.take(key, default), self.path(key))
        if not low <= value <= high:
            raise InvalidSpec.at(self.path(key), f"must be within {low:g}..{high:g} s, not {value:g}")
        return value

    def end(self) -> None:
        """Refuse keys that nobody took: a misspelt key must not silently mean the default."""
        if self._raw:
            key = str(next(iter(self._raw)))
            raise InvalidSpec.at(self.path(key), f"unknown field{did_you_mean(key, self._known)}")


#: Tensors of a function on either side, axes of one, and sizes of batches that a profile names.
#: An instance that has held this part of the memory that it may hold was near its bound.
NEAR_BOUND: Final = 0.85
MOST_TENSORS: Final = 256
MOST_AXES: Final = 32
MOST_TIMES: Final = 1024


def _tensors(raw: object, path: str) -> tuple[TensorSpec, ...] | None:
    if raw is None or raw == "json":
        return None
    if not isinstance(raw, list) or not 1 <= len(raw) <= MOST_TENSORS:
        raise InvalidSpec.at(path, f"a list of 1 to {MOST_TENSORS} tensors or the word json is expected")
    tensors = []
    for position, item in enumerate(raw):
        where = f"{path}[{position}]"
        reader = _Reader(item, where)
        name, datatype, shape = reader.take("name"), reader.take("datatype"), reader.take("shape")
        reader.end()
        if not isinstance(name, str) or TENSOR_NAME.fullmatch(name) is None:
            raise InvalidSpec.at(f"{where}.name", "a name (letters, digits, inner '_', '.', '/', '-') is expected")
        if not isinstance(datatype, str) or datatype not in DATATYPES:
            raise InvalidSpec.at(
                f"{where}.datatype", f"one of {', '.join(DATATYPES)} is expected, not {quoted(datatype)}"
            )
        sizes = isinstance(shape, list) and all(
            type(size) is int and (size == -1 or 0 < size < 2**31) for size in shape
        )
        if not sizes or not 1 <= len(shape) <= MOST_AXES or shape[0] != -1:
            form = f"a list of at most {MOST_AXES} sizes that starts with -1 (the rows)"
            raise InvalidSpec.at(f"{where}.shape", f"{form} is expected")
        tensors.append(TensorSpec(name=name, datatype=datatype, shape=tuple(shape)))
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise InvalidSpec.at(path, "two tensors have the same name")
    return tuple(tensors)


def _profile(reader: _Reader, memory_mib: float) -> Profile:
    run_ms, model = reader.take("run_ms", {1: 50.0}), reader.take("model")
    if not isinstance(run_ms, Mapping) or not 1 <= len(run_ms) <= MOST_TIMES:
        raise InvalidSpec(
            f"{reader.path('run_ms')}: a mapping from rows to milliseconds, of 1 to {MOST_TIMES}, is expected",
            field=reader.path("run_ms"),
        )
    run_s: dict[int, float] = {}
    for rows, value in run_ms.items():
        counts = str(rows).isdecimal() and len(str(rows)) < 8 and int(rows) > 0
        valid = counts and isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 3.6e6
        if not valid:
            raise InvalidSpec(
                f"{reader.path('run_ms')}: {quoted(rows)}: {quoted(value)} is not rows: milliseconds",
                field=reader.path("run_ms"),
            )
        run_s[int(rows)] = value / 1000
    profile = Profile(
        run_s=run_s,
        load_s=reader.number("load_ms", 1000.0, 0, 3.6e6) / 1000,
        memory_mib=memory_mib,
        usage_gain=reader.number("usage_gain", 0.2, 0, 1),
        utilisation=reader.number("utilisation", 0.0, 0, 1),
        degradation=reader.number("degradation", CONSERVATIVE, 0, 100),
        model="" if model is None else parse_model(model, reader.path("model")),
    )
    reader.end()
    return profile


#: Instances of a function that may be asked for.
MOST_WARM: Final = 64
#: Ten years.
LONGEST_KEEP_ALIVE_S: Final = 10 * 365 * 86_400


def _scaling(reader: _Reader, spec: FunctionSpec) -> FunctionSpec:
    """``spec`` with the fields that are named; the others stay."""
    keep_alive = reader.take("keep_alive", spec.keep_alive_s)
    keep_alive_s = -1.0 if keep_alive == -1 else duration_s(keep_alive, reader.path("keep_alive"))
    if not (keep_alive_s == -1 or 0 <= keep_alive_s <= LONGEST_KEEP_ALIVE_S):
        where = reader.path("keep_alive")
        raise InvalidSpec.at(where, "-1 (never) or a duration up to ten years is expected")
    prewarm = reader.take("prewarm", spec.prewarm)
    # YAML reads a bare off as false.
    prewarm = Prewarming.OFF if prewarm is False else prewarm
    if prewarm not in tuple(Prewarming):
        raise InvalidSpec(
            f"{reader.path('prewarm')}: auto, off or paper is expected, not {quoted(prewarm)}",
            field=reader.path("prewarm"),
        )
    min_warm = reader.whole("min_warm", spec.min_warm, 0, MOST_WARM)
    max_warm = reader.whole("max_warm", spec.max_warm, 1, MOST_WARM)
    reader.end()
    return replace(spec, min_warm=min_warm, max_warm=max_warm, keep_alive_s=keep_alive_s, prewarm=Prewarming(prewarm))


def parse_name(name: object, field_name: str = "name") -> str:
    """A function's, project's or job's name: lower-case letters, digits and inner hyphens, at most 63 characters."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise InvalidSpec.at(field_name, f"{quoted(name)} is not a name (a-z, 0-9, inner '-', at most 63 characters)")
    return name


def parse_secret_name(name: object, field_name: str = "name") -> str:
    """A secret's name, an environment variable. Names that would change how a runner starts are refused."""
    if not isinstance(name, str) or SECRET_NAME.fullmatch(name) is None:
        form = f"A-Z, 0-9, '_', at most 64 characters, beginning with none of {', '.join(_RESERVED)}"
        raise InvalidSpec.at(field_name, f"{quoted(name)} is not a secret's name ({form})")
    return name


def _secrets(raw: object) -> tuple[str, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list) or len(raw) > 64:
        raise InvalidSpec.at("spec.secrets", "a list of at most 64 names is expected")
    names = tuple(parse_secret_name(name, f"spec.secrets[{place}]") for place, name in enumerate(raw))
    if len(set(names)) != len(names):
        raise InvalidSpec.at("spec.secrets", "a name comes twice")
    return names


def parse_class(value: object, field_name: str, of_function: WorkClass = WorkClass.STANDARD) -> WorkClass:
    """A work class, at most ``of_function``'s. Raises InvalidSpec that names those that are allowed."""
    allowed = (WorkClass.BATCH,) if of_function is WorkClass.BATCH else tuple(WorkClass)
    if not isinstance(value, str) or value not in allowed:
        what = f"{field_name}: {' or '.join(allowed)} is expected, not {quoted(value)}"
        if value == "guaranteed":
            what = f"{what}: there are no guarantees yet"
        elif value in tuple(WorkClass):
            what = f"{what}: the function is of class {of_function}, and a call cannot raise it"
        raise InvalidSpec(what, field=field_name)
    return WorkClass(value)


def parse_spec(raw: object) -> FunctionSpec:
    """The ``spec`` of a function.yaml. Raises :class:`InvalidSpec` that names the field."""
    reader = _Reader(raw, "spec")
    entrypoint = reader.take("entrypoint")
    if not isinstance(entrypoint, str) or ENTRYPOINT.fullmatch(entrypoint) is None:
        raise InvalidSpec.at("spec.entrypoint", f"{quoted(entrypoint)} is not of the form module:Class")
    slo, resources, batching = reader.section("slo"), reader.section("resources"), reader.section("batching")
    scaling, retries, limits = reader.section("scaling"), reader.section("retries"), reader.section("limits")
    memory_mib = size_bytes(resources.take("gpu_memory", "256MiB"), "spec.resources.gpu_memory") / 2**20
    if memory_mib and not 1 <= memory_mib <= 2**20:
        raise InvalidSpec.at("spec.resources.gpu_memory", "must be 0 or within 1 MiB..1 TiB")
    payload_bytes = size_bytes(limits.take("payload", 8 << 20), "spec.limits.payload")
    if not 0 < payload_bytes <= 1 << 30:
        raise InvalidSpec.at("spec.limits.payload", "must be within 1 B..1 GiB")
    artifact = parse_artifact(reader.take("artifact"), "spec.artifact")
    on_late = slo.take("on_late", "finish")
    if on_late not in tuple(OnLate):
        raise InvalidSpec.at("spec.slo.on_late", f"finish or drop is expected, not {quoted(on_late)}")
    precedence = slo.take("precedence", False)
    if not isinstance(precedence, bool):
        raise InvalidSpec.at("spec.slo.precedence", f"true or false is expected, not {quoted(precedence)}")
    spec = FunctionSpec(
        entrypoint=entrypoint,
        inputs=_tensors(reader.take("inputs"), "spec.inputs"),
        outputs=_tensors(reader.take("outputs"), "spec.outputs"),
        deadline_s=slo.seconds("deadline", 5.0, 0.001, 86_400),
        on_late=OnLate(on_late),
        precedence=precedence,
        memory_mib=memory_mib,
        max_batch=batching.whole("max_size", 1, 1, 1024),
        max_attempts=retries.whole("max_attempts", 3, 1, 100),
        max_pending=limits.whole("max_pending", 1000, 0, 1_000_000),
        timeout_s=limits.seconds("timeout", 60.0, 0.01, 86_400),
        payload_bytes=payload_bytes,
        # What it holds is part of what it costs, and nothing costs nothing.
        profile=_profile(reader.section("profile"), max(memory_mib, 1.0)),
        artifact=artifact,
        requirements=parse_requirements(reader.take("requirements"), artifact, "spec.requirements"),
        secrets=_secrets(reader.take("secrets")),
        work_class=parse_class(reader.take("class", "standard"), "spec.class"),
    )
    for section in (slo, resources, batching, retries, limits, reader):
        section.end()
    return _scaling(scaling, spec)


def parse_document(raw: object) -> tuple[str, FunctionSpec]:
    """The name and the spec of a function.yaml. Raises :class:`InvalidSpec` that names the field."""
    if not isinstance(raw, Mapping):
        raise InvalidSpec.at("body", "a mapping is expected")
    reader = _Reader(raw, "")
    for key, expected in (("apiVersion", "smore/v1"), ("kind", "Function")):
        if (value := reader.take(key)) != expected:
            raise InvalidSpec.at(key, f"{expected} is expected, not {quoted(value)}")
    metadata = reader.section("metadata")
    name, labels = parse_name(metadata.take("name"), "metadata.name"), metadata.take("labels", {})
    if not isinstance(labels, Mapping) or not all(isinstance(text, str) for item in labels.items() for text in item):
        raise InvalidSpec.at("metadata.labels", "a mapping from texts to texts is expected")
    metadata.end()
    spec = reader.take("spec")
    reader.end()
    return name, parse_spec(spec)
