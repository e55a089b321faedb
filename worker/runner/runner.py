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
import resource
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
from worker import frames, proc
from worker.frames import Channel, Chunk, Failed, Loaded, Prepared
from worker.runner import cuda
from worker.runner.arrays import BadOutput
from worker.runner.encoding import ResultTooLarge
from worker.runner.entrypoint import BadEntrypoint, handler_class
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


def failure(error: BaseException, device: str, memory_mib: float, folder: str = "") -> Failed:
    """
    An error as its answer. Want of memory has a cause of its own, for which torch's allocators raise errors of their
    own; so has a fault of the device (worker/runner/cuda.py), of which the function may have ``memory_mib``.
    ``folder`` as for :func:`own_traceback`.
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
    if isinstance(error, BadEntrypoint):
        return Failed(cause=Cause.HANDLER_ERROR, message=str(error)[: frames.TEXT])
    cause = cuda.fault(error, memory_mib) if device == "cuda" else None
    return Failed(
        cause=cause or (Cause.OUT_OF_MEMORY if exhausted else Cause.HANDLER_ERROR),
        message=text,
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


def _limit_memory(request: frames.Load) -> None:
    """From now on it may take no more memory than its function declares."""
    if request.device == "cuda":
        # Not before the context exists: what CUDA reserves for itself does not count.
        cuda.limit(request.memory_mib, lambda: _bound_host(request.host_mib))
    else:
        _bound_host(request.host_mib)


def _bound_host(memory_mib: float) -> None:
    """From now on it may take ``memory_mib`` more of the machine's memory."""
    # RLIMIT_AS would count the libraries' address space too, gigabytes of it; RLIMIT_DATA counts what the process may
    # write to alone.
    limit = proc.data_bytes(os.getpid()) + int((memory_mib + frames.SLACK_MIB) * 2**20)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # A function that takes too much gets a MemoryError; it must not leave a core file of that size either.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


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


def load(request: frames.Load) -> tuple[Resident, Loaded]:
    """Import, construct and load a handler and run it once. Raises what its code raises."""
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
    loaded = Resident(handler, request.device, request.results)
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
                    _limit_memory(request)
                    handler, answer = load(request)
                    if device == "cuda" and not cuda.opened():
                        _bound_host(request.host_mib)
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
            print_error(error, folder)
            failed = answer = failure(error, device, memory_mib, folder)
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
