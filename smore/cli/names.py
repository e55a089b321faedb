"""
Names that the shell completes: functions, GPU instances, trainings, invocations, projects, keys, secrets. Empty where
the platform does not answer.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from smore_client import Client

#: Invocations whose ids are completed.
NEWEST: Final = 50


def _completed(incomplete: str, names: Callable[["Client"], Iterable[str]]) -> list[str]:
    from smore_client import Client, ClientError

    try:
        with Client() as client:
            return sorted(name for name in set(names(client)) if name.startswith(incomplete))
    except ClientError:
        return []


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
