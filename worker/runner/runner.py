"""
A runner: the process in which one handler lives.

Forked from the zygote, it answers the frames on its socket until it gets Unload or the socket ends; at the other end is
:class:`worker.runner.runner_handle.Runner`. It has no access to Redis and Celery. What must stay true: it is confined
(worker/sandbox/) before any code of a function is imported, and a lost device context ends it.
"""

import asyncio
import gc
import importlib
import math
import os
import signal
import site
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn

import msgspec

from smore.domain.invocation import Cause
from smore.domain.quote import cut
from worker import frames
from worker.frames import Channel, Chunk, Failed, Loaded, Prepared
from worker.runner import cuda
from worker.runner.arrays import BadOutput
from worker.runner.encoding import ResultTooLarge
from worker.runner.entrypoint import BadEntrypoint, handler_class
from worker.runner.host_memory import HostBound, HostMemory, device_exceeded, refused
from worker.runner.output_log import OutputLog
from worker.runner.resident import Resident

#: Packages that the runner itself uses, of which there cannot be another version beside
#: (worker/artifacts/environments.py: FIXED), and torch's own.
_STAYING: Final = frozenset(("torch", "torchgen", "functorch", "numpy", "msgspec", "orjson", "_distutils_hack"))


#: Frames of a traceback, the most recent ones.
_MOST_FRAMES: Final = 64
#: Frames of the runner, and of the event loop between it and an asynchronous ``predict``.
_HERE: Final = str(Path(__file__).parent)
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)


def failure(
    error: BaseException, device: str, memory_mib: float, folder: str = "", host: HostMemory | None = None
) -> Failed:
    """
    An error as its answer. Want of memory has a cause of its own and names its bound; so has a fault of the device
    (worker/runner/cuda.py), of which the function may have ``memory_mib``. ``folder`` as for :func:`own_traceback`;
    ``host``: None = nothing bounds the machine's memory.
    """
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, BadOutput):
        return Failed(cause=Cause.BAD_OUTPUT, message=str(error)[: frames.TEXT])
    if isinstance(error, ResultTooLarge):
        return Failed(cause=Cause.RESULT_TOO_LARGE, message=str(error))
    if isinstance(error, BadEntrypoint):
        return Failed(cause=Cause.HANDLER_ERROR, message=str(error)[: frames.TEXT])
    cause = cuda.fault(error, memory_mib) if device == "cuda" else None
    of_host = refused(error)
    if cause is None:
        exhausted = of_host or "OutOfMemoryError" in {kind.__name__ for kind in type(error).__mro__}
        cause = Cause.OUT_OF_MEMORY if exhausted else Cause.HANDLER_ERROR
    if cause is Cause.OUT_OF_MEMORY and host is not None:
        of_device = device == "cuda" and not of_host
        text = f"{device_exceeded(memory_mib) if of_device else host.bound.exceeded(host.peak_mib())} {text}"
    return Failed(
        cause=cause,
        message=text[: frames.TEXT],
        traceback=cut(own_traceback(error, folder), frames.TRACEBACK),
    )


def own_traceback(error: BaseException, folder: str = "") -> str:
    """
    The error as Python prints it, with the frames of user code alone, the most recent ones where there are many; ''
    where user code was not reached. Files of the uploaded ``folder`` are named as they were there.
    """
    reached = _own_frames(error)
    if reached is None and not isinstance(error, SyntaxError):
        return ""
    text = "".join(traceback.format_exception(type(error), error, reached, limit=-_MOST_FRAMES))
    return text.replace(f'  File "{folder}/', '  File "') if folder else text


def print_error(error: BaseException, folder: str = "") -> None:
    """
    Print it to standard error, for whoever wrote the handler; of a bad entrypoint the answer says all. ``folder`` as for
    :func:`own_traceback`.
    """
    if isinstance(error, BadEntrypoint):
        return
    print(own_traceback(error, folder).rstrip() or f"{type(error).__name__}: {error}", file=sys.stderr)


