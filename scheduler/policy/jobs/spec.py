"""What the rule knows of a job from its owner. Memory in MiB, times in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """
    A training that asks for ``count`` GPU instances, or for those that ``gpus`` names (a pin).

    ``device``: the kind that it must have, '' = any. ``memory_mib`` on each GPU instance; 0 = not known, so all of it.
    Its length is said by ``iterations`` or ``duration_s`` (0 = not said); ``iteration_s``: the profile's time of an
    iteration by device. ``restarts``: how often it may be started again.
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

    @property
    def size(self) -> int:
        """GPU instances that it holds while it runs."""
        return len(self.gpus) or self.count
