"""The trainings of a home whose platform is down, by the records that its workers have written."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

#: The variable that a worker sets in the environment of each training (worker/training/record.py): the number of a
#: process may be another program's by now, its token is nobody else's.
TOKEN: Final = "SMORE_JOB_TOKEN"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training with a living process; ``gpus``: its GPU instances on this machine, ``pids``: of its ranks here."""

    id: str
    name: str
    project: str
    gpus: Sequence[str]
    pids: Sequence[int]


def left_running(home: Path) -> list[Training]:
    """
    Those that the platform of a home has started and that run now. A record that cannot be read is passed over; so are
    trainings that were attached, which are not the platform's to end.
    """
    ranks: dict[str, list[dict[str, object]]] = {}
    for path in sorted((home / "run" / "jobs").glob("*.json")):
        try:
            record = json.loads(path.read_bytes())
            if not record["attached"] and _alive(record["pid"], record["token"]):
                ranks.setdefault(str(record["id"]), []).append(record)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return [
        Training(
            id=id_,
            name=str(records[0]["name"]),
            project=str(records[0]["project"]),
            gpus=sorted(str(record["gpu"]) for record in records),
            pids=[int(str(record["pid"])) for record in records],
        )
        for id_, records in ranks.items()
    ]


def _alive(pid: int, token: str) -> bool:
    try:
        return pid > 0 and psutil.Process(pid).environ().get(TOKEN) == token
    except psutil.Error:
        return False
