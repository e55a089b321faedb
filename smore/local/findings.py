"""What the doctor reports (:class:`Finding`), and what it examines (:class:`Site`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from smore.process.settings import Settings

if TYPE_CHECKING:
    from smore.local.supervision import End


class Grade(StrEnum):
    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. ``found``: what was observed; ``fix``: the remedy, "" = none is needed."""

    name: str
    verdict: Grade
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """
    The installation that is examined.

    ``redis_url`` and ``postgres_url``: None = the platform does not run here and no setting names them. ``processes``:
    pids of the platform's processes on this machine, by name. ``killed``: the pid of a supervisor that was killed.
    ``ends``: of processes that ended unasked, by name. ``gateway_url`` and ``instance``: the platform of the folder
    ``config.home``, where it runs; its gateway answers with this id. ``metrics_host`` and ``metrics_ports``: where its
    other processes serve their metrics, by name.
    ``root``: the folder of the kernel's files.
    """

    config: Settings
    redis_url: str | None
    postgres_url: str | None
    processes: Mapping[str, int]
    killed: int | None = None
    ends: Mapping[str, "End"] = field(default_factory=dict)
    root: Path = Path("/")
    gateway_url: str | None = None
    instance: str = ""
    metrics_host: str = "127.0.0.1"
    metrics_ports: Mapping[str, int] = field(default_factory=dict)

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    def kernel(self, path: str) -> str | None:
        """The text of a file of the kernel; None where it cannot be read."""
        try:
            return (self.root / path).read_text().strip()
        except OSError:
            return None


def ok(name: str, found: str) -> Finding:
    return Finding(name=name, verdict=Grade.OK, found=found)


def warning(name: str, found: str, fix: str) -> Finding:
    return Finding(name=name, verdict=Grade.WARNING, found=found, fix=fix)


def broken(name: str, found: str, fix: str) -> Finding:
    return Finding(name=name, verdict=Grade.BROKEN, found=found, fix=fix)


def unknown(name: str, found: str) -> Finding:
    return Finding(name=name, verdict=Grade.UNKNOWN, found=found)
