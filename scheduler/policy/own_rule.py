"""Placement rules of one's own, loaded by name: ``module:Class``, or ``FILE.py:Class``."""

import importlib
import importlib.util
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from types import ModuleType

from smore.domain.placement_rule import BadRule, Offer, PlacementRule, WaitingBatch, failure


class OwnRule:
    """
    A rule under its ``name``: whatever it raises, and every answer that it may not give, is raised as BadRule, which names
    the rule, the error, and the file and line.
    """

    def __init__(self, name: str, rule: PlacementRule) -> None:
        self._name, self._rule = name, rule

    def order(self, now: float, batch: WaitingBatch) -> float:
        try:
            order = float(self._rule.order(now, batch))
        # Code of somebody else may raise anything, here and below.
        except Exception as error:
            raise BadRule(f"{self._name}: order raised {failure(error)}") from error
        if not isfinite(order):
            raise BadRule(f"{self._name}: order returned {order}, a finite number is expected")
        return order

    def choose(self, now: float, batch: WaitingBatch, offers: Sequence[Offer]) -> Offer | None:
        try:
            chosen = self._rule.choose(now, batch, offers)
        except Exception as error:
            raise BadRule(f"{self._name}: choose raised {failure(error)}") from error
        if chosen is not None and chosen not in offers:
            raise BadRule(f"{self._name}: choose returned {chosen!r}, one of the offers or None is expected")
        return chosen


def load_rule(name: str) -> PlacementRule:
    """A new rule. Raises BadRule, which says why there is none."""
    where, _, kind = name.rpartition(":")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        rule: PlacementRule = getattr(module, kind)()
    # Code of somebody else may raise anything.
    except Exception as error:
        raise BadRule(f"{name}: {type(error).__name__}: {error}") from error
    for method in ("order", "choose"):
        if not callable(getattr(rule, method, None)):
            raise BadRule(f"{name} has no method {method!r}, as smore.domain.placement_rule.PlacementRule asks for")
    return rule


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"placement_rule_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
