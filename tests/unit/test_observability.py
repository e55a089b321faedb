"""Alert rules and boards of ``observability/``: ``python -m lab.bench.observability`` asks a Prometheus for them."""

from lab.bench.observability import boards, known, named, rules


def test_every_metric_of_rules_and_boards_is_served_by_a_process() -> None:
    names = {name for expression in (*rules(), *boards()) for name in named(expression)}
    assert len(names) > 30
    assert names - known() == set()
