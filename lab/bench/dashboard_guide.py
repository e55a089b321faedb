"""The pictures of the dashboard in README and guide: a made-up day of forty GPU instances."""

import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PIL import Image
from sqlalchemy import Engine

from lab.bench import browser as driver
from lab.bench import dashboard_functions, dashboard_trainings
from lab.bench.uploads import eventually
from smore_client import Client

if TYPE_CHECKING:
    from playwright.sync_api import Browser

GPUS: Final = 40
FUNCTIONS: Final = 6
#: Calls of which the quickest is shown.
CALLS: Final = 20
#: Colours of a picture: few, so that it is small.
COLOURS: Final = 64
#: A GPU instance on which a training has a guest.
SHARED: Final = dashboard_trainings.GANG * dashboard_trainings.GANGS
#: A day of closed windows, budget steps and warm instances there.
_LANES: Final = (
    "SELECT setseed(0.5)",
    """
    INSERT INTO loss_windows SELECT %(job)s, %(gpu)s, at, at + interval '1 second', 'default', 0.104, 6, 0.1, 6, 0.003, 0.104, 6
    FROM generate_series(now() - interval '1 day', now(), interval '30 seconds') AS at
    """,
    """
    INSERT INTO budget_steps SELECT (extract(epoch FROM at) * 1000)::bigint << 20, %(job)s, %(gpu)s, at, 'duty', 0.5 + 0.5 * random(), 1
    FROM generate_series(now() - interval '1 day', now(), interval '40 minutes') AS at
    """,
    """
    INSERT INTO instances (id, gpu, boot, project, function, revision, prewarmed, outcome, asked_at, ended_at, told_at, load_s, busy_s,
        idle_s, uses, saved, memory_mib)
    SELECT 'life-' || f || '-' || n, %(gpu)s, 'b', 'default', 'function-00' || f, 1, false, 'cold', begun,
        begun + random() * interval '50 minutes', begun, 1, 1, 1, 9, 0, 900
    FROM generate_series(0, 5) AS f, generate_series(1, 24) AS n,
        LATERAL (SELECT now() - n * interval '1 hour' + (f * n) %% 7 * interval '7 minutes' AS begun) AS life
    WHERE begun < now() - interval '50 minutes'
    """,
)


def fill(engine: Engine, connection: Any, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Trainings as :func:`lab.bench.dashboard_trainings.fill`, and what a day left behind where two of them train."""
    jobs, gpu = dashboard_trainings.fill(engine, connection, names), names[SHARED]
    dashboard_functions.fill(connection, [f"function-{number:03d}" for number in range(FUNCTIONS)], gpu)
    for statement in _LANES:
        connection.execute(statement, {"job": jobs[gpu][0], "gpu": gpu} if "%(" in statement else None)
    return jobs


def pictures(
    chromium: "Browser", state: Any, url: str, client: Client, gpus: Sequence[str], folder: Path
) -> dict[str, float]:
    """Each picture ends below an element of its page. Returns the kB that they take together."""
    calls = []
    for _ in range(CALLS):
        began = time.perf_counter()
        id_ = client.invoke("echo", {"x": 1}).id
        calls.append((time.perf_counter() - began, id_))
    # The machine may be busy.
    _, invocation = min(calls)
    eventually(lambda: client.explain(invocation).complete, 30, "the whole explanation")
    with driver.viewed(chromium, state) as seen:
        for name, address, last in (
            ("cluster", "/ui/", ".tiles"),
            ("gpu", f"/ui/gpus/{gpus[SHARED]}?span=6h", ".lanes-ends"),
            ("invocation", f"/ui/invocations/{invocation}", "table[aria-label*=weighed]"),
        ):
            seen.go(url + address)
            box = seen.page.locator(last).first.bounding_box()
            assert box is not None
            clip = {"x": 0.0, "y": 0.0, "width": float(driver.WIDTHS[0]), "height": box["y"] + box["height"] + 1}
            taken = Image.open(io.BytesIO(seen.page.screenshot(full_page=True, clip=clip)))  # type: ignore[arg-type]
            taken.convert("RGB").quantize(COLOURS).save(folder / f"dashboard-{name}.png", optimize=True)
    return {"pictures_kb": sum(path.stat().st_size for path in folder.glob("dashboard-*.png")) / 1000}
