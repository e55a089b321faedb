"""
Logs (structlog, one JSON object a line, ids from context), and the metrics of each kind of process.

A process serves the families that it counts, and none that another process counts: a gauge of the leader that a GPU
worker served as 0 would be read as a fact.
"""

import contextlib
import logging
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Final, TextIO, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.metrics_core import Metric

from smore.process.instance import instance_id
from smore.process.plain_log import structlog
from smore.process.settings import Settings

#: Seconds, 5 ms to 30 min: queue waits are much longer than run times.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

#: Seconds, 1 s to two weeks: trainings.
LONG_BUCKETS = (1, 5, 30, 120, 600, 1800, 3600, 3 * 3600, 12 * 3600, 86_400, 3 * 86_400, 14 * 86_400)


def version() -> str:
    """The platform's version; "unknown" where it is not installed."""
    try:
        return metadata.version("smore-platform")
    except metadata.PackageNotFoundError:
        return "unknown"


#: The program that runs, 1 for each process: join it to see which version a series comes from.
BUILD = Gauge(
    "smore_build_info", "1, with the version of the platform and of Python", ["version", "python"], registry=None
)

# Here and not for each process: it takes 2 MiB, which those that are forked share.
BUILD.labels(version(), platform.python_version()).set(1)

#: Who serves a port: another platform of the same machine may have it.
PROCESS = Gauge(
    "smore_process_info",
    "1, with the id of the installation (`instance` in `/healthz`) and the name of the process",
    ["installation", "name"],
    registry=None,
)


