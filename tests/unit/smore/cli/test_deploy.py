"""`smore deploy`: its steps with their durations, and `--watch`."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smore.cli import deploy
from smore.cli.terminal import EXIT_FAILED, EXIT_USAGE
from smore_client.pack import pack
from tests.support.cli import Serve, serve, smore

__all__ = ["serve"]

DEPLOYED = {
    "name": "own",
    "project": "default",
    "revision": 2,
    "created": True,
    "measured": {
        "phases_ms": {"process": 10, "fetch": 5, "environment": 8395, "import": 20, "weights": 70, "first_run": 4},
        "run_ms": 3,
        "examples_ms": 20,
        "packages": ["einops==0.8.1"],
    },
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "function.yaml"
    made.write_text("metadata: {name: own}\nspec: {entrypoint: 'zoo.echo:Function'}\n")
    return made


def test_each_step_is_a_line_with_its_duration(serve: Serve, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    platform.answers["PUT /v1/functions/own"] = (201, DEPLOYED)
    assert smore("deploy", str(file)) == 0
    said = capsys.readouterr()
    assert said.out == "own revision 2\n"
    lines = [line.split() for line in said.err.splitlines()]
    assert lines == [
        ["environment", "8.40", "s", "einops==0.8.1"],
        ["load", "0.10", "s"],
        ["first", "run", "0.02", "s", "all", "runs", "of", "the", "example"],
    ]
    assert smore("deploy", str(file), "-o", "json") == 0
    said = capsys.readouterr()
    assert (json.loads(said.out)["revision"], said.err) == (2, "")


@pytest.mark.parametrize(
    ("deadline_ms", "said"),
    [
        (2.5, "A run took 3 ms and the deadline is 2.5 ms: none can meet it.\n"),
        (3.5, "A run took 3 ms and the deadline is 3.5 ms: calls that have to wait are refused.\n"),
        (6.0, ""),
    ],
)
def test_a_run_that_leaves_little_of_the_deadline_is_said(
    serve: Serve, file: Path, capsys: pytest.CaptureFixture[str], deadline_ms: float, said: str
) -> None:
    platform = serve()
    platform.answers["PUT /v1/functions/own"] = (201, {**DEPLOYED, "deadline_ms": deadline_ms})
    assert smore("deploy", str(file)) == 0
    assert capsys.readouterr().err.partition("first run")[2].partition("\n")[2] == said


def test_what_callers_may_notice_is_said(serve: Serve, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    platform = serve()
    told = {"changed": ["outputs.score: gone"], "warnings": ["The function own is drained."]}
    platform.answers["PUT /v1/functions/own"] = (201, {**DEPLOYED, **told})
    assert smore("deploy", str(file)) == 0
    said = capsys.readouterr().err
    assert "callers may notice: outputs.score: gone\nwarning: The function own is drained.\n" in said


def test_an_upload_is_a_step(
    serve: Serve, file: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "handler.py").write_text("...")
    packed = pack(file.parent, tmp_path_factory.mktemp("packed"))
    assert packed is not None
    platform = serve()
    platform.answers["PUT /v1/functions/own"] = (201, {**DEPLOYED, "measured": None})
    state = {"digest": packed.code, "offset": 0, "size": 1, "complete": True}
    platform.answers[f"GET /v1/blobs/{packed.code}/state"] = (200, state)
    assert smore("deploy", str(file.parent)) == 0
    assert capsys.readouterr().err.startswith("upload")


@pytest.mark.parametrize(("serving", "last"), [(2, "revision 2 still serves"), (0, "no revision serves")])
def test_a_failed_deploy_ends_with_what_still_serves(
    serve: Serve, file: Path, capsys: pytest.CaptureFixture[str], serving: int, last: str
) -> None:
    failed = {
        "detail": "KeyError: 1",
        "code": "canary_failed",
        "traceback": "in predict\nKeyError: 1",
        "serving": serving,
    }
    serve().answers["PUT /v1/functions/own"] = (422, failed)
    assert smore("deploy", str(file)) == EXIT_FAILED
    assert capsys.readouterr().err.splitlines()[-2:] == ["KeyError: 1", last]


def test_watch_deploys_what_has_changed_and_rests(
    serve: Serve, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    platform = serve()
    platform.answers["PUT /v1/functions/own"] = (201, DEPLOYED)
    good = file.read_text()

    def days() -> Iterator[int]:
        yield len(platform.asked)
        file.write_text(good + "# one more line\n")
        yield len(platform.asked)
        file.write_text(good + "# still being written\n")
        yield len(platform.asked)
        # Two looks in a row find the same.
        yield len(platform.asked)
        yield len(platform.asked)
        file.write_text("metadata: {")
        yield len(platform.asked)
        yield len(platform.asked)
        platform.answers["PUT /v1/functions/own"] = (422, {"detail": "It fails.", "code": "canary_failed"})
        file.write_text(good)
        yield len(platform.asked)
        yield len(platform.asked)

    sent: list[int] = []
    calendar = days()

    def sleep(seconds: float) -> None:
        assert seconds == deploy.POLL_S
        day = next(calendar, None)
        if day is None:
            raise KeyboardInterrupt
        sent.append(day)

    monkeypatch.setattr(time, "sleep", sleep)
    assert smore("deploy", "--watch", str(file)) == 0
    assert sent == [1, 1, 1, 1, 2, 2, 2, 2, 2]
    said = capsys.readouterr()
    assert said.out == "own revision 2\n" * 2
    assert "while parsing" in said.err and "It fails. (canary_failed, 422)" in said.err
    assert len(platform.asked) == 3


def test_what_cannot_be_read_ends_a_deploy_that_does_not_watch(serve: Serve, file: Path) -> None:
    assert serve().asked == []
    file.write_text("metadata: {")
    assert smore("deploy", str(file)) == EXIT_USAGE


def test_a_missing_file_is_named_with_what_was_expected(
    serve: Serve, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve()
    nowhere, folder = file.parent / "own", file.parent
    assert smore("deploy", str(nowhere)) == EXIT_USAGE
    expected = "a function.yaml or a folder with one is expected\n"
    assert capsys.readouterr().err == f"smore: {nowhere}: no such file or folder; {expected}"
    (folder / "handler.py").write_text("...")
    file.write_text("spec: {requirements: needs.txt}\n")
    assert smore("deploy", str(folder)) == EXIT_USAGE
    assert capsys.readouterr().err.startswith(
        f"smore: {folder}: spec.requirements: the folder has no file 'needs.txt';"
    )
    file.unlink()
    assert smore("deploy", str(folder)) == EXIT_USAGE
    assert capsys.readouterr().err == f"smore: {folder}: the folder has no function.yaml; {expected}"


def test_revisions_say_which_serves_and_how_their_first_runs_went(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    platform = serve()
    listed = [{"revision": number, "state": state} for number, state in ((3, "failed"), (2, "active"), (1, "active"))]
    listed[0]["error"] = "The environment was not built: pip ended. Its log:\nERROR: none"
    platform.answers["GET /v1/functions/own/revisions"] = (200, {"revisions": listed})
    platform.answers["GET /v1/functions/own"] = (200, {"name": "own", "revision": 2})
    assert smore("functions", "revisions", "own") == 0
    out = capsys.readouterr().out
    assert "pip ended." in out and "Its log" not in out
    header, _, *rows = [line.split() for line in out.splitlines() if line.strip()]
    assert header[:4] == ["revision", "serves", "first", "run"]
    assert [row[:3] for row in rows[:3]] == [["3", "-", "failed"], ["2", "yes", "passed"], ["1", "-", "passed"]]


def test_a_function_of_which_no_revision_serves_is_listed_as_such(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = [{"name": "never", "revision": 0}, {"name": "own", "revision": 2, "entrypoint": "handler:Own"}]
    serve().answers["GET /v1/functions"] = (200, {"functions": functions})
    assert smore("functions") == 0
    _, _, *rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert rows == [["never", "none", "serves", "-", "-", "-"], ["own", "2", "handler:Own", "-", "json"]]
