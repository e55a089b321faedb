"""Whether the outputs that a function gives are those that its function.yaml declares."""

from collections.abc import Sequence

from smore.domain.function import TensorSpec


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
