"""
The client of the HTTP API, synchronous (:class:`Client`) and asynchronous (:class:`AsyncClient`).

What is sent, what an answer means and when to try again stands once, in :class:`Dialogue`: its methods are generators
that yield a :class:`Call` (or a :class:`Pause`), are sent what became of it, and return the parsed answer. They do no
I/O. The two clients only carry the calls out.

**Retries**: a broken connection, or a 503 with Retry-After, is tried again for at most :data:`RETRY_S` in all, where
that is safe: a GET, or a request with an Idempotency-Key. ``invoke``, ``submit`` and ``map`` always send one, so a
retry never runs anything twice.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from smore.client.locate import locate
from smore.client.requests import Dialogue
from smore.client.transport import Answer, Broken, Call, Flow, Pause, T, headers_of
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


def _answer(response: httpx.Response, began: float) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(
        status=response.status_code, headers=headers, body=response.content, elapsed_s=time.monotonic() - began
    )


def _broken(error: httpx.TransportError, url: str, began: float) -> Broken:
    reason = f"{url} cannot be reached: {error or type(error).__name__}"
    return Broken(reason=reason, elapsed_s=time.monotonic() - began)


class Client:
    """
    The synchronous client; one per thread or shared, close it or use it in a ``with``.

    Every method raises :class:`ApiError` when the platform refuses and :class:`Unreachable` when it does not answer.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url, self.key = locate(url, key)
        self._http = httpx.Client(base_url=self.url, headers=headers_of(self.key), transport=transport)
        self._dialogue = Dialogue()

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def carry(self, flow: Flow[T]) -> T:
        """Carry out a flow of smore/client/admin.py."""
        return self._carry(flow)

    def _carry(self, flow: Flow[T]) -> T:
        got: Answer | Broken | None = None
        while True:
            try:
                step = flow.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            match step:
                case Pause():
                    time.sleep(step.seconds)
                    got = None
                case Call():
                    began = time.monotonic()
                    try:
                        response = self._http.request(
                            step.method,
                            step.path,
                            params=step.query,
                            headers=step.headers,
                            content=step.content,
                            timeout=step.timeout_s,
                        )
                        got = _answer(response, began)
                    except httpx.TransportError as error:
                        got = _broken(error, self.url, began)

    def deploy(self, source: str | Path | Mapping[str, Any]) -> Deployed:
        """
        Register a function or a new revision of it: a function.yaml, its content, or a folder. Returns when the canary
        has passed.

        A folder with more in it than its function.yaml is uploaded: code, weights and wheels, what the platform has
        already left out.
        """
        return self._carry(self._dialogue.deploy(source))

    def functions(self) -> list[Function]:
        return self._carry(self._dialogue.functions())

    def function(self, name: str) -> Function:
        return self._carry(self._dialogue.function(name))

    def revisions(self, name: str) -> list[Revision]:
        return self._carry(self._dialogue.revisions(name))

    def rollback(self, name: str, revision: int) -> Function:
        return self._carry(self._dialogue.rollback(name, revision))

    def set_slo(self, name: str, deadline_ms: float | None) -> Function:
        """Set the function's deadline over its revision's; None = the revision's own again."""
        return self._carry(self._dialogue.set_slo(name, deadline_ms))

    def set_scaling(self, name: str, changes: Mapping[str, object]) -> Function:
        """Change ``min_warm``, ``max_warm``, ``keep_alive`` or ``prewarm`` of the revision that takes the traffic."""
        return self._carry(self._dialogue.set_scaling(name, changes))

    def prewarm(self, since_s: float = 86_400.0) -> Prewarm:
        """How functions are kept ready, and what that came to in the last ``since_s`` seconds."""
        return self._carry(self._dialogue.prewarm(since_s))

    def delete(self, name: str) -> None:
        self._carry(self._dialogue.delete(name))

    def warm(self, name: str, gpu: str | None = None) -> list[str]:
        """Load the function before it is asked for, on one GPU instance or on all; those that were told."""
        return self._carry(self._dialogue.warm(name, gpu))

    def offload(self, name: str, gpu: str | None = None) -> list[str]:
        """Unload it where it is idle."""
        return self._carry(self._dialogue.offload(name, gpu))

    def invoke(
        self,
        function: str,
        value: object,
        *,
        deadline_ms: float | None = None,
        wait_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> Invocation:
        """
        Run a function and return its answer.

        ``value`` is a JSON value, or ``{name: numpy array}`` for a tensor function (then the output is arrays too).
        ``deadline_ms`` from now overrides the function's. Waits for the end however long it takes; with ``wait_s`` at
        most that long, and what is returned may not be ``done``. Raises ApiError when it is refused, fails, expires or
        is cancelled.
        """
        return self._carry(
            self._dialogue.invoke(
                function, value, deadline_ms=deadline_ms, wait_s=wait_s, idempotency_key=idempotency_key
            )
        )

    def submit(
        self, function: str, value: object, *, deadline_ms: float | None = None, idempotency_key: str | None = None
    ) -> str:
        """Enqueue and return the invocation's id at once."""
        return self._carry(
            self._dialogue.submit(function, value, deadline_ms=deadline_ms, idempotency_key=idempotency_key)
        )

    def map(self, function: str, inputs: Iterable[object], *, deadline_ms: float | None = None) -> list[Invocation]:
        """
        One invocation for each JSON input, in order, when all have ended. One that failed is in the list with its state
        and cause.
        """
        return self._carry(self._dialogue.map(function, inputs, deadline_ms=deadline_ms))

    def invocation(self, id_: str, *, wait_s: float | None = None) -> Invocation:
        """How an invocation stands, without its output; waits at most ``wait_s`` for its end."""
        return self._carry(self._dialogue.invocation(id_, wait_s=wait_s))

    def result(self, id_: str, *, raw: bool = False) -> Invocation:
        """The output of an invocation that has ended (``raw``: as arrays). Raises ApiError where it did not succeed."""
        return self._carry(self._dialogue.result(id_, raw=raw))

    def cancel(self, id_: str) -> Invocation:
        return self._carry(self._dialogue.cancel(id_))

    def invocations(
        self,
        *,
        function: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> InvocationPage:
        return self._carry(self._dialogue.invocations(function=function, state=state, limit=limit, cursor=cursor))

    def queues(self) -> list[Queue]:
        return self._carry(self._dialogue.queues())

    def pause(self, function: str) -> None:
        """Stop dispatching a function's invocations; they go on being accepted and their deadlines run."""
        self._carry(self._dialogue.pause(function))

    def resume(self, function: str) -> None:
        self._carry(self._dialogue.resume(function))

    def gpus(self) -> list[Gpu]:
        return self._carry(self._dialogue.gpus())

    def pause_gpu(self, id_: str) -> None:
        self._carry(self._dialogue.pause_gpu(id_))

    def resume_gpu(self, id_: str) -> None:
        self._carry(self._dialogue.resume_gpu(id_))

    def start_job(
        self,
        name: str,
        argv: Sequence[str],
        gpus: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        workload: str | None = None,
        budget: float | None = None,
        memory: str | None = None,
    ) -> Job:
        """
        Start a training command (``argv``: a module and its arguments) on GPU instances, by default on the least loaded
        one.

        ``workload`` says which profiled training it is, such as ``resnet50/cpu/training/8``; ``budget`` what it may
        lose to functions at most, 0.01 to 1; ``memory`` (``"12GiB"``) what is kept for it on each GPU instance, without
        it what it was seen to hold. A budget that could not be told from noise is refused, and the answer says which is
        the smallest.
        """
        return self._carry(self._dialogue.start_job(name, argv, gpus, env, workload, budget, memory))

    def jobs(self) -> list[Job]:
        return self._carry(self._dialogue.jobs())

    def job(self, id_: str) -> Job:
        return self._carry(self._dialogue.job(id_))

    def statement(self, id_: str) -> Statement:
        """What functions have got beside a job, and what the job has lost to them, with 95 % confidence."""
        return self._carry(self._dialogue.statement(id_))

    def stop_job(self, id_: str) -> Job:
        """End a job; one that runs elsewhere (``source`` is not ``started``) is let go and trains on."""
        return self._carry(self._dialogue.stop_job(id_))

    def executions(self, id_: str) -> list[Execution]:
        """The attempts of an invocation, with the degradation that was predicted and the one that was measured."""
        return self._carry(self._dialogue.executions(id_))

    def explain(self, id_: str) -> Explanation:
        """
        Why an invocation went as it did: what each decision considered, predicted against measured, and where the time
        went.
        """
        return self._carry(self._dialogue.explain(id_))

    def dry_run(
        self, function: str, value: object = None, *, rows: int | None = None, deadline_ms: float | None = None
    ) -> DryRun:
        """
        What would become of an invocation of ``value``, or of one with so many ``rows``, by its deadline; nothing is
        placed.

        Raises ApiError (429) where too many ask, (503) while no scheduler leads.
        """
        return self._carry(self._dialogue.dry_run(function, value, rows=rows, deadline_ms=deadline_ms))

    def predictor(self) -> Predictor:
        """The degradation table in force and what it rests on."""
        return self._carry(self._dialogue.predictor())

    def predictions(self, job: str, function: str, k: int = 1) -> list[PlacePrediction]:
        """
        What ``k`` invocations of a function at a time and a training would cost each other.

        ``job`` is a job's id or a workload (``resnet50/cpu/training/8``), ``function`` a function's name or a model
        (``bert/cpu``).
        """
        return self._carry(self._dialogue.predictions(job, function, k))

    def keys(self) -> list[Key]:
        return self._carry(self._dialogue.keys())

    def create_key(self, name: str, scopes: Sequence[str], project: str | None = None) -> Key:
        """A new API key; ``Key.key`` is the secret, shown this once."""
        return self._carry(self._dialogue.create_key(name, scopes, project))

    def revoke_key(self, id_: str) -> None:
        self._carry(self._dialogue.revoke_key(id_))

    def secrets(self) -> list[Secret]:
        """Names only: nobody is told a value."""
        return self._carry(self._dialogue.secrets())

    def set_secret(self, name: str, value: str) -> Secret:
        """A function that names it in ``secrets:`` finds it in its environment with its next load."""
        return self._carry(self._dialogue.set_secret(name, value))

    def delete_secret(self, name: str) -> None:
        self._carry(self._dialogue.delete_secret(name))

    def quarantined(self) -> list[Quarantined]:
        """Revisions that are shut out everywhere after faults of a device."""
        return self._carry(self._dialogue.quarantined())

    def lift(self, function: str) -> list[int]:
        """Let a function's revisions run again; which ones were shut out."""
        return self._carry(self._dialogue.lift(function))

    def projects(self) -> list[Project]:
        return self._carry(self._dialogue.projects())

    def create_project(self, name: str) -> Project:
        return self._carry(self._dialogue.create_project(name))

    def healthy(self) -> bool:
        """True when the gateway answers; raises otherwise."""
        return self._carry(self._dialogue.healthy())

    def ready(self) -> dict[str, Any]:
        """What the platform says of its readiness; raises ApiError while it is not ready."""
        return self._carry(self._dialogue.ready())


class AsyncClient:
    """The asynchronous client: the methods of :class:`Client`, awaited."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url, self.key = locate(url, key)
        self._http = httpx.AsyncClient(base_url=self.url, headers=headers_of(self.key), transport=transport)
        self._dialogue = Dialogue()

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def carry(self, flow: Flow[T]) -> T:
        """Carry out a flow of smore/client/admin.py."""
        return await self._carry(flow)

    async def _carry(self, flow: Flow[T]) -> T:
        got: Answer | Broken | None = None
        while True:
            try:
                step = flow.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            match step:
                case Pause():
                    await asyncio.sleep(step.seconds)
                    got = None
                case Call():
                    began = time.monotonic()
                    try:
                        response = await self._http.request(
                            step.method,
                            step.path,
                            params=step.query,
                            headers=step.headers,
                            content=step.content,
                            timeout=step.timeout_s,
                        )
                        got = _answer(response, began)
                    except httpx.TransportError as error:
                        got = _broken(error, self.url, began)

    async def deploy(self, source: str | Path | Mapping[str, Any]) -> Deployed:
        return await self._carry(self._dialogue.deploy(source))

    async def functions(self) -> list[Function]:
        return await self._carry(self._dialogue.functions())

    async def function(self, name: str) -> Function:
        return await self._carry(self._dialogue.function(name))

    async def revisions(self, name: str) -> list[Revision]:
        return await self._carry(self._dialogue.revisions(name))

    async def rollback(self, name: str, revision: int) -> Function:
        return await self._carry(self._dialogue.rollback(name, revision))

    async def set_slo(self, name: str, deadline_ms: float | None) -> Function:
        return await self._carry(self._dialogue.set_slo(name, deadline_ms))

    async def set_scaling(self, name: str, changes: Mapping[str, object]) -> Function:
        return await self._carry(self._dialogue.set_scaling(name, changes))

    async def prewarm(self, since_s: float = 86_400.0) -> Prewarm:
        return await self._carry(self._dialogue.prewarm(since_s))

    async def delete(self, name: str) -> None:
        await self._carry(self._dialogue.delete(name))

    async def warm(self, name: str, gpu: str | None = None) -> list[str]:
        return await self._carry(self._dialogue.warm(name, gpu))

    async def offload(self, name: str, gpu: str | None = None) -> list[str]:
        return await self._carry(self._dialogue.offload(name, gpu))

    async def invoke(
        self,
        function: str,
        value: object,
        *,
        deadline_ms: float | None = None,
        wait_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> Invocation:
        return await self._carry(
            self._dialogue.invoke(
                function, value, deadline_ms=deadline_ms, wait_s=wait_s, idempotency_key=idempotency_key
            )
        )

    async def submit(
        self, function: str, value: object, *, deadline_ms: float | None = None, idempotency_key: str | None = None
    ) -> str:
        return await self._carry(
            self._dialogue.submit(function, value, deadline_ms=deadline_ms, idempotency_key=idempotency_key)
        )

    async def map(
        self, function: str, inputs: Iterable[object], *, deadline_ms: float | None = None
    ) -> list[Invocation]:
        return await self._carry(self._dialogue.map(function, inputs, deadline_ms=deadline_ms))

    async def invocation(self, id_: str, *, wait_s: float | None = None) -> Invocation:
        return await self._carry(self._dialogue.invocation(id_, wait_s=wait_s))

    async def result(self, id_: str, *, raw: bool = False) -> Invocation:
        return await self._carry(self._dialogue.result(id_, raw=raw))

    async def cancel(self, id_: str) -> Invocation:
        return await self._carry(self._dialogue.cancel(id_))

    async def invocations(
        self,
        *,
        function: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> InvocationPage:
        return await self._carry(self._dialogue.invocations(function=function, state=state, limit=limit, cursor=cursor))

    async def queues(self) -> list[Queue]:
        return await self._carry(self._dialogue.queues())

    async def pause(self, function: str) -> None:
        await self._carry(self._dialogue.pause(function))

    async def resume(self, function: str) -> None:
        await self._carry(self._dialogue.resume(function))

    async def gpus(self) -> list[Gpu]:
        return await self._carry(self._dialogue.gpus())

    async def pause_gpu(self, id_: str) -> None:
        await self._carry(self._dialogue.pause_gpu(id_))

    async def resume_gpu(self, id_: str) -> None:
        await self._carry(self._dialogue.resume_gpu(id_))

    async def start_job(
        self,
        name: str,
        argv: Sequence[str],
        gpus: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        workload: str | None = None,
        budget: float | None = None,
        memory: str | None = None,
    ) -> Job:
        return await self._carry(self._dialogue.start_job(name, argv, gpus, env, workload, budget, memory))

    async def jobs(self) -> list[Job]:
        return await self._carry(self._dialogue.jobs())

    async def job(self, id_: str) -> Job:
        return await self._carry(self._dialogue.job(id_))

    async def statement(self, id_: str) -> Statement:
        return await self._carry(self._dialogue.statement(id_))

    async def stop_job(self, id_: str) -> Job:
        return await self._carry(self._dialogue.stop_job(id_))

    async def executions(self, id_: str) -> list[Execution]:
        return await self._carry(self._dialogue.executions(id_))

    async def explain(self, id_: str) -> Explanation:
        return await self._carry(self._dialogue.explain(id_))

    async def dry_run(
        self, function: str, value: object = None, *, rows: int | None = None, deadline_ms: float | None = None
    ) -> DryRun:
        return await self._carry(self._dialogue.dry_run(function, value, rows=rows, deadline_ms=deadline_ms))

    async def predictor(self) -> Predictor:
        return await self._carry(self._dialogue.predictor())

    async def predictions(self, job: str, function: str, k: int = 1) -> list[PlacePrediction]:
        return await self._carry(self._dialogue.predictions(job, function, k))

    async def keys(self) -> list[Key]:
        return await self._carry(self._dialogue.keys())

    async def create_key(self, name: str, scopes: Sequence[str], project: str | None = None) -> Key:
        return await self._carry(self._dialogue.create_key(name, scopes, project))

    async def revoke_key(self, id_: str) -> None:
        await self._carry(self._dialogue.revoke_key(id_))

    async def secrets(self) -> list[Secret]:
        return await self._carry(self._dialogue.secrets())

    async def set_secret(self, name: str, value: str) -> Secret:
        return await self._carry(self._dialogue.set_secret(name, value))

    async def delete_secret(self, name: str) -> None:
        await self._carry(self._dialogue.delete_secret(name))

    async def quarantined(self) -> list[Quarantined]:
        return await self._carry(self._dialogue.quarantined())

    async def lift(self, function: str) -> list[int]:
        return await self._carry(self._dialogue.lift(function))

    async def projects(self) -> list[Project]:
        return await self._carry(self._dialogue.projects())

    async def create_project(self, name: str) -> Project:
        return await self._carry(self._dialogue.create_project(name))

    async def healthy(self) -> bool:
        return await self._carry(self._dialogue.healthy())

    async def ready(self) -> dict[str, Any]:
        return await self._carry(self._dialogue.ready())
