"""What a GPU worker reports at every heartbeat, as JSON: people and other languages read it too."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from smore.domain.loss import DEFAULT_BUDGET, ClosedWindow


class WarmState(StrEnum):
    LOADING = "loading"
    IDLE = "idle"
    BUSY = "busy"


class WarmInstance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A resident model: one runner process."""

    function: str
    revision: int
    state: WarmState
    #: Measured resident memory, MiB.
    memory_mib: float
    pid: int
    #: Seconds since it last ran.
    idle_s: float = 0.0
    #: The longest of the revision's last runs here, seconds: for so long the run gate cannot stop it. 0 = it has not run
    #: yet.
    longest_s: float = 0.0
    #: The leader has asked to keep it here (``min_warm``, a forecast).
    held: bool = False


class ParkedInstance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    A runner whose weights lie in pinned host memory: the next load of its revision comes out of it. ``memory_mib``:
    what its process still holds of the device, which it gives back before any idle instance; ``host_mib``: of host
    memory; ``left_s``: seconds until it goes.
    """

    function: str
    revision: int
    memory_mib: float
    host_mib: float
    left_s: float


class JobReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    A serverful job on this GPU instance: one rank of one attempt.

    Iteration times in seconds: ``solo_s`` over iterations during which no function ran here, ``shared_s`` over the
    others, both over the last ``window_s``; counts say how much they rest on. ``state``: starting (it waits for rank 0),
    running, ended, lost. An end is reported until a ``ForgetJob`` says that it is recorded.

    What functions cost it (smore/domain/loss.py): ``windows`` are the closed windows finished a short while ago, each
    reported several times and identified by its ``start``; ``loss`` with its 95 % interval is that of the last ``loss_windows``
    windows, None = not enough data. ``recent_*`` (mean, count, standard deviation, seconds) are the last iterations
    with the run gate open, ``closed_*`` those of the last closed windows: what the fast test compares. A count of 0 = none.

    What other trainings here cost it: ``alone_*`` are its last iterations while none trained here, ``beside_*`` those since
    ``beside_since`` (epoch seconds, 0 = it trains alone, or somebody has just come), while the jobs ``beside`` did; both
    without iterations that met a function. ``*_s``: mean seconds, ``*_n``: count, ``*_se``: standard error of the mean (0 =
    not known). ``held_s``: for how long it was held back for a host's sake, in this attempt. ``guest``: another training was here
    first, which is its host; ``held``: the part of the time in which it may run beside it, 1 = freely. ``pair_loss`` with its 95 %
    interval: what its guest costs a host, by ``pair_windows`` closed windows in which the guest is held back.
    """

    id: str
    project: str
    state: str
    pid: int
    memory_mib: float
    #: What is kept for it: its declared memory or the most that was measured, and 5 %.
    reserve_mib: float = 0.0
    iterations: int
    window_s: float = 0.0
    solo_s: float = 0.0
    solo_count: int = 0
    shared_s: float = 0.0
    shared_count: int = 0
    exit_code: int | None = None
    #: The profiled workload that it is, '' = not said.
    workload: str = ""
    #: The most that it may lose to functions, and to another training, fractions.
    budget: float = DEFAULT_BUDGET
    share: float = 0.0
    #: False = it tells no iterations, so that nothing it loses can be measured.
    measured: bool = True
    #: A signal has stopped it (SIGSTOP): it lives and makes no steps.
    suspended: bool = False
    #: Why the worker refused it, or let it go by itself.
    reason: str = ""
    #: Why it counts for nothing, "" = it counts: it says that it trains here, and its worker sees no such process.
    unseen: str = ""
    windows: Sequence[ClosedWindow] = ()
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    loss_windows: int = 0
    recent_s: float = 0.0
    recent_n: int = 0
    recent_sd: float = 0.0
    closed_s: float = 0.0
    closed_n: int = 0
    closed_sd: float = 0.0
    attempt: int = 0
    rank: int = 0
    world: int = 1
    #: Of the last complete checkpoint in the attempt's folder, which the attempt may have begun with. Rank 0 alone tells it.
    checkpoint_iterations: int = 0
    #: When its process began, epoch seconds; 0 = it has none (yet).
    started_at: float = 0.0
    #: How many iterations the training makes in all, by ``smore.track(iterations=...)``; 0 = it has not said so.
    length: int = 0
    alone_s: float = 0.0
    alone_n: int = 0
    alone_se: float = 0.0
    beside: Sequence[str] = ()
    beside_since: float = 0.0
    beside_s: float = 0.0
    beside_n: int = 0
    beside_se: float = 0.0
    held_s: float = 0.0
    guest: bool = False
    held: float = 1.0
    pair_loss: float | None = None
    pair_loss_low: float | None = None
    pair_loss_high: float | None = None
    pair_windows: int = 0


class StepChunk(msgspec.Struct, frozen=True, array_like=True):
    """
    Steps of an attached training: the number of the first, (end in epoch seconds, seconds) of each, and whether they
    were the last.
    """

    first: int
    steps: list[tuple[float, float]]
    ended: bool = False


class UnregisteredProcess(msgspec.Struct, frozen=True, kw_only=True):
    """
    A process that computes on a GPU instance and belongs to no function and no job. ``start``: clock ticks since boot,
    0 = not seen.
    """

    pid: int
    start: int
    memory_mib: float
    name: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a GPU worker says every heartbeat."""

    version: int = 1
    gpu: str
    #: New for every start of the worker.
    boot: str
    at: float
    kind: str
    device: str
    sharing_mode: str
    slots: int
    memory_total_mib: float
    #: By functions, the standby runner and jobs together; of a job what is reserved for it, where that is more.
    memory_used_mib: float
    #: 0..1 over the last heartbeat, by the counter named.
    utilisation: float
    utilisation_counter: str
    #: 0..1 of it by functions.
    function_utilisation: float
    #: What every counter of the device says, by its name; none = it has but the one above.
    counters: Mapping[str, float] = {}
    #: Why nothing can run on the device, '' = it works. It has no slots then.
    health: str = ""
    running: int
    warm: Sequence[WarmInstance] = ()
    parked: Sequence[ParkedInstance] = ()
    jobs: Sequence[JobReport] = ()
    #: Revisions this worker will not run again after repeated crashes: "function@revision".
    quarantined: Sequence[str] = ()
    #: The part of the time in which functions may work beside a job, 0..1 (see :class:`smore.messages.commands.Throttle`).
    duty: float = 1.0
    #: A closed window is at hand: nothing starts here before ``closed_until`` at the latest (epoch seconds, 0 = none is
    #: at hand).
    closed: bool = False
    closed_until: float = 0.0
    #: None = this device cannot list who computes on it (CPU partitions).
    strangers: Sequence[UnregisteredProcess] | None = None
    #: The machine: GPU instances of one node share its memory and its folder of checkpoints. "" = not told.
    node: str = ""
    #: Where ranks on other nodes reach one that trains here.
    address: str = ""
    #: What names the device in CUDA_VISIBLE_DEVICES, "" = it is no CUDA device.
    visible: str = ""
    #: Jobs into whose folders of checkpoints nobody has written for ``SMORE_JOBS__CHECKPOINTS_DAYS``, some of them.
    aged: Sequence[str] = ()
    #: MiB that a process takes of the device before it computes anything: measured, until then assumed; 0 = none is counted.
    context_mib: float = 0.0


encode_report = msgspec.json.Encoder().encode
decode_report = msgspec.json.Decoder(Report).decode


def readable(report: bytes) -> bool:
    """Whether this is a report."""
    try:
        decode_report(report)
    except ValueError:
        return False
    return True
