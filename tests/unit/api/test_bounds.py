"""What strangers send is read with bounds, and what they are told of it is short."""

import asyncio
import gzip
import importlib
import pkgutil
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from api import routes
from api.app import create_app
from api.errors import Malformed, UnsupportedMediaType, explain
from api.invoke.request import wait_s
from api.schemas.functions import FunctionChanges
from api.schemas.jobs import AttachBody, BudgetBody, JobBody, StepsBody
from api.schemas.keys import KeyBody
from api.schemas.projects import LimitsBody
from api.schemas.queues import PinBody
from api.schemas.secrets import SecretBody
from api.server import bodies
from api.server.bodies import BoundedRoute, read_json, refuse_coding
from api.server.invocation_description import MAX_WAIT_S
from smore.definition import plain_yaml
from smore.definition.plain_yaml import MOST_NODES, read_yaml
from smore.domain.artifact import parse_requirements
from smore.domain.errors import InvalidInput, InvalidSpec, PayloadTooLarge, SmoreError
from smore.domain.function import parse_spec
from smore.domain.quote import MOST_QUOTED, cut, quoted
from smore.process.settings import QueueSettings, RedisSettings, Settings
from smore.traces import recorded
from smore.traces.recorded import BadTrace, read_trace

ROOT = Path(__file__).resolve().parents[3]
#: Bytes of an answer to a bad request.
SMALL = 64 << 10


def kind(value: object) -> str:
    """A test's name for a value whose text has no bound."""
    return type(value).__name__


def nested(levels: int) -> list[Any]:
    """9 ** levels values, which aliases or shared lists make of a few bytes."""
    found: list[Any] = ["xx"] * 9
    for _ in range(levels - 1):
        found = [found] * 9
    return found


# ---- quoting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [nested(40), "x" * 10**7, b"x" * 10**7, 10**5000, (10**5000,), dict.fromkeys(range(10**5))], ids=kind
)
def test_a_quoted_value_is_short(value: object) -> None:
    """2 ** 120 values are never looked at: nothing else would end."""
    assert 0 < len(quoted(value)) <= MOST_QUOTED


@pytest.mark.parametrize("value", ["abc", 7, 0.5, None, True, [1, "a"], {"a": 1}, 2**64])
def test_a_short_value_is_quoted_as_it_is(value: object) -> None:
    assert quoted(value) == repr(value)


def test_a_cut_text_keeps_both_ends() -> None:
    assert cut("abcdefghij", 10) == "abcdefghij"
    assert cut("abcdefghijk", 8) == "abcde…jk"
    assert len(cut("x" * 100, 8)) == 8


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("batching", "max_size"),
        ("slo", "deadline"),
        ("scaling", "prewarm"),
        ("scaling", "keep_alive"),
        ("profile", "model"),
        ("profile", "load_ms"),
        ("profile", "run_ms"),
        ("limits", "payload"),
        ("resources", "gpu_memory"),
    ],
)
@pytest.mark.parametrize(
    "value", [nested(20), 10**5000, "9" * 10**6, float("inf"), float("nan"), {"1": nested(20)}], ids=kind
)
def test_a_wrong_field_is_told_in_few_words(section: str, field: str, value: object) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec({"entrypoint": "a:B", section: {field: value}})
    assert len(str(caught.value)) < 1000


def test_requirements_and_misspelt_fields_are_told_in_few_words() -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_requirements([nested(20)], None, "spec.requirements")
    assert len(str(caught.value)) < 1000
    answer = explain(InvalidInput("x" * 10**7, field="y" * 10**7, missing=["z" * 10**5] * 10**4), "r")
    assert len(bytes(answer.body)) < SMALL


