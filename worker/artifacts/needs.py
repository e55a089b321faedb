"""
What an uploaded function needs on this node before a runner can load it: its folder and, where it has requirements, its
environment.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import redis

from smore.blobs.store import SourceAway
from smore.domain.errors import SmoreError
from smore.domain.function import FunctionSpec
from smore.process import observability
from smore.redis.catalog import Catalog
from worker.artifacts.environments import BuildEnded, BuildFailed, Environments, environment_key
from worker.artifacts.folders import Artifacts

log = observability.logger(__name__)

#: A failure is told again without another try for so long.
FAILURE_S: Final = 60.0
#: How often what no revision names is removed.
SWEEP_S: Final = 3600.0


class SupplyFailed(Exception):
    """It cannot be had; the message is for the caller."""


class SupplyAway(Exception):
    """It cannot be had now."""


@dataclass(eq=False, slots=True)
class Supply:
    """
    Of one instance, until it is closed. ``environment`` None = the platform's packages will do; ``phases``:
    milliseconds of what had to be waited for.
    """

    folder: Path
    environment: Path | None
    phases: dict[str, float]
    _release: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        while self._release:
            self._release.pop()()


class Supplier:
    def __init__(
        self,
        *,
        artifacts: Artifacts,
        environments: Environments,
        catalog: Catalog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._artifacts = artifacts
        self._environments = environments
        self._catalog = catalog
        self._clock = clock
        self._failed: dict[str, tuple[float, str]] = {}
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._keep, name="supply", daemon=True).start()

    def take(self, function: str, spec: FunctionSpec) -> Supply:
        """For a function with an artifact. May take minutes. Raises SupplyFailed, SupplyAway."""
        assert spec.artifact is not None
        key = environment_key(spec.requirements, spec.artifact) if spec.requirements else ""
        self._refuse(spec.artifact.digest)
        began = self._clock()
        try:
            held = self._artifacts.take(function.partition("/")[0], spec.artifact)
        except (SourceAway, redis.ConnectionError, redis.TimeoutError) as error:
            raise SupplyAway(f"The uploaded folder cannot be fetched now: {error}") from error
        except (SmoreError, OSError) as error:
            raise self._failure(spec.artifact.digest, f"The uploaded folder cannot be had: {error}") from error
        supply = Supply(held.folder, None, {"fetch": (self._clock() - began) * 1e3}, [held.close])
        if not spec.requirements:
            return supply
        try:
            self._refuse(key)
            began = self._clock()
            environment = self._environments.take(spec.requirements, spec.artifact, held.folder)
        except (BuildFailed, OSError) as error:
            supply.close()
            raise self._failure(key, str(error)) from error
        except BuildEnded as error:
            supply.close()
            raise SupplyAway("The worker is ending.") from error
        except SupplyFailed:
            supply.close()
            raise
        supply.phases["environment"] = (self._clock() - began) * 1e3
        supply.environment = environment.folder
        supply._release.append(environment.close)
        return supply

    def _refuse(self, key: str) -> None:
        until, message = self._failed.get(key, (0.0, ""))
        if self._clock() < until:
            raise SupplyFailed(message)

    def _failure(self, key: str, message: str) -> SupplyFailed:
        self._failed = {name: told for name, told in self._failed.items() if self._clock() < told[0]}
        self._failed[key] = (self._clock() + FAILURE_S, message)
        return SupplyFailed(message)

    # ---- what is not needed any more ---------------------------------------------------------------------------------

    def _keep(self) -> None:
        while True:
            try:
                self.sweep()
            except (redis.RedisError, OSError) as error:
                log.warning("nothing swept", error=str(error))
            if self._stopped.wait(SWEEP_S):
                return

    def sweep(self) -> None:
        """Remove folders and environments that no revision names. Raises redis-py's errors, OSError."""
        specs = self._catalog.specs()
        if not specs:
            return  # a Redis that has just lost its mirror names nothing either
        uploaded = [(spec.requirements, spec.artifact) for spec in specs if spec.artifact is not None]
        self._artifacts.sweep({artifact.digest for _, artifact in uploaded})
        self._environments.shelf.sweep(
            {environment_key(requirements, artifact) for requirements, artifact in uploaded if requirements}
        )

    def stopping(self) -> None:
        """Build nothing more: another worker, or the next one here, begins anew."""
        self._environments.end()

    def close(self) -> None:
        self._stopped.set()
