"""
The Open Inference Protocol as bytes: an inference request read into a payload, a result written as its answer.

Sources: the protocol's REST description (kserve/open-inference-protocol, "Inference Request JSON Object" and the
following) and Triton's extensions "Binary Tensor Data" and "Schedule Policy". A request is JSON, followed by the bytes
of the tensors for which it gives ``binary_data_size``, in the same order. Tensors in JSON are packed here, so that the
queued payload is always raw.

A function that takes JSON values instead of tensors has one tensor here, ``input``: BYTES of shape [1], a JSON text;
its result is ``output`` likewise.
"""

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import orjson

from api.errors import Malformed, Unsupported
from smore.definition.inputs import Payload, batching_key, check_elements, check_size, from_json, raw_payload, rows_of
from smore.domain import tensors
from smore.domain.errors import InvalidInput, PayloadTooLarge
from smore.domain.function import FunctionSpec, TensorSpec
from smore.domain.tensors import BYTES, CODES, Buffer
from smore.messages.results import Result

#: Inputs and outputs of a function of JSON values.
JSON_INPUTS: Final = (TensorSpec(name="input", datatype=BYTES, shape=(1,)),)
JSON_OUTPUTS: Final = (TensorSpec(name="output", datatype=BYTES, shape=(1,)),)
#: Content codings of requests and answers, with zlib's ``wbits`` for each.
CODINGS: Final[Mapping[str, int]] = {"gzip": 31, "deflate": 15}

#: More axes than any array library has.
_MAX_AXES: Final = 64
#: The size of an axis is below it. Beside an empty axis another one takes no bytes, so nothing else would bound it.
_MAX_SIZE: Final = 1 << 31
#: Most rows of a request whose rows take no bytes.
_MAX_ROWS: Final = 1 << 16
#: Parameters of Triton that would change the answer; requests with them are refused instead of ignoring them.
_SEQUENCE: Final = "sequence_id"
_SHARED_MEMORY: Final = "shared_memory_region"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """
    An inference request. ``outputs``: name of each wanted output → whether it is sent as bytes, in the wanted order;
    None = all outputs, as bytes where ``binary`` is set.

    ``deadline_ms`` from arrival, None = the function's own. ``priority``: as it was asked for, 0 = the default.
    """

    payload: Payload
    id: str
    outputs: Mapping[str, bool] | None
    binary: bool
    deadline_ms: float | None
    priority: int = 0


# ---- in --------------------------------------------------------------------------------------------------------------


