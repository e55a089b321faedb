"""What the rule for trainings is told of a job: what its owner asks for, and what the profile of its workload says."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from scheduler.jobs.sharing import AloneOf
from scheduler.policy.jobs.parts import ways
from scheduler.policy.jobs.spec import JobSpec
from smore.domain.job import RESERVE, JobRequest
from smore.domain.workload import ProfiledBatch
from smore.messages.reports import Report
from smore.postgres.history.reader import Reader

#: (A GPU instance, seconds of an iteration) of former runs of a workload on so many GPU instances.
FormerOf = Callable[[str, int], list[tuple[str, float]]]
#: Numbers of micro-batches of which an explanation tells where the owner did not allow them.
_TOLD: Final = (2, 4, 8, 16)


class Specs:
    """
    ``published``: what the degradation table has of iterations alone, which counts where no profile was imported; ``former``:
    what iterations took in former runs.
    ``places``: GPU instance → (device, sharing mode), of all that have reported.
    """

    def __init__(self, reader: Reader, published: AloneOf, former: FormerOf) -> None:
        self._reader: Final = reader
        self._former: Final = former
        self._published: Final = published
        self.places: dict[str, tuple[str, str]] = {}

    def see(self, reports: Sequence[Report]) -> None:
        self.places |= {report.gpu: (report.device, report.sharing_mode) for report in reports}

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """The devices with their sharing modes, each once."""
        return sorted(set(self.places.values()))

    def of(self, id_: str, project: str, name: str, request: JobRequest) -> JobSpec:
        """What the rule knows of a job."""
        batches: list[ProfiledBatch] = []
        if request.share > 0 and request.workload:
            profiles = (self._reader.training_batches(request.workload, place) for place in self.kinds)
            batches = max(profiles, key=len, default=[])
        memory_mib = request.memory_mib * (1 + RESERVE)
        batch = int(request.workload.rsplit("/", 1)[1]) if request.workload else 0
        return JobSpec(
            id=id_,
            project=project,
            name=name,
            request=request,
            memory_mib=memory_mib,
            iteration_s=self._iteration_s(request),
            former_s=self._former_s(request),
            by=request.by or None,
            micro_batches=ways(request.micro_batches, memory_mib, batch, batches),
            not_allowed=ways(set(_TOLD).difference(request.micro_batches), memory_mib, batch, batches),
        )

    def alone_s(self, workload: str, place: tuple[str, str]) -> float | None:
        """The profile's time of an iteration, seconds; None = nobody has measured this workload at this place."""
        timings = self._reader.solo_timings(workload, place)
        return timings[0]["mean"] if timings else self._published(workload, place)

    def _former_s(self, request: JobRequest) -> dict[str, float]:
        """By device, as of the GPU instances that have reported."""
        if not request.workload or not request.iterations:
            return {}
        found: dict[str, list[float]] = {}
        for gpu, seconds in self._former(request.workload, len(request.gpus) or request.count):
            if gpu in self.places:
                found.setdefault(self.places[gpu][0], []).append(seconds)
        return {device: median(times) for device, times in found.items()}

    def _iteration_s(self, request: JobRequest) -> dict[str, float]:
        """By device. A profile is of one GPU instance, and says nothing of a gang."""
        if not request.workload or not request.iterations or (len(request.gpus) or request.count) > 1:
            return {}
        times = {place: self.alone_s(request.workload, place) for place in self.kinds}
        return {device: alone_s for (device, _), alone_s in times.items() if alone_s is not None}
