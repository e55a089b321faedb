"""
Secrets of a function, decrypted in the GPU worker each time its runner is loaded, and of a training, when it starts. What
must stay true: the worker forgets a training's secret as soon as it has handed it on, and a function's with its runner,
whose output it masks until then (worker/runner/masking.py).
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import redis

from smore.domain.function import FunctionSpec
from smore.process.vault import NoKey, Sealed, Vault
from smore.redis.catalog import Catalog
from worker.pool.errors import LoadFailed, Unservable


class Secrets:
    """
    Reads secrets anew for every load, so a replaced one is in force with the next. ``key_file`` holds the key that they
    are sealed with; it is read at the first use. Safe from any thread.
    """

    def __init__(self, catalog: Catalog, key_file: Path) -> None:
        self._catalog = catalog
        self._key_file = key_file
        self._vault: Vault | None = None
        self._lock = threading.Lock()

    def of(self, function: str, spec: FunctionSpec) -> Mapping[str, str]:
        """
        The secrets that a function (``project/name``) names, by name. Raises LoadFailed where one does not exist or
        cannot be opened here, Unservable while Redis is away.
        """
        return self.named(function.partition("/")[0], spec.secrets)

    def named(self, project: str, names: Sequence[str]) -> Mapping[str, str]:
        """These secrets of a project, by name. Raises as :meth:`of`."""
        if not names:
            return {}
        try:
            sealed = self._catalog.secrets(project, names)
        except (redis.RedisError, OSError) as error:
            raise Unservable(f"Its secrets cannot be read: {error}") from error
        missing = [name for name in names if name not in sealed]
        if missing:
            raise LoadFailed(f"There is no secret {', '.join(missing)} in the project {project}.")
        try:
            with self._lock:
                self._vault = self._vault or Vault.open(self._key_file)
            return {name: self._vault.unseal(project, name, value) for name, value in sealed.items()}
        except (NoKey, Sealed) as error:
            raise LoadFailed(f"Its secrets cannot be opened on this worker: {error}") from error
