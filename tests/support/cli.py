"""The command ``smore`` against a fake HTTP transport."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest
import typer

import smore_client
from smore.cli import app

PROBLEM = {
    "title": "Infeasible",
    "status": 429,
    "detail": "Too late.",
    "code": "slo_infeasible",
    "earliest_deadline_ms": 70,
}


@dataclass
class Platform:
    """Answers by ``METHOD path``, or what makes them of the request; keeps what it was asked."""

    answers: dict[str, tuple[int, object] | Callable[[httpx.Request], tuple[int, object]]]

    def __post_init__(self) -> None:
        self.asked: list[tuple[str, object]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        name = f"{request.method} {request.url.path}"
        self.asked.append((name, json.loads(request.content) if request.content else dict(request.url.params)))
        if name not in self.answers:
            raise AssertionError(f"nobody expected {name}")
        answer = self.answers[name]
        status, body = answer(request) if callable(answer) else answer
        return httpx.Response(status, json=body)


Serve = Callable[[], Platform]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Puts a platform behind the commands; its answers are then filled in."""

    real = smore_client.Client

    def start() -> Platform:
        platform = Platform({})
        transport = httpx.MockTransport(platform.handle)
        monkeypatch.setattr(smore_client, "Client", lambda *_: real("http://test", "sk", transport=transport))
        return platform

    return start


#: Made once: it takes longer than most commands.
_COMMAND = typer.main.get_command(app.app)


def smore(*arguments: str) -> int:
    """Run a command; its exit code."""
    try:
        _COMMAND(args=arguments, prog_name="smore")
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("a command ends by exiting")
