"""Rules of one's own, loaded by name: ``module:Class``, or ``FILE.py:Class``; a placement rule under its name."""

import importlib
import importlib.util
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any

from smore.domain.own_rule import BadRule, failure, made
from smore.domain.placement_rule import Offer, PlacementRule, WaitingBatch
from smore.domain.spelling import did_you_mean


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


def load_rule(name: str, methods: Sequence[str], least: int) -> Any:
    """
    A new rule with at least so many of the ``methods``. Raises BadRule, which says why there is none, and what is spelt
    like it.
    """
    where, _, kind = (name, "", "") if name.endswith(".py") else name.rpartition(":")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _imported(where)
        make = getattr(module, kind) if kind and hasattr(module, kind) else None
        if make is None:
            raise BadRule(_no_class(module, where, kind))
        return made(make, methods, least)
    except BadRule as error:
        raise BadRule(f"{name}: {error}") from error


def _no_class(module: ModuleType, where: str, kind: str) -> str:
    classes = [
        name for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    ]
    words = f"{where} has no class {kind!r}" if kind else f"the class is missing, as in {where}:Mine"
    return words + (did_you_mean(kind, classes) or f"; its classes are {', '.join(classes) or 'none'}")


def _imported(where: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise BadRule(f"importing {where} raised {failure(error)}") from error
        raise BadRule(
            f"there is no module {error.name!r} on the Python path; a file is named with its ending, ./{where}.py:Mine"
        ) from error
    except Exception as error:
        raise BadRule(f"importing {where} raised {failure(error)}") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        beside = sorted(other.name for other in path.parent.glob("*.py"))
        near = (
            did_you_mean(path.name, beside) or f"; {path.parent.resolve()} has {', '.join(beside[:8]) or 'no .py file'}"
        )
        raise BadRule(f"there is no file {path}{near}")
    spec = importlib.util.spec_from_file_location(f"own_rule_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadRule(f"reading {path} raised {failure(error)}") from error
    return module
