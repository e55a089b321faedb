"""GPU instances as of their last reports: list, pause, drain, and allow an unregistered process there."""

from typing import Annotated

from fastapi import APIRouter, Query

from api import rows
from api.deps import Anyway, Gateway, OperatorKey, ReadKey, TheGateway, TheTrail, Trail
from api.pauses import set_pauses
from api.schemas import gpus as schemas
from api.server.bodies import BoundedRoute
from api.trainings.promises import check_breaks
from smore.domain.errors import Conflict, NotFound
from smore.domain.spelling import nothing_named
from smore.redis.catalog import KeyEntry

router = APIRouter(prefix="/v1/gpus", tags=["gpus"], route_class=BoundedRoute)


@router.get("")
def list_gpus(
    gateway: TheGateway,
    caller: ReadKey,
    silent: Annotated[bool, Query(description="Also those that are silent and were not forgotten")] = False,
) -> schemas.Gpus:
    """
    List the GPU instances as of their last reports, by name. Load is shown to everybody; of the loaded functions only
    those of the caller's project are shown, and of the trainings too, unless an operator asks.
    """
    shown = rows.gpus(gateway.fleet().state(), caller, rows.published(gateway), silent_too=silent)
    return schemas.Gpus(gpus=[schemas.Gpu(**row) for row in shown])


@router.post("/{gpu}/pause", status_code=204)
def pause(gateway: TheGateway, caller: OperatorKey, trail: TheTrail, gpu: str, anyway: Anyway = False) -> None:
    """
    Place nothing more on a GPU instance. What runs there goes on, and what is loaded stays loaded. 409 with the jobs (`breaks`)
    whose promised ends would not be kept, unless `anyway`.
    """
    _close(gateway, caller, trail, gpu, "paused", anyway)


@router.post("/{gpu}/drain", status_code=202)
def drain(gateway: TheGateway, caller: OperatorKey, trail: TheTrail, gpu: str, anyway: Anyway = False) -> None:
    """
    Place nothing more on a GPU instance, and unload what is idle there. What runs goes on; `drained` in the list is
    true when nothing is left. 409 with the jobs (`breaks`) whose promised ends would not be kept, unless `anyway`.
    """
    _close(gateway, caller, trail, gpu, "draining", anyway)


@router.post("/{gpu}/resume", status_code=204)
def resume(gateway: TheGateway, caller: OperatorKey, trail: TheTrail, gpu: str) -> None:
    """End a pause and a drain of a GPU instance."""
    set_pauses(gateway, trail, caller, f"gpu/{_existing(gateway, gpu)}", f"g:{gpu}", on=())


@router.post("/{gpu}/forget", status_code=204)
def forget(gateway: TheGateway, caller: OperatorKey, trail: TheTrail, gpu: str) -> None:
    """
    Do not expect a silent GPU instance any more: `/readyz` and the metrics name it no longer. One that reports again is
    expected again.
    """
    fleet = gateway.fleet()
    seen = fleet.seen()
    if gpu not in seen:
        raise NotFound(nothing_named("GPU instance", gpu, fleet.known()))
    if any(report.gpu == gpu for report in fleet.reports()):
        raise Conflict(f"{gpu} reports. Only a GPU instance that is silent can be forgotten.")
    with trail.change(caller, f"gpu/{gpu}", {"seen_at": seen[gpu]}) as change:
        fleet.forget(gpu)
        change.after = {}


@router.post("/{gpu}/allow", status_code=204)
def allow(gateway: TheGateway, caller: OperatorKey, trail: TheTrail, gpu: str, body: schemas.StrangerBody) -> None:
    """Allow functions beside a process that nobody has registered, until that process ends."""
    _permit(gateway, caller, trail, gpu, body.pid, True)


@router.post("/{gpu}/protect", status_code=204)
def protect(gateway: TheGateway, caller: OperatorKey, trail: TheTrail, gpu: str, body: schemas.StrangerBody) -> None:
    """Keep functions away from a process that was allowed before."""
    _permit(gateway, caller, trail, gpu, body.pid, False)


def _permit(gateway: Gateway, caller: KeyEntry, trail: TheTrail, gpu: str, pid: int, allowed: bool) -> None:
    fleet = gateway.fleet()
    unregistered = next(
        (
            process
            for report in fleet.reports()
            if report.gpu == gpu
            for process in report.strangers or ()
            if process.pid == pid
        ),
        None,
    )
    if unregistered is None:
        raise NotFound(f"No unregistered process {pid} computes on {gpu}.")
    before = f"{gpu}|{unregistered.pid}|{unregistered.start}" in fleet.allowed()
    with trail.change(caller, f"gpu/{gpu}/process/{pid}", {"allowed": before}) as change:
        (fleet.allow if allowed else fleet.forbid)(gpu, unregistered)
        change.after = {"allowed": allowed, "name": unregistered.name}


def _close(gateway: Gateway, caller: KeyEntry, trail: Trail, gpu: str, how: str, anyway: bool) -> None:
    existing = _existing(gateway, gpu)
    if not anyway:
        check_breaks(gateway, caller, closed=[existing])
    set_pauses(gateway, trail, caller, f"gpu/{existing}", f"g:{gpu}", on=(how,))


def _existing(gateway: Gateway, gpu: str) -> str:
    """The name of a GPU instance that reports, or that is paused while its worker is away. Raises NotFound."""
    fleet = gateway.fleet()
    if not {f"g:{gpu}", f"-g:{gpu}"} & fleet.paused() and all(report.gpu != gpu for report in fleet.reports()):
        raise NotFound(nothing_named("GPU instance", gpu, fleet.known()))
    return gpu
