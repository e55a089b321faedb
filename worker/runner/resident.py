"""
A loaded handler in its runner, and how a batch runs through it: decode, join on axis 0, predict, divide, encode.

Used by :mod:`worker.runner.runner`. What must stay true: each invocation of a batch gets its own answer or its own
error, and no answer is larger than the bounds of its load.
"""

import asyncio
import inspect
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from smore.domain.invocation import Cause, Encoding
from smore.handler import Handler
from worker import frames, proc
from worker.frames import Answer, Chunk, Item, Loaded, Predicted
from worker.runner import cuda, encoding
from worker.runner.arrays import (
    Arrays,
    BadOutput,
    InvalidInput,
    as_texts,
    checked_outputs,
    is_tensors,
    raw_bytes,
    read_json,
    read_raw,
    specs,
    write_raw,
)
from worker.runner.declared import Declared
from worker.runner.encoding import ResultTooLarge
from worker.runner.host_memory import HostMemory
from worker.runner.weights import Weights

#: JSON that is longer is held against the declared record in the first run alone: reading it back takes memory, and
#: pydantic ends the process where there is none.
_MOST_CHECKED: Final = 64 << 10


class Resident:
    """
    A loaded handler on ``device`` ("cpu" or "cuda"), with what bounds the machine's memory (None = nothing). One request
    at a time.
    """

    def __init__(self, handler: Handler, device: str, results: frames.Results, host: HostMemory | None = None) -> None:
        self._handler = handler
        self._device = device
        self._results = results
        self._host = host
        self.example: Any = handler.example
        self.tensors = is_tensors(self.example)
        self._weights = Weights(handler.modules())
        self._declared = Declared(handler)
        #: The event loop of an asynchronous ``predict``, the same for all batches.
        self._loop: asyncio.AbstractEventLoop | None = None

    def first_run(self, copies: int = 1) -> list[Any]:
        """One run on so many copies of the example together; the output of each: tensors, checked, or a JSON value."""
        if self.tensors:
            return self._rows([dict(self.example) for _ in range(copies)])
        return self._values([self._declared.read(self.example, "example") for _ in range(copies)])

    def warm_up(self, batch: int) -> None:
        """
        Run ``batch`` copies of a tensor function's example together, for a device loads other kernels for a large batch
        than for a small one.

        An error is only logged, for a full batch may never come; a lost context is raised.
        """
        try:
            self._predict({name: np.concatenate([array] * batch) for name, array in self.example.items()})
        except Exception as error:
            if cuda.fault(error, 0.0) is Cause.CONTEXT_LOST:
                raise
            print(f"a first run of {batch} inputs together failed: {error}")

    def _predict(self, inputs: Any) -> Any:
        """
        Run the handler and wait for the device: until it has done its work, neither the run time nor its success is
        known.
        """
        output = self._handler.predict(inputs)
        if inspect.isawaitable(output):
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self._loop)
            output = self._loop.run_until_complete(output)
        cuda.settle()
        return output

    def _values(self, values: list[Any]) -> list[Any]:
        output = self._predict(values)
        if not isinstance(output, list) or len(output) != len(values):
            raise BadOutput(f"predict returned {type(output).__name__}, a list of {len(values)} is expected")
        return output

    def memory_mib(self) -> float:
        """What it holds of the device; on a CPU, of the machine."""
        if self._device == "cuda":
            return cuda.held_mib()
        return proc.private_mib(os.getpid())

    def unload(self) -> None:
        """Let the handler clean up."""
        self._handler.unload()

    def park(self) -> frames.Parked:
        """Move the weights to host memory. Raises worker.runner.weights.NotParked."""
        return frames.Parked(host_mib=self._weights.park())

    def restore(self) -> Loaded:
        """Move the weights back to the device."""
        return Loaded(phases={"host": self._weights.restore()}, memory_mib=self.memory_mib(), tensors=self.tensors)

    def shown_example(self) -> Any:
        """The handler's example as a caller would send it. Raises TypeError or ValueError where JSON cannot say it."""

        def text(element: str | bytes) -> str:
            return element if isinstance(element, str) else element.decode()

        texts: Any = np.frompyfunc(text, 1, 1)

        def plain(value: Any) -> Any:
            if not isinstance(value, np.ndarray):
                raise TypeError(f"{type(value).__name__} is no JSON value")
            return (texts(value) if value.dtype.kind in "OS" else value).tolist()

        return msgspec.to_builtins(self.example, enc_hook=plain)

    def _small_example(self) -> msgspec.Raw | None:
        """The example as JSON, None = it is too large to be shown, or is not to be stored."""
        if self.tensors and sum(array.nbytes for array in self.example.values()) > frames.EXAMPLE_BYTES:
            return None
        try:
            encoded = msgspec.json.encode(self.shown_example())
            orjson.loads(encoded)
        except (TypeError, ValueError, RecursionError):
            return None
        return msgspec.Raw(encoded) if len(encoded) <= frames.EXAMPLE_BYTES and b"\\u0000" not in encoded else None

    def canary(self, copies: int = 1) -> tuple[Answer, list[Chunk]]:
        """
        Run so many copies of the example together, warm, and describe what went in and came out of one; an error where
        a call could not be answered with its output.
        """
        outputs = self.first_run(copies)
        if error := next(filter(None, map(self._unanswerable, outputs)), None):
            return error, []
        output = outputs[0]
        input_schema, output_schema = (None, None) if self.tensors else self._declared.schemas()
        body = msgspec.json.encode(
            frames.Description(
                inputs=specs(self.example) if self.tensors else None,
                outputs=specs(output) if self.tensors else None,
                memory_mib=self.memory_mib(),
                peak_mib=self._host.peak_mib() if self._host is not None else 0.0,
                limit_mib=self._host.bound.limit_mib if self._host is not None else 0.0,
                input_schema=input_schema,
                output_schema=output_schema,
                example=self._small_example(),
            )
        )
        return Answer(form="json", length=len(body)), [body]

    def _unanswerable(self, output: Any) -> Answer | None:
        """The error that calls would get for an output of the first run. None = a call can be answered with it."""
        if self.tensors:
            answers = [self._answered(output, raw=raw)[0] for raw in (True, False)]
        else:
            answers = [self._answered(output, raw=False, most_checked=None)[0]]
        errors = [answer for answer in answers if answer.form == "error"]
        # Tensors that are too large for JSON, or hold bytes, are answered where the caller asks for them as they are.
        none_left = len(errors) == len(answers)
        return next((error for error in errors if none_left or error.cause == Cause.BAD_OUTPUT), None)

    def predict(self, items: Sequence[Item], body: memoryview) -> tuple[Predicted, list[Chunk]]:
        """
        Serve a batch; ``body`` holds the payloads one after the other. An invocation whose payload cannot be read is
        answered with its own error; the others run. Canaries are one run of as many examples, and get one answer.

        Raises what the handler raises, BadOutput where its output does not fit the inputs, ResultTooLarge where all
        results together are too large.
        """
        answers: list[Answer | None] = [None] * len(items)
        bodies: list[list[Chunk]] = [[] for _ in items]
        inputs: list[tuple[int, Any]] = []
        start = 0
        canaries = sum(item.encoding == Encoding.CANARY for item in items)
        described = self.canary(canaries) if canaries else None
        for index, item in enumerate(items):
            payload = body[start : start + item.length]
            start += item.length
            if described is not None and item.encoding == Encoding.CANARY:
                answers[index], bodies[index] = described
                continue
            try:
                inputs.append((index, self._read(item, payload)))
            except (ValueError, TypeError, OverflowError) as error:
                if isinstance(error, InvalidInput):
                    answers[index] = _error(Cause.INVALID_INPUT, str(error), error.field)
                else:
                    answers[index] = _error(Cause.INVALID_INPUT, f"{type(error).__name__}: {error}")
        if inputs:
            left = self._results.together
            for (index, _), (answer, chunks) in zip(inputs, self._run(items, inputs), strict=True):
                left -= answer.length
                if left < 0:
                    raise ResultTooLarge(
                        f"the results of the batch are larger than {encoding.amount(self._results.together)} together"
                    )
                answers[index], bodies[index] = answer, chunks
        done = [answer for answer in answers if answer is not None]
        assert len(done) == len(items)
        return Predicted(answers=done), [chunk for chunks in bodies for chunk in chunks]

    def _read(self, item: Item, payload: memoryview) -> Any:
        if not self.tensors:
            if item.encoding == Encoding.RAW:
                raise InvalidInput("this function takes JSON values")
            return self._declared.read(orjson.loads(payload))
        if item.encoding == Encoding.RAW:
            return read_raw(payload, self.example)
        return read_json(payload, self.example)

    def _run(self, items: Sequence[Item], inputs: list[tuple[int, Any]]) -> Iterator[tuple[Answer, list[Chunk]]]:
        """Run the readable inputs together and yield one result after the other, each encoded when it is asked for."""
        values = [value for _, value in inputs]
        outputs = self._rows(values) if self.tensors else self._values(values)
        for (index, _), output in zip(inputs, outputs, strict=True):
            yield self._answered(output, raw=self.tensors and items[index].accept == Encoding.RAW)

    def _answered(
        self, output: Any, *, raw: bool, most_checked: int | None = _MOST_CHECKED
    ) -> tuple[Answer, list[Chunk]]:
        """
        The answer to one invocation, an error where ``output`` cannot be one. Up to ``most_checked`` bytes of JSON are
        held against the declared record, None = any number.
        """
        try:
            if self.tensors:
                return self._encoded(output, raw=raw)
            encoded = encoding.json(self._declared.plain(output), self._results.one)
            if most_checked is None or len(encoded) <= most_checked:
                self._declared.check(output, encoded)
            return Answer(form="json", length=len(encoded)), [encoded]
        except UnicodeDecodeError as error:
            # The output is good; the caller asked for it in a form that cannot hold bytes.
            message = f"the output is no text, which JSON needs ({error}); ask for application/octet-stream"
            return _error(Cause.HANDLER_ERROR, f"InvalidInput: {message}"), []
        except BadOutput as error:
            return _error(Cause.BAD_OUTPUT, str(error)), []
        except TypeError as error:
            return _error(Cause.BAD_OUTPUT, f"the output is not JSON: {error}"), []
        except ResultTooLarge as error:
            return _error(Cause.RESULT_TOO_LARGE, str(error)), []

    def _rows(self, parts: list[Arrays]) -> list[Arrays]:
        """The outputs of each part of a batch of tensors."""
        counts = [next(iter(arrays.values())).shape[0] for arrays in parts]
        batch = (
            parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        )
        output = checked_outputs(self._predict(batch), sum(counts))
        ends = list(accumulate(counts))
        return [
            {name: array[end - count : end] for name, array in output.items()}
            for end, count in zip(ends, counts, strict=True)
        ]

    def _encoded(self, output: Arrays, *, raw: bool) -> tuple[Answer, list[Chunk]]:
        """Tensors. Raises UnicodeDecodeError, TypeError, ResultTooLarge."""
        most = self._results.one
        if raw:
            encoding.bound(raw_bytes(output), most)
            chunks, shapes = write_raw(output)
            if len(shapes.encode()) > frames.SHAPES_BYTES:
                raise ResultTooLarge(f"the names and shapes of the outputs take more than {frames.SHAPES_BYTES} bytes")
            return Answer(form="raw", length=sum(map(len, chunks)), shapes=shapes), chunks
        encoding.bound(raw_bytes({name: array for name, array in output.items() if array.dtype.kind == "O"}), most)
        texts = {name: as_texts(array).tolist() if array.dtype.kind == "O" else array for name, array in output.items()}
        encoded = encoding.json(texts, most)
        return Answer(form="json", length=len(encoded)), [encoded]


def _error(cause: Cause, message: str, field: str = "") -> Answer:
    return Answer(form="error", cause=cause, message=message[: frames.ITEM_TEXT], field=field[: frames.FIELD_TEXT])
