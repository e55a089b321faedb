"""The demo's pure parts: the traffic it makes, and what it says came of it."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from demo import board, figures, run, traffic
from demo.board import Phase
from demo.figures import RequestOutcome, Sent
from demo.traffic import Due
from smore import local
from smore.domain.function import TensorSpec
from smore.domain.invocation import State
from smore_client import ApiError, Unreachable
from smore_client.types import Function, Gpu, Invocation
from zoo import documents


class TestTraffic:
    def test_arrivals_have_the_rate_the_shares_and_an_order(self) -> None:
        counts = np.array([[3.0] * 200, [1.0] * 200])
        plan = traffic.arrivals(counts, 20.0, 0)
        assert plan == traffic.arrivals(counts, 20.0, 0)
        assert len(plan) == pytest.approx(4000, rel=0.05)
        assert sum(due.function == 0 for due in plan) / len(plan) == pytest.approx(0.75, rel=0.05)
        assert [due.at_s for due in plan] == sorted(due.at_s for due in plan)
        assert 0 <= plan[0].at_s <= plan[-1].at_s < 200

    def test_a_second_without_counts_has_no_arrivals(self) -> None:
        plan = traffic.arrivals(np.array([[0.0, 1.0, 0.0]]), 50.0, 0)
        assert plan
        assert all(1 <= due.at_s < 2 for due in plan)

    def test_the_typical_part_has_the_average_number_and_begins_at_zero(self) -> None:
        busy = [Due(at_s=second / 10, function=0) for second in range(100)]
        calm = [Due(at_s=10.0 + second, function=1) for second in range(50)]
        plan = [*busy, *calm]
        part = traffic.typical_part(plan, 60, 20)  # 50 on average; from the 7th second on 30 + 17
        assert len(part) == 47
        assert part[0].at_s >= 0
        assert part[-1].at_s < 20
        assert traffic.typical_part(plan, 60, 60) == plan


class TestTrace:
    def write(self, folder: Path, *, durations: bool) -> Path:
        rows = ["HashOwner,HashApp,HashFunction,Trigger,480,481,482"]
        rows += [f"o,a,f{i},http,{i},0,{10 * i}" for i in range(1, 5)]
        (folder / "invocations.csv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
        if durations:
            averages = ["HashOwner,HashApp,HashFunction,Average", "o,a,f1,40", "o,a,f2,30", "o,a,f3,20", "o,a,f4,10"]
            (folder / "durations.csv.gz").write_bytes(gzip.compress("\n".join(averages).encode()))
        return folder / "invocations.csv.gz"

    def test_slow_functions_of_the_trace_go_to_the_slow_ones_here(self, tmp_path: Path) -> None:
        counts = traffic.trace_counts(self.write(tmp_path, durations=True), 2, 3)
        np.testing.assert_allclose(counts, np.array([[7, 0, 70], [3, 0, 30]]) / 110)

    def test_without_durations_they_go_by_name(self, tmp_path: Path) -> None:
        counts = traffic.trace_counts(self.write(tmp_path, durations=False), 2, 1)
        np.testing.assert_allclose(counts, [[0.3], [0.7]])

    def test_a_trace_that_is_too_short_or_silent_is_refused(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, durations=False)
        with pytest.raises(ValueError, match="4 columns of minutes are needed, the file has 3"):
            traffic.trace_counts(path, 2, 4)
        plain = tmp_path / "plain.csv"
        plain.write_text("HashFunction,1\nf,0\n")
        with pytest.raises(ValueError, match="no invocation in these minutes"):
            traffic.trace_counts(plain, 1, 1)

    def test_the_publishers_file(self) -> None:
        counts = traffic.trace_counts(traffic.TRACE, len(traffic.FUNCTIONS), 60)
        assert counts.shape == (6, 60)
        assert counts.sum() == pytest.approx(1)


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

        found = figures.job_figures("j", "cpu0", took(1.0), took(1.1), took(1.21))
        assert found.tax == pytest.approx(0.1)
        assert found.degradation == pytest.approx(0.1)
        assert figures.job_figures("j", "cpu0", None, took(1.0), took(1.2)).tax is None

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
            jobs=[figures.job_figures("train-a", "cpu0", None, took, took)],
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


def test_progress_waits_for_a_phase_that_takes_longer() -> None:
    progress = board.Progress({Phase.CONTROL: 10.0, Phase.TRAFFIC: 60.0})
    now = progress._began
    assert progress.done_s(now + 4) == pytest.approx(4)
    assert progress.done_s(now + 99) == 10
    progress.enter(Phase.TRAFFIC)
    assert progress.done_s(progress._began + 1) == pytest.approx(11)
    assert progress.total_s == 70


def test_the_board_can_be_drawn_in_every_phase() -> None:
    live = board.Board(progress=board.Progress({Phase.TRAFFIC: 60.0}))
    console = Console(width=160, force_terminal=False)
    for _ in range(2):
        with console.capture() as capture:
            console.print(live)
        assert "traffic" in capture.get()
        live.sent += [Sent(function="echo", latency_s=0.1, outcome=RequestOutcome.SUCCEEDED)]
        live.samples.append(figures.Sample(at=0.0, gpus=(Gpu(id="cpu0", utilisation=0.5),)))
        live.recent["train"] = [0.1]
    assert "cpu0" in capture.get()


def test_an_input_has_one_row_and_indices_that_every_table_has() -> None:
    rng = np.random.default_rng(0)
    specs = [
        TensorSpec(name="image", datatype="FP32", shape=(-1, 3, 8)),
        TensorSpec(name="ids", datatype="INT64", shape=(-1, 4)),
        TensorSpec(name="sound", datatype="FP16", shape=(-1, -1)),
    ]
    made = traffic.sample_input(Function(name="f", inputs=specs), rng)  # type: ignore[arg-type]
    assert isinstance(made, dict)
    assert (made["image"].shape, made["image"].dtype) == ((1, 3, 8), np.float32)
    assert made["sound"].shape == (1, traffic.FREE_AXIS)
    assert set(np.unique(made["ids"])) <= {0, 1}
    assert traffic.sample_input(Function(name="f"), rng) == {"x": [1, 2, 3, 4, 5, 6, 7, 8], "id": "abc"}


def test_a_job_for_each_of_the_first_partitions() -> None:
    partitions = local.plan_partitions(range(5))
    made = run.trainings(partitions, 600)
    assert [one.partition.gpu for one in made] == ["cpu0", "cpu1"]
    assert made[0].argv[:3] == ("zoo.train", "--model", "resnet50")
    assert made[0].workload == "resnet50/cpu/training/8"
    assert run.trainings(partitions[:1], 600) == made[:1]


def test_on_a_gpu_the_models_have_the_papers_size() -> None:
    (made,) = run.trainings([local.Partition(gpu="gpu0", kind="cuda", device="GPU-a")], 600)
    assert " ".join(made.argv).endswith("--preset paper --batch 64 --seconds 600 --device cuda")
    assert made.workload == "resnet50/paper/training/64"
    assert documents.document("resnet50", "paper")["spec"] | {"slo": None} == documents.document("resnet50")["spec"] | {
        "slo": None,
        "entrypoint": "zoo.resnet50:PaperFunction",
        "resources": {"gpu_memory": "2GiB"},
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 224, 224]}],
        "profile": documents.PAPER_PROFILE | {"model": "resnet50/paper"},
    }
    # No model of a card has one size.
    assert documents.document("silero", "paper") == documents.document("silero")


def test_arguments() -> None:
    assert run.arguments([]).seconds == 60
    with pytest.raises(SystemExit):
        run.arguments(["--seconds", "0"])
