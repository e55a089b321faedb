"""A thread that looks at the trainings again and again, apart from the heartbeat, which may wait for Redis."""

import threading
from collections.abc import Callable

from smore.process import observability

log = observability.logger(__name__)


class Looker:
    """Calls ``look`` every ``every_s`` seconds; an error is logged, and the next look may succeed."""

    def __init__(self, name: str, every_s: float, look: Callable[[], None]) -> None:
        self._name, self._every_s, self._look = name, every_s, look
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin, in a thread of its own."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self._look()
            except Exception:
                log.exception("look failed", thread=self._name)
