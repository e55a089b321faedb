"""``smore run``: a function's handler on this machine, without a platform."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smore.cli import launch
from smore.cli.invocations import InputsOption, read_input, read_inputs
from smore.cli.terminal import EXIT_USAGE, Output, fail, show_value, write

if TYPE_CHECKING:
    from smore_client.pack import Packed


def run(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder with a function.yaml and its code, or a function.yaml.")
    ],
    input_text: Annotated[
        str | None,
        typer.Option("--input", "-i", help="JSON, @file with JSON, or - for standard input; without it the example."),
    ] = None,
    inputs: InputsOption = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where the handler is loaded.")] = "cpu",
    output: Annotated[
        Output, typer.Option("-o", "--output", help="table: its outputs alone, as JSON; else all of it.")
    ] = Output.TABLE,
) -> None:
    """
    Run a function's handler here, without a platform: load it, run its example, then your inputs.

    The function.yaml, the inputs and the outputs are checked by the platform's own code. The packages are those of this
    environment; there is no sandbox and no limit of memory. The working directory is a scratch folder.
    """
    many = inputs is not None
    values = None
    if inputs is not None:
        values = read_inputs(inputs)
    elif input_text is not None:
        values = [read_input(input_text)]
    report = _report(_request(source, values, device))
    if report["missing"]:
        write(f"smore: not installed here: {', '.join(report['missing'])}", error=True)
    if report["cause"]:
        fail(f"{report['message']} ({report['cause']})")
    outcomes: list[dict[str, Any]] = report["outcomes"]
    if output is not Output.TABLE:
        show_value(report, output)
    elif many:
        for outcome in outcomes:
            write(json.dumps(outcome["output"], ensure_ascii=False))
    elif outcomes[0]["cause"] == "ok":
        write(json.dumps(outcomes[0]["output"], ensure_ascii=False))
    slowest_ms = max((outcome["run_ms"] for outcome in outcomes), default=0.0)
    if sys.stderr.isatty():
        times = {**report["phases_ms"], "run": slowest_ms}
        write(f"(ms: {', '.join(f'{name} {ms:.1f}' for name, ms in times.items())})", error=True)
    if slowest_ms > report["deadline_ms"]:
        write(f"It ran {slowest_ms:.0f} ms; its deadline is {report['deadline_ms']:g} ms.", error=True)
    failed = [outcome for outcome in outcomes if outcome["cause"] != "ok"]
    if failed:
        said = f"{failed[0]['message']} ({failed[0]['cause']})"
        fail(f"{len(failed)} of {len(outcomes)} failed, the first: {said}" if many else said)


def _request(source: Path, values: list[Any] | None, device: str) -> bytes:
    """What the program reads; the command ends where the client would not deploy the folder."""
    from smore_client.function_file import read_source

    packed: Packed | None = None
    with TemporaryDirectory(prefix="smore-") as temporary:
        try:
            document, packed = read_source(source, Path(temporary))
        except (OSError, ValueError) as error:
            fail(str(error), EXIT_USAGE)
    folder = str(source.resolve()) if packed is not None else ""
    return json.dumps({"document": document, "folder": folder, "inputs": values, "device": device}).encode()


def _report(request: bytes) -> dict[str, Any]:
    """What the program says of it; the command ends where its process ended otherwise."""
    code, answer = launch.ask("alone", request)
    if code or not answer:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        fail(f"the process of the handler ended before its answer, with {how} (crashed)")
    report: dict[str, Any] = json.loads(answer)
    return report
