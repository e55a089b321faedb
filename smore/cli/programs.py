"""
Programs of the checkout that lie on a floor above what starts them. Here they are names; tests/unit/test_house.py
imports each.
"""

import runpy
from typing import Final

#: What ``smore`` starts, by its own word for it: a module for ``python -m``.
STARTED: Final = {
    "compare": "research.compare",
    "learning": "ml.learn.learning",
    "live": "bench.live",
    "prewarm": "research.prewarm.served",
    "replay": "research.replay.replay",
    "report": "research.predictor.report",
}

#: Names after ``python -m`` that people and machines know, and the module that each runs; a module of the old name does
#: so by :func:`run`.
KNOWN_AS: Final = {
    "ml.evaluate": "research.predictor.evaluate",
    "ml.prewarm_eval": "research.prewarm.evaluate",
    "ml.profile": "ml.measure.profile",
    "scheduler.simulation": "research.compare",
    "smore.demo": "demo.run",
}


def run(name: str) -> None:
    """Run the program that is known as ``name``, as ``python -m`` would."""
    runpy.run_module(KNOWN_AS[name], run_name="__main__", alter_sys=True)