def read(body: bytes, json_size: int | None, spec: FunctionSpec) -> Inference:
    """
    The request in ``body``, of which the first ``json_size`` bytes are JSON (None = all).

    Raises InvalidInput that names the place, Malformed, PayloadTooLarge, Unsupported.
    """
    size = len(body) if json_size is None else json_size
    if size > len(body):
        raise Malformed(f"Inference-Header-Content-Length: {size}, but the body has {len(body)} bytes.")
    try:
        document = orjson.loads(memoryview(body)[:size])
    except orjson.JSONDecodeError as error:
        raise Malformed(f"The request is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput.at("body", "an object with inputs is expected")
    id_ = document.get("id", "")
    if not isinstance(id_, str):
        raise InvalidInput.at("id", "a string is expected")
    parameters = _object(document, "parameters", "parameters")
    if parameters.get(_SEQUENCE) not in (None, 0, ""):
        raise Unsupported(
            "parameters.sequence_id: sequences are not served here; every request stands alone.", field="parameters"
        )
    priority = parameters.get("priority", 0)
    if type(priority) is not int or priority < 0:
        raise InvalidInput.at("parameters.priority", "0 (default), 1 (highest) or more is expected")
    binary = _flag(parameters, "binary_data_output", "parameters")
    return Inference(
        payload=_payload(document.get("inputs"), body, size, spec),
        id=id_,
        outputs=_outputs(document.get("outputs"), binary, spec),
        binary=binary,
        deadline_ms=_deadline_ms(parameters),
        priority=priority,
    )


def _object(holder: Mapping[str, object], key: str, path: str) -> Mapping[str, object]:
    member = holder.get(key)
    if member is None:
        return {}
    if not isinstance(member, dict):
        raise InvalidInput.at(path, "an object is expected")
    return member


def _flag(parameters: Mapping[str, object], key: str, path: str, default: bool = False) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise InvalidInput.at(f"{path}.{key}", "true or false is expected")
    return value


def _deadline_ms(parameters: Mapping[str, object]) -> float | None:
    """The shorter of Triton's ``timeout`` (microseconds, 0 = none) and ``smore_deadline_ms``, in milliseconds."""
    given = []
    for key, unit_ms in (("timeout", 1e-3), ("smore_deadline_ms", 1.0)):
        value = parameters.get(key)
        if value is None or (key == "timeout" and value == 0 and value is not False):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InvalidInput.at(f"parameters.{key}", "a positive number is expected")
        given.append(value * unit_ms)
    return min(given, default=None)


def _payload(given: object, body: bytes, start: int, spec: FunctionSpec) -> Payload:
    """The payload of the given inputs. ``start``: where the bytes of the tensors begin in ``body``."""
    if not isinstance(given, list) or not given:
        raise InvalidInput.at("inputs", "a list of tensors is expected")
    declared = JSON_INPUTS if spec.inputs is None else spec.inputs
    known = {tensor.name: tensor for tensor in declared}
    shapes: dict[str, list[int]] = {}
    parts: list[Buffer] = []
    view, at = memoryview(body), start
    for position, one in enumerate(given):
        path = f"inputs[{position}]"
        if not isinstance(one, dict):
            raise InvalidInput.at(path, "an object is expected")
        name = one.get("name")
        tensor = known.get(name) if isinstance(name, str) else None
        if tensor is None or tensor.name in shapes:
            what = "given twice" if tensor is not None else f"unknown; this function takes {', '.join(known)}"
            raise InvalidInput.at(f"{path}.name", what)
        shape = _shape(one, tensor, path)
        size = _binary_size(_object(one, "parameters", f"{path}.parameters"), f"{path}.parameters")
        if size is None:
            parts.append(_packed(one.get("data"), tensor.datatype, math.prod(shape), f"{path}.data"))
        elif one.get("data"):
            raise InvalidInput.at(f"{path}.data", "both data and binary_data_size are given")
        else:
            parts.append(
                _section(view[at : at + size], size, tensor.datatype, shape, f"{path}.parameters.binary_data_size")
            )
            at += size
        shapes[tensor.name] = shape
    if at != len(body):
        raise InvalidInput.at("body", f"{len(body) - at} bytes belong to no tensor")
    for tensor in declared:
        if tensor.name not in shapes:
            raise InvalidInput.at("inputs", f"{tensor.name} is missing")
    total = sum(map(len, parts))
    check_size(total, spec, "inputs")
    if spec.inputs is None:
        return _value(parts[0], spec)
    in_order = [shapes[tensor.name] for tensor in declared]
    rows = rows_of(declared, in_order, "inputs")
    if rows > max(total, _MAX_ROWS):
        raise InvalidInput.at("inputs", f"{rows} rows of nothing are too many")
    described = [(name, known[name].datatype, shape) for name, shape in shapes.items()]
    # An invocation without rows runs too; the scheduler counts it as one row.
    return raw_payload(described, parts, max(1, rows), batching_key(declared, in_order))


def _shape(one: Mapping[str, object], tensor: TensorSpec, path: str) -> list[int]:
    datatype, shape = one.get("datatype"), one.get("shape")
    if datatype != tensor.datatype:
        shown = datatype if isinstance(datatype, str) else "that"
        raise InvalidInput.at(f"{path}.datatype", f"{tensor.datatype} is expected for {tensor.name}, not {shown}")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < _MAX_SIZE for size in shape):
        raise InvalidInput.at(f"{path}.shape", "a list of sizes is expected")
    wanted = tensor.shape
    if len(shape) != len(wanted) or any(
        declared not in (-1, size) for size, declared in zip(shape, wanted, strict=True)
    ):
        raise InvalidInput.at(f"{path}.shape", f"{shape[:_MAX_AXES]} does not fit {list(wanted)} of {tensor.name}")
    return shape


def _binary_size(parameters: Mapping[str, object], path: str) -> int | None:
    if _SHARED_MEMORY in parameters:
        raise Unsupported.at(path, "shared memory is not served here; send the tensor's bytes in the body.")
    size = parameters.get("binary_data_size")
    if size is not None and (type(size) is not int or size < 0):
        raise InvalidInput.at(f"{path}.binary_data_size", "a number of bytes is expected")
    return size


def _section(view: memoryview, size: int, datatype: str, shape: Sequence[int], path: str) -> memoryview:
    """The ``size`` bytes in ``view``, checked against what the shape needs."""
    if len(view) != size:
        raise InvalidInput.at(path, f"{size} bytes are announced, the body ends after {len(view)}")
    try:
        stop = tensors.section_stop(view, 0, datatype, math.prod(shape))
    except ValueError as error:
        raise InvalidInput.at(path, f"{size} bytes are too few for {datatype} of shape {list(shape)}") from error
    if stop != size:
        raise InvalidInput.at(path, f"{datatype} of shape {list(shape)} takes {stop} bytes, not {size}")
    return view


def _packed(data: object, datatype: str, count: int, path: str) -> bytes:
    """JSON elements, row-major, flat or nested, as a section."""
    if data is None:
        raise InvalidInput.at(path, "missing")
    if not isinstance(data, list):
        raise InvalidInput.at(path, "a list is expected")
    flat: list[object] = data
    axes = 1
    while flat and isinstance(flat[0], list):
        if axes == _MAX_AXES or not all(isinstance(item, list) for item in flat):
            raise InvalidInput.at(path, "lists and values are mixed, or nested too deeply")
        flat, axes = list(chain.from_iterable(flat)), axes + 1  # type: ignore[arg-type]  # all are lists, as was just seen
    if len(flat) != count:
        raise InvalidInput.at(path, f"{count} elements are expected for this shape, not {len(flat)}")
    check_elements(flat, datatype, path)
    if datatype == BYTES:
        return tensors.join(str(text).encode() for text in flat)
    return struct.pack(f"<{count}{CODES[datatype]}", *flat)


