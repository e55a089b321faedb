"""
A runner: the process in which one handler lives.

Forked from the zygote, it answers frames on its socket until it is told to unload or the socket ends. It knows neither
Redis nor Celery. Whatever user code prints goes line by line to the worker's log, with the function's name before it.
"""

import contextlib
import gc
import importlib
import io
import math
import os
import resource
import signal
import site
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, cast

import msgspec
import numpy as np
import orjson

from smore.domain import tensors
from smore.domain.invocation import Cause, Encoding
from smore.handler import Handler
from worker import frames, proc
from worker.frames import Answer, Channel, Chunk, Failed, Item, Loaded, Predicted, Prepared
from worker.runner import cuda, encoding
from worker.runner.encoding import ResultTooLarge
from worker.runner.weights import Weights

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]

#: Open Inference Protocol datatype → numpy's, little-endian. An element of BYTES is a bytes object.
DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("u1"),
    "INT8": np.dtype("i1"),
    "UINT16": np.dtype("<u2"),
    "INT16": np.dtype("<i2"),
    "FP16": np.dtype("<f2"),
    "UINT32": np.dtype("<u4"),
    "INT32": np.dtype("<i4"),
    "FP32": np.dtype("<f4"),
    "UINT64": np.dtype("<u8"),
    "INT64": np.dtype("<i8"),
    "FP64": np.dtype("<f8"),
    tensors.BYTES: np.dtype(object),
}
_DATATYPES: Final = {dtype: name for name, dtype in DTYPES.items()}

#: Of what user code said while it was loaded, the end is told with the error.
_LOG_BYTES: Final = 6000
#: What a runner stands on: packages of which there cannot be another version beside (worker/artifacts/environments.py:
#: FIXED), and torch's own.
_STAYING: Final = frozenset(("torch", "torchgen", "functorch", "numpy", "msgspec", "orjson", "_distutils_hack"))
#: A shorter text is part of too many others to be hidden.
_HIDDEN_FROM: Final = 8


class InvalidInput(ValueError):
    """The payload does not fit the handler's example."""


class BadOutput(Exception):
    """What predict returned is not what smore/handler.py asks for."""


class _Log(io.RawIOBase):
    """The standard streams of user code: whole lines to descriptor 2, each with a prefix, each in one write."""

    def __init__(self) -> None:
        self.prefix = ""
        #: What is written from now on is kept here as well, where it is a buffer.
        self.kept: bytearray | None = None
        self._rest = b""
        self._hidden: list[str] = []

    def hide(self, secrets: Iterable[str]) -> None:
        """From now on these are told as ``***``; of one of several lines each line is."""
        lines = {line for secret in secrets for line in (secret, *secret.splitlines()) if len(line) >= _HIDDEN_FROM}
        # Of two of which one begins with the other the longer is looked for first.
        self._hidden = sorted(lines, key=len, reverse=True)

    def masked(self, text: str) -> str:
        for secret in self._hidden:
            text = text.replace(secret, "***")
        return text

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def write(self, data: Any) -> int:
        if self.kept is not None:
            self.kept += bytes(data)
            del self.kept[:-_LOG_BYTES]
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        if lines:
            mark = f"[{self.prefix}] ".encode()
            if self._hidden:
                lines = [self.masked(line.decode(errors="replace")).encode() for line in lines]
            # A log that nobody reads any more is no reason to fail an invocation.
            with contextlib.suppress(OSError):
                os.write(2, b"".join(mark + line + b"\n" for line in lines))
        return len(data)


# ---- in and out of arrays --------------------------------------------------------------------------------------------


def is_tensors(example: object) -> bool:
    """Whether a handler with this example takes arrays (smore/handler.py)."""
    return (
        isinstance(example, dict) and bool(example) and all(isinstance(value, np.ndarray) for value in example.values())
    )


