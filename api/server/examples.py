"""
Examples for the API's description: a value for each parameter in a path, the body of each request, each kind of answer,
and from them a command for each operation. A test checks bodies and answers against the document's schemas.
"""

import json
from collections.abc import Mapping
from shlex import quote
from typing import Any, Final

from api.server.series_examples import SERIES

_ID: Final = "0193d7a2b6c84f7d9a1e5c3b8f204d61"
_AT: Final = "2026-01-31T12:00:00Z"
_DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

#: By the name of a parameter in a path.
PARAMETERS: Final[Mapping[str, str]] = {
    "digest": _DIGEST,
    "function": "echo",
    "gpu": "cpu0",
    "invocation": _ID,
    "job": _ID,
    "key": "4f2a9c81d0e3",
    "model": "echo",
    "project": "vision",
    "secret": "HF_TOKEN",
    "trace": "1",
    "version": "1",
}
#: Query of an operation that needs one.
QUERIES: Final[Mapping[str, str]] = {
    "PATCH /v1/blobs/{digest}": "offset=0&size=1048576",
    "DELETE /v1/sessions": "key=4f2a9c81d0e3",
    "GET /v1/predictions": "job=resnet50/cpu/training/8&function=bert/cpu",
    "POST /v1/traces": "deal=echo",
    "GET /v1/functions/{function}/logs": "follow=true",
    "GET /v1/invocations": "function=echo&state=failed",
    "GET /v1/invocations/{invocation}": "wait=10",
}
#: Files that an operation is sent in place of JSON.
FILES: Final[Mapping[str, tuple[str, str]]] = {
    "PATCH /v1/blobs/{digest}": ("application/octet-stream", "weights.bin"),
    "POST /v1/traces": ("text/csv", "day.csv"),
}
_INFER: Final = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}]}
_START: Final = {
    "name": "night",
    "argv": ["zoo.train", "--model", "resnet50"],
    "count": 2,
    "duration": "2h",
    "restarts": 3,
    "env": {"HF_TOKEN": {"secret": "HF_TOKEN"}},
    "budget": 0.1,
}
#: JSON bodies of requests.
BODIES: Final[Mapping[str, Any]] = {
    "POST /v1/functions/{function}/invocations": {"input": {"x": [1, 2]}, "deadline_ms": 500},
    "POST /v1/functions/{function}/invocations:dryRun": {"rows": 8, "deadline_ms": 500},
    "POST /v1/invocations:wait": {"ids": [_ID], "wait_s": 10},
    "PUT /v1/functions/{function}": {
        "apiVersion": "smore/v1",
        "kind": "Function",
        "metadata": {"name": "echo"},
        "spec": {"entrypoint": "zoo.echo:Function", "slo": {"deadline": "1s"}},
    },
    "PATCH /v1/functions/{function}": {"scaling": {"min_warm": 1, "keep_alive_s": 300}},
    "POST /v1/functions/{function}/rollback": {"revision": 1},
    "PUT /v1/functions/{function}/slo": {"deadline_ms": 250},
    "POST /v1/functions/{function}/warm": {"gpu": "cpu0"},
    "POST /v1/functions/{function}/offload": {"gpu": None},
    "PUT /v1/queues/{function}/boost": {"factor": 4, "for_s": 600},
    "PUT /v1/queues/{function}/pin": {"gpus": ["cpu0"], "for_s": 600},
    "POST /v1/gpus/{gpu}/allow": {"pid": 4711},
    "POST /v1/gpus/{gpu}/protect": {"pid": 4711},
    "POST /v1/jobs": _START,
    "POST /v1/jobs:dryRun": _START,
    "POST /v1/jobs/{job}/move": {"first": True},
    "POST /v1/jobs/attach": {"name": "llm", "pid": 4711, "gpu": "cpu0"},
    "POST /v1/jobs/{job}/steps": {"gpu": "cpu0", "first": 0, "steps": [[1769860800.0, 0.21]]},
    "PUT /v1/jobs/{job}/slo": {"budget": 0.05},
    "POST /v1/session": {"code": "0f2a9c81d0e3...", "scopes": ["invoke"]},
    "POST /v1/keys": {"name": "ci", "scopes": ["invoke", "read"]},
    "POST /v1/projects": {"name": "vision"},
    "PATCH /v1/projects/{project}/limits": {"depth": 100, "concurrency": 200, "jobs": 100, "gpus": 4, "weight": 2.0},
    "PUT /v1/secrets/{secret}": {"value": "hf_0123456789"},
    "POST /v2/models/{model}/infer": _INFER,
    "POST /v2/models/{model}/versions/{version}/infer": _INFER,
    "POST /v2/repository/index": {"ready": True},
    "POST /v2/repository/models/{model}/load": {},
    "POST /v2/repository/models/{model}/unload": {},
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
#: Answers of operations for which that of their schema would be wrong.
ANSWERS_OF: Final[Mapping[str, Any]] = {
    "POST /v1/invocations/{invocation}/cancel": {
        **{name: _INVOCATION[name] for name in _INVOCATION if name not in ("output", "gpu")},
        "state": "cancelled",
        "cause": "cancelled",
        "attempt": 0,
    },
}


def command(method: str, path: str, *, key: bool) -> str:
    """A shell command for an operation; ``key``: it needs an API key."""
    name = f"{method} {path}"
    target = path.format(**PARAMETERS) + (f"?{QUERIES[name]}" if name in QUERIES else "")
    parts = ["curl"]
    if method != "GET":
        parts.append(f"-X {method}")
    if key:
        parts.append('-H "Authorization: Bearer $SMORE_API_KEY"')
    if name in FILES:
        media_type, file = FILES[name]
        parts.append(f"-H 'Content-Type: {media_type}' --data-binary @{file}")
    elif name in BODIES:
        parts.append(f"-H 'Content-Type: application/json' -d {quote(json.dumps(BODIES[name]))}")
    parts.append(f'"$SMORE_URL{target}"')
    return " ".join(parts)
