"""
What a job needs in micro-batches, from the profile of its workload at several batches.

With ``c(b)`` the time of forward, backward and step at a batch of ``b`` rows, on a straight line through the profile, an
iteration of ``B`` rows in ``s`` micro-batches takes ``s c(B / s)`` and its wait for input. Memory falls by what the rows
take that are not there at a time, again on a straight line.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Final

from scheduler.policy.jobs.spec import MicroBatches
from smore.domain.workload import ProfiledBatch

#: A line wants as many batches.
_LEAST: Final = 2


def ways(
    counts: Iterable[int], memory_mib: float, batch: int, profile: Sequence[ProfiledBatch]
) -> tuple[MicroBatches, ...]:
    """
    The ways to run a job beside its whole batch: it needs ``memory_mib`` with ``batch`` rows and can be run in so many
    micro-batches. () where the profile has too few batches to tell: then nobody knows what they take.
    """
    if memory_mib <= 0 or len({row.batch for row in profile}) < _LEAST:
        return ()
    fixed_s, row_s = _line([(row.batch, row.seconds - row.input_wait_s) for row in profile])
    wait_s, row_wait_s = _line([(row.batch, row.input_wait_s) for row in profile])
    _, row_mib = _line([(row.batch, row.memory_mib) for row in profile])
    wait = wait_s + row_wait_s * batch
    alone_s = fixed_s + row_s * batch + wait
    if alone_s <= 0:
        return ()
    found = []
    for count in sorted(set(counts)):
        if not 1 < count <= batch:
            continue
        # The largest part decides about memory.
        rows = -(-batch // count)
        saved = min(max(0.0, row_mib) * (batch - rows), memory_mib * (1 - rows / batch))
        factor = (count * fixed_s + row_s * batch + wait) / alone_s
        found.append(MicroBatches(count=count, memory_mib=memory_mib - saved, factor=max(1.0, factor)))
    return tuple(found)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: the value at 0, at least 0, and the slope."""
    x, y = fmean(point[0] for point in points), fmean(point[1] for point in points)
    slope = sum((point[0] - x) * (point[1] - y) for point in points) / sum((point[0] - x) ** 2 for point in points)
    return max(0.0, y - slope * x), slope
