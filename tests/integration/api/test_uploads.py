"""
Deploying an uploaded folder at a gateway over a real Redis and Postgres; a worker of another host; what is kept and
what goes.
"""

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from api.app import create_app
from scheduler.tasks.sweep import sweep
from smore.blobs.store import Blobs, GatewayBlobs
from smore.domain.access import Scope
from smore.domain.errors import BlobNotFound
from smore.domain.invocation import Cause
from smore.messages.commands import Fetch
from smore.messages.results import Result
from smore.postgres.catalog import Store
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.fleet import Fleet
from smore.redis.queue import Queue
from smore_client import ApiError, Client
from tests.support.eventually import eventually
from tests.support.fake_platform import GPU, Failure, FakePlatform, echo
from tests.support.gateway import Served, add_key, problem


@pytest.fixture
def platform(config: Settings, redis_client: "redis.Redis") -> Iterator[FakePlatform]:
    with FakePlatform(redis_client, Queue(redis_client, config.redis.prefix, config.queue)) as fake:
        yield fake


@pytest.fixture
def gateway(config: Settings, store: Store, platform: FakePlatform, tmp_path: Path) -> Iterator[Served]:
    with Served(create_app(config.model_copy(update={"home": tmp_path / "home"}))) as one:
        yield one


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(str(tmp_path / "home" / "blobs"), tmp_path)


@pytest.fixture
def client(gateway: Served, catalog: Catalog) -> Iterator[Client]:
    key = add_key(catalog, Scope.DEPLOY, Scope.READ)
    listed = httpx.Request("GET", f"{gateway.url}/v1/functions", headers={"Authorization": f"Bearer {key}"})
    with Client(gateway.url, key) as one, httpx.Client(timeout=30) as http:
        eventually(lambda: http.send(listed).is_success, what="the key")
        yield one


def folder(place: Path, code: str, weights: bytes = b"") -> Path:
    place.mkdir(exist_ok=True)
    (place / "function.yaml").write_text(
        "apiVersion: smore/v1\nkind: Function\nmetadata: {name: own}\nspec: {entrypoint: 'handler:Own', requirements:"
        " requirements.txt}\n"
    )
    (place / "requirements.txt").write_text("einops==0.8.1\n")
    (place / "handler.py").write_text(code)
    (place / "weights.bin").write_bytes(weights)
    return place


def test_deployed_and_deployed_again(
    client: Client, blobs: Blobs, platform: FakePlatform, redis_client: "redis.Redis", config: Settings, tmp_path: Path
) -> None:
    weights = os.urandom(9 << 20)  # more than one stretch
    made = client.deploy(folder(tmp_path / "f", "one", weights))
    assert (made.created, made.revision) == (True, 1)
    (revision,) = client.revisions("own")
    assert revision.requirements == ["einops==0.8.1"]
    assert revision.artifact is not None
    digest = hashlib.sha256(weights).hexdigest()
    assert b"".join(blobs.read("default", digest)) == weights
    sent = [command for _, command in Fleet(redis_client, config.redis.prefix).commands(GPU, "0-0", 0.01)]
    assert sent == [Fetch(version=1, function="default/own", revision=1)], "the other nodes are told"

    again = client.deploy(tmp_path / "f")
    assert (again.created, again.revision) == (False, 1)
    stored = {one.digest: one.at for one in blobs}
    assert client.deploy(folder(tmp_path / "f", "two", weights)).revision == 2
    assert {one.digest for one in blobs} > stored.keys(), "the code alone is new"
    assert len(list(blobs)) == 3


def test_a_failed_canary_keeps_the_traffic_where_it_was(client: Client, platform: FakePlatform, tmp_path: Path) -> None:
    client.deploy(folder(tmp_path / "f", "one"))
    log = "The environment was not built: -m pip ended with status 1. Its log:\nERROR: No matching distribution found"
    platform.handlers["default/own"] = lambda begun: Failure(cause=Cause.LOAD_FAILED, message=log)
    with pytest.raises(ApiError, match="No matching distribution") as caught:
        client.deploy(folder(tmp_path / "f", "two"))
    assert (caught.value.code, caught.value.body["cause"]) == ("canary_failed", "load_failed")
    newest, first = client.revisions("own")
    assert (newest.state, newest.error, first.state) == ("failed", log, "active")
    assert client.function("own").revision == 1
    platform.handlers["default/own"] = echo
    assert client.deploy(tmp_path / "f").revision == 3, "what failed once may be tried again"


