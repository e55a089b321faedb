"""The pages of functions: a day of calls of many functions, and what people do there."""

import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from lab.bench import browser as driver
from lab.bench.uploads import eventually
from smore_client import Client, admin

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page, Request

TIMES: Final = 5
#: Letters that are typed, and milliseconds between two: a dry run follows the last one only.
TYPED: Final = 40
TYPING_MS: Final = 60
#: Changes of the deadline, and milliseconds between two: longer than the page waits for a further one.
MOVES: Final = 8
MOVING_MS: Final = 250
#: An input of each function that is called by its page.
_INPUTS: Final = {"echo": '{"x": 1}', "doubled": '{"x": [[1.5, 2.5]]}'}
_DAY: Final = """
INSERT INTO function_minutes (minute, project, function, revision, gpu, succeeded, failed, met, ran, cold, rows, total_s, failed_s,
    wait_s, run_s, load_s, worst_s, wholes)
SELECT minute, 'default', name, 1, %(gpu)s, 10, 1, 9, 10, 1, 10, 0.5, 0.05, 0.1, 0.3, 0.5, 0.2,
    ARRAY(SELECT 128 | bucket FROM generate_series(26, 35) AS bucket)
FROM unnest(%(names)s::text[]) AS name,
    generate_series(date_trunc('minute', now()) - interval '1 day', now(), interval '1 minute') AS minute
"""
_HOURS: Final = """
INSERT INTO function_hours (hour, project, function, gpu, succeeded, failed, met, cold, run_s)
SELECT date_trunc('hour', minute), project, function, gpu, sum(succeeded), sum(failed), sum(met), sum(cold), sum(run_s)
FROM function_minutes GROUP BY 1, 2, 3, 4 ON CONFLICT DO NOTHING
"""


def fill(connection: Any, names: Sequence[str], gpu: str = "cpu0") -> None:
    """A day of minutes and hours of each of the functions, on a GPU instance."""
    connection.execute(_DAY, {"names": list(names), "gpu": gpu})
    connection.execute(_HOURS)


def deploy(client: Client) -> None:
    """A function of tensors."""
    document = {"metadata": {"name": "doubled"}, "spec": {"entrypoint": "lab.bench.means:Doubled"}}
    client.deploy({"apiVersion": "smore/v1", "kind": "Function", **document})


def measured(chromium: Any, state: Any, url: str, key: str) -> dict[str, float]:
    lists: list[float] = []
    ones: list[float] = []
    for _ in range(TIMES):
        for address, found in (("/ui/functions", lists), ("/ui/functions/function-000?since=24h", ones)):
            with driver.viewed(chromium, state) as seen:
                seen.go(url + address)
                found.append(seen.figures()["complete"])
    with driver.viewed(chromium, state) as seen:
        calls = sum(_called(seen.page, url, function, text) for function, text in _INPUTS.items())
        calls += _called(seen.page, url, "doubled", struct.pack("<2f", 1.5, 2.5))
        rate = _dry_runs_per_s(seen.page, url)
        seconds = used(seen, url, key)
    return {
        "functions_ms": statistics.median(lists),
        "function_ms": statistics.median(ones),
        "try_calls": calls,
        "dry_runs_per_s": rate,
        "usage_agrees": float(max(seconds) - min(seconds) < 1),
    }


def _called(page: "Page", url: str, function: str, given: str | bytes) -> bool:
    page.goto(f"{url}/ui/functions/{function}?tab=try")
    if isinstance(given, bytes):
        file: FilePayload = {"name": "x.bin", "mimeType": "application/octet-stream", "buffer": given}
        page.get_by_label("Or its bytes").set_input_files(file)
    else:
        page.get_by_label("Input, as JSON").fill(given)
        page.locator(".outcome b").first.wait_for()
    page.get_by_role("button", name="Call").click()
    page.get_by_role("heading", name="Result").or_(page.locator("form .failed")).first.wait_for()
    return page.get_by_role("heading", name="Result").count() == 1


def used(seen: driver.Seen, url: str, key: str) -> list[float]:
    """
    The seconds that functions of a new project ran beside its training alone: by its trainings' statements, REST, the
    command and the page, which shows them as money, a second for a unit.
    """
    with Client(url, key) as operator:
        operator.create_project("team")
        own = operator.create_key("team", ["read", "invoke", "deploy", "jobs"], project="team").key
        with Client(url, own) as team:
            job = team.start_job("night", ["zoo.train", "--model", "resnet50", "--iterations", "100000"], budget=19)
            try:
                eventually(lambda: team.job(job.id).state == "running", 60, "the training")
                document = {"metadata": {"name": "sleeps"}, "spec": {"entrypoint": "lab.bench.means:Sleeps"}}
                team.deploy({"apiVersion": "smore/v1", "kind": "Function", **document})
                for _ in range(4):
                    team.invoke("sleeps", {"s": 0.3}, deadline_ms=60_000)
                # And the first run of the revision.
                eventually(lambda: team.statement(job.id).invocations == 5, 60, "the record of them")
                stated = sum(team.statement(each.id).harvested_s for each in team.jobs())
                (total,) = team.harvest().totals
            finally:
                operator.carry(admin.change_job(job.id, "stop", project="team"))
            eventually(lambda: team.job(job.id).ended_at, 60, "its end")
            team.delete("sleeps")
    environment = os.environ | {"SMORE_URL": url, "SMORE_API_KEY": key}
    command = [sys.executable, "-m", "smore.cli", "usage", "--project", "team", "-o", "json"]
    (told,) = json.loads(subprocess.check_output(command, env=environment))["totals"]
    seen.go(f"{url}/ui/harvest?project=team&price={quote('cpu=3600')}")
    row = seen.page.get_by_role("table", name="By project").get_by_role("row").filter(has_text="team")
    return [stated, total.run_s, told["run_s"], float(row.locator("[data-label=money]").inner_text())]


def _dry_runs_per_s(page: "Page", url: str) -> float:
    """While somebody types and moves the deadline: the most in any second."""
    asked: list[float] = []

    def note(request: "Request") -> None:
        if request.url.endswith(":dryRun"):
            asked.append(time.monotonic())

    page.goto(f"{url}/ui/functions/echo?tab=try")
    field = page.get_by_label("Input, as JSON")
    field.fill("")
    page.on("request", note)
    field.press_sequentially('{"x": "' + "y" * TYPED + '"}', delay=TYPING_MS)
    for _ in range(MOVES):
        page.get_by_label("as a slider").press("ArrowLeft")
        page.wait_for_timeout(MOVING_MS)
    page.locator(".outcome b").first.wait_for()
    return float(max(sum(0 <= other - one < 1 for other in asked) for one in asked))