def read_raw(payload: Chunk, example: Arrays) -> Arrays:
    """
    Tensors as the gateway frames them (api/invoke/inputs.py): two bytes, big-endian, with the length of the text that
    describes them, that text, the tensors (smore/domain/tensors.py).

    Views of the payload where alignment allows. Raises InvalidInput.
    """
    start = 2 + int.from_bytes(payload[:2], "big")
    body = payload[start:]
    try:
        found = tensors.sections(bytes(payload[2:start]).decode(), body)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return _like({section.name: _array(section, body) for section in found}, example)


def _array(section: tensors.Section, body: Chunk) -> Array:
    dtype = DTYPES[section.datatype]
    if section.datatype == tensors.BYTES:
        return np.fromiter(tensors.elements(body[section.start : section.stop]), object).reshape(section.shape)
    # numpy has no view of nothing.
    array = (
        np.frombuffer(body[section.start : section.stop], dtype) if section.stop > section.start else np.empty(0, dtype)
    )
    array = array.reshape(section.shape)
    return array if array.flags.aligned else array.copy()


def _texts(array: Array) -> Array:
    """BYTES for JSON: every element as text. Raises UnicodeDecodeError."""
    return np.fromiter((element.decode() for element in array.flat), object).reshape(array.shape)


def _bytes(array: Array) -> Array:
    """BYTES out of texts and bytes. Raises TypeError for anything else."""
    flat = np.fromiter((element.encode() if isinstance(element, str) else element for element in array.flat), object)
    for element in flat:
        if not isinstance(element, bytes):
            raise TypeError(f"an element is {type(element).__name__}, neither bytes nor str")
    return flat.reshape(array.shape)


def read_json(body: Chunk, example: Arrays) -> Arrays:
    """``{"name": nested lists}``, each with its axis of rows, in the example's types."""
    values = orjson.loads(body)
    if not isinstance(values, dict):
        raise InvalidInput("an object of tensors by name is expected")
    arrays = {}
    for name, value in values.items():
        if name not in example:
            raise InvalidInput(f"there is no input {name!r}")
        array = np.asarray(value, dtype=example[name].dtype)
        arrays[name] = _bytes(array) if array.dtype.kind == "O" else array
    return _like(arrays, example)


def _like(arrays: Arrays, example: Arrays) -> Arrays:
    """The arrays in the example's order, if they are all there, with as many axes as there and equally many rows."""
    for name, wanted in example.items():
        if name not in arrays:
            raise InvalidInput(f"the input {name!r} is missing")
        if arrays[name].ndim != wanted.ndim:
            raise InvalidInput(
                f"the input {name!r} has the shape {list(arrays[name].shape)}, one like {list(wanted.shape)} is"
                " expected"
            )
        if arrays[name].dtype != wanted.dtype:
            raise InvalidInput(f"the input {name!r} is {arrays[name].dtype}, {wanted.dtype} is expected")
    if len(arrays) != len(example):
        raise InvalidInput(f"there is no input {next(name for name in arrays if name not in example)!r}")
    if len({array.shape[0] for array in arrays.values()}) != 1:
        raise InvalidInput("the inputs differ in their number of rows")
    return {name: arrays[name] for name in example}


def checked_outputs(output: object, rows: int) -> Arrays:
    """What predict of a tensor function returned, contiguous and little-endian. Raises BadOutput."""
    if not isinstance(output, dict) or not output:
        raise BadOutput(f"predict returned {type(output).__name__}, a dict of arrays is expected")
    arrays: Arrays = {}
    for name, value in output.items():
        array = np.asarray(value)
        if array.ndim == 0 or array.shape[0] != rows:
            raise BadOutput(f"the output {name!r} has the shape {list(array.shape)}, {rows} rows are expected")
        dtype = array.dtype.newbyteorder("<")
        if dtype not in _DATATYPES:
            raise BadOutput(f"the output {name!r} is {array.dtype}, which has no datatype")
        if ";" in str(name) or not str(name).isprintable():
            raise BadOutput("the name of an output has ';' or a character that cannot be printed")
        array = np.ascontiguousarray(array, dtype)
        try:
            arrays[str(name)] = _bytes(array) if dtype.kind == "O" else array
        except TypeError as error:
            raise BadOutput(f"the output {name!r}: {error}") from error
    return arrays


