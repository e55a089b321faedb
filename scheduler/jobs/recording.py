"""
A record of what the rule for trainings was told, so that it can be told again (lab/bench/told_again.py): one JSON line for
each call.

A line ``{"began": setting, "knobs": {...}}`` begins the part of a leader. A call is ``{"now": …, "events": [[kind,
fields], …], "starts": [[job, attempt, [GPU instances]], …]}``. At :data:`MOST_BYTES` nothing more is written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from scheduler.policy.jobs.decisions import Decision, Start
from scheduler.policy.jobs.events import Event

MOST_BYTES: Final = 256 << 20

Starts = list[tuple[str, int, tuple[str, ...]]]


class Recording:
    """Writes a record; ``path`` None = it writes nothing."""

    def __init__(self, path: Path | None, setting: str, knobs: Mapping[str, Any]) -> None:
        self._path = path
        # A process that was killed may have left half a line.
        self._write(b"\n" + msgspec.json.encode({"began": setting, "knobs": dict(knobs)}))

    def note(self, now: float, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        """Events and what they led to."""
        if self._path is None:
            return
        told = [(type(event).__name__, event) for event in events]
        self._write(msgspec.json.encode({"now": now, "events": told, "starts": starts_of(decisions)}))

    def _write(self, line: bytes) -> None:
        if self._path is None:
            return
        with open(self._path, "ab") as file:
            if file.tell() < MOST_BYTES:
                file.write(line + b"\n")


def starts_of(decisions: Sequence[Decision]) -> Starts:
    return [(start.id, start.attempt, tuple(start.gpus)) for start in decisions if isinstance(start, Start)]
