"""What the commands of ``smore`` share: options, the client, how an answer is shown, how a command ends."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar
from urllib.parse import quote

import typer

from smore.cli import names

if TYPE_CHECKING:
    from smore.process.settings import Settings
    from smore_client import Client, ClientError

#: Whether errors show all that the platform said (``smore -v``).
verbose: Final = ContextVar("verbose", default=False)

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="How to show it.")]
InvocationId = Annotated[str, typer.Argument(metavar="ID", autocompletion=names.invocations)]
ProjectName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=names.projects)]
FunctionName = Annotated[str, typer.Argument(metavar="FUNCTION", autocompletion=names.functions)]
GpuName = Annotated[str, typer.Argument(metavar="GPU", autocompletion=names.gpus)]
JobId = Annotated[str, typer.Argument(metavar="JOB", autocompletion=names.jobs)]
ForOption = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="How long: 90s, 30m, 2h, 1d; without it until --end.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AnywayOption = Annotated[bool, typer.Option(help="Even where trainings lose the ends that they were promised.")]
EndOption = Annotated[bool, typer.Option("--end", help="Take it back.")]
ProjectOption = Annotated[
    str | None, typer.Option(autocompletion=names.projects, help="Of this project; without it that of your key.")
]
AllProjectsOption = Annotated[bool, typer.Option("--all-projects", "-A", help="Of all projects; for operators.")]
T = TypeVar("T")
#: Columns of a line that is written into a pipe.
PIPE_WIDTH: Final = 200
#: Columns of a line that is laid out only to measure its width.
MOST_WIDTH: Final = 10_000
#: A state, health or verdict, and its colour.
STYLES: Final = {
    **dict.fromkeys(("succeeded", "ok", "active"), "green"),
    **dict.fromkeys(("running", "dispatched", "starting"), "cyan"),
    **dict.fromkeys(("expired", "rejected", "cancelled", "warning", "stopping"), "yellow"),
    **dict.fromkeys(("failed", "lost", "broken"), "red"),
}
#: Code of the platform → what to do next. ``{function}``, ``{id}`` and ``{field}`` are those of the answer.
_NEXT: Final[Mapping[str, str]] = {
    "slo_infeasible": "give it more time with --deadline-ms; `smore invoke NAME --dry-run` with the same deadline says what"
    " stands against it; a key with the scope admin gives it more for good: `smore slo function NAME DEADLINE`",
    "slo_infeasible.by": "--by earliest takes the earliest end, --unless queue waits without a promise",
    "deadline_expired": "`smore explain {id}` says where its time went, to a key with the scope read",
    "handler_error": "`smore explain {id}` has its traceback, `smore logs {function}` what it printed, for keys with the scope"
    " read",
    "function_not_found": "`smore functions` lists those of this key's project; `smore deploy FILE` adds one, with the scope"
    " deploy",
    "invocation_not_found": "`smore ps` lists those that are known; of a request's id `smore logs --request ID` shows what the"
    " logs of this machine's processes have",
    "forbidden": "whoever has a key of the project with the scope admin makes one that may: `smore keys create NAME --scope"
    " SCOPE`",
    "queue_full": "send fewer at a time, or try again; `smore queues` shows what waits, to a key with the scope read",
    "limit_reached": "`smore projects` shows the limit {field} and what is used of it; an operator changes it with"
    " `smore projects limit`",
    "draining": "try again; an operator ends a drain of the platform (`smore queues resume --all`), a key with the scope admin"
    " that of a function (`smore queues resume NAME`)",
    "no_leader": "`smore health` says which process is missing",
    "storage_full": "free space on the platform's disk, or delete functions that nobody calls",
}
#: A table's column: its header, and a row's cell.
Column = tuple[str, Callable[[T], object]]


#: Control characters but line end and tab → how they are shown: as JSON escapes them. What others wrote may hold
#: sequences that a terminal obeys.
_SHOWN: Final = {code: f"\\u{code:04x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def shown(text: str) -> str:
    """A text whose control characters a terminal does not obey."""
    return text.translate(_SHOWN)


def write(text: object = "", *, end: str = "\n", error: bool = False, flush: bool = False) -> None:
    """Print a text with :func:`shown`; ``error``: on stderr, ``end``: as it is. All commands print through it."""
    print(shown(str(text)), end=end, file=sys.stderr if error else sys.stdout, flush=flush)


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    """Print ``message`` on stderr and end the command with exit code ``code``."""
    write(f"smore: {message}", error=True)
    raise typer.Exit(code)


@contextmanager
def connected(options: Mapping[str, str] = MappingProxyType({})) -> Iterator["Client"]:
    """
    A client of the platform. Its errors become a line on stderr and an exit code. ``options``: fields of the request that
    an error may name → the options that they were given by.
    """
    from smore_client import Client, ClientError, Unreachable

    try:
        with Client() as client:
            yield client
    except ClientError as error:
        fail(problem(error, options), EXIT_UNREACHABLE if isinstance(error, Unreachable) else EXIT_FAILED)


def problem(error: "ClientError", options: Mapping[str, str] = MappingProxyType({})) -> str:
    """What a command says of an error of the client; with ``smore -v`` all that the platform said."""
    from smore_client import ApiError

    lines = [str(error)]
    if not isinstance(error, ApiError):
        url = os.environ.get("SMORE_URL")
        return "\n".join([*lines, f"SMORE_URL is {url}." if url else searched()])
    field = str(error.body.get("field", ""))
    if field in options and lines[0].startswith(f"{field}: "):
        lines[0] = options[field] + lines[0].removeprefix(field)
    # A first run that failed has its whole log in the detail.
    if error.traceback and error.traceback.strip() not in error.detail:
        lines.append(error.traceback.rstrip())
    earliest_ms = error.body.get("earliest_deadline_ms")
    if earliest_ms is not None and f"{earliest_ms} ms" not in error.detail:
        lines.append(f"the earliest deadline that would be met: {earliest_ms} ms")
    code = f"{error.code}.{field}" if f"{error.code}.{field}" in _NEXT else error.code
    if step := _key_sent() if error.status == 401 else _next_step(code, error.body):
        later = f", or try again in {error.retry_after_s:g} s" if error.status == 429 and error.retry_after_s else ""
        lines.append(f"next: {step}{later}")
    if (serving := error.body.get("serving")) is not None:
        lines.append(f"revision {serving} still serves" if serving else "no revision serves")
    if verbose.get():
        lines.append(json.dumps(error.body, indent=2))
    return "\n".join(lines)


def _key_sent() -> str:
    """Which key was sent where."""
    from smore_client.locate import locate

    url, key = locate(None, None)
    if not key:
        return (
            f"No key was sent to {url}: SMORE_API_KEY holds one, or SMORE_HOME names the folder of a platform of this"
            " machine, whose file key is read."
        )
    source = "SMORE_API_KEY" if os.environ.get("SMORE_API_KEY") else str(platform_home().resolve() / "key")
    return f"The key of {source} was sent to {url}, which does not know it."


def _next_step(code: str, body: Mapping[str, Any]) -> str:
    """What to do about an error of the platform; '' where the answer does not name what the advice needs."""
    try:
        return _NEXT.get(code, "").format_map(body)
    except KeyError:
        return ""


def asks(yes: bool) -> bool:
    """Whether a command asks before it changes something: in a terminal, unless ``yes``."""
    return not yes and sys.stdin.isatty()


def confirm(question: str, yes: bool) -> None:
    """Ask in a terminal, unless ``yes``; end the command with exit code 1 where the answer is no."""
    if asks(yes) and not typer.confirm(shown(question), err=True):
        fail("nothing was changed")


Listing = TypeVar("Listing", bound=Callable[[Output], object])


def list_alone(app: typer.Typer, help_: str, name: str = "ls") -> Callable[[Listing], Listing]:
    """Make a function the list of its noun: what ``app`` does alone, and under ``name`` with the help text ``help_``."""

    def register(list_: Listing) -> Listing:
        @app.callback()
        def without_command(context: typer.Context, output: OutputOption = Output.TABLE) -> None:
            if context.invoked_subcommand is None:
                list_(output)

        @app.command(name, help=help_)
        def ls(output: OutputOption = Output.TABLE) -> None:
            list_(output)

        return list_

    return register


def show(
    rows: Sequence[T], columns: Sequence[Column[T]], output: Output, *, optional: Sequence[str] = ()
) -> Collection[str]:
    """
    Print ``rows`` as a table, or whole as JSON or YAML. A screen that is too narrow does without columns that are empty
    in all rows, then without those of the headers in ``optional``, the first of them first.

    A screen that is too narrow for the rest gets one paragraph a row. Returns the headers of the table that are shown.
    """
    if output is not Output.TABLE:
        show_value(list(rows), output)
        return ()
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    # A pipe has no screen to fit: lines are not wrapped.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)

    def table(kept: Sequence[Column[T]]) -> Table:
        made = Table(*(header for header, _ in kept), box=box.SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            made.add_row(*(_styled(header, escape(shown(cell(get(row))))) for header, get in kept))
        return made

    def fits(made: Table) -> bool:
        return console.measure(made, options=console.options.update(width=MOST_WIDTH)).maximum <= console.width

    filled = [column for column in columns if any(cell(column[1](row)) != cell(None) for row in rows)]
    for kept in (
        columns,
        *([column for column in filled if column[0] not in optional[:count]] for count in range(len(optional) + 1)),
    ):
        made = table(kept)
        if fits(made):
            console.print(made)
            headers = [header for header, _ in kept]
            left_out = [header for header, _ in filled if header and header not in headers]
            if left_out and sys.stdout.isatty():
                say(f"not shown on so narrow a screen: {', '.join(left_out)} (-o json has all)")
            return headers
    cells = [[cell(get(row)) for _, get in columns] for row in rows]
    write("\n\n".join(_paragraphs([header for header, _ in columns], cells, console.width)))
    return [header for header, _ in columns]


def _styled(header: str, text: str) -> str:
    """A state in its colour, which rich leaves out of a pipe and where NO_COLOR is set."""
    style = STYLES.get(text.partition(":")[0]) if header in ("state", "health", "") else None
    return f"[{style}]{text}[/{style}]" if style is not None else text


def _paragraphs(headers: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """
    A paragraph for each row: its first cell, and below it "header value" for each other cell that is not empty, as many
    to a line as fit into ``width`` columns.
    """
    for first, *rest in cells:
        lines = [first]
        room = 0
        for header, text in zip(headers[1:], rest, strict=True):
            if text == cell(None):
                continue
            labelled = f"{header} {text}".strip()
            if len(labelled) + 3 <= room:
                lines[-1] += f"   {labelled}"
                room -= len(labelled) + 3
            else:
                lines += _wrapped(labelled, width, "  ")
                room = width - len(lines[-1])
        yield "\n".join(lines)


def say(text: str) -> None:
    """Print sentences; in a terminal no line is longer than the screen is wide."""
    write("\n".join(_wrapped(text, screen_width())))


def say_page(url: str, *parts: str, project: str | None = None) -> None:
    """In a terminal, print the address of a page of the dashboard; ``url``: that of the gateway."""
    if sys.stdout.isatty():
        query = f"?project={quote(project, safe='')}" if project is not None else ""
        write(f"Page: {url}/ui/{'/'.join(quote(part, safe='') for part in parts)}{query}")


def screen_width() -> int:
    """Columns of a line: those of the terminal, or enough for any line of a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else MOST_WIDTH


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """The lines of a text, broken between words; a word that is too long stays whole."""
    lines = (
        textwrap.wrap(
            line,
            width,
            initial_indent=indent,
            subsequent_indent=indent and f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.splitlines()
    )
    return [line for wrapped in lines for line in wrapped or [""]]


def tell(line: str, value: object, output: Output) -> None:
    """Print what came of a command: in a line, or whole as JSON or YAML."""
    if output is Output.TABLE:
        say(line)
    else:
        show_value(value, output)


def show_value(value: object, output: Output) -> None:
    """Print one value whole: as YAML for :attr:`Output.YAML`, else as JSON."""
    import msgspec

    plain = msgspec.to_builtins(value, enc_hook=lambda other: other.tolist())
    if output is Output.YAML:
        import yaml

        write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), end="")
    else:
        write(json.dumps(plain, indent=2, ensure_ascii=False))


