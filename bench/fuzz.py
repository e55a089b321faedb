"""
Nobody's bytes bring the gateway down: ``python -m bench.fuzz --examples 200 --json``.

A throw-away platform, and every operation of its own OpenAPI document with inputs drawn from that document, half of them deliberately
wrong (schemathesis, https://schemathesis.readthedocs.io). Path parameters are now and then things that exist. What counts as a fault:

* a 5xx answer, but for 503 with ``Retry-After``, and for 504 to an invocation that met its deadline or its caller's patience;
* an answer whose status, media type, headers or body is not as the document says, or none within half a minute;
* an input that the document forbids, taken;
* a platform that after all of it does not answer an ordinary invocation.

What the fuzzer makes must not stop it: its own key cannot be revoked by it, limits are set for a project of their own, and after each
operation pauses, drains, pins, boosts, limits and trainings are taken back. Inputs are drawn from a fixed seed; ids are not, so two runs
are alike and not equal.
"""

import argparse
import contextlib
import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import hypothesis
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Err
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from smore import local
from smore.client import Client
from smore.settings import Settings

#: Functions that are invoked: of JSON values, and of tensors.
ECHO, TENSORS, SPARE = "echo", "mirror", "spare"
#: Whose limits are changed.
PROJECT = "fuzzed"
SEED: Final = 20251121
#: No operation takes longer, but for a load.
PATIENCE_S: Final = 30.0
#: What an input that the document forbids may be answered with.
REFUSALS: Final = (400, 404, 405, 409, 410, 413, 415, 422, 429, 431, 503)
#: Codes of a 504 that says the truth of an invocation.
_HONEST: Final = {"deadline_expired", "still_running", "timed_out"}
_CHECKS: Final = (
    status_code_conformance, content_type_conformance, response_headers_conformance, response_schema_conformance, negative_data_rejection,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was wrong with one answer, and how to ask again."""

    operation: str
    what: str
    request: str


@dataclass(slots=True)
class Found:
    """``answers``: how many of each status; ``faults``: one of each kind for each operation."""

    operations: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)

    def add(self, operation: str, kind: str, what: str, request: str) -> None:
        self.faults.setdefault((operation, kind), Fault(operation=operation, what=what, request=request))


class Fuzzer:
    """Speaks to one gateway with a key that must have every scope in the project ``default``."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._own_key = key.split("_")[1]
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {key}"
        config = schemathesis.Config.from_dict(
            {
                "generation": {"with-security-parameters": False},
                "checks": {"negative_data_rejection": {"expected-statuses": [str(status) for status in REFUSALS]}},
            }
        )
        document = self._session.get(f"{url}/openapi.json", timeout=PATIENCE_S).json()
        self._schema = schemathesis.openapi.from_dict(document, config=config)
        self._schema.config.update(base_url=url)
        self._known = self._prepare()

    def _prepare(self) -> dict[str, list[str]]:
        """Things that exist, by the name of the path parameter that they fit."""
        blob = b"a blob of nobody's"
        digest = hashlib.sha256(blob).hexdigest()
        self._ask("PATCH", f"/v1/blobs/{digest}?offset=0&size={len(blob)}", data=blob)
        self._ask("POST", "/v1/projects", json={"name": PROJECT})
        self._ask("PUT", "/v1/secrets/FUZZED", json={"value": "nobody's secret"})
        key = self._ask("POST", "/v1/keys", json={"name": "spare", "scopes": ["read"]}).json()["id"]
        ran = self._ask("POST", f"/v1/functions/{ECHO}/invocations", json={"input": 1}).json()["id"]
        job = self._ask("POST", "/v1/jobs/attach", json={"name": "spare", "pid": os.getpid(), "tracked": True}).json()["id"]
        gpu = self._ask("GET", "/v1/gpus").json()["gpus"][0]["id"]
        return {
            "function": [ECHO, TENSORS], "model": [ECHO, TENSORS], "version": ["1"], "gpu": [gpu], "job": [job], "invocation": [ran],
            "project": [PROJECT], "key": [key], "secret": ["FUZZED"], "digest": [digest],
        }  # fmt: skip

    def _ask(self, method: str, path: str, **how: Any) -> requests.Response:
        return self._session.request(method, self._url + path, timeout=PATIENCE_S, **how)

    def run(self, examples: int, only: str = "") -> Found:
        """``examples`` inputs of either kind, right and wrong, for each operation whose label contains ``only``."""
        found = Found()
        for result in self._schema.get_all_operations():
            if isinstance(result, Err):
                found.add("openapi.json", "invalid", str(result.err()), "GET /openapi.json")
                continue
            operation = result.ok()
            if only not in operation.label:
                continue
            found.operations += 1
            # Any text fits a path; what has nothing else cannot be asked wrongly, and schemathesis would look for it for long.
            wrong = bool(operation.body.items or operation.query.items or operation.headers.items)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)[: 1 + wrong]:
                with contextlib.suppress(hypothesis.errors.Unsatisfiable):
                    self._draw(found, operation.label, operation.as_strategy(generation_mode=mode), examples)
            if _leaves_something(operation.label):
                self.restore()
        return found

    def _draw(self, found: Found, label: str, strategy: Any, examples: int) -> None:
        @hypothesis.seed(SEED)
        @hypothesis.settings(
            max_examples=examples, deadline=None, database=None, phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        @hypothesis.given(case=strategy, known=st.booleans(), which=st.integers(0, 7))
        def one(case: Any, known: bool, which: int) -> None:
            if known:
                self._aim(label, case, which)
            if not self._locks_out(label, case):
                self._try(found, label, case)

        one()

    def _aim(self, label: str, case: Any, which: int) -> None:
        for name in case.path_parameters or {}:
            pool = [SPARE] if label == "DELETE /v1/functions/{function}" else self._known.get(name)
            if pool:
                case.path_parameters[name] = pool[which % len(pool)]
        if isinstance(case.body, dict) and isinstance(case.body.get("metadata"), dict) and "function" in (case.path_parameters or {}):
            case.body["metadata"]["name"] = case.path_parameters["function"] = SPARE

    def _locks_out(self, label: str, case: Any) -> bool:
        given = {str(value) for value in (case.path_parameters or {}).values()}
        if label == "DELETE /v1/keys/{key}":
            return self._own_key in given
        if label == "DELETE /v1/functions/{function}":
            return bool(given & {ECHO, TENSORS})
        return label == "PUT /v1/projects/{project}/limits" and "default" in given

    def _try(self, found: Found, label: str, case: Any) -> None:
        request = case.as_curl_command()
        try:
            response = case.call(session=self._session, timeout=PATIENCE_S if not label.endswith("/load") else 90.0)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            # The client library will not send it; tests/acceptance/test_connections.py does.
            return
        except requests.exceptions.RequestException as error:
            found.add(label, type(error).__name__, f"{type(error).__name__}: {error}", request)
            return
        found.answers[response.status_code] += 1
        if response.status_code >= 500 and not _honest(response):
            found.add(label, str(response.status_code), f"{response.status_code}: {response.text[:300]}", request)
            return
        try:
            case.validate_response(response, checks=list(_CHECKS), excluded_checks=[not_a_server_error])
        except FailureGroup as failures:
            for failure in failures.exceptions:
                found.add(label, type(failure).__name__, f"{response.status_code}: {failure}"[:600], request)

    def restore(self) -> None:
        """Take back what may keep the next operation's invocations from running."""
        for path in ("resume", *(f"{function}/resume" for function in (ECHO, TENSORS))):
            self._ask("POST", f"/v1/queues/{path}")
        for function in (ECHO, TENSORS):
            for what in ("boost", "pin"):
                self._ask("DELETE", f"/v1/queues/{function}/{what}")
            self._ask("PUT", f"/v1/functions/{function}/slo", json={"deadline_ms": None})
        for gpu in self._known["gpu"]:
            self._ask("POST", f"/v1/gpus/{gpu}/resume")
        for job in self._ask("GET", "/v1/jobs").json()["jobs"]:
            if job["state"] not in ("ended", "lost", "failed", "stopping"):
                self._ask("POST", f"/v1/jobs/{job['id']}/stop")

    def well(self) -> bool:
        """Whether an ordinary invocation is answered."""
        return self._ask("POST", f"/v1/functions/{ECHO}/invocations", json={"input": 1}).status_code == 200


def _leaves_something(label: str) -> bool:
    method, _, path = label.partition(" ")
    return method != "GET" and path.startswith(("/v1/queues", "/v1/gpus", "/v1/jobs", "/v1/functions"))


def _honest(response: Any) -> bool:
    if response.status_code == 503:
        return "retry-after" in response.headers
    try:
        return response.status_code == 504 and response.json().get("code") in _HONEST
    except ValueError:
        return False


def deploy(client: Client) -> None:
    """The functions that are fuzzed."""
    for name, entrypoint in ((ECHO, "bench.functions:Echo"), (TENSORS, "bench.functions:Mirror"), (SPARE, "bench.functions:Echo")):
        spec = {"entrypoint": entrypoint, "slo": {"deadline": "2s"}, "scaling": {"max_warm": 1}}
        client.deploy({"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": name}, "spec": spec})


