"""
The guard of the path: ``python -m bench.guard``. It fails where the platform takes more of a machine than it did.

Figures are ratios to the naive peer of the same run, which a slow or busy machine changes little: CPU of a request at
each of :data:`POINTS`, all processes of a side; and the platform's memory :data:`bench.path.SETTLED_S` after its first
answer, MiB. Both sides run, and take turns; a figure is the ratio of the medians over :data:`TURNS`. Their bounds are
in ``bench/guard.json``, and a figure may be above its bound by :data:`SLACK`. Whoever makes the platform lighter writes
the new figures there: ``--write``.
"""

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench import cpu, path, report
from smore.postgres.connection import make_engine
from smore.postgres.predictors import Profiles

BOUNDS: Final = Path(__file__).with_name("guard.json")
SLACK: Final = 0.15
#: Name of a figure, its load and its connections.
POINTS: Final = (
    ("cpu_ratio_c1", "echo", 1),
    ("cpu_ratio_c64", "echo", 64),
    ("cpu_ratio_c16_conv", "conv", 16),
)
TURNS: Final = 3
WINDOW_S: Final = 1.0


def measured() -> dict[str, float]:
    """Every figure."""
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="smore-guard-home-"))
        functions = [each for each in path.FUNCTIONS if each.name in {load for _, load, _ in POINTS}]
        smore, peer = path.SmoreSide(Path(home), functions), path.NaiveSide()
        stack.callback(smore.stop)
        smore.start()
        # The first predictor would be fitted meanwhile, for many seconds of a core.
        stack.enter_context(Profiles(make_engine(smore.platform.postgres_url, "guard")).exclusive(wait=True))
        # Alone: the peer would share, and so halve, what both have mapped.
        time.sleep(path.SETTLED_S)
        figures["idle_pss_mb"] = cpu.ProcessGroup(smore.pids()).pss_mib()
        stack.callback(peer.stop)
        peer.start()
        sides: list[path.Side] = [smore, peer]
        groups = {side.name: cpu.ProcessGroup(side.pids()) for side in sides}
        taken: dict[tuple[str, str], list[float]] = {}
        for side in sides:
            for name in sorted({load for _, load, _ in POINTS}):
                path.warm(side, name)
        for turn in range(TURNS):
            for figure, load, connections in POINTS:
                for side in sides if turn % 2 == 0 else sides[::-1]:
                    point = path.measure_point(side, groups[side.name], load, connections, WINDOW_S)
                    taken.setdefault((figure, side.name), []).append(point.cpu_us)
    for figure, *_ in POINTS:
        figures[figure] = statistics.median(taken[figure, smore.name]) / statistics.median(taken[figure, peer.name])
    return figures


def exceeded(figures: Mapping[str, float], bounds: Mapping[str, float]) -> list[str]:
    """The figures that are above their bounds, in words. Raises KeyError for one that has none."""
    return [
        f"{name} is {value:.3g}, {value / bounds[name] - 1:.0%} above {bounds[name]:.3g}; {SLACK:.0%} are allowed"
        for name, value in figures.items()
        if value > bounds[name] * (1 + SLACK)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description="See the module's docstring.")
    parser.add_argument("--write", action="store_true", help="make the figures of this run the bounds")
    options = parser.parse_args(arguments)
    # A terminated run still ends the processes that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    figures = {name: report.rounded(value) for name, value in measured().items()}
    print(json.dumps(figures))
    if options.write:
        BOUNDS.write_text(json.dumps(figures, indent=2) + "\n")
    elif wrong := exceeded(figures, json.loads(BOUNDS.read_text())):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
