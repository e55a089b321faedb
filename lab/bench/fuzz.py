"""
Fuzzing of the gateway: ``python -m lab.bench.fuzz --examples 200 --json``.

A throw-away platform, and every operation of its own OpenAPI document with inputs drawn from that document, half of
them deliberately wrong (schemathesis, https://schemathesis.readthedocs.io). Some path parameters name things
that exist. These count as faults:

* a 5xx answer, but for 503 with ``Retry-After``, and for 504 to an invocation that met its deadline or its caller's
  patience;
* an answer whose status, media type, headers or body is not as the document says, or none within half a minute;
* an input that the document forbids and the gateway accepts;
* a valid input that is refused, but by an operation of :data:`DEPENDS`;
* a platform that does not answer an ordinary invocation afterwards;
* a client that a generator makes of the document (lab/bench/generated_client.py) and that cannot use it.

The fuzzer's own requests must not stop it: they cannot revoke its key, they set limits for a project of their own, and
after each operation pauses, drains, pins, boosts, limits and trainings are undone. Inputs are drawn from a
fixed seed; ids are not, so two runs are similar, not equal.

``--down redis,postgres`` sends the same requests while these servers are away, one after the other, each in two ways:
killed, so that connections are refused, and frozen, so that connections get no answer. Then every answer must come
within :data:`AWAY_S`; when the server is back the platform must serve again by itself, and every invocation that it had
admitted before must succeed.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import hypothesis
import psutil
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Err
from schemathesis.openapi.checks import RejectedPositiveData
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lab.bench import report
from lab.bench.servers import pid_of, supervisor
from smore.local import asking, machine
from smore.process.settings import Settings
from smore_client import Client

#: Functions that are invoked: of JSON values, and of tensors.
ECHO, TENSORS, SPARE = "echo", "mirror", "spare"
#: Whose limits are changed.
PROJECT = "fuzzed"
SEED: Final = 20251121
#: No operation takes longer, but for a load.
PATIENCE_S: Final = 30.0
#: For so long a log is followed, which ends only when its reader leaves.
FOLLOWED_S: Final = 8.0
#: The same of what changes, which comes every second.
WATCHED_S: Final = 1.0
#: While Redis or Postgres is away the gateway says so within this (docs/architecture.md, "What happens when a
#: part fails").
AWAY_S: Final = 20.0
#: How long a platform may take to serve again once its server is back.
RECOVERY_S: Final = 60.0
#: Requests at a time while a server is away, where each of them waits.
AT_ONCE: Final = 24
#: Invocations that wait when a server goes.
ADMITTED: Final = 20
NO_ANSWER: Final = "no answer"
#: Python of the environment that has openapi-python-client, whose requirements contradict the platform's own.
GENERATOR: Final = Path(sys.prefix) / "generator" / "bin" / "python"
#: The servers and how each can be away.
SERVERS: Final = ("redis", "postgres")
WAYS: Final = ("killed", "frozen")
#: What an input that the document forbids may be answered with.
REFUSALS: Final = (400, 404, 405, 409, 410, 413, 415, 422, 429, 431, 503)
#: What a valid input may be answered with: it names what is not there, or what is in another state.
BORNE: Final = ("2xx", "401", "403", "404", "409", "410", "413", "429", "5xx")
#: Operations that refuse what the document allows, and for what.
DEPENDS: Final[Mapping[str, str]] = {
    "POST /v1/functions/{function}/invocations": "the function's own tensors or types",
    "POST /v1/functions/{function}/invocations:dryRun": "the function's own tensors or types",
    "POST /v2/models/{model}/infer": "the function's own tensors or types",
    "POST /v2/models/{model}/versions/{version}/infer": "the function's own tensors or types",
    "PUT /v1/functions/{function}": "the spec: docs/reference/function-yaml.md",
    "POST /v1/jobs": "an entry point, and the GPU instances that there are",
    "POST /v1/jobs:dryRun": "an entry point, and the GPU instances that there are",
    "POST /v1/jobs/attach": "a process, and the GPU instances that there are",
    "GET /v1/predictions": "parameters that only go together",
    "GET /v1/jobs": "parameters that exclude each other",
    "GET /v1/queues": "parameters that exclude each other",
    "GET /v1/functions": "parameters that exclude each other",
    "GET /v1/gpus/{gpu}/lanes": "parameters that exclude each other, and a span that begins before it ends",
    "GET /v1/live": "parameters that exclude each other",
    "GET /v1/jobs/attempts": "parameters that exclude each other, and a span that begins before it ends",
    "GET /v1/gpus:series": "a span that begins before it ends",
    "GET /v1/functions:served": "parameters that exclude each other, and a span that begins before it ends",
    "GET /v1/functions/{function}/series": "a span that begins before it ends",
    "GET /v1/jobs/{job}/series": "a span that begins before it ends",
    "GET /v1/predictor/calibration": "parameters that exclude each other",
    "GET /v1/harvest": "parameters that exclude each other, and a span that begins before it ends",
    "GET /v1/invocations": "parameters that exclude each other, and a span that begins before it ends",
    "POST /v1/session": "a key and a code exclude each other",
    "GET /v1/blobs/{digest}": "a range that is within the blob",
    "PATCH /v1/projects/{project}/limits": "a burst needs a rate, which may be set already",
    "POST /v1/traces": "the file's content",
}
#: Codes of a 4xx that says what became of a valid input.
_ENDED: Final = {"deadline_expired", "handler_error", "result_too_large", "canary_failed"}
#: Codes of a 504 that says the truth of an invocation.
_HONEST: Final = {"deadline_expired", "still_running", "timed_out"}
_CHECKS: Final = (
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    positive_data_acceptance,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    A fault in one answer, and the request that shows it again. ``kind``: the status of a 5xx, :data:`NO_ANSWER`, or the
    class of the failure.
    """

    operation: str
    kind: str
    what: str
    request: str


