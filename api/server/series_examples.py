"""Examples of the answers that read the past, by the name of their schema (api/server/examples.py)."""

from collections.abc import Mapping
from typing import Any, Final

_ID: Final = "0193d7a2b6c84f7d9a1e5c3b8f204d61"
_AT: Final = "2026-01-31T12:00:00Z"
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
