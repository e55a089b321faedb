"""The OpenAPI document says of errors what is answered."""

from typing import Any

import pytest

from api.app import create_app
from smore.process.settings import RedisSettings, Settings


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings(redis=RedisSettings(url="redis://nowhere"))).openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, operation) for path, item in document["paths"].items() for operation in item.values()]


def test_errors_have_the_media_type_of_their_protocol(document: dict[str, Any]) -> None:
    for path, operation in operations(document):
        for status in ("default", "503"):
            answer = operation["responses"][status]
            if path == "/readyz" and status == "503":
                continue  # its own answer, which says what is missing
            wanted = "application/json" if path.startswith("/v2") else "application/problem+json"
            assert set(answer["content"]) == {wanted}, path
            assert ("error" in str(answer["content"][wanted]["schema"])) == path.startswith("/v2"), path


def test_who_is_told_to_come_back_is_told_when(document: dict[str, Any]) -> None:
    for path, operation in operations(document):
        if path != "/readyz":
            assert operation["responses"]["503"]["headers"]["Retry-After"]["required"], path
            assert "headers" not in operation["responses"]["default"], path


def test_frameworks_own_errors_are_not_ours(document: dict[str, Any]) -> None:
    assert "ValidationError" not in str(document)
    assert all("422" not in operation["responses"] for _, operation in operations(document))
