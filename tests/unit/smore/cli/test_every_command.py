"""Every command of ``smore``: data as JSON, tables that fit a narrow screen."""

import json
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

import smore_client
from api.server.examples import PARAMETERS
from tests.support.answers import ANSWERS
from tests.support.cli import PROBLEM, smore
from tests.support.every_command import Examples, commands

CLIENT: Final = smore_client.Client
#: What a command needs on its command line.
ARGUMENTS: Final = {
    "audit": "",
    "boost": "echo 4",
    "cancel": "{id}",
    "drain": "echo",
    "explain": "{id}",
    "functions lift": "echo",
    "functions offload": "echo",
    "functions revisions": "echo",
    "functions rollback": "echo 1",
    "functions scale": "echo --min-warm 1",
    "functions show": "echo",
    "functions warm": "echo",
    "gpus allow": "cpu0 4711",
    "gpus drain": "cpu0",
    "gpus forget": "cpu0",
    "gpus pause": "cpu0",
    "gpus protect": "cpu0 4711",
    "gpus resume": "cpu0",
    "gpus show": "cpu0",
    "gpus undrain": "cpu0",
    "jobs allow": "{id}",
    "jobs attach": "--pid 4711",
    "jobs attempts": "{id}",
    "jobs explain": "{id}",
    "functions delete": "echo",
    "invoke": "echo --input 1",
    "jobs hold": "{id}",
    "jobs logs": "{id}",
    "jobs move": "{id} --first",
    "jobs release": "{id}",
    "jobs restart": "{id}",
    "jobs show": "{id}",
    "jobs start": "night zoo.train",
    "jobs statement": "{id}",
    "jobs stop": "{id}",
    "keys create": "ci",
    "keys revoke": PARAMETERS["key"],
    "logs": "echo",
    "open": "--print",
    "pin": "echo cpu0",
    "predictor ask": "resnet50/cpu/training/8 bert/cpu",
    "projects create": "vision",
    "projects limit": "vision --depth 9",
    "purge": "echo",
    "queues pause": "echo",
    "queues purge": "echo",
    "queues resume": "echo",
    "result": "{id}",
    "secrets rm": PARAMETERS["secret"],
    "slo function": "echo 1s",
    "slo job": "{id} 0.1",
    "status": "{id}",
    "traces remove": "1",
}
#: Commands without data: they change something and say nothing, or they run a program that has options of its own.
SILENT: Final = {
    *(
        "init",
        "up",
        "down",
        "backup",
        "compare",
        "replay",
        "open",
        "top",
        "profile",
        "prewarm report",
        "data fetch",
        "metrics scrape-config",
    ),
    *("profiles import", "profiles report", "predictor report", "predictor retrain", "predictor rollback"),
    *("functions delete", "keys revoke", "secrets set", "secrets rm", "slo function", "slo job"),
}
#: Commands that other tests start, for they need more than a gateway: files, or a platform of this machine.
ELSEWHERE: Final = {"run", "deploy", "invoke", "logs", "jobs logs", "traces import", "doctor"}
#: Commands that do not speak to a platform, whose words are their program's, or that watch it (test_top.py).
ALONE: Final = {
    *("init", "up", "down", "doctor", "run", "compare", "replay", "profile", "prewarm report", "data fetch"),
    *("metrics scrape-config", "profiles import", "profiles report", "predictor report", "predictor retrain"),
    *("predictor rollback", "traces import", "deploy", "version", "settings", "top"),
}
#: Commands of which each shows texts of others in a way of its own.
SHOWING: Final = {
    *(
        "audit",
        "explain",
        "functions",
        "functions revisions",
        "gpus",
        "health",
        "jobs",
        "jobs attempts",
        "jobs explain",
    ),
    *("jobs logs", "jobs queue", "jobs statement", "keys", "logs", "projects", "ps", "queues"),
}
#: Commands that show a value whole, however long its lines are.
WHOLE: Final = {"functions show", "jobs show", "status", "invoke", "result", "projects limit", "settings"}
#: Commands that ask in a terminal.
ASKS: Final = {"functions delete", "purge", "queues purge"}
_ID: Final = PARAMETERS["job"]
_GPU: Final = "GPU-0f5c2ab4-97d1-4e0b-8f36-1a2b3c4d5e6f"
_DEVICE: Final = "CPU partition: 1 core x 0.5 of AMD EPYC 7763 64-Core Processor"
_SHARING: Final = "time-slice, functions nice 5"
_FUNCTION: Final = "sentiment-of-customer-letters"


def _longer(schema: str, items: str, /, **fields: object) -> dict[str, Any]:
    """The example of a list with a second item, which has other fields."""
    (item,) = ANSWERS[schema][items]
    return {**ANSWERS[schema], items: [item, {**item, **fields}]}


