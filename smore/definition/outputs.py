"""Whether a function gives the outputs that its function.yaml declares, and takes and gives what it did before."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from smore.domain.function import TensorSpec

#: Of the description that a first run gives: the tensors, and the schema of JSON values that takes their place.
_SIDES: Final = {"inputs": "input_schema", "outputs": "output_schema"}

#: Parts of a JSON Schema that are words for people, and parts whose keys are names of fields and records.
_WORDS: Final = ("title", "description", "examples")
_BY_NAME: Final = ("properties", "$defs")

Schema = Mapping[str, Any]


def misfit(declared: Sequence[TensorSpec], given: Sequence[TensorSpec] | None) -> str:
    """
    What is not as declared, in words, '' = nothing. ``given``: tensors of a run, with -1 for the rows; None = the function
    gives JSON values. A declared axis of -1 takes any size.
    """
    if given is None:
        return "outputs: tensors are declared, and the handler gives JSON values"
    by_name = {tensor.name: tensor for tensor in given}
    wanted = [tensor.name for tensor in declared]
    if by_name.keys() != set(wanted):
        return f"outputs: {', '.join(wanted)} are declared, and the handler gives {', '.join(by_name)}"
    for tensor in declared:
        found = by_name[tensor.name]
        if found.datatype != tensor.datatype:
            return f"outputs.{tensor.name}: {tensor.datatype} is declared, and the handler gives {found.datatype}"
        fits = len(found.shape) == len(tensor.shape) and all(
            size in (-1, given_size) for size, given_size in zip(tensor.shape, found.shape, strict=True)
        )
        if not fits:
            return (
                f"outputs.{tensor.name}: the shape {list(tensor.shape)} is declared, and the handler gives"
                f" {list(found.shape)}"
            )
    return ""


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """
    How what a revision takes and gives differs from an earlier one, in words, by the descriptions of their first runs.
    Sizes of the example aside, JSON values differ only as far as their handlers declare types, and are named by field at
    the top level of a record.
    """
    words = []
    for side, schema in _SIDES.items():
        if side not in before or side not in now:
            continue
        old, new = _shapes(before[side]), _shapes(now[side])
        if old is None or new is None:
            if (old is None) != (new is None):
                kinds = ("JSON values", "tensors")
                words.append(f"{side}: {kinds[new is not None]}, before: {kinds[old is not None]}")
            else:
                words += _schema_changes(side, before.get(schema), now.get(schema))
            continue
        words += [
            f"{side}.{name}: {new.get(name, 'gone')}, before: {old.get(name, 'not there')}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
    return words


def _shapes(tensors: Sequence[Mapping[str, Any]] | None) -> dict[str, str] | None:
    if tensors is None:
        return None
    return {tensor["name"]: f"{tensor['datatype']} {list(tensor['shape'])}" for tensor in tensors}


def _schema_changes(side: str, before: Schema | None, now: Schema | None) -> list[str]:
    """As :func:`changes`, of JSON values: by field where both schemas are of records."""
    if before is None or now is None:
        return [] if before is now else [f"{side}: types are {'no longer' if now is None else 'now'} declared"]
    (old_fields, old_rest), (new_fields, new_rest) = _record(before), _record(now)
    words = []
    for name in dict.fromkeys((*old_fields, *new_fields)):
        old, new = old_fields.get(name), new_fields.get(name)
        if old == new:
            continue
        old_words, new_words = old[0] if old else "not there", new[0] if new else "gone"
        if old_words == new_words:
            words.append(f"{side}.{name}: {new_words} as before, but its parts or bounds have changed")
        else:
            words.append(f"{side}.{name}: {new_words}, before: {old_words}")
    if not words and old_rest != new_rest:
        words.append(f"{side}: the types that the handler declares have changed")
    return words


def _record(schema: Schema) -> tuple[dict[str, tuple[str, object]], object]:
    """
    By field of the record that a schema describes: its type in words, and all that is known of it. And what the schema says
    beside its fields.
    """
    bare = _bare(schema)
    definitions: Schema = bare.get("$defs", {})
    record = definitions.get(_referred(bare), bare)
    required = record.get("required", ())
    fields = {
        name: (_type(part) + ("" if name in required else " (optional)"), _whole(part, definitions))
        for name, part in record.get("properties", {}).items()
    }
    rest = {key: part for key, part in record.items() if key not in ("properties", "required", "$defs")}
    return fields, _whole(rest, definitions)


def _referred(part: Schema) -> str:
    return str(part.get("$ref", "")).rpartition("/")[2]


def _type(part: Schema) -> str:
    """``number or null``, ``array of Word``."""
    alternatives = part.get("anyOf") or part.get("oneOf")
    if alternatives:
        return " or ".join(map(_type, alternatives))
    kind = _referred(part) or part.get("type", "any")
    items = part.get("items")
    return f"array of {_type(items)}" if kind == "array" and isinstance(items, dict) else str(kind)


def _whole(part: Schema, definitions: Schema) -> object:
    """A part of a schema with all definitions that it refers to, directly or not."""
    used: dict[str, Any] = {}
    left: list[Any] = [part]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            name = _referred(each)
            if name in definitions and name not in used:
                used[name] = definitions[name]
                left.append(definitions[name])
            left += each.values()
        elif isinstance(each, list):
            left += each
    return part, used


def _bare(part: Any) -> Any:
    """A schema without what a caller does not notice: titles and descriptions."""
    if isinstance(part, list):
        return [_bare(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: {name: _bare(each) for name, each in value.items()} if key in _BY_NAME else _bare(value)
        for key, value in part.items()
        if key not in _WORDS
    }