def _value(section: Buffer, spec: FunctionSpec) -> Payload:
    (text,) = tensors.elements(section)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput.at("inputs[0]", f"the element is not JSON: {error}") from error
    return from_json(value, spec, "inputs[0]")


def _outputs(given: object, binary: bool, spec: FunctionSpec) -> Mapping[str, bool] | None:
    if given is None or given == []:
        return None
    if not isinstance(given, list):
        raise InvalidInput.at("outputs", "a list is expected")
    declared = JSON_OUTPUTS if spec.inputs is None else spec.outputs
    wanted: dict[str, bool] = {}
    for position, one in enumerate(given):
        path = f"outputs[{position}]"
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str) or name in wanted:
            raise InvalidInput.at(path, "an object with a name that was not there before is expected")
        if declared is not None and all(tensor.name != name for tensor in declared):
            names = ", ".join(tensor.name for tensor in declared)
            raise InvalidInput.at(f"{path}.name", f"unknown; this function gives {names}")
        parameters = _object(one, "parameters", f"{path}.parameters")
        for key in (_SHARED_MEMORY, "classification"):
            if parameters.get(key):
                raise Unsupported(f"{path}.parameters.{key}: not served here.", field=f"{path}.parameters")
        wanted[name] = _flag(parameters, "binary_data", f"{path}.parameters", binary)
    return wanted


# ---- out -------------------------------------------------------------------------------------------------------------


def write(result: Result, inference: Inference, model: str, version: int) -> tuple[bytes, int | None]:
    """
    The answer to an inference that succeeded, and how many of its first bytes are JSON (None = all).

    Raises InvalidInput for a wanted output that is not among the result's, or is no text and was not wanted as bytes.
    """
    if result.form == "raw":
        body = result.body
        sections = {section.name: section for section in tensors.sections(result.shapes, body)}
    else:
        body = tensors.join([result.body])
        sections = {"output": tensors.Section("output", BYTES, (1,), 0, len(body))}
    view = memoryview(body)
    wanted = inference.outputs if inference.outputs is not None else dict.fromkeys(sections, inference.binary)
    outputs: list[dict[str, object]] = []
    parts: list[Buffer] = []
    for name, binary in wanted.items():
        section = sections.get(name)
        if section is None:
            raise InvalidInput.at("outputs", f"unknown {name}; this function gives {', '.join(sections)}")
        own = view[section.start : section.stop]
        shown: dict[str, object] = {"name": name, "datatype": section.datatype, "shape": section.shape}
        if binary:
            shown["parameters"] = {"binary_data_size": len(own)}
            parts.append(own)
        else:
            shown["data"] = _unpacked(own, section)
        outputs.append(shown)
    document: dict[str, object] = {"model_name": model, "model_version": str(version), "outputs": outputs}
    if inference.id:
        document["id"] = inference.id
    if inference.priority:
        # There is one level, the default, as in Triton for a model without priority levels. The answer says so.
        document["parameters"] = {"priority": 0}
    header = orjson.dumps(document)
    # An empty tensor may be wanted as bytes too, so the request decides, not the number of bytes.
    return (b"".join((header, *parts)), len(header)) if any(wanted.values()) else (header, None)


def _unpacked(own: memoryview, section: tensors.Section) -> Sequence[object]:
    """A section as JSON elements, row-major; NaN and infinities, which JSON does not have, become null."""
    if section.datatype != BYTES:
        return struct.unpack(f"<{math.prod(section.shape)}{CODES[section.datatype]}", own)
    try:
        return [element.decode() for element in tensors.elements(own)]
    except UnicodeDecodeError as error:
        raise InvalidInput.at("outputs", f"{section.name} is not text; ask for it with binary_data") from error


# ---- content codings -------------------------------------------------------------------------------------------------


def decompress(body: bytes, coding: str, limit: int) -> bytes:
    """
    The body without its ``gzip`` or ``deflate`` (zlib's framing) coding. Raises PayloadTooLarge if it is longer than
    ``limit`` bytes, and Malformed.
    """
    decoder = zlib.decompressobj(CODINGS[coding])
    try:
        plain = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise Malformed(f"The body is not {coding}: {error}") from error
    if len(plain) > limit:
        raise PayloadTooLarge(f"The body may have {limit} bytes.", limit=limit)
    if not decoder.eof or decoder.unused_data:
        raise Malformed(f"The body is not {coding}: it ends too early or too late.")
    return plain


def compress(body: bytes, coding: str) -> bytes:
    """The body in a coding, at zlib's fastest level: the time of the gateway costs more than the bytes saved."""
    encoder = zlib.compressobj(1, zlib.DEFLATED, CODINGS[coding])
    return encoder.compress(body) + encoder.flush()
