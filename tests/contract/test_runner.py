"""
One contract of the runner, over a runner's process and InProcessRunner: load, batches, a handler's errors, unload.

The process is the real runner with a stand-in for torch, which it would take seconds to import.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from smore.domain import tensors
from smore.domain.invocation import Cause
from smore.handler import Handler
from smore.testing import InProcessRunner, RunFailed
from tests.support import handlers
from worker.frames import Item, Load, Results
from worker.runner.runner_handle import Runner, RunnerDied, RunnerFailed

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


class Running(Protocol):
    """A runner for one handler, in values."""

    def load(self, device: str = "cpu") -> None: ...
    def predict(self, inputs: Sequence[Any]) -> list[Any]: ...
    def unload(self) -> None: ...


class ProcessRunner:
    """A runner's process, which is spoken to in values as InProcessRunner is."""

    def __init__(self, runner: Runner, handler: type[Handler]) -> None:
        self._runner, self._handler = runner, handler
        self._tensors = False

    def load(self, device: str = "cpu") -> None:
        request = Load(
            entrypoint=f"{self._handler.__module__}:{self._handler.__name__}",
            device=device,
            memory_mib=500.0,
            label="f",
            results=Results(one=1 << 20, together=1 << 20),
        )
        try:
            self._tensors = self._runner.load(request, PATIENCE_S).tensors
        except RunnerFailed as error:
            raise RunFailed(error.cause, str(error)) from error

    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        payloads = [json.dumps(plain(value)).encode() for value in inputs]
        items = [
            Item(encoding="json", accept="raw" if self._tensors else "json", rows=1, length=len(payload))
            for payload in payloads
        ]
        try:
            ran = self._runner.predict(items, payloads, "", PATIENCE_S)
        except RunnerFailed as error:
            raise RunFailed(error.cause, str(error)) from error
        except RunnerDied as error:
            raise RuntimeError("no handler is loaded") from error
        for answer in ran.answers:
            if answer.form == "error":
                raise RunFailed(Cause(answer.cause), answer.message)
        return [
            arrays(answer.shapes, result) if self._tensors else json.loads(result)
            for answer, result in zip(ran.answers, ran.results, strict=True)
        ]

    def unload(self) -> None:
        self._runner.unload()


def plain(value: Any) -> Any:
    """Arrays as lists."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def arrays(shapes: str, body: bytes) -> dict[str, Any]:
    types = {"FP32": np.float32, "INT32": np.int32}
    sections = tensors.sections(shapes, body)
    return {
        section.name: np.frombuffer(body, types[section.datatype], int(np.prod(section.shape)), section.start).reshape(
            section.shape
        )
        for section in sections
    }


@contextmanager
def in_process(handler: type[Handler]) -> Iterator[Running]:
    yield InProcessRunner(handler)


@contextmanager
def in_own_process(handler: type[Handler]) -> Iterator[Running]:
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, str(ROOT / "tests/support/fake_torch.py"), str(theirs.fileno())]
    with (
        ours,
        subprocess.Popen(argv, pass_fds=[theirs.fileno()], env=environment, stderr=subprocess.DEVNULL) as process,
    ):
        theirs.close()
        runner = Runner(process.pid, ours, lambda _, number: process.send_signal(number))
        # As a zygote does for its runners: it says when one has ended.
        end = threading.Thread(target=lambda: runner.gone(process.wait()))
        end.start()
        try:
            yield ProcessRunner(runner, handler)
        finally:
            process.send_signal(signal.SIGKILL)
            end.join()


RUNNERS = pytest.mark.parametrize("running", [in_own_process, in_process])


@RUNNERS
def test_a_batch_of_values_is_one_run_with_an_output_for_each(running: Any) -> None:
    with running(handlers.Fragile) as runner:
        runner.load()
        outputs = runner.predict([{"do": ""}] * 3)
        assert [output["batch"] for output in outputs] == [3, 3, 3]


@RUNNERS
def test_rows_of_several_invocations_run_together_and_come_back_apart(running: Any) -> None:
    with running(handlers.Sum) as runner:
        runner.load()
        ones = np.ones((2, 3), np.float32)
        first, second = runner.predict([{"a": ones, "k": np.full((2, 1), 2)}, {"a": ones[:1], "k": np.full((1, 1), 5)}])
        assert first["total"].tolist() == [[6.0], [6.0]] and first["rows"].tolist() == [3, 3]
        assert second["total"].tolist() == [[15.0]] and second["rows"].tolist() == [3]


@RUNNERS
def test_what_a_handler_raises_fails_its_batch_and_the_next_one_runs(running: Any) -> None:
    with running(handlers.Fragile) as runner:
        runner.load()
        with pytest.raises(RunFailed, match="ValueError: it was asked to") as failed:
            runner.predict([{"do": ""}, {"do": "raise"}])
        assert failed.value.cause is Cause.HANDLER_ERROR
        with pytest.raises(RunFailed, match="the output is not JSON") as failed:
            runner.predict([{"do": "set"}])
        assert failed.value.cause is Cause.BAD_OUTPUT
        assert runner.predict([{"do": ""}])[0]["batch"] == 1


@RUNNERS
def test_outputs_with_another_number_of_rows_are_refused(running: Any) -> None:
    with running(handlers.WrongRows) as runner:
        runner.load()
        example = {"a": np.ones((1, 3), np.float32)}
        assert runner.predict([example])[0]["a"].shape == (1, 3)
        with pytest.raises(RunFailed, match="2 rows are expected") as failed:
            runner.predict([example, example])
        assert failed.value.cause is Cause.BAD_OUTPUT


@RUNNERS
def test_a_load_that_fails_says_why(running: Any) -> None:
    with running(handlers.Broken) as runner, pytest.raises(RunFailed, match="there are no weights") as failed:
        runner.load()
    assert failed.value.cause is Cause.HANDLER_ERROR


@RUNNERS
def test_nothing_runs_after_the_unload(running: Any) -> None:
    with running(handlers.Fragile) as runner:
        runner.load()
        runner.unload()
        with pytest.raises(RuntimeError, match="no handler is loaded"):
            runner.predict([{"do": ""}])
