"""The GPU instances: who is on each, which are free, and which a job gets."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import inf
from typing import Final

from scheduler.policy.jobs.decisions import JobRefusal
from scheduler.policy.jobs.events import GpuSeen
from scheduler.policy.jobs.spec import Needs

#: Jobs on a GPU instance at a time: a host, and a guest where both their owners allow it.
TENANTS: Final = 2

#: A pool: (device, whether they are slices).
PoolKey = tuple[str, bool]


class Gpu:
    """
    A GPU instance: its last report, None before the first; ``jobs`` on it, the host first; ``lost`` while it is silent;
    ``key`` of its pool while it takes jobs.
    """

    __slots__ = ("jobs", "key", "lost", "name", "seen")

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: GpuSeen | None = None
        self.jobs: list[str] = []
        self.lost = True
        self.key: PoolKey | None = None

    def refusal(self) -> JobRefusal | None:
        """Why no job may have it for itself for now, None = one may."""
        if self.lost or self.seen is None:
            return JobRefusal.LOST
        if self.seen.closed:
            return JobRefusal.CLOSED
        if self.seen.attached:
            return JobRefusal.ATTACHED
        return JobRefusal.BUSY if self.jobs else None

    @property
    def open(self) -> bool:
        """Whether it takes jobs, now or when those on it have ended."""
        return not (self.lost or self.seen is None or self.seen.closed or self.seen.attached)


class DevicePool:
    """GPU instances of one device kind, whole or slices: a gang takes all of its own from one pool."""

    __slots__ = ("count", "free", "half", "largest_mib", "least_mib", "open", "size")

    def __init__(self) -> None:
        #: Free ones by node.
        self.free: dict[str, set[str]] = {}
        self.count = 0
        #: By job that would have a guest: the GPU instances where there is room for one.
        self.half: dict[str, set[str]] = {}
        #: That take jobs, and that there are.
        self.open = self.size = 0
        self.least_mib, self.largest_mib = inf, 0.0


class Fleet:
    """All GPU instances. What is derived (pools) is changed with each event and equals a fresh count."""

    def __init__(self) -> None:
        self.gpus: dict[str, Gpu] = {}
        self.pools: dict[PoolKey, DevicePool] = {}
        #: Free GPU instances of all pools, and how many others take no job for what.
        self.free = 0
        self.refusals: Counter[JobRefusal] = Counter()
        #: Jobs whose owners allow another one beside them.
        self._willing: set[str] = set()

    # ---- changes -----------------------------------------------------------------------------------------------------

    def see(self, event: GpuSeen) -> None:
        """A report."""
        gpu = self._gpu(event.gpu)
        if gpu.seen == event and not gpu.lost:
            return
        self._leave(gpu)
        gpu.seen, gpu.lost = event, False
        self._enter(gpu)

    def lose(self, name: str) -> list[str]:
        """A GPU instance is silent; returns the jobs on it."""
        gpu = self.gpus.get(name)
        if gpu is None:
            return []
        self._leave(gpu)
        gpu.lost = True
        self._enter(gpu)
        return list(gpu.jobs)

    def take(self, job: str, names: Iterable[str], *, willing: bool = False) -> None:
        """``willing``: another job may come beside it."""
        if willing:
            self._willing.add(job)
        for name in names:
            gpu = self._gpu(name)
            self._leave(gpu)
            gpu.jobs.append(job)
            self._enter(gpu)

    def give(self, job: str, names: Iterable[str]) -> None:
        for name in names:
            gpu = self.gpus[name]
            self._leave(gpu)
            gpu.jobs.remove(job)
            self._enter(gpu)
        self._willing.discard(job)

    def _gpu(self, name: str) -> Gpu:
        """Made where it was not known: nothing is placed there before it has reported."""
        gpu = self.gpus.get(name)
        if gpu is None:
            gpu = self.gpus[name] = Gpu(name)
            self._enter(gpu)
        return gpu

    def _leave(self, gpu: Gpu) -> None:
        self._count(gpu, -1)

    def _enter(self, gpu: Gpu) -> None:
        self._count(gpu, 1)

    def _count(self, gpu: Gpu, sign: int) -> None:
        """Add a GPU instance to its pool, or take it out."""
        why = gpu.refusal()
        if why is not None:
            self.refusals[why] += sign
        if gpu.lost or gpu.seen is None:
            return
        key = gpu.seen.device, gpu.seen.mig
        pool = self.pools.setdefault(key, DevicePool())
        pool.size += sign
        if gpu.open:
            gpu.key = key if sign > 0 else None
            pool.open += sign
            if 0 < len(gpu.jobs) < TENANTS and self._willing.issuperset(gpu.jobs):
                _index(pool.half, gpu.jobs[0], gpu.name, sign)
        if why is None:
            pool.count += sign
            self.free += sign
            _index(pool.free, gpu.seen.node, gpu.name, sign)
        # Bounds of what it ever held: they only save work.
        pool.least_mib = min(pool.least_mib, gpu.seen.memory_mib)
        pool.largest_mib = max(pool.largest_mib, gpu.seen.memory_mib)

    # ---- who fits where ----------------------------------------------------------------------------------------------

    def pools_for(self, needs: Needs) -> Iterator[tuple[PoolKey, DevicePool]]:
        """Pools of which a job could have its GPU instances, by device; a slice forms no gang."""
        for key in sorted(self.pools):
            device, mig = key
            pool = self.pools[key]
            if needs.device in ("", device) and not (mig and needs.size > 1) and needs.memory_mib <= pool.largest_mib:
                yield key, pool

    def eligible(self, needs: Needs, key: PoolKey | None) -> list[Gpu]:
        """GPU instances that could ever serve a job: its pins, or those of a pool that are open and large enough."""
        if needs.pins:
            named = [self.gpus[name] for name in needs.pins if name in self.gpus and self.gpus[name].open]
            return [gpu for gpu in named if self._takes(gpu.name, needs, ())]
        return [
            gpu
            for gpu in self.gpus.values()
            if gpu.open
            and gpu.seen is not None
            and (gpu.seen.device, gpu.seen.mig) == key
            and needs.memory_mib <= gpu.seen.memory_mib
            and needs.home in ("", gpu.seen.node)
        ]

    def choose(self, needs: Needs, keys: Iterable[PoolKey], without: Collection[str] = ()) -> tuple[str, ...] | None:
        """
        Free GPU instances for a job, node by node, or None: its pins, or of the first pool of ``keys`` that has enough
        one node's, of the nodes with enough the one with the fewest free; else of the fewest nodes. ``without``: kept
        for somebody else. Ties go where fewer instances of functions are held.
        """
        if needs.pins:
            free = all(
                name in self.gpus and self.gpus[name].refusal() is None and self._takes(name, needs, without)
                for name in needs.pins
            )
            return tuple(sorted(needs.pins, key=self.rank)) if free else None
        for key in keys:
            pool = self.pools[key]
            if pool.count < needs.size:
                continue
            chosen = self._from_nodes(needs.size, self._usable(pool, needs, without))
            if chosen is not None:
                return chosen
        return None

    def _usable(self, pool: DevicePool, needs: Needs, without: Collection[str]) -> dict[str, Collection[str]]:
        """The free GPU instances of a pool that a job may have, by node."""
        picky = bool(without) or needs.memory_mib > pool.least_mib
        nodes: dict[str, Collection[str]] = {}
        for node, names in pool.free.items():
            if needs.home not in ("", node):
                continue
            usable = [name for name in names if self._takes(name, needs, without)] if picky else names
            if usable:
                nodes[node] = usable
        return nodes

    def spare(self, needs: Needs, key: PoolKey, without: Collection[str]) -> list[str]:
        """The free ones of a pool that a job may have, though they may not be enough, in the order in which they rank."""
        usable = [name for names in self._usable(self.pools[key], needs, without).values() for name in names]
        if needs.pins:
            usable = [name for name in usable if name in needs.pins]
        return sorted(usable, key=self.rank)

    def half(self, needs: Needs, key: PoolKey, without: Collection[str]) -> dict[str, list[str]]:
        """
        Jobs of a pool beside which there is room, each with the GPU instances where a job may be its guest, as they rank.
        ``without``: of the host of one of these nothing.
        """
        hosts: dict[str, list[str]] = {}
        for id_, names in self.pools[key].half.items():
            if without and any(id_ in self.gpus[name].jobs for name in without):
                continue
            usable = [
                name
                for name in names
                if (not needs.pins or name in needs.pins)
                and (seen := self.gpus[name].seen) is not None
                and needs.home in ("", seen.node)
            ]
            if usable:
                hosts[id_] = sorted(usable, key=self.rank)
        return hosts

    def device_of(self, gpus: Sequence[str]) -> str:
        """Of a gang, '' = not known."""
        seen = self.gpus[gpus[0]].seen if gpus[0] in self.gpus else None
        return seen.device if seen is not None else ""

    def rank(self, name: str) -> tuple[str, int, str]:
        """By it, GPU instances stand in a row: those of a node together."""
        seen = self.gpus[name].seen
        return (seen.node, seen.held, name) if seen is not None else ("", 0, name)

    def in_rank(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of a node in a row."""
        return tuple(sorted(names, key=self.rank))

    def gather(self, size: int, gpus: Iterable[Gpu]) -> tuple[str, ...]:
        """``size`` of ``gpus``, of which there are enough, from the fewest nodes."""
        nodes: dict[str, list[str]] = {}
        for gpu in gpus:
            assert gpu.seen is not None
            nodes.setdefault(gpu.seen.node, []).append(gpu.name)
        chosen = self._from_nodes(size, nodes)
        assert chosen is not None
        return chosen

    def _takes(self, name: str, needs: Needs, without: Collection[str]) -> bool:
        seen = self.gpus[name].seen
        return seen is not None and needs.memory_mib <= seen.memory_mib and name not in without

    def _from_nodes(
        self, size: int, nodes: dict[str, Collection[str]] | dict[str, list[str]]
    ) -> tuple[str, ...] | None:
        if sum(map(len, nodes.values())) < size:
            return None
        chosen: list[str] = []
        while len(chosen) < size:
            left = size - len(chosen)
            enough = [len(names) for names in nodes.values() if len(names) >= left]
            # The smallest that is enough, else the largest: no other order needs fewer nodes.
            room = min(enough) if enough else max(map(len, nodes.values()))
            best = min(
                (self._held(sorted(names, key=self.rank)[:left]), node)
                for node, names in nodes.items()
                if len(names) == room
            )[1]
            chosen += sorted(nodes[best], key=self.rank)[:left]
            nodes = {node: names for node, names in nodes.items() if node != best}
        return tuple(chosen)

    def _held(self, names: Iterable[str]) -> int:
        return sum(seen.held for name in names if (seen := self.gpus[name].seen) is not None)

    def refusal(self, gpu: Gpu, needs: Needs, kept: Collection[str]) -> JobRefusal | None:
        """Why a GPU instance does not take a job now, None = it does. ``kept``: for somebody else."""
        if needs.pins and gpu.name not in needs.pins:
            return JobRefusal.PINNED
        if gpu.lost or gpu.seen is None:
            return JobRefusal.LOST
        if needs.device not in ("", gpu.seen.device) and not needs.pins:
            return JobRefusal.DEVICE
        if gpu.seen.mig and needs.size > 1:
            return JobRefusal.MIG
        if needs.memory_mib > gpu.seen.memory_mib:
            return JobRefusal.MEMORY
        if needs.home not in ("", gpu.seen.node):
            return JobRefusal.HOME
        why = gpu.refusal()
        return JobRefusal.KEPT if why is None and gpu.name in kept else why


def _index(by: dict[str, set[str]], key: str, name: str, sign: int) -> None:
    """Add a GPU instance to those of a key, or take it out."""
    names = by.setdefault(key, set())
    if sign > 0:
        names.add(name)
    else:
        names.remove(name)
        if not names:
            del by[key]
