"""What a request to start a training asks for, checked."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from api.auth import is_operator
from api.deps import Gateway
from api.errors import TRAININGS_S, SessionForbidden
from api.schemas.jobs import JobBody, SecretOf
from api.session import SessionCaller
from api.trainings.budgets import check_budget
from api.trainings.promises import asked_by
from smore.domain.errors import Draining, InvalidInput, Unavailable
from smore.domain.function import duration_s, parse_name, size_bytes
from smore.domain.job import GRACE_S, JobRequest
from smore.domain.limits import NO_LIMITS
from smore.domain.loss import DEFAULT_BUDGET
from smore.domain.quote import quoted
from smore.domain.spelling import did_you_mean
from smore.domain.workload import parse_training
from smore.messages.job_queue import TrialAnswer
from smore.messages.reports import Report
from smore.redis.catalog import KeyEntry
from smore.redis.job_queue import JobQueue
from zoo import options

#: The longest that a training may be said to be, and that it may take to end after SIGTERM, seconds.
LONGEST_S: Final = 10 * 365.25 * 86_400
LONGEST_GRACE_S: Final = 3600.0
#: Seconds that an answer to a job that is started may wait for the job scheduler's word whether it can ever run.
FIT_S: Final = 1.0


def request_of(gateway: Gateway, caller: KeyEntry, body: JobBody, reports: Sequence[Report]) -> JobRequest:
    """
    The request without its plain variables. Raises Draining, InvalidInput and InvalidSpec, which name the field, Forbidden,
    and SessionForbidden for a program or an environment of a session's own.
    """
    if "-*" in gateway.catalog.paused:
        raise Draining("The platform is being drained: no training is taken.", retry_after_s=TRAININGS_S)
    parse_name(body.name)
    trusted = _trusted(gateway, caller, body)
    if isinstance(caller, SessionCaller):
        for field, given in (("argv[0]", trusted), ("cwd", body.cwd), ("env", body.env)):
            if given:
                raise SessionForbidden.at(field, "a session starts an entry point as it is; use an API key.")
    gpus = _gpus(gateway, body)
    if body.iterations is not None and body.duration is not None:
        raise InvalidInput.at("duration", "a length is said in iterations or as a duration, not both")
    places = {
        (report.device, report.sharing_mode)
        for report in reports
        if (report.gpu in gpus if gpus else body.device in (None, report.device))
    }
    workload = parse_training(body.workload, "workload") if body.workload is not None else ""
    if body.budget is not None:
        check_budget(gateway, body.budget, workload, sorted(places))
    return JobRequest(
        argv=body.argv,
        count=len(gpus) or body.count or 1,
        gpus=gpus,
        device=body.device or "",
        memory_mib=size_bytes(body.memory, "memory") / 2**20 if body.memory is not None else 0.0,
        workload=workload,
        budget=body.budget if body.budget is not None else DEFAULT_BUDGET,
        iterations=body.iterations or 0,
        duration_s=_seconds(body.duration, "duration", LONGEST_S),
        restarts=body.restarts,
        grace_s=_seconds(body.grace, "grace", LONGEST_GRACE_S) or GRACE_S,
        secrets=_secrets(gateway, caller, body),
        trusted=trusted,
        cwd=body.cwd or "",
        share=_share(gateway, caller, body),
        micro_batches=_micro_batches(body, workload),
        by=asked_by(body, LONGEST_S),
        unless=body.unless,
    )


def check_ever(gateway: Gateway, project: str, name: str, request: JobRequest) -> None:
    """
    Raises InvalidInput, which names the field and the largest value that would do, where the job could never start. The
    job scheduler answers that; where none leads, whoever asks is not kept waiting, and the job's explanation says it.
    """
    try:
        answer = JobQueue(gateway.client(), gateway.settings.redis.prefix).trial(project, name, request, FIT_S)
    except Unavailable:
        return
    check_fits(answer)


def check_fits(answer: TrialAnswer) -> None:
    """Raises InvalidInput where the answer is that the job could never start."""
    if answer.field:
        raise InvalidInput.at(answer.field, f"{answer.message}", largest=answer.largest)


def _trusted(gateway: Gateway, caller: KeyEntry, body: JobBody) -> bool:
    """Whether it is a program of an operator's, and no entry point."""
    allowed = gateway.settings.job_entrypoints
    if body.argv[0] in allowed:
        if body.cwd is not None:
            raise InvalidInput.at("cwd", "an entry point starts in a folder of the platform")
        # Of the platform's own training; what others take as options the platform does not know.
        if body.argv[0] == "zoo.train" and (wrong := options.problem(body.argv[1:])):
            raise InvalidInput.at("argv", f"zoo.train: {wrong}")
        return False
    if not is_operator(caller):
        raise InvalidInput.at(
            "argv[0]",
            f"{quoted(body.argv[0])} is not one of the entry points that this key may start"
            f" ({', '.join(allowed)}). Any other program needs an operator's key: ask an operator to start it, or to add"
            " its module to SMORE_JOB_ENTRYPOINTS.",
        )
    if body.cwd is not None and not body.cwd.startswith("/"):
        raise InvalidInput.at("cwd", f"{quoted(body.cwd)} is no absolute path")
    return True