class Families(CollectorRegistry):
    """The metric families that one kind of process serves. A family without a sample is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.register(BUILD)
        self.register(PROCESS)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self)

    def collect(self) -> Iterable[Metric]:
        return (family for family in super().collect() if family.samples)


GATEWAY: Final = Families()
SCHEDULER: Final = Families()
WORKER: Final = Families()
CONTROL: Final = Families()
#: What the other processes serve.
OTHERS: Final = Families()
#: The families of a process, by the part of its name before the first "-".
FAMILIES: Final[Mapping[str, Families]] = {
    "gateway": GATEWAY,
    "scheduler": SCHEDULER,
    "worker": WORKER,
    "control": CONTROL,
}

# Gateway
INVOCATIONS = Counter(
    "smore_awaited_invocations",
    "Invocations that ended while their caller waited, by outcome; `smore_invocations_ended_total` has all",
    ["function", "outcome"],
    registry=GATEWAY,
)
REFUSALS = Counter(
    "smore_refusals", "Requests refused before anything was queued", ["function", "code"], registry=GATEWAY
)
E2E_SECONDS = Histogram(
    "smore_e2e_seconds", "Arrival to answer of synchronous invocations", ["function"], buckets=BUCKETS, registry=GATEWAY
)

# Leader and standby
LEADER = Gauge("smore_leader", "1 where this process holds the leader's lease", registry=SCHEDULER)
QUEUE_DEPTH = Gauge("smore_queue_depth", "Invocations waiting", ["function"], registry=SCHEDULER)
PAUSED = Gauge(
    "smore_paused",
    "1 while it is paused: `scope` is platform, gpu or function; `name` that of the GPU instance or function",
    ["scope", "name"],
    registry=SCHEDULER,
)
DRAINED = Gauge(
    "smore_drained", "1 while it is drained, with labels as of `smore_paused`", ["scope", "name"], registry=SCHEDULER
)
QUEUE_WAIT_SECONDS = Histogram(
    "smore_queue_wait_seconds", "Arrival to dispatch", ["function"], buckets=BUCKETS, registry=SCHEDULER
)
DECISION_SECONDS = Histogram(
    "smore_schedule_decision_seconds",
    "One round: events in, decisions out",
    buckets=(1e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 0.025, 0.1),
    registry=SCHEDULER,
)
GPU_REPORTING = Gauge(
    "smore_gpu_reporting",
    "1 where the GPU instance reports, 0 where it is silent: until it reports, an operator forgets it (`smore gpus forget`)"
    " or a day has passed",
    ["gpu_instance"],
    registry=SCHEDULER,
)
DECISIONS = Counter("smore_decisions", "Decisions carried out", ["decision", "reason"], registry=SCHEDULER)
BUDGET_FACTOR = Gauge(
    "smore_budget_factor", "What predicted losses of trainings are multiplied by", ["gpu_instance"], registry=SCHEDULER
)
BUDGET_ACCOUNT = Gauge(
    "smore_budget_account_seconds", "Training time that functions may still cost", ["gpu_instance"], registry=SCHEDULER
)
YIELD_SECONDS = Gauge(
    "smore_yield_seconds",
    "The longest run of class batch that is allowed beside functions that have users waiting",
    ["gpu_instance"],
    registry=SCHEDULER,
)
BATCH_URGENT = Counter(
    "smore_batch_urgent",
    "Invocations of class batch dispatched as urgent, because their deadline came near",
    registry=SCHEDULER,
)
LEASES_REAPED = Counter(
    "smore_lease_reaped", "Invocations returned to the queue because their lease ran out", registry=SCHEDULER
)
PLACEMENT_RULE_FAILURES = Counter(
    "smore_placement_rule_failures",
    "Placement rules of an operator's own that raised or gave an answer that they may not: the platform's own decides since",
    registry=SCHEDULER,
)
AUDIT_DIFFERENCES = Counter(
    "smore_state_audit_differences", "Rows of the leader's arrays that differed from Redis", registry=SCHEDULER
)
PREWARMS = Counter(
    "smore_prewarms",
    "Loads ahead of any request that have ended: hit, late, wasted, failed",
    ["function", "outcome"],
    registry=SCHEDULER,
)
UNFORESEEN = Counter(
    "smore_unforeseen_cold_starts",
    "Cold starts by why no instance stood ready",
    ["function", "reason"],
    registry=SCHEDULER,
)
PREWARM_SILENT = Gauge(
    "smore_prewarm_silent_functions",
    "Functions that go by their keep-alive because their rule knows nothing",
    ["reason"],
    registry=SCHEDULER,
)
PARKED = Gauge(
    "smore_parked_instances",
    "Instances whose weights lie in pinned host memory, of the revisions in force",
    registry=SCHEDULER,
)

# GPU worker
COLD_STARTS = Counter(
    "smore_cold_starts", "Loads that an invocation waited for", ["function", "gpu_instance"], registry=WORKER
)
LOAD_SECONDS = Histogram(
    "smore_load_seconds", "Load of a model, by phase", ["function", "phase"], buckets=BUCKETS, registry=WORKER
)
RUN_SECONDS = Histogram(
    "smore_run_seconds", "Run of a batch", ["function", "gpu_instance", "class"], buckets=BUCKETS, registry=WORKER
)
GPU_HEALTHY = Gauge(
    "smore_gpu_healthy", "1 where the device can run something, 0 where it is faulty", ["gpu_instance"], registry=WORKER
)
AHEAD_REFUSED = Counter(
    "smore_hand_over_refused",
    "Invocations sent to a runner behind another's run that Redis then refused to begin; their results are dropped",
    ["gpu_instance"],
    registry=WORKER,
)
RESIDENT_BYTES = Gauge("smore_resident_model_bytes", "Memory of warm instances", ["gpu_instance"], registry=WORKER)
LOG_LINES_DROPPED = Counter(
    "smore_log_lines_dropped",
    "Lines that functions printed too fast, or while Redis was away",
    ["function"],
    registry=WORKER,
)
RUNNER_DEATHS = Counter(
    "smore_runner_deaths",
    "Runners that ended without being told to",
    ["function", "gpu_instance", "cause"],
    registry=WORKER,
)

# History
RECORDED = Counter("smore_recorded_events", "Stream entries written to Postgres", registry=CONTROL)
INVOCATIONS_ENDED = Counter(
    "smore_invocations_ended",
    "Invocations that ended, synchronous and asynchronous ones, each once, by outcome; counted as the history is written",
    ["function", "outcome"],
    registry=CONTROL,
)
DEADLINES_MISSED = Counter(
    "smore_deadline_missed",
    "Those of `smore_invocations_ended_total` that did not end in time: `expired` ones, which were given up at their deadline or"
    " before it because it could not be met, and those of every other outcome that ended after it",
    ["function", "outcome"],
    registry=CONTROL,
)
RECORD_SKIPPED = Counter(
    "smore_record_skipped_events",
    "Stream entries that could not be read or written, and were passed over",
    registry=CONTROL,
)
SPANS_DROPPED = Counter(
    "smore_spans_dropped",
    "Invocations whose spans were not sent: the receiver did not take them, or took too long",
    registry=CONTROL,
)
RETIRED = Counter(
    "smore_history_deleted_rows", "Rows of the history that were too old or too many", ["table"], registry=CONTROL
)
HISTORY_BYTES = Gauge(
    "smore_history_bytes",
    "What the rows of the history take in Postgres, indices included, as of the last retention",
    registry=CONTROL,
)
# Job scheduler
JOBS = Gauge("smore_jobs", "Trainings that are not over", ["state", "project"], registry=CONTROL)
JOB_WAIT_SECONDS = Histogram(
    "smore_job_wait_seconds", "Time in the queue before a training's start", buckets=LONG_BUCKETS, registry=CONTROL
)
JOB_COMPLETION_SECONDS = Histogram(
    "smore_job_completion_seconds",
    "Submission to end of trainings that succeeded",
    buckets=LONG_BUCKETS,
    registry=CONTROL,
)
JOBS_ENDED = Counter(
    "smore_jobs_ended",
    "Trainings that ran and are over, each once: `succeeded`, `failed` (exit code), `killed` (by a signal), `stopped` (by its"
    " owner), `refused` (its worker could not start it), `lost` (with its GPU instance), `detached`, `unknown`. One that is"
    " started again is not over",
    ["outcome", "project"],
    registry=CONTROL,
)
JOB_RESTARTS = Counter("smore_job_restarts", "Trainings started again, by why", ["why"], registry=CONTROL)
JOB_RULE_FAILURES = Counter(
    "smore_job_rule_failures",
    "Rules for trainings of an operator's own that raised or gave an answer that they may not: smore-jobs decides since",
    registry=CONTROL,
)
JOB_PROMISES = Counter(
    "smore_job_promises",
    "Promised ends of trainings: `given`, `refused`, `kept`, `broken`, `broken_host_lost`, `broken_failed` (its own attempt),"
    " `withdrawn` (its owner stopped it)",
    ["outcome"],
    registry=CONTROL,
)
GPUS_PROMISED = Gauge(
    "smore_gpus_promised", "GPU instances of trainings with promised ends, waiting or running", registry=CONTROL
)
JOB_TOLD_RATIO = Histogram(
    "smore_job_told_ratio",
    "What a training that had to wait took in all over the later end that the plan told when it came",
    buckets=(0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.33, 2, 4, 10),
    registry=CONTROL,
)
JOB_ESTIMATE_RATIO = Histogram(
    "smore_job_estimate_ratio",
    "What a training that succeeded took over what was told of it, by the source of its length",
    ["source"],
    buckets=(0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.33, 2, 4, 10),
    registry=CONTROL,
)
JOB_PLACEMENTS = Counter(
    "smore_job_placements",
    "Starts of trainings: alone on their GPU instances, or as a guest beside another one",
    ["kind"],
    registry=CONTROL,
)
JOB_PAIR_SLOWDOWN = Gauge(
    "smore_job_pair_slowdown",
    "How many times longer an iteration takes because of the training beside it; predicted until it is measured",
    ["training"],
    registry=CONTROL,
)
JOB_BUDGET = Gauge(
    "smore_job_budget",
    "What a training that runs may lose to functions at most, a fraction of its iteration time",
    ["training", "project"],
    registry=CONTROL,
)
JOB_LOSS = Gauge(
    "smore_job_loss",
    "What functions cost a training that runs, by its last closed windows, a fraction of its iteration time; absent while"
    " it is not measured",
    ["training", "project"],
    registry=CONTROL,
)
JOB_LOSS_LOW = Gauge(
    "smore_job_loss_low", "Lower bound of `smore_job_loss`, 95 %", ["training", "project"], registry=CONTROL
)
JOB_LOSS_HIGH = Gauge(
    "smore_job_loss_high", "Upper bound of `smore_job_loss`, 95 %", ["training", "project"], registry=CONTROL
)
JOB_HELD_SECONDS = Counter(
    "smore_job_held_seconds", "Time in which guests were held back for their hosts' sake", registry=CONTROL
)
GPUS_KEPT = Gauge("smore_gpus_kept", "Free GPU instances that are kept for the first training", registry=CONTROL)
JOB_ROUND_SECONDS = Histogram(
    "smore_job_round_seconds",
    "One round of the job scheduler: events in, decisions out",
    buckets=(1e-4, 5e-4, 1e-3, 5e-3, 0.025, 0.1, 0.5, 2),
    registry=CONTROL,
)
RECORD_LAG = Gauge("smore_record_lag_seconds", "Age of the oldest stream entry not yet in Postgres", registry=CONTROL)


class _Lines:
    """Standard error. Where its reader has ended (a killed supervisor), writing a line must raise nothing."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