@dataclass(slots=True)
class Findings:
    """``answers``: how many of each status; ``faults``: one of each kind for each operation."""

    operations: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)
    slowest_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answered(self, status: int, took_s: float) -> None:
        with self._lock:
            self.answers[status] += 1
            self.slowest_s = max(self.slowest_s, took_s)

    def add(self, operation: str, kind: str, what: str, request: str) -> None:
        self.faults.setdefault((operation, kind), Fault(operation=operation, kind=kind, what=what, request=request))


class Fuzzer:
    """Speaks to one gateway with a key that must have every scope in the project ``default``."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._own_key = key.split("_")[1]
        self._key = key
        self._own = threading.local()
        config = schemathesis.Config.from_dict(
            {
                "generation": {"with-security-parameters": False},
                "checks": {
                    "negative_data_rejection": {"expected-statuses": [str(status) for status in REFUSALS]},
                    "positive_data_acceptance": {"expected-statuses": list(BORNE)},
                },
            }
        )
        document = self._ask("GET", "/openapi.json").json()
        self._schema = schemathesis.openapi.from_dict(document, config=config)
        self._schema.config.update(base_url=url)
        self._known = self._prepare()

    @property
    def _session(self) -> requests.Session:
        """Of this thread."""
        if not hasattr(self._own, "session"):
            self._own.session = requests.Session()
            self._own.session.headers["Authorization"] = f"Bearer {self._key}"
        session: requests.Session = self._own.session
        return session

    def _prepare(self) -> dict[str, list[str]]:
        """Things that exist, by the name of the path parameter that they fit."""
        blob = b"a blob of nobody's"
        digest = hashlib.sha256(blob).hexdigest()
        self._ask("PATCH", f"/v1/blobs/{digest}?offset=0&size={len(blob)}", data=blob)
        self._ask("POST", "/v1/projects", json={"name": PROJECT})
        self._ask("PUT", "/v1/secrets/FUZZED", json={"value": "nobody's secret"})
        key = self._ask("POST", "/v1/keys", json={"name": "spare", "scopes": ["read"]}).json()["id"]
        ran = self._ask("POST", f"/v1/functions/{ECHO}/invocations", json={"input": 1}).json()["id"]
        job = self._ask("POST", "/v1/jobs/attach", json={"name": "spare", "pid": os.getpid(), "tracked": True}).json()[
            "id"
        ]
        gpu = self._ask("GET", "/v1/gpus").json()["gpus"][0]["id"]
        return {
            "function": [ECHO, TENSORS],
            "model": [ECHO, TENSORS],
            "version": ["1"],
            "gpu": [gpu],
            "job": [job],
            "invocation": [ran],
            "project": [PROJECT],
            "key": [key],
            "secret": ["FUZZED"],
            "digest": [digest],
        }

    def _ask(self, method: str, path: str, **how: Any) -> requests.Response:
        return self._session.request(method, self._url + path, timeout=PATIENCE_S, **how)

    def draw(self, examples: int, only: str = "") -> list[tuple[str, Any]]:
        """
        ``examples`` inputs of either kind, right and wrong, for each operation whose label contains ``only``, each with
        that label. Raises schemathesis' error where the document is wrong.
        """
        drawn: list[tuple[str, Any]] = []
        for result in self._schema.get_all_operations():
            if isinstance(result, Err):
                raise result.err()
            operation = result.ok()
            if only not in operation.label:
                continue
            # Any text fits a path; what has nothing else cannot be asked wrongly, and schemathesis would look for it
            # for long.
            wrong = bool(operation.body.items or operation.query.items or operation.headers.items)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)[: 1 + wrong]:
                cases = self._draw(operation.label, operation.as_strategy(generation_mode=mode), examples)
                drawn += [(operation.label, case) for case in cases]
        return drawn

    def run(self, drawn: Sequence[tuple[str, Any]]) -> Findings:
        """Send them one after the other."""
        findings = Findings(operations=len({label for label, _ in drawn}))
        for label, cases in itertools.groupby(drawn, lambda pair: pair[0]):
            for _, case in cases:
                self._try(findings, label, case)
            if _leaves_something(label):
                self.restore()
        return findings

    def send(self, drawn: Sequence[tuple[str, Any]]) -> Findings:
        """Them, :data:`AT_ONCE` at a time, while a server is away: nothing is taken back."""
        findings = Findings(operations=len({label for label, _ in drawn}))
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for tried in [threads.submit(self._try, findings, label, case, AWAY_S) for label, case in drawn]:
                tried.result()
        return findings

    def _draw(self, label: str, strategy: Any, examples: int) -> list[Any]:
        cases: list[Any] = []

        @hypothesis.seed(SEED)
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=strategy, existing=st.booleans(), which=st.integers(0, 7))
        def example(case: Any, existing: bool, which: int) -> None:
            if existing:
                self._aim(label, case, which)
            if not self._locks_out(label, case):
                cases.append(case)

        with contextlib.suppress(hypothesis.errors.Unsatisfiable):
            example()
        return cases

    def _aim(self, label: str, case: Any, which: int) -> None:
        for name in case.path_parameters or {}:
            pool = [SPARE] if label == "DELETE /v1/functions/{function}" else self._known.get(name)
            if pool:
                case.path_parameters[name] = pool[which % len(pool)]
        if (
            isinstance(case.body, dict)
            and isinstance(case.body.get("metadata"), dict)
            and "function" in (case.path_parameters or {})
        ):
            case.body["metadata"]["name"] = case.path_parameters["function"] = SPARE

    def _locks_out(self, label: str, case: Any) -> bool:
        given = {str(value) for value in (case.path_parameters or {}).values()}
        if label == "DELETE /v1/keys/{key}":
            return self._own_key in given
        if label == "DELETE /v1/functions/{function}":
            return bool(given & {ECHO, TENSORS})
        return label == "PATCH /v1/projects/{project}/limits" and "default" in given

    def _try(self, findings: Findings, label: str, case: Any, within_s: float | None = None) -> None:
        request = case.as_curl_command()
        began = time.monotonic()
        try:
            response = case.call(session=self._session, timeout=_patience_s(label, case, within_s))
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            # The client library will not send it; tests/acceptance/test_fuzz.py does.
            return
        except requests.exceptions.RequestException as error:
            findings.add(label, NO_ANSWER, f"{type(error).__name__}: {error}", request)
            return
        findings.answered(response.status_code, time.monotonic() - began)
        if response.status_code >= 500 and not _honest(response):
            findings.add(label, str(response.status_code), f"{response.status_code}: {response.text[:300]}", request)
            return
        try:
            case.validate_response(response, checks=list(_CHECKS), excluded_checks=[not_a_server_error])
        except FailureGroup as failures:
            for failure in failures.exceptions:
                if isinstance(failure, RejectedPositiveData) and _depends(label, response):
                    continue
                findings.add(label, type(failure).__name__, f"{response.status_code}: {failure}"[:600], request)

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

    def serves(self) -> bool:
        """Whether Redis and Postgres are there for the gateway again, and an ordinary invocation is answered."""
        if not all(self._ask("GET", path).status_code == 200 for path in ("/readyz", "/v1/jobs")):
            return False
        self.restore()
        return self.well()

    def well(self) -> bool:
        """Whether an ordinary invocation is answered."""
        return self._ask("POST", f"/v1/functions/{ECHO}/invocations", json={"input": 1}).status_code == 200

    def admit(self) -> dict[str, int]:
        """Invocations that wait until :meth:`lost` lets them run: their inputs by their ids."""
        for gpu in self._known["gpu"]:
            self._ask("POST", f"/v1/gpus/{gpu}/pause").raise_for_status()
        wanted = {"headers": {"Prefer": "respond-async"}, "params": {"deadline_ms": 600_000}}
        answers = [
            self._ask("POST", f"/v1/functions/{ECHO}/invocations", json={"input": n}, **wanted) for n in range(ADMITTED)
        ]
        return {answer.json()["id"]: n for n, answer in enumerate(answers) if answer.status_code == 202}

    def lost(self, admitted: dict[str, int]) -> list[str]:
        """Let them run; those of the invocations that do not end with their own output."""
        self.restore()
        lost = []
        for id_, given in admitted.items():
            answer = self._ask("GET", f"/v1/invocations/{id_}", headers={"Prefer": "wait=20"})
            if answer.status_code != 200 or answer.json().get("output") != given:
                lost.append(f"{id_}: {answer.status_code} {answer.text[:200]}")
        return lost


def _patience_s(label: str, case: Any, within_s: float | None) -> float:
    if (case.query or {}).get("follow") in (True, "true"):
        return FOLLOWED_S
    if label == "GET /v1/live":
        return WATCHED_S
    return within_s or (90.0 if label.endswith("/load") else PATIENCE_S)


def _leaves_something(label: str) -> bool:
    method, _, path = label.partition(" ")
    return method != "GET" and path.startswith(("/v1/queues", "/v1/gpus", "/v1/jobs", "/v1/functions"))


def _depends(label: str, response: Any) -> bool:
    """Whether a refusal of a valid input is about what the document cannot say."""
    return label in DEPENDS or _code(response) in _ENDED


def _honest(response: Any) -> bool:
    if response.status_code == 503:
        return "retry-after" in response.headers
    return response.status_code == 504 and _code(response) in _HONEST


def _code(response: Any) -> str:
    """Of an answer that is a problem, '' = it is none."""
    try:
        return str(response.json().get("code"))
    except ValueError:
        return ""


def deploy(client: Client) -> None:
    """The functions that are fuzzed."""
    for name, entrypoint in (
        (ECHO, "lab.bench.functions:Echo"),
        (TENSORS, "lab.bench.functions:Mirror"),
        (SPARE, "lab.bench.functions:Echo"),
    ):
        spec = {"entrypoint": entrypoint, "slo": {"deadline": "2s"}, "scaling": {"max_warm": 1}}
        client.deploy({"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": name}, "spec": spec})


@contextmanager
def platform(home: Path) -> Iterator[tuple[asking.Endpoints, str]]:
    """A platform of its own that keeps little: its endpoints and its first key."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {"SMORE_API__PORT": str(port), "SMORE_BLOBS__PROJECT_BYTES": str(64 << 20)}
    end = machine.up(home, config=Settings(), partitions=1)
    try:
        yield end, (home / "key").read_text().strip()
    finally:
        machine.down(home)


