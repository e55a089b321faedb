"""What is counted of a run of the demo."""

from dataclasses import asdict, replace

from lab.demo import figures, repeated
from lab.demo.figures import Iterations
from smore_client.types import Statement, Verdict

KEPT = Statement(
    id="j",
    budget=0.1,
    loss=0.05,
    loss_low=0.03,
    loss_high=0.07,
    verdict=Verdict.KEPT,
    summary="1.0 function-seconds harvested; training lost <= 7.0 % with 95 % confidence (budget 10 %): kept",
)


def counted(mean_s: float, half_width_s: float, said: str | None = None) -> dict[str, int]:
    control, functions = (Iterations(count=100, mean_s=mean, half_width_s=half_width_s) for mean in (1.0, mean_s))
    job = figures.job_figures("j", "g", None, control, functions, KEPT)
    job = job if said is None else replace(job, verdict=said)
    return {name: count for name, count in repeated.judged(asdict(job)).items() if count}


def test_statements_are_held_against_the_log() -> None:
    assert counted(1.05, 0.01) == {"kept": 1}
    assert counted(1.15, 0.05) == {"kept": 1, "kept_yet_slower": 1}
    # The demo says both.
    assert counted(1.3, 0.01) == {"not_proven": 1, "windows_contradicted": 1}
    assert counted(1.3, 0.01, "budget 10 % not proven: 8 closed windows to go") == {"not_proven": 1}
    assert counted(1.3, 0.01, "(budget 10 %): not kept") == {"not_kept": 1}
    # What no demo may say.
    assert counted(1.3, 0.01, "(budget 10 %): kept") == {"kept": 1, "kept_yet_slower": 1, "statements_wrong": 1}