def cell(value: object) -> str:
    """The text of a value in a table; a dash for an empty one."""
    match value:
        case None | "" | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case list():
            return " ".join(str(item) for item in value)
        case _:
            return str(value)


def span_s(text: str) -> float:
    """Seconds of ``500ms``, ``90s``, ``30m``, ``2h``, ``1d`` or a number of seconds. Raises typer.BadParameter."""
    from smore.domain.errors import InvalidSpec
    from smore.domain.function import duration_s

    try:
        return duration_s(float(text) if text.replace(".", "", 1).isdecimal() else text, "")
    except InvalidSpec as error:
        raise typer.BadParameter(f"{text!r} is no duration; write 500ms, 90s, 30m, 2h or 1d") from error


def configuration() -> "Settings":
    """The settings of this shell; the command ends with exit code 2 where a value cannot be used."""
    from smore.process.environment import InvalidSetting, load

    try:
        return load()
    except InvalidSetting as error:
        fail(str(error), EXIT_USAGE)


def warn_of_unknown_settings() -> None:
    """Say on stderr which SMORE_ variables nobody reads."""
    from smore.process.environment import warnings

    for line in warnings(os.environ):
        write(f"smore: {line}", error=True)


def searched() -> str:
    """Which folder was looked into for this machine's platform, and what is there."""
    from smore.local import machine

    home = platform_home().resolve()
    if not home.exists():
        state = "it does not exist"
    elif machine.endpoints(home) is not None:
        state = "its platform runs"
    elif (home / "supervisord.conf").exists():
        state = "its platform does not run; `smore up` starts it"
    else:
        state = "no platform was started there"
    return f"Looked into {home} (SMORE_HOME names another folder): {state}."


def platform_home() -> Path:
    """The folder of this machine's platform."""
    return configuration().home


def percent(value: float | None) -> str | None:
    return None if value is None else f"{value * 100:.1f} %"


def ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1e3:.1f} ms"


def moment(value: datetime | None) -> str | None:
    """An instant in local time."""
    return None if value is None else value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
