"""
What routes depend on: the process's :class:`Gateway`, and the FastAPI dependencies that give a route the gateway, the
caller's key and the audit trail.

The hot path needs Redis alone. Modules that need SQLAlchemy are imported by the first request that uses them, in a
worker thread.
"""

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import redis
import redis.asyncio
from fastapi import Depends, Query, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import Scope as HttpScope

from api.auth import OPERATORS, Access, listed_projects, require_operator
from api.errors import NotReady
from api.refused import Refused
from api.session import HEADER, SessionAccess, SessionCaller
from api.waiters import Waiters
from smore.domain.access import Scope
from smore.domain.errors import Forbidden, FunctionNotFound, Unavailable
from smore.domain.function import FunctionSpec
from smore.domain.spelling import nothing_named
from smore.process.instance import instance_id
from smore.process.settings import Settings
from smore.redis.catalog import AsyncCatalog, Catalog, FunctionEntry, KeyEntry
from smore.redis.connection import connect
from smore.redis.fleet import Fleet
from smore.redis.gateway_queue import GatewayQueue
from smore.redis.sessions import Sessions, named

if TYPE_CHECKING:
    from smore.blobs.store import Blobs
    from smore.postgres.arrivals import ArrivalStore
    from smore.postgres.audit import Audit, AuditedChange
    from smore.postgres.catalog import Store
    from smore.postgres.connection import Engine
    from smore.postgres.history.reader import Reader
    from smore.postgres.history.series import Series
    from smore.postgres.predictors import Profiles
    from smore.process.vault import Vault

#: Seconds that a start waits for Redis. After them the gateway serves, and answers 503.
START_PATIENCE_S = 5.0
#: Seconds that Redis may take for one command of a request.
COMMAND_S = 5.0
#: Seconds that Postgres may work on one statement of a request.
STATEMENT_S = 10.0
#: Seconds between two removals of payloads that ended invocations left beside Redis (smore/redis/payloads.py), and the
#: least age of a payload that is removed.
SWEEP_S = 60.0
#: Connections of this process to Redis, besides the subscription; further requests wait for a free one.
_CONNECTIONS = 64
_SESSION: Final = HEADER.lower().encode()


