"""
All settings of the platform, read from the environment.

``SMORE_REDIS__URL=…`` sets ``Settings().redis.url``: prefix ``SMORE_``, ``__`` between levels. A setting whose name
ends in ``_FILE`` is not supported here: secrets arrive as environment variables or in files that the embedded platform
owns.
"""

import json
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from smore.domain.loss import PROBE_MAX_S, PROBE_SHARE


def _no_placeholder(url: str | None) -> str | None:
    if url is not None and urlsplit(url).password == "change-me":  # noqa: S105 - it is none
        raise ValueError("change-me is a placeholder: choose a password, for instance by `openssl rand -hex 24`")
    return url


#: The URL of a server, with its password.
ServerUrl = Annotated[str | None, AfterValidator(_no_placeholder)]


class RedisSettings(BaseModel):
    """Where the queue, the leases and the fleet live."""

    #: None = ``smore up`` starts an embedded server (smore/local/embedded.py).
    url: ServerUrl = None
    #: Every key of the platform starts with it, Celery's too.
    prefix: str = "smore:"
    #: ``standard`` = appendfsync everysec, ``strict`` = appendfsync always, so that a 202 is on disk before it is sent.
    durability: Literal["standard", "strict"] = "standard"


class PostgresSettings(BaseModel):
    """Where the catalog and the history live."""

    #: None = ``smore up`` starts an embedded server (smore/local/embedded.py).
    url: ServerUrl = None
    #: Days for which rows of the history are kept.
    retention_days: float = Field(default=14.0, gt=0)
    #: GiB that rows of the history may take, indices included; the oldest are deleted first.
    retention_gib: float = Field(default=32.0, gt=0)
    #: Hours for which the load of each GPU instance is kept by the second; after them there are its minutes.
    seconds_hours: float = Field(default=48.0, ge=1)
    #: Days for which the counts of each minute are kept.
    minutes_days: float = Field(default=400.0, gt=0)


