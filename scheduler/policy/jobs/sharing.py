"""
Beside whom a job starts for which too few GPU instances are free.

SMore's rule shares only if

1. neither is slowed by more than its owner allows, by the 90 % bound (``JobRequest.share``; 0 = nobody beside me);
2. both fit into the memory, with 5 % and two contexts to spare (of a host that takes more than it said, what it takes
   counts); where they do not, in the fewest micro-batches with which they do;
3. the mean end is earlier than if the newcomer waited until the plan has its GPU instances free, whoever frees them;
4. the two together do at least 1.2 times the work of one (1/x_a + 1/x_b); where no workload of the jobs that wait or run
   would do more with either, 1.1 times is enough, because nobody better is kept out. Where they do less, the newcomer
   is through within a part of its wait: a fifth if the two do at least the work of one, so that no capacity is
   lost, else a tenth;
5. none of the host's GPU instances is kept for whoever is first;
6. whoever of the two was promised an end has surely ended by then, if it is slowed by the 90 % bound until its end.

Free GPU instances come before shared ones. Of several hosts it takes the one with the greatest 1/x_a + 1/x_b, then the
one with the most of the GPU instances that it needs, then the one that ends first. A gang may have several hosts and is as
slow as its slowest rank. Two jobs of which nobody knows what they cost each other, or how much memory they need, never
share. The settings of the publication, and rules of one's own, have points 1, 2, 5 and 6, because they hold what owners were
promised; of 3 and 4 ``sjf-bsbf`` has its own test, and ``sjf-ffs`` none.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from scheduler.policy.jobs.decisions import BesideHost, Doubt, Nearest, PairRefusal
from scheduler.policy.jobs.events import GpuSeen
from scheduler.policy.jobs.fleet import Fleet, PoolKey
from scheduler.policy.jobs.job import Ends, Job, JobPhase, called
from scheduler.policy.jobs.knobs import JobKnobs, Sharing
from scheduler.policy.jobs.order import waiting_job
from scheduler.policy.jobs.pairs import Host, Pairs, Slowdown, ends, share_now, wait_for
from scheduler.policy.jobs.promises import Promises
from scheduler.policy.jobs.spec import MicroBatches, Needs
from smore.domain.job_rule import HostOffer

#: Seconds that a job would wait for GPU instances of its own.
Waits = Callable[[Job], float]


class Shared(NamedTuple):
    """Where a job starts as a guest, beside whom, and how it runs its batch there."""

    gpus: tuple[str, ...]
    beside: tuple[BesideHost, ...]
    parts: MicroBatches


class HostCandidate(NamedTuple):
    """
    A host with the GPU instances that it could give, both slowdowns, and its time left as it runs now; ``gain``: the work
    that the two do together of what one does alone.
    """

    host: Job
    names: Sequence[str]
    own: Slowdown
    its: Slowdown
    left_s: float
    gain: float


class HostChoice(NamedTuple):
    """
    Hosts that a newcomer could have together, and what matters of them whatever its length: within which ``part`` of its
    wait it must be through (inf: whenever), and ``left_s`` of all of them.
    """

    candidates: Sequence[HostCandidate]
    hosts: Sequence[Host]
    part: float
    left_s: float


#: What matters of a newcomer before its length, and whether something is kept from it: jobs alike in it are looked at once.
_Kind = tuple[Needs, str, float, MicroBatches, PoolKey, bool]


class Partners:
    """The state of a rule, to choose a job's hosts from; ``weight``: of a project."""

    def __init__(
        self,
        knobs: JobKnobs,
        fleet: Fleet,
        jobs: Mapping[str, Job],
        ends: Ends,
        pairs: Pairs,
        weight: Callable[[str], float],
        promises: Promises,
    ) -> None:
        self._promises = promises
        self._weight = weight
        self._own = knobs.rule if knobs.rule is not None and knobs.rule.pairs else None
        self._knobs, self._fleet, self._jobs, self._ends, self._pairs = knobs, fleet, jobs, ends, pairs
        #: Good until somebody starts or ends, time passes, or something else is kept.
        self._candidates: dict[_Kind, list[HostCandidate]] = {}
        self._refusals: dict[_Kind, tuple[Counter[PairRefusal], tuple[HostCandidate, PairRefusal] | None]] = {}
        self._tried: dict[_Kind, list[HostChoice]] = {}
        self._spares: dict[tuple[Needs, PoolKey, bool], list[str]] = {}
        #: GPU instances of a pool with room for a guest.
        self._half: dict[PoolKey, int] = {}
        #: Jobs that may share by workload, and what a workload does with the best of them, by (device, workload).
        self._sharers: Counter[str] = Counter()
        self._best_gains: dict[tuple[str, str], float] = {}

    def begin(self) -> None:
        """Something may have changed since the last look."""
        self._candidates.clear()
        self._refusals.clear()
        self._tried.clear()
        self._half.clear()
        self._spares.clear()
        self._sharers.clear()
        self._best_gains.clear()

    def may_share(self, job: Job) -> bool:
        """Whether its owner and what is known of it let it be a guest at all."""
        asked = job.spec.request
        return (
            self._knobs.sharing is not Sharing.NONE
            and asked.share > 0
            and asked.workload != ""
            and job.spec.memory_mib > 0
        )

    def hosts_for(
        self, job: Job, keys: Sequence[PoolKey], at: float, kept: frozenset[str], wait_s: Waits
    ) -> Shared | None:
        """Where a job starts beside others now, None = nowhere. ``kept`` for somebody else."""
        for parts in _ways(job):
            for key in keys:
                shared = self._in_pool(job, parts, key, at, kept, wait_s)
                if shared is not None:
                    return shared
        return None

    def doubt(self, job: Job, keys: Sequence[PoolKey], at: float, kept: frozenset[str], wait_s: Waits) -> Doubt:
        """Why a job that may share does not: what stands against the best host, and what against how many others."""
        refused = Counter[PairRefusal]()
        best: tuple[HostCandidate, PairRefusal] | None = None
        parts = _ways(job)[-1]
        for key in keys:
            counts, nearest = self._refused(job, parts, key, at, kept)
            refused += counts
            candidates = self._of_pool(job, parts, key, at, kept)
            if candidates:
                enough = self._enough(candidates, job.needs.size - len(self._fleet.spare(job.needs, key, kept)))
                why = self._dynamic(job, parts, key[0], enough, wait_s) if enough else PairRefusal.FEW
                nearest = candidates[0], why or PairRefusal.FEW
            if nearest is not None and (best is None or nearest[0].gain > best[0].gain):
                best = nearest
        if best is not None and best[1] in refused:
            refused[best[1]] -= 1
        return Doubt(+refused, self._nearest(job, parts, *best) if best is not None else None)

    def _nearest(self, job: Job, parts: MicroBatches, best: HostCandidate, why: PairRefusal) -> Nearest:
        host, seen = best.host, self._fleet.gpus[best.names[0]].seen
        assert seen is not None
        own_mib, host_mib = parts.memory_mib, host.occupied_mib
        most_mib = _room_mib(self._knobs, seen) - host_mib
        fits = next((way for way in job.spec.not_allowed if way.memory_mib <= most_mib), None)
        return Nearest(called(job, host), why, best.own, best.its, best.gain, own_mib, host_mib, seen, fits)

    def _refused(
        self, job: Job, parts: MicroBatches, key: PoolKey, at: float, kept: frozenset[str]
    ) -> tuple[Counter[PairRefusal], tuple[HostCandidate, PairRefusal] | None]:
        """How many jobs of a pool are no hosts whatever the times, for what, and of these the best as far as is known."""
        kind = job.needs, job.spec.request.workload, job.spec.request.share, parts, key, bool(kept)
        if kind not in self._refusals:
            counts = Counter[PairRefusal]()
            best: tuple[HostCandidate, PairRefusal] | None = None
            room = self._fleet.half(job.needs, key, ())
            for host in self._running(key):
                why, candidate = self._look(job, parts, key[0], host, room.get(host.spec.id, ()), at, kept)
                if why is None:
                    continue
                counts[why] += 1
                if candidate is not None and (best is None or candidate.gain > best[0].gain):
                    best = candidate, why
            self._refusals[kind] = counts, best
        return self._refusals[kind]

    def _running(self, key: PoolKey) -> Iterator[Job]:
        for job in self._jobs.values():
            if job.gpus:
                seen = self._fleet.gpus[job.gpus[0]].seen
                if seen is not None and (seen.device, seen.mig) == key:
                    yield job

    # ---- who could be a host, whatever the times -----------------------------------------------------------------------

    def _look(
        self,
        job: Job,
        parts: MicroBatches,
        device: str,
        host: Job,
        names: Sequence[str],
        at: float,
        kept: frozenset[str],
    ) -> tuple[PairRefusal | None, HostCandidate | None]:
        """What stands against a host, and what the two cost each other where that is known."""
        if host.phase is not JobPhase.PLACED:
            return PairRefusal.STOPPING, None
        mine, theirs = job.spec.request, host.spec.request
        if theirs.share <= 0:
            return PairRefusal.UNWILLING, None
        if not names:
            return PairRefusal.FULL, None
        own = self._pairs.of(device, mine.workload, theirs.workload)
        its = self._pairs.of(device, theirs.workload, mine.workload)
        if own is None or its is None:
            return PairRefusal.UNPROFILED, None
        own = Slowdown(own.expected * parts.factor, own.most * parts.factor)
        candidate = HostCandidate(host, names, own, its, self._ends.at(host) - at, 1 / own.expected + 1 / its.expected)
        if not kept.isdisjoint(host.gpus):
            return PairRefusal.KEPT, candidate
        if self._pairs.was_worse(device, mine.workload, theirs.workload):
            return PairRefusal.WORSE, candidate
        if own.most - 1 > mine.share:
            return PairRefusal.SHARE, candidate
        if its.most * host.parts.factor - 1 > theirs.share:
            return PairRefusal.ITS_SHARE, candidate
        if not self._promises.bears_slowdown(host, its.most):
            return PairRefusal.PROMISED, candidate
        if not host.parts.memory_mib:
            return PairRefusal.MEMORY_UNKNOWN, candidate
        fitting = [
            name
            for name in names
            if _room_mib(self._knobs, self._fleet.gpus[name].seen) >= host.occupied_mib + parts.memory_mib
        ]
        if not fitting:
            return PairRefusal.MEMORY, candidate
        return None, candidate if len(fitting) == len(names) else candidate._replace(names=fitting)

    def _of_pool(
        self, job: Job, parts: MicroBatches, key: PoolKey, at: float, kept: frozenset[str]
    ) -> list[HostCandidate]:
        """In the order of the setting, as far as it does not depend on the newcomer's length."""
        kind = job.needs, job.spec.request.workload, job.spec.request.share, parts, key, bool(kept)
        found = self._candidates.get(kind)
        if found is None:
            found = self._candidates[kind] = []
            for id_, names in self._fleet.half(job.needs, key, kept).items():
                why, candidate = self._look(job, parts, key[0], self._jobs[id_], names, at, kept)
                if why is None and candidate is not None:
                    found.append(candidate)
            if self._knobs.sharing is Sharing.FIRST:
                found.sort(key=lambda one: self._fleet.rank(one.names[0]))
            else:
                size = job.needs.size
                found.sort(key=lambda one: (-one.gain, -min(size, len(one.names)), one.left_s, one.host.spec.id))
        return found

    def _spare(self, needs: Needs, key: PoolKey, kept: frozenset[str]) -> list[str]:
        kind = needs, key, bool(kept)
        if kind not in self._spares:
            self._spares[kind] = self._fleet.spare(needs, key, kept)
        return self._spares[kind]

    # ---- whether it pays -------------------------------------------------------------------------------------------------

    def _in_pool(
        self, job: Job, parts: MicroBatches, key: PoolKey, at: float, kept: frozenset[str], wait_s: Waits
    ) -> Shared | None:
        spare = self._spare(job.needs, key, kept)
        lacking = job.needs.size - len(spare)
        if key not in self._half:
            self._half[key] = sum(map(len, self._fleet.pools[key].half.values()))
        if lacking <= 0 or self._half[key] < lacking:
            return None
        if self._own is None and self._knobs.sharing is Sharing.GAIN:
            for choice in self._choices(job, parts, key, at, kept, lacking):
                if self._doubt_of(job, parts, choice, wait_s) is None:
                    return self._shared(parts, spare, choice.candidates, lacking)
            return None
        candidates = self._of_pool(job, parts, key, at, kept)
        chosen = self._enough(self._willing(job, candidates, wait_s), lacking) if candidates else []
        return self._shared(parts, spare, chosen, lacking) if chosen else None

    def _choices(
        self, job: Job, parts: MicroBatches, key: PoolKey, at: float, kept: frozenset[str], lacking: int
    ) -> list[HostChoice]:
        """Those of SMore's rule, in the order in which they are tried; of hosts with the same gain none is better than the first."""
        kind = job.needs, job.spec.request.workload, job.spec.request.share, parts, key, bool(kept)
        choices = self._tried.get(kind)
        if choices is None:
            choices = self._tried[kind] = []
            candidates = self._of_pool(job, parts, key, at, kept)
            before = 0.0
            for place, candidate in enumerate(candidates):
                if candidate.gain == before:
                    continue
                before = candidate.gain
                chosen = self._enough(candidates[place:], lacking)
                if not chosen:
                    break
                choices.append(self._choice(job, parts, key[0], chosen))
        return choices

    def _choice(self, job: Job, parts: MicroBatches, device: str, chosen: Sequence[HostCandidate]) -> HostChoice:
        slowest = max(one.own.expected for one in chosen)
        return HostChoice(
            candidates=chosen,
            hosts=[
                Host(one.left_s, one.own.expected / parts.factor, max(1.0, one.its.expected / one.host.besides))
                for one in chosen
            ],
            part=min(self._part(job, device, one, 1 / slowest + 1 / one.its.expected) for one in chosen),
            left_s=sum(one.left_s for one in chosen),
        )

    def _part(self, job: Job, device: str, candidate: HostCandidate, gain: float) -> float:
        """
        Within which part of its wait a newcomer must be through; inf where the two do enough together and keep nobody
        out who would do more with one of them.
        """
        knobs = self._knobs
        if gain >= knobs.least_gain:
            return inf
        workloads = job.spec.request.workload, candidate.host.spec.request.workload
        if gain >= knobs.least_gain_alike and gain >= max(self._best_gain(device, name) for name in workloads):
            return inf
        return knobs.part_of(gain)

    def _best_gain(self, device: str, workload: str) -> float:
        """The most that a job of a workload does together with another job that is here."""
        key = device, workload
        if key not in self._best_gains:
            if not self._sharers:
                self._sharers.update(job.spec.request.workload for job in self._jobs.values() if self.may_share(job))
            others = (other for other, count in self._sharers.items() if other != workload or count > 1)
            self._best_gains[key] = max((self._pairs.gain(device, workload, other) for other in others), default=0.0)
        return self._best_gains[key]

    def _willing(self, job: Job, candidates: Sequence[HostCandidate], wait_s: Waits) -> Sequence[HostCandidate]:
        """Those that a rule of one's own takes, in its order, or the publication's."""
        if self._own is None:
            return self._published(job, candidates)
        by_id = {one.host.spec.id: one for one in candidates}
        seen = waiting_job(job, self._weight(job.spec.project), job.queued_at)
        return [by_id[id_] for id_ in self._own.hosts(seen, [_offer(one) for one in candidates], wait_s(job))]

    def _published(self, job: Job, candidates: Sequence[HostCandidate]) -> Sequence[HostCandidate]:
        """Those that the paper's test lets through, the smallest mean end first; without a test all of them."""
        if self._knobs.sharing is Sharing.FIRST:
            return candidates
        left_s = job.length.expected_s
        found = []
        for one in candidates:
            shared_s = share_now(left_s, one.own.expected, one.left_s, one.its.expected)
            if shared_s < wait_for(left_s, one.left_s):
                found.append((shared_s, one.host.spec.id, one))
        return [one for _, _, one in sorted(found, key=lambda entry: entry[:2])]

    def _dynamic(
        self, job: Job, parts: MicroBatches, device: str, chosen: Sequence[HostCandidate], wait_s: Waits
    ) -> PairRefusal | None:
        """What stands against starting beside all of ``chosen`` now."""
        if self._own is not None or self._knobs.sharing is Sharing.PAIR:
            return None if self._willing(job, chosen, wait_s) else PairRefusal.WAITING
        if self._knobs.sharing is Sharing.FIRST:
            return None
        return self._doubt_of(job, parts, self._choice(job, parts, device, chosen), wait_s)

    def _doubt_of(self, job: Job, parts: MicroBatches, choice: HostChoice, wait_s: Waits) -> PairRefusal | None:
        """What stands against a choice by the times; memory, owners and predictions do not."""
        left_s, wait = job.length.expected_s, wait_s(job)
        most_s = choice.part * wait if choice.part < inf else inf
        if left_s > most_s:
            return PairRefusal.LITTLE
        end, host_ends = ends(left_s * parts.factor, choice.hosts)
        if end > most_s:
            return PairRefusal.LITTLE
        return PairRefusal.WAITING if end + sum(host_ends) >= wait + left_s + choice.left_s else None

    @staticmethod
    def _enough(candidates: Sequence[HostCandidate], lacking: int) -> list[HostCandidate]:
        """The first that have enough together, [] = all together have not."""
        chosen = []
        for candidate in candidates:
            chosen.append(candidate)
            lacking -= len(candidate.names)
            if lacking <= 0:
                return chosen
        return []

    def _shared(
        self, parts: MicroBatches, spare: Sequence[str], chosen: Sequence[HostCandidate], lacking: int
    ) -> Shared:
        names = [name for one in chosen for name in one.names][:lacking]
        beside = tuple(
            BesideHost(one.host.spec.id, one.own.expected, one.own.most, one.its.expected, one.its.most)
            for one in chosen
        )
        return Shared(self._fleet.in_rank([*spare, *names]), beside, parts)


def _offer(one: HostCandidate) -> HostOffer:
    return HostOffer(
        id=one.host.spec.id,
        workload=one.host.spec.request.workload,
        gpus=len(one.names),
        slowdown=one.own.expected,
        slowdown_most=one.own.most,
        its_slowdown=one.its.expected,
        its_slowdown_most=one.its.most,
        left_s=one.left_s,
    )


def _room_mib(knobs: JobKnobs, seen: GpuSeen | None) -> float:
    """What two on a GPU instance may have together."""
    return seen.memory_mib * (1 - knobs.spare_part) - 2 * seen.context_mib if seen is not None else 0.0


def _ways(job: Job) -> list[MicroBatches]:
    """How a job may run its batch, the fewest parts first."""
    spec = job.spec
    return [MicroBatches(count=1, memory_mib=spec.memory_mib), *sorted(spec.micro_batches, key=lambda way: way.count)]
