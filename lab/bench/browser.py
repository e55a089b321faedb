"""
The dashboard in Chromium, as somebody with a key sees it: Debian's Chromium, driven by Playwright, with axe-core
(lab/bench/axe) to find what not everybody can use.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

CHROMIUM: Final = Path("/usr/bin/chromium")
AXE: Final = Path(__file__).parent / "axe" / "axe.min.js"
#: The widths at which each page is looked at, and the colours.
WIDTHS: Final = (1280, 400)
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
#: Milliseconds that a page may take until everything that it asked for has come.
PATIENCE_MS: Final = 20_000
#: Scopes of a session beside ``read``, as the login has them.
TICKS: Final = ("invoke", "jobs", "admin")
#: Notes when a page has everything that it asked for, and what each drawing took, in milliseconds.
_WATCH: Final = """
window.smore = {complete: 0, draws: []};
new PerformanceObserver((list) => window.smore.draws.push(...list.getEntries().map((e) => e.duration)))
    .observe({type: "measure"});
new MutationObserver(() => {
    if (!window.smore.complete && document.querySelector('main[aria-busy="false"]')) window.smore.complete = performance.now();
}).observe(document, {subtree: true, childList: true, attributes: true, attributeFilter: ["aria-busy"]});
"""
_VIOLATIONS: Final = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map(
    (each) => `${each.id}: ${each.nodes.map((node) => `${node.html} ${node.failureSummary}`).join("; ")}`))
"""


def missing() -> str:
    """Why no browser can be started here; '' = one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install -e '.[dev]'"
    return "" if CHROMIUM.exists() else f"there is no {CHROMIUM}: apt-get install -y chromium"


@contextmanager
def chromium() -> "Iterator[Browser]":
    """A browser for the length of a ``with``."""
    from playwright.sync_api import sync_playwright

    # As root Chromium's own sandbox refuses to start.
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Seen:
    """What somebody sees who has logged in: one page, and what its console said."""

    page: "Page"
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _said(self, message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def go(self, address: str) -> None:
        """Open an address, and wait until everything that the page asked for has come, or has failed."""
        self.page.goto(address)
        self.settle()

    def settle(self) -> None:
        self.page.locator("main[aria-busy=false]").wait_for(timeout=PATIENCE_MS)

    def overflow_px(self) -> int:
        """By how much the page is wider than the screen."""
        wider: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return max(0, wider)

    def violations(self) -> list[str]:
        """What axe finds, which the page's policy does not hinder: it comes through the debugger."""
        if not self.page.evaluate("Boolean(window.axe)"):
            self.page.evaluate(AXE.read_text())
        found: list[str] = self.page.evaluate(_VIOLATIONS)
        return found

    def figures(self) -> dict[str, Any]:
        """``complete``: when everything had come, ms after the start of the page; ``draws``: ms of each drawing."""
        seen: dict[str, Any] = self.page.evaluate("window.smore")
        return seen


def log_in(browser: "Browser", url: str, key: str, scopes: Sequence[str] = TICKS) -> Any:
    """Log in by the form, with these ticks. Returns the state of storage and cookies for further contexts."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/ui/login")
    page.get_by_label("API key").fill(key)
    for scope in TICKS:
        page.locator(f"input[value={scope}]").set_checked(scope in scopes)
    page.get_by_role("button", name="Log in").click()
    page.locator("main[aria-busy=false]").wait_for(timeout=PATIENCE_MS)
    state = context.storage_state()
    context.close()
    return state


@contextmanager
def viewed(
    browser: "Browser", state: Any, width: int = WIDTHS[0], scheme: Literal["light", "dark"] = "light"
) -> Iterator[Seen]:
    """A page of somebody who has logged in."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, storage_state=state)
    context.add_init_script(_WATCH)
    try:
        yield Seen(context.new_page())
    finally:
        with suppress(Exception):
            context.close()