def _items(given: object) -> object:
    """``a,b`` or a JSON list, as a variable holds it."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    if text == "null" or text.startswith("["):
        return json.loads(text)
    return [item.strip() for item in text.split(",") if item.strip()]


#: A list in a variable: with commas, or as JSON.
Listed: Final = (NoDecode, BeforeValidator(_items))


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if text and (parts.scheme not in ("http", "https") or f"{parts.scheme}://{parts.netloc}" != text):
        raise ValueError("https://HOST or https://HOST:PORT is expected, without a path")
    return text


def _network(text: str) -> str:
    return str(ip_network(text))


class ApiSettings(BaseModel):
    """The gateway."""

    #: Address on which the gateway listens.
    host: str = "127.0.0.1"
    #: Port on which the gateway listens.
    port: int = Field(default=8400, ge=0, le=65_535)
    #: Bodies above this are refused with 413 before they are read whole.
    max_body_bytes: int = Field(default=8 << 20, ge=1)
    #: Who reads ``/metrics``: ``key`` = keys of the project ``default`` with the scope ``read``; ``open`` = everybody
    #: who reaches the port.
    metrics: Literal["key", "open"] = "key"
    #: Most inputs of a call that waits for its results; with ``Prefer: respond-async`` as many as may wait at all
    #: (``SMORE_QUEUE__MAX_PENDING``).
    max_inputs_per_call: int = Field(default=64, ge=1)
    #: How long a synchronous call waits when the client names no ``Prefer: wait``; then it becomes a 202.
    sync_wait_s: float = Field(default=30.0, ge=0)
    #: Connections at a time. Beyond them those that have waited longest for a request are closed; where all are at
    #: work, the newest (503).
    max_connections: int = Field(default=8192, ge=16)
    #: The same of one sender: an IPv4 address or an IPv6 network of 64 bits. Not of ``proxies``, which stand for many.
    max_connections_per_sender: int = Field(default=1024, ge=4)
    #: Addresses and networks of proxies in front of the gateway, with commas: ``10.0.0.7,fd00::/64``.
    proxies: Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], *Listed] = ()
    #: Where browsers reach the dashboard, ``https://gpus.example.org``: needed where a proxy in front of the gateway
    #: changes ``Host``. "" = by the address of each request.
    public_url: Annotated[str, AfterValidator(_origin)] = ""
    #: Origins whose pages may call the API from a browser, with commas: ``https://app.example.org``; ``*`` = any. Pages
    #: send an API key in a header; a session of the dashboard is no use to them.
    cors_origins: Annotated[tuple[str, ...], *Listed] = ()
    #: How long a connection may wait for its next request, seconds: longer than clients keep theirs, so that they close
    #: first.
    keep_alive_s: float = Field(default=75.0, gt=0)
    #: How long a request's line and headers may take to come, seconds.
    head_s: float = Field(default=10.0, gt=0)
    #: Bytes that a request's line and headers may have.
    max_head_bytes: int = Field(default=32 << 10, ge=1024)
    #: How long a body may take, seconds, beside a second for each ``min_bytes_per_s`` bytes of it; and how long a
    #: client may leave an answer unread.
    stall_s: float = Field(default=20.0, gt=0)
    #: Bytes of a body that prolong ``stall_s`` by a second.
    min_bytes_per_s: int = Field(default=1024, ge=1)


class BlobSettings(BaseModel):
    """Uploaded code and weights (smore/blobs/store.py)."""

    #: A folder or an fsspec URL; "" = ``<home>/blobs``. A GPU worker on a host without it names a gateway:
    #: ``http://gateway:8400``.
    url: str = ""
    #: Bytes of one blob.
    max_bytes: int = Field(default=16 << 30, ge=1)
    #: Bytes of all blobs of a project.
    project_bytes: int = Field(default=64 << 30, ge=1)
    #: How long a blob that no revision names is kept: it may belong to a deploy that is under way.
    grace_s: float = Field(default=86_400.0, ge=0)


class QueueSettings(BaseModel):
    """Bounds of what Redis holds."""

    #: Invocations that may wait, over all functions.
    max_pending: int = Field(default=20_000, ge=0)
    #: Bytes of all payloads.
    payload_bytes: int = Field(default=512 << 20, ge=1)
    #: A folder in memory that the gateways and GPU workers of one machine share: payloads of 64 KiB and more whose
    #: callers wait lie there (smore/redis/payloads.py). None = all go through Redis, as they must where a GPU worker is
    #: on another machine.
    payloads: Path | None = None
    #: Bytes of all results.
    result_bytes: int = Field(default=256 << 20, ge=1)
    #: Bytes of one result, ``result_too_large`` beyond it. All results of a batch together have ``result_bytes``. Redis
    #: ends a connection that 32 MiB wait for (client-output-buffer-limit pubsub): a gateway would be cut off with all
    #: its callers.
    max_result_bytes: int = Field(default=24 << 20, ge=1)
    #: Entries of the event stream.
    events: int = Field(default=1_000_000, ge=1)
    #: How long a finished invocation's record and result stay in Redis.
    result_ttl_s: float = Field(default=600.0, ge=1)
    #: The same for a result that a synchronous caller has been sent: long enough for a gateway to reconnect and read it
    #: again.
    sync_result_ttl_s: float = Field(default=30.0, ge=0)
    #: How long an Idempotency-Key is remembered. Its invocation's result is kept for ``result_ttl_s``.
    idempotency_ttl_s: float = Field(default=3600.0, ge=1)
    #: Keys of all kinds in Redis (records, results, idempotency keys): what has no byte budget of its own is bounded by
    #: their number.
    keys: int = Field(default=1_500_000, ge=1)
    #: Questions to the leader (dry runs, explanations of what waits) that are let through in a second, over all
    #: gateways.
    asks_per_s: int = Field(default=20, ge=1)
    #: Dispatches that may be lost (worker died before user code began) before an invocation fails.
    max_lost: int = Field(default=5, ge=0)


class LogSettings(BaseModel):
    """What functions print (docs/guides/own-model.md): bounds for each function's log, which is in Redis."""

    #: Pieces that are kept; a piece is what a function prints on one stream within some 20 ms, up to 8 KiB.
    pieces: int = Field(default=1000, ge=1)
    #: Bytes of all logs together in Redis; those that were not written to for longest are deleted first.
    bytes: int = Field(default=64 << 20, ge=1 << 20)
    #: How long a log is kept after its last line, seconds.
    keep_s: float = Field(default=259_200.0, gt=0)
    #: Bytes of one line; the rest is cut off, and the line says how much.
    line_bytes: int = Field(default=4096, ge=80, le=8192)
    #: Bytes a second that a GPU worker takes of one function's output, each line counting 64 more; sixteen times as
    #: many may come at once. What is more is dropped, and a line says how much.
    bytes_per_s: int = Field(default=64 << 10, ge=1024)
    #: Readers that a gateway lets follow logs at a time; each keeps a connection. The keys of one project get a quarter of
    #: them, and an eighth is kept for operators. As many more may watch the dashboard, in the same shares.
    followers: int = Field(default=64, ge=0)


