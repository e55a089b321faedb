"""What is reported of a run of trainings; times in hours."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from lab.simulation.jobs.simulator import JobResult

#: What each means, for tables.
MEANINGS: Final[Mapping[str, str]] = {
    "jct": "mean completion (submitted to ended), h",
    "jct_median": "median completion, h",
    "p95": "95th percentile of completion, h",
    "jct_p99": "99th percentile of completion, h",
    "wait": "mean time without GPU instances, h",
    "wait_median": "median of it, h",
    "wait_p99": "99th percentile of it, h",
    "makespan": "first arrival to last end, h",
    "slowdown_max": "largest completion over the length alone",
    "gpu_share": "GPU time held by a job or two, of all until the last end",
    "failed": "jobs that did not succeed",
    "restarts": "attempts after the first for each job, those after a preemption included",
    "preemptions": "jobs stopped for others or for another number of GPU instances, for each job",
    "guests": "attempts that started beside another job, for each job",
    "in_parts": "of these attempts those in micro-batches, for each job",
}


#: Headings of columns.
HEADINGS: Final[Mapping[str, str]] = {
    "jct": "completion",
    "jct_median": "median",
    "p95": "P95",
    "jct_p99": "P99",
    "wait": "wait",
    "wait_median": "median wait",
    "wait_p99": "P99 wait",
    "makespan": "makespan",
    "slowdown_max": "worst slowdown",
    "gpu_share": "GPU share",
    "failed": "failed",
    "restarts": "restarts",
    "preemptions": "preemptions",
    "guests": "guests",
    "in_parts": "in micro-batches",
}
#: Of these more is better, of all others less.
MORE: Final = ("gpu_share",)
#: These are at most 1.
SHARES: Final = ("gpu_share", "failed")


def figures(result: JobResult) -> dict[str, float]:
    """Of one run; jobs that did not succeed count until they ended."""
    submitted, ended, on = (np.array(values) for values in (result.submit_s, result.end_s, result.on_s))
    completion, alone = (ended - submitted) / 3600.0, np.array(result.alone_s) / 3600.0
    wait = np.maximum(0.0, completion - on / 3600.0)
    makespan = float(ended.max() - submitted.min()) / 3600.0
    held = float(np.array(result.gpu_s).sum() - result.shared_s) / 3600.0
    n = len(completion)
    return {
        "jct": float(completion.mean()),
        "jct_median": float(np.median(completion)),
        "p95": float(np.percentile(completion, 95)),
        "jct_p99": float(np.percentile(completion, 99)),
        "wait": float(wait.mean()),
        "wait_median": float(np.median(wait)),
        "wait_p99": float(np.percentile(wait, 99)),
        "makespan": makespan,
        "slowdown_max": float((completion / alone).max()),
        "gpu_share": held / (result.size * makespan),
        "failed": 1.0 - sum(result.succeeded) / n,
        "restarts": sum(attempts - 1 for attempts in result.attempts) / n,
        "preemptions": result.preempted / n,
        "guests": result.guests / n,
        "in_parts": result.in_parts / n,
    }
