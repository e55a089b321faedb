"""What a run leaves: raw rows, from which ``metrics.py`` computes everything."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lab.simulation.archive import archive

Floats = NDArray[np.float64]

#: Status of an invocation. Every one ends in one of the five last; refused: not admitted.
WAITING, HELD, SUCCEEDED, EXPIRED, REJECTED, FAILED, REFUSED = range(7)
STATUS: Final = ("waiting", "held", "succeeded", "expired", "rejected", "failed", "refused")


class Inconsistent(Exception):
    """
    A policy decided what contradicts what it was given, or left an invocation without an end: a defect, not an outcome.
    """


#: Columns of :attr:`Result.gpus`.
GPU_COLUMNS: Final = ("alive_s", "slow_s", "work_s", "busy_s", "function_s", "loaded_s", "executing_s", "training_u")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """
    Raw rows of a run, from which ``metrics.py`` computes everything.

    Per invocation [n], in order of arrival: ``function`` (index), ``rows``, ``arrival_s``, ``deadline_s``, ``status``
    (:data:`STATUS`), ``attempts``, ``gpu`` (index of the last, -1 never dispatched), ``dispatch_s``, ``start_s``,
    ``end_s`` (NaN where it never was), ``cold``, ``alone_s`` (time alone on a whole device, without noise) and
    ``run_s`` (NaN: did not run to its end).

    ``gpus`` [N, len(GPU_COLUMNS)], over the span of the trace: seconds alive; integrals of the training's slowdown, of
    its progress (1 / slowdown), of utilisation min(1, U) and of the functions' part of it; instance-seconds loaded
    (loading ones included) and executing; the training's utilisation alone. ``meta``: world, trace, seed, policy,
    refusals, ``warm_at_start`` [N][F] instances. ``policy_s`` is processor time spent in ``decide``, and no part of
    what :meth:`write` writes.
    """

    functions: tuple[str, ...]
    function: NDArray[np.int32]
    rows: NDArray[np.int32]
    arrival_s: Floats
    deadline_s: Floats
    status: NDArray[np.int8]
    attempts: NDArray[np.int16]
    gpu: NDArray[np.int32]
    dispatch_s: Floats
    start_s: Floats
    end_s: Floats
    cold: NDArray[np.bool_]
    alone_s: Floats
    run_s: Floats
    p99: float
    gpus: Floats
    meta: Mapping[str, Any]
    policy_s: float = field(default=0.0, compare=False)

    def write(self, path: Path) -> None:
        """One file, the same bytes for the same run."""
        path.write_bytes(self.encode())

    def encode(self) -> bytes:
        arrays: dict[str, NDArray[Any]] = {
            name: getattr(self, name)
            for name in (
                "function",
                "rows",
                "arrival_s",
                "deadline_s",
                "status",
                "attempts",
                "gpu",
                "dispatch_s",
                "start_s",
                "end_s",
                "cold",
                "alone_s",
                "run_s",
                "gpus",
            )
        }
        meta = dict(self.meta) | {"functions": list(self.functions), "p99": self.p99}
        arrays["meta"] = np.frombuffer(json.dumps(meta, sort_keys=True).encode(), np.uint8)
        return archive(arrays)

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Inverse of :meth:`write`."""
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        meta = json.loads(arrays.pop("meta").tobytes())
        return cls(functions=tuple(meta.pop("functions")), p99=meta.pop("p99"), meta=meta, **arrays)
