"""
What is wrong with a value that is to be a declared record, place by place and in plain words, from the errors of
pydantic and msgspec. Used by :mod:`worker.runner.declared`.
"""

import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from smore.definition.inputs import kind_of
from smore.domain.quote import cut
from smore.domain.spelling import did_you_mean
from smore.domain.value_path import from_loc, written

#: Mistakes that a message names, and unknown fields of a record that are looked at; characters of a place and of its words.
_MOST: Final = 5
_MOST_WORDS: Final = 160
_MISSING: Final = "missing"
_UNKNOWN: Final = "unknown field"
#: What msgspec and pydantic expected, by their names for it.
_WANTED: Final[Mapping[str, str]] = dict(
    [
        ("str", "a string"),
        ("string", "a string"),
        ("float", "a number"),
        ("int", "a whole number"),
        ("bool", "a boolean"),
    ]
    + [(name, "a list") for name in ("array", "list", "tuple", "set")]
    + [(name, "an object") for name in ("object", "dict", "model", "dataclass")]
)
_MISSING_FIELD: Final = "Object missing required field `"
_UNKNOWN_FIELD: Final = "Object contains unknown field `"
#: Beginnings of pydantic's messages that say nothing.
_PREFIXES: Final = ("Value error, ", "Assertion failed, ", "Input ")

Path = tuple[str | int, ...]


class Mistake(NamedTuple):
    """``path``: names of fields and positions in lists, from the value inwards."""

    path: Path
    words: str

    def at(self, root: str) -> str:
        """``input.age``, for a value that is named ``input``."""
        inside = written(self.path)
        return root + (inside if inside.startswith("[") or not inside else f".{inside}")


def sentence(mistakes: Sequence[Mistake], root: str) -> str:
    """``input.age: a number is expected, not a string``, and the others behind it."""
    each = [f"{cut(mistake.at(root), _MOST_WORDS)}: {cut(mistake.words, _MOST_WORDS)}" for mistake in mistakes[:_MOST]]
    more = f"; and {len(mistakes) - _MOST} more" if len(mistakes) > _MOST else ""
    return "; ".join(each).replace("?; ", "? ") + more


def of_pydantic(error: ValueError, value: object, schema: Mapping[str, Any]) -> list[Mistake]:
    """Of a ValidationError about ``value``, which is to be as ``schema`` says."""
    by_path: dict[Path, list[str]] = {}
    for each in error.errors(include_url=False, include_context=False):  # type: ignore[attr-defined]  # maybe the function's
        by_path.setdefault(tuple(from_loc(each["loc"], each["type"], value)), []).append(_of_pydantic(each))
    mistakes = [Mistake(path, " or ".join(_alternatives(words))) for path, words in by_path.items()]
    return _with_unknown(mistakes, value, schema)


def _of_pydantic(error: Mapping[str, Any]) -> str:
    kind = str(error["type"])
    if kind == "missing":
        return _MISSING
    if kind == "extra_forbidden":
        return _UNKNOWN
    stem = kind.partition("_")[0]
    if stem in _WANTED and kind.endswith(("_type", "_parsing")):
        return f"{_WANTED[stem]} is expected, not {kind_of(error['input'])}"
    message = str(error["msg"])
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    return message[:1].lower() + message[1:]


def _alternatives(words: Sequence[str]) -> list[str]:
    """What would do at one place: ``a number is expected, not a list`` and what else would."""
    unique = list(dict.fromkeys(words))
    ends = {each.partition(" is expected, not ")[2] for each in unique}
    if len(unique) > 1 and len(ends) == 1 and all(ends):
        return [*(each.partition(" is expected, not ")[0] for each in unique[:-1]), unique[-1]]
    return unique