#: Names and numbers as long as those of a real installation.
LONG: Final = {
    "Readiness": {
        "ready": True,
        "checks": {"leader": {"ok": True, "detail": "a-machine-with-a-long-name.internal:471100"}},
    },
    "Gpus": _longer(
        "Gpus",
        "gpus",
        id=_GPU,
        device=_DEVICE,
        sharing_mode=_SHARING,
        memory_used_mib=101376.0,
        memory_total_mib=143771.0,
        health="XID 79: the GPU has fallen off the bus",
        strangers=[{"pid": 471100, "user": "ada", "memory_mib": 1.0, "allowed": False}],
        warm=[{"function": f"default/{_FUNCTION}", "revision": 3, "state": "idle", "memory_mib": 48.0, "idle_s": 3.2}]
        * 2,
    ),
    "Invocations": _longer(
        "Invocations",
        "invocations",
        function=_FUNCTION,
        gpu=_GPU,
        state="expired",
        cause="deadline_expired",
        late_ms=1234.5,
    ),
    "Functions": _longer(
        "Functions",
        "functions",
        name=_FUNCTION,
        inputs=[{"name": f"input_{number}", "datatype": "INT64", "shape": [-1, 224, 224]} for number in range(3)],
        entrypoint="customers.letters.handler:SentimentOfLetters",
    ),
    "Revisions": _longer(
        "Revisions", "revisions", state="failed", error="ModuleNotFoundError: no module named no_such_module " * 4
    ),
    "Jobs": _longer(
        "Jobs",
        "jobs",
        name="nightly-training-of-letters",
        gpus=[_GPU],
        argv=["zoo.train", "--model", "resnet18", "--epochs", "90", "--data", "/data/imagenet/train"],
        state="ended",
        outcome="failed",
        exit_code=1,
    ),
    "JobQueue": _longer(
        "JobQueue",
        "jobs",
        name="nightly-training-of-letters",
        project="letters-of-customers",
        device=_DEVICE,
        place=0,
        state="running",
        gpus=[_GPU, "cpu0"],
    ),
    "JobAttempts": _longer(
        "JobAttempts",
        "attempts",
        gpus=[_GPU] * 4,
        nodes=["a-machine-with-a-long-name.internal"],
        message="Rank 1 ended with exit code 1, so that the others were ended too.",
    ),
    "Queues": _longer(
        "Queues", "queues", function=_FUNCTION, pinned_to=[_GPU, "cpu0"], boost=4.0, oldest_wait_s=1234.5
    ),
    "Keys": _longer(
        "Keys",
        "keys",
        name="continuous-integration",
        project="letters-of-customers",
        scopes=["invoke", "read", "deploy", "jobs", "admin"],
    ),
    "Projects": _longer(
        "Projects",
        "projects",
        name="letters-of-customers",
        limits={
            "rate_per_s": 1000.0,
            "burst": 2000,
            "depth": 10000,
            "concurrency": 200,
            "warm_memory_mib": 65536.0,
            "jobs": 2,
            "job_memory_mib": 65536.0,
        },
    ),
    "AuditPage": _longer(
        "AuditPage",
        "entries",
        target=f"function/{_FUNCTION}",
        before={"gpus": [_GPU], "until": None},
        after={"gpus": [_GPU, "cpu0"]},
        route="POST /v1/functions/{function}/rollback",
    ),
    "Quarantine": _longer("Quarantine", "revisions", function=_FUNCTION, gpu=_GPU),
    "Predictions": _longer("Predictions", "predictions", device=_DEVICE, sharing_mode=_SHARING),
    "Predictor": {
        **ANSWERS["Predictor"],
        "reason": f"The first: {_DEVICE} / {_SHARING}: training new (no predictor before; RMSLE 0.0435 on the newest 48"
        " pairs), function new (no predictor before; RMSLE 0.0435 on the newest 48 pairs).",
        "places": [
            {
                "device": _DEVICE,
                "sharing_mode": _SHARING,
                "trainings": ["a"] * 32,
                "functions": ["b"] * 32,
                "measured": 240,
                "weights": 123,
            }
        ],
    },
    "Prewarm": _longer(
        "Prewarm",
        "functions",
        function=f"letters-of-customers/{_FUNCTION}",
        source="forecast",
        silence="no arrivals for a day",
    ),
    "Traces": _longer(
        "Traces",
        "traces",
        name="azure-functions-2019-day-01.csv.gz",
        functions=[{"function": _FUNCTION, "source": "0" * 64, "arrivals": 86400}] * 3,
    ),
    "Secrets": _longer("Secrets", "secrets", name="HUGGING_FACE_HUB_TOKEN"),
}


