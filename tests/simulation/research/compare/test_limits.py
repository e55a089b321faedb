"""What a comparison says where trainings lost more than a policy's limit."""

from pathlib import Path

import pytest

from lab.research.compare.__main__ import main
from lab.research.compare.limits import exceeded
from lab.simulation.world import load


def said(policy: str, loss: float, seconds: float) -> str:
    """Of runs in the preset `small`, of which each loses the same."""
    values = {"train_loss": [loss, loss], "simulated_s": [seconds, seconds]}
    return " ".join(exceeded(load("small").worlds, {"": {policy: values}}))


def test_runs_too_short_for_a_token_bucket_are_named_as_the_cause() -> None:
    words = said("smore-product", 0.259, 0.3)

    assert words.startswith("smore-product: trainings lost 25.9 % of their iterations, more than the limit of 9.1 %")
    assert "Runs of 0.3 s are too short" in words and "tokens of 2 s (145 ms of training time)" in words
    # With a bucket that holds a hundredth of a second it is not the length.
    words = said("smore-product:account_s=0.01", 0.259, 0.3)
    assert "allows 7.5 %" in words and "more than was predicted" in words


def test_a_limit_on_what_is_predicted_is_not_the_buckets() -> None:
    assert "It limits what is predicted" in said("smore", 0.12, 0.3)
    assert "too short" in said("./mine.py:Mine", 0.12, 0.3)


@pytest.mark.parametrize(
    ("policy", "loss"), [("smore-product", 0.09), ("random", 0.9), ("smore-product-b20", 0.16), ("gone-since", 0.9)]
)
def test_nothing_is_said_where_the_limit_was_kept_or_there_is_none(policy: str, loss: float) -> None:
    assert said(policy, loss, 0.3) == ""


def test_terminal_and_page_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exact = ["--predictor", "kind=exact,updates=0", "--workers", "1", "--seeds", "1"]
    command = ["compare", "--preset", "small", "--policies", "smore-product", *exact, "--out", str(tmp_path)]
    assert main(command) == 0

    for shown in (capsys.readouterr().out, (tmp_path / "index.html").read_text()):
        assert "smore-product: trainings lost" in shown and "too short for it" in shown
