"""Arrays as the raw encoding carries them, and values as JSON."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from smore.domain import tensors
from smore.domain.function import TensorSpec

if TYPE_CHECKING:
    import numpy


# ---- bodies ----------------------------------------------------------------------------------------------------------
def encode_json(value: object) -> bytes:
    """JSON; numpy arrays and numbers become nested lists and numbers. TypeError for what JSON cannot say."""

    def plain(other: object) -> object:
        tolist = getattr(other, "tolist", None)
        if tolist is None:
            raise TypeError(f"a {type(other).__name__} cannot be sent as JSON")
        return tolist()

    return msgspec.json.encode(value, enc_hook=plain)


def is_arrays(value: object) -> bool:
    """
    Whether ``value`` is a mapping of names to numpy arrays and nothing else. Does not import numpy: without it there is
    no array.
    """
    loaded = sys.modules.get("numpy")
    return (
        loaded is not None
        and isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(v, loaded.ndarray) for v in value.values())
    )


def numpy_type(datatype: str) -> str:
    """numpy's little-endian name of an Open Inference Protocol datatype; KeyError for an unknown one."""
    if datatype == tensors.BYTES:
        return "object"
    size = tensors.ITEM_BYTES[datatype]
    if datatype == "BOOL":
        return "|b1"
    return f"<{'f' if datatype.startswith('FP') else datatype[0].lower()}{size}"


def encode_raw(arrays: Mapping[str, "numpy.ndarray[Any, Any]"], declared: Sequence[TensorSpec]) -> tuple[bytes, str]:
    """
    The raw body and its ``Smore-Shape``: the arrays in declared order and datatype, C order, little-endian, one after
    the other.

    Raises ValueError when the names are not the declared ones or a value would be lost by the datatype's kind (a float
    for an integer).
    """
    import numpy as np

    names = [tensor.name for tensor in declared]
    if set(names) != set(arrays):
        raise ValueError(f"the function takes {', '.join(names)}, not {', '.join(map(str, arrays))}")
    parts, shapes = [], []
    for tensor in declared:
        array = arrays[tensor.name]
        wanted = np.dtype(numpy_type(tensor.datatype))
        texts = tensor.datatype == tensors.BYTES
        if not np.can_cast(array.dtype, wanted, casting="same_kind") or (texts and array.dtype.kind not in "OSU"):
            raise ValueError(f"{tensor.name}: {tensor.datatype} is expected, not {array.dtype}")
        if texts:
            flat = array.reshape(-1).tolist()
            parts.append(
                tensors.join(element.encode() if isinstance(element, str) else bytes(element) for element in flat)
            )
        else:
            parts.append(np.ascontiguousarray(array, dtype=wanted).tobytes())
        shapes.append(f"{tensor.name}={','.join(map(str, array.shape))}")
    return b"".join(parts), ";".join(shapes)


def decode_raw(body: bytes, shapes: str) -> dict[str, "numpy.ndarray[Any, Any]"]:
    """
    The arrays of a raw answer; ``shapes`` is its ``Smore-Outputs``, ``name:datatype:d0,d1;…``. They are read-only views
    of ``body``.
    """
    import numpy as np

    arrays = {}
    for section in tensors.sections(shapes, body):
        own = memoryview(body)[section.start : section.stop]
        if section.datatype == tensors.BYTES:
            flat = np.fromiter(tensors.elements(own), dtype=object)
        else:
            flat = (
                np.frombuffer(own, numpy_type(section.datatype)) if own else np.empty(0, numpy_type(section.datatype))
            )
        arrays[section.name] = flat.reshape(section.shape)
    return arrays
