"""
Which attempts of a job may not start here any more. Used by :mod:`worker.training.jobs` under the lock of
:class:`worker.training.ranks.Ranks`.
"""

import time
from typing import Final

#: Seconds for which that is known of a job that is not here: a command is read within seconds, or its sender is past.
_KEPT_S: Final = 3600.0


class Fences:
    """Of each job the latest attempt whose end was heard of. Not thread-safe."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, float]] = {}

    def put(self, job: str, attempt: int, *, recorded: bool = False) -> None:
        """
        This attempt and those before it may not start any more. A command to stop attempt 0 stops whichever attempt runs,
        so it puts no fence; the ``recorded`` end of attempt 0 does.
        """
        if not attempt and not recorded:
            return
        mono = time.monotonic()
        for other in [other for other, (_, at) in self._latest.items() if mono - at > _KEPT_S]:
            del self._latest[other]
        latest, _ = self._latest.get(job, (0, mono))
        self._latest[job] = max(latest, attempt), mono

    def stands(self, job: str, attempt: int) -> bool:
        """Whether this attempt may not start any more."""
        return job in self._latest and attempt <= self._latest[job][0]