class OtelSettings(BaseModel):
    """Where spans of invocations go (docs/guides/administration.md, "Traces")."""

    #: A receiver of OTLP over HTTP that takes JSON: ``http://collector:4318``, with user and password where it asks for
    #: them. "" = no spans.
    endpoint: str = ""
    #: Beside the invocations whose callers record spans: one in so many of the others. 0 = none.
    every: int = Field(default=0, ge=0)


class PolicySettings(BaseModel):
    """Which rule decides (scheduler/policy/knobs.py)."""

    #: The policy that decides: a named setting, or ``module:Class`` for a placement rule of one's own
    #: (docs/guides/own-policy.md).
    name: str = "smore-product"
    #: Knobs that differ from the named setting, as a JSON object: ``{"tau_training": 0.05}``.
    knobs: dict[str, Any] = {}
    #: Of what a policy draws at random: samples, ties.
    seed: int = 0
    #: Another policy whose choice is recorded beside every decision; it does not act. "" = none.
    shadow: str = ""


class PrewarmSettings(BaseModel):
    """When instances stand ready, and who says so (docs/guides/warm-instances.md)."""

    #: False = nobody but ``min_warm`` holds an instance, whatever functions ask for.
    on: bool = True
    #: The rule of functions with ``prewarm: auto`` (scheduler/policy/prewarm); ``paper`` is LS-LSTM as the paper has
    #: it.
    rule: str = "priced"
    #: What a cold start is worth to that rule, GB-seconds of memory that stands idle. The default is the dearest price
    #: that wastes at most 0.8 of a tuned LSTH on either trace of docs/research/prewarming.md ("The price").
    price_gb_s: float = Field(default=180.0, ge=0)
    #: Other knobs of it, as a JSON object.
    knobs: dict[str, Any] = {}
    #: Share of a GPU instance's free memory that idle instances may hold for the prewarmer to add another (assumption
    #: A35, docs/paper.md).
    share: float = Field(default=0.3, ge=0, le=1)
    #: Seconds that a load begins earlier than its cold start takes (assumption A40, docs/paper.md).
    lead_s: float = Field(default=1.0, ge=0, le=60)
    #: A forecast older than this counts for nothing, seconds: the function goes on with its keep-alive.
    stale_s: float = Field(default=240.0, gt=0)
    #: Minutes that must have been counted before anything is forecast.
    least_minutes: int = Field(default=60, ge=10)
    #: Minutes that are forecast.
    horizon: int = Field(default=15, ge=3, le=120)
    #: How long a fitted forecaster is used, seconds, before it is fitted anew.
    refit_s: float = Field(default=600.0, gt=0)


class JobsSettings(BaseModel):
    """The queue of trainings and the job scheduler."""

    #: The rule that decides: a named setting of scheduler/policy/jobs/knobs.py that stops no running training, or a rule of
    #: one's own, ``module:Class`` or ``FILE.py:Class`` (smore/domain/job_rule.py).
    policy: str = "smore-jobs"
    #: Knobs that differ from the named setting, as a JSON object: ``{"back_off_s": 30}``.
    knobs: dict[str, Any] = {}
    #: How long a GPU instance may be silent before the trainings on it are lost, seconds.
    silent_s: float = Field(default=60.0, ge=5)
    #: How long all ranks of a training may take to be reported, seconds; then they are ended and the attempt is over.
    up_s: float = Field(default=60.0, ge=5)
    #: The folder of checkpoints, where all nodes see the same one. None = each node has its own, ``<home>/checkpoints``,
    #: and a training is started again on the node that has its last checkpoint.
    checkpoints: Path | None = None
    #: How long the checkpoints of a training are kept after its end, days. None = for ever: nobody may have copied a
    #: finished model yet.
    checkpoints_days: float | None = Field(default=None, gt=0)
    #: The job scheduler must renew its lease within this, else another process takes over, seconds.
    lease_s: float = Field(default=3.0, gt=0)
    #: How often it looks for ends and changes when nobody wakes it, seconds.
    tick_s: float = Field(default=0.5, gt=0)
    #: A file to which it writes what it decides by (scheduler/jobs/recording.py), up to 256 MiB. None = it does not.
    record: Path | None = None


