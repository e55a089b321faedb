"""``smore open`` and ``smore whoami``: the dashboard in a browser, and the key that is used."""

from typing import Annotated, Final
from urllib.parse import quote, urlencode

import typer

from smore.cli.terminal import EXIT_USAGE, Output, OutputOption, connected, fail, tell, write

#: Pages of the dashboard by name. Those of things are followed by a name.
PAGES: Final = (
    "audit",
    "functions",
    "gpus",
    "harvest",
    "invocations",
    "plan",
    "predictor",
    "prewarm",
    "queues",
    "trainings",
)


def open_dashboard(
    page: Annotated[
        str | None, typer.Argument(metavar="[PAGE]", autocompletion=lambda: PAGES, help=f"{', '.join(PAGES)}.")
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of a function, a training, and so on.")] = None,
    administer: Annotated[
        bool,
        typer.Option("--admin", help="With the right to pause, drain, purge and change deadlines, if the key has it."),
    ] = False,
    print_: Annotated[bool, typer.Option("--print", help="Print the address, and open nothing.")] = False,
) -> None:
    """
    Open the dashboard in a browser, logged in with this shell's key. The address lets one browser in, within a minute.
    """
    import webbrowser

    from smore_client import admin

    if page is not None and page not in PAGES:
        fail(f"There is no page {page}: {', '.join(PAGES)}.", EXIT_USAGE)
    with connected() as client:
        code = client.carry(admin.login_code()).code
        path = "".join(f"/{quote(part, safe='')}" for part in (page, name) if part)
        query = urlencode(({"to": f"/ui{path}"} if path else {}) | ({"may": "admin"} if administer else {}))
        address = f"{client.url}/ui/login{query and '?'}{query}#{code}"
    if print_ or not webbrowser.open(address):
        write(address)


def whoami(output: OutputOption = Output.TABLE) -> None:
    """Which key this shell uses, and what it may do."""
    from smore_client import admin

    with connected() as client:
        me, url = client.carry(admin.me()), client.url
    what = "an operator's" if me.operator else f"of the project {me.project}"
    tell(f"{me.name or '-'} ({me.key}), {what}, may {', '.join(me.scopes)}; at {url}", me, output)
