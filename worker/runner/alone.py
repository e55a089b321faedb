"""
A handler in a process of its own, without a platform: the program behind ``smore run``.

It reads one :class:`LocalRun` (JSON) from standard input and writes one :class:`AloneReport` (JSON) to standard output; what
the handler prints goes to standard error. The document and the inputs are checked as in the gateway
(smore/definition/), the handler is loaded and run as in a runner (worker/runner/runner.py), and its answers are checked
as in a worker (worker/runner/answers.py). There is no sandbox, no limit of memory, and no environment of its own: it has
the packages of the interpreter that runs it.
"""

import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import msgspec
from packaging.requirements import Requirement

from smore.definition.document import read_document
from smore.definition.inputs import Payload, from_json
from smore.definition.outputs import misfit
from smore.domain.errors import CallerError
from smore.domain.function import FunctionSpec
from smore.domain.invocation import Cause, Encoding
from smore.process.settings import QueueSettings
from worker import frames
from worker.frames import BadFrame, Item
from worker.runner import answers, runner
from worker.runner.resident import Resident


class LocalRun(msgspec.Struct, frozen=True):
    """
    What to run: ``document``: the content of the function.yaml; ``folder``: what the entrypoint is imported from, "" =
    it is a module of the platform; ``inputs``: the input of each invocation, None = one with the handler's example;
    ``device``: "cpu" or "cuda".
    """

    document: Any
    folder: str
    inputs: list[Any] | None
    device: str = "cpu"


class InvocationOutcome(msgspec.Struct, frozen=True):
    """What came of one invocation: its output, or the ``cause`` and ``message`` that its caller would get."""

    output: msgspec.Raw = msgspec.Raw(b"null")
    cause: str = Cause.OK
    message: str = ""
    run_ms: float = 0.0


class AloneReport(msgspec.Struct, frozen=True):
    """
    What came of a :class:`LocalRun`. ``cause``: why nothing ran, "" = the handler was loaded; ``phases_ms``: milliseconds
    of the load by phase; ``deadline_ms``: the function's; ``missing``: requirements that this interpreter lacks.
    """

    cause: str = ""
    message: str = ""
    phases_ms: dict[str, float] = {}
    deadline_ms: float = 0.0
    missing: list[str] = []
    outcomes: list[InvocationOutcome] = []


class _Refused(Exception):
    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """A loaded handler, with the revision that its canary has described."""

    spec: FunctionSpec
    resident: Resident
    phases_ms: dict[str, float]

    def run(self, items: Sequence[Item], body: bytes) -> tuple[list[frames.Answer], list[bytes], float]:
        """The answers of one batch, their bytes, and the seconds that it took. Raises _Refused."""
        began = time.perf_counter()
        try:
            predicted, chunks = self.resident.predict(items, memoryview(body))
            took_s = time.perf_counter() - began
            results = answers.results(items, predicted.answers, bytearray(b"".join(chunks)))
        except BadFrame as error:
            raise _Refused(Cause.CRASHED, f"It broke the protocol: {error}.") from error
        except Exception as error:
            raise _failed(error) from error
        if took_s > self.spec.timeout_s:
            raise _Refused(Cause.TIMED_OUT, f"It ran longer than its limit of {self.spec.timeout_s:g} s.")
        return predicted.answers, results, took_s


def _failed(error: BaseException) -> _Refused:
    """What the handler raised, its traceback printed."""
    runner.print_error(error)
    failed = runner.failure(error, "cpu", 0.0)
    return _Refused(failed.cause, failed.message)


def missing(requirements: Sequence[str]) -> list[str]:
    """Those that this interpreter does not meet. Wheels of the folder are not looked into."""
    lacking = []
    for text in requirements:
        if text.startswith("./"):
            continue
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            met = wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
        except metadata.PackageNotFoundError:
            met = False
        if not met:
            lacking.append(text)
    return lacking


def run(request: LocalRun) -> AloneReport:
    """Load the handler and run it on the inputs, those that may share a batch together."""
    try:
        name, spec = read_document(request.document)
    except CallerError as error:
        return AloneReport(cause=error.code, message=str(error))
    lacking = missing(spec.requirements)
    try:
        loaded = _load(name, spec, request)
        inputs = [loaded.resident.shown_example()] if request.inputs is None else request.inputs
        outcomes = list(_outcomes(loaded, inputs))
    except _Refused as error:
        return AloneReport(cause=error.cause, message=str(error), missing=lacking)
    loaded.resident.unload()
    return AloneReport(
        phases_ms=loaded.phases_ms, deadline_ms=spec.deadline_s * 1e3, missing=lacking, outcomes=outcomes
    )


