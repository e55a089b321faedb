"""
Names that the shell completes: functions, GPU instances, trainings and so on. Those that the platform has are empty where
it does not answer.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from smore_client import Client

#: Invocations whose ids are completed.
NEWEST: Final = 50


def _completed(incomplete: str, names: Callable[["Client"], Iterable[str]]) -> list[str]:
    from smore_client import Client, ClientError

    try:
        with Client() as client:
            return _beginning(incomplete, names(client))
    except ClientError:
        return []


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in set(names) if name.startswith(incomplete))


def functions(incomplete: str) -> list[str]:
    """Functions of the key's project."""
    return _completed(incomplete, lambda client: (function.name for function in client.functions()))


def gpus(incomplete: str) -> list[str]:
    """GPU instances that report."""
    return _completed(incomplete, lambda client: (gpu.id for gpu in client.gpus()))


def jobs(incomplete: str) -> list[str]:
    """Names of trainings."""
    return _completed(incomplete, lambda client: (job.name for job in client.jobs()))


def invocations(incomplete: str) -> list[str]:
    """Ids of the newest invocations."""
    return _completed(incomplete, lambda client: (each.id for each in client.invocations(limit=NEWEST).items))


def projects(incomplete: str) -> list[str]:
    """Projects, for a key that may list them."""
    return _completed(incomplete, lambda client: (project.name for project in client.projects()))


def keys(incomplete: str) -> list[str]:
    """Ids of API keys."""
    return _completed(incomplete, lambda client: (each.id for each in client.keys()))  # noqa: SIM118 - no dict


def secrets(incomplete: str) -> list[str]:
    """Names of secrets."""
    return _completed(incomplete, lambda client: (secret.name for secret in client.secrets()))


def traces(incomplete: str) -> list[str]:
    """Ids of imported traces."""
    from smore_client import admin

    return _completed(incomplete, lambda client: (str(trace.id) for trace in client.carry(admin.traces())))


def devices(incomplete: str) -> list[str]:
    """Kinds of the GPU instances that report."""
    return _completed(incomplete, lambda client: (gpu.device for gpu in client.gpus()))


def workloads(incomplete: str) -> list[str]:
    """Trainings that were profiled."""
    return _completed(incomplete, lambda client: chain.from_iterable(p.trainings for p in client.predictor().places))


def trainings(incomplete: str) -> list[str]:
    """Trainings that were profiled, and ids of those that are not over."""
    ids = _completed(incomplete, lambda client: (job.id for job in client.jobs(("queued", "starting", "running"))))
    return [*ids, *workloads(incomplete)]


def functions_or_models(incomplete: str) -> list[str]:
    """Functions of the key's project, then functions and trainings that were profiled."""
    profiled = _completed(
        incomplete,
        lambda client: chain.from_iterable((*p.functions, *p.trainings) for p in client.predictor().places),
    )
    return [*functions(incomplete), *profiled]


def revisions(context: typer.Context, incomplete: str) -> list[str]:
    """Revisions of the function that is named before."""
    function = str(context.params.get("name") or "")
    return _completed(incomplete, lambda client: (str(each.revision) for each in client.revisions(function)))


def logged(incomplete: str) -> list[str]:
    """Functions, and processes of this machine's platform."""
    from smore.process.environment import InvalidSetting, load

    try:
        processes = [file.stem for file in (load().home / "logs").glob("*.log")]
    except InvalidSetting:
        processes = []
    return [*functions(incomplete), *_beginning(incomplete, processes)]


def scopes(incomplete: str) -> list[str]:
    """What a key may do."""
    from smore.domain.access import Scope

    return _beginning(incomplete, Scope)


def states(incomplete: str) -> list[str]:
    """States of invocations."""
    from smore.domain.invocation import State

    return _beginning(incomplete, State)


def prewarm_modes(incomplete: str) -> list[str]:
    """Who decides which instances stand ready."""
    from smore.domain.function import Prewarming

    return _beginning(incomplete, Prewarming)


def data_sets(incomplete: str) -> list[str]:
    """Public traces that can be fetched."""
    from smore.traces.public import DATA_SETS

    return _beginning(incomplete, DATA_SETS)


def settings(incomplete: str) -> list[str]:
    """Variables of settings."""
    from smore.process.environment import described

    return _beginning(incomplete, (setting.variable for setting in described()))
