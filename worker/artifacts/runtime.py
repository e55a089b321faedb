"""
What an uploaded function needs on this node before a runner can load it: its folder and, where it has requirements, a
virtual environment with them. Provided to the warm pool out of the artifact caches that the node's workers share.

What must stay true: a folder or an environment is not removed while a :class:`RuntimeEnvironment` that names it is
open.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import redis

from smore.blobs.store import SourceAway
from smore.domain.errors import SmoreError
from smore.domain.function import FunctionSpec
from smore.process import observability
from smore.redis.catalog import Catalog
from worker.artifacts.environments import BuildEnded, BuildFailed, Environments, chosen, environment_key
from worker.artifacts.folders import Artifacts

log = observability.logger(__name__)

#: Seconds for which a failure is answered again without another try.
FAILURE_S: Final = 60.0
#: The phases of a cold start that a node needs once.
PREPARING: Final = ("fetch", "environment")
#: Seconds between two looks at which revisions take the traffic, and from a failure to prepare one to the next try.
PREPARE_S: Final = 5.0
PREPARE_AGAIN_S: Final = 600.0
#: Seconds between two removals of what no revision names.
SWEEP_S: Final = 3600.0


class RuntimeFailed(Exception):
    """The runtime environment cannot be made; the message is for the caller."""


class RuntimeUnavailable(Exception):
    """The runtime environment cannot be made now; later, or on another worker, it may."""


@dataclass(eq=False, slots=True)
class RuntimeEnvironment:
    """
    What one instance runs on, kept on this node until it is closed. ``environment`` None = the platform's packages will
    do; ``phases``: milliseconds of what had to be waited for, by phase.
    """

    folder: Path
    environment: Path | None
    phases: dict[str, float]
    _release: list[Callable[[], None]] = field(default_factory=list)

    def chosen(self, requirements: Sequence[str]) -> list[str]:
        """The versions that were left to pip (:func:`worker.artifacts.environments.chosen`)."""
        return [] if self.environment is None else chosen(requirements, self.environment)

    def close(self) -> None:
        """Give it up; may be called again."""
        while self._release:
            self._release.pop()()


@dataclass(eq=False, kw_only=True)
class RuntimeProvider:
    """
    Fetches folders and builds environments, for the revisions that take the traffic before anybody asks for them, and
    removes those that no revision names. ``clock`` gives seconds. Safe from any thread: the caches below it lock, and
    failures are replaced as a whole.
    """

    artifacts: Artifacts
    environments: Environments
    catalog: Catalog
    clock: Callable[[], float] = time.monotonic
    _failed: dict[str, tuple[float, str]] = field(default_factory=dict, init=False)
    #: Revisions that were prepared here, and when the others are tried again; the thread's own.
    _prepared: set[tuple[str, int]] = field(default_factory=set, init=False)
    _prepare_at: dict[tuple[str, int], float] = field(default_factory=dict, init=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False)

    def start(self) -> None:
        """Begin to prepare what is needed and to remove what is not, in a thread of its own."""
        threading.Thread(target=self._run, name="artifacts", daemon=True).start()

    def provide(self, function: str, spec: FunctionSpec) -> RuntimeEnvironment:
        """
        For a function with an artifact, the caller's to close. May take minutes. Raises RuntimeFailed,
        RuntimeUnavailable.
        """
        assert spec.artifact is not None
        key = environment_key(spec.requirements, spec.artifact) if spec.requirements else ""
        self._refuse(spec.artifact.digest)
        began = self.clock()
        try:
            held = self.artifacts.take(function.partition("/")[0], spec.artifact)
        except (SourceAway, redis.ConnectionError, redis.TimeoutError) as error:
            raise RuntimeUnavailable(f"The uploaded folder cannot be fetched now: {error}") from error
        except (SmoreError, OSError) as error:
            raise self._failure(spec.artifact.digest, f"The uploaded folder cannot be had: {error}") from error
        runtime = RuntimeEnvironment(held.folder, None, {"fetch": (self.clock() - began) * 1e3}, [held.close])
        if not spec.requirements:
            return runtime
        try:
            self._refuse(key)
            began = self.clock()
            environment = self.environments.take(spec.requirements, spec.artifact, held.folder)
        except (BuildFailed, OSError) as error:
            runtime.close()
            raise self._failure(key, str(error)) from error
        except BuildEnded as error:
            runtime.close()
            raise RuntimeUnavailable("The worker is ending.") from error
        except RuntimeFailed:
            runtime.close()
            raise
        runtime.phases["environment"] = (self.clock() - began) * 1e3
        runtime.environment = environment.folder
        runtime._release.append(environment.close)
        return runtime

    def _refuse(self, key: str) -> None:
        until, message = self._failed.get(key, (0.0, ""))
        if self.clock() < until:
            raise RuntimeFailed(message)

    def _failure(self, key: str, message: str) -> RuntimeFailed:
        self._failed = {name: failure for name, failure in self._failed.items() if self.clock() < failure[0]}
        self._failed[key] = (self.clock() + FAILURE_S, message)
        return RuntimeFailed(message)

    # ---- ahead of requests, and behind them --------------------------------------------------------------------------

    def _run(self) -> None:
        sweep_at = self.clock()
        while True:
            try:
                self.prepare()
                if self.clock() >= sweep_at:
                    self.sweep()
                    sweep_at = self.clock() + SWEEP_S
            except (redis.RedisError, OSError) as error:
                log.warning("neither prepared nor swept", error=str(error))
            if self._stopped.wait(PREPARE_S):
                return

    def prepare(self) -> None:
        """
        Have what the revisions that take the traffic need on this node, so that no cold start waits for it. Raises
        redis-py's errors.
        """
        now, in_force = self.clock(), set[tuple[str, int]]()
        for entry in self.catalog.functions().values():
            revision = (entry.key, entry.revision)
            in_force.add(revision)
            if not entry.revision or revision in self._prepared or now < self._prepare_at.get(revision, now):
                continue
            spec = self.catalog.revision(*revision)
            try:
                if spec is not None and spec.artifact is not None:
                    self.provide(entry.key, spec).close()
            except RuntimeUnavailable:
                continue
            except RuntimeFailed as error:
                self._prepare_at[revision] = self.clock() + PREPARE_AGAIN_S
                log.warning("not prepared", function=entry.key, revision=entry.revision, error=str(error))
                continue
            self._prepared.add(revision)
        self._prepared &= in_force
        self._prepare_at = {revision: at for revision, at in self._prepare_at.items() if revision in in_force}

    def sweep(self) -> None:
        """Remove folders and environments that no revision names. Raises redis-py's errors, OSError."""
        specs = self.catalog.specs()
        if not specs:
            return  # a Redis that has just lost its mirror names nothing either
        uploaded = [(spec.requirements, spec.artifact) for spec in specs if spec.artifact is not None]
        self.artifacts.sweep({artifact.digest for _, artifact in uploaded})
        self.environments.cache.sweep(
            {environment_key(requirements, artifact) for requirements, artifact in uploaded if requirements}
        )

    def stopping(self) -> None:
        """End builds and begin none: another worker, or the next one here, begins anew."""
        self.environments.end()

    def close(self) -> None:
        """End the thread."""
        self._stopped.set()