def _load(name: str, spec: FunctionSpec, request: LocalRun) -> _Loaded:
    """Raises _Refused."""
    absent = [secret for secret in spec.secrets if secret not in os.environ]
    if absent:
        raise _Refused(
            Cause.LOAD_FAILED, f"There is no secret {', '.join(absent)}: set it in the environment of this command."
        )
    bounds = QueueSettings()
    try:
        resident, loaded = runner.load(
            frames.Load(
                entrypoint=spec.entrypoint,
                device=request.device if spec.memory_mib else "cpu",
                memory_mib=spec.memory_mib,
                results=frames.Results(one=bounds.max_result_bytes, together=bounds.result_bytes),
                label=name,
                folder=request.folder,
                max_batch=spec.max_batch,
            )
        )
    except Exception as error:
        raise _Refused(Cause.LOAD_FAILED, str(_failed(error))) from error
    made = _Loaded(spec=spec, resident=resident, phases_ms=loaded.phases)
    description = answers.describe(_canary(made, 1))
    if spec.max_batch > 1:
        _canary(made, 2)
    words = misfit(spec.outputs, description.outputs) if spec.outputs is not None else ""
    if words:
        raise _Refused(Cause.BAD_OUTPUT, words)
    inputs = spec.inputs if spec.inputs is not None else description.inputs
    return replace(made, spec=replace(spec, inputs=None if inputs is None else tuple(inputs)))


def _canary(loaded: _Loaded, copies: int) -> bytes:
    """The description that comes of a run of so many copies of the example together. Raises _Refused."""
    item = Item(encoding=Encoding.CANARY, accept=Encoding.JSON, rows=1, length=0)
    given = "the handler's example" if copies == 1 else f"{copies} copies of the handler's example in one batch"
    try:
        [answer, *_], [described, *_], _ = loaded.run([item] * copies, b"")
    except _Refused as error:
        raise _Refused(error.cause, f"The first run, on {given}: {error}") from error
    if answer.form == "error":
        raise _Refused(answer.cause, f"The first run, on {given}: {answer.message}")
    return described


def _outcomes(loaded: _Loaded, values: Sequence[Any]) -> Iterator[InvocationOutcome]:
    """One for each input, in their order."""
    batch: list[Payload] = []
    for position, value in enumerate(values):
        path = "input" if len(values) == 1 else f"inputs[{position}]"
        try:
            payload = from_json(value, loaded.spec, path)
        except CallerError as error:
            yield from _batch(loaded, batch)
            batch = []
            yield InvocationOutcome(cause=error.code, message=str(error))
            continue
        if batch and (len(batch) == loaded.spec.max_batch or batch[0].shape != payload.shape):
            yield from _batch(loaded, batch)
            batch = []
        batch.append(payload)
    yield from _batch(loaded, batch)


def _batch(loaded: _Loaded, payloads: Sequence[Payload]) -> Iterator[InvocationOutcome]:
    if not payloads:
        return
    items = [
        Item(encoding=payload.encoding, accept=Encoding.JSON, rows=payload.rows, length=len(payload.body))
        for payload in payloads
    ]
    try:
        given, results, took_s = loaded.run(items, b"".join(payload.body for payload in payloads))
    except _Refused as error:
        yield from [InvocationOutcome(cause=error.cause, message=str(error)) for _ in payloads]
        return
    for answer, result in zip(given, results, strict=True):
        if answer.form == "error":
            yield InvocationOutcome(cause=answer.cause, message=answer.message, run_ms=took_s * 1e3)
        else:
            yield InvocationOutcome(output=msgspec.Raw(result), run_ms=took_s * 1e3)


def _serve(given: BinaryIO, answer: BinaryIO) -> None:
    request = msgspec.json.decode(given.read(), type=LocalRun)
    # As on a worker: relative paths lead into a scratch folder that ends with the process.
    with TemporaryDirectory(prefix="smore-run-") as scratch:
        os.chdir(scratch)
        report = run(request)
        answer.write(msgspec.json.encode(report))
        answer.flush()
        os.chdir(Path(scratch).parent)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The folder of the shell, in which a file may have the name of a package.
        del sys.path[0]
    # Whatever the handler writes, in Python or beneath it, is no part of the report.
    report_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = io.TextIOWrapper(os.fdopen(os.dup(2), "wb", 0), encoding="utf-8", errors="replace", write_through=True)
    _serve(sys.stdin.buffer, report_to)
    sys.stderr.flush()
    # The process ends whatever threads the handler has left, as a runner does.
    os._exit(0)
