"""The demo's traffic: when which function is called, and with what input."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from lab.demo import traffic
from lab.demo.traffic import Due
from smore.domain.function import TensorSpec
from smore_client.types import Function


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
