"""
Uploaded functions on a whole platform: a folder with a requirement, broken ones beside it, and a worker that is killed.
"""

import os
import signal
import threading
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from smore_client import ApiError, Client
from tests.support.eventually import eventually
from tests.support.whole_platform import STRICT, Platform

pytestmark = pytest.mark.acceptance

ENVIRONMENT = STRICT

HANDLER = """
from pathlib import Path

import smore
{imports}

class Greeter(smore.Handler):
    example = {{"name": "canary"}}

    def load(self, device):
        self.weights = Path(__file__).with_name("weights.bin").read_bytes()
        print("loading the greeter")

    def predict(self, inputs):
        return [{{"says": {says}, "weights": len(self.weights)}} for one in inputs]
"""


def wheel(folder: Path, name: str, source: str) -> str:
    """A pure-Python wheel by hand: nothing has to be fetched from anywhere. Returns its requirement."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as writer:
        for path, content in files.items():
            writer.writestr(path, content)
    return f"./{name}-1.0-py3-none-any.whl"


def folder(
    place: Path,
    *,
    name: str = "greeter",
    imports: str = "",
    says: str = "'hello'",
    requirements: list[str] | None = None,
) -> Path:
    place.mkdir(exist_ok=True)
    (place / "function.yaml").write_text(
        f"apiVersion: smore/v1\nkind: Function\nmetadata: {{name: {name}}}\n"
        f"spec:\n  entrypoint: handler:Greeter\n  slo: {{deadline: 20s}}\n  requirements: {requirements or []}\n"
    )
    (place / "handler.py").write_text(HANDLER.format(imports=imports, says=says))
    (place / "weights.bin").write_bytes(bytes(3 << 20))
    return place


def revisions(platform: Platform, name: str) -> dict[int, str]:
    return {one.revision: one.state for one in platform.client.revisions(name)}


@pytest.fixture(scope="module")
def greeter(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deployed: it requires a package that the platform has not."""
    place = tmp_path_factory.mktemp("greeter")
    requirement = wheel(place, "tinygreeting", "def greet(name):\n    return f'hello {name}'\n")
    folder(place, imports="import tinygreeting", says="tinygreeting.greet(one['name'])", requirements=[requirement])
    platform.client.deploy(place)
    return place


def say(platform: Platform, name: str = "greeter") -> Any:
    return platform.client.invoke(name, {"name": "you"}, deadline_ms=20_000).output["says"]


def test_a_folder_with_a_requirement_runs(platform: Platform, greeter: Path) -> None:
    done = platform.client.invoke("greeter", {"name": "you"}, deadline_ms=20_000)
    assert done.output == {"says": "hello you", "weights": 3 << 20}
    (revision,) = platform.client.revisions("greeter")
    assert revision.requirements == ["./tinygreeting-1.0-py3-none-any.whl"]
    assert revision.artifact is not None
    cache = platform.home / "cache" / "folders"
    assert (cache / revision.artifact / "handler.py").read_text() == (greeter / "handler.py").read_text()
    assert not (cache / revision.artifact / "__pycache__").exists()
    again = platform.client.deploy(greeter)
    assert (again.created, again.revision) == (False, revision.revision), "the same folder is the same revision"


def test_two_functions_may_both_have_a_handler(platform: Platform, greeter: Path, tmp_path: Path) -> None:
    platform.client.deploy(folder(tmp_path / "f", name="other", says="'another handler.py'"))
    assert (say(platform, "other"), say(platform)) == ("another handler.py", "hello you")
    with pytest.raises(ApiError, match="tinygreeting"):
        platform.client.deploy(folder(tmp_path / "f", name="other", imports="import tinygreeting"))


