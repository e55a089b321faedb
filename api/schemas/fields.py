"""The kinds of fields that bodies have, and what every body of a request is."""

import ast
import inspect
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    Strict,
)
from pydantic.json_schema import JsonSchemaValue

from smore.domain.access import Key
from smore.domain.audit import AuditEntry
from smore.domain.function import NAME, TensorSpec
from smore.domain.job import BudgetStep, JobDecision, JobPlace
from smore.domain.limits import Limits
from smore.domain.predictor import PredictorVersion
from smore.domain.secret import Secret

#: Parts of bodies that are no :class:`Schema`.
_PARTS: Final = (AuditEntry, BudgetStep, JobDecision, JobPlace, Key, Limits, PredictorVersion, Secret, TensorSpec)

#: JSON's own numbers and truths: ``true`` is no number of milliseconds, ``"1"`` none either.
Number = Annotated[float, Strict()]

Whole = Annotated[int, Strict()]

Flag = Annotated[bool, Strict()]

#: No character that Postgres and an argv cannot hold.
STORABLE: Final = r"^[^\x00]*$"

Text = Annotated[str, Field(max_length=4096, pattern=STORABLE)]


def spelt(pattern: re.Pattern[str]) -> dict[str, JsonValue]:
    """What the document says of a name that is checked elsewhere, where the error says more."""
    return {"pattern": f"^(?:{pattern.pattern})$"}


#: Of a function, a project or a job; smore/domain/function.py refuses others.
Name = Annotated[str, Field(json_schema_extra=spelt(NAME))]


#: A short one: a name, or what a list is searched for.
Word = Annotated[str, Field(max_length=256, pattern=STORABLE)]


def _dated(value: object) -> object:
    """Pydantic takes a number for seconds since 1970, which ``format: date-time`` does not say."""
    if isinstance(value, str) and "T" not in value.upper():
        raise ValueError("a date and a time with its offset are expected (RFC 3339)")
    return value


def _on_the_calendar(value: datetime) -> datetime:
    """A first day of the year 1 east of Greenwich is before it in UTC, and no moment there."""
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("a moment in the years 1 to 9999 of UTC is expected") from error


#: Of a variable: execve takes neither an empty one nor one with = or a null byte in it.
Variable = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^=\x00]*$")]

#: A moment that a caller names.
Moment = Annotated[AwareDatetime, BeforeValidator(_dated), AfterValidator(_on_the_calendar)]


@cache
def _texts(kind: type) -> dict[str, str]:
    """The texts below the fields of a class, by field."""
    (found,) = ast.parse(inspect.getsource(kind)).body
    body = found.body if isinstance(found, ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


class Schema(BaseModel):
    """The text below a field is its description in the OpenAPI document, and in the client's types."""

    @classmethod
    def of(cls, source: object, **given: object) -> Self:
        """With what is ``given``, else what ``source`` has under a field's name; epoch seconds become moments."""
        return cls.model_validate(cls.row(source, **given), from_attributes=True)

    @classmethod
    def row(cls, source: object, **given: object) -> dict[str, Any]:
        """The fields of :meth:`of` as they are, by name."""
        return {name: getattr(source, name) for name in cls.model_fields if hasattr(source, name)} | given

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Read the texts where they are asked for: ``use_attribute_docstrings`` reads them at import, which takes long."""
        schema = handler(core_schema)
        for kind in cls.__mro__[: cls.__mro__.index(Schema)]:
            for field, text in _texts(kind).items():
                handler.resolve_ref_schema(schema)["properties"][field].setdefault("description", text)
        return schema


def describe_parts(schemas: Mapping[str, dict[str, Any]]) -> None:
    """Add to an OpenAPI document's schemas the texts below the fields of what is no :class:`Schema`."""
    for kind in _PARTS:
        for field, text in _texts(kind).items():
            schemas[kind.__name__]["properties"][field].setdefault("description", text)


class Body(Schema):
    """An unknown field is refused: a misspelt one must not pass as a default."""

    model_config = ConfigDict(extra="forbid")


#: Seconds; null = until it is taken back.
For = Annotated[Number | None, Field(gt=0, le=31_536_000, allow_inf_nan=False)]
