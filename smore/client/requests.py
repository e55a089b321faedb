"""
Every request of the client, once: generators that yield calls, are sent what became of them, and return the parsed
answer.
"""

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from smore.client.tensors import decode_raw, encode_raw, is_arrays
from smore.client.transport import (
    DEFAULT_WAIT_S,
    MARGIN_S,
    RAW,
    Answer,
    ApiError,
    Call,
    Flow,
    exchange,
    items_of,
    list_of,
    parse_timings,
    path_of,
    post_of,
    read_answer,
    request_json,
)
from smore.client.types import (
    Deployed,
    DryRun,
    Execution,
    Explanation,
    Function,
    Gpu,
    Invocation,
    InvocationPage,
    Job,
    Key,
    Lifted,
    PlacePrediction,
    Predictor,
    Prewarm,
    Project,
    Quarantined,
    Queue,
    Revision,
    Secret,
    Statement,
)
from smore.domain.function import TensorSpec
from smore.domain.invocation import State

#: Seconds of one long poll while ``invoke`` follows an invocation.
POLL_S: Final = 20.0
#: How long a deploy may take: its answer comes when the canary has loaded and run the handler.
CANARY_S: Final = 135.0
#: The same for an uploaded folder: it is fetched, and its environment built, before that.
UPLOADED_CANARY_S: Final = 615.0
#: Inputs in one call of ``map``.
INPUTS_PER_CALL: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predictions:
    predictions: list[PlacePrediction]


def _invocation(answer: Answer) -> Invocation:
    timings = parse_timings(answer.headers.get("server-timing", ""))
    if answer.headers.get("content-type", "").partition(";")[0].strip() == RAW:
        return Invocation(
            id=answer.headers.get("smore-invocation", ""),
            state=State.SUCCEEDED,
            output=decode_raw(answer.body, answer.headers.get("smore-outputs", "")),
            timings_ms=timings,
        )
    found = read_answer(answer, Invocation)
    return replace(found, timings_ms=timings) if timings else found