def test_broken_ones_tell_why_and_the_old_one_goes_on(platform: Platform, greeter: Path, tmp_path: Path) -> None:
    """A build, an import and a canary that fail, while callers go on asking."""
    wrong: list[object] = []
    asked = threading.Event()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            said = say(platform)
            asked.set()
            if said != "hello you":
                wrong.append(said)

    caller = threading.Thread(target=ask)
    caller.start()
    try:
        (tmp_path / "bad-1.0-py3-none-any.whl").write_bytes(b"no wheel")
        for broken, told in (
            ({"requirements": ["./bad-1.0-py3-none-any.whl"]}, "bad-1.0-py3-none-any.whl cannot be read"),
            ({"imports": "print('about to fail')\nimport no_such_module"}, "about to fail"),
            ({"says": "one['missing']"}, "KeyError"),
        ):
            asked.clear()
            with pytest.raises(ApiError) as caught:
                platform.client.deploy(folder(tmp_path, **broken))
            assert (caught.value.code, caught.value.status) == ("canary_failed", 422)
            assert told in caught.value.detail
            newest = platform.client.revisions("greeter")[0]
            assert newest.state == "failed"
            assert told in (newest.error or "")
            assert asked.wait(30), "the old one answers"
    finally:
        stop.set()
        caller.join()
    assert wrong == []
    assert platform.client.function("greeter").revision == 1
    assert revisions(platform, "greeter") == {1: "active", 2: "failed", 3: "failed", 4: "failed"}


def test_what_a_handler_prints_and_raises_reaches_its_developer(platform: Platform, tmp_path: Path) -> None:
    """In the error, the explanation and the log, with the files of the folder as they were named there."""
    says = "print('greets', one['name']) or 1 / one.get('by', 1)"
    platform.client.deploy(folder(tmp_path / "f", name="talker", says=says))
    platform.client.invoke("talker", {"name": "a"}, deadline_ms=20_000)
    with pytest.raises(ApiError) as failed:
        platform.client.invoke("talker", {"name": "b", "by": 0}, deadline_ms=20_000)
    traceback, id_ = failed.value.traceback, failed.value.body["id"]
    assert {line.partition(",")[0] for line in traceback.splitlines() if "File" in line} == {'  File "handler.py"'}
    assert traceback.endswith(f"{failed.value.detail}\n")
    assert platform.client.explain(id_).traceback == platform.client.invocation(id_).traceback == traceback
    printed = eventually(lambda: list(platform.client.logs("talker", invocation=id_)), what="its lines")
    assert [line.text for line in printed] == ["greets b", *traceback.splitlines()]
    assert {line.stream for line in printed} == {"stdout", "stderr"}
    assert {(line.revision, line.gpu, tuple(line.invocations)) for line in printed} == {(1, platform.gpu, (id_,))}
    loaded = next(line for line in platform.client.logs("talker") if line.text == "loading the greeter")
    assert (loaded.revision, loaded.invocations) == (1, [])


def test_after_kill_9_of_its_worker_it_is_back_and_its_log_goes_on(platform: Platform, greeter: Path) -> None:
    lines: list[str] = []

    def follow() -> None:
        with suppress(ApiError), Client(platform.url, platform.key) as client:
            for line in client.logs("greeter", lines=0, follow=True):
                lines.append(line.text)

    threading.Thread(target=follow, daemon=True).start()
    environments = platform.home / "cache" / "environments"
    built = {path: path.stat().st_ino for path in environments.glob("*.json")}
    assert built
    say(platform)
    runners = platform.runner_pids("greeter")
    os.kill(platform.pid(platform.worker), signal.SIGKILL)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in runners), 20, "its runners have ended with it")
    eventually(lambda: say(platform) == "hello you", 60, "the function")
    assert {path: path.stat().st_ino for path in environments.glob("*.json")} == built, (
        "the environment was not built again"
    )
    eventually(lambda: "loading the greeter" in lines, what="the follower reads the new worker's lines")


def test_a_name_that_leads_out_or_a_blob_that_is_not_there_is_refused_at_once(platform: Platform) -> None:
    with httpx.Client(base_url=platform.url, headers={"Authorization": f"Bearer {platform.key}"}, timeout=30) as http:
        body = {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": "evil"}}
        for artifact, code in (
            ({"code": "a" * 64}, "invalid_spec"),
            ({"code": "a" * 64, "files": {"../../x": "b" * 64}}, "invalid_spec"),
        ):
            answer = http.put("/v1/functions/evil", json=body | {"spec": {"entrypoint": "h:H", "artifact": artifact}})
            assert (answer.status_code, answer.json()["code"]) == (422, code)
        for requirement in (".", "six @ file:///etc/passwd", "six --global-option=x"):
            artifact = {"code": "a" * 64}
            answer = http.put(
                "/v1/functions/evil",
                json=body | {"spec": {"entrypoint": "h:H", "artifact": artifact, "requirements": [requirement]}},
            )
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec") and repr(
                requirement
            ) in answer.json()["detail"]
        assert http.get("/v1/functions/evil").status_code == 404
