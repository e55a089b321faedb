"""The dashboard in a browser, on a whole platform: every page, and what people do there."""

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import httpx
import pytest

from lab.bench import browser as driver
from lab.bench import dashboard_functions
from smore_client import admin
from smore_client.types import Explanation
from tests.support.cli import smore
from tests.support.eventually import eventually
from tests.support.whole_platform import BYSTANDER, LIGHT, STRICT, Platform

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(bool(driver.missing()), reason=driver.missing() or "a browser is there"),
]

ENVIRONMENT = STRICT
LEARNS = False

#: What a page of another origin tries with a browser that has a session; ``half``: as if it had been told the page's half too.
#: Returns what came of it, how much storage it sees, and whether it sees into a window of the dashboard.
TRIES = """async ([url, act, half]) => {
    const ask = (path, options = {}) =>
        fetch(url + path, {credentials: "include", ...options}).then((answer) => answer.type, () => "refused");
    const headers = {"X-SMore-Session": half};
    const shell = window.open(`${url}/ui/`);
    await new Promise((done) => setTimeout(done, 1000));
    let sees = true;
    try { sees = Boolean(shell.localStorage); } catch { sees = false; }
    shell.close();
    return [
        await ask("/v1/me"), await ask("/v1/me", {headers}), await ask(act, {method: "POST", headers}),
        await ask(act, {method: "POST", mode: "no-cors"}), localStorage.length, sees,
    ];
}"""
#: Sends a form there, which no origin needs leave for.
SUBMITS = """(action) => {
    const form = Object.assign(document.createElement("form"), {method: "post", action});
    document.body.append(form);
    form.submit();
}"""
#: Markup, what colours a terminal, a word without an end, and marks that turn the direction.
HOSTILE = "<img src=x onerror='document.title=1'> \x1b[31mred\x1b[0m " + "x" * 3000 + " \u202eturned"


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with driver.chromium() as started:
        yield started


@pytest.fixture(scope="module")
def loud(platform: Platform) -> str:
    """The id of an invocation that printed something, on a platform that has more to show."""
    platform.deploy("echo", "zoo.echo:Function")
    platform.deploy("loud", "tests.support.handlers:Chatty")
    platform.client.start_job("bystander", BYSTANDER)
    return platform.client.invoke("loud", HOSTILE).id


@pytest.fixture(scope="module")
def state(browser: "Browser", platform: Platform, loud: str) -> Any:
    """Of somebody who has logged in."""
    return driver.log_in(browser, platform.url, platform.key)


def explained(platform: Platform, id_: str) -> Explanation | None:
    explanation = platform.client.explain(id_)
    return explanation if explanation.complete else None


def pages(platform: Platform, invocation: str) -> list[str]:
    """Every page, by its address."""
    return [
        "/ui/",
        "/ui/?form=list&span=24h",
        f"/ui/gpus/{quote(platform.gpu)}",
        "/ui/queues",
        "/ui/trainings",
        "/ui/trainings/bystander",
        "/ui/plan",
        "/ui/plan?by=trainings&since=24h",
        "/ui/functions",
        "/ui/functions/echo",
        "/ui/functions/echo?tab=revisions",
        "/ui/functions/echo?tab=try",
        "/ui/functions/echo?tab=warm",
        "/ui/functions/loud?tab=logs",
        "/ui/functions/echo?tab=settings",
        "/ui/harvest?step=hour",
        "/ui/predictor",
        "/ui/prewarm",
        "/ui/invocations",
        f"/ui/invocations/{invocation}",
        "/ui/audit",
        "/ui/login",
    ]


def test_every_page_fits_and_can_be_used_by_everybody(
    browser: "Browser", state: Any, platform: Platform, loud: str
) -> None:
    wrong = []
    with driver.viewed(browser, state) as seen:
        for address in pages(platform, loud):
            seen.page.goto(platform.url + address)
            seen.page.locator("main[aria-busy=false], .login").first.wait_for(timeout=driver.PATIENCE_MS)
            for width, scheme in zip(driver.WIDTHS, driver.SCHEMES, strict=True):
                seen.page.set_viewport_size({"width": width, "height": 900})
                seen.page.emulate_media(color_scheme=scheme)
                if seen.overflow_px():
                    wrong.append(f"{address} is {seen.overflow_px()} px too wide at {width}")
                wrong += [f"{address} {width} {scheme}: {violation}" for violation in seen.violations()]
        wrong += seen.errors

    assert wrong == []