# ---- servers that are away -------------------------------------------------------------------------------------------


@contextmanager
def away(home: Path, server: str, way: str) -> Iterator[None]:
    """
    ``server`` of the platform in ``home`` killed, or all its processes frozen, while the ``with`` lasts. Raises
    LookupError.
    """
    pid = pid_of(home, server)
    if pid is None:
        raise LookupError(f"{server} does not run")
    if way == "killed":
        os.kill(pid, signal.SIGKILL)
        # Its supervisor would start it again at once.
        supervisor(home).stop(server)
        try:
            yield
        finally:
            supervisor(home).start(server)
        return
    process = psutil.Process(pid)
    frozen = [process, *process.children(recursive=True)]
    for member in frozen:
        member.suspend()
    try:
        yield
    finally:
        for member in reversed(frozen):
            member.resume()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """
    One server away in one way. ``slowest_s``: the slowest answer; ``recovery_s``: from the server's return until the
    platform served again, None = it did not within :data:`RECOVERY_S`; ``lost``: which of the ``admitted`` did not end
    well.
    """

    server: str
    way: str
    requests: int
    answers: dict[str, int]
    slowest_s: float
    recovery_s: float | None
    admitted: int
    lost: list[str]
    faults: list[Fault]

    @property
    def borne(self) -> bool:
        return self.recovery_s is not None and self.admitted == ADMITTED and not self.lost and not self.faults