def _own_frames(error: BaseException) -> TracebackType | None:
    """The traceback from user code on, without the runner's own frames before it; None where it was not reached."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(
        (_HERE, importlib.__file__, "<frozen importlib", _ASYNCIO)
    ):
        frame = frame.tb_next
    return frame


def _limit_memory(request: frames.Load) -> HostMemory:
    """From now on it may take no more memory than its function declares."""
    host = HostMemory(
        HostBound(declared_mib=request.memory_mib, host_mib=request.host_mib, beyond_mib=frames.SLACK_MIB)
    )
    if request.device == "cuda":
        # Not before the context exists: what CUDA reserves for itself does not count.
        cuda.limit(request.memory_mib, host.limit)
    else:
        host.limit()
    return host


def _activate(environment: Path) -> None:
    """
    Become an interpreter of that venv, whose packages may run code now. The packages of :data:`_STAYING` stay; others
    of the platform that are imported already are imported anew, for the venv may have another version.
    """
    platform = [path for path in sys.path if path in site.getsitepackages()]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.partition(".")[0] not in _STAYING and file.startswith(tuple(f"{path}/" for path in platform)):
            del sys.modules[name]
    sys.path = [path for path in sys.path if path not in platform]
    sys.prefix = sys.exec_prefix = str(environment)
    sys.executable = str(environment / "bin" / "python")
    os.environ.update(
        VIRTUAL_ENV=str(environment), PATH=f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    )
    site.addsitedir(str(frames.packages_of(environment)))
    sys.path += [path for path in platform if path not in sys.path]


def _enter(folder: Path) -> None:
    """
    Import modules from an uploaded folder before all others. Raises ImportError where a module of the same name is
    loaded already.

    Nothing is written there: the folder is named by its content, and other runners read it.
    """
    for path in sorted(folder.iterdir()):
        module = path.suffix == ".py" or (path / "__init__.py").is_file()
        if module and path.stem in sys.modules and path.stem != "__main__":
            raise ImportError(f"{path.name}: a module of this name is loaded already; give it another one")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))


def load(request: frames.Load, host: HostMemory | None = None) -> tuple[Resident, Loaded]:
    """
    Import, construct and load a handler and run it once; ``host`` as for :func:`failure`. Raises what its code raises.
    """
    if request.device == "cpu":
        # No package that it imports may use a device.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    began = time.perf_counter()
    if request.environment:
        _activate(Path(request.environment))
    if request.folder:
        _enter(Path(request.folder))
    kind = handler_class(request.entrypoint, request.folder)
    imported = time.perf_counter()
    handler = kind()
    handler.load(request.device)
    built = time.perf_counter()
    loaded = Resident(handler, request.device, request.results, host)
    loaded.first_run()
    if request.device == "cuda" and loaded.tensors and request.max_batch > 1:
        loaded.warm_up(request.max_batch)
    ran = time.perf_counter()
    # What load has made stays: no collection need visit it again.
    gc.collect()
    gc.freeze()
    phases = {"import": (imported - began) * 1e3, "weights": (built - imported) * 1e3, "first_run": (ran - built) * 1e3}
    # On a CPU this takes milliseconds: the worker measures it when nobody waits.
    memory_mib = 0.0 if request.device == "cpu" else loaded.memory_mib()
    return loaded, Loaded(phases=phases, memory_mib=memory_mib, tensors=loaded.tensors)


def _prepare(device: str) -> None:
    """Begin to use the device, without a model."""
    if device == "cuda":
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        torch.zeros(1, device="cuda")


def _end(status: int) -> NoReturn:
    """End the process without the exit handlers and threads of user code."""
    sys.stdout.flush()
    os._exit(status)


def serve(channel: Channel) -> NoReturn:
    """
    Answer requests until Unload or the end of the socket. Sets up the streams and signals of the process first.
    """
    log = OutputLog()
    log.take_over()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    handler: Resident | None = None
    host: HostMemory | None = None
    device, folder, memory_mib = "", "", math.inf
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
                    device, folder, memory_mib = request.device, request.folder, request.memory_mib
                    log.kept = bytearray()
                    os.environ.update(request.secrets)
                    host = _limit_memory(request)
                    handler, answer = load(request, host)
                    if device == "cuda" and not cuda.opened():
                        host.limit()
                    log.kept = None
                case frames.Predict():
                    assert handler is not None
                    answer, chunks = handler.predict(request.items, memoryview(body))
                case frames.Park():
                    assert handler is not None
                    answer = handler.park()
                case frames.Restore():
                    assert handler is not None
                    answer = handler.restore()
                case frames.Unload():
                    if handler is not None:
                        handler.unload()
                    _end(0)
        except Exception as error:  # noqa: BLE001 - whatever user code raises goes to its caller
            if host is not None and refused(error):
                host.spend_spare()
            print_error(error, folder)
            failed = answer = failure(error, device, memory_mib, folder, host)
            if log.kept:
                printed = log.kept.decode(errors="replace").strip()
                answer = msgspec.structs.replace(failed, message=f"{failed.message}\nIts log:\n{printed}")
        log.finish()
        try:
            channel.send(frames.encode(answer), chunks)
        except (BrokenPipeError, ConnectionResetError):
            _end(0)
        if isinstance(answer, Failed) and answer.cause == Cause.CONTEXT_LOST:
            _end(1)
