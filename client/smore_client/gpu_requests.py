"""
The operations on GPU instances: those of both clients (see :mod:`smore_client.requests`), and those that
:mod:`smore_client.admin` offers beside them.
"""

from smore_client.operation import operation
from smore_client.transport import Flow, exchange, fetch, request
from smore_client.types import Gpu, Gpus


class GpuRequests:
    """Lists GPU instances, pauses and resumes them."""

    @operation
    def gpus(self) -> Flow[list[Gpu]]:
        """
        The GPU instances as of their last reports.

        >>> [(gpu.id, gpu.running, gpu.utilisation) for gpu in client.gpus()]
        [('cpu0', 1, 0.93)]
        """
        return (yield from fetch(Gpus, request("GET", "gpus"))).gpus

    @operation
    def pause_gpu(self, id_: str, *, anyway: bool = False) -> Flow[None]:
        """
        Place nothing more on a GPU instance; what runs there ends, what is loaded stays. ``anyway``: even where trainings lose the
        ends that they were promised, which else raises ApiError.

        >>> client.pause_gpu("cpu0")
        """
        yield from exchange(request("POST", "gpus", id_, "pause", body={}, query={"anyway": anyway}))

    @operation
    def resume_gpu(self, id_: str) -> Flow[None]:
        """
        End a pause, and a drain, of a GPU instance.

        >>> client.resume_gpu("cpu0")
        """
        yield from exchange(request("POST", "gpus", id_, "resume", body={}))


def drain_gpu(gpu: str, *, anyway: bool = False) -> Flow[None]:
    """
    Place nothing more on a GPU instance and unload what idles there; ``Gpu.drained`` says when nothing is left. ``anyway`` as of
    :meth:`pause_gpu`.

    >>> client.carry(admin.drain_gpu("cpu0"))
    """
    yield from exchange(request("POST", "gpus", gpu, "drain", body={}, query={"anyway": anyway}))


def forget_gpu(gpu: str) -> Flow[None]:
    """
    Do not expect a silent GPU instance any more, so that no warning names it.

    >>> client.carry(admin.forget_gpu("cpu9"))
    """
    yield from exchange(request("POST", "gpus", gpu, "forget", body={}))


def allow(gpu: str, pid: int, allowed: bool) -> Flow[None]:
    """
    Let functions run beside a process that nobody registered, or not.

    >>> client.carry(admin.allow("gpu0", 4711, True))
    """
    yield from exchange(request("POST", "gpus", gpu, "allow" if allowed else "protect", body={"pid": pid}))
