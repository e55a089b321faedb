"""The ranks of one GPU instance, and the sums over them that other parts of its worker ask for."""

import threading
import time

from worker import proc
from worker.training.job import Rank


class Ranks:
    """
    Those too that are over, until they are forgotten, by the keys of their records. ``lock``, a reentrant one, guards them
    and all that is in them. The sums of memory are read without it, because the pool asks for them with its own lock held,
    and a sum that is a moment old does.

    ``owns_rest``: a training whose memory nobody has declared is left all of the device until it has shown what it needs
    (on a GPU its first iteration takes most of that at once).
    """

    def __init__(self, *, owns_rest: bool = False) -> None:
        self.lock = threading.RLock()
        self._owns_rest = owns_rest
        self._by_key: dict[str, Rank] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def add(self, job: Rank) -> None:
        self._by_key[job.record.key] = job

    def remove(self, job: Rank) -> None:
        del self._by_key[job.record.key]

    def get(self, key: str) -> Rank | None:
        return self._by_key.get(key)

    def all(self) -> list[Rank]:
        """In the order in which they came."""
        return list(self._by_key.values())

    def of(self, id_: str) -> list[Rank]:
        """The ranks here of a job, of all its attempts."""
        return [job for job in self.all() if job.record.id == id_]

    def running(self) -> list[str]:
        """Ids of jobs that run and count."""
        with self.lock:
            return list(dict.fromkeys(job.record.id for job in self.all() if job.counts))

    def memory_mib(self) -> float:
        """Of the device, held or reserved, whichever is more for each rank. No lock, see the class."""
        return sum(max(job.memory_mib, job.reserve_mib) for job in self.all())

    def owed_mib(self) -> float:
        """Of the device, reserved and not yet held. No lock, see the class."""
        return sum(max(0.0, job.reserve_mib - job.memory_mib) for job in self.all())

    def growing(self) -> str:
        """Why all that the device has left belongs to a job for now, '' = it does not. No lock, see the class."""
        if not self._owns_rest:
            return ""
        mono = time.monotonic()
        id_ = next((job.record.id for job in self.all() if job.growing(mono)), None)
        if id_ is None:
            return ""
        return f"Nobody has said how much memory the training {id_} needs (--memory), and it has not shown it yet."

    def cpu_s(self) -> float:
        """CPU seconds of all running ranks with their descendants."""
        return sum(proc.cpu_s(pid) for pid in self.pids())

    def pids(self) -> list[int]:
        """Process numbers of all running ranks with their descendants, as far as they can be seen."""
        with self.lock:
            records = [job.record for job in self.all() if job.running]
        return [pid for record in records for pid in record.processes()]
