"""
Which pictures a comparison gets, after figures 7 to 14, 17 and 18 of the paper, and their form.

The same rows give the same files. A caption says whether what is shown was simulated or measured; no picture shows both.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure

from lab.research.compare.by_policy import CURVES, budgets, draw_methods, draw_side, draw_tradeoff
from lab.research.compare.configurations import draw_configurations, draw_gain, draw_slices
from lab.research.compare.measured import draw_decisions, draw_live
from lab.research.compare.one_configuration import draw_admission, draw_degradations, draw_requests, draw_utilisation
from lab.research.compare.section import Measured, Section
from lab.research.style import STYLE, svg
from lab.simulation.metrics import FIGURE_14, Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """
    ``figure``: its number in the paper, '' = it has none; ``svg``: the document, without a date; ``words``: the text for readers who do
    not see it.
    """

    name: str
    figure: str
    heading: str
    words: str
    measured: bool
    svg: str


def draw(section: Section) -> Iterator[Picture]:
    """
    The pictures of a comparison. Every one gets figure 14, with a curve if it has the product, or Random within its budget,
    with several budgets. MIG slices add figure 18, one configuration adds 7 to 10, several add 11 to 13. A case that is
    small enough for the offline bound adds none.
    """
    if len(section.policies) > 1:
        yield _simulated(section, "methods", "14", "Policies compared", draw_methods(section))
    if any(len(budgets(section.policies, setting)) > 1 for setting in CURVES):
        yield _simulated(section, "tradeoff", "14", "Deadlines met against training lost", draw_tradeoff(section))
    if section.bound is not None:
        return
    sliced = any(
        gpu.sevenths != 7 for configuration in section.configurations for gpu in section.world(configuration).gpus
    )
    if sliced:
        yield _simulated(section, "slices", "18", "Functions beside trainings on MIG slices", draw_slices(section))
    elif len(section.configurations) == 1:
        yield _simulated(section, "degradations", "7", "Degradation of functions", draw_degradations(section))
        yield _simulated(section, "requests", "8", "Submitted and admitted", draw_requests(section))
        yield _simulated(section, "admission", "9", "Admission by function", draw_admission(section))
        yield _simulated(section, "utilisation", "10", "Utilisation over time", draw_utilisation(section))
    else:
        yield _simulated(section, "configurations", "11", "Degradation by configuration", draw_configurations(section))
        yield _simulated(section, "requests", "12", "Submitted and admitted", draw_requests(section))
        yield _simulated(section, "gain", "13", "Utilisation by configuration", draw_gain(section))


def _simulated(section: Section, name: str, number: str, heading: str, figure: Figure) -> Picture:
    words = f"{heading}, simulated, preset {section.preset}"
    return Picture(
        name=f"{section.preset}-{name}", figure=number, heading=heading, words=words, measured=False, svg=svg(figure)
    )


def draw_measured(decisions: Measured | None, live: Measured | None) -> Iterator[Picture]:
    if decisions is not None:
        yield Picture(
            name="decisions",
            figure="17",
            heading="Time of a decision",
            words="Time of one decision, measured",
            measured=True,
            svg=svg(draw_decisions(decisions)),
        )
    if live is not None:
        yield Picture(
            name="live",
            figure="14",
            heading="Policies compared live",
            words="Policies compared live, measured",
            measured=True,
            svg=svg(draw_live(live)),
        )


def draw_sides(names: Sequence[str], sides: Sequence[tuple[bool, Callable[[str], Interval], str]]) -> Iterator[Picture]:
    """
    The pictures of a live comparison, one for each of ``sides``: (measured or not, ``<metric>.<policy>`` → value,
    caption).
    """
    for measured, value, caption in sides:
        kind = "measured" if measured else "simulated"
        heading = "Policies compared live" if measured else "The same arrivals in the simulator"
        yield Picture(
            name=f"live-{kind}",
            figure="14",
            heading=heading,
            words=f"DSR, GUI, SFD and SLD by policy, {kind}",
            measured=measured,
            svg=svg(draw_side(names, list(FIGURE_14), value, caption)),
        )


def styled(pictures: Iterator[Picture]) -> list[Picture]:
    """The pictures, drawn in the style of this project."""
    with mpl.rc_context(STYLE):
        return list(pictures)