def write_raw(arrays: Arrays) -> tuple[list[Chunk], str]:
    """(bytes of the tensors one after the other, their description), see smore/domain/tensors.py."""
    chunks: list[Chunk] = []
    for array in arrays.values():
        flat = array.reshape(-1)
        chunks.append(tensors.join(flat.tolist()) if array.dtype.kind == "O" else flat.view(np.uint8).data)
    return chunks, ";".join(
        tensors.describe(name, _DATATYPES[array.dtype], array.shape) for name, array in arrays.items()
    )


def raw_bytes(arrays: Arrays) -> int:
    """How long :func:`write_raw` makes them, found without writing them."""
    return sum(
        sum(4 + len(one) for one in array.flat) if array.dtype.kind == "O" else array.nbytes
        for array in arrays.values()
    )


def specs(arrays: Arrays) -> list[frames.Tensor]:
    """What is told of them, the rows free."""
    return [
        frames.Tensor(name=name, datatype=_DATATYPES[array.dtype.newbyteorder("<")], shape=[-1, *array.shape[1:]])
        for name, array in arrays.items()
    ]


# ---- the process -----------------------------------------------------------------------------------------------------


def _failure(error: BaseException, device: str, memory_mib: float) -> Failed:
    """
    Out of memory is told apart from other errors: torch's allocators raise their own. So is what has become of the
    device (worker/runner/cuda.py), of which the function may have ``memory_mib``.
    """
    text = f"{type(error).__name__}: {error}"[: frames.TEXT]
    names = {kind.__name__ for kind in type(error).__mro__}
    exhausted = isinstance(error, MemoryError) or "OutOfMemoryError" in names
    if isinstance(error, RuntimeError) and ("DefaultCPUAllocator" in text or "std::bad_alloc" in text):
        exhausted = True
    if isinstance(error, BadOutput):
        return Failed(cause=Cause.BAD_OUTPUT, message=str(error)[: frames.TEXT])
    if isinstance(error, ResultTooLarge):
        return Failed(cause=Cause.RESULT_TOO_LARGE, message=str(error))
    cause = cuda.fault(error, memory_mib) if device == "cuda" else None
    return Failed(cause=cause or (Cause.OUT_OF_MEMORY if exhausted else Cause.HANDLER_ERROR), message=text)