def test_foreign_values_are_quoted_in_one_way() -> None:
    """``!r`` in a message is as long as what it shows."""
    files = subprocess.run(
        [
            "git",
            "ls-files",
            "api/*.py",
            "smore/domain/*.py",
            "smore/traces/recorded.py",
            "smore/postgres/predictors.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [name for name in files.stdout.split() if "!r}" in (ROOT / name).read_text()]

    assert found == ["smore/domain/quote.py"]


# ---- YAML ------------------------------------------------------------------------------------------------------------


def aliases(levels: int) -> str:
    lines = ["a0: &a0 [xx, xx, xx, xx, xx, xx, xx, xx, xx]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        aliases(9),
        "a: &a [*a]",
        "a: *a",
        "- 1\n" * (MOST_NODES + 1),
        "[" * 100_000,
        "{a: " * 10_000,
        "a: 1\na: 2",
        "a: .inf",
        "a: .nan",
        "a: 1.0e+999",
        f"a: {'9' * 41}",
        f"a: 0x{'f' * 10**5}",
        f"a: {'1:' * 10**5}1",
        "a: !!python/object:os.system {}",
        "a: 2026-13-45",
        "\0",
        "a: 1\n---\nb: 2",
        "? [a]\n: 1",
    ],
    ids=len,
)
def test_yaml_that_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither nodes without end nor numbers of any length are made of it."""
    composed = 0
    compose = yaml.SafeLoader.compose_node

    def counted(self: yaml.SafeLoader, *given: Any) -> Any:
        nonlocal composed
        composed += 1
        return compose(self, *given)

    monkeypatch.setattr(yaml.SafeLoader, "compose_node", counted)
    with pytest.raises(ValueError, match=r".") as caught:
        read_yaml(text)
    assert composed <= MOST_NODES
    assert len(str(caught.value)) < 1000


def test_yaml_that_is_taken() -> None:
    assert read_yaml("a: [1, 2.5, off, null, ~, x]\n<<: {b: 0x10}\nc: 2026-01-31\n")["a"] == [
        1,
        2.5,
        False,
        None,
        None,
        "x",
    ]
    assert read_yaml(b"") is None
    for file in sorted((ROOT / "zoo" / "functions").glob("*.yaml")):
        assert read_yaml(file.read_text())["kind"] == "Function"
    assert plain_yaml.MOST_NODES > 4 * 1000, "room for the files of an upload"


# ---- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [b"1" * 10**5, b"1e999", b"-1e999", b"NaN", b"Infinity", b"[" * 10**5, b"{", b"", b'"\xff"', b'"\\ud800"'],
    ids=len,
)
def test_json_that_is_none(text: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        read_json(text)
    assert len(str(caught.value)) < 1000


def test_a_whole_number_is_one_however_it_is_written() -> None:
    read = read_json(b'{"a":34.0,"b":[1.0,2.5,{"c":-2e3}],"d":1e300,"e":"1.0"}')
    assert str(read) == "{'a': 34, 'b': [1, 2.5, {'c': -2000}], 'd': 1e+300, 'e': '1.0'}"


def test_json_has_so_many_values_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MOST_VALUES", 10)
    assert read_json(b'{"a":[1,2,3,{"b":[4,5]}],"c":6}')["c"] == 6
    monkeypatch.setattr(bodies, "MOST_NAMES", 3)
    for text in (
        b'{"a":{"b":1,"c":1,"d":1,"e":1}}',
        b"[1,2,3,4,5,6,7,8,9,10]",
        b'{"a":[1,2,3,{"b":[4,5]}],"c":[6,7]}',
        b'{"a":{"a":{"a":{"a":{"a":[1,2,3,4,5]}}}}}',
    ):
        with pytest.raises(PayloadTooLarge):
            read_json(text)


class Http:
    """Requests to an application in this process."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def post(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        async def sent() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://x") as client:
                return await client.post(path, content=body, headers={"Content-Type": "application/json", **headers})

        return asyncio.run(sent())


MODELS = {
    model.__name__: model
    for model in (
        AttachBody,
        BudgetBody,
        FunctionChanges,
        JobBody,
        KeyBody,
        LimitsBody,
        PinBody,
        SecretBody,
        StepsBody,
    )
}