class SchedulerSettings(BaseModel):
    """The leader and its standby."""

    #: The leader must renew within this, else the standby takes over.
    lease_s: float = Field(default=2.0, gt=0)
    #: How long the deciding loop sleeps when nothing happens.
    tick_s: float = Field(default=0.1, gt=0)
    #: How often the gate is told what trainings' budgets leave, while functions want it. With many of them less often:
    #: telling takes at most a twentieth of the leader's time.
    gate_s: float = Field(default=0.02, gt=0)
    #: A dispatched invocation that no worker started within this returns to the queue.
    dispatch_lease_s: float = Field(default=2.0, gt=0)


#: The name of the nursery's socket.
NURSERY: Final = "nursery.sock"


class WorkerSettings(BaseModel):
    """One GPU worker: pinned to one GPU instance."""

    #: Name of the GPU instance and of its Celery queue ``gpu.<id>``.
    gpu: str = "cpu0"
    #: What it is: a whole GPU, a MIG instance, a CPU partition.
    kind: Literal["cuda", "mig", "cpu"] = "cpu"
    #: CUDA: NVML index or UUID. CPU partition: comma-separated core numbers ("" = all cores this process may use).
    device: str = ""
    #: CPU partition: the part of the cores' time that belongs to it, 0 < share <= 1.
    share: float = Field(default=1.0, gt=0, le=1)
    #: CPU partition: memory for warm instances, MiB.
    memory_mib: int = Field(default=2048, ge=1)
    #: ``time-slice``; the others are refused with the reason (smore/process/device_name.py).
    sharing_mode: Literal["time-slice", "mps", "streams"] = "time-slice"
    #: How much lower than training's the priority of functions on the machine's cores is (``nice``); below 0, for root
    #: alone, it is higher. On a CPU partition it is part of the sharing mode, so measurements under another value say
    #: nothing about this one; a GPU knows no such priority.
    function_nice: int = Field(default=5, ge=-20, le=19)
    #: GPU: threads with which a function computes on the machine's cores, which feed training too. 0 = as many as torch
    #: likes.
    threads: int = Field(default=4, ge=0)
    #: GPU: what a function may hold of the machine's memory, MiB, beside twice what it declares of the GPU's.
    host_memory_mib: float = Field(default=8192.0, ge=0)
    #: Name of the machine, "" = its own (``hostname``). GPU instances of one name are one machine: they share its memory
    #: and the folder of trainings' checkpoints.
    node: str = Field(default="", max_length=253)
    #: Where a training on another machine reaches one that trains here, a name or an address; "" = the address from
    #: which this worker reaches Redis.
    address: str = Field(default="", max_length=253)
    #: Concurrent batches (assumption A58, docs/paper.md).
    slots: int = Field(default=8, ge=1, le=64)
    #: How often a GPU worker reports and renews the leases of what it runs, seconds.
    heartbeat_s: float = Field(default=0.5, gt=0)
    #: A running invocation whose worker misses heartbeats for this long returns to the queue.
    lease_s: float = Field(default=2.0, gt=0)
    #: The socket of this machine's nursery (worker/runner/nursery.py), None = the one in ``<home>/run``.
    nursery: Path | None = None
    #: Keep one started runner without a model, so that a cold start pays neither imports nor the device context.
    standby: bool = True
    #: Part of the time in which no function may run beside a job, in windows drawn at random: what its loss is measured
    #: against (docs/guides/budgets.md). For each job; 0 = its loss is not measured, and no budget can be proven. More
    #: than a tenth would leave no room for chance between windows.
    probe_share: float = Field(default=PROBE_SHARE, ge=0, le=0.1)
    #: The longest such window, the wait for what runs included, seconds: how long an invocation may have to wait for
    #: it. A job whose iterations need a longer one (seven of them) is not measured.
    probe_max_s: float = Field(default=PROBE_MAX_S, gt=0, le=60)
    #: Pinned host memory for weights of models that are let go of, MiB; 0 = none, their processes end. Not for CPU
    #: partitions, which have no other memory to give back.
    host_mib: float = Field(default=0.0, ge=0)
    #: How long such a model waits there for its next load, seconds.
    keep_host_s: float = Field(default=600.0, gt=0)
    #: Unpacked uploads and built environments that a node keeps, MiB for each of the two kinds; what has not been used
    #: for longest goes first. What is loaded stays, whatever it takes.
    cache_mib: int = Field(default=20 << 10, ge=1)
    #: How long building the environment of an uploaded function may take, seconds.
    build_s: float = Field(default=480.0, gt=0)
    #: Users of this machine, by name or number, whose processes a project's key may have watched as its training
    #: (docs/guides/security.md); "*" = anybody. The worker's own user is one of them unless it is root. An operator's
    #: key may name any process.
    attach_users: Annotated[tuple[str, ...], *Listed] = ()
    #: Trainings are started by ``python -m worker.keeper`` of the same home, in a container of its own, so that they do
    #: not end with the worker's container. Both need one PID namespace.
    keeper: bool = False
    #: Whether such an environment may have packages that come as source alone: their build runs what they bring, in a
    #: cell (docs/guides/security.md). Off, wheels alone are installed.
    sdists: bool = False
    #: Shut runners in (docs/guides/security.md). Off, every function is the worker's equal.
    confine: bool = True
    #: What a function may read beside the installation: weights that lie elsewhere.
    readable: Annotated[tuple[Path, ...], *Listed] = ()
    #: What a function may write beside its scratch folder: a cache.
    writable: Annotated[tuple[Path, ...], *Listed] = ()
    #: TCP ports to which a function may connect; null = any. Not 80: there the clouds hand out their machines'
    #: credentials.
    tcp_ports: Annotated[tuple[int, ...] | None, *Listed] = (53, 443)
    #: Processes and threads of one runner.
    processes: int = Field(default=256, ge=16)
    #: Size of a runner's scratch folder and of any file that it writes, MiB. The folder is in memory and counts as the
    #: function's.
    scratch_mib: int = Field(default=256, ge=1)


