"""Forecasters: what they say of traces whose next minute is known, and that they survive what is not a number."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lab.research.prewarm.intermittent import Intermittent
from lab.research.prewarm.scores import brier, mase
from lab.research.prewarm.shared import Shared
from ml.forecast.forecaster import Forecaster, Renewal, Seasonal, rolling
from ml.forecast.lstm import WINDOW, Cells, Grouped, LongShort

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def made(name: str) -> Forecaster:
    kinds: dict[str, Callable[[], Forecaster]] = {
        "seasonal": Seasonal,
        "renewal": Renewal,
        "intermittent": Intermittent,
        "grouped": lambda: Grouped(span=60, hidden=4, epochs=1),
        "long-short": lambda: LongShort(epochs=1),
        "shared": lambda: Shared(hidden=4, epochs=1),
    }
    return kinds[name]()


NAMES = ["seasonal", "renewal", "intermittent", "grouped", "long-short", "shared"]


@pytest.mark.parametrize("name", NAMES)
def test_bytes_hold_all_of_it(name: str) -> None:
    counts = np.random.default_rng(0).poisson(0.7, (3, 50)).astype(float)
    one = made(name)
    one.fit(counts)
    other = type(one).loads(one.dumps())
    for forecaster in (one, other):
        forecaster.update(np.array([1.0, 0.0, 2.0]))
    for mine, theirs in zip(one.forecast(3), other.forecast(3), strict=True):
        assert mine.shape == (3, 3)
        np.testing.assert_allclose(mine, theirs)
    with pytest.raises(ValueError, match="no"):
        type(one).loads(b"something else")


@pytest.mark.parametrize("name", NAMES)
def test_minutes_that_nobody_counted_do_no_harm(name: str) -> None:
    counts = np.random.default_rng(1).poisson(0.7, (3, 50)).astype(float)
    counts[:, 20:25] = np.nan
    counts[2] = np.nan
    forecaster = made(name)
    forecaster.fit(counts)
    forecaster.update(np.array([np.nan, -1.0, np.inf]))
    mean, any_ = forecaster.forecast(2)
    known = mean[:2][np.isfinite(mean[:2])]
    assert (known >= 0).all()
    finite = any_[np.isfinite(any_)]
    assert ((finite >= 0) & (finite <= 1)).all()


def test_renewal_meets_what_comes_on_the_clock() -> None:
    counts = np.zeros((1, 200))
    counts[0, ::5] = 3.0
    mean, any_ = rolling(Renewal(), counts, 150)
    due = counts[0, 150:] > 0
    assert any_[0, 150:][due].min() > 0.7
    assert any_[0, 150:][~due].max() < 0.3
    assert mean[0, 150:][due].min() > 1.5


def test_seasonal_finds_the_period() -> None:
    counts = np.tile([4.0, 0.0, 0.0, 1.0, 0.0, 0.0], 30)[None, :]
    mean, _ = rolling(Seasonal(), counts, 120)
    np.testing.assert_array_equal(mean[:, 120:], counts[:, 120:])


def test_intermittent_demand_is_its_rate() -> None:
    counts = (np.random.default_rng(2).random((1, 2000)) < 0.2).astype(float)
    forecaster = Intermittent()
    forecaster.fit(counts)
    assert 0.05 < forecaster.forecast()[1][0, 0] < 0.5


def test_every_function_of_a_group_learns_its_own() -> None:
    """One is always busy, the other never; together they are forecast as they would be alone."""
    counts = np.stack([np.full(60, 9.0), np.zeros(60)])
    both, alone = Grouped(span=60, hidden=4, epochs=3), Grouped(span=60, hidden=4, epochs=3)
    both.fit(counts)
    alone.fit(counts[:1])
    np.testing.assert_allclose(both.forecast()[0][0], alone.forecast()[0][0], rtol=1e-4)
    np.testing.assert_allclose(both.forecast()[0][:, 0], [9.0, 0.0], atol=0.5)


def test_a_function_keeps_its_weights_when_others_come_and_go() -> None:
    counts = np.stack([np.full(60, 9.0), np.zeros(60), np.tile([5.0, 0.0], 30)])
    model = LongShort(long_span=60, short_span=60, epochs=3)
    model.fit(counts)
    before = model.forecast()[0][[2, 0]]
    model.rearrange([2, -1, 0])
    # Nothing new is learned in no epochs: what is kept says what it said.
    model.long._knobs["warm"] = model.short._knobs["warm"] = 0
    model.fit(counts[[2, 1, 0]])
    np.testing.assert_allclose(model.forecast()[0][[0, 2]], before, rtol=1e-5)


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.5, [7.0, 2.0]), (0.25, [5.5, 3.0]), (1.0, [10.0, 0.0]), (0.0, [4.0, 4.0])]
)
def test_the_blend_of_long_and_short_by_hand(alpha: float, expected: list[float]) -> None:
    """Eq. 8: alpha x 10 + (1 - alpha) x 4 of the first function, alpha x 0 + (1 - alpha) x 4 of the second."""
    model = LongShort(alpha=alpha)
    long, short = (np.array([[10.0], [0.0]]), np.zeros((2, 1))), (np.array([[4.0], [4.0]]), np.zeros((2, 1)))
    model.long.forecast = lambda horizon=1: long  # type: ignore[method-assign]
    model.short.forecast = lambda horizon=1: short  # type: ignore[method-assign]
    mean, chance = model.forecast()
    np.testing.assert_allclose(mean[:, 0], expected)
    np.testing.assert_allclose(chance[:, 0], 1.0 - np.exp(-np.array(expected)))


def test_compiled_cells_say_what_the_trained_ones_say() -> None:
    """Weights that differ from function to function, inputs far out in the flat parts of the gates too."""
    cells = Cells(5, hidden=32)
    random = torch.Generator().manual_seed(3)
    for one in cells.parameters:
        one += torch.randn(one.shape, generator=random)
    windows = np.random.default_rng(4).normal(0.0, 3.0, (5, WINDOW))
    with torch.no_grad():
        first = cells(torch.from_numpy(windows).float().unsqueeze(1))
        second = cells(torch.cat([torch.from_numpy(windows).float(), first], dim=1).unsqueeze(1))
    found = cells.ahead(windows, 2)
    np.testing.assert_allclose(found[:, :1], first.numpy(), atol=2e-4)
    np.testing.assert_allclose(found[:, 1:], second.numpy(), atol=2e-4)


def test_long_beats_short_on_a_period_and_short_beats_long_after_a_change() -> None:
    """
    The blend is never worse than both. Day follows night again, and the short model has seen the
    night alone.
    """
    day, night = np.tile([30.0, 1.0, 1.0], 20), np.full(60, 2.0)
    steady = np.concatenate([day, night, day, night, day[:33]])
    changed = np.concatenate([np.tile([200.0, 100.0], 100), np.tile([3.0, 1.0], 30)])

    def errors(counts: np.ndarray) -> dict[str, float]:
        model = LongShort(long_span=len(counts), short_span=40, epochs=30)
        model.fit(counts[None, :-20])
        found: dict[str, list[float]] = {"long": [], "short": [], "blend": []}
        for came in counts[-20:]:
            for name, one in (("long", model.long), ("short", model.short), ("blend", model)):
                found[name].append(abs(float(one.forecast()[0][0, 0]) - came))
            model.update(np.array([came]))
        return {name: float(np.mean(values)) for name, values in found.items()}

    periodic, after = errors(steady), errors(changed)
    assert periodic["long"] < periodic["short"]
    assert after["short"] < after["long"]
    for one in (periodic, after):
        assert one["blend"] <= max(one["long"], one["short"]) + 1e-9


def test_a_backtest_tells_good_from_bad() -> None:
    counts = np.array([[1.0, 0.0, 1.0, 0.0]])
    assert brier(counts, counts)[0] == 0.0
    assert brier(1 - counts, counts)[0] == 1.0
    assert np.isnan(brier(np.full((1, 4), np.nan), counts)[0])


def test_an_error_is_scaled_by_what_as_before_would_have_missed() -> None:
    counts = np.array([[0.0, 2.0, 0.0, 2.0, 5.0], [1.0, 1.0, 1.0, 1.0, 9.0]])
    mean = np.array([[0.0, 0.0, 0.0, 1.0, 3.0], [0.0] * 5])
    found = mase(mean, counts, 3)
    assert found[0] == pytest.approx(1.5 / 2.0)
    assert np.isnan(found[1])
