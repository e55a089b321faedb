"""A rule of one's own under its name: what it may not do is raised as BadRule, which names the rule."""

from collections.abc import Sequence
from math import isfinite

from smore.domain.job_rule import HostOffer, JobRule, WaitingJob, is_choice
from smore.domain.own_rule import BadRule, failure


class OwnJobRule:
    """``orders``, ``pairs``: which of the two methods it has; of the other the setting's own rule holds."""

    def __init__(self, name: str, rule: JobRule) -> None:
        self._name, self._rule = name, rule
        self.orders, self.pairs = (hasattr(rule, method) for method in ("order", "hosts"))

    def order(self, job: WaitingJob) -> float:
        try:
            order = float(self._rule.order(job))
        # Code of somebody else may raise anything, here and below.
        except Exception as error:
            raise BadRule(f"{self._name}: order raised {failure(error)}") from error
        if not isfinite(order):
            raise BadRule(f"{self._name}: order returned {order}, a finite number is expected")
        return order

    def hosts(self, job: WaitingJob, offers: Sequence[HostOffer], wait_s: float) -> list[str]:
        """The ids of the hosts that it takes, the best first."""
        try:
            chosen = list(self._rule.hosts(job, tuple(offers), wait_s))
        except Exception as error:
            raise BadRule(f"{self._name}: hosts raised {failure(error)}") from error
        if not is_choice(chosen, offers):
            raise BadRule(f"{self._name}: hosts returned {chosen!r}, some of the offers, each once, are expected")
        return [offer.id for offer in chosen]
