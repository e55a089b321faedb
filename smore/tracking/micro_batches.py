"""
A batch in micro-batches (gradient accumulation): parts of it along axis 0, and the weight of each.

Tensors and arrays (whatever has a ``shape`` and can be sliced) are cut; mappings, tuples and lists are cut item by item. A
tuple or list without any tensor is a column of rows itself, where it has as many items as the batch has rows. Everything
else (a number, a text, None, a tensor of no axis) goes into every part as it is. Standard library alone.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

#: The variable in which the platform names the number of micro-batches.
VARIABLE: Final = "SMORE_MICRO_BATCHES"
#: The most that a job may name.
MOST: Final = 64


def asked() -> int:
    """How many the platform asks for; 1 outside it. Raises ValueError where the variable holds no such number."""
    named = os.environ.get(VARIABLE, "1")
    count = int(named) if named.isascii() and named.isdigit() else 0
    if not 1 <= count <= MOST:
        raise ValueError(f"{VARIABLE} is {named!r}, expected 1 to {MOST}")
    return count


def rows_of(batch: Any) -> int:
    """How many rows the tensors of a batch have. Raises ValueError where it has none, or where they differ."""
    counts = set(_lengths(batch))
    if not counts and isinstance(batch, tuple | list):
        counts = {len(batch)}
    if len(counts) != 1:
        shown = " and ".join(map(str, sorted(counts))) or "no"
        raise ValueError(f"the tensors of the batch have {shown} rows on axis 0")
    return counts.pop()


def cut(batch: Any, count: int) -> Iterator[tuple[Any, float]]:
    """
    The parts of a batch in their order, each with its share of the rows; sizes differ by one row at most.

    Raises ValueError where the batch has fewer rows than ``count``, or as :func:`rows_of` does.
    """
    rows = rows_of(batch)
    if rows < count:
        raise ValueError(f"the batch has {rows} rows, fewer than {count}")
    return _parts(batch, rows, count)


def _parts(batch: Any, rows: int, count: int) -> Iterator[tuple[Any, float]]:
    for number in range(count):
        begin, end = number * rows // count, (number + 1) * rows // count
        yield _slice(batch, begin, end, rows), (end - begin) / rows


def _lengths(batch: Any) -> Iterator[int]:
    """The rows of each tensor."""
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, tuple | list):
        shape: Any = getattr(batch, "shape", ())
        if len(shape):
            yield int(shape[0])
        return
    for item in batch:
        yield from _lengths(item)


def _slice(batch: Any, begin: int, end: int, rows: int) -> Any:
    if isinstance(batch, Mapping):
        return {name: _slice(item, begin, end, rows) for name, item in batch.items()}
    if isinstance(batch, tuple | list):
        if not any(True for _ in _lengths(batch)):
            return batch[begin:end] if len(batch) == rows else batch
        items = [_slice(item, begin, end, rows) for item in batch]
        # A named tuple.
        if make := getattr(batch, "_make", None):
            return make(items)
        return items if isinstance(batch, list) else tuple(items)
    return batch[begin:end] if len(getattr(batch, "shape", ())) else batch
