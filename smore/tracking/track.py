"""A training reports its iteration times: ``with smore.track() as tracker: ... tracker.step()``."""

import os

from smore.tracking.ring import Tracker, warn


def track(
    path: str | None = None,
    *,
    name: str | None = None,
    gpu: str | None = None,
    workload: str | None = None,
    budget: float | None = None,
    iterations: int | None = None,
) -> Tracker:
    """
    A :class:`Tracker` that writes to ``path``, by default to the file that the platform names in ``SMORE_TRACK``.

    ``iterations``: how many the training makes in all, those before its last checkpoint included. The platform estimates
    from it when the training ends (by default from what its owner said when it was started).

    Without a file, but with SMORE_URL and SMORE_API_KEY, the training registers itself there and sends its steps over
    HTTP (smore/tracking/remote.py). Only then the other arguments count: ``name``: of the job (SMORE_JOB); ``gpu``: the
    GPU instance on which it trains (SMORE_GPU), needed where the platform cannot find out; ``workload`` and ``budget`` as
    in ``POST /v1/jobs``.

    Without any of these it does nothing, so a script runs unchanged outside the platform. Where only one of SMORE_URL and
    SMORE_API_KEY is set, the log has a warning.
    """
    file = path or os.environ.get("SMORE_TRACK")
    url, key = os.environ.get("SMORE_URL"), os.environ.get("SMORE_API_KEY")
    if file or not url or not key:
        if not file and (url or key):
            warn("steps are not tracked, training goes on: %s is not set", "SMORE_API_KEY" if url else "SMORE_URL")
        return Tracker(file or None, length=_length(iterations))
    try:
        # Here, because a script that writes to a file needs neither the HTTP client nor its thread.
        from smore.tracking.remote import RemoteTracker, registration

        return RemoteTracker(url, key, registration(name=name, gpu=gpu, workload=workload, budget=budget))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end somebody's training
        warn("steps are not tracked, training goes on: %s", error)
        return Tracker(None)


def _length(iterations: int | None) -> int:
    """As the file holds it; 0 = not said."""
    said = os.environ.get("SMORE_ITERATIONS", "0") if iterations is None else iterations
    try:
        length = int(said)
    except (TypeError, ValueError):
        length = -1
    if 0 <= length < 1 << 63:
        return length
    warn("the number of iterations is not told, training goes on: %r is none", said)
    return 0
