"""Whether a function gives the outputs that its function.yaml declares, and takes and gives what it did before."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from smore.domain.function import TensorSpec

#: Of the description that a first run gives: the tensors, and the schema of JSON values that takes their place.
_SIDES: Final = {"inputs": "input_schema", "outputs": "output_schema"}


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
    Sizes of the example aside, JSON values differ only as far as their handlers declare types.
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
            elif before.get(schema) != now.get(schema):
                words.append(f"{side}: the types that the handler declares have changed")
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
