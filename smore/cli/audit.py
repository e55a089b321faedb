"""``smore audit``: who changed what."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from smore.cli import names
from smore.cli.terminal import Column, Output, OutputOption, ProjectOption, connected, moment, show, span_s, write


def audit(
    project: ProjectOption = None,
    key: Annotated[str | None, typer.Option(autocompletion=names.keys, help="Id of the API key.")] = None,
    route: Annotated[str | None, typer.Option(help="A part of the route: slo, boost, DELETE…")] = None,
    target: Annotated[str | None, typer.Option(help="For instance function/echo.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="As far back: 30m, 2h, 7d.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="As many at most.")] = 50,
    cursor: Annotated[int | None, typer.Option(help="Go on behind the entry of this number.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Who changed what, the newest first."""
    from smore_client import admin
    from smore_client.types import AuditEntry

    since_at = (datetime.now(UTC) - timedelta(seconds=span_s(since))).isoformat() if since is not None else None
    filters = {"project": project, "key": key, "route": route, "target": target, "since": since_at}
    with connected() as client:
        page = client.carry(admin.audit(filters, limit=limit, cursor=cursor))
    columns: list[Column[AuditEntry]] = [
        ("at", lambda e: moment(e.at)),
        ("key", lambda e: f"{e.key_name} ({e.key_id})" if e.key_name else e.key_id),
        ("route", lambda e: e.route),
        ("target", lambda e: f"job/{e.target_name}" if e.target_name else e.target),
        ("before", lambda e: _short(e.before)),
        ("after", lambda e: _short(e.after)),
        ("project", lambda e: e.project),
        ("id", lambda e: e.id),
    ]
    show(page.entries, columns, output, optional=("id", "project"))
    if page.next_cursor is not None and output is Output.TABLE:
        write(f"older entries: --cursor {page.next_cursor}")


def _short(value: dict[str, Any] | None) -> str | None:
    """The fields of an entry's JSON on one line; times in local time."""
    if value is None:
        return None
    shown = {
        name: moment(datetime.fromtimestamp(content, UTC))
        if name.endswith("_until") and isinstance(content, int | float)
        else content
        for name, content in value.items()
    }
    return ", ".join(f"{name}={content}" for name, content in shown.items())