def test_a_functions_document_says_what_its_handler_declares(
    gateway: Served, client: Client, platform: FakePlatform, catalog: Catalog, tmp_path: Path
) -> None:
    schema = {"$ref": "#/$defs/Question", "$defs": {"Question": {"type": "object", "required": ["text"]}}}
    measured = {
        "inputs": None,
        "outputs": None,
        "load_ms": 1.0,
        "run_ms": 1.0,
        "memory_mib": 1.0,
        "input_schema": schema,
    }
    platform.handlers["default/own"] = lambda begun: Result(form="json", body=json.dumps(measured).encode())
    told = client.deploy(folder(tmp_path / "f", "one")).measured
    assert told is not None and (told.run_ms, told.input_schema, told.output_schema) == (1.0, schema, None)
    assert client.revisions("own")[0].measured == told
    with httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {client.key}"}, timeout=30) as http:
        document = http.get("/v1/functions/own/openapi.json").json()
        assert document["servers"] == [{"url": gateway.url}]
        schemas = document["components"]["schemas"]
        assert {name: schema for name, schema in schemas.items() if name.startswith(("input", "output"))} == {
            "input": {"$ref": "#/components/schemas/input.Question"},
            "input.Question": {"type": "object", "required": ["text"]},
            "output": {},
        }
        assert http.get("/v1/functions/none/openapi.json").status_code == 404
        # Who may call it may read how.
        caller = {"Authorization": f"Bearer {add_key(catalog, Scope.INVOKE)}"}
        eventually(
            lambda: http.get("/v1/functions/own/openapi.json", headers=caller).is_success, what="the new key is known"
        )
        assert http.get("/v1/functions/own/openapi.json", headers=caller).json() == document
        assert problem(http.get("/v1/functions/own", headers=caller), 403, "forbidden")["scope"] == "read"


@pytest.mark.parametrize("evil", ["../../x", "/etc/x"])
def test_an_archive_that_leads_out_never_becomes_a_revision(gateway: Served, client: Client, evil: str) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as writer:
        writer.writestr(evil, b"x")
    digest = hashlib.sha256(made.getvalue()).hexdigest()
    with httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {client.key}"}, timeout=30) as http:
        body: dict[str, Any] = {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": "own"}}
        body["spec"] = {"entrypoint": "h:H", "artifact": {"code": digest}}
        told = http.put("/v1/functions/own", json=body)
        assert told.status_code == 422, told.text
        assert (told.json()["field"], told.json()["missing"]) == ("spec.artifact", [digest])
        size = len(made.getvalue())
        assert http.patch(f"/v1/blobs/{digest}", params={"offset": 0, "size": size}, content=made.getvalue()).json()[
            "complete"
        ]
        told = http.put("/v1/functions/own", json=body)
        assert (told.status_code, told.json()["code"]) == (422, "invalid_artifact")
        assert http.get("/v1/functions/own").status_code == 404


def test_a_worker_of_another_host_reads_through_the_gateway(
    gateway: Served, client: Client, redis_client: "redis.Redis", config: Settings, tmp_path: Path
) -> None:
    weights = os.urandom(3 << 20)
    client.deploy(folder(tmp_path / "f", "one", weights))
    source = GatewayBlobs(gateway.url, redis_client, config.redis.prefix)
    digest = hashlib.sha256(weights).hexdigest()
    assert b"".join(source.read("default", digest)) == weights
    assert b"".join(source.read("default", digest, 1 << 20)) == weights[1 << 20 :]
    with pytest.raises(BlobNotFound):
        list(source.read("other", digest))
    assert redis_client.keys(f"{config.redis.prefix}ticket:*") == [], "a ticket is used up"


def test_what_no_revision_names_goes(
    client: Client, blobs: Blobs, store: Store, platform: FakePlatform, tmp_path: Path
) -> None:
    client.deploy(folder(tmp_path / "f", "one"))
    named = {(one.project, one.digest) for one in blobs}
    assert store.named_blobs() == named
    platform.handlers["default/own"] = lambda begun: Failure(cause=Cause.HANDLER_ERROR, message="no")
    with pytest.raises(ApiError):
        client.deploy(folder(tmp_path / "f", "two"))
    assert store.named_blobs() == named, "a revision that failed needs nothing any more"
    assert sweep(blobs, store, now=max(one.at for one in blobs) + 61, grace_s=60) == 1
    assert {(one.project, one.digest) for one in blobs} == named
    client.delete("own")
    assert store.named_blobs() == set()
