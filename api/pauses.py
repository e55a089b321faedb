"""Pausing, draining and resuming the platform, a function or a GPU instance."""

from collections.abc import Collection

from api.deps import Gateway, Trail
from smore.redis.catalog import KeyEntry


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
