"""What is reported of a run of trainings; times in hours."""

from collections.abc import Mapping
from math import nan
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
    "qos": "jobs that ended by their deadlines",
    "told_end_90": "of jobs that had to wait, those that ended by the later end that they were told when they came",
    "promised": "of jobs that asked for a promise, those that were given one",
    "kept": "of these, those that ended by it; 1 where there are none",
    "told_over_length": "promised completion over the length alone, median of all jobs that were promised an end",
    "others_jct": "mean completion of jobs that asked for no promise, h",
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
    "qos": "by deadline",
    "told_end_90": "by told end",
    "promised": "promised",
    "kept": "kept",
    "told_over_length": "promised over length",
    "others_jct": "others' completion",
}
#: Of these more is better, of all others less.
MORE: Final = ("gpu_share", "qos", "told_end_90", "promised", "kept")
#: These are at most 1.
SHARES: Final = ("gpu_share", "failed", "qos", "told_end_90", "promised", "kept")


def figures(result: JobResult) -> dict[str, float]:
    """Of one run; jobs that did not succeed count until they ended. Without deadlines and promises there are no figures of them."""
    submitted, ended, on = (np.array(values) for values in (result.submit_s, result.end_s, result.on_s))
    completion, alone = (ended - submitted) / 3600.0, np.array(result.alone_s) / 3600.0
    wait = np.maximum(0.0, completion - on / 3600.0)
    makespan = float(ended.max() - submitted.min()) / 3600.0
    held = float(np.array(result.gpu_s).sum() - result.shared_s) / 3600.0
    n = len(completion)
    found = {
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
    if result.by:
        told = [end <= late for end, late in zip(result.end_s, result.told, strict=True) if late is not None]
        found["qos"] = float((ended <= np.array(result.by)).mean())
        found["told_end_90"] = sum(told) / len(told) if told else 1.0
    if any(result.asked):
        promised = [by is not None for by in result.promised]
        kept = [end <= by for end, by in zip(result.end_s, result.promised, strict=True) if by is not None]
        found |= {
            "promised": sum(promised) / sum(result.asked),
            "kept": sum(kept) / len(kept) if kept else 1.0,
            "others_jct": float(completion[~np.array(result.asked)].mean()) if not all(result.asked) else nan,
        }
    return found


def told_over_length(result: JobResult) -> list[float]:
    """Of each job that was promised an end: the promised completion over its length alone."""
    return [
        (by - came) / alone_s
        for by, came, alone_s in zip(result.promised, result.submit_s, result.alone_s, strict=True)
        if by is not None
    ]