def read_function_file(path: str | Path) -> dict[str, Any]:
    """A function.yaml, or the one in a folder, as plain values. Raises OSError, ValueError."""
    from smore.definition.plain_yaml import read_yaml

    file = Path(path)
    if file.is_dir():
        file /= "function.yaml"
    try:
        document = read_yaml(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    match document:
        case dict():
            return document
        case _:
            raise ValueError(f"{file}: a mapping is expected")


def _function_name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError("metadata.name: the function's name is expected")
    return name


class Dialogue:
    """
    Every request of the API and the reading of its answer, without I/O (see the module's docstring).

    It remembers the declared inputs of functions that arrays were sent to, because a raw body follows their order.
    """

    def __init__(self) -> None:
        self._declared: dict[str, list[TensorSpec] | None] = {}

    # functions

    def deploy(self, source: str | Path | Mapping[str, Any]) -> Flow[Deployed]:
        document = dict(source) if isinstance(source, Mapping) else read_function_file(source)
        if not isinstance(source, Mapping) and Path(source).is_dir():
            return (yield from self._deploy_folder(Path(source), document))
        return (yield from self._deploy(document, CANARY_S))

    def _deploy_folder(self, folder: Path, document: dict[str, Any]) -> Flow[Deployed]:
        from tempfile import TemporaryDirectory

        from smore.blobs import archive
        from smore.client import upload

        _function_name(document)
        spec = document.get("spec")
        if not isinstance(spec, dict):
            raise ValueError(f"{folder}: spec: a mapping is expected")
        with TemporaryDirectory(prefix="smore-") as place:
            packed = archive.pack(folder, Path(place))
            if packed is None:
                return (yield from self._deploy(document, CANARY_S))
            yield from upload.send(packed)
        spec = {**spec, "artifact": {"code": packed.artifact.code, "files": dict(packed.artifact.files)}}
        if "requirements" in spec:
            spec["requirements"] = upload.read_requirements(folder, spec["requirements"])
        return (yield from self._deploy({**document, "spec": spec}, UPLOADED_CANARY_S))

    def _deploy(self, document: dict[str, Any], canary_s: float) -> Flow[Deployed]:
        name = _function_name(document)
        self._declared.pop(name, None)
        return read_answer(
            (yield from exchange(request_json("PUT", path_of("functions", name), document, timeout_s=canary_s))),
            Deployed,
        )

    def functions(self) -> Flow[list[Function]]:
        return (yield from list_of("functions", Function))

    def function(self, name: str) -> Flow[Function]:
        return read_answer((yield from exchange(Call(method="GET", path=path_of("functions", name)))), Function)

    def revisions(self, name: str) -> Flow[list[Revision]]:
        return (yield from list_of("revisions", Revision, path=path_of("functions", name, "revisions")))

    def rollback(self, name: str, revision: int) -> Flow[Function]:
        self._declared.pop(name, None)
        return read_answer((yield from post_of({"revision": revision}, "functions", name, "rollback")), Function)

    def set_slo(self, name: str, deadline_ms: float | None) -> Flow[Function]:
        return read_answer(
            (yield from exchange(request_json("PUT", path_of("functions", name, "slo"), {"deadline_ms": deadline_ms}))),
            Function,
        )

    def set_scaling(self, name: str, changes: Mapping[str, object]) -> Flow[Function]:
        return read_answer(
            (yield from exchange(request_json("PATCH", path_of("functions", name), {"scaling": dict(changes)}))),
            Function,
        )

    def prewarm(self, since_s: float) -> Flow[Prewarm]:
        return read_answer(
            (yield from exchange(Call(method="GET", path=path_of("prewarm"), query=(("since_s", str(since_s)),)))),
            Prewarm,
        )

    def delete(self, name: str) -> Flow[None]:
        self._declared.pop(name, None)
        yield from exchange(Call(method="DELETE", path=path_of("functions", name)))

    def warm(self, name: str, gpu: str | None) -> Flow[list[str]]:
        return read_answer((yield from post_of({"gpu": gpu}, "functions", name, "warm")), _Placed).gpus

    def offload(self, name: str, gpu: str | None) -> Flow[list[str]]:
        return read_answer((yield from post_of({"gpu": gpu}, "functions", name, "offload")), _Placed).gpus

    # invocations

    def invoke(
        self,
        function: str,
        value: object,
        *,
        deadline_ms: float | None,
        wait_s: float | None,
        idempotency_key: str | None,
    ) -> Flow[Invocation]:
        prefer = None if wait_s is None else f"wait={math.ceil(wait_s)}"
        timeout_s = (DEFAULT_WAIT_S if wait_s is None else wait_s) + MARGIN_S
        answer = yield from self._send(
            function, value, deadline_ms, prefer, idempotency_key or uuid.uuid4().hex, timeout_s
        )
        found = _invocation(answer)
        if found.done or wait_s is not None:
            return found
        return (yield from self._follow(found.id, raw=is_arrays(value)))

    def submit(
        self, function: str, value: object, *, deadline_ms: float | None, idempotency_key: str | None
    ) -> Flow[str]:
        answer = yield from self._send(
            function,
            value,
            deadline_ms,
            "respond-async",
            idempotency_key or uuid.uuid4().hex,
            DEFAULT_WAIT_S + MARGIN_S,
        )
        return _invocation(answer).id

    def map(self, function: str, values: Iterable[object], *, deadline_ms: float | None) -> Flow[list[Invocation]]:
        waiting = list(values)
        found: list[Invocation] = []
        while waiting:
            batch, waiting = waiting[:INPUTS_PER_CALL], waiting[INPUTS_PER_CALL:]
            body: dict[str, object] = {"inputs": batch}
            if deadline_ms is not None:
                body["deadline_ms"] = deadline_ms
            call = request_json(
                "POST",
                path_of("functions", function, "invocations"),
                body,
                headers={"Idempotency-Key": uuid.uuid4().hex},
            )
            answered = items_of((yield from exchange(call)), "invocations", Invocation)
            for one in answered:
                found.append(one if one.done else (yield from self._settled(one.id)))
        return found

    def _send(
        self, function: str, value: object, deadline_ms: float | None, prefer: str | None, key: str, timeout_s: float
    ) -> Flow[Answer]:
        headers = {"Idempotency-Key": key} | ({} if prefer is None else {"Prefer": prefer})
        path = path_of("functions", function, "invocations")
        if not is_arrays(value):
            body: dict[str, object] = {"input": value}
            if deadline_ms is not None:
                body["deadline_ms"] = deadline_ms
            return (yield from exchange(request_json("POST", path, body, headers=headers, timeout_s=timeout_s)))
        assert isinstance(value, Mapping)
        query = () if deadline_ms is None else (("deadline_ms", f"{deadline_ms:g}"),)
        known = function in self._declared
        while True:
            if function not in self._declared:
                self._declared[function] = (yield from self.function(function)).inputs
            declared = self._declared[function]
            try:
                if declared is None:
                    raise ValueError(f"{function} takes JSON, not arrays")
                content, shapes = encode_raw(value, declared)
                raw = headers | {"Content-Type": RAW, "Accept": f"{RAW}, application/json", "Smore-Shape": shapes}
                return (
                    yield from exchange(
                        Call(method="POST", path=path, query=query, headers=raw, content=content, timeout_s=timeout_s)
                    )
                )
            except (ApiError, ValueError) as error:
                # A newer revision may take other inputs than those remembered. Nothing was queued, so the key is still
                # unused.
                stale = known and (isinstance(error, ValueError) or error.code == "invalid_input")
                if not stale:
                    raise
                known = False
                del self._declared[function]

    def dry_run(self, function: str, value: object, *, rows: int | None, deadline_ms: float | None) -> Flow[DryRun]:
        body: dict[str, object] = {"input": value}
        if is_arrays(value):
            assert isinstance(value, Mapping)
            body = {"rows": len(next(iter(value.values())))}
        elif rows is not None or value is None:
            body = {"rows": rows or 1}
        if deadline_ms is not None:
            body["deadline_ms"] = deadline_ms
        return read_answer((yield from post_of(body, "functions", function, "invocations:dryRun")), DryRun)

    def _follow(self, id_: str, *, raw: bool) -> Flow[Invocation]:
        settled = yield from self._settled(id_)
        got = yield from self.result(id_, raw=raw)
        return replace(settled, output=got.output, timings_ms=got.timings_ms or settled.timings_ms)

    def _settled(self, id_: str) -> Flow[Invocation]:
        while True:
            found = yield from self.invocation(id_, wait_s=POLL_S)
            if found.done:
                return found

    def invocation(self, id_: str, *, wait_s: float | None) -> Flow[Invocation]:
        query = () if wait_s is None else (("wait", str(math.ceil(wait_s))),)
        call = Call(method="GET", path=path_of("invocations", id_), query=query, timeout_s=(wait_s or 0.0) + MARGIN_S)
        return _invocation((yield from exchange(call)))

    def result(self, id_: str, *, raw: bool = False) -> Flow[Invocation]:
        headers = {"Accept": f"{RAW}, application/json"} if raw else {}
        found = _invocation(
            (yield from exchange(Call(method="GET", path=path_of("invocations", id_, "result"), headers=headers)))
        )
        return found if found.id else replace(found, id=id_)

    def cancel(self, id_: str) -> Flow[Invocation]:
        return _invocation((yield from post_of({}, "invocations", id_, "cancel")))

    def invocations(
        self, *, function: str | None, state: str | None, limit: int | None, cursor: str | None
    ) -> Flow[InvocationPage]:
        asked = {"function": function, "state": state, "limit": None if limit is None else str(limit), "cursor": cursor}
        query = tuple((name, value) for name, value in asked.items() if value is not None)
        answer = yield from exchange(Call(method="GET", path=path_of("invocations"), query=query))
        return InvocationPage(
            items=items_of(answer, "invocations", Invocation), cursor=read_answer(answer, _Cursor).next_cursor
        )

    # queues, GPU instances, jobs

    def queues(self) -> Flow[list[Queue]]:
        return (yield from list_of("queues", Queue))

    def pause(self, function: str) -> Flow[None]:
        yield from post_of({}, "queues", function, "pause")

    def resume(self, function: str) -> Flow[None]:
        yield from post_of({}, "queues", function, "resume")

    def gpus(self) -> Flow[list[Gpu]]:
        return (yield from list_of("gpus", Gpu))

    def pause_gpu(self, id_: str) -> Flow[None]:
        yield from post_of({}, "gpus", id_, "pause")

    def resume_gpu(self, id_: str) -> Flow[None]:
        yield from post_of({}, "gpus", id_, "resume")

    def start_job(
        self,
        name: str,
        argv: Sequence[str],
        gpus: Sequence[str] | None,
        env: Mapping[str, str] | None,
        workload: str | None,
        budget: float | None,
        memory: str | None,
    ) -> Flow[Job]:
        body: dict[str, object] = {"name": name, "argv": list(argv), "env": dict(env or {})}
        if gpus is not None:
            body["gpus"] = list(gpus)
        if workload is not None:
            body["workload"] = workload
        if budget is not None:
            body["budget"] = budget
        if memory is not None:
            body["memory"] = memory
        return read_answer((yield from post_of(body, "jobs")), Job)

    def jobs(self) -> Flow[list[Job]]:
        return (yield from list_of("jobs", Job))

    def job(self, id_: str) -> Flow[Job]:
        return read_answer((yield from exchange(Call(method="GET", path=path_of("jobs", id_)))), Job)

    def statement(self, id_: str) -> Flow[Statement]:
        return read_answer((yield from exchange(Call(method="GET", path=path_of("jobs", id_, "statement")))), Statement)

    def stop_job(self, id_: str) -> Flow[Job]:
        return read_answer((yield from post_of({}, "jobs", id_, "stop")), Job)

    # the predictor

    def executions(self, id_: str) -> Flow[list[Execution]]:
        return (yield from list_of("executions", Execution, path=path_of("invocations", id_, "executions")))

    def explain(self, id_: str) -> Flow[Explanation]:
        return read_answer(
            (yield from exchange(Call(method="GET", path=path_of("invocations", id_, "explain")))), Explanation
        )

    def predictor(self) -> Flow[Predictor]:
        return read_answer((yield from exchange(Call(method="GET", path=path_of("predictor")))), Predictor)

    def predictions(self, job: str, function: str, k: int) -> Flow[list[PlacePrediction]]:
        query = (("job", job), ("function", function), ("k", str(k)))
        answer = yield from exchange(Call(method="GET", path=path_of("predictions"), query=query))
        return read_answer(answer, _Predictions).predictions

    # keys and projects

    def keys(self) -> Flow[list[Key]]:
        return (yield from list_of("keys", Key))

    def create_key(self, name: str, scopes: Sequence[str], project: str | None) -> Flow[Key]:
        body: dict[str, object] = {"name": name, "scopes": list(scopes)}
        if project is not None:
            body["project"] = project
        return read_answer((yield from post_of(body, "keys")), Key)

    def revoke_key(self, id_: str) -> Flow[None]:
        yield from exchange(Call(method="DELETE", path=path_of("keys", id_)))

    def secrets(self) -> Flow[list[Secret]]:
        return (yield from list_of("secrets", Secret))

    def set_secret(self, name: str, value: str) -> Flow[Secret]:
        return read_answer(
            (yield from exchange(request_json("PUT", path_of("secrets", name), {"value": value}))), Secret
        )

    def delete_secret(self, name: str) -> Flow[None]:
        yield from exchange(Call(method="DELETE", path=path_of("secrets", name)))

    def quarantined(self) -> Flow[list[Quarantined]]:
        return (yield from list_of("revisions", Quarantined, path=path_of("quarantine")))

    def lift(self, function: str) -> Flow[list[int]]:
        return read_answer(
            (yield from exchange(Call(method="DELETE", path=path_of("quarantine", function)))), Lifted
        ).revisions

    def projects(self) -> Flow[list[Project]]:
        return (yield from list_of("projects", Project))

    def create_project(self, name: str) -> Flow[Project]:
        return read_answer((yield from post_of({"name": name}, "projects")), Project)

    # the platform

    def healthy(self) -> Flow[bool]:
        yield from exchange(Call(method="GET", path="/healthz", timeout_s=MARGIN_S))
        return True

    def ready(self) -> Flow[dict[str, Any]]:
        return read_answer(
            (yield from exchange(Call(method="GET", path="/readyz", timeout_s=MARGIN_S))), dict[str, Any]
        )


class _Cursor(msgspec.Struct):
    next_cursor: str | None = None


class _Placed(msgspec.Struct):
    gpus: list[str]
