"""
What a rank needs before its process can begin: its secrets, its attempt's folder of checkpoints, the address at which the
ranks meet, the devices of its neighbours. Used by :mod:`worker.training.jobs`, in a thread for each rank: Redis may be
away, the rank 0 of another worker late, storage slow.
"""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import redis

from smore.domain.quote import quoted
from smore.messages.commands import StartJob
from smore.messages.reports import Report
from smore.redis.rendezvous import Meeting, Rendezvous
from smore.tracking import micro_batches
from worker.training.checkpoints import Checkpoints

#: Seconds for which a rank waits for what it needs; an attempt whose ranks are not all there by then is over anyway.
PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.1
_LOOPBACK: Final = "127.0.0.1"
_OUTAGE: Final = (redis.RedisError, ConnectionError)


T = TypeVar("T")


class RankRefused(Exception):
    """The rank cannot begin; the message says why."""


class Unwanted(Exception):
    """The rank is not wanted any more."""


@dataclass(eq=False, kw_only=True)
class Starting:
    """
    ``secrets_of`` gives secrets of a project by name; it raises ValueError where one does not exist or cannot be opened,
    ConnectionError while it cannot be read. ``reports``: those of all GPU instances. ``node``, ``address`` and ``visible``: as
    this worker reports them. Immutable, needs no lock.
    """

    checkpoints: Checkpoints
    rendezvous: Rendezvous
    secrets_of: Callable[[str, Sequence[str]], Mapping[str, str]]
    reports: Callable[[], Sequence[Report]]
    node: str
    address: str
    visible: str

    def secrets(self, command: StartJob, wanted: Callable[[], bool]) -> Mapping[str, str]:
        """The values of the command's secrets, by variable. Raises Refused, Unwanted."""
        secrets = command.request.secrets
        if not secrets:
            return {}
        names = sorted(set(secrets.values()))
        try:
            values = _patiently(lambda: self.secrets_of(command.project, names), wanted, "its secrets cannot be read")
        except ValueError as error:
            raise RankRefused(str(error)) from error
        return {variable: values[name] for variable, name in secrets.items()}

    def environment(self, command: StartJob, wanted: Callable[[], bool]) -> Mapping[str, str]:
        """
        What the platform tells a rank, by variable; rank 0 is told where the others find it before they are, and its
        checkpoints lie there by then. Raises Refused, Unwanted, OSError.
        """
        folder = self.checkpoints.make(
            command.id, command.attempt, command.seed_attempt, seed=command.rank == 0
        ).resolve()
        meeting = self._meet(command, wanted)
        visible = self._devices(command, wanted)
        length = {"SMORE_ITERATIONS": str(iterations)} if (iterations := command.request.iterations) else {}
        parts = {micro_batches.VARIABLE: str(command.micro_batches)} if command.micro_batches > 1 else {}
        return {
            "RANK": str(command.rank),
            "WORLD_SIZE": str(command.world),
            "LOCAL_RANK": str(command.local_rank),
            "LOCAL_WORLD_SIZE": str(command.local_world),
            "MASTER_ADDR": meeting.address,
            "MASTER_PORT": str(meeting.port),
            "SMORE_ATTEMPT": str(command.attempt),
            "SMORE_CHECKPOINT": str(folder),
            **length,
            **parts,
            **({"CUDA_VISIBLE_DEVICES": visible} if visible else {}),
        }

    def _meet(self, command: StartJob, wanted: Callable[[], bool]) -> Meeting:
        at_home = command.local_world == command.world
        if command.rank == 0:
            own = Meeting(_LOOPBACK if at_home else self.address, _free_port())
            if command.world == 1:
                return own
            return _patiently(
                lambda: self.rendezvous.open(command.id, command.attempt, own), wanted, "Redis does not answer"
            )
        return _patiently(
            lambda: self.rendezvous.find(command.id, command.attempt), wanted, "rank 0 has not begun on its worker"
        )

    def _devices(self, command: StartJob, wanted: Callable[[], bool]) -> str:
        """
        The devices of this node's ranks in their order, so that LOCAL_RANK is the number of a rank's own: loops call
        ``torch.cuda.set_device(LOCAL_RANK)``.
        """
        if not self.visible or command.local_world == 1:
            return self.visible

        def devices() -> str | None:
            here = {report.gpu: report.visible for report in self.reports() if report.node == self.node}
            names = [here[gpu] for gpu in command.gpus if gpu in here]
            return ",".join(names) if len(names) == command.local_world else None

        return _patiently(devices, wanted, f"not all workers of {quoted(command.gpus)} report their devices")


def _patiently(ask: Callable[[], T | None], wanted: Callable[[], bool], problem: str) -> T:
    """What ``ask`` gives, as soon as it gives anything. Raises Refused after :data:`PATIENCE_S`, Unwanted."""
    until = time.monotonic() + PATIENCE_S
    why = ""
    while wanted():
        try:
            answer = ask()
        except _OUTAGE as error:
            answer, why = None, f": {error}"
        if answer is not None:
            return answer
        if time.monotonic() > until:
            raise RankRefused(f"{problem}, for {PATIENCE_S:g} s{why}")
        time.sleep(_LOOK_S)
    raise Unwanted


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