class Neighbour(BaseHTTPRequestHandler):
    """A program of somebody else on the gateway's host. ``cookies``: what browsers have told it."""

    cookies: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.cookies.append(self.headers.get("Cookie", ""))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["another port", "another site"])
def test_pages_of_others_neither_read_nor_act(browser: "Browser", state: Any, platform: Platform, host: str) -> None:
    act = "/v1/queues/echo/pause"
    Neighbour.cookies.clear()
    (half,) = (item["value"] for item in state["origins"][0]["localStorage"] if item["name"] == "smore.session")
    context = browser.new_context(storage_state=state)
    with ThreadingHTTPServer(("127.0.0.1", 0), Neighbour) as neighbour:
        threading.Thread(target=neighbour.serve_forever).start()
        page = context.new_page()
        page.goto(f"http://{host}:{neighbour.server_port}/")
        tried = page.evaluate(TRIES, [platform.url, act, half])
        with page.expect_navigation() as moved:
            page.evaluate(SUBMITS, platform.url + act)
        neighbour.shutdown()
    context.close()

    # What is opaque was sent, and its answer cannot be read.
    assert tried == ["refused", "refused", "refused", "opaque", 0, False]
    assert moved.value.status in (401, 403)
    # The neighbour gets the cookie, and has no session by it.
    cookie = Neighbour.cookies[0]
    assert cookie.startswith("smore_") == (host == "127.0.0.1")
    assert httpx.get(f"{platform.url}/v1/me", headers={"Cookie": cookie}).status_code == 401
    assert not any(queue.paused for queue in platform.client.queues())


def test_what_strangers_print_is_text(browser: "Browser", state: Any, platform: Platform, loud: str) -> None:
    eventually(lambda: list(platform.client.logs("loud", invocation=loud)), what="the line")

    with driver.viewed(browser, state, 400) as seen:
        seen.go(f"{platform.url}/ui/invocations/{loud}")
        line = seen.page.locator(".log bdi").filter(has_text="onerror")
        line.wait_for()

        assert line.inner_text() == HOSTILE.replace("\x1b[31m", "").replace("\x1b[0m", "")
        assert seen.page.locator("img").count() == 0 and seen.overflow_px() == 0


def test_somebody_without_a_mouse_logs_in_pauses_a_function_and_takes_it_back(
    browser: "Browser", platform: Platform, state: Any
) -> None:
    context = browser.new_context()
    page = context.new_page()
    keys = page.keyboard

    def reach(name: str) -> None:
        """Go on with Tab to what has this name."""
        for _ in range(60):
            keys.press("Tab")
            if page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.innerText") == name:
                return
        raise AssertionError(f"Tab does not come to {name}")

    page.goto(f"{platform.url}/ui/queues")
    page.get_by_label("API key").wait_for()
    keys.type(platform.key)
    for _ in driver.TICKS:
        keys.press("Tab")
    keys.press("Space")
    keys.press("Enter")
    page.locator("main[aria-busy=false]").wait_for(timeout=driver.PATIENCE_MS)
    assert page.url == f"{platform.url}/ui/queues"
    keys.press("/")
    keys.type("queues")
    keys.press("Enter")
    page.get_by_role("heading", name="Queues").wait_for()
    reach("Actions of echo")
    keys.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Pause").wait_for()
    keys.press("Enter")
    page.get_by_role("cell", name="paused").wait_for()
    assert next(queue for queue in platform.client.queues() if queue.function == "echo").paused
    page.get_by_role("button", name="Take back").focus()
    keys.press("Enter")
    eventually(lambda: not any(queue.paused for queue in platform.client.queues()), what="the end of the pause")
    platform.client.set_slo("echo", 5_400_000)
    platform.client.set_slo("echo", None)
    page.goto(f"{platform.url}/ui/audit?target={quote('function/echo', safe='')}")
    paused = page.get_by_role("row").filter(has_text="paused false → true").first
    paused.wait_for()
    assert "in a session" in paused.inner_text()
    page.get_by_role("row").filter(has_text="deadline – → 90 min").wait_for()
    page.goto(f"{platform.url}/ui/")
    page.locator("summary", has_text="operator").press("Enter")
    page.get_by_role("button", name="Sign out").press("Enter")
    page.get_by_label("API key").wait_for()
    context.close()


