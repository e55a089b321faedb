"""Answers of the API as a platform with a little in it gives them, by the name of their schema."""

from collections.abc import Mapping
from typing import Any, Final

_ID: Final = "0193d7a2b6c84f7d9a1e5c3b8f204d61"
_AT: Final = "2026-01-31T12:00:00Z"
_DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

_STEPS: Final = {
    "since": _AT,
    "until": "2026-01-31T12:02:00Z",
    "step_s": 60,
    "at": [1769860800, 1769860860],
}
_HARVESTED: Final = {
    "key": "default",
    "run_s": 5310.5,
    "money": 3.69,
    "invocations": 86400,
    "met": 86390,
    "cold": 12,
    "saved": 41,
    "lost": 0.021,
    "lost_low": 0.012,
    "lost_high": 0.031,
    "windows": 240,
}

SERIES: Final[Mapping[str, Any]] = {
    "GpuSeries": {
        **_STEPS,
        "gpus": {"cpu0": {"used": [0.93, 0.95], "functions": [0.11, 0.14], "memory_mib": [1310.0, 1310.0]}},
    },
    "GpuLanes": {
        **_STEPS,
        "gpu": "cpu0",
        "warm": [{"project": "default", "function": "echo", "since": 1769860830.5, "until": None}],
        "closed": [0.08, None],
        "duty": [0.8, None],
        "ended": [119, 119],
    },
    "FunctionSeries": {
        **_STEPS,
        "function": "echo",
        "project": "default",
        "arrivals": [120, 118],
        "succeeded": [119, 119],
        "failed": [0, 0],
        "met": [119, 118],
        "cold": [1, 0],
        "cold_reasons": {"never_seen": [1, None]},
        "wait_s": [0.002, 0.002],
        "load_s": [0.31, None],
        "run_s": [0.0005, 0.0005],
        "whole_s": [0.005, 0.003],
        "worst_s": [0.33, 0.012],
        "p50": [0.0027, 0.0027],
        "p95": [0.0055, 0.0046],
        "p99": [0.0065, 0.0055],
        "forecast": {"since": "2026-01-31T12:02:00Z", "step_s": 60, "source": "lstm", "mean": [119.0], "any": [1.0]},
    },
    "ServedFunctions": {
        "since": _AT,
        "until": "2026-01-31T12:02:00Z",
        "served": [
            {
                "project": "default",
                "function": "echo",
                "revision": 3,
                "succeeded": 238,
                "failed": 0,
                "met": 237,
                "cold": 1,
                "wait_s": 0.002,
                "load_s": 0.41,
                "run_s": 0.004,
                "whole_s": 0.008,
                "worst_s": 0.46,
                "p50": 0.007,
                "p95": 0.012,
                "p99": 0.031,
            }
        ],
    },
    "JobSeries": {
        **_STEPS,
        "id": _ID,
        "name": "night",
        "budget": 0.1,
        "alone_s": [0.208, 0.208],
        "beside_s": [0.214, 0.215],
        "iterations": [1200, 1480],
        "duty": [1.0, 1.0],
        "harvested_s": [6.4, 8.1],
        "lost": [0.021, 0.022],
        "lost_low": [0.012, 0.014],
        "lost_high": [0.031, 0.03],
    },
    "PastAttempts": {
        "attempts": [
            {
                "job": _ID,
                "name": "night",
                "project": "default",
                "state": "running",
                "attempt": 1,
                "gpus": ["cpu0"],
                "nodes": ["host-a"],
                "started_at": _AT,
                "up_at": _AT,
                "guest": False,
                "told_s": 7200.0,
                "told_90_s": 9600.0,
                "told_source": "declared",
            }
        ],
        "more": False,
    },
    "PredictorVersions": {
        "versions": [
            {
                "version": 4,
                "created_at": _AT,
                "state": "champion",
                "reason": "it errs less on rows that neither has seen",
                "manifest": {"rows": 120},
            }
        ]
    },
    "Calibration": {
        "at": [1769860800.0],
        "function": ["default/echo"],
        "device": ["AMD EPYC 7B13 / 1 core"],
        "told": [0.04],
        "bound": [0.06],
        "measured": [0.03],
        "within": 1.0,
        "assumed": 0,
    },
    "Harvest": {
        "since": "2026-01-31T00:00:00Z",
        "until": "2026-01-31T12:02:00Z",
        "step_s": 86400,
        "parts": [{"at": 1769817600, **_HARVESTED}],
        "totals": [{**_HARVESTED, "trained_s": 43_320.0, "lost_s": 891.0}],
        "unpriced": [],
    },
}