@pytest.fixture(scope="module")
def examples() -> Examples:
    return Examples(LONG)


@pytest.fixture(autouse=True)
def platform(examples: Examples, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = smore_client.Client
    monkeypatch.setattr(smore_client, "Client", lambda *_: real("http://test", "sk", transport=examples))
    monkeypatch.setenv("SMORE_HOME", str(tmp_path))


#: What others may write: a sequence that clears a screen, one that sets a title, one of the 8-bit set, and single ones.
HOSTILE: Final = "\x1b[2J\x1b]0;owned\x07\x9b2J\x7f\b\r"
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT.*")


def _hostile(value: Any) -> Any:
    """A value of JSON with :data:`HOSTILE` behind each text that is not read as a moment."""
    match value:
        case str() if not _MOMENT.fullmatch(value):
            return value + HOSTILE
        case list():
            return [_hostile(item) for item in value]
        case dict():
            return {key: _hostile(item) for key, item in value.items()}
        case _:
            return value


NAMES: Final = [name for name, _ in commands()]
#: Commands that speak to a platform.
HEARD: Final = [name for name in NAMES if name not in ALONE]
TOLD: Final = [name for name in NAMES if name not in SILENT | ELSEWHERE]


def _words(name: str) -> list[str]:
    return [*name.split(), *ARGUMENTS.get(name, "").format(id=_ID).split()]


def test_what_prints_data_prints_it_as_json_where_that_is_asked_for() -> None:
    options = {name: {word for parameter in command.params for word in parameter.opts} for name, command in commands()}
    without = {name for name, words in options.items() if "--output" not in words}
    # A new command that prints data gets `-o`; one that prints none goes into SILENT.
    assert without == SILENT
    assert set(ARGUMENTS) | ELSEWHERE <= set(NAMES)


@pytest.mark.parametrize("name", TOLD)
def test_its_json_can_be_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert smore(*_words(name), "-o", "json") == 0
    json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", TOLD)
def test_it_fits_a_narrow_screen(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert smore(*_words(name), *(["--yes"] if name in ASKS else [])) == 0
    said = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert said
    if name not in WHOLE:
        assert [line for line in said.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("gpus", ""),
        ("ps", "invocations"),
        ("explain", "invocations/0193d7a2b6c84f7d9a1e5c3b8f204d61"),
        ("jobs queue", "plan"),
        ("jobs explain", "trainings/0193d7a2b6c84f7d9a1e5c3b8f204d61"),
    ],
)
def test_a_terminal_is_told_the_page(
    name: str, page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    smore(*_words(name))
    assert "/ui/" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    smore(*_words(name))
    assert capsys.readouterr().out.endswith(f"/ui/{page}\n")


def _answered(monkeypatch: pytest.MonkeyPatch, answer: Callable[[httpx.Request], httpx.Response]) -> None:
    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(smore_client, "Client", lambda *_: CLIENT("http://test", "sk", transport=transport))


def _obeyed(text: str) -> list[str]:
    """What a terminal would obey, but colours and line ends."""
    return [
        one for one in re.sub(r"\x1b\[[0-9;]*m", "", text) if unicodedata.category(one) == "Cc" and one not in "\n\t"
    ]


@pytest.mark.parametrize("name", HEARD)
def test_a_terminal_obeys_nothing_that_others_wrote(
    name: str, examples: Examples, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        # The client asks for more by ids that it was told.
        asked = request.url.copy_with(path=request.url.path.replace(HOSTILE, ""))
        said = examples.handle_request(httpx.Request(request.method, asked))
        return httpx.Response(said.status_code, json=_hostile(said.json())) if said.content else said

    _answered(monkeypatch, answer)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    smore(*_words(name), *(["--yes"] if name in ASKS else []))
    written = capsys.readouterr()
    assert _obeyed(written.out + written.err) == []
    assert "owned" in written.out + written.err or name not in SHOWING


def test_a_terminal_obeys_no_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _answered(monkeypatch, lambda _: httpx.Response(409, json=_hostile({**PROBLEM, "traceback": "it raised"})))
    assert smore("-v", "functions", "show", "echo") == 1
    written = capsys.readouterr()
    assert _obeyed(written.err) == [] and r"it raised\u001b[2J" in written.err


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_data_is_what_others_wrote(
    output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = {"name": f"f{HOSTILE}", "project": "default", "revision": 1}
    _answered(monkeypatch, lambda _: httpx.Response(200, json={"functions": [function]}))
    assert smore("functions", "-o", output) == 0
    said = capsys.readouterr().out
    assert _obeyed(said) == []
    (read,) = json.loads(said) if output == "json" else yaml.safe_load(said)
    assert read["name"] == f"f{HOSTILE}"
