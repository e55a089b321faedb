"""The part of a GPU worker that knows of trainings, without a worker around it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import redis

from smore.domain.windows import Probing
from smore.messages.reports import Report
from smore.redis.rendezvous import Rendezvous
from worker.activity import Activity
from worker.device.device import Device
from worker.training.checkpoints import Checkpoints
from worker.training.holding import Holding
from worker.training.jobs import Jobs
from worker.training.launcher import Launcher
from worker.training.rank_watch import RankWatch
from worker.training.ranks import Ranks
from worker.training.record import Records
from worker.training.remote_steps import RemoteSteps
from worker.training.run_gate import RunGate
from worker.training.starting import Starting


def jobs(
    home: Path,
    *,
    gpu: str = "test0",
    entrypoints: Sequence[str] = (),
    cores: Sequence[int] = (),
    born_on: Sequence[int] = (),
    hosted: bool = False,
    client: "redis.Redis | None" = None,
    prefix: str = "smore:",
    secrets: Mapping[str, str] | None = None,
    reports: Sequence[Report] = (),
    computing: Callable[[], Mapping[int, float] | None] = lambda: None,
    steps_of: Callable[[str], RemoteSteps] | None = None,
    **others: Any,
) -> Jobs:
    """
    ``client``: where the ranks of a gang meet, None = there are no gangs. ``secrets``: of every project. ``reports``: of
    the GPU instances of the node. ``computing``: of the device, ``steps_of``: of the watch. ``others``: of Jobs itself.
    """
    activity, records, checkpoints = Activity(), Records(home / "run" / "jobs"), Checkpoints(home / "checkpoints")

    def secrets_of(_project: str, names: Sequence[str]) -> Mapping[str, str]:
        if missing := [name for name in names if name not in (secrets or {})]:
            raise ValueError(f"There is no secret {', '.join(missing)}.")
        return {name: (secrets or {})[name] for name in names}

    launcher = Launcher(
        home=home,
        records=records,
        entrypoints=entrypoints,
        cores=cores,
        born_on=born_on,
        environment={},
        hosted=hosted,
    )
    visible = next((report.visible for report in reports if report.gpu == gpu), "")
    starting = Starting(
        checkpoints=checkpoints,
        rendezvous=Rendezvous(client or redis.Redis(), prefix),
        secrets_of=secrets_of,
        reports=lambda: reports,
        node="here",
        address="10.0.0.7",
        visible=visible,
    )
    ranks, probing = Ranks(), Probing(seed="s", share=0.0, longest_s=1.0)
    device = SimpleNamespace(
        process_memory_mib=lambda _pid: 1.0, quick_memory_mib=lambda _pid: None, computing=computing
    )
    watch = RankWatch(
        gpu=gpu,
        ranks=ranks,
        records=records,
        checkpoints=checkpoints,
        activity=activity,
        device=cast(Device, device),
        steps_of=steps_of or cast(Any, lambda _id: None),
        probing=probing,
    )
    own: dict[str, Any] = {
        "gate": RunGate(activity),
        "users": frozenset(),
        "started": lambda _pid: None,
        "changed": lambda: None,
        "shipped": lambda _key: True,
        "cores": cores,
    }
    return Jobs(
        gpu=gpu,
        ranks=ranks,
        holding=Holding(records, probing),
        records=records,
        launcher=launcher,
        checkpoints=checkpoints,
        starting=starting,
        watch=watch,
        **{**own, **others},
    )
