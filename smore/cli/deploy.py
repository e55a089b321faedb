"""``smore deploy``: register functions, and tell how long each step of it took."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from smore.cli.terminal import EXIT_USAGE, Output, OutputOption, connected, fail, problem, show_value, write

if TYPE_CHECKING:
    from rich.progress import Progress

    from smore_client import Client
    from smore_client.types import Deployed

#: Seconds between two looks at the files of ``--watch``; they are deployed when two looks in a row find the same.
POLL_S: Final = 0.5

#: A first run of more than this part of the deadline is warned of.
TIGHT: Final = 0.8

#: The steps that are shown, and the phases of a cold start that each consists of.
STEPS: Final = {
    "environment": ("fetch", "environment"),
    "load": ("process", "import", "weights"),
}


def deploy(
    files: Annotated[list[Path], typer.Argument(help="function.yaml files, or folders that hold one and its code.")],
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Deploy again whenever a file has changed, until Ctrl-C.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """
    Register functions, or new revisions of them; returns when their first run has succeeded.

    A folder's code and weights are uploaded: a key that may do this has a shell on the GPU workers.
    """
    if watch:
        with suppress(KeyboardInterrupt):
            _watch(files, output)
        return
    with connected() as client:
        for file in files:
            try:
                _deploy(client, file, output)
            except (OSError, ValueError) as error:
                fail(str(error), EXIT_USAGE)


def _watch(files: Sequence[Path], output: Output) -> None:
    """Deploy, and again after each change. What cannot be deployed is said, and waits for the next change."""
    from smore_client import ClientError

    deployed: dict[Path, dict[Path, tuple[int, int]]] = {}
    seen = dict(deployed)
    with connected() as client:
        while True:
            for file in files:
                before, now = seen.get(file), _state(file)
                seen[file] = now
                if now == deployed.get(file) or (now != before and file in deployed):
                    continue
                deployed[file] = now
                try:
                    _deploy(client, file, output)
                except ClientError as error:
                    write(f"smore: {problem(error)}", error=True)
                except (OSError, ValueError) as error:
                    write(f"smore: {error}", error=True)
                write(f"watching {file}; Ctrl-C ends it", error=True)
            time.sleep(POLL_S)


def _state(source: Path) -> dict[Path, tuple[int, int]]:
    """When each file that is deployed was written, in nanoseconds, and its bytes."""
    from smore_client.pack import files_of

    state: dict[Path, tuple[int, int]] = {}
    # A file may go while it is looked at, and a folder may hold what is refused: deploying it says so.
    with suppress(OSError, ValueError):
        for path in files_of(source) if source.is_dir() else [source]:
            status = path.stat()
            state[path] = status.st_mtime_ns, status.st_size
    return state


def _deploy(client: "Client", file: Path, output: Output) -> None:
    """Raises ClientError, OSError, ValueError."""
    if output is not Output.TABLE:
        show_value(client.deploy(file), output)
        return
    with _Steps() as steps:
        deployed = client.deploy(file, progress=steps.uploaded)
        steps.done(deployed)
    write(f"{deployed.name} revision {deployed.revision}{'' if deployed.created else ' (as it was)'}", flush=True)


class _Steps:
    """The steps of one deploy, on stderr: what lasts now as a line that grows in a terminal, what has ended as a line."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._live: Progress | None = None

    def __enter__(self) -> "_Steps":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._live = Progress(*columns, console=Console(stderr=True), transient=True)
            self._live.start()
            self._show("packing")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, text: str) -> None:
        if self._live is not None:
            for task in self._live.task_ids:
                self._live.remove_task(task)
            self._live.add_task(text, total=None)

    def uploaded(self, done: int, total: int) -> None:
        """``done`` of ``total`` bytes are there."""
        if done < total:
            self._show(f"uploading {done / 1e6:.1f} of {total / 1e6:.1f} MB")
            return
        size = f"{total / 1e6:.1f} MB" if total >= 1e6 else f"{total / 1e3:.1f} kB"
        self._end("upload", time.monotonic() - self._began, size)
        self._show("building the environment, loading, first run")

    def done(self, deployed: "Deployed") -> None:
        """The first run has succeeded, or was not needed."""
        measured = deployed.measured
        phases = {} if measured is None else measured.phases_ms
        for step, parts in STEPS.items():
            took_ms = [phases[part] for part in parts if part in phases]
            if took_ms:
                chosen = measured.packages if measured is not None and step == "environment" else []
                self._end(step, sum(took_ms) / 1e3, " ".join(chosen))
        if measured is not None and measured.examples_ms:
            self._end("first run", measured.examples_ms / 1e3, "all runs of the example")
        run_ms = (measured.run_ms if measured is not None else None) or 0.0
        if deployed.deadline_ms is not None and run_ms > TIGHT * deployed.deadline_ms:
            took = f"A run took {run_ms:.0f} ms and the deadline is {deployed.deadline_ms:g} ms"
            means = "none can meet it" if run_ms > deployed.deadline_ms else "calls that have to wait are refused"
            write(f"{took}: {means}.", error=True, flush=True)
        for words in deployed.changed:
            write(f"callers may notice: {words}", error=True, flush=True)
        for words in deployed.warnings:
            write(f"warning: {words}", error=True, flush=True)

    def _end(self, step: str, took_s: float, more: str = "") -> None:
        write(f"{step:<12}{took_s:7.2f} s{f'  {more}' if more else ''}", error=True, flush=True)
