"""``smore logs``: what a function printed, wherever it ran, and the logs of this machine's processes."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from smore.cli import names
from smore.cli.terminal import (
    EXIT_USAGE,
    Output,
    OutputOption,
    connected,
    fail,
    platform_home,
    searched,
    show_value,
    span_s,
    write,
)

if TYPE_CHECKING:
    from smore_client import Client
    from smore_client.types import LogLine

#: Seconds between two reads of a file that is followed.
FOLLOW_S: Final = 0.2
#: Lines to begin with: of a function, of each process.
FUNCTION_LINES: Final = 100
PROCESS_LINES: Final = 20


def logs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            autocompletion=names.logged,
            help="A function, or a process of this machine: gateway, worker-cpu0, redis… Without it all processes.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    invocation: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            autocompletion=names.invocations,
            help="Of a function: only what was printed while this invocation ran.",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of a function: only what came so long ago at most: 30m, 2h.")
    ] = None,
    lines: Annotated[
        int | None,
        typer.Option("-n", "--lines", min=0, help="Lines to begin with: 100 of a function, 20 of each process."),
    ] = None,
    function: Annotated[
        bool, typer.Option("--function", help="NAME is a function, though a process of this machine has that name.")
    ] = False,
    request: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Of processes: every line with this request id (the request_id of an error), older files of the log included."
            " NAME, if any, is a process.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """
    What a function printed, wherever it ran, or the logs of this machine's processes.

    NAME is a process where this machine's platform has a log of that name, and else a function. With -o json each line
    is an object.
    """
    if request is not None:
        _show_request(request, name, output)
        return
    files = {file.stem: file for file in sorted((platform_home() / "logs").glob("*.log"))}
    if function or invocation is not None or since is not None or (name is not None and name not in files):
        if name is None:
            fail("name the function: smore logs FUNCTION", EXIT_USAGE)
        try:
            _show_function(name, follow, invocation, since, FUNCTION_LINES if lines is None else lines, output)
        except typer.Exit:
            if files and invocation is None:
                write(f"This machine's processes: {', '.join(files)}", error=True)
            raise
        return
    if not files:
        fail(f"there are no logs. {searched()}")
    _show_processes(
        {name: files[name]} if name is not None else files, follow, PROCESS_LINES if lines is None else lines, output
    )


def _show_function(
    name: str, follow: bool, invocation: str | None, since: str | None, lines: int, output: Output
) -> None:
    moment = datetime.now(UTC) - timedelta(seconds=span_s(since)) if since is not None else None
    with connected() as client, suppress(KeyboardInterrupt):
        if invocation is not None and follow:
            _state_of(client, invocation, name)
        printed = False
        for line in client.logs(name, invocation=invocation, since=moment, lines=lines, follow=follow):
            printed = True
            write_line(_worded(line), line, output, flush=follow)
        if invocation is not None and lines and not printed and not follow:
            state = _state_of(client, invocation, name)
            when = "" if since is None else f" of the last {since}"
            write(f"smore: the log{when} has no line of {invocation}, which is {state}", error=True)


def _state_of(client: "Client", invocation: str, function: str) -> str:
    """The state of an invocation. The command ends with exit code 1 where there is none, or it is another function's."""
    known = client.invocation(invocation)
    if known.function and known.function != function:
        fail(
            f"{invocation} is an invocation of {known.function}: smore logs {known.function} --invocation {invocation}"
        )
    return known.state


def _worded(line: "LogLine") -> str:
    """Time, GPU instance, revision, invocation and stream, then the text."""
    others = f"+{len(line.invocations) - 1}" if len(line.invocations) > 1 else ""
    invocation = f"{line.invocations[0]}{others}" if line.invocations else "-"
    at = line.at.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if line.at is not None else "-"
    return f"{at} {line.gpu} r{line.revision} {invocation} {line.stream}: {line.text}"


def write_line(words: str, line: object, output: Output, *, flush: bool) -> None:
    """Print a line of a log in ``words``, or as one line of JSON or an entry of a YAML list."""
    import msgspec

    if output is Output.YAML:
        show_value([line], output)
    else:
        write(words if output is Output.TABLE else json.dumps(msgspec.to_builtins(line), ensure_ascii=False))
    if flush:
        sys.stdout.flush()


def _write_process(process: str, text: str, output: Output, *, alone: bool) -> None:
    words = text if alone else f"{process} | {text}"
    write_line(words, {"process": process, "text": text}, output, flush=False)


def _show_request(id_: str, process: str | None, output: Output) -> None:
    """The lines of this machine's processes, or of one, that name a request; exit code 1 where there is none."""
    folder = platform_home() / "logs"
    if process is not None and not any(folder.glob(f"{process}.log*")):
        write(f"smore: {process} is no process of this machine; the logs of all processes are searched", error=True)
        process = None
    # gateway.log.2, gateway.log.1, gateway.log: a rotated file has a number.
    files = sorted(
        (file for file in folder.glob(f"{process or '*'}.log*")),
        key=lambda file: (file.name.partition(".")[0], -int(file.suffix[1:]) if file.suffix[1:].isdigit() else 0),
    )
    lines = [
        (file.name.partition(".")[0], line.rstrip("\n"))
        for file in files
        for line in file.read_text(errors="replace").splitlines()
        if id_ in line
    ]
    if not lines:
        fail(f"no line of {process or 'a process'} in {folder} names the request {id_}. {searched()}")
    for name, text in lines:
        _write_process(name, text, output, alone=process is not None)


def _show_processes(files: dict[str, Path], follow: bool, lines: int, output: Output) -> None:
    tails = {process: Tail(file, lines) for process, file in files.items()}
    with suppress(KeyboardInterrupt):
        while True:
            for process, tail in tails.items():
                for text in tail.read():
                    _write_process(process, text, output, alone=len(tails) == 1)
            if not follow:
                return
            sys.stdout.flush()
            time.sleep(FOLLOW_S)


class Tail:
    """
    Reader of the whole lines that are appended to a text file.

    A file that was truncated or replaced is read from its beginning. ``lines``: how many of the present ones are read.
    """

    def __init__(self, path: Path, lines: int) -> None:
        self._path = path
        # The file stays open: the rest of a rotated file is still read, and its inode number cannot be used again for
        # the new file.
        self._file = path.open("rb")
        data = self._file.read()
        # Whole lines only: a line that is still being written is read later.
        end = data.rfind(b"\n") + 1
        last = data[:end].splitlines(keepends=True)[-lines:] if lines else []
        self._at = end - sum(map(len, last))

    def read(self) -> Iterator[str]:
        """The whole lines that were appended since the last call."""
        yield from self._rest()
        try:
            replaced = not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return  # between two files of a rotation
        if replaced:
            self._file.close()
            self._file, self._at = self._path.open("rb"), 0
            yield from self._rest()

    def _rest(self) -> Iterator[str]:
        if os.fstat(self._file.fileno()).st_size < self._at:
            self._at = 0
        self._file.seek(self._at)
        data = self._file.read()
        end = data.rfind(b"\n") + 1
        self._at += end
        yield from data[:end].decode(errors="replace").splitlines()
