"""What the rule is told of a job: what its owner asks for, and what is known of its workload. Memory in MiB, times in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from smore.domain.job import JobRequest


class Needs(NamedTuple):
    """
    What a job asks of GPU instances: ``size`` of them, those of ``pins`` where it names them, on ``home`` where its
    checkpoint binds it to a node. ``memory_mib`` 0 = whatever there is.
    """

    size: int
    pins: tuple[str, ...]
    device: str
    memory_mib: float
    home: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """
    A way to run a job: its batch in ``count`` parts, one after the other (gradient accumulation). It needs
    ``memory_mib`` then on each GPU instance, and an iteration takes ``factor`` times as long as in one part.
    """

    count: int
    memory_mib: float
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """
    A training. ``request``: what its owner asks for.

    ``memory_mib``: what is kept for it on each GPU instance; 0 = not known, so all of it. ``iteration_s``: the profile's
    time of an iteration by device, and ``former_s`` that in former runs on as many GPU instances. ``micro_batches``: other
    ways to run it where the memory is short, by ``count``, which is above 1; ``not_allowed``: more of them, which its owner did
    not allow and of which an explanation may tell.

    ``by``: the moment by which it is to have ended, epoch seconds; None = whenever. ``speeds``: how fast it runs on other
    numbers of GPU instances, as a multiple of its speed on ``count``; a setting that changes numbers (``elastic``) chooses
    among these. Empty = it runs on ``count`` alone.
    """

    id: str
    project: str
    name: str = ""
    request: JobRequest
    memory_mib: float = 0.0
    iteration_s: Mapping[str, float] = field(default_factory=dict)
    former_s: Mapping[str, float] = field(default_factory=dict)
    micro_batches: tuple[MicroBatches, ...] = ()
    not_allowed: tuple[MicroBatches, ...] = ()
    by: float | None = None
    speeds: Mapping[int, float] = field(default_factory=dict)

    def way(self, count: int) -> MicroBatches:
        """How it runs in so many micro-batches; of a number that is not among its ways, as it runs in one."""
        whole = MicroBatches(count=count, memory_mib=self.memory_mib)
        return next((way for way in self.micro_batches if way.count == count), whole)

    @property
    def size(self) -> int:
        """GPU instances that it holds while it runs."""
        return len(self.request.gpus) or self.request.count
