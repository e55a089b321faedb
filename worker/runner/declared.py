"""
What a handler of JSON values declares in the annotations of ``predict``: the types of one input and of one output.

``async def predict(self, inputs: list[Question]) -> list[Answer]`` declares records, where ``Question`` is a pydantic
model, a dataclass, a msgspec Struct or a TypedDict. Inputs are checked and converted before ``predict`` gets them,
outputs become JSON, and both are described by their JSON Schemas. Other annotations declare nothing.
"""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from smore.domain.quote import quoted
from smore.handler import Handler
from worker import frames
from worker.runner.arrays import InvalidInput

_LISTS: Final = (list, Sequence, typing.Sequence)
#: Unknown fields that an error names.
_MOST_UNKNOWN: Final = 5


class Declared:
    """The records of a handler; None = not declared."""

    def __init__(self, handler: Handler) -> None:
        self._input, self._output = _records(handler)

    def read(self, value: Any) -> Any:
        """A JSON value as the declared input. Raises InvalidInput that names the place."""
        kind = self._input
        if kind is None or isinstance(value, kind if not _is_typed_dict(kind) else ()):
            return value
        if not _is_model(kind):
            try:
                return msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                raise InvalidInput(f"{error}{self._unknown(value)}") from error
        try:
            return kind.model_validate(value)
        except ValueError as error:
            raise InvalidInput(f"{_first(error)}{self._unknown(value)}") from error

    def _unknown(self, value: Any) -> str:
        """``; unknown: colour``: the fields of an input that was refused that the record does not have, "" = none."""
        schema = _schema(self._input) or {}
        reference = str(schema.get("$ref", "")).rpartition("/")[2]
        record = schema.get("$defs", {}).get(reference, {}) if reference else schema
        fields = record.get("properties")
        if not isinstance(value, dict) or fields is None:
            return ""
        unknown = [quoted(name) for name in value if name not in fields][:_MOST_UNKNOWN]
        return f"; unknown: {', '.join(unknown)}" if unknown else ""

    def plain(self, output: Any) -> Any:
        """An output that is a record, as a JSON value; any other one as it is."""
        if _is_model(type(output)):
            return output.model_dump(mode="json")
        return msgspec.to_builtins(output) if isinstance(output, msgspec.Struct) else output

    def schemas(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """The JSON Schemas of one input and of one output. None = not declared, or larger than a description may be."""
        return _schema(self._input), _schema(self._output)


def _records(handler: Handler) -> tuple[Any, Any]:
    predict = type(handler).predict
    try:
        hints = typing.get_type_hints(predict)
    except (NameError, TypeError, AttributeError):
        # An annotation of something that is imported for type checkers alone.
        return None, None
    returned = hints.pop("return", None)
    return _record(next(iter(hints.values()), None)), _record(returned)


def _record(annotation: Any) -> Any:
    """The record of ``list[record]``, None = it is something else."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) not in _LISTS or len(arguments) != 1:
        return None
    [kind] = arguments
    struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return kind if struct or _is_model(kind) or dataclasses.is_dataclass(kind) or _is_typed_dict(kind) else None


def _is_model(kind: Any) -> bool:
    """A pydantic model, known by its methods: pydantic may be one of the function's own packages."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def _is_typed_dict(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__required_keys__")


def _first(error: ValueError) -> str:
    """The first problem of a pydantic ValidationError, with its place."""
    errors = getattr(error, "errors", None)
    problems: Sequence[Mapping[str, Any]] = errors() if callable(errors) else ()
    if not problems:
        return str(error)
    place = ".".join(map(str, problems[0]["loc"]))
    return f"{place}: {problems[0]['msg']}" if place else str(problems[0]["msg"])


def _schema(kind: Any) -> dict[str, Any] | None:
    if kind is None:
        return None
    schema: dict[str, Any] = kind.model_json_schema() if _is_model(kind) else msgspec.json.schema(kind)
    return schema if len(msgspec.json.encode(schema)) <= frames.SCHEMA_BYTES else None
