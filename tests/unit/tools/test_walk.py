"""The marks of documents, and a newcomer who runs a block."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lab.bench.report import ROOT
from smore_client import ApiError
from smore_client.types import Attempt, Explanation, Phases
from tools import first_hour, walk
from tools.walk import Block, Newcomer

DOCUMENT = """\
# A title

`make up` starts it.

<!-- walk: quick, after `make up` -->
```sh
# what it prints
smore deploy ./twice \\
  --wait
cat > file <<'END'
smore is no command here
END
smore invoke twice
```

<!-- walk: output -->
```text
{"y": …}
```

<!-- walk: long -->
```python
# twice/handler.py
import smore
```

```sh
rm -rf /
```
"""


def test_the_marked_blocks_of_a_document() -> None:
    first, second = walk.blocks(DOCUMENT, "README.md")
    assert (first.name, first.kind, first.after, first.output) == ("README.md:6", "quick", "make up", '{"y": …}\n')
    assert first.commands() == [
        "make up",
        "smore deploy ./twice \\\n  --wait",
        "cat > file <<'END'\nsmore is no command here\nEND",
        "smore invoke twice",
    ]
    assert (second.kind, second.file, second.commands(), first.file) == ("long", "twice/handler.py", [], "")


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("<!-- walk: fast -->\n```sh\n```\n", "is no mark"),
        ("<!-- walk quick -->\n```sh\n```\n", "is no mark"),
        ("<!-- walk: quick -->\n\n```sh\n```\n", "no fenced block follows"),
        ("<!-- walk: output -->\n```text\n```\n", "no block comes before"),
        ("<!-- walk: quick, after `make up` -->\n```sh\n```\n", "does not name `make up`"),
    ],
)
def test_a_wrong_mark_is_told_with_its_line(document: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"^page:1: .*{why}"):
        walk.blocks(document, "page")


@pytest.mark.parametrize(
    ("promised", "same"),
    [
        ("twice revision 1", True),
        ('twice revision …\n{"y": [[2, 4]]}', True),
        ("…", True),
        ('{"y": [[2, 4]', False),
        ("twice revision 2", False),
    ],
)
def test_an_output_is_what_the_document_promises(promised: str, same: bool) -> None:
    printed = 'starting\ntwice revision 1\n{"y": [[2, 4]]} \n'
    assert (walk.differs(printed, promised) == "") is same


def test_every_mark_of_the_documents_is_one_and_the_readme_leads_to_a_function_of_ones_own() -> None:
    way, commands = first_hour.to_own_function(walk.documents())
    assert [block.file for block in way][:2] == ["twice/handler.py", "twice/function.yaml"]
    assert commands[0] == "make up"
    assert len(commands) <= 4


@pytest.fixture
def newcomer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Newcomer:
    """In an empty folder in the place of a copy of the checkout."""
    monkeypatch.setattr(walk, "_copy", lambda folder, compiled: folder.mkdir())
    monkeypatch.setattr(walk, "INSTALLED", "true")
    monkeypatch.setenv("SMORE_URL", "http://elsewhere")
    return Newcomer(tmp_path)


def sh(text: str, output: str = "") -> Block:
    return Block(document="page", line=1, kind="quick", language="sh", text=text, output=output)


def test_blocks_go_on_in_the_shell_of_those_before_and_one_that_fails_ends_the_document(newcomer: Newcomer) -> None:
    file = Block(document="page", line=9, kind="quick", language="python", text="# made/by.py\nprint(1)\n")
    blocks = [
        sh("mkdir sub; cd sub\nexport WORD=kept"),
        file,
        sh('echo "$WORD ${SMORE_URL-none} $PWD"; cat ../made/by.py', f"kept none {newcomer.folder}/sub\nprint(1)\n"),
        sh("echo :8400", f":{newcomer.port}"),
        sh("echo printed\nfalse\necho not reached"),
        sh("echo not run"),
    ]
    problems = [step.problem for step in newcomer.walk(blocks)]
    assert problems[:4] == [""] * 4
    assert "status 1: printed" in problems[4]
    assert problems[5] == "a block before it failed"


def test_an_output_that_is_not_promised_is_a_problem(newcomer: Newcomer) -> None:
    (step,) = newcomer.walk([sh("echo another", "this")])
    assert "promised 'this'" in step.problem


def test_the_copy_has_what_git_knows_and_is_installed(tmp_path: Path) -> None:
    walk._copy(tmp_path / "smore", compiled=False)
    copied = tmp_path / "smore"
    assert (copied / "README.md").read_text() == (ROOT / "README.md").read_text()
    assert not (copied / ".smore").exists()
    made = subprocess.run(["make", "-n", "install"], cwd=copied, capture_output=True, text=True, check=True)
    assert "pip" not in made.stdout


def test_the_gap_is_what_the_phases_leave_of_the_time() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    phases = Phases(queue=40.0, run=50.0, loading={"import": 9.0})
    explanation = Explanation(
        id="a",
        arrival_at=began,
        finished_at=began + timedelta(milliseconds=100),
        attempts=[Attempt(attempt=1, phases_ms=phases)],
    )
    assert first_hour.gap(explanation) == pytest.approx(0.1)


def test_a_start_and_a_call_that_fail_are_counted_and_every_other_home_is_empty(
    newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    explanation = Explanation(id="a", arrival_at=began, finished_at=began + timedelta(seconds=1))
    fresh: list[bool] = []

    def call(person: Newcomer, is_fresh: bool) -> Explanation:
        fresh.append(is_fresh)
        if len(fresh) == 2:
            raise ApiError(504, "would_miss_deadline", "No GPU instance could finish it", {})
        return explanation

    monkeypatch.setattr(first_hour, "call", call)
    monkeypatch.setattr(first_hour, "UP", "[ ! -e .smore/broken ] && mkdir -p .smore")
    monkeypatch.setattr(Newcomer, "close", lambda person: None)
    calls = first_hour.first_calls(newcomer, 3)
    assert fresh == [True, False, True]
    assert (calls.calls, len(calls.failures), calls.gaps) == (3, 1, [1.0, 1.0])
    (newcomer.home / "broken").touch()
    monkeypatch.setattr(Newcomer, "remove_home", lambda person: None)
    assert "status 1" in first_hour.first_calls(newcomer, 1).failures[0]
