"""``smore data``: public traces, what is bundled and what can be fetched."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from smore.cli import names
from smore.cli.terminal import EXIT_FAILED, EXIT_USAGE, Output, fail, list_alone, platform_home, say, show_value, write

app = typer.Typer(help="Public traces for simulations; alone: list them.", invoke_without_command=True)


@list_alone(app, "List public traces: what is bundled and what can be fetched.")
def list_(output: Output) -> None:
    from smore.traces import public

    if output is not Output.TABLE:
        bundled = {
            file.relative_to(public.BUNDLED).as_posix(): file.stat().st_size for file in public.BUNDLED.rglob("*.gz")
        }
        fetched = public.fetched(platform_home())
        sets = [
            {"name": name, "bytes": each.bytes, "licence": each.licence, "fetched": (fetched / name).is_dir()}
            for name, each in public.DATA_SETS.items()
        ]
        show_value({"bundled_bytes": bundled, "data_sets": sets}, output)
        return
    say(f"bundled in {public.BUNDLED}:")
    for file in sorted(public.BUNDLED.rglob("*.gz")):
        say(f"  {file.relative_to(public.BUNDLED)}  {file.stat().st_size / 1e3:,.0f} kB")
    say("to fetch:")
    for name, data_set in public.DATA_SETS.items():
        folder = public.fetched(platform_home()) / name
        days = sorted(folder.glob("d*"))
        state = f"in {folder}, {days[0].name} to {days[-1].name}" if days else f"`smore data fetch {name}`"
        say(f"  {name}  {data_set.bytes / 1e6:,.0f} MB  {data_set.about} ({data_set.licence}): {state}")


@app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=names.data_sets, help="A data set that `smore data` lists.")
    ],
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Unpack below this folder; default: SMORE_HOME/data.")
    ] = None,
    url: Annotated[str, typer.Option(metavar="URL", help="Another address of the same archive.")] = "",
) -> None:
    """Download a public data set, compare its checksum, and unpack it: smore data fetch azure2019."""
    from smore.domain.errors import SmoreError
    from smore.traces import public

    data_set = public.DATA_SETS.get(name)
    if data_set is None:
        fail(f"there is no data set {name!r}; there are {', '.join(public.DATA_SETS)}", EXIT_USAGE)
    shown = sys.stderr.isatty()

    def progress(done: int, total: int) -> None:
        if shown:
            write(end=f"\r{done / 1e6:,.0f} of {total / 1e6:,.0f} MB", error=True, flush=True)

    folder = to if to is not None else public.fetched(platform_home())
    try:
        files = public.fetch(data_set, folder, url=url, progress=progress)
    except (SmoreError, OSError) as error:
        fail(f"data fetch: {error}", EXIT_FAILED)
    finally:
        if shown:
            write(error=True)
    write(f"{len(files)} files in {folder / name}. Licence: {data_set.licence}.")
    if files:
        write(f"Use one of its days: --trace folder={name}/{files[0].parent.name}" + (f" --data {to}" if to else ""))
