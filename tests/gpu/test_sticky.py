"""After an error that loses the context, no further call of that process works: it must not serve again."""

from collections.abc import Callable

import pytest

from smore.domain.invocation import Cause
from tests.support.inference import ask
from worker.runner.runner_handle import Runner, RunnerFailed


def test_a_lost_context_ends_the_runner_and_the_next_one_answers(runner: Callable[..., Runner]) -> None:
    struck = runner("Sticky")
    assert ask(struck, b"3") == b"3.0"
    with pytest.raises(RunnerFailed) as failed:
        ask(struck, b"-1")
    assert failed.value.cause is Cause.CONTEXT_LOST
    assert struck.ended.wait(30)
    assert ask(runner("Sticky"), b"4") == b"4.0"


def test_an_error_that_is_pythons_alone_ends_nothing(runner: Callable[..., Runner]) -> None:
    one = runner("Sum")
    with pytest.raises(RunnerFailed) as failed:
        ask(one, b'"three"')
    assert failed.value.cause is Cause.HANDLER_ERROR
    assert ask(one, b"3") == b"3.0"