_SCALING: Final = {"min_warm": 1, "max_warm": 2, "keep_alive_s": 300.0, "prewarm": "auto"}
_FUNCTION: Final = {
    "name": "echo",
    "project": "default",
    "revision": 1,
    "entrypoint": "zoo.echo:Function",
    "deadline_ms": 1000.0,
    "inputs": None,
    "outputs": None,
    "scaling": _SCALING,
}
_MEASURED: Final = {
    "inputs": None,
    "outputs": None,
    "load_ms": 12.5,
    "phases_ms": {"import": 9.0, "weights": 3.5},
    "run_ms": 0.4,
    "examples_ms": 1.3,
    "memory_mib": 48.0,
    "peak_mib": 51.5,
    "limit_mib": 384.0,
    "packages": ["einops==0.8.1"],
}
_INVOCATION: Final = {
    "id": _ID,
    "state": "succeeded",
    "function": "echo",
    "revision": 1,
    "attempt": 1,
    "gpu": "cpu0",
    "rows": 1,
    "arrival_at": _AT,
    "deadline_at": "2026-01-31T12:00:01Z",
    "finished_at": "2026-01-31T12:00:00.012Z",
    "late_ms": 0,
    "output": {"x": [1, 2]},
}
_DEGRADATION: Final = {
    "function": 0.04,
    "function_upper": 0.09,
    "training": 0.02,
    "training_upper": 0.05,
    "known": True,
}
_DECISION: Final = {
    "at": _AT,
    "policy": "smore-product",
    "table": 3,
    "seed": 0,
    "candidates": [{"gpu": "cpu0", "warm": True, "delay_s": 0.0, "run_s": 0.011, "impact": 0.02, "known": True}],
    "refused": {"memory": 1},
}
_ATTEMPT: Final = {
    "attempt": 1,
    "gpu": "cpu0",
    "state": "succeeded",
    "cold": False,
    "run_s": 0.0121,
    "batch": 1,
    "rows": 1,
    "co_runners": [],
    "jobs": [_ID],
    "predicted": _DEGRADATION,
    "degradation": 0.03,
    "started_at": _AT,
    "finished_at": "2026-01-31T12:00:00.012Z",
}
_EXPECTED: Final = {
    "place": 2,
    "start_at": "2026-01-31T14:00:00Z",
    "start_late_at": "2026-01-31T15:30:00Z",
    "end_at": "2026-01-31T16:00:00Z",
    "end_late_at": "2026-01-31T18:10:00Z",
    "length_s": 7200.0,
    "length_90_s": 9600.0,
    "source": "declared",
    "waited_s": 12.4,
    "why": "busy",
    "message": "It needs 2 GPU instances: 1 are free; 3 busy.",
}
_JOB: Final = {
    "id": _ID,
    "name": "night",
    "state": "running",
    "argv": ["zoo.train", "--model", "resnet50"],
    "gpus": ["cpu0"],
    "created_at": _AT,
    "started_at": _AT,
    "iterations": 1200,
    "solo_s": 0.208,
    "shared_s": 0.214,
    "degradation": 0.029,
    "budget": 0.1,
    "loss": 0.021,
    "loss_low": 0.012,
    "loss_high": 0.031,
    "loss_windows": 24,
}
_ME: Final = {
    "key": "4f2a9c81d0e3",
    "name": "ci",
    "project": "default",
    "scopes": ["invoke", "read"],
    "operator": False,
}
_KEY: Final = {"id": "4f2a9c81d0e3", "name": "ci", "project": "default", "scopes": ["invoke", "read"]}
_LIMITS: Final = {"depth": 100, "concurrency": 200, "jobs": 100, "gpus": 4, "weight": 2.0}
_PROJECT: Final = {"name": "vision", "created_at": _AT, "limits": _LIMITS, "held": _LIMITS}
_SECRET: Final = {"name": "HF_TOKEN", "created_at": _AT, "updated_at": _AT}
_TRACE: Final = {
    "id": 1,
    "name": "day.csv",
    "digest": _DIGEST,
    "created_at": _AT,
    "since": "2026-01-30T12:00:00Z",
    "until": _AT,
    "functions": [{"function": "echo", "source": "f00d", "arrivals": 86400}],
}
_COUNTS: Final = {"invocations": 100, "cold": 2, "hits": 3, "held_gb_s": 120.5, "unforeseen": {"first": 2}}
#: Answers, by the name of their schema.
ANSWERS: Final[Mapping[str, Any]] = {
    "Invocation": _INVOCATION,
    "Invocations": {"invocations": [{name: _INVOCATION[name] for name in _INVOCATION if name != "output"}]},
    "Executions": {"executions": [_ATTEMPT]},
    "DryRun": {
        "outcome": "placed",
        "feasible": True,
        "detail": "It would start at once on cpu0.",
        "gpu": "cpu0",
        "cold": False,
        "start_at": _AT,
        "finish_at": "2026-01-31T12:00:00.012Z",
        "deadline_at": "2026-01-31T12:00:00.5Z",
        "predicted": _DEGRADATION,
        "decision": _DECISION,
    },
    "Explanation": {
        "id": _ID,
        "function": "echo",
        "revision": 1,
        "state": "succeeded",
        "summary": "Placed on cpu0, where it was warm; 988 ms before its deadline.",
        "rows": 1,
        "arrival_at": _AT,
        "deadline_at": "2026-01-31T12:00:01Z",
        "finished_at": "2026-01-31T12:00:00.012Z",
        "slack_s": 0.988,
        "gate": {"allowed_ms": 1000.0, "needed_ms": 15.0, "now_ms": 15.0},
        "attempts": [],
        "complete": True,
    },
    "Deployed": {**_FUNCTION, "created": True, "measured": _MEASURED, "changed": [], "warnings": []},
    "Function": _FUNCTION,
    "Functions": {"functions": [_FUNCTION]},
    "Revisions": {
        "revisions": [
            {
                "revision": 1,
                "state": "active",
                "entrypoint": "zoo.echo:Function",
                "created_at": _AT,
                "measured": _MEASURED,
            }
        ]
    },
    "LogLines": {
        "lines": [
            {
                "id": "1769860800000-0.0",
                "at": _AT,
                "stream": "stdout",
                "text": "hello",
                "revision": 1,
                "invocations": [_ID],
                "gpu": "cpu0",
                "node": "gpu-host-1",
            }
        ]
    },
    "Placed": {"gpus": ["cpu0"]},
    "BlobState": {"digest": _DIGEST, "complete": True, "offset": 1048576},
    "Queues": {
        "queues": [
            {
                "function": "echo",
                "depth": 12,
                "oldest_wait_s": 0.4,
                "priority": 1.2,
                "paused": False,
                "draining": False,
            }
        ]
    },
    "Purged": {"cancelled": 12},
    "Gpus": {
        "gpus": [
            {
                "id": "cpu0",
                "kind": "cpu",
                "device": "AMD EPYC",
                "sharing_mode": "cores",
                "slots": 2,
                "running": 1,
                "utilisation": 0.93,
                "function_utilisation": 0.12,
                "utilisation_counter": "cpu",
                "memory_used_mib": 2048.0,
                "memory_total_mib": 8192.0,
                "memory_warm_mib": 512.0,
                "paused": False,
                "draining": False,
                "drained": False,
                "reported_at": _AT,
                "warm": [{"function": "echo", "revision": 1, "state": "idle", "memory_mib": 48.0, "idle_s": 3.2}],
                "strangers": None,
            }
        ]
    },
    "Job": _JOB,
    "Jobs": {"jobs": [_JOB], "next_cursor": None},
    "JobQueue": {
        "at": _AT,
        "leading": True,
        "setting": "smore-jobs",
        "waiting": 3,
        "jobs": [
            {**_EXPECTED, "id": _ID, "name": "night", "project": "vision", "state": "queued", "count": 2},
        ],
    },
    "JobTrial": {"gpus": [], "expected": _EXPECTED},
    "JobAttempts": {
        "id": _ID,
        "name": "night",
        "attempts": [
            {
                "attempt": 1,
                "gpus": ["gpu0", "gpu1"],
                "nodes": ["host-a"],
                "started_at": _AT,
                "up_at": _AT,
                "ended_at": "2026-01-31T13:00:00Z",
                "why": "failed",
                "message": "rank 1 ended with exit code 1",
                "exit_code": 1,
                "iterations": 41200,
            }
        ],
    },
    "JobExplanation": {
        "id": _ID,
        "name": "night",
        "state": "queued",
        "summary": _EXPECTED["message"],
        "expected": _EXPECTED,
        "decisions": [],
    },
    "Accepted": {"id": _ID, "function": "echo", "revision": 1, "state": "queued", "durability": "standard"},
    "Attached": {"id": _ID, "gpu": "cpu0"},
    "Statement": {
        "id": _ID,
        "name": "night",
        "state": "running",
        "budget": 0.1,
        "since": _AT,
        "until": "2026-01-31T18:00:00Z",
        "harvested_s": 810.2,
        "invocations": 24311,
        "windows": 24,
        "loss": 0.021,
        "loss_low": 0.012,
        "loss_high": 0.031,
        "kept": True,
        "verdict": "kept",
        "windows_to_go": 0,
        "summary": "810.2 function-seconds harvested; training lost <= 3.1 % with 95 % confidence (budget 10 %): kept",
    },
    "Predictor": {"version": 3, "source": "learned", "created_at": _AT, "reason": "smaller errors than version 2"},
    "Predictions": {
        "version": 3,
        "predictions": [
            {
                "device": "AMD EPYC",
                "sharing_mode": "cores",
                "training": "resnet50/cpu/training/8",
                "function": "bert/cpu",
                "k": 1,
                "known": True,
                "measured": False,
                "training_degradation": 0.12,
                "training_degradation_upper": 0.18,
                "function_degradation": 0.3,
                "function_degradation_upper": 0.41,
            }
        ],
    },
    "Prewarm": {
        "since": "2026-01-30T12:00:00Z",
        "leading": True,
        "on": True,
        "rule": "priced",
        "counts": _COUNTS,
        "functions": [{"function": "echo", "mode": "auto", "wanted": 1, "loaded": 1, "counts": _COUNTS}],
    },
    "Keys": {"keys": [{**_KEY, "created_at": _AT}]},
    "Key": {**_KEY, "key": "smk_4f2a9c81d0e3_..."},
    "Caller": {**_ME, "session": None},
    "Opened": {**_ME, "session": "5K2q...", "expires_at": "2026-02-01T00:00:00Z"},
    "Session": {**_ME, "created_at": _AT, "expires_at": "2026-02-01T00:00:00Z", "seen_at": _AT},
    "LoginCode": {"code": "0f2a9c81d0e3...", "expires_at": "2026-01-31T12:01:00Z"},
    "Projects": {
        "projects": [
            {
                **_PROJECT,
                "use": {"depth": 12, "concurrency": 14, "warm_memory_mib": 96.0, "jobs": 1, "job_memory_mib": 4096.0},
            }
        ]
    },
    "Project": _PROJECT,
    "Secrets": {"secrets": [_SECRET]},
    "Secret": _SECRET,
    "Quarantine": {
        "revisions": [{"function": "echo", "revision": 3, "cause": "context_lost", "gpu": "gpu0", "at": _AT}]
    },
    "Lifted": {"function": "echo", "revisions": [3]},
    "AuditPage": {
        "entries": [
            {
                "id": 17,
                "at": _AT,
                "project": "default",
                "key_id": "4f2a9c81d0e3",
                "route": "PUT /v1/functions/{function}/slo",
                "target": "function/echo",
                "before": {"deadline_ms": None},
                "after": {"deadline_ms": 250},
                "request_id": "5c1f0e",
            }
        ],
        "next_cursor": None,
    },
    "Trace": _TRACE,
    "Traces": {"traces": [_TRACE]},
    **SERIES,
    "TraceRemoved": {"id": 1},
}