def _own_frames(error: BaseException) -> TracebackType | None:
    """The traceback from user code on: how the runner came to call it helps nobody. Whole where it never got there."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename.startswith(
        (__file__, importlib.__file__, "<frozen importlib")
    ):
        place = place.tb_next
    return place if place is not None else error.__traceback__


class _Resident:
    """A loaded handler and how it is fed."""

    def __init__(self, handler: Handler, device: str, results: frames.Results) -> None:
        self._handler = handler
        self._device = device
        self._results = results
        self._example: Any = handler.example
        self.tensors = is_tensors(self._example)
        self._weights = Weights(handler.modules())

    def first_run(self) -> Any:
        """One run on the example; its output, checked."""
        if self.tensors:
            rows = next(iter(self._example.values())).shape[0]
            return checked_outputs(self._predict(dict(self._example)), rows)
        return self._values([self._example])

    def warm_up(self, batch: int) -> None:
        """
        Run so many copies of a tensor function's example together, for a device loads other kernels for a large batch
        than for a small one.

        What goes wrong is told in the log alone, for a full batch may never come; a lost context goes through.
        """
        try:
            self._predict({name: np.concatenate([array] * batch) for name, array in self._example.items()})
        except Exception as error:
            if cuda.fault(error, 0.0) is Cause.CONTEXT_LOST:
                raise
            print(f"a first run of {batch} inputs together failed: {error}")

    def _predict(self, inputs: Any) -> Any:
        """
        A run ends when the device has done its work: until then nobody knows how long it takes, nor whether it went
        well.
        """
        output = self._handler.predict(inputs)
        cuda.settle()
        return output

    def _values(self, values: list[Any]) -> list[Any]:
        output = self._predict(values)
        if not isinstance(output, list) or len(output) != len(values):
            raise BadOutput(f"predict returned {type(output).__name__}, a list of {len(values)} is expected")
        return output

    def memory_mib(self) -> float:
        if self._device == "cuda":
            return cuda.held_mib()
        return proc.private_mib(os.getpid())

    def unload(self) -> None:
        self._handler.unload()

    def park(self) -> frames.Parked:
        """Raises worker.runner.weights.NotParked."""
        return frames.Parked(host_mib=self._weights.park())

    def restore(self) -> Loaded:
        return Loaded(phases={"host": self._weights.restore()}, memory_mib=self.memory_mib(), tensors=self.tensors)

    def canary(self) -> tuple[Answer, list[Chunk]]:
        """Run the example once more, warm, and describe what went in and came out."""
        output = self.first_run()
        body = msgspec.json.encode(
            frames.Description(
                inputs=specs(self._example) if self.tensors else None,
                outputs=specs(output) if self.tensors else None,
                memory_mib=self.memory_mib(),
            )
        )
        return Answer(form="json", length=len(body)), [body]

    def predict(self, items: Sequence[Item], body: memoryview) -> tuple[Predicted, list[Chunk]]:
        """
        Serve a batch. An invocation whose payload cannot be read is answered with its own error; the others run.

        What predict raises goes through; BadOutput where its answer does not fit, ResultTooLarge where all results
        together do not.
        """
        answers: list[Answer | None] = [None] * len(items)
        bodies: list[list[Chunk]] = [[] for _ in items]
        inputs: list[tuple[int, Any]] = []
        at = 0
        for place, item in enumerate(items):
            payload = body[at : at + item.length]
            at += item.length
            if item.encoding == Encoding.CANARY:
                answers[place], bodies[place] = self.canary()
                continue
            try:
                inputs.append((place, self._read(item, payload)))
            except (ValueError, TypeError, OverflowError) as error:
                kind = "InvalidInput" if isinstance(error, InvalidInput) else type(error).__name__
                answers[place] = _error(Cause.HANDLER_ERROR, f"{kind}: {error}")
        if inputs:
            left = self._results.together
            for (place, _), (answer, chunks) in zip(inputs, self._run(items, inputs), strict=True):
                left -= answer.length
                if left < 0:
                    raise ResultTooLarge(
                        f"the results of the batch are larger than {encoding.amount(self._results.together)} together"
                    )
                answers[place], bodies[place] = answer, chunks
        done = [answer for answer in answers if answer is not None]
        assert len(done) == len(items)
        return Predicted(answers=done), [chunk for chunks in bodies for chunk in chunks]

    def _read(self, item: Item, payload: memoryview) -> Any:
        if not self.tensors:
            if item.encoding == Encoding.RAW:
                raise InvalidInput("this function takes JSON values")
            return orjson.loads(payload)
        if item.encoding == Encoding.RAW:
            return read_raw(payload, self._example)
        return read_json(payload, self._example)

    def _run(self, items: Sequence[Item], inputs: list[tuple[int, Any]]) -> Iterator[tuple[Answer, list[Chunk]]]:
        """Run together what could be read; one result after the other, each encoded when it is asked for."""
        given = [value for _, value in inputs]
        for (place, _), output in zip(inputs, self._rows(given) if self.tensors else self._values(given), strict=True):
            try:
                yield self._encoded(output, raw=self.tensors and items[place].accept == Encoding.RAW)
            except UnicodeDecodeError as error:
                # Bytes are a good answer; who wants them as JSON has asked for what cannot be.
                message = (
                    f"InvalidInput: the output is no text, which JSON needs ({error}); ask for application/octet-stream"
                )
                yield _error(Cause.HANDLER_ERROR, message), []
            except TypeError as error:
                yield _error(Cause.BAD_OUTPUT, f"the output is not JSON: {error}"), []
            except ResultTooLarge as error:
                yield _error(Cause.RESULT_TOO_LARGE, str(error)), []

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

    def _encoded(self, output: Any, *, raw: bool) -> tuple[Answer, list[Chunk]]:
        """Raises UnicodeDecodeError, TypeError, ResultTooLarge."""
        most = self._results.one
        if raw:
            encoding.bound(raw_bytes(output), most)
            chunks, shapes = write_raw(output)
            if len(shapes.encode()) > frames.SHAPES_BYTES:
                raise ResultTooLarge(f"the names and shapes of the outputs take more than {frames.SHAPES_BYTES} bytes")
            return Answer(form="raw", length=sum(map(len, chunks)), shapes=shapes), chunks
        if self.tensors:
            encoding.bound(raw_bytes({name: array for name, array in output.items() if array.dtype.kind == "O"}), most)
            output = {
                name: _texts(array).tolist() if array.dtype.kind == "O" else array for name, array in output.items()
            }
        encoded = encoding.json(output, most)
        return Answer(form="json", length=len(encoded)), [encoded]


def _error(cause: Cause, message: str) -> Answer:
    return Answer(form="error", cause=cause, message=message[: frames.ITEM_TEXT])


def _limit_memory(request: frames.Load) -> None:
    if request.device == "cuda":
        # Not before the context is there: what CUDA reserves for itself is its own affair.
        cuda.limit(request.memory_mib, lambda: _bound_host(request.host_mib))
    else:
        # Whatever it imports finds no device.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        _bound_host(request.host_mib)


def _bound_host(memory_mib: float) -> None:
    """From now on it may take so much more of the machine's memory."""
    # RLIMIT_AS would count the libraries' address space too, gigabytes of it; RLIMIT_DATA counts what the process may
    # write to alone.
    limit = proc.data_bytes(os.getpid()) + int((memory_mib + frames.SLACK_MIB) * 2**20)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # A function that eats memory is told so in Python; it must not leave a core file of that size either.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _activate(environment: Path) -> None:
    """
    Become an interpreter of that venv, whose packages may run code now. What this process stands on stays; other
    packages of the platform that were imported on the way are looked for anew, for the venv may have another version.
    """
    ours = [path for path in sys.path if path in site.getsitepackages()]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.partition(".")[0] not in _STAYING and file.startswith(tuple(f"{path}/" for path in ours)):
            del sys.modules[name]
    sys.path = [path for path in sys.path if path not in ours]
    sys.prefix = sys.exec_prefix = str(environment)
    sys.executable = str(environment / "bin" / "python")
    os.environ.update(
        VIRTUAL_ENV=str(environment), PATH=f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    )
    site.addsitedir(str(frames.packages_of(environment)))
    sys.path += [path for path in ours if path not in sys.path]


