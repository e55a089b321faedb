"""The OpenAPI document says of errors what is answered."""

from typing import Any

import jsonschema_rs
import pytest

from api.app import create_app
from api.server.description import EXAMPLE
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


def test_every_operation_has_a_sentence_and_an_example(document: dict[str, Any]) -> None:
    assert "Authorization:" in document["info"]["description"]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            sentence, _, example = operation["description"].partition(f"\n\n{EXAMPLE}\n")
            assert sentence.rstrip("`").endswith((".", ")")), path
            assert example.startswith("curl ") and "$SMORE_URL/" in example, path
            assert ("$SMORE_API_KEY" in example) == ("security" in operation), path
            assert (f"-X {method.upper()} " in example) == (method != "get"), path
            assert all("example" in each for each in operation.get("parameters", []) if each["in"] == "path"), path
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            assert body is None or "example" in body, path


def test_examples_are_what_their_schemas_say(document: dict[str, Any]) -> None:
    """Every answer with a schema of its own under /v1 has one."""
    checked = 0
    for path, operation in operations(document):
        answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        for content in (operation.get("requestBody", {}), *answers):
            described = content.get("content", {}).get("application/json", {})
            schema = described.get("schema", {})
            if path.startswith("/v1/") and "$ref" in schema:
                assert "example" in described, f"{path}: {schema}"
            if "example" in described and schema:
                whole = {**schema, "components": document["components"]}
                errors = [str(error) for error in jsonschema_rs.validator_for(whole).iter_errors(described["example"])]
                assert not errors, f"{path}: {errors[:1]}"
                checked += 1
    assert checked >= 50
