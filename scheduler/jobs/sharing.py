"""
Trainings beside each other, live: what the degradation table says of pairs, told to the rule; pairs that are under way,
written to Postgres; what they are measured to cost, told to both.

The iteration times of a pair come from its worker (worker/training/beside.py). Those of its first minute replace what was
predicted. A host's loss is that of the closed windows in which its guest is held back, as soon as there are enough.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.jobs.attempts import Attempt
from scheduler.policy.jobs.decisions import BesideHost
from scheduler.policy.jobs.events import Event, GuestHeldBack, PairKnown, PairMeasured, PairsKnown
from smore.domain.loss import LEAST_WINDOWS
from smore.messages.degradation import BadTable
from smore.messages.reports import JobReport
from smore.postgres.job_pairs import JobPair
from smore.process import observability as metrics
from smore.redis.tables import Tables

log = metrics.logger(__name__)

#: A pair is measured over its first so many seconds, and over so many iterations at least.
MEASURED_S: Final = 60.0
LEAST_ITERATIONS: Final = 20
#: A pair that ended before is measured over what it had, if it had so many seconds.
_LEAST_S: Final = 15.0
#: Standard errors on either side of a mean that hold the truth with 95 %.
_Z: Final = 1.96

#: (device, sharing mode).
Place = tuple[str, str]
#: Since an epoch second: (device, workload, the other's workload).
WorseSince = Callable[[float], set[tuple[str, str, str]]]
#: Seconds of an iteration of a workload alone at a place, by a profile; None = nobody has measured it there.
AloneOf = Callable[[str, Place], float | None]


class KnownPairs:
    """
    What the published degradation table says of pairs, and which of them ``worse_since`` its making turned out worse than an
    owner allows: what a former leader has measured holds too. It has the iteration times alone too (:meth:`alone_s`).
    """

    def __init__(self, tables: Tables, worse_since: WorseSince) -> None:
        self._tables, self._worse_since = tables, worse_since
        self._read: tuple[int, frozenset[Place]] | None = None
        self._alone_s: dict[Place, dict[str, float]] = {}

    def alone_s(self, workload: str, place: Place) -> float | None:
        """Seconds of an iteration of a workload alone, None = the table last read does not have it for this place."""
        return self._alone_s.get(place, {}).get(workload)

    def changed(self, places: Collection[Place]) -> list[Event]:
        """What the rule must hear; ``places``: those of the GPU instances that there are."""
        now = self._tables.version(), frozenset(places)
        if now == self._read:
            return []
        self._read = now
        try:
            table = self._tables.current()
        except BadTable as error:
            log.error("no trainings are paired: the degradation table cannot be read", error=str(error))
            table = None
        published = {(place.device, place.sharing_mode): place for place in (table.places if table is not None else ())}
        self._alone_s = {place: of.alone_s() for place, of in published.items()}
        worse = self._worse_since(table.created_at) if table is not None else set()
        # The rule does not tell GPU instances of one device in several sharing modes apart, and rows of one mode say nothing
        # of another: nobody is paired there.
        modes = Counter(device for device, _ in set(places))
        pairs = [
            PairKnown(
                device,
                pair.training,
                pair.beside,
                1 + pair.degradation,
                1 + pair.upper,
                worse=(device, pair.training, pair.beside) in worse,
            )
            for (device, mode), of in published.items()
            if (device, mode) in places and modes[device] == 1
            for pair in of.training_pairs()
        ]
        log.info("pairs of trainings are known", table=now[0], pairs=len(pairs))
        return [PairsKnown(pairs=pairs)]


@dataclass(slots=True)
class _Measured:
    """
    A pair as one of its two attempts sees it. ``beside``: its iterations beside the other one, as they were reported last;
    ``since``: how long it made such; ``by_profile``: nothing better was known of its iterations alone.
    """

    pair: JobPair
    beside_s: float = 0.0
    beside_se: float = 0.0
    since_s: float = 0.0
    by_profile: bool = False
    changed: bool = False


class SharedAttempts:
    """The pairs of the attempts under way, those too of which the other one is over."""

    def __init__(self, alone_of: AloneOf) -> None:
        self._alone_of = alone_of
        self._pairs: dict[tuple[str, int], list[_Measured]] = {}
        #: Of each attempt: the others' attempts beside which what it takes was told to the rule.
        self._told: dict[tuple[str, int], frozenset[tuple[str, int]]] = {}
        #: (job, attempt) → seconds held back that were counted.
        self._held: dict[tuple[str, int], float] = {}
        #: Of each attempt that is held back: the part of the time that was told to the rule.
        self._parts: dict[tuple[str, int], float] = {}

    def take_over(self, pairs: Sequence[JobPair]) -> None:
        """Those that a former leader wrote down of the attempts under way."""
        for pair in pairs:
            key = pair.job, pair.attempt
            self._pairs.setdefault(key, []).append(_Measured(pair))
            self._held[key] = self._held.get(key, 0.0) + pair.held_s

    def begin(
        self,
        now: float,
        job: str,
        attempt: int,
        gpus: Sequence[str],
        beside: Sequence[tuple[BesideHost, Attempt]],
        place: Place,
    ) -> list[JobPair]:
        """The pairs that an attempt would form with its hosts, each seen from both sides; ``now`` in epoch seconds."""
        pairs = []
        for costs, host in beside:
            both = [gpu for gpu in gpus if gpu in host.gpus]
            for mine, other, predicted, most in (
                ((job, attempt), (host.job, host.attempt), costs.own, costs.own_most),
                ((host.job, host.attempt), (job, attempt), costs.its, costs.its_most),
            ):
                pairs.append(
                    JobPair(
                        job=mine[0],
                        attempt=mine[1],
                        other=other[0],
                        other_attempt=other[1],
                        guest=mine[0] == job,
                        gpus=both,
                        device=place[0],
                        sharing_mode=place[1],
                        from_at=now,
                        predicted=predicted,
                        predicted_90=most,
                    )
                )
        return pairs

    def follow(self, at: float, attempts: Mapping[str, Attempt], workloads: Mapping[str, str]) -> list[Event]:
        """
        Take what is reported of pairs (``at`` in epoch seconds); returns what the rule must hear. ``workloads``: of each job.
        """
        events: list[Event] = []
        metrics.JOB_PAIR_SLOWDOWN.clear()
        for key, pairs in self._pairs.items():
            attempt = attempts.get(key[0])
            if attempt is None or attempt.attempt != key[1]:
                continue
            factor = attempt.parts.factor
            for each in pairs:
                other = attempts.get(each.pair.other)
                goes_on = other is not None and other.attempt == each.pair.other_attempt
                told = next((rank.report for rank in attempt.ranks if rank.gpu in each.pair.gpus), None)
                if told is not None:
                    self._take(at, each, told, workloads.get(key[0], ""), factor)
                if not goes_on and each.pair.until_at is None:
                    each.pair.until_at = at
                    _settle(each, _LEAST_S)
            part = min((rank.report.held for rank in attempt.ranks if rank.report is not None), default=1.0)
            if part != self._parts.get(key, 1.0):
                self._parts[key] = part
                events.append(GuestHeldBack(id=key[0], attempt=key[1], part=part))
            open_ = [each.pair for each in pairs if each.pair.until_at is None]
            slowdown = max((pair.measured or pair.predicted or 1.0 for pair in open_), default=None)
            if slowdown is not None:
                metrics.JOB_PAIR_SLOWDOWN.labels(key[0]).set(slowdown)
            others = frozenset((pair.other, pair.other_attempt) for pair in open_)
            measured = [pair.measured for pair in open_ if pair.measured is not None]
            if open_ and len(measured) == len(open_) and self._told.get(key) != others:
                self._told[key] = others
                events.append(PairMeasured(id=key[0], attempt=key[1], slowdown=max(measured) * factor))
        return events

    def _take(self, at: float, each: _Measured, told: JobReport, workload: str, factor: float) -> None:
        pair = each.pair
        if pair.until_at is None and list(told.beside) == [pair.other] and told.beside_n >= LEAST_ITERATIONS:
            each.beside_s, each.beside_se = told.beside_s, told.beside_se
            each.since_s = at - told.beside_since
            each.changed = True
        key = pair.job, pair.attempt
        new_s = told.held_s - self._held.get(key, 0.0)
        if new_s > 0:
            self._held[key] = told.held_s
            pair.held_s += new_s
            each.changed = True
            metrics.JOB_HELD_SECONDS.inc(new_s)
        final = pair.until_at is not None and pair.alone_s is not None and not each.by_profile
        if not each.beside_s or final:
            return
        pair.beside_s = each.beside_s
        by_profile = told.alone_n < LEAST_ITERATIONS or not told.alone_se
        if by_profile and pair.alone_s is None:
            alone_s = self._alone_of(workload, (pair.device, pair.sharing_mode)) if workload else None
            if not alone_s:
                return
            pair.alone_s = alone_s * factor
        if not by_profile and pair.alone_s != told.alone_s:
            if pair.measured is not None and pair.alone_s:
                pair.measured = max(1.0, pair.measured * pair.alone_s / told.alone_s)
            pair.alone_s, each.changed = told.alone_s, True
        each.by_profile = by_profile
        assert pair.alone_s is not None
        ratio = pair.beside_s / pair.alone_s
        pair.loss = ratio - 1
        pair.loss_low = pair.loss_high = None
        _settle(each, MEASURED_S if pair.until_at is None else _LEAST_S)
        if pair.until_at is None and told.pair_loss is not None and told.pair_windows >= LEAST_WINDOWS:
            pair.loss, pair.loss_low, pair.loss_high = told.pair_loss, told.pair_loss_low, told.pair_loss_high
        elif not by_profile and each.beside_se:
            spread = math.exp(_Z * math.hypot(told.alone_se / told.alone_s, each.beside_se / each.beside_s))
            pair.loss_low, pair.loss_high = ratio / spread - 1, ratio * spread - 1

    def over(self, job: str, attempt: int, at: float) -> list[JobPair]:
        """An attempt is over: what is to be written down of its pairs."""
        pairs = self._pairs.pop((job, attempt), [])
        self._told.pop((job, attempt), None)
        self._held.pop((job, attempt), None)
        self._parts.pop((job, attempt), None)
        for each in pairs:
            if each.pair.until_at is None:
                each.pair.until_at = at
                _settle(each, _LEAST_S)
        return [each.pair for each in pairs]

    def changed(self) -> list[JobPair]:
        """What is to be written down since the last call."""
        new = [each for pairs in self._pairs.values() for each in pairs if each.changed]
        for each in new:
            each.changed = False
        return [each.pair for each in new]


def _settle(each: _Measured, least_s: float) -> None:
    """Its measured slowdown is that until now, if it lasted long enough and was not measured before."""
    if each.pair.measured is None and each.pair.loss is not None and each.since_s >= least_s:
        each.pair.measured, each.changed = max(1.0, 1 + each.pair.loss), True
