"""Versions of Redis, Valkey and Postgres with known vulnerabilities, for :mod:`smore.local.doctor` and the pins' test."""

import re
from dataclasses import dataclass
from typing import Final, Literal

Server = Literal["redis", "valkey", "postgres"]

#: How many numbers of a version name a release line, whose later versions change nothing but faults.
_LINE: Final[dict[Server, int]] = {"redis": 2, "valkey": 2, "postgres": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vulnerability:
    server: Server
    #: Its CVE, else the advisory's name.
    name: str
    #: The first version that has it.
    since: str
    #: The first version of each release line without it. Lines that are older got no repair, lines that are newer began with it.
    fixed: tuple[str, ...]


#: From the release notes of the three projects as of 2026-11-24: what lets a client run code in the server, or end it.
#: Only what an installation of SMore can meet: no TLS, no replica, no cluster, no extension.
VULNERABILITIES: Final = (
    Vulnerability(
        server="redis", name="CVE-2025-49844", since="2.6", fixed=("6.2.20", "7.2.11", "7.4.6", "8.0.4", "8.2.2")
    ),
    Vulnerability(
        server="redis",
        name="CVE-2026-12087",
        since="6.0",
        fixed=("6.2.23", "7.2.15", "7.4.10", "8.2.8", "8.4.5", "8.6.5", "8.8.1"),
    ),
    Vulnerability(server="valkey", name="CVE-2025-49844", since="7.2", fixed=("7.2.11", "8.0.6", "8.1.4", "9.0.0")),
    Vulnerability(
        server="valkey", name="CVE-2026-23479", since="7.2", fixed=("7.2.13", "8.0.9", "8.1.7", "9.0.4", "9.1.0")
    ),
    Vulnerability(
        server="valkey", name="CVE-2026-63639", since="7.2", fixed=("7.2.14", "8.0.10", "8.1.9", "9.0.5", "9.1.1")
    ),
    Vulnerability(server="valkey", name="GHSA-fq2f-crmw-q97r", since="9.1.0", fixed=("9.1.2",)),
    Vulnerability(
        server="postgres", name="CVE-2026-6473", since="8.0", fixed=("14.23", "15.18", "16.14", "17.10", "18.4")
    ),
    Vulnerability(
        server="postgres", name="CVE-2026-6471", since="8.0", fixed=("14.24", "15.19", "16.15", "17.11", "18.6")
    ),
    Vulnerability(
        server="postgres", name="CVE-2026-6460", since="8.0", fixed=("14.25", "15.20", "16.16", "17.12", "18.7")
    ),
)


def known(server: Server, version: str) -> list[Vulnerability]:
    """The vulnerabilities that this version has, the earliest first."""
    return [entry for entry in VULNERABILITIES if entry.server == server and _has(entry, _numbers(version))]


def repaired(server: Server, version: str) -> str:
    """The version to use instead: the newest repair in the same release line, else in the newest line."""
    fixed = sorted((number for entry in known(server, version) for number in entry.fixed), key=_numbers)
    same = [number for number in fixed if _line(server, _numbers(number)) == _line(server, _numbers(version))]
    return (same or fixed)[-1]


def _has(entry: Vulnerability, version: tuple[int, ...]) -> bool:
    if version < _numbers(entry.since):
        return False
    fixed = {_line(entry.server, number): number for number in map(_numbers, entry.fixed)}
    line = _line(entry.server, version)
    return version < fixed[line] if line in fixed else line < max(fixed)


def _line(server: Server, version: tuple[int, ...]) -> tuple[int, ...]:
    return version[: _LINE[server]]


def _numbers(version: str) -> tuple[int, ...]:
    """9, 1 and 2 of "9.1.2"; what a distribution appends is left out."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition(" ")[0])[:3])