def outage(fuzzer: Fuzzer, home: Path, server: str, way: str, drawn: Sequence[tuple[str, Any]]) -> Outage:
    """What the gateway answers to ``drawn`` while ``server`` is away, and what is left afterwards."""
    admitted = fuzzer.admit()
    with away(home, server, way):
        findings = fuzzer.send(drawn)
    recovery_s = _recovery_s(fuzzer)
    return Outage(
        server=server,
        way=way,
        requests=findings.answers.total(),
        answers=_sorted(findings.answers),
        slowest_s=round(findings.slowest_s, 2),
        recovery_s=recovery_s,
        admitted=len(admitted),
        lost=fuzzer.lost(admitted) if recovery_s is not None else list(admitted),
        faults=list(findings.faults.values()),
    )


def _recovery_s(fuzzer: Fuzzer) -> float | None:
    began = time.monotonic()
    while (passed := time.monotonic() - began) < RECOVERY_S:
        with contextlib.suppress(requests.exceptions.RequestException):
            if fuzzer.serves():
                return round(time.monotonic() - began, 2)
        time.sleep(0.2 if passed < 2 else 1)
    return None


def generated_client(url: str, key: str) -> bool:
    """
    Whether a client that is generated from the gateway's document deploys, invokes, asks and waits. Raises
    FileNotFoundError where the environment of the generator is missing, which `make test` makes.
    """
    program = Path(__file__).with_name("generated_client.py")
    ran = subprocess.run([GENERATOR, program, url, key], capture_output=True, text=True, timeout=300, check=False)
    if ran.returncode:
        print(ran.stdout, ran.stderr, file=sys.stderr)
    return not ran.returncode


