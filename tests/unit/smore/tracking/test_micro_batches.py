"""tracker.micro_batches: what is cut and how, and what happens with a batch that cannot be."""

import logging
from collections import UserDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import smore
from smore.tracking.micro_batches import MOST, VARIABLE
from smore.tracking.ring import Tracker

Asked = Callable[[object], Tracker]


class Pair(NamedTuple):
    image: Any
    label: Any


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A tracker of a training that the platform asks for so many micro-batches."""

    def tracker(count: object) -> Tracker:
        monkeypatch.setenv(VARIABLE, str(count))
        return smore.track()

    return tracker


def test_outside_the_platform_a_batch_is_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    batch = object()
    assert list(smore.track().micro_batches(batch)) == [(batch, 1.0)]


def test_every_row_is_in_one_part_and_weights_are_shares_of_the_rows(asked: Asked) -> None:
    rows = np.arange(10)
    parts = list(asked(4).micro_batches(rows))
    assert [part.tolist() for part, _ in parts] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert [weight for _, weight in parts] == [0.2, 0.3, 0.2, 0.3]


def test_tensors_are_cut_wherever_they_lie_and_the_rest_goes_into_every_part(asked: Asked) -> None:
    rows = np.arange(4)
    batch = (
        {"x": rows, "scale": 0.5, "none": None, "zero": np.float32(3)},
        Pair(rows[:, None], [rows, "text"]),
        UserDict(ids=rows),
        ("a", "b", "c", "d"),
        ["two", "items"],
    )
    (first, _), (second, _) = asked(2).micro_batches(batch)
    assert first[0]["x"].tolist() == [0, 1] and second[0]["x"].tolist() == [2, 3]
    assert first[0]["scale"] == 0.5 and first[0]["none"] is None and first[0]["zero"] == 3
    assert isinstance(second[1], Pair) and second[1].image.tolist() == [[2], [3]]
    assert second[1].label[0].tolist() == [2, 3] and second[1].label[1] == "text"
    assert second[2]["ids"].tolist() == [2, 3]
    assert (first[3], second[3]) == (("a", "b"), ("c", "d"))
    assert first[4] == second[4] == ["two", "items"]


def test_a_list_of_rows_is_cut(asked: Asked) -> None:
    assert [part for part, _ in asked(2).micro_batches(["a", "b", "c"])] == [["a"], ["b", "c"]]


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (np.zeros(3), "the batch has 3 rows, fewer than 4"),
        ((np.zeros(8), np.zeros(9)), "the tensors of the batch have 8 and 9 rows on axis 0"),
        (SimpleNamespace(x=np.zeros(8)), "the tensors of the batch have no rows on axis 0"),
        (np.float32(1), "the tensors of the batch have no rows on axis 0"),
    ],
)
def test_a_batch_that_cannot_be_cut_is_run_as_a_whole_and_the_log_says_so_once(
    asked: Asked, caplog: pytest.LogCaptureFixture, batch: Any, why: str
) -> None:
    tracker = asked(4)
    with caplog.at_level(logging.WARNING, "smore.track"):
        for _ in range(3):
            ((part, weight),) = tracker.micro_batches(batch)
            assert part is batch and weight == 1.0
    assert [record.getMessage() for record in caplog.records] == [
        f"a batch is run as a whole and not in 4 micro-batches: {why}"
    ]
    # Another batch may be large enough.
    assert len(list(tracker.micro_batches(np.zeros(4)))) == 4


@pytest.mark.parametrize("named", ["", "0", "-2", "2.0", "two", "²", MOST + 1])
def test_a_number_of_micro_batches_that_is_none_is_said(
    asked: Asked, caplog: pytest.LogCaptureFixture, named: object
) -> None:
    with caplog.at_level(logging.WARNING, "smore.track"):
        tracker = asked(named)
    assert list(tracker.micro_batches("batch")) == [("batch", 1.0)]
    assert VARIABLE in caplog.text