@contextmanager
def platform(home: Path) -> Iterator[tuple[local.Endpoints, str]]:
    """A platform of its own that keeps little: its endpoints and its first key."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {"SMORE_API__PORT": str(port), "SMORE_BLOBS__PROJECT_BYTES": str(64 << 20)}
    end = local.up(home, config=Settings(), partitions=1)
    try:
        yield end, (home / "key").read_text().strip()
    finally:
        local.down(home)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--examples", type=int, default=50, help="inputs of either kind for each operation")
    parser.add_argument("--only", default="", help="operations whose method and path contain this")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, platform(Path(folder)) as (end, key), Client(end.gateway_url, key) as client:
        deploy(client)
        fuzzer = Fuzzer(end.gateway_url, key)
        began = time.monotonic()
        found = fuzzer.run(wanted.examples, wanted.only)
        took_s, well = time.monotonic() - began, fuzzer.well()
    figures = {
        "operations": found.operations, "requests": found.answers.total(), "seconds": round(took_s, 1), "well": well,
        "answers": {str(status): count for status, count in sorted(found.answers.items())},
        "faults": [asdict(one) for one in found.faults.values()],
    }  # fmt: skip
    print(json.dumps(figures, indent=None if wanted.json else 2))
    return 0 if well and not found.faults else 1


if __name__ == "__main__":
    sys.exit(main())
