"""The OpenAPI document says of errors what is answered."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from fastapi.routing import APIRoute

from api import errors as api_errors
from api.app import create_app
from api.errors import outcome
from api.server.description import EXAMPLE, GATEWAY, at
from api.server.function_description import describe_function
from api.server.invocation_description import ENDINGS
from api.server.statuses import ALSO
from smore.domain.errors import CallerError, SmoreError
from smore.domain.function import FunctionSpec
from smore.domain.invocation import TERMINAL, Cause, State
from smore.process.settings import RedisSettings, Settings

SETTINGS = Settings(redis=RedisSettings(url="redis://nowhere"))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(SETTINGS).openapi()


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
            for status in {"429", "503"} & set(operation["responses"]):
                answer = operation["responses"][status]
                # A deadline that is too early even for an idle platform is not to be tried again.
                always = "`slo_infeasible`" not in answer["description"]
                assert answer["headers"]["Retry-After"]["required"] == always, path
            assert "Retry-After" not in operation["responses"]["default"]["headers"], path


def test_every_answer_says_its_headers(document: dict[str, Any]) -> None:
    for path, operation in operations(document):
        repeatable = any(each["name"] == "Idempotency-Key" for each in operation.get("parameters", []))
        for status, answer in operation["responses"].items():
            headers = answer["headers"]
            assert "X-Request-Id" in headers and ("WWW-Authenticate" in headers) == (status == "401"), path
            referenced = {each["$ref"].rpartition("/")[2] for each in headers.values() if "$ref" in each}
            assert referenced <= set(document["components"]["headers"])
            if status == "504":
                assert ("Idempotency-Replayed" in headers) == repeatable, path
    ends = {str(outcome(state, cause)[0]) for state in TERMINAL - {State.SUCCEEDED} for cause in Cause}
    assert ends <= ENDINGS


def test_frameworks_own_errors_are_not_ours(document: dict[str, Any]) -> None:
    assert "ValidationError" not in str(document)


def test_an_operation_names_the_errors_that_it_answers_with(document: dict[str, Any]) -> None:
    paths = document["paths"]
    for path, operation in operations(document):
        answers = operation["responses"]
        assert all(answer["description"] for answer in answers.values()), path
        logs_in = operation["operationId"].startswith("open_session")
        assert ({"401", "403"} <= set(answers)) == ("security" in operation or logs_in), path
        assert "requestBody" not in operation or {"400", "413", "422"} <= set(answers), path
    invoked = paths["/v1/functions/{function}/invocations"]["post"]
    assert {"404", "409", "415", "429", "502", "504"} <= set(invoked["responses"])
    assert "`slo_infeasible`" in invoked["responses"]["429"]["description"]
    assert {"Server-Timing", "Idempotency-Replayed", "Smore-Outputs"} <= set(invoked["responses"]["200"]["headers"])
    assert "the scope `invoke`" in invoked["responses"]["403"]["description"]
    assert "the scope `read`" in paths["/v1/jobs"]["get"]["responses"]["403"]["description"]
    assert "is no operator's" in paths["/v1/queues/pause"]["post"]["responses"]["403"]["description"]
    assert set(ALSO) <= {f"{method.upper()} {path}" for path, item in paths.items() for method in item}


def test_every_field_says_more_than_its_name(document: dict[str, Any]) -> None:
    """Fields of different names have different texts: one that fits both says of neither what it is."""
    thin, fields_of = [], defaultdict[str, set[str]](set)
    for name, schema in document["components"]["schemas"].items():
        for field, shape in schema.get("properties", {}).items():
            text = shape.get("description", "")
            fields_of[text].add(field)
            if len(text.split()) <= 3:
                thin.append(f"{name}.{field}: {text}")
    for path, operation in operations(document):
        for each in operation.get("parameters", []):
            if len(each.get("description", "").split()) <= 3:
                thin.append(f"{path} {each['name']}: {each.get('description')}")
    assert thin == []
    assert {text: fields for text, fields in fields_of.items() if len(fields) > 1} == {}


def _names(of: type[SmoreError]) -> set[str]:
    return {of.__name__}.union(*(_names(kind) for kind in of.__subclasses__()))


def test_the_problem_has_every_member_that_an_error_is_raised_with(document: dict[str, Any]) -> None:
    """Keywords of the errors that api and smore raise, and what only an ended or infeasible invocation has."""
    root = Path(api_errors.__file__).parents[1]
    kinds = _names(CallerError)
    given = {"id", "state", "cause", "late_ms", "traceback", "earliest_deadline_ms", "earliest_deadline_at"}
    for file in (*root.glob("api/**/*.py"), *root.glob("smore/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
                given |= {keyword.arg for keyword in node.keywords if keyword.arg}
    schema = document["components"]["schemas"]["Problem"]
    # These become headers.
    assert given - {"retry_after_s", "replayed"} <= set(schema["properties"])
    assert {"field", "limit", "differs"} <= given - set(schema["required"])


def test_a_call_and_its_answers_are_of_one_input_or_of_several(document: dict[str, Any]) -> None:
    operation = document["paths"]["/v1/functions/{function}/invocations"]["post"]

    def valid(described: dict[str, Any], instance: dict[str, object]) -> bool:
        schema = {**described["content"]["application/json"]["schema"], "components": document["components"]}
        return bool(jsonschema_rs.validator_for(schema).is_valid(instance))

    body, done, running = operation["requestBody"], operation["responses"]["200"], operation["responses"]["202"]
    one: dict[str, object] = {"id": "i", "state": "succeeded", "output": 1, "durability": "none"}
    several: dict[str, object] = {"invocations": [], "class": "standard", "durability": "none"}
    for described in (done, running):
        assert valid(described, one) and valid(described, several)
        assert not valid(described, one | several) and not valid(described, {"durability": "none"})
    assert valid(body, {"input": 1}) and valid(body, {"inputs": [1]}) and not valid(body, {"deadline_ms": 1})
    assert valid(body, {"input": 1, "deadline_ms": 86_400_000})
    assert not valid(body, {"input": 1, "inputs": [1]}) and not valid(body, {"input": 1, "deadline_ms": 86_400_001})


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object of a document, itself included."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for part in value if isinstance(value, list) else ():
        yield from _parts(part)


@pytest.fixture(params=["platform", "function"])
def described(request: pytest.FixtureRequest, document: dict[str, Any]) -> dict[str, Any]:
    """The document of the whole API, and that of one function whose handler declares records."""
    if request.param == "platform":
        return document
    record = {"$ref": "#/$defs/Question", "$defs": {"Question": {"type": "object", "required": ["text"]}}}
    return describe_function("f", 1, FunctionSpec(entrypoint="m:F"), {"input_schema": record}, GATEWAY)


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    found = {part["$ref"] for part in _parts(described) if isinstance(part.get("$ref"), str)}
    assert found
    for reference in found:
        place: Any = described
        for name in reference.removeprefix("#/").split("/"):
            assert name in place, reference
            place = place[name]


def test_alternatives_are_schemas_of_their_own(described: dict[str, Any]) -> None:
    """Generated clients have no type for an object of which one field or another is required."""
    assert [part for part in _parts(described) if {"oneOf", "anyOf"} & set(part) and "properties" in part] == []


def test_what_is_left_out_where_it_is_null_is_not_required(document: dict[str, Any]) -> None:
    left_out = [route for route in create_app(SETTINGS).routes if getattr(route, "response_model_exclude_none", False)]
    schemas = document["components"]["schemas"]
    waiting, seen = [route.response_model.__name__ for route in left_out if isinstance(route, APIRoute)], set[str]()
    assert "Explanation" in waiting
    while waiting:
        name = waiting.pop()
        seen.add(name)
        properties = schemas[name].get("properties", {})
        nullable = {field for field, shape in properties.items() if {"type": "null"} in shape.get("anyOf", [])}
        assert not nullable & set(schemas[name].get("required", [])), name
        within = {part["$ref"].rpartition("/")[2] for part in _parts(properties) if isinstance(part.get("$ref"), str)}
        waiting += within - seen


def test_a_body_takes_what_an_answer_gives(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert set(schemas["Scaling"]["properties"]) == set(schemas["ScalingChanges"]["properties"])


def test_names_and_bounds_are_declared(document: dict[str, Any]) -> None:
    def valid(name: str, instance: object) -> bool:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        return bool(jsonschema_rs.validator_for(schema).is_valid(instance))

    assert valid("ProjectBody", {"name": "vision"}) and not valid("ProjectBody", {"name": "Vision "})
    assert all(valid("BudgetBody", {"budget": budget}) for budget in (0.01, 19))
    assert not any(valid("BudgetBody", {"budget": budget}) for budget in (0.009, 19.1))
    assert valid("LimitsBody", {"burst": 1, "rate_per_s": 1}) and valid("LimitsBody", {"burst": None})
    for wrong in ({"burst": 0, "rate_per_s": 1}, {"burst": 1.5}, {"rate_per_s": 0}):
        assert not valid("LimitsBody", wrong)
    for keep_alive_s in (-1, 0, 0.5):
        assert valid("FunctionChanges", {"scaling": {"keep_alive_s": keep_alive_s}})
    assert not valid("FunctionChanges", {"scaling": {"keep_alive_s": -0.5}})
    (secret,) = document["paths"]["/v1/secrets/{secret}"]["put"]["parameters"]
    assert re.search(secret["schema"]["pattern"], "HF_TOKEN") and not re.search(
        secret["schema"]["pattern"], "LD_PRELOAD"
    )
    invoke = document["paths"]["/v1/functions/{function}/invocations"]["post"]["parameters"]
    assert {"name": "deadline_ms", "in": "query"}.items() <= next(
        each for each in invoke if each["in"] == "query"
    ).items()


def test_each_of_several_inputs_is_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert "at most 64 where the answer is waited for" in schemas["Calls"]["properties"]["inputs"]["description"]
    for name in ("Results", "SeveralAccepted"):
        assert schemas[name]["properties"]["invocations"]["items"] == {"$ref": "#/components/schemas/InputOutcome"}
        assert schemas[name]["required"] == ["invocations", "class", "durability"]
    outcome = schemas["InputOutcome"]["properties"]
    assert {"status", "code", "cause", "state", "earliest_deadline_ms", "output", "traceback"} <= set(outcome)
    assert all(f"`{state}`" in outcome["state"]["description"] for state in TERMINAL)


def test_a_cancelled_invocation_is_shown_cancelled(document: dict[str, Any]) -> None:
    answer = document["paths"]["/v1/invocations/{invocation}/cancel"]["post"]["responses"]["200"]
    example = answer["content"]["application/json"]["example"]
    assert (example["state"], "output" in example) == ("cancelled", False)


def test_a_gateway_is_described_under_the_address_that_it_was_reached_at(document: dict[str, Any]) -> None:
    served = at(document, "https://gpus.example")
    assert served["servers"] == [{"url": "https://gpus.example"}]
    assert "SMORE_URL=https://gpus.example\n" in served["info"]["description"]
    assert GATEWAY not in str(served["info"])


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