@pytest.fixture(scope="module")
def http() -> Http:
    """Routes with the models of the API, and nothing behind them."""
    app = FastAPI()

    async def explained(_request: Any, error: Exception) -> Any:
        return explain(error, "r")

    for kind in (SmoreError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, explained)
    app.router.route_class = BoundedRoute
    for name, model in MODELS.items():

        def take(body: Any) -> dict[str, str]:
            return {"taken": type(body).__name__}

        take.__annotations__["body"] = model
        app.post(f"/{name}")(take)
    return Http(app)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "body",
    [
        b'{"' + b"k" * 10**6 + b'":1}',
        b'{"name":"' + b"n" * 10**6 + b'"}',
        b'{"scopes":[' + b'"x",' * 9_999 + b'"x"],"steps":[' + b"1," * 9_999 + b"1]}",
        orjson.dumps({f"key{n}": n for n in range(40_000)}),
        orjson.dumps({"a": list(range(60_000))}),
        b'{"burst":' + b"9" * 10**5 + b"}",
        b'{"burst":' + b"9" * 300 + b',"pid":' + b"9" * 300 + b',"revision":' + b"9" * 300 + b"}",
        b'{"budget":1e999}',
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b"[" * 10**5,
        b"\x1f\x8b\x08",
    ],
    ids=len,
)
def test_answers_to_hostile_bodies_are_small(http: Http, name: str, body: bytes) -> None:
    answer = http.post(f"/{name}", body)

    assert answer.status_code in (400, 413, 422), answer.text[:200]
    assert answer.json()["code"] in ("malformed", "payload_too_large", "invalid_input")
    assert len(answer.content) < SMALL


def test_a_body_in_a_content_coding_is_refused(http: Http) -> None:
    answer = http.post("/BudgetBody", gzip.compress(b'{"budget":0.1}'), **{"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert http.post("/BudgetBody", b'{"budget":0.1}', **{"Content-Encoding": "identity"}).json() == {
        "taken": "BudgetBody"
    }
    for coding in (b"gzip", b"BR", b"gzip, identity", b"x"):
        with pytest.raises(UnsupportedMediaType):
            refuse_coding({b"content-encoding": coding})


def test_every_route_reads_its_body_so() -> None:
    names = [f"api.routes.{found.name}" for found in pkgutil.iter_modules(routes.__path__)]
    modules = [importlib.import_module(name) for name in [*names, "api.openinference.routes"]]

    assert len(modules) >= 17
    assert [
        route.path for module in modules for route in module.router.routes if not isinstance(route, BoundedRoute)
    ] == []


# ---- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [b"wait=-1", b"wait=NaN", b"wait=inf", b"wait=1e9", b"wait=1.5", b"wait=", b"wait", b"wait=" + b"9" * 99]
)
def test_a_wait_that_is_none_is_refused(given: bytes) -> None:
    with pytest.raises(InvalidInput, match="whole seconds"):
        wait_s(given, 30.0)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (b"wait=3", 3.0),
        (b'Wait = "7"; x=y', 7.0),
        (b"wait=0", None),
        (b"wait=99999999999999", MAX_WAIT_S),
        (b"respond-async", None),
        (b"wait=5, respond-async", None),
        (b"return=minimal, wait=4", 4.0),
        (b"x-respond-async-not, x=wait=-1", 30.0),
        (b"", 30.0),
    ],
)
def test_a_wait_is_read_as_the_rfc_has_it(given: bytes, seconds: float | None) -> None:
    assert wait_s(given, 30.0) == seconds


def test_the_description_says_how_long_a_key_is_remembered() -> None:
    document = create_app(Settings(redis=RedisSettings(url="redis://nowhere"))).openapi()
    texts = {
        parameter["description"]
        for item in document["paths"].values()
        for operation in item.values()
        for parameter in operation.get("parameters", [])
        if parameter["name"] == "Idempotency-Key"
    }
    assert texts
    for text in texts:
        found = re.search(r"Remembered for (\d+) minutes", text)
        assert found is not None and int(found[1]) * 60 == QueueSettings().idempotency_ttl_s


# ---- traces ----------------------------------------------------------------------------------------------------------


def test_a_line_without_an_end_is_not_read_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        """What gzip makes of megabytes: one line of gigabytes. It cannot be iterated over."""

        read = 0

        def readline(self, size: int) -> str:
            self.read += size
            return "a" * size

    endless = Endless()

    @contextmanager
    def opened(_path: Path) -> Iterator[Any]:
        yield endless

    monkeypatch.setattr(recorded, "opened", opened)
    with pytest.raises(BadTrace, match="a line of more than"):
        read_trace(tmp_path / "t.csv")
    assert endless.read <= recorded.MOST_LINE + 1
