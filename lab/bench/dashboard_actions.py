"""The fourteen actions of people on the dashboard, each done by the page and looked for in REST and in the audit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx

from lab.bench.browser import Seen
from lab.bench.uploads import eventually
from smore_client import Client, admin

if TYPE_CHECKING:
    from playwright.sync_api import Locator

#: GPU instances that report: one with an unregistered process, and one that has fallen silent.
STRANGE: Final = "GPU-with-a-stranger"
SILENT: Final = "GPU-that-is-silent"
PROCESS: Final = 4711
#: Seconds until what was done must hold.
PATIENCE_S: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Who acts, and by what it is looked for."""

    seen: Seen
    url: str
    http: httpx.Client
    client: Client

    def get(self, path: str) -> Any:
        return self.http.get(path).raise_for_status().json()

    def queue(self) -> Any:
        return next(queue for queue in self.get("/v1/queues")["queues"] if queue["function"] == "echo")

    def gpu(self, name: str = STRANGE) -> Any:
        return next((gpu for gpu in self.get("/v1/gpus?silent=true")["gpus"] if gpu["id"] == name), None)

    def menu(self, label: str) -> None:
        """An entry of the menu of echo's row."""
        self.seen.go(f"{self.url}/ui/queues?function=echo")
        self.seen.page.get_by_role("button", name="Actions of echo").click()
        self.dialog().get_by_role("button", name=label, exact=True).click()

    def dialog(self) -> "Locator":
        return self.seen.page.get_by_role("dialog")

    def confirm(self, label: str, **fields: str) -> None:
        for name, value in fields.items():
            self.dialog().locator(f"input[name={name}]").fill(value)
        self.dialog().get_by_role("button", name=label, exact=True).click()

    def on_gpu(self, label: str, name: str = STRANGE) -> None:
        self.seen.go(f"{self.url}/ui/gpus/{name}")
        self.seen.page.get_by_role("button", name=label, exact=True).first.click()

    def holds(self, what: Callable[[], object], target: str, route: str) -> None:
        """Raises TimeoutError where it does not hold, or the audit does not have it with the session."""

        def audited() -> bool:
            entries = self.client.carry(admin.audit({"target": target, "route": route})).entries
            return any(entry.session for entry in entries[:1])

        for told, wanted in (("it does not hold", what), ("the audit does not have it", audited)):
            eventually(wanted, PATIENCE_S, told)


def pause(a: Asked) -> None:
    a.menu("Pause")
    a.holds(lambda: a.queue()["paused"], "function/echo", "pause")


def resume(a: Asked) -> None:
    a.menu("Resume")
    a.holds(lambda: not a.queue()["paused"], "function/echo", "resume")


def drain(a: Asked) -> None:
    a.menu("Drain")
    a.holds(lambda: a.queue()["draining"], "function/echo", "drain")
    a.client.resume("echo")


def purge(a: Asked) -> None:
    a.client.pause("echo")
    a.client.submit_all("echo", [{"x": 1}] * 3, deadline_ms=600_000)
    a.menu("Purge…")
    a.confirm("Purge")
    a.holds(lambda: a.queue()["depth"] == 0, "function/echo", "purge")
    a.client.resume("echo")


def boost(a: Asked) -> None:
    a.menu("Boost…")
    a.confirm("Boost", factor="3", for_s="600")
    a.holds(lambda: a.queue()["boost"] == 3, "function/echo", "boost")


def pin(a: Asked) -> None:
    a.menu("Pin…")
    a.dialog().locator(f"input[value={STRANGE}]").check()
    a.confirm("Pin")
    a.holds(lambda: a.queue()["pinned_to"] == [STRANGE], "function/echo", "pin")
    a.http.delete("/v1/queues/echo/pin").raise_for_status()


def deadline(a: Asked) -> None:
    a.menu("Deadline…")
    a.confirm("Set", ms="700000")
    a.holds(lambda: a.get("/v1/functions/echo")["deadline_ms"] == 700_000, "function/echo", "slo")


def cancel(a: Asked) -> None:
    """Not in the audit: an invocation is its caller's."""
    a.client.pause("echo")
    waits = a.client.submit("echo", {"x": 1}, deadline_ms=600_000)
    a.seen.go(f"{a.url}/ui/invocations/{waits}")
    a.seen.page.get_by_role("button", name="Cancel").click()
    a.seen.page.get_by_role("heading", name="cancelled").wait_for()
    assert a.client.invocation(waits).state == "cancelled"
    a.client.resume("echo")


def pause_gpu(a: Asked) -> None:
    a.on_gpu("Pause")
    a.holds(lambda: a.gpu()["paused"], f"gpu/{STRANGE}", "pause")


def resume_gpu(a: Asked) -> None:
    a.on_gpu("Resume")
    a.holds(lambda: not a.gpu()["paused"], f"gpu/{STRANGE}", "resume")


def drain_gpu(a: Asked) -> None:
    a.on_gpu("Drain…")
    a.confirm("Drain")
    a.holds(lambda: a.gpu()["draining"], f"gpu/{STRANGE}", "drain")
    a.client.resume_gpu(STRANGE)


def forget_gpu(a: Asked) -> None:
    a.on_gpu("Forget", SILENT)
    a.holds(lambda: a.gpu(SILENT) is None, f"gpu/{SILENT}", "forget")


def allow(a: Asked) -> None:
    a.on_gpu("Allow")
    a.holds(lambda: a.gpu()["strangers"][0]["allowed"], f"gpu/{STRANGE}/process/{PROCESS}", "allow")


def pause_platform(a: Asked) -> None:
    a.seen.go(f"{a.url}/ui/queues")
    a.seen.page.get_by_role("button", name="Pause…").click()
    a.confirm("Pause", _word="pause")
    a.holds(lambda: all(queue["paused"] for queue in a.get("/v1/queues")["queues"]), "platform", "pause")
    a.http.post("/v1/queues/resume").raise_for_status()


ACTIONS: Final[Mapping[str, Callable[[Asked], None]]] = {
    "pause": pause,
    "resume": resume,
    "drain": drain,
    "purge": purge,
    "boost": boost,
    "pin": pin,
    "deadline": deadline,
    "cancel": cancel,
    "pause a GPU instance": pause_gpu,
    "resume a GPU instance": resume_gpu,
    "drain a GPU instance": drain_gpu,
    "forget a GPU instance": forget_gpu,
    "allow a process": allow,
    "pause the platform": pause_platform,
}
