"""Load a function before it is called, and unload it, when people ask; used by both REST interfaces."""

from fastapi.concurrency import run_in_threadpool

from api.deps import Gateway, Trail
from api.invoke.admit import admit
from smore.domain.errors import NotFound, Unavailable
from smore.domain.spelling import nothing_named
from smore.messages.commands import ALL_REVISIONS, Offload, Prewarm
from smore.redis.catalog import FunctionEntry, KeyEntry


async def warm(
    gateway: Gateway, caller: KeyEntry, trail: Trail, function: str, gpu: str | None
) -> tuple[FunctionEntry, list[str]]:
    """
    Load the function on one GPU instance, None = on all; return the function and the GPU instances that were told to.

    Raises FunctionNotFound, NotReady, Draining, LimitReached, NotFound, Unavailable.
    """
    entry, spec = await gateway.function(caller.project, function)
    admit(gateway, entry, spec)
    command = Prewarm(version=1, function=entry.key, revision=entry.revision)
    return entry, await run_in_threadpool(_send, gateway, trail, caller, command, gpu)


async def offload(
    gateway: Gateway, caller: KeyEntry, trail: Trail, function: str, gpu: str | None
) -> tuple[FunctionEntry, list[str]]:
    """
    Unload idle instances of all revisions of the function; as :func:`warm`, but neither a drain refuses it nor that no
    revision takes traffic.
    """
    entry = gateway.known_function(caller.project, function)
    command = Offload(version=1, function=entry.key, revision=ALL_REVISIONS)
    return entry, await run_in_threadpool(_send, gateway, trail, caller, command, gpu)


def _send(gateway: Gateway, trail: Trail, caller: KeyEntry, command: Prewarm | Offload, gpu: str | None) -> list[str]:
    fleet = gateway.fleet()
    gpus = [report.gpu for report in fleet.reports()]
    if gpu is not None:
        if gpu not in gpus:
            raise NotFound(nothing_named("GPU instance", gpu, gpus))
        gpus = [gpu]
    if not gpus:
        raise Unavailable(part="gpus")
    with trail.change(caller, f"function/{command.function.partition('/')[2]}") as change:
        for name in gpus:
            fleet.send(name, command)
        change.after = {"revision": command.revision or "all", "gpus": gpus}
    return gpus
