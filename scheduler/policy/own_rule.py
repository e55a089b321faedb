"""Placement rules of one's own, loaded by name: ``module:Class``, or ``FILE.py:Class``."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from smore.domain.placement_rule import BadRule, PlacementRule


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
