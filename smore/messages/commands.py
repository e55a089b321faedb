"""
Commands to a GPU worker: each is one msgpack array on the GPU instance's own stream and idempotent by its content.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from smore.domain.job import GRACE_S, JobRequest
from smore.domain.loss import DEFAULT_BUDGET


class Command(msgspec.Struct, frozen=True, array_like=True):
    version: int


class Cancel(Command, frozen=True, tag="cancel"):
    function: str
    id: str
    attempt: int


#: In place of the number of a revision.
ALL_REVISIONS: Final = 0


class Offload(Command, frozen=True, tag="offload"):
    """
    Unload idle instances until ``keep`` are left, and hold no more of them than that. ``gone``: nothing of it stays,
    neither in host memory nor what is busy or loads, once it has served whoever it works for.
    """

    function: str
    revision: int
    keep: int = 0
    gone: bool = False


class Prewarm(Command, frozen=True, tag="prewarm"):
    """
    Load what is missing of ``instances`` now, and let so many stand idle for longer than their keep-alive, before
    ``until`` (epoch seconds; what was said before is replaced. 0 = it stays). One whose time has passed is passed over.
    """

    function: str
    revision: int
    instances: int = 1
    until: float = 0.0


class Respecify(Command, frozen=True, tag="respecify"):
    """The catalog says something else of a revision: read it anew."""

    function: str
    revision: int


class Fetch(Command, frozen=True, tag="fetch"):
    """Have on your node what an uploaded function needs, its environment too, before it is placed there."""

    function: str
    revision: int


class StartJob(Command, frozen=True, tag="start_job"):
    """
    Start a rank of a job: one process of one attempt. Idempotent by (``id``, ``attempt``, ``rank``), so it may be sent
    again; a worker that has heard of a later attempt, or that this one is over, passes it over.

    ``local_rank`` and ``local_world`` count the ranks of this node.
    """

    id: str
    project: str
    name: str
    #: ``secrets``: variables beside ``env``, whose values are secrets of the project.
    request: JobRequest
    env: dict[str, str]
    #: 0 = started before there was a queue of jobs.
    attempt: int = 0
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    #: The GPU instances of all ranks, in their order.
    gpus: Sequence[str] = ()
    #: The attempt whose last complete checkpoint this one begins with, 0 = none.
    seed_attempt: int = 0
    #: In how many parts it is to run its batch.
    micro_batches: int = 1
    #: Jobs that train on this GPU instance already: it comes there as their guest.
    hosts: Sequence[str] = ()


class AttachJob(Command, frozen=True, tag="attach_job"):
    """
    A training that runs already and is not the worker's to start or to end.

    ``pid``, ``start`` (clock ticks) and ``boot`` name its process, where the worker can see it; ``tracked``: its steps
    come through the gateway, else nothing is known of it but that it lives. ``any_user``: an operator asks, who may
    have anybody's process watched.
    """

    id: str
    project: str
    name: str
    pid: int
    start: int
    boot: str
    tracked: bool
    workload: str = ""
    budget: float = DEFAULT_BUDGET
    any_user: bool = False


class AllowJob(Command, frozen=True, tag="allow_job"):
    """An operator vouches for an attached training that its worker does not see: it counts from now on."""

    id: str


class StopJob(Command, frozen=True, tag="stop_job"):
    """
    End the ranks of this attempt and of those before it: SIGTERM now, SIGKILL after ``grace_s``. None of them may start
    any more. ``attempt`` 0 = whichever runs.
    """

    id: str
    attempt: int = 0
    grace_s: float = GRACE_S


class ForgetJob(Command, frozen=True, tag="forget_job"):
    """
    The end of this attempt and of those before it is recorded: the worker need not report it for longer than people
    look at it.
    """

    id: str
    attempt: int


class DropCheckpoints(Command, frozen=True, tag="drop_checkpoints"):
    """The job is over for so long that its checkpoints may go. One whose folder was written to since keeps them."""

    id: str


class SetBudget(Command, frozen=True, tag="set_budget"):
    """The most that a job may lose to functions from now on, and to another training (None = as before), fractions."""

    id: str
    budget: float
    share: float | None = None


class Throttle(Command, frozen=True, tag="throttle"):
    """
    From now on functions may work for ``duty`` (0..1) of the time beside the jobs of the GPU instance; 1 = as they
    like, 0 = not at all.

    It holds until the next one, or until the worker starts anew with 1; what runs goes on.
    """

    duty: float


AnyCommand = (
    AllowJob
    | AttachJob
    | Cancel
    | DropCheckpoints
    | Fetch
    | ForgetJob
    | Offload
    | Prewarm
    | Respecify
    | SetBudget
    | StartJob
    | StopJob
    | Throttle
)

encode_command = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyCommand).decode


def decode_command(raw: bytes) -> AnyCommand | None:
    """None for a command of a newer version, which must not stop the ones behind it."""
    try:
        command: AnyCommand = _decode(raw)
        return command
    except msgspec.DecodeError:
        return None