def counted(faults: Iterable[Fault]) -> dict[str, int]:
    """How many kinds of faults there are of each operation: 5xx or no answer, valid inputs refused, and all others."""
    kinds = [fault.kind for fault in faults]
    failed = sum(kind == NO_ANSWER or kind.isdecimal() for kind in kinds)
    refused = kinds.count(RejectedPositiveData.__name__)
    return {"server_errors": failed, "valid_refused": refused, "schema_violations": len(kinds) - failed - refused}


def _sorted(answers: Counter[int]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(answers.items())}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.fuzz", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--examples", type=int, default=50, help="inputs of either kind for each operation")
    parser.add_argument("--only", default="", help="operations whose method and path contain this")
    parser.add_argument("--down", default="", help=f"ask while these are away instead: {','.join(SERVERS)}")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(arguments)
    report.end_on_sigterm()
    servers = [name for name in wanted.down.split(",") if name]
    if unknown := set(servers) - set(SERVERS):
        parser.error(f"--down: {', '.join(sorted(unknown))}")
    with (
        tempfile.TemporaryDirectory() as folder,
        platform(Path(folder)) as (end, key),
        Client(end.gateway_url, key) as client,
    ):
        deploy(client)
        fuzzer = Fuzzer(end.gateway_url, key)
        drawn = fuzzer.draw(wanted.examples, wanted.only)
        if servers:
            outages = []
            for name, way in itertools.product(servers, WAYS):
                outages.append(outage(fuzzer, Path(folder), name, way, drawn))
                print(f"{name} {way}: {outages[-1].answers}", file=sys.stderr)
            print(json.dumps([asdict(item) for item in outages], indent=None if wanted.json else 2))
            return 0 if all(item.borne for item in outages) else 1
        began = time.monotonic()
        findings = fuzzer.run(drawn)
        took_s, well = time.monotonic() - began, fuzzer.well()
        generated = generated_client(end.gateway_url, key)
    figures = {
        "operations": findings.operations,
        "requests": findings.answers.total(),
        "seconds": round(took_s, 1),
        "well": well,
        "answers": _sorted(findings.answers),
        **counted(findings.faults.values()),
        "generated_client": int(generated),
        "faults": [asdict(item) for item in findings.faults.values()],
    }
    print(json.dumps(figures, indent=None if wanted.json else 2))
    return 0 if well and generated and not findings.faults else 1


if __name__ == "__main__":
    sys.exit(main())