class Gateway:
    """
    The process's connections: queue, catalog and waiters from the start; fleet, store and history when first needed.
    """

    def __init__(self, settings: Settings) -> None:
        if settings.redis.url is None:
            raise ValueError("SMORE_REDIS__URL is not set")
        self.settings = settings
        self.instance = instance_id(settings.home)
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            settings.redis.url,
            max_connections=_CONNECTIONS,
            timeout=2,
            socket_timeout=COMMAND_S,
            socket_connect_timeout=2,
            protocol=2,
        )
        self.redis = redis.asyncio.Redis(connection_pool=pool)
        self.queue = GatewayQueue(self.redis, settings.redis.prefix, settings.queue)
        self.catalog = AsyncCatalog(self.redis, settings.redis.prefix)
        self.access = Access(self.catalog)
        self.sessions = Sessions(self.redis, settings.redis.prefix)
        self.session_access = SessionAccess(self.sessions, self.catalog, self.instance, settings.api.public_url)
        self.waiters = Waiters(pool, self.queue, self.catalog.channel, self._changed, self._connected)
        #: What a 202 promises: ``standard`` (on disk within a second), ``strict`` (on disk), ``none``.
        self.durability = "none"
        #: Whoever follows something (api/server/sse.py) → the project of its key.
        self.followers: dict[asyncio.Event, str] = {}
        self.refused = Refused()
        #: How often a request has changed a training: who shows them reads their records anew.
        self.changed_jobs = 0
        self._sweeper: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._client: redis.Redis | None = None
        self._engine: Engine | None = None
        #: When Redis last took the write by which readiness is tested, time.perf_counter.
        self.wrote_at = -math.inf
        #: Whether Postgres answered when readiness asked last, None = not known, and when that was, time.perf_counter.
        self.postgres_answers: bool | None = None
        self.asked_postgres_at = -math.inf
        self._blobs: Blobs | None = None
        self._vault: Vault | None = None

    async def start(self) -> None:
        if self.settings.platform_cores:
            os.sched_setaffinity(0, {int(core) for core in self.settings.platform_cores.split(",")})
        await self.waiters.start()
        if self.settings.queue.payloads is not None:
            self._sweeper = asyncio.create_task(self._sweep())
        with suppress(TimeoutError):
            await asyncio.wait_for(self.waiters.connected.wait(), START_PATIENCE_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            with suppress(redis.RedisError, OSError):
                await self.queue.sweep_payloads(SWEEP_S)

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.waiters.stop()
        await self.queue.close()
        await self.redis.aclose()
        await self.redis.connection_pool.disconnect()
        if self._client is not None:
            self._client.close()

    async def _connected(self) -> None:
        await self.catalog.load()
        self.access.forget()
        self.durability = await self._measured_durability()

    async def _changed(self, message: str) -> None:
        await self.catalog.changed(message)
        self.access.forget()

    async def _measured_durability(self) -> str:
        try:
            config = await cast(Awaitable[dict[str, str]], self.redis.config_get("append*"))
        except redis.ResponseError:
            # A managed server does not show its configuration: assume that of the platform's own.
            return "standard"
        if config.get("appendonly") != "yes":
            return "none"
        return "strict" if config.get("appendfsync") == "always" else "standard"

    async def function(self, project: str, name: str) -> tuple[FunctionEntry, FunctionSpec]:
        """A function and the spec of the revision that takes its traffic. Raises FunctionNotFound, NotReady."""
        entry = self.known_function(project, name)
        spec = await self.catalog.revision(entry.key, entry.revision) if entry.revision else None
        if spec is None:
            raise NotReady
        return entry, spec

    def known_function(self, project: str, name: str) -> FunctionEntry:
        """Also one of which no revision takes traffic. Raises FunctionNotFound."""
        entry = self.catalog.functions.get(f"{project}/{name}")
        if entry is None:
            raise self.unknown_function(project, name)
        return entry

    def unknown_function(self, project: str, name: str) -> FunctionNotFound:
        """The error that there is no such function, with the name that may have been meant."""
        names = [entry.name for entry in list(self.catalog.functions.values()) if entry.project == project]
        return FunctionNotFound(nothing_named("function", name, names, "in this project"))

    # ---- blocking connections, for worker threads ------------------------------------------------------------------------

    def client(self) -> "redis.Redis":
        with self._lock:
            if self._client is None:
                self._client = connect(self.settings, silence_s=COMMAND_S)
            return self._client

    def fleet(self) -> Fleet:
        return Fleet(self.client(), self.settings.redis.prefix)

    def blobs(self) -> "Blobs":
        from smore.blobs.store import open_blobs

        with self._lock:
            if self._blobs is None:
                self._blobs = open_blobs(self.settings)
            return self._blobs

    def store(self) -> "Store":
        """
        The catalog in Postgres. Raises Unavailable where none is configured; its first use raises SQLAlchemy's
        OperationalError where Postgres does not answer.
        """
        from smore.postgres.catalog import Store

        return Store(self._postgres(), Catalog(self.client(), self.settings.redis.prefix))

    def reader(self) -> "Reader":
        from smore.postgres.history.reader import Reader

        return Reader(self._postgres())

    def series(self) -> "Series":
        from smore.postgres.history.series import Series

        return Series(self._postgres())

    def vault(self) -> "Vault":
        """Raises NoKey."""
        with self._lock:
            if self._vault is None:
                from smore.process.vault import Vault

                self._vault = Vault.open(self.settings.secrets_file)
            return self._vault

    def profiles(self) -> "Profiles":
        from smore.postgres.predictors import Profiles

        return Profiles(self._postgres())

    def audit(self) -> "Audit":
        from smore.postgres.audit import Audit

        return Audit(self._postgres())

    def prewarming(self) -> "ArrivalStore":
        from smore.postgres.arrivals import ArrivalStore

        return ArrivalStore(self._postgres())

    def _postgres(self) -> "Engine":
        with self._lock:
            if self._engine is None:
                if self.settings.postgres.url is None:
                    raise Unavailable("No Postgres is configured.", part="postgres")
                from smore.postgres.connection import make_engine

                self._engine = make_engine(self.settings.postgres.url, "gateway", statement_timeout_s=STATEMENT_S)
            return self._engine


async def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


_bearer = HTTPBearer(auto_error=False, description="An API key: `smk_<id>_<secret>`")
_header = APIKeyHeader(
    name="X-API-Key", auto_error=False, description="The same, for clients that cannot send a bearer token"
)


# Their values are read from the request itself: they are parameters so that the API's description names them.
_Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
_ApiKey = Annotated[str | None, Security(_header)]


async def caller_of(gateway: Gateway, request: HttpScope, scope: Scope, *others: Scope) -> KeyEntry:
    """
    The key of a request, also as ``caller`` in the request's scope; where it has none, its session. It has ``scope``, or
    one of ``others``. Raises Unauthorised, Forbidden, SessionForbidden.
    """
    headers = dict(request["headers"])
    authorization, api_key = headers.get(b"authorization"), headers.get(b"x-api-key")
    caller: KeyEntry
    if authorization is None and api_key is None and _SESSION in headers:
        caller = await gateway.session_access.caller(request, scope, *others)
    else:
        caller = gateway.access.caller(authorization, api_key, scope, *others)
    request["caller"] = caller
    return caller


class Caller:
    """The dependency that checks the key or the session of a request: it has ``scope``, or one of ``others``."""

    def __init__(self, scope: Scope, *others: Scope) -> None:
        self.scopes = (scope, *others)

    async def __call__(self, request: Request, _credentials: _Bearer, _api_key: _ApiKey) -> KeyEntry:
        gateway: Gateway = request.app.state.gateway
        return await caller_of(gateway, request.scope, *self.scopes)


async def _scraper(request: Request, _credentials: _Bearer, _api_key: _ApiKey) -> None:
    """Refuse the metrics, which name the functions of all projects, to keys of other projects."""
    gateway: Gateway = request.app.state.gateway
    if gateway.settings.api.metrics == "key":
        caller = await Caller(Scope.READ)(request, _credentials, _api_key)
        if caller.project != OPERATORS:
            raise Forbidden(f"Only keys of the project {OPERATORS} read the metrics of all projects.")


async def operator(caller: "AdminKey") -> KeyEntry:
    """The key of an operator. Raises Forbidden."""
    require_operator(caller)
    return caller


class Trail:
    """
    Records what the present request changes (smore/postgres/audit.py). :meth:`change` blocks on Postgres: use it in a
    worker thread.
    """

    def __init__(self, gateway: Gateway, route: str, request_id: str) -> None:
        self._gateway = gateway
        self._route = route
        self._request_id = request_id

    def change(
        self, caller: KeyEntry, target: str, before: Mapping[str, Any] | None = None, *, project: str | None = None
    ) -> "AbstractContextManager[AuditedChange]":
        """
        A context that records one change where its body succeeds: ``with trail.change(caller, "function/echo", before)
        as change: …; change.after = …``. Raises SQLAlchemy's OperationalError where Postgres does not answer.
        """
        audit = self._gateway.audit()
        from smore.postgres.audit import AuditedChange

        project = caller.project if project is None else project
        return audit.recorded(
            AuditedChange(
                project=project,
                key_id=caller.id,
                route=self._route,
                target=target,
                request_id=self._request_id,
                session=named(caller.session) if isinstance(caller, SessionCaller) else None,
                before=before,
            )
        )


async def _trail(request: Request) -> AsyncIterator[Trail]:
    gateway: Gateway = request.app.state.gateway
    try:
        yield Trail(gateway, f"{request.method} {request.scope['route'].path}", request.scope["request_id"])
    finally:
        # The caller's next request must meet the change, and it may come sooner than the announcement.
        await gateway.waiters.caught_up()


# Its context ends before the answer is sent.
TheTrail = Annotated[Trail, Depends(_trail, scope="function")]
TheGateway = Annotated[Gateway, Depends(_gateway)]
InvokeKey = Annotated[KeyEntry, Depends(Caller(Scope.INVOKE))]
ReadKey = Annotated[KeyEntry, Depends(Caller(Scope.READ))]
#: What a caller must see to call a function.
ReadOrInvokeKey = Annotated[KeyEntry, Depends(Caller(Scope.READ, Scope.INVOKE))]
DeployKey = Annotated[KeyEntry, Depends(Caller(Scope.DEPLOY))]
#: For what brings no new code in.
DeployOrAdminKey = Annotated[KeyEntry, Depends(Caller(Scope.DEPLOY, Scope.ADMIN))]
JobsKey = Annotated[KeyEntry, Depends(Caller(Scope.JOBS))]
JobsOrReadKey = Annotated[KeyEntry, Depends(Caller(Scope.JOBS, Scope.READ))]
#: Every key has a scope.
AnyKey = Annotated[KeyEntry, Depends(Caller(*Scope))]
AdminKey = Annotated[KeyEntry, Depends(Caller(Scope.ADMIN))]
#: See :func:`api.trainings.promises.check_breaks`.
Anyway = Annotated[bool, Query(description="Even where trainings lose the ends that they were promised")]
#: See :func:`api.auth.listed_projects`.
AllProjects = Annotated[bool, Query(description="Of all projects; for operators")]
OfProject = Annotated[
    str | None,
    Query(max_length=128, description="In this project; without it in the key's. Only operators may name another"),
]


async def _listed(caller: ReadKey, project: OfProject = None, all_projects: AllProjects = False) -> str | None:
    return listed_projects(caller, project, all_projects=all_projects)


#: The project that a list is of, None = all: see :func:`api.auth.listed_projects`.
Listed = Annotated[str | None, Depends(_listed)]
PageLimit = Annotated[int, Query(ge=1, le=1000, description="The most entries of one page")]
#: The text of a parameter that goes on behind a page.
CURSOR: Final = "The `next_cursor` of the page before; without it the first page"
OperatorKey = Annotated[KeyEntry, Depends(operator)]
Scraper = Depends(_scraper)