def test_the_page_of_an_invocation_says_what_explain_says(browser: "Browser", state: Any, platform: Platform) -> None:
    """One that ran, two that wait for a paused function until one expires and one is cancelled, one that nobody knows."""
    client = platform.client
    ran = client.invoke("echo", {"x": 1}).id
    explanation = eventually(partial(explained, platform, ran), what="the whole explanation")
    client.pause("echo")
    try:
        expires = client.submit("echo", {"x": 2}, deadline_ms=1500)
        waits = client.submit("echo", {"x": 2}, deadline_ms=60_000)
        with driver.viewed(browser, state) as seen:
            seen.go(f"{platform.url}/ui/invocations/{ran}")
            assert seen.page.locator(".summary").inner_text() == explanation.summary
            chosen = seen.page.get_by_role("row").filter(has_text="chosen")
            assert platform.gpu in chosen.inner_text()

            seen.go(f"{platform.url}/ui/invocations/{waits}")
            assert "paused" in seen.page.locator(".summary").inner_text()
            seen.page.get_by_role("button", name="Cancel").click()
            seen.page.get_by_role("heading", name="cancelled").wait_for()
            assert client.invocation(waits).state == "cancelled"

            eventually(lambda: client.invocation(expires).state == "expired", what="its end")
            seen.go(f"{platform.url}/ui/invocations/{expires}")
            seen.page.get_by_text("which of them were weighed is not recorded").wait_for()

            seen.go(f"{platform.url}/ui/invocations/{'f' * 32}")
            seen.page.get_by_text("may be another project's").wait_for()
    finally:
        client.resume("echo")


def test_a_training_is_tried_started_and_stopped_by_its_page(
    browser: "Browser", state: Any, platform: Platform
) -> None:
    """Its promised end is given up only once that is confirmed; its page says what the command says of what it lost."""
    with driver.viewed(browser, state) as seen:
        page = seen.page
        seen.go(f"{platform.url}/ui/trainings")
        page.get_by_text("Start a training").click()
        page.locator("input[name=name]").fill("from-the-page")
        page.locator("input[name=argv]").fill(" ".join(LIGHT))
        page.locator("input[name=duration]").fill("2h")
        page.locator("input[name=by]").fill("999h")
        page.locator(".outcome .failed, .outcome b").first.wait_for()
        assert "It would" in page.locator(".outcome").inner_text()
        page.get_by_role("button", name="Start", exact=True).click()
        page.get_by_role("link", name="from-the-page").click()
        page.locator("main[aria-busy=false] .summary").wait_for()
        job = platform.client.job("from-the-page")

        seen.go(f"{platform.url}/ui/plan")
        assert page.locator(f"a[data-job='{job.id}']").count() >= 1
        first, second = page.locator("a[data-bar]").nth(0), page.locator("a[data-bar]").nth(1)
        first.focus()
        page.keyboard.press("ArrowRight")
        assert second.evaluate("bar => bar === document.activeElement")
        assert page.locator(".gantt-words").inner_text() == second.get_attribute("aria-label")
        page.set_viewport_size({"width": 400, "height": 900})
        listed = page.get_by_role("table", name="Plan by start").get_by_role("row").filter(has_text=job.name).first
        listed.get_by_role("cell").nth(2).wait_for()
        labels = listed.get_by_role("cell").evaluate_all("(cells) => cells.map((cell) => cell.dataset.label)")
        assert labels == ["training", "start", "end"]
        assert seen.overflow_px() == 0
        page.set_viewport_size({"width": 1280, "height": 900})

        seen.go(f"{platform.url}/ui/trainings/{job.id}")
        page.get_by_text("promised by").wait_for()
        page.get_by_role("button", name="Hold").click()
        asked = page.get_by_role("dialog").filter(has_text=f"It would break the promised ends of {job.name}")
        asked.get_by_role("button", name="Do it anyway").click()
        page.get_by_role("button", name="Release").wait_for()
        page.get_by_text("at risk: held").wait_for(timeout=driver.PATIENCE_MS)
        page.get_by_role("button", name="Stop…").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop", exact=True).click()
        eventually(lambda: platform.client.job(job.id).ended_at, what="its end")
        page.get_by_role("heading", name="stopped").wait_for(timeout=driver.PATIENCE_MS)
        page.get_by_text(platform.client.statement(job.id).summary).wait_for(timeout=driver.PATIENCE_MS)


def test_what_a_team_used_is_the_same_everywhere(browser: "Browser", state: Any, platform: Platform) -> None:
    platform.client.stop_job("bystander")
    with driver.viewed(browser, state) as seen:
        stated, *told = dashboard_functions.used(seen, platform.url, platform.key)

    assert stated > 1
    assert told == pytest.approx([stated] * 3, abs=0.01)


