"""How it is measured how long others were stopped."""

from lab.bench.strangers import Seen, percentile_99


def test_a_span_counts_where_a_part_of_it_lies_in_the_time() -> None:
    seen = Seen(spans=[(0.0, 5.0), (5.0, 6.0), (6.0, 9.0)])
    assert seen.longest(0.0, 10.0) == 5.0
    assert seen.longest(5.0, 10.0) == 3.0, "what ended as it began is before it"
    assert seen.longest(5.5, 8.0) == 2.0, "nobody knows yet how long the last one takes"
    assert seen.longest(9.0, 10.0) == 0.0


def test_a_span_that_goes_on_counts_too() -> None:
    seen = Seen(spans=[(0.0, 1.0)], since=1.0)
    assert seen.longest(2.0, 11.0) == 10.0


def test_the_percentile_is_a_value_that_was_seen() -> None:
    assert percentile_99([float(n) for n in range(1, 101)]) == 99.0
    assert percentile_99([1.0, 2.0]) == 2.0
    assert percentile_99([]) == 0.0
