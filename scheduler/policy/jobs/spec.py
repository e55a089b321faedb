"""What the rule knows of a job from its owner. Memory in MiB, times in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    A training that asks for ``count`` GPU instances, or for those that ``gpus`` names (a pin).

    ``device``: the kind that it must have, '' = any. ``memory_mib`` on each GPU instance; 0 = not known, so all of it.
    Its length is said by ``iterations`` or ``duration_s`` (0 = not said); ``iteration_s``: the profile's time of an
    iteration by device. ``restarts``: how often it may be started again.

    ``share``: an iteration may take up to 1 + ``share`` times as long because of another training; 0 = nobody runs
    beside it. ``workload``: the profile by which it is known what it costs others and they it, '' = none.
    ``micro_batches``: other ways to run it where the memory is short, by ``count``, which is above 1; ``not_allowed``: more
    of them, which its owner did not allow and of which an explanation may tell.

    ``speeds``: how fast it runs on other numbers of GPU instances, as a multiple of its speed on ``count``; a setting that
    changes numbers (``elastic``) chooses among these. Empty = it runs on ``count`` alone.
    """

    id: str
    project: str
    name: str = ""
    count: int = 1
    gpus: tuple[str, ...] = ()
    device: str = ""
    memory_mib: float = 0.0
    iterations: int = 0
    duration_s: float = 0.0
    iteration_s: Mapping[str, float] = field(default_factory=dict)
    restarts: int = 0
    share: float = 0.0
    workload: str = ""
    micro_batches: tuple[MicroBatches, ...] = ()
    not_allowed: tuple[MicroBatches, ...] = ()
    speeds: Mapping[int, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """GPU instances that it holds while it runs."""
        return len(self.gpus) or self.count
