"""
Programs of the checkout that import the package that starts them, so it starts them by name.

tests/unit/test_house.py looks for each.
"""

import runpy
from typing import Final

#: The modules that ``smore`` runs (smore/cli/launch.py), by the name that its commands use.
STARTED: Final = {
    "alone": "worker.runner.alone",
    "compare": "lab.research.compare",
    "learning": "ml.learn.learning",
    "live": "lab.bench.live",
    "profile": "lab.measure.profile",
    "prewarm": "lab.research.prewarm.served",
    "replay": "lab.research.replay.replay",
    "report": "lab.research.predictor.report",
}

#: Documented names after ``python -m``, and the module that each runs. The module of the documented name calls
#: :func:`run`.
KNOWN_AS: Final = {
    "lab.research.predictor.evaluate": "lab.research.predictor.evaluate",
    "lab.research.prewarm.evaluate": "lab.research.prewarm.evaluate",
    "lab.measure.profile": "lab.measure.profile",
    "lab.simulation": "lab.research.compare",
    "lab.demo.run": "lab.demo.run",
}


def run(name: str) -> None:
    """Run the program that is documented as ``name`` in this process, as ``python -m`` would."""
    runpy.run_module(KNOWN_AS[name], run_name="__main__", alter_sys=True)