class NodeSettings(BaseModel):
    """The GPU workers of one machine (``python -m worker.node``)."""

    #: ``gpu``: every GPU and MIG instance that NVML shows, and an error where there is none; ``cpu``: CPU partitions in
    #: their place.
    kind: Literal["gpu", "cpu"] = "gpu"
    #: CPU partitions, None = one for each core but the first, two at least.
    partitions: int | None = Field(default=None, ge=1, le=64)
    #: What the names of its CPU partitions begin with, "" = the machine's name: names are one for the whole platform.
    name: str = Field(default="", pattern=r"^[A-Za-z0-9-]{0,63}$")
    #: Where a machine's processes serve their metrics: this port of ``SMORE_METRICS_HOST`` and those behind it. 0 = off.
    #: ``smore up`` takes the next block of ports that is free and that no other start has chosen; ``smore health`` shows
    #: them.
    metrics_port: int = Field(default=8410, ge=0, le=65_000)


def _in_capitals(given: object) -> object:
    return given.upper() if isinstance(given, str) else given


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SMORE_", env_nested_delimiter="__", extra="ignore")

    #: Data, sockets, logs and reports of this machine's platform.
    home: Path = Path(".smore")
    #: Core numbers that the platform's own processes keep to ("" = any).
    platform_cores: str = ""
    #: The least severity that is logged, in capitals or not (docs/guides/administration.md, "Logs").
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_in_capitals)] = "INFO"
    #: One JSON object a line, or text for a terminal.
    log_format: Literal["json", "console"] = "json"
    #: Port where this process serves its Prometheus metrics, without a key (the gateway serves its own at /metrics). 0
    #: = off.
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    #: Its address. Whoever reaches it may read: another than 127.0.0.1 belongs to a network of the operators' own.
    metrics_host: str = "127.0.0.1"

    #: What a serverful job may run: modules, started as ``python -m MODULE …``. The gateway refuses others, the workers
    #: too.
    job_entrypoints: Annotated[tuple[str, ...], *Listed] = ("zoo.train",)
    #: Trainings that a project may have at once where its limits say nothing (docs/guides/administration.md).
    jobs_per_project: int = Field(default=64, ge=0)

    #: What functions' secrets are sealed with (smore/process/vault.py); default ``<home>/secrets.key``.
    secrets_key: Path | None = None

    redis: RedisSettings = RedisSettings()
    postgres: PostgresSettings = PostgresSettings()
    api: ApiSettings = ApiSettings()
    blobs: BlobSettings = BlobSettings()
    queue: QueueSettings = QueueSettings()
    logs: LogSettings = LogSettings()
    otel: OtelSettings = OtelSettings()
    policy: PolicySettings = PolicySettings()
    prewarm: PrewarmSettings = PrewarmSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    jobs: JobsSettings = JobsSettings()
    worker: WorkerSettings = WorkerSettings()
    node: NodeSettings = NodeSettings()

    @property
    def secrets_file(self) -> Path:
        return self.secrets_key or self.home / "secrets.key"
