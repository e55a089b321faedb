"""
What a handler of JSON values declares in the annotations of ``predict``: the types of one input and of one output.

``async def predict(self, inputs: list[Question]) -> list[Answer]`` declares records, where ``Question`` is a pydantic
model, a dataclass, a msgspec Struct or a TypedDict. Inputs are checked and converted before ``predict`` gets them,
outputs become JSON and are checked as such, and both are described by their JSON Schemas. Other annotations declare nothing.
"""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from smore.handler import Handler
from worker import frames
from worker.runner.arrays import BadOutput, InvalidInput
from worker.runner.mistakes import Mistake, of_msgspec, of_pydantic, sentence

_LISTS: Final = (list, Sequence, typing.Sequence)
#: What an error adds about an output of null.
_NULL: Final = " (NaN and infinity become null)"


class Declared:
    """The records of a handler; None = not declared."""

    def __init__(self, handler: Handler) -> None:
        self._input, self._output = _records(handler)
        checked = self._output is not None and not _is_model(self._output)
        self._decoder = msgspec.json.Decoder(self._output) if checked else None

    def read(self, value: Any, root: str = "input") -> Any:
        """A JSON value as the declared input. Raises InvalidInput that names the places, below ``root``."""
        kind = self._input
        if kind is None or _is_record(value, kind):
            return value
        try:
            return kind.model_validate(value) if _is_model(kind) else msgspec.convert(value, kind)
        except ValueError as error:
            mistakes = _mistakes(kind, value, error)
            if not mistakes:
                raise
            raise InvalidInput(sentence(mistakes, root), mistakes[0].at(root)) from error

    def plain(self, output: Any) -> Any:
        """An output that is a record, as a JSON value; any other one as it is. Raises BadOutput."""
        try:
            if _is_model(type(output)):
                return output.model_dump(mode="json")
            return msgspec.to_builtins(output) if isinstance(output, msgspec.Struct) else output
        except (ValueError, TypeError) as error:
            raise BadOutput(f"the output is not JSON: {error}") from error

    def check(self, output: Any, encoded: bytes) -> None:
        """
        Whether ``encoded``, the JSON of ``output``, is the declared output. Raises BadOutput that names the places. An
        instance of a declared pydantic model passes: pydantic has checked it.
        """
        kind = self._output
        if kind is None or (_is_model(kind) and _is_record(output, kind)):
            return
        try:
            if self._decoder is None:
                kind.model_validate_json(encoded, strict=True)
            else:
                self._decoder.decode(encoded)
        except ValueError as error:
            mistakes = _mistakes(kind, msgspec.json.decode(encoded), error)
            words = sentence(mistakes, "output") if mistakes else f"the output is not as declared: {error}"
            raise BadOutput(words + (_NULL if "not null" in words else "")) from error

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


def _is_record(value: Any, kind: Any) -> bool:
    return not _is_typed_dict(kind) and isinstance(value, kind)


def _mistakes(kind: Any, value: Any, error: ValueError) -> list[Mistake]:
    """What is wrong with a value that is no ``kind``; empty where that is not known."""
    schema = _whole_schema(kind)
    if not _is_model(kind):
        return of_msgspec(kind, value, schema)
    return of_pydantic(error, value, schema) if hasattr(error, "errors") else []


def _schema(kind: Any) -> dict[str, Any] | None:
    if kind is None:
        return None
    schema = _whole_schema(kind)
    return schema if len(msgspec.json.encode(schema)) <= frames.SCHEMA_BYTES else None


def _whole_schema(kind: Any) -> dict[str, Any]:
    schema: dict[str, Any] = kind.model_json_schema() if _is_model(kind) else msgspec.json.schema(kind)
    return schema
