"""
Every operation of the client, written once and without I/O.

An operation builds its request, yields it, and reads the answer (:data:`~smore_client.transport.Flow`); ``Client`` and
``AsyncClient`` perform it. The examples show the blocking client; the other one awaits the same calls.

A broken connection, or a 503 with Retry-After, is tried again for at most 5 s where that is safe: a GET, or a request
with an Idempotency-Key. ``invoke``, ``submit``, ``submit_all`` and ``map`` always send one, so a retry never runs
anything twice.
"""

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from smore_client import upload
from smore_client.gpu_requests import GpuRequests
from smore_client.job_requests import JobRequests
from smore_client.logs import read_log
from smore_client.many import (
    INPUTS_PER_SUBMIT,
    POLL_S,
    InvocationList,
    class_header,
    completed,
    each_invocation,
    portions,
    send_portion,
    with_function,
)
from smore_client.operation import iteration, operation
from smore_client.series_requests import SeriesRequests
from smore_client.tensors import decode_raw, encode_raw, is_arrays
from smore_client.transport import (
    DEFAULT_WAIT_S,
    MARGIN_S,
    RAW,
    Answer,
    ApiError,
    Call,
    Flow,
    Stream,
    exchange,
    fetch,
    is_replayed,
    parse_timings,
    read_answer,
    request,
)
from smore_client.types import (
    Deployed,
    DryRun,
    Execution,
    Executions,
    Explanation,
    Function,
    Functions,
    Invocation,
    InvocationPage,
    Key,
    Keys,
    Lifted,
    LogLine,
    PairPrediction,
    Placed,
    PlacePrediction,
    Predictions,
    Predictor,
    Prewarm,
    Project,
    Projects,
    Quarantine,
    Quarantined,
    Queue,
    Queues,
    Revision,
    Revisions,
    Secret,
    Secrets,
    State,
    TensorSpec,
)

#: Seconds that a deploy may take: its answer comes when the canary has loaded and run the handler.
CANARY_S: Final = 135.0
#: The same for an uploaded folder, which is fetched, and its environment built, before that.
UPLOADED_CANARY_S: Final = 615.0
#: Inputs in one request of ``map``.
INPUTS_PER_CALL: Final = 64


