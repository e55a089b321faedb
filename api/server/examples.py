"""
Examples for the API's description: a value for each parameter in a path, the body of each request, an answer from its
schema, and a command for each operation. A test checks bodies and answers against the document's schemas.
"""

import json
from collections.abc import Mapping
from shlex import quote
from typing import Any, Final

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

#: What answers hold under a name, where its type is that of the value.
VALUES: Final[Mapping[str, Any]] = {
    **PARAMETERS,
    "argv": "zoo.train",
    "at": 1769860800,
    "datatype": "FP32",
    "detail": "It would start at once on cpu0.",
    "device": "AMD EPYC",
    "entrypoint": "zoo.echo:Function",
    "id": _ID,
    "key_id": "4f2a9c81d0e3",
    "kind": "cpu",
    "message": "It needs 2 GPU instances: 1 is free; 3 busy.",
    "name": "echo",
    "node": "gpu-host-1",
    "outcome": "placed",
    "policy": "smore-product",
    "route": "PUT /v1/functions/{function}/slo",
    "rule": "priced",
    "session": "5K2q...",
    "setting": "smore-jobs",
    "sharing_mode": "cores",
    "source": "declared",
    "state": "succeeded",
    "summary": "Placed on cpu0, where it was warm; 988 ms before its deadline.",
    "target": "function/echo",
    "text": "hello",
    "training": "resnet50/cpu/training/8",
    "utilisation_counter": "cpu-time",
    "why": "busy",
}
#: And under a name that ends so.
MEASURES: Final[Mapping[str, float]] = {"_mib": 2048.0, "_ms": 12.5}
_TYPES: Final[Mapping[str, Any]] = {"string": "", "integer": 1, "number": 0.5}


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "") -> Any:
    """
    An example of a schema of the document: what :data:`VALUES` has under ``name``, the name of the field, else what its
    type allows. ``schemas``: those that it may refer to.
    """
    match schema:
        case {"$ref": str(target)}:
            return example_of(schemas[target.rpartition("/")[2]], schemas, name)
        case {"anyOf": [first, *_]} | {"oneOf": [first, *_]}:
            return example_of(first, schemas, name)
        case {"const": value}:
            return value
        case {"enum": [first, *others]}:
            return VALUES[name] if VALUES.get(name) in others else first
        case {"properties": fields}:
            return {field: example_of(part, schemas, field) for field, part in fields.items()}
        case {"type": "array", "items": items}:
            return [example_of(items, schemas, name if name in VALUES else name.removesuffix("s"))]
        case {"type": "object", "additionalProperties": dict(values)}:
            return {"echo": example_of(values, schemas)}
        case {"format": "date-time"}:
            return _AT
        case {"type": "boolean"}:
            return False
        case {"type": "number"} if measures := [value for ending, value in MEASURES.items() if name.endswith(ending)]:
            return measures[0]
        case {"type": str(kind)} if kind in _TYPES:
            value = VALUES.get(name, _TYPES[kind])
            return value if isinstance(value, str) == (kind == "string") else _TYPES[kind]
        case _:
            return {}


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
