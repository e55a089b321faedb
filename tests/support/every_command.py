"""Every command of ``smore``, and a platform that answers each of them with the examples of the API's description."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import typer

from api.app import create_app
from api.server.examples import PARAMETERS
from smore.cli import app
from smore.process.settings import RedisSettings, Settings
from tests.support.answers import ANSWERS


def commands() -> Iterator[tuple[str, Any]]:
    """The name and the object of each command; of a group that does something alone too."""
    yield from _commands("", typer.main.get_command(app.app))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inside = getattr(command, "commands", None)
    if inside is None or (name and command.invoke_without_command):
        yield name, command
    for inner in (inside or {}).values():
        yield from _commands(f"{name} {inner.name}".strip(), inner)


class Examples(httpx.MockTransport):
    """
    Answers each operation of the API's document with the example of its first answer; ``answers`` replaces examples, by
    the name of their schema.
    """

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__(self._answer)
        self._answers = {**ANSWERS, **answers}
        document = create_app(Settings(redis=RedisSettings(url="redis://nowhere"))).openapi()
        self._operations = {
            (method.upper(), path.format(**PARAMETERS)): operation["responses"]
            for path, item in document["paths"].items()
            for method, operation in item.items()
        }

    def _answer(self, request: httpx.Request) -> httpx.Response:
        responses = self._operations[request.method, request.url.path]
        status = min(status for status in responses if status.startswith("2"))
        schema = responses[status].get("content", {}).get("application/json", {}).get("schema", {})
        # Of an answer that is one or several of something, one.
        one, *_ = schema.get("anyOf") or schema.get("oneOf") or [schema]
        name = one.get("$ref", "").rpartition("/")[2]
        return httpx.Response(int(status), json=self._answers.get(name, {}))