class _CelerySeverity(logging.Filter):
    """
    Severities of Celery's records as the platform means them: a Redis that cannot be reached is a warning, as everywhere
    else, and advice about later versions of Celery is no event.
    """

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "py.warnings" and "CPendingDeprecationWarning" in record.getMessage():
            return False
        if record.name == "celery.worker.consumer.consumer" and "Cannot connect to" in str(record.msg):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return record.levelno >= self._level


def configure(config: Settings, process: str) -> None:
    """Set up logging for a process and, where a port is given, serve its metrics there."""
    level = logging.getLevelNamesMapping()[config.log_level]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if config.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lines())),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    handler.addFilter(_CelerySeverity(level))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))
    # Celery logs the start and the end of every task at INFO: two lines for each invocation.
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    logging.getLogger("celery.app.trace").setLevel(logging.WARNING)
    structlog.contextvars.bind_contextvars(process=process)
    PROCESS.labels(instance_id(config.home), process).set(1)
    if config.metrics_port:
        families = FAMILIES.get(process.partition("-")[0], OTHERS)
        try:
            start_http_server(config.metrics_port, addr=config.metrics_host, registry=families)
        except OSError as error:
            # A port that is taken must not keep the process from its work.
            logger(__name__).warning("no metrics: the port is taken", port=config.metrics_port, error=str(error))


def logger(name: str) -> structlog.typing.FilteringBoundLogger:
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger(name)
    return log
