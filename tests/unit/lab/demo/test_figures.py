"""The demo's figures, and the report that shows them."""

import pytest
from rich.console import Console

from lab.demo import board, figures
from lab.demo.figures import RequestOutcome, Sent
from smore.domain.invocation import State
from smore_client import ApiError, Unreachable
from smore_client.types import Gpu, Invocation, Statement, Verdict


def refused(status: int, code: str, state: str | None = None) -> ApiError:
    return ApiError(status, code, "", {} if state is None else {"state": state})


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (Invocation(id="1", state=State.SUCCEEDED), RequestOutcome.SUCCEEDED),  # type: ignore[arg-type]
        (refused(429, "slo_infeasible"), RequestOutcome.REJECTED),
        (refused(429, "queue_full"), RequestOutcome.REJECTED),
        (refused(429, "slo_infeasible", "rejected"), RequestOutcome.REJECTED),
        (refused(400, "deadline_expired"), RequestOutcome.EXPIRED),
        (refused(504, "deadline_expired", "expired"), RequestOutcome.EXPIRED),
        (refused(502, "crashed", "failed"), RequestOutcome.FAILED),
        (Unreachable("gone"), RequestOutcome.FAILED),
    ],
)
def test_outcomes(result: Invocation | ApiError | Unreachable, outcome: RequestOutcome) -> None:
    assert figures.outcome_of(result) is outcome


STATEMENT = Statement(
    id="j",
    budget=0.1,
    loss=0.05,
    loss_low=0.03,
    loss_high=0.07,
    verdict=Verdict.KEPT,
    summary="12.3 function-seconds harvested; training lost <= 7.0 % with 95 % confidence (budget 10 %): kept",
)


def test_a_verdict_is_the_statements_unless_the_jobs_own_log_contradicts_it() -> None:
    def took(mean_s: float) -> figures.Iterations:
        return figures.Iterations(count=100, mean_s=mean_s, half_width_s=0.01)

    kept = "training lost <= 7.0 % with 95 % confidence (budget 10 %): kept"
    for control, functions in ((took(1.0), took(1.05)), (None, took(1.5)), (took(1.0), took(1.11))):
        assert figures.verdict(STATEMENT, control, functions) == kept
    assert figures.verdict(STATEMENT, took(1.0), took(1.3)).startswith("not proven: ")
    summary = "0.0 function-seconds harvested; budget 10 % not proven: 8 closed windows to go"
    few = Statement(id="j", budget=0.1, verdict=Verdict.NOT_PROVEN, summary=summary)
    assert figures.verdict(few, took(1.0), took(1.3)) == "budget 10 % not proven: 8 closed windows to go"


class TestFigures:
    SENT = (
        *(Sent(function="a", latency_s=i / 1e3, outcome=RequestOutcome.SUCCEEDED, cold=i == 1) for i in range(1, 101)),
        Sent(function="a", latency_s=9.0, outcome=RequestOutcome.REJECTED),
        Sent(function="a", latency_s=9.0, outcome=RequestOutcome.EXPIRED),
        Sent(function="a", latency_s=9.0, outcome=RequestOutcome.FAILED),
    )

    def test_every_request_is_counted_once(self) -> None:
        found = figures.function_figures("a", self.SENT, {"a": 0.0905})
        assert (found.submitted, found.succeeded, found.rejected, found.expired, found.failed) == (103, 100, 1, 1, 1)
        assert found.dsr == pytest.approx(90 / 103)
        assert found.p50_ms == pytest.approx(50.5)
        assert found.p99_ms == pytest.approx(99.01)
        assert found.cold_starts == 1

    def test_nothing_sent_has_no_ratio(self) -> None:
        found = figures.function_figures("a", [], {})
        assert (found.submitted, found.dsr, found.p50_ms) == (0, None, None)
        assert figures.percentile([], 50) is None

    def test_only_iterations_wholly_within_a_phase_count(self) -> None:
        steps = [(float(end), 1.0) for end in range(1, 8)]
        found = figures.iterations([*steps, (5.0, 3.0)], 2.0, 5.0)
        assert found is not None
        assert found.count == 4
        assert found.mean_s == pytest.approx(1.5)
        assert found.half_width_s == pytest.approx(1.96 * 1.0 / 2)
        assert figures.iterations(steps, 2.0, 3.0) is None

    def test_tax_is_against_alone_and_degradation_against_control(self) -> None:
        def took(mean_s: float) -> figures.Iterations:
            return figures.Iterations(count=9, mean_s=mean_s, half_width_s=0.0)

        found = figures.job_figures("j", "cpu0", took(1.0), took(1.1), took(1.21), STATEMENT)
        assert found.tax == pytest.approx(0.1)
        assert found.degradation == pytest.approx(0.1)
        assert figures.job_figures("j", "cpu0", None, took(1.0), took(1.2), STATEMENT).tax is None

    def samples(self) -> list[figures.Sample]:
        def gpu(used: float, by_functions: float) -> tuple[Gpu, ...]:
            return (
                Gpu(id="cpu0", utilisation=used, function_utilisation=by_functions, utilisation_counter="cpu time"),
            )

        return [
            figures.Sample(at=at, gpus=gpu(used, used / 2)) for at, used in ((1, 0.2), (2, 0.4), (5, 0.8), (9, 1.0))
        ]

    def test_utilisation_by_phase(self) -> None:
        (found,) = figures.gpu_figures(self.samples(), (1, 2), (4, 6))
        assert (found.gpu, found.counter) == ("cpu0", "cpu time")
        assert found.without_functions == pytest.approx(0.3)
        assert (found.with_functions, found.by_functions) == (0.8, 0.4)
        (unseen,) = figures.gpu_figures(self.samples(), (20, 21), (4, 6))
        assert unseen.without_functions is None

    def report(self) -> figures.DemoReport:
        of_a = figures.function_figures("a", self.SENT, {"a": 0.0905})
        took = figures.Iterations(count=9, mean_s=0.1, half_width_s=0.001)
        return figures.DemoReport(
            traffic="test",
            seconds=60,
            rate=20,
            seed=0,
            functions=[of_a],
            total=of_a,
            control=figures.function_figures("control", [], {}),
            gpus=figures.gpu_figures(self.samples(), (1, 2), (4, 6)),
            jobs=[figures.job_figures("train-a", "cpu0", None, took, took, STATEMENT)],
        )

    def test_the_reports_figures_leave_out_what_is_not_known(self) -> None:
        figures = self.report().figures()
        assert figures["submitted"] == 103
        assert figures["train-a_degradation"] == 0
        assert figures["train-a_iteration_control_ms"] == pytest.approx(100)
        assert figures["cpu0_utilisation_with_functions"] == 0.8
        assert not {"train-a_tax", "train-a_iteration_alone_ms", "control_refused"} & set(figures)

    def test_the_report_for_people_shows_them(self) -> None:
        console = Console(width=160, force_terminal=False)
        with console.capture() as capture:
            console.print(board.tables(self.report()))
        shown = capture.get()
        assert all(text in shown for text in ("100.0 ± 1.0 ms", "+0.0 %", "0.874", "80 %"))
