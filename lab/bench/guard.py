"""
The guard of the path: ``python -m lab.bench.path --guard``. It fails where the platform takes more of a machine than it did.

Figures are ratios to the naive peer of the same run, so that they hold on any machine: CPU of a request at each of
:data:`POINTS`, all processes of a side, less what they take without requests, which counts for more where a machine serves
fewer; and the platform's memory :data:`lab.bench.sides.SETTLED_S` after its first answer,
MiB. Both sides are loaded at the same time, because the speed of a shared machine changes from one second to the next.
A figure is the median of :data:`TURNS` ratios. Their bounds are in ``lab/bench/guard.json``, and a figure may be above its
bound by :data:`SLACK`. Where one is above that, all are measured again, :data:`TRIES` times at most, and each counts as its
least: other work on the machine only adds. Whoever makes the platform lighter writes the new figures there: ``--write``.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from lab.bench import cpu, report, sides

BOUNDS: Final = Path(__file__).with_name("guard.json")
SLACK: Final = 0.15
#: Name of a figure, its load and its connections.
POINTS: Final = (
    ("cpu_ratio_c1", "echo", 1),
    ("cpu_ratio_c64", "echo", 64),
    ("cpu_ratio_c16_conv", "conv", 16),
)
TURNS: Final = 3
TRIES: Final = 3
WINDOW_S: Final = 1.0
#: Seconds without requests in which a side's own CPU is measured.
IDLE_S: Final = 3.0


def measured() -> dict[str, float]:
    """Every figure."""
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="smore-guard-home-"))
        functions = [each for each in sides.FUNCTIONS if each.name in {load for _, load, _ in POINTS}]
        smore, peer = sides.SmoreSide(Path(home), functions), sides.NaiveSide()
        stack.callback(smore.stop)
        smore.start()
        # Alone: the peer would share, and so halve, what both have mapped.
        time.sleep(sides.SETTLED_S)
        figures["idle_pss_mb"] = cpu.ProcessGroup(smore.pids()).pss_mib()
        smore.learn()
        stack.callback(peer.stop)
        peer.start()
        both: list[sides.Side] = [smore, peer]
        groups = {side.name: cpu.ProcessGroup(side.pids()) for side in both}
        for side in both:
            for name in sorted({load for _, load, _ in POINTS}):
                sides.warm(side, name)
        idle = {side.name: groups[side.name].measure(lambda: time.sleep(IDLE_S))[1].cores for side in both}
        report.progress(f"  cores without requests: {idle}")
        threads = stack.enter_context(ThreadPoolExecutor(len(both)))
        taken: dict[str, list[float]] = {figure: [] for figure, *_ in POINTS}
        for _ in range(TURNS):
            for figure, load, connections in POINTS:

                def measure(side: sides.Side, load: str = load, connections: int = connections) -> float:
                    point = sides.measure_point(side, groups[side.name], load, connections, WINDOW_S)
                    return point.cpu_us * (1 - idle[side.name] / point.cores)

                of_smore, of_peer = threads.map(measure, both)
                taken[figure].append(of_smore / of_peer)
    for figure, found in taken.items():
        report.progress(f"  {figure}: " + ", ".join(f"{ratio:.3f}" for ratio in found))
        figures[figure] = statistics.median(found)
    return figures


def exceeded(figures: Mapping[str, float], bounds: Mapping[str, float]) -> list[str]:
    """The figures that are above their bounds, in words. Raises KeyError for one that has none."""
    return [
        f"{name} is {value:.3g}, {value / bounds[name] - 1:.0%} above {bounds[name]:.3g}; {SLACK:.0%} are allowed"
        for name, value in figures.items()
        if value > bounds[name] * (1 + SLACK)
    ]


def check(*, write: bool) -> Sequence[str]:
    """Measure, print the figures, and return what is :func:`exceeded`. ``write``: they become the bounds instead."""
    bounds, least, wrong = json.loads(BOUNDS.read_text()), dict[str, float](), list[str]()
    for _ in range(1 if write else TRIES):
        figures = {name: report.rounded(value) for name, value in measured().items()}
        least = {name: min(value, least.get(name, value)) for name, value in figures.items()}
        print(json.dumps(figures), flush=True)
        if write:
            BOUNDS.write_text(json.dumps(figures, indent=2) + "\n")
        elif not (wrong := exceeded(least, bounds)):
            break
    return wrong