def of_msgspec(kind: Any, value: object, schema: Mapping[str, Any]) -> list[Mistake]:
    """Of a value that is no ``kind`` (a dataclass, a msgspec Struct or a TypedDict): the first one of each of its fields."""
    first = _attempt(kind, value)
    if first is None:
        return []
    mistakes = [first]
    if isinstance(value, dict) and first.path:
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]  # the kinds above have it
            name = field.encode_name
            if name not in value:
                mistake = Mistake((), _MISSING) if field.required else None
            else:
                mistake = _attempt(_without_required(hints[field.name]), value[name])
            if mistake is not None and first.path[0] != name:
                mistakes.append(Mistake((name, *mistake.path), mistake.words))
    return _with_unknown(mistakes, value, schema)


def _without_required(hint: Any) -> Any:
    """The type of a TypedDict's field, without ``Required`` and ``NotRequired``."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) in (typing.Required, typing.NotRequired) else hint


def _attempt(kind: Any, value: object) -> Mistake | None:
    """What msgspec finds first."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        path: Path = tuple(
            int(position) if position else name
            for name, position in re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", place.partition("$")[2])
        )
        for begin, words in ((_MISSING_FIELD, _MISSING), (_UNKNOWN_FIELD, _UNKNOWN)):
            if text.startswith(begin):
                return Mistake((*path, text.removeprefix(begin).rstrip("`")), words)
        return Mistake(path, _of_msgspec(text))
    return None


def _of_msgspec(text: str) -> str:
    """``Expected `float | null`, got `str` `` as ``a number or null is expected, not a string``."""
    if not text.startswith("Expected "):
        return text[:1].lower() + text[1:]
    wanted, _, got = _named(text.removeprefix("Expected ")).partition(", got ")
    return f"{wanted} is expected" + (f", not {got}" if got else "")


def _named(text: str) -> str:
    return re.sub(
        r"`([^`]*)`", lambda match: " or ".join(_WANTED.get(name, name) for name in match[1].split(" | ")), text
    )


def _with_unknown(mistakes: Sequence[Mistake], value: object, schema: Mapping[str, Any]) -> list[Mistake]:
    """
    The mistakes, with the fields that a record does not have: what is missing there is often misspelt. Names that the
    record has are suggested.
    """
    known = {mistake.path for mistake in mistakes}
    unknown = [mistake.path for mistake in mistakes if mistake.words == _UNKNOWN]
    for path in dict.fromkeys(mistake.path[:-1] for mistake in mistakes if mistake.words == _MISSING):
        names, there = _names(schema, path), _inside(value, path)
        if names is not None and isinstance(there, dict):
            more = ((*path, name) for name in there if name not in names)
            unknown += islice((each for each in more if each not in known), _MOST)
    # More are not shown, and a search for each would take long.
    named = [Mistake(path, _UNKNOWN + _hint(path, value, schema)) for path in unknown[:_MOST]]
    others = [mistake for mistake in mistakes if mistake.words != _UNKNOWN]
    return [*others, *named, *(Mistake(path, _UNKNOWN) for path in unknown[_MOST:])]


def _hint(path: Path, value: object, schema: Mapping[str, Any]) -> str:
    """``; did you mean income?``: of the names that the record has and the value has not."""
    there = _inside(value, path[:-1])
    given: Iterable[str] = there if isinstance(there, dict) else ()
    names = _names(schema, path[:-1]) or ()
    return did_you_mean(str(path[-1]), [name for name in names if name not in given])


def _inside(value: object, path: Path) -> object:
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
    return value


def _names(schema: Mapping[str, Any], path: Path) -> list[str] | None:
    """The fields of the record at ``path``. None = it is none, or one of several."""
    part: Mapping[str, Any] | None = _resolved(schema, schema)
    for step in path:
        if part is None:
            return None
        inner = part.get("items") if isinstance(step, int) else part.get("properties", {}).get(step)
        part = _resolved(inner, schema) if isinstance(inner, dict) else None
    return None if part is None or "properties" not in part else list(part["properties"])


def _resolved(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A part of the schema with its reference followed; of alternatives the only record among them."""
    records = [each for each in part.get("anyOf", ()) if "$ref" in each]
    if records:
        part = records[0] if len(records) == 1 else {}
    name = str(part.get("$ref", "")).rpartition("/")[2]
    return schema.get("$defs", {}).get(name) if name else part