def test_a_function_has_the_same_figures_everywhere(browser: "Browser", state: Any, platform: Platform) -> None:
    """Page, series, and the statistics of the Open Inference Protocol."""
    for number in range(7):
        platform.client.invoke("echo", {"x": number})

    def told() -> tuple[int, ...]:
        series = platform.client.function_series("echo")
        stats = httpx.get(f"{platform.url}/v2/models/echo/stats", headers={"X-API-Key": platform.key}).json()
        runs = [each["inference_stats"] for each in stats["model_stats"]]
        return (
            sum(n or 0 for n in (*series.succeeded, *series.failed)),
            sum(each["success"]["count"] + each["fail"]["count"] for each in runs),
        )

    with driver.viewed(browser, state) as seen:

        def agree() -> bool:
            # What ended is recorded a moment later, calls before these too.
            ended = told()
            seen.go(f"{platform.url}/ui/functions/echo?since=24h")
            shown = seen.page.locator(".figure", has_text="calls ended").locator("b").inner_text()
            return min(ended) >= 7 and {str(each) for each in ended} == {shown}

        def alike() -> bool:
            seen.go(f"{platform.url}/ui/functions/echo")
            half = seen.page.locator(".figure", has_text="p50, last hour").locator("b").inner_text()
            seen.go(f"{platform.url}/ui/functions")
            row = seen.page.get_by_role("row").filter(has=seen.page.get_by_role("link", name="echo", exact=True))
            return row.locator("[data-label=p50]").inner_text() == half != "–"

        eventually(agree, what="the same figures everywhere")
        eventually(alike, what="the same p50 in the list")


def test_many_functions_are_drawn_some_at_a_time(browser: "Browser", state: Any, platform: Platform) -> None:
    """The gateway's answer, with its first function many times."""

    def many(route: "Route") -> None:
        answer = route.fetch().json()
        route.fulfill(json=answer | {"functions": answer["functions"][:1] * 250})

    with driver.viewed(browser, state, 400) as seen:
        seen.page.route("**/v1/prewarm", many)
        seen.go(f"{platform.url}/ui/prewarm")
        assert seen.page.locator("tbody tr").count() == 100
        seen.page.get_by_role("button", name="100 more of 250").click()
        seen.page.locator("tbody tr").nth(199).wait_for()
        assert seen.page.locator("tbody tr").count() == 200