class Requests(JobRequests, GpuRequests, SeriesRequests):
    """
    The operations of both clients. See the module's docstring for retries.

    It remembers the declared inputs of the functions that arrays were sent to, because a raw body follows their order.
    """

    def __init__(self) -> None:
        self._declared: dict[str, list[TensorSpec] | None] = {}

    # ---- invocations -------------------------------------------------------------------------------------------------

    @operation
    def invoke(
        self,
        function: str,
        value: object,
        *,
        deadline_ms: float | None = None,
        work_class: str | None = None,
        wait_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> Flow[Invocation]:
        """
        Run a function and return the finished invocation.

        ``value`` is a JSON value, or ``{name: numpy array}`` for a tensor function, whose output is then arrays too;
        axis 0 is the rows. ``deadline_ms``: milliseconds from arrival, in place of the function's own deadline.
        ``work_class``: ``batch`` for what can wait, None = as the function is. Without ``wait_s`` it waits for the end
        however long that takes; with it for at most so many seconds, and the invocation may not be ``done``. A second
        call with the same ``idempotency_key`` gets the first one's invocation, ``replayed``.

        Raises ApiError where the invocation is refused, fails, expires or is cancelled.

        >>> client.invoke("echo", {"x": [1, 2]}).output
        {'x': [1, 2]}
        >>> image = numpy.zeros((1, 3, 224, 224), "f4")
        >>> client.invoke("resnet50", {"image": image}, deadline_ms=200).output["logits"].shape
        (1, 1000)
        """
        prefer = None if wait_s is None else f"wait={math.ceil(wait_s)}"
        timeout_s = (DEFAULT_WAIT_S if wait_s is None else wait_s) + MARGIN_S
        headers = ({} if prefer is None else {"Prefer": prefer}) | class_header(work_class)
        answer = yield from self._send(
            function, value, deadline_ms, headers, idempotency_key or uuid.uuid4().hex, timeout_s
        )
        invocation = _invocation(answer, function)
        if invocation.done or wait_s is not None:
            return invocation
        finished = yield from _finished(invocation.id)
        result = yield from _result(invocation.id, raw=is_arrays(value))
        timings_ms = result.timings_ms or finished.timings_ms
        return msgspec.structs.replace(
            finished, output=result.output, timings_ms=timings_ms, replayed=invocation.replayed
        )

    @operation
    def submit(
        self,
        function: str,
        value: object,
        *,
        deadline_ms: float | None = None,
        work_class: str | None = None,
        idempotency_key: str | None = None,
    ) -> Flow[str]:
        """
        Enqueue an invocation and return its id at once. The arguments are those of :meth:`invoke`.

        >>> id_ = client.submit("echo", {"x": 1})
        >>> client.invocation(id_, wait_s=10).state
        <State.SUCCEEDED: 'succeeded'>
        """
        timeout_s = DEFAULT_WAIT_S + MARGIN_S
        headers = {"Prefer": "respond-async"} | class_header(work_class)
        answer = yield from self._send(
            function, value, deadline_ms, headers, idempotency_key or uuid.uuid4().hex, timeout_s
        )
        return _invocation(answer, function).id

    @operation
    def map(
        self,
        function: str,
        inputs: Iterable[object],
        *,
        deadline_ms: float | None = None,
        work_class: str | None = None,
    ) -> Flow[list[Invocation]]:
        """
        Run a function on many JSON values and wait for all; the results are in the order of ``inputs``.

        Each input is an invocation with a deadline of its own: ``deadline_ms``, else the function's, counts from the
        arrival of the request that brings it. Inputs are sent 64 in a request, and the next request goes out when all
        of the one before have ended; those of one request are admitted one after the other, so the later ones of them
        wait for the earlier ones and are refused where their deadline has no room for that.

        Nothing is raised for an input that is refused or fails: its invocation says so in ``state`` and ``cause``.

        >>> [invocation.output for invocation in client.map("echo", [1, 2, 3])]
        [1, 2, 3]
        """
        invocations: list[Invocation] = []
        for portion in portions(inputs, INPUTS_PER_CALL):
            for invocation in (yield from send_portion(function, portion, deadline_ms, class_header(work_class))):
                invocations.append(invocation if invocation.done else (yield from _finished(invocation.id)))
        return invocations

    @operation
    def submit_all(
        self,
        function: str,
        inputs: Iterable[object],
        *,
        deadline_ms: float | None = None,
        work_class: str | None = None,
    ) -> Flow[list[Invocation]]:
        """
        Enqueue an invocation of each of many JSON values and return them at once, in the order of ``inputs``.

        The deadline of each counts from the arrival of the request that brings it (1000 inputs in a request), and so
        does its wait for those before it: many inputs need a ``deadline_ms`` within which all of them can end.
        With one of more than a minute they are of class batch, if ``work_class`` does not say ``standard``.

        Nothing is raised for an input that is refused: its invocation has the ``id`` '' and the state ``rejected``, says
        why in ``cause`` and ``detail``, and names the ``earliest_deadline_ms`` where its deadline was too early.

        >>> [invocation.state for invocation in client.submit_all("echo", range(1000))][0]
        <State.QUEUED: 'queued'>
        """
        invocations: list[Invocation] = []
        for portion in portions(inputs, INPUTS_PER_SUBMIT):
            headers = {"Prefer": "respond-async"} | class_header(work_class)
            invocations += yield from send_portion(function, portion, deadline_ms, headers)
        return invocations

    @iteration
    def as_completed(self, submitted: Iterable[str | Invocation]) -> Stream[Invocation]:
        """
        Iterate over invocations, each once it has ended, in the order in which they end. ``submitted``: what
        :meth:`submit_all` returned, or ids. Inputs that were refused come first, as they are.

        Raises ValueError for an id '', which an input that was refused has.

        >>> submitted = client.submit_all("echo", [1, 2, 3])
        >>> sorted(done.output for done in client.as_completed(submitted) if done.state == "succeeded")
        [1, 2, 3]
        """
        yield from completed(submitted)

    @operation
    def invocation(self, id_: str, *, wait_s: float | None = None) -> Flow[Invocation]:
        """
        An invocation as it stands, or as it stands when it ends or ``wait_s`` seconds are over.

        >>> client.invocation("0193d7...", wait_s=30).done
        True
        """
        return (yield from _read_invocation(id_, wait_s))

    @operation
    def result(self, id_: str, *, raw: bool = False) -> Flow[Invocation]:
        """
        A finished invocation with its output; ``raw``: tensors as numpy arrays. Raises ApiError where it did not
        succeed, has not ended, or the platform keeps its result no longer.

        >>> client.result("0193d7...").output
        {'x': [1, 2]}
        """
        return (yield from _result(id_, raw=raw))

    @operation
    def cancel(self, id_: str) -> Flow[Invocation]:
        """
        Cancel an invocation that waits or runs.

        >>> client.cancel("0193d7...").state
        <State.CANCELLED: 'cancelled'>
        """
        return _invocation((yield from exchange(request("POST", "invocations", id_, "cancel", body={}))))

    @operation
    def invocations(
        self,
        *,
        function: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        all_projects: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        gpu: str | None = None,
        cause: str | None = None,
    ) -> Flow[InvocationPage]:
        """
        A page of the invocations, the newest first; ``cursor``: that of the page before; ``all_projects``: not those of
        the key's project alone, for operators; ``since``, ``until``: by arrival; ``gpu``, ``cause``: of the last attempt.

        >>> page = client.invocations(function="echo", state="failed", limit=20)
        >>> [(invocation.id, invocation.cause) for invocation in page.items]
        [('0193d7...', 'handler_error')]
        """
        kind = {"function": function, "state": state, "gpu": gpu, "cause": cause, "since": since, "until": until}
        query = {**kind, "limit": limit, "cursor": cursor, "all_projects": all_projects}
        page = yield from fetch(InvocationList, request("GET", "invocations", query=query))
        return InvocationPage(items=page.invocations, cursor=page.next_cursor)

    @iteration
    def each_invocation(
        self, *, function: str | None = None, state: str | None = None, all_projects: bool = False
    ) -> Stream[Invocation]:
        """
        Iterate over all invocations, the newest first, page by page.

        >>> sum(invocation.attempt > 1 for invocation in client.each_invocation(function="echo"))
        0
        """
        yield from each_invocation(function, state, all_projects)

    @operation
    def executions(self, id_: str) -> Flow[list[Execution]]:
        """
        The attempts of an invocation, with the degradation that was predicted and the one that was measured.

        >>> [(attempt.gpu, attempt.cold, attempt.run_s) for attempt in client.executions("0193d7...")]
        [('cpu0', False, 0.0121)]
        """
        return (yield from fetch(Executions, request("GET", "invocations", id_, "executions"))).executions

    @operation
    def explain(self, id_: str) -> Flow[Explanation]:
        """
        Why an invocation went as it did: the candidates of each decision, predicted against measured, and where the
        time went.

        >>> client.explain("0193d7...").summary
        'Placed on cpu0, where it was warm; 12 ms before its deadline.'
        """
        return (yield from fetch(Explanation, request("GET", "invocations", id_, "explain")))

    @operation
    def dry_run(
        self, function: str, value: object = None, *, rows: int | None = None, deadline_ms: float | None = None
    ) -> Flow[DryRun]:
        """
        What would become of an invocation of ``value``, or of one with ``rows`` rows; nothing is placed or reserved.

        Raises ApiError: 429 where too many ask, 503 while no scheduler leads.

        >>> client.dry_run("echo", rows=8, deadline_ms=100).outcome
        'placed'
        """
        body = _question(value, rows, deadline_ms)
        return (yield from fetch(DryRun, request("POST", "functions", function, "invocations:dryRun", body=body)))

    # ---- functions ---------------------------------------------------------------------------------------------------

    @operation
    def deploy(
        self, source: str | Path | Mapping[str, Any], *, progress: Callable[[int, int], None] | None = None
    ) -> Flow[Deployed]:
        """
        Register a function or a new revision of it; return when the canary has passed.

        ``source`` is a function.yaml, its content as a mapping, or a folder. A folder with more in it than its
        function.yaml is uploaded: code, weights and wheels, without what the platform has already. ``progress`` is
        called with the bytes that the platform has and with those of the whole folder, the last time when it has all.
        Raises ValueError for a file or folder that the platform would refuse, ImportError where a function.yaml is read
        without PyYAML.

        >>> client.deploy("my-function/").revision
        1
        """
        if isinstance(source, Mapping):
            return (yield from self._deploy(dict(source), CANARY_S))
        try:
            from smore_client.function_file import read_source
        except ImportError as error:
            raise ImportError("a function.yaml is read with PyYAML: pip install 'smore-client[deploy]'") from error

        with TemporaryDirectory(prefix="smore-") as temporary:
            document, packed = read_source(source, Path(temporary))
            _function_name(document)
            if packed is not None:
                yield from upload.send(packed, progress)
        return (yield from self._deploy(document, CANARY_S if packed is None else UPLOADED_CANARY_S))

    @operation
    def functions(self) -> Flow[list[Function]]:
        """
        The functions of the project.

        >>> [function.name for function in client.functions()]
        ['echo']
        """
        return (yield from fetch(Functions, request("GET", "functions"))).functions

    @operation
    def function(self, name: str) -> Flow[Function]:
        """
        One function. Raises ApiError (``function_not_found``).

        >>> client.function("echo").deadline_ms
        1000.0
        """
        return (yield from fetch(Function, request("GET", "functions", name)))

    @operation
    def revisions(self, name: str) -> Flow[list[Revision]]:
        """
        The revisions of a function, the newest first.

        >>> [(revision.revision, revision.state) for revision in client.revisions("echo")]
        [(2, 'failed'), (1, 'active')]
        """
        return (yield from fetch(Revisions, request("GET", "functions", name, "revisions"))).revisions

    @operation
    def rollback(self, name: str, revision: int) -> Flow[Function]:
        """
        Let an earlier revision take the traffic.

        >>> client.rollback("echo", 1).revision
        1
        """
        self._declared.pop(name, None)
        return (yield from fetch(Function, request("POST", "functions", name, "rollback", body={"revision": revision})))

    @operation
    def set_slo(self, name: str, deadline_ms: float | None) -> Flow[Function]:
        """
        Set the function's deadline, milliseconds from arrival; None = the revision's own again.

        >>> client.set_slo("echo", 250).deadline_ms
        250.0
        """
        return (yield from fetch(Function, request("PUT", "functions", name, "slo", body={"deadline_ms": deadline_ms})))

    @operation
    def set_scaling(self, name: str, changes: Mapping[str, object]) -> Flow[Function]:
        """
        Change ``min_warm``, ``max_warm``, ``keep_alive_s`` or ``prewarm`` of the revision that takes the traffic.

        >>> client.set_scaling("echo", {"min_warm": 1, "keep_alive_s": 300}).scaling.min_warm
        1
        """
        return (yield from fetch(Function, request("PATCH", "functions", name, body={"scaling": dict(changes)})))

    @operation
    def delete(self, name: str) -> Flow[None]:
        """
        Delete a function with its revisions.

        >>> client.delete("echo")
        """
        self._declared.pop(name, None)
        yield from exchange(request("DELETE", "functions", name))

    @operation
    def warm(self, name: str, gpu: str | None = None) -> Flow[list[str]]:
        """
        Load a function before it is invoked, on one GPU instance or on all; return those that were asked to.

        >>> client.warm("echo")
        ['cpu0', 'cpu1']
        """
        return (yield from fetch(Placed, request("POST", "functions", name, "warm", body={"gpu": gpu}))).gpus

    @operation
    def offload(self, name: str, gpu: str | None = None) -> Flow[list[str]]:
        """
        Unload a function where it is idle, on one GPU instance or on all; return those that were asked to.

        >>> client.offload("echo", "cpu0")
        ['cpu0']
        """
        return (yield from fetch(Placed, request("POST", "functions", name, "offload", body={"gpu": gpu}))).gpus

    @operation
    def prewarm(self, since_s: float = 86_400.0) -> Flow[Prewarm]:
        """
        How functions are kept ready, and the cold starts and memory of the last ``since_s`` seconds.

        >>> client.prewarm(3600).counts.cold
        2
        """
        return (yield from fetch(Prewarm, request("GET", "prewarm", query={"since_s": since_s})))

    @iteration
    def logs(
        self,
        name: str,
        *,
        invocation: str | None = None,
        since: datetime | None = None,
        lines: int | None = None,
        follow: bool = False,
    ) -> Stream[LogLine]:
        """
        Iterate over the newest ``lines`` lines (by default 100) that a function's handler has printed, the oldest of
        them first; ``follow``: then over those that come, without an end, for which a lost connection is made again.

        ``invocation``: only lines of a batch that it was in; ``since``: only lines that came then or later.

        >>> [(line.stream, line.text) for line in client.logs("echo", lines=1)]
        [(<LogStream.STDOUT: 'stdout'>, 'hello')]
        """
        since = since.astimezone() if since is not None else None
        query = {"invocation": invocation, "since": since, "lines": lines}
        yield from read_log("functions", name, "logs", query=query, follow=follow)

    # ---- queues ------------------------------------------------------------------------------------------------------

    @operation
    def queues(self) -> Flow[list[Queue]]:
        """
        What waits, by function.

        >>> [(queue.function, queue.depth) for queue in client.queues()]
        [('echo', 12)]
        """
        return (yield from fetch(Queues, request("GET", "queues"))).queues

    @operation
    def pause(self, function: str) -> Flow[None]:
        """
        Stop dispatching a function's invocations. The platform goes on accepting them, and their deadlines run.

        >>> client.pause("echo")
        """
        yield from exchange(request("POST", "queues", function, "pause", body={}))

    @operation
    def resume(self, function: str) -> Flow[None]:
        """
        End a pause, and a drain.

        >>> client.resume("echo")
        """
        yield from exchange(request("POST", "queues", function, "resume", body={}))

    # ---- the predictor -----------------------------------------------------------------------------------------------

    @operation
    def predictor(self) -> Flow[Predictor]:
        """
        The degradation table in force and the predictor behind it.

        >>> client.predictor().version
        3
        """
        return (yield from fetch(Predictor, request("GET", "predictor")))

    @operation
    def predictions(self, job: str, function: str, k: int = 1, rows: int = 1) -> Flow[list[PlacePrediction]]:
        """
        What ``k`` invocations of a function at a time, of ``rows`` rows each, and a training would cost each other, by
        device. Bounds are None where the training or the function is not known: degradations are assumed then.

        ``job`` is a job's id or name or a workload (``resnet50/cpu/training/8``), ``function`` a function's name, a
        model (``bert/cpu``) or a workload (``bert/cpu/function/1``), whose batch takes the place of ``rows``.

        >>> client.predictions("resnet50/cpu/training/8", "bert/cpu")[0].training_degradation
        0.12
        """
        query = {"job": job, "function": function, "k": k, "rows": rows}
        return (yield from fetch(Predictions, request("GET", "predictions", query=query))).predictions

    @operation
    def pair_predictions(self, training: str, beside: str) -> Flow[list[PairPrediction]]:
        """
        What two trainings on one GPU instance would cost each other, by device. Each is a job's id or a workload
        (``resnet50/cpu/training/8``).

        >>> client.pair_predictions("resnet50/cpu/training/8", "bert/cpu/training/4")[0].training_degradation
        0.31
        """
        query = {"training": training, "beside": beside}
        return (yield from fetch(Predictions, request("GET", "predictions", query=query))).pairs

    # ---- keys, secrets, projects -------------------------------------------------------------------------------------

    @operation
    def keys(self) -> Flow[list[Key]]:
        """
        The API keys, without their secrets.

        >>> [(key.name, key.scopes) for key in client.keys()]
        [('ci', ['invoke'])]
        """
        return (yield from fetch(Keys, request("GET", "keys"))).keys

    @operation
    def create_key(self, name: str, scopes: Sequence[str], project: str | None = None) -> Flow[Key]:
        """
        Make an API key. ``Key.key`` is the secret, which is told this once.

        >>> client.create_key("ci", ["invoke"]).key
        'smk_...'
        """
        body: dict[str, object] = {"name": name, "scopes": list(scopes)}
        if project is not None:
            body["project"] = project
        return (yield from fetch(Key, request("POST", "keys", body=body)))

    @operation
    def revoke_key(self, id_: str) -> Flow[None]:
        """
        Revoke an API key.

        >>> client.revoke_key("k-0193d7")
        """
        yield from exchange(request("DELETE", "keys", id_))

    @operation
    def secrets(self) -> Flow[list[Secret]]:
        """
        The names of the secrets; nobody is told a value.

        >>> [secret.name for secret in client.secrets()]
        ['HF_TOKEN']
        """
        return (yield from fetch(Secrets, request("GET", "secrets"))).secrets

    @operation
    def set_secret(self, name: str, value: str) -> Flow[Secret]:
        """
        Set a secret. A function that names it in ``secrets:`` has it in its environment from its next load on.

        >>> client.set_secret("HF_TOKEN", "hf_...").updated_at.year
        2026
        """
        return (yield from fetch(Secret, request("PUT", "secrets", name, body={"value": value})))

    @operation
    def delete_secret(self, name: str) -> Flow[None]:
        """
        Delete a secret.

        >>> client.delete_secret("HF_TOKEN")
        """
        yield from exchange(request("DELETE", "secrets", name))

    @operation
    def quarantined(self) -> Flow[list[Quarantined]]:
        """
        The revisions that no GPU instance runs, because they brought devices down.

        >>> [(revision.function, revision.cause) for revision in client.quarantined()]
        [('echo', 'device_fault')]
        """
        return (yield from fetch(Quarantine, request("GET", "quarantine"))).revisions

    @operation
    def lift(self, function: str) -> Flow[list[int]]:
        """
        End the quarantine of a function; return the revisions that were in it.

        >>> client.lift("echo")
        [3]
        """
        return (yield from fetch(Lifted, request("DELETE", "quarantine", function))).revisions

    @operation
    def projects(self) -> Flow[list[Project]]:
        """
        The projects, with their limits and what they use.

        >>> [(project.name, project.limits.depth) for project in client.projects()]
        [('default', None)]
        """
        return (yield from fetch(Projects, request("GET", "projects"))).projects

    @operation
    def create_project(self, name: str) -> Flow[Project]:
        """
        Make a project.

        >>> client.create_project("vision").name
        'vision'
        """
        return (yield from fetch(Project, request("POST", "projects", body={"name": name})))

    # ---- the platform ------------------------------------------------------------------------------------------------

    @operation
    def healthy(self) -> Flow[bool]:
        """
        True where the gateway answers; raises otherwise.

        >>> client.healthy()
        True
        """
        yield from exchange(Call(method="GET", path="/healthz", timeout_s=MARGIN_S))
        return True

    @operation
    def ready(self) -> Flow[dict[str, Any]]:
        """
        What the platform says of its readiness. Raises ApiError while it is not ready.

        >>> client.ready()["ready"]
        True
        """
        return (yield from fetch(dict[str, Any], Call(method="GET", path="/readyz", timeout_s=MARGIN_S)))

    # ---- steps that operations share ---------------------------------------------------------------------------------

    def _send(
        self,
        function: str,
        value: object,
        deadline_ms: float | None,
        given: Mapping[str, str],
        key: str,
        timeout_s: float,
    ) -> Flow[Answer]:
        """One input, as JSON or raw, with the headers that are given."""
        headers = {"Idempotency-Key": key, **given}
        if is_arrays(value):
            assert isinstance(value, Mapping)
            return (yield from self._send_raw(function, value, deadline_ms, headers, timeout_s))
        body: dict[str, object] = {"input": value}
        if deadline_ms is not None:
            body["deadline_ms"] = deadline_ms
        call = request("POST", "functions", function, "invocations", body=body, headers=headers, timeout_s=timeout_s)
        return (yield from exchange(call))

    def _send_raw(
        self,
        function: str,
        arrays: Mapping[str, Any],
        deadline_ms: float | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> Flow[Answer]:
        query = {"deadline_ms": None if deadline_ms is None else f"{deadline_ms:g}"}
        remembered = function in self._declared
        while True:
            if function not in self._declared:
                self._declared[function] = (yield from fetch(Function, request("GET", "functions", function))).inputs
            declared = self._declared[function]
            try:
                if declared is None:
                    raise ValueError(f"{function} takes JSON, not arrays")
                content, shapes = encode_raw(arrays, declared)
                raw = {**headers, "Content-Type": RAW, "Accept": f"{RAW}, application/json", "Smore-Shape": shapes}
                path = ("functions", function, "invocations")
                call = request("POST", *path, body=content, query=query, headers=raw, timeout_s=timeout_s)
                return (yield from exchange(call))
            except (ApiError, ValueError) as error:
                # A newer revision may take other inputs than those remembered. Nothing was enqueued: the key is unused.
                stale = remembered and (isinstance(error, ValueError) or error.code == "invalid_input")
                if not stale:
                    raise
                remembered = False
                del self._declared[function]

    def _deploy(self, document: dict[str, Any], canary_s: float) -> Flow[Deployed]:
        name = _function_name(document)
        self._declared.pop(name, None)
        return (yield from fetch(Deployed, request("PUT", "functions", name, body=document, timeout_s=canary_s)))


def _invocation(answer: Answer, function: str = "") -> Invocation:
    """The invocation of an answer; ``function``: the one that was called, where that is known."""
    timings = parse_timings(answer.headers.get("server-timing", ""))
    replayed = is_replayed(answer)
    if answer.headers.get("content-type", "").partition(";")[0].strip() == RAW:
        ran = dict(part.split("=", 1) for part in answer.headers.get("smore-run", "").split(";") if "=" in part)
        return Invocation(
            id=answer.headers.get("smore-invocation", ""),
            function=answer.headers.get("smore-function", function),
            revision=int(answer.headers.get("smore-revision", 0)),
            state=State.SUCCEEDED,
            output=decode_raw(answer.body, answer.headers.get("smore-outputs", "")),
            gpu=ran.get("gpu", ""),
            attempt=int(ran.get("attempt", 0)),
            arrival_at=_moment(ran.get("arrival")),
            deadline_at=_moment(ran.get("deadline")),
            finished_at=_moment(ran.get("finished")),
            late_ms=float(answer.headers.get("smore-late-ms", 0)),
            cause="ok",
            cold=timings["load"] > 0 if "load" in timings else None,
            replayed=replayed,
            timings_ms=timings,
        )
    invocation = with_function(read_answer(answer, Invocation), function)
    return (
        msgspec.structs.replace(invocation, timings_ms=timings, replayed=replayed)
        if timings or replayed
        else invocation
    )


def _moment(microseconds: str | None) -> datetime | None:
    """A moment of a raw answer's ``Smore-Run``; None where it is not known."""
    return datetime.fromtimestamp(int(microseconds) / 1e6, UTC) if microseconds not in (None, "0") else None


def _read_invocation(id_: str, wait_s: float | None) -> Flow[Invocation]:
    query = {"wait": None if wait_s is None else math.ceil(wait_s)}
    call = request("GET", "invocations", id_, query=query, timeout_s=(wait_s or 0.0) + MARGIN_S)
    return _invocation((yield from exchange(call)))


def _finished(id_: str) -> Flow[Invocation]:
    """The invocation once it has ended, by long polls."""
    while True:
        invocation = yield from _read_invocation(id_, POLL_S)
        if invocation.done:
            return invocation


def _result(id_: str, *, raw: bool) -> Flow[Invocation]:
    headers = {"Accept": f"{RAW}, application/json"} if raw else {}
    invocation = _invocation((yield from exchange(request("GET", "invocations", id_, "result", headers=headers))))
    return invocation if invocation.id else msgspec.structs.replace(invocation, id=id_)


def _question(value: object, rows: int | None, deadline_ms: float | None) -> dict[str, object]:
    """The body of a dry run: the value, or how many rows it has."""
    body: dict[str, object] = {"input": value}
    if is_arrays(value):
        assert isinstance(value, Mapping)
        body = {"rows": len(next(iter(value.values())))}
    elif rows is not None or value is None:
        body = {"rows": rows or 1}
    if deadline_ms is not None:
        body["deadline_ms"] = deadline_ms
    return body


def _function_name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError("metadata.name: the function's name is expected")
    return name
