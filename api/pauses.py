"""
Pausing, draining and resuming the platform, a function or a GPU instance, and what people have set for a function.
"""

import time
from collections.abc import Collection
from typing import Any

from api.deps import Gateway, Trail
from smore.domain.override import Pause
from smore.redis.catalog import KeyEntry
from smore.redis.fleet import Fleet


def set_pauses(
    gateway: Gateway,
    trail: Trail,
    caller: KeyEntry,
    what: str,
    target: str,
    *,
    on: Collection[str],
    project: str | None = None,
) -> None:
    """
    Pause (``paused``), drain (``draining``) or resume (neither) a target of :meth:`smore.redis.fleet.Fleet.pause`, and
    record it.
    """
    fleet = gateway.fleet()
    names = {"paused": target, "draining": f"-{target}"}
    held = fleet.paused()
    before = {name: member in held for name, member in names.items()}
    # A pause does not end a drain, nor a drain a pause; resuming ends both.
    after = {name: (name in on or was) if on else False for name, was in before.items()}
    with trail.change(caller, what, before, project=project) as change:
        for name, member in names.items():
            if after[name] and not before[name]:
                fleet.pause(member, caller.id)
            elif before[name] and not after[name]:
                fleet.resume(member)
        change.after = after


def pauses_of(fleet: Fleet, function: str) -> list[Pause]:
    """The pauses and drains of a function (``<project>/<name>``) and of the platform."""
    return [
        pause
        for pause in fleet.pauses()
        if pause.scope == "platform" or (pause.scope, pause.name) == ("function", function)
    ]


def set_for(fleet: Fleet, function: str) -> dict[str, Any]:
    """What people have set for a function (``<project>/<name>``) by its name, as the audit shows it."""
    held, override = fleet.paused(), fleet.overrides(time.time()).get(function)
    found: dict[str, Any] = {
        name: True for name, target in (("paused", "f:"), ("draining", "-f:")) if f"{target}{function}" in held
    }
    return found if override is None else found | {"boost": override.boost, "gpus": override.gpus}