def test_a_terminal_shows_it_too(
    platform: Platform, loud: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMORE_URL", platform.url)
    monkeypatch.setenv("SMORE_API_KEY", platform.key)
    assert smore("top", "--once") == 0
    printed = capsys.readouterr().out
    assert platform.gpu in printed and "default/loud" in printed


def test_keys_order_it_and_the_terminal_is_left_as_it_was(platform: Platform) -> None:
    outer, inner = pty.openpty()
    before, told = termios.tcgetattr(inner), b""
    environment = os.environ | {"SMORE_URL": platform.url, "SMORE_API_KEY": platform.key, "TERM": "xterm"}
    command = [sys.executable, "-m", "smore.cli", "top"]
    # Whoever runs the tests in the background may ignore SIGINT, which is inherited.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=environment, preexec_fn=heeds) as top:

        def says(text: bytes) -> bool:
            nonlocal told
            told += os.read(outer, 1 << 16)
            return text in told

        eventually(lambda: says(b"by used"))
        os.write(outer, b"n")
        eventually(lambda: says(b"by name"))
        top.send_signal(signal.SIGINT)
        # It leaves the other screen, and shows the cursor.
        eventually(lambda: says(b"\x1b[?1049l") and b"\x1b[?25h" in told)
        assert top.wait(timeout=10) == 0
    assert termios.tcgetattr(inner) == before
    os.close(outer)
    os.close(inner)


def test_a_function_is_called_by_its_page(browser: "Browser", state: Any, platform: Platform) -> None:
    with driver.viewed(browser, state) as seen:
        seen.go(f"{platform.url}/ui/functions/echo?tab=try")
        seen.page.get_by_label("Input, as JSON").fill('{"asked": "here"}')
        seen.page.get_by_label("Deadline").fill("0")
        seen.page.get_by_text("greater than or equal to 1").wait_for()
        assert seen.page.get_by_role("button", name="Call").is_disabled()
        seen.page.get_by_label("Deadline").fill("61234.5")
        seen.page.locator(".outcome").get_by_text("It would run at once").wait_for()
        seen.page.get_by_role("button", name="Call").click()
        result = seen.page.get_by_role("heading", name="Result")
        called = result.get_by_role("link").inner_text()
        assert '"asked": "here"' in seen.page.locator("pre").inner_text()
        assert platform.client.explain(called).gate.allowed_ms == 61234.5


def test_a_function_is_paused_and_resumed_by_its_page(browser: "Browser", state: Any, platform: Platform) -> None:
    with driver.viewed(browser, state) as seen:
        seen.go(f"{platform.url}/ui/functions/echo")
        seen.page.get_by_role("button", name="Pause").click()
        seen.page.get_by_role("status").get_by_text("paused", exact=True).wait_for()
        assert next(queue for queue in platform.client.queues() if queue.function == "echo").paused
        (entry, *_) = platform.client.carry(admin.audit({"target": "function/echo"})).entries
        assert entry.session and entry.route.endswith("/pause")
        seen.page.get_by_role("button", name="Resume").click()
        seen.page.get_by_role("button", name="Pause").wait_for()
        assert not any(queue.paused for queue in platform.client.queues())


def test_what_is_refused_is_said_at_the_row(browser: "Browser", state: Any, platform: Platform) -> None:
    """The function is deleted while the page shows it."""
    platform.deploy("brief", "zoo.echo:Function")
    with driver.viewed(browser, state) as seen:
        seen.go(f"{platform.url}/ui/queues")
        seen.page.get_by_role("button", name="Actions of brief").click()
        platform.client.delete("brief")
        seen.page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        seen.page.locator(".failed").filter(has_text="brief").or_(seen.page.get_by_text("not_found")).first.wait_for()


def test_a_session_that_may_only_look_gets_no_action(browser: "Browser", platform: Platform) -> None:
    looker = driver.log_in(browser, platform.url, platform.key, scopes=[])
    with driver.viewed(browser, looker) as seen:
        seen.go(f"{platform.url}/ui/queues")
        seen.page.get_by_role("cell", name="echo", exact=True).wait_for()
        assert seen.page.get_by_role("button", name="Actions").count() == 0
        lacks = seen.page.get_by_text("This session lacks the right administer.")
        assert lacks.count() == 1
        assert seen.page.get_by_role("link", name="Audit").count() == 0
        seen.go(f"{platform.url}/ui/gpus/{quote(platform.gpu)}")
        assert seen.page.get_by_role("button", name="Drain").count() == 0 and lacks.count() == 1
        seen.go(f"{platform.url}/ui/functions/echo")
        lacks.get_by_role("link", name="Other rights…").click()
        assert seen.page.locator("input[value=admin]").is_checked()


def test_eight_tabs_live_on_and_come_back_after_the_gateway(browser: "Browser", state: Any, platform: Platform) -> None:
    """HTTP/1.1 has six connections: with a stream in each tab the seventh would not even load."""
    context = browser.new_context(storage_state=state)
    tabs = [context.new_page() for _ in range(8)]
    for tab in tabs:
        tab.goto(f"{platform.url}/ui/")
        tab.locator(".tile").first.wait_for(timeout=driver.PATIENCE_MS)
    os.kill(platform.pid("gateway"), signal.SIGKILL)
    tabs[-1].get_by_text("Out of date.").wait_for(timeout=5_000)
    tabs[-1].get_by_text("Out of date.").wait_for(state="detached", timeout=driver.PATIENCE_MS)
    assert tabs[0].get_by_text("Out of date.").count() == 0
    # Its gateway answers, and learns nothing new.
    os.kill(platform.pid("redis"), signal.SIGSTOP)
    try:
        tabs[-1].get_by_text("Out of date.").wait_for(timeout=driver.PATIENCE_MS)
        tabs[0].goto(f"{platform.url}/ui/queues")
        tabs[0].get_by_text("Redis is away").wait_for(timeout=driver.PATIENCE_MS)
    finally:
        os.kill(platform.pid("redis"), signal.SIGCONT)
    tabs[0].get_by_role("heading", name="Queues").wait_for(timeout=driver.PATIENCE_MS)
    tabs[-1].get_by_text("Out of date.").wait_for(state="detached", timeout=driver.PATIENCE_MS)
    context.close()
    eventually(lambda: platform.client.carry(admin.me()), 30, "the gateway")
