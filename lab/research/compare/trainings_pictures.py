"""The pictures of a comparison of settings of the queue of trainings. The same runs give the same files."""

from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Final

from matplotlib.figure import Figure

from lab.research.compare.pictures import Picture
from lab.research.compare.policy_style import draw_bars, policy_style, scale
from lab.research.compare.trainings import JobPlan, Values
from lab.research.style import canvas, svg
from lab.simulation.jobs.metrics import HEADINGS
from lab.simulation.metrics import Interval

#: Measures that are drawn.
DRAWN: Final = ("jct", "wait", "jct_p99", "slowdown_max")


def draw(plan: JobPlan, by: Values, compared: Mapping[str, Interval]) -> Iterator[Picture]:
    """Settings side by side; where there are several interference models, mean completion under each of them."""
    yield _picture(plan, "settings", "Settings compared", _settings(plan, compared))
    if len(plan.truths) > 1:
        yield _picture(plan, "slowdowns", "Mean completion by slowdown", _by_truth(plan, by))


def _picture(plan: JobPlan, name: str, heading: str, figure: Figure) -> Picture:
    words = f"{heading}, simulated, preset {plan.preset}"
    return Picture(
        name=f"{plan.preset}-{name}", figure="", heading=heading, words=words, measured=False, svg=svg(figure)
    )


def _settings(plan: JobPlan, compared: Mapping[str, Interval]) -> Figure:
    figure = canvas(9.0, 3.4, "Simulated; means and 95 % intervals over seeds; times in hours, less is better.")
    for axes, name in zip(figure.subplots(1, len(DRAWN)), DRAWN, strict=True):
        values = [compared[f"{name}.{policy}"] for policy in plan.policies]
        for place, (policy, value) in enumerate(zip(plan.policies, values, strict=True)):
            draw_bars(axes, [place], [value], place, width=0.8, label=policy)
        scale(axes, [value.mean for value in values])
        axes.set_title(HEADINGS[name])
        axes.set_xticks(range(len(plan.policies)), plan.policies, rotation=60, ha="right", rotation_mode="anchor")
    return figure


def _by_truth(plan: JobPlan, by: Values) -> Figure:
    figure = canvas(
        9.0, 3.6, "Simulated; what two trainings on a GPU cost each other; mean completion over seeds, hours."
    )
    axes = figure.subplots()
    for place, policy in enumerate(plan.policies):
        colour, marker, _ = policy_style(place)
        series = by[policy]["jct"]
        means = [mean(series[start : start + plan.seeds]) for start in range(0, len(series), plan.seeds)]
        axes.plot(range(len(means)), means, color=colour, marker=marker, label=policy)
    axes.set_ylim(bottom=0.0)
    axes.set_xticks(range(len(plan.truths)), plan.truths)
    axes.legend(ncols=2)
    return figure
