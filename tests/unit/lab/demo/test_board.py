"""What the demo shows while it runs."""

import pytest
from rich.console import Console

from lab.demo import board, figures
from lab.demo.board import Phase
from lab.demo.figures import RequestOutcome, Sent
from smore_client.types import Gpu


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
