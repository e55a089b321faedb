"""Names that the shell completes: functions, GPU instances, trainings. Empty where the platform does not answer."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smore_client import Client


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