def _enter(folder: Path) -> None:
    """
    Let modules be imported from an uploaded folder, before all others. Raises ImportError where one of its names is
    taken.

    Nothing is written there: the folder is named by its content, and other runners read it.
    """
    for path in sorted(folder.iterdir()):
        module = path.suffix == ".py" or (path / "__init__.py").is_file()
        if module and path.stem in sys.modules and path.stem != "__main__":
            raise ImportError(f"{path.name}: a module of this name is loaded already; give it another one")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))


def _load(request: frames.Load) -> tuple[_Resident, Loaded]:
    _limit_memory(request)
    began = time.perf_counter()
    if request.environment:
        _activate(Path(request.environment))
    if request.folder:
        _enter(Path(request.folder))
    module, _, name = request.entrypoint.partition(":")
    kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, Handler)):
        raise TypeError(f"{request.entrypoint} is no subclass of smore.Handler")
    imported = time.perf_counter()
    handler = kind()
    handler.load(request.device)
    built = time.perf_counter()
    resident = _Resident(handler, request.device, request.results)
    resident.first_run()
    if request.device == "cuda":
        if resident.tensors and request.max_batch > 1:
            resident.warm_up(request.max_batch)
        if not cuda.opened():
            _bound_host(request.host_mib)
    ran = time.perf_counter()
    # What load has made stays for good: no collection need look at it again.
    gc.collect()
    gc.freeze()
    phases = {"import": (imported - began) * 1e3, "weights": (built - imported) * 1e3, "first_run": (ran - built) * 1e3}
    # On a CPU it takes milliseconds to add the pages up: the parent does that when nobody waits.
    memory_mib = 0.0 if request.device == "cpu" else resident.memory_mib()
    return resident, Loaded(phases=phases, memory_mib=memory_mib, tensors=resident.tensors)


