"""What the rule for trainings was told (scheduler/jobs/recording.py), told it again."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, get_args

import msgspec

from scheduler.jobs.recording import Starts, starts_of
from scheduler.policy.jobs.core import JobPolicy
from scheduler.policy.jobs.events import Event
from scheduler.policy.jobs.knobs import job_setting

_KINDS: Final[Mapping[str, type]] = {kind.__name__: kind for kind in get_args(Event)}


def replay(path: Path) -> Iterator[tuple[Starts, Starts]]:
    """What was placed in each call, and what the rule places when it is told the same again."""
    policy = JobPolicy()
    for line in path.read_bytes().splitlines():
        try:
            entry = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if "began" in entry:
            policy = JobPolicy(job_setting(entry["began"], **entry["knobs"]))
            continue
        events: list[Event] = [msgspec.convert(fields, _KINDS[kind]) for kind, fields in entry["events"]]
        decisions = policy.decide(entry["now"], events).decisions
        yield msgspec.convert(entry["starts"], Starts), starts_of(decisions)
