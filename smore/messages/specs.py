"""The spec of a function as Redis (JSON) and Postgres (a column of JSON) keep it. Unknown fields are passed over."""

from collections.abc import Mapping
from typing import Any

import msgspec

from smore.domain.function import FunctionSpec, TensorSpec

encode_spec = msgspec.json.Encoder().encode
decode_spec = msgspec.json.Decoder(FunctionSpec).decode


def pack_spec(spec: FunctionSpec) -> dict[str, Any]:
    """The spec as a column of JSON takes it."""
    packed: dict[str, Any] = msgspec.to_builtins(spec, str_keys=True)
    return packed


def unpack_spec(packed: Mapping[str, Any]) -> FunctionSpec:
    """Inverse of :func:`pack_spec`."""
    return msgspec.convert(packed, FunctionSpec, str_keys=True)


def unpack_tensors(packed: object) -> tuple[TensorSpec, ...] | None:
    """Tensors that the first run of a revision has described; None = JSON values."""
    tensors: tuple[TensorSpec, ...] | None = msgspec.convert(packed, tuple[TensorSpec, ...] | None)
    return tensors