def _prepare(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        torch.zeros(1, device="cuda")


def _end(status: int) -> NoReturn:
    """User code's exit handlers and threads have no say: the process ends here."""
    sys.stdout.flush()
    os._exit(status)


def _masked(answer: frames.FromRunner, log: _Log) -> frames.FromRunner:
    """Error texts without secrets; results are the function's own to give."""
    match answer:
        case Failed():
            return Failed(cause=answer.cause, message=log.masked(answer.message))
        case Predicted() if any(one.message for one in answer.answers):
            return msgspec.structs.replace(
                answer,
                answers=[msgspec.structs.replace(one, message=log.masked(one.message)) for one in answer.answers],
            )
        case _:
            return answer


def serve(channel: Channel) -> NoReturn:
    """
    Answer requests until Unload or the end of the socket. Becomes a clean process first: its own streams and signals.
    """
    log = _Log()
    log.prefix = str(os.getpid())
    # As Python's -u has it: text straight onto the raw stream.
    sys.stdout = sys.stderr = io.TextIOWrapper(
        cast("io.BufferedIOBase", log), encoding="utf-8", errors="replace", write_through=True
    )
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    resident: _Resident | None = None
    label, device, memory_mib = "", "", math.inf
    while True:
        try:
            meta, body = channel.receive()
        except (EOFError, ConnectionResetError):
            _end(0)
        request = frames.decode_to_runner(meta)
        answer: frames.FromRunner
        chunks: list[Chunk] = []
        try:
            match request:
                case frames.Prepare():
                    device = request.device
                    _prepare(request.device)
                    answer = Prepared()
                case frames.Load():
                    label = f"{request.label} {os.getpid()}"
                    device, memory_mib = request.device, request.memory_mib
                    log.prefix = label
                    log.kept = bytearray()
                    log.hide(request.secrets.values())
                    os.environ.update(request.secrets)
                    resident, answer = _load(request)
                    log.kept = None
                case frames.Predict():
                    log.prefix = f"{label} {request.trace}" if request.trace else label
                    assert resident is not None
                    answer, chunks = resident.predict(request.items, memoryview(body))
                case frames.Park():
                    assert resident is not None
                    answer = resident.park()
                case frames.Restore():
                    assert resident is not None
                    answer = resident.restore()
                case frames.Unload():
                    if resident is not None:
                        resident.unload()
                    _end(0)
        except Exception as error:  # noqa: BLE001 - whatever user code raises is its caller's to read
            traceback.print_exception(type(error), error, _own_frames(error))
            answer = _failure(error, device, memory_mib)
            if log.kept:
                said = log.kept.decode(errors="replace").strip()
                answer = Failed(cause=answer.cause, message=f"{answer.message}\nIts log:\n{said}")
        try:
            channel.send(frames.encode(_masked(answer, log)), chunks)
        except (BrokenPipeError, ConnectionResetError):
            _end(0)
        if isinstance(answer, Failed) and answer.cause == Cause.CONTEXT_LOST:
            _end(1)
