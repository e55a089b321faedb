"""GPU instances as they last reported, and pausing one."""

from fastapi import APIRouter

from api import schemas
from api.answers import moment
from api.deps import Gateway, OperatorKey, ReadKey, TheGateway
from smore.domain.errors import NotFound

router = APIRouter(prefix="/v1/gpus", tags=["gpus"])


@router.get("")
def list_gpus(gateway: TheGateway, caller: ReadKey) -> schemas.Gpus:
    """By name. Their load is everybody's; of warm instances only those of the caller's project are shown."""
    fleet = gateway.fleet()
    paused = fleet.paused()
    gpus = []
    for report in fleet.reports():
        warm = [
            schemas.Warm(
                function=one.function.partition("/")[2],
                revision=one.revision,
                state=one.state.value,
                memory_mib=one.memory_mib,
                idle_s=one.idle_s,
            )
            for one in report.warm
            if one.function.partition("/")[0] == caller.project
        ]
        gpus.append(
            schemas.Gpu(
                id=report.gpu, kind=report.kind, device=report.device, sharing_mode=report.sharing_mode, slots=report.slots,
                running=report.running, utilisation=report.utilisation, function_utilisation=report.function_utilisation,
                utilisation_counter=report.utilisation_counter, memory_used_mib=report.memory_used_mib,
                memory_total_mib=report.memory_total_mib, paused="*" in paused or f"g:{report.gpu}" in paused,
                reported_at=moment(report.at), warm=warm,
            )
        )  # fmt: skip
    return schemas.Gpus(gpus=gpus)


@router.post("/{gpu}/pause", status_code=204)
def pause(gateway: TheGateway, _caller: OperatorKey, gpu: str) -> None:
    """No more dispatches there; what runs goes on."""
    gateway.fleet().pause(f"g:{_known(gateway, gpu)}")


@router.post("/{gpu}/resume", status_code=204)
def resume(gateway: TheGateway, _caller: OperatorKey, gpu: str) -> None:
    gateway.fleet().resume(f"g:{_known(gateway, gpu)}")


def _known(gateway: Gateway, gpu: str) -> str:
    """One that is paused may be resumed though its worker is away."""
    fleet = gateway.fleet()
    if f"g:{gpu}" not in fleet.paused() and all(report.gpu != gpu for report in fleet.reports()):
        raise NotFound(f"There is no GPU instance {gpu}.")
    return gpu