def _gpus(gateway: Gateway, body: JobBody) -> list[str]:
    """The GPU instances that it names, none = any."""
    gpus = body.gpus or []
    if gpus and body.count is not None:
        raise InvalidInput.at(
            "count", f"{body.count} beside gpus: the names say how many it runs on", largest=len(gpus)
        )
    names = gateway.fleet().known() if gpus else []
    for position, gpu in enumerate(gpus):
        field = f"gpus[{position}]"
        if gpu in gpus[:position]:
            raise InvalidInput.at(field, f"{quoted(gpu)} is named twice")
        if gpu not in names:
            raise InvalidInput.at(field, f"there is no GPU instance {quoted(gpu)}{did_you_mean(gpu, names) or '.'}")
    return gpus


def _seconds(value: float | str | None, field: str, longest_s: float) -> float:
    """0 where nothing was said."""
    if value is None:
        return 0.0
    seconds = duration_s(value, field)
    if not (math.isfinite(seconds) and 0 < seconds <= longest_s):
        raise InvalidInput.at(field, f"{value} is not above 0 and at most {longest_s:.0f} s")
    return seconds


def _share(gateway: Gateway, caller: KeyEntry, body: JobBody) -> float:
    if body.share is not None:
        return body.share
    return gateway.catalog.limits.get(caller.project, NO_LIMITS).share or 0.0


def _micro_batches(body: JobBody, workload: str) -> list[int]:
    """The ways in which its loop can run a batch, none = in one part."""
    counts = body.micro_batches
    if counts and (counts[0] != 1 or any(after <= before for before, after in pairwise(counts))):
        raise InvalidInput.at("micro_batches", f"{counts} does not rise from 1")
    batch = int(workload.rsplit("/", 1)[1]) if workload else None
    if counts and batch is not None and counts[-1] > batch:
        raise InvalidInput.at("micro_batches", f"a batch of {batch} has no {counts[-1]} parts", largest=batch)
    return counts


def _secrets(gateway: Gateway, caller: KeyEntry, body: JobBody) -> dict[str, str]:
    """Variable → name of a secret that the project has."""
    named = {variable: value.secret for variable, value in body.env.items() if isinstance(value, SecretOf)}
    there = {secret.name for secret in gateway.store().list_secrets(caller.project)} if named else set()
    for variable, secret in named.items():
        if secret not in there:
            raise InvalidInput.at(
                f"env.{variable}", f"the project has no secret {quoted(secret)}{did_you_mean(secret, there) or '.'}"
            )
    return named
