"""A function of one's own from the shell: `smore init`, and `smore run` without a platform."""

import importlib.util
import json
from pathlib import Path

import pytest

from smore.cli.terminal import EXIT_FAILED, EXIT_USAGE
from smore.testing import InProcessRunner
from tests.support.cli import smore

FUNCTION = """\
apiVersion: smore/v1
kind: Function
metadata: {name: own}
spec:
  entrypoint: handler:Own
  batching: {max_size: 2}
  limits: {payload: 40B}
"""
HANDLER = """\
import os
import smore


class Own(smore.Handler):
    example = {"do": ""}

    def predict(self, inputs):
        print("printed", len(inputs))
        for value in inputs:
            if value["do"] == "end":
                os._exit(3)
            if value["do"] == "write":
                open("note", "w").write("in a scratch folder")
        if inputs[0]["do"] == "short":
            return []
        return [len(inputs) for _ in inputs]
"""


#: An example, and what a handler that returns it prints.
EXAMPLES = [
    ("{'text': 'a'}", '{"text": "a"}\n'),
    (
        "{'x': numpy.array([[1, 2]], 'float32'), 't': numpy.array([['a\u00e9'.encode()]], object)}",
        '{"x": [[1.0, 2.0]], "t": [["a\u00e9"]]}\n',
    ),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "own"
    made.mkdir()
    (made / "function.yaml").write_text(FUNCTION)
    (made / "handler.py").write_text(HANDLER)
    return made


@pytest.mark.parametrize(
    ("template", "given", "answer"),
    [
        ("json", '{"text": "one two three"}', {"words": 3}),
        ("tensor", '{"x": [[1, 2, 3]]}', {"y": [[2, 4, 6]]}),
    ],
)
def test_what_init_writes_can_be_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    template: str,
    given: str,
    answer: object,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert smore("init", "mine", "--template", template) == 0
    assert f"smore run ./mine -i '{given}'" in capfd.readouterr().out
    assert smore("run", "./mine", "-i", given) == 0
    assert json.loads(capfd.readouterr().out) == answer
    assert smore("init", "mine") == EXIT_USAGE
    assert smore("init", "Not/A/Name") == EXIT_USAGE


def test_the_template_of_a_torch_model_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert smore("init", "mine", "--template", "torch") == 0
    found = importlib.util.spec_from_file_location("handler", tmp_path / "mine" / "handler.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    runner = InProcessRunner(module.Function)
    runner.load()
    (answer,) = runner.predict([{"x": module.Function.example["x"]}])
    assert answer["scores"].shape == (1, 3)


def test_inputs_are_checked_and_run_as_the_platform_does(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    too_large = {"do": "x" * 40}
    (folder.parent / "inputs").write_text(json.dumps([{"do": "write"}, {"do": ""}, {"do": ""}, too_large]))
    assert smore("run", "own", "--inputs", "inputs") == EXIT_FAILED
    said = capfd.readouterr()
    assert said.out == "2\n2\n1\nnull\n"
    assert "printed 2" in said.err
    assert (
        "1 of 4 failed, the first: inputs[3]: 49 bytes are more than the 40 of this function (payload_too_large)"
        in (said.err)
    )
    # It was written in a scratch folder, as on a worker.
    assert not list(folder.parent.rglob("note"))


@pytest.mark.parametrize(("example", "printed"), EXAMPLES)
def test_without_an_input_the_example_is_run(
    folder: Path, capfd: pytest.CaptureFixture[str], example: str, printed: str
) -> None:
    (folder / "handler.py").write_text(
        "import numpy\nimport smore\nclass Own(smore.Handler):\n"
        f"    example = {example}\n    def predict(self, inputs):\n        return inputs\n"
    )
    assert smore("run", "own") == 0
    assert capfd.readouterr().out == printed


def test_what_fails_says_so(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert smore("run", "own", "-i", '{"other": 1}') == EXIT_FAILED
    said = capfd.readouterr().err
    assert "smore: KeyError: 'do' (handler_error)" in said
    # The traceback begins in the handler.
    assert said.partition("Traceback (most recent call last):\n")[2].startswith(f'  File "{folder / "handler.py"}"')
    assert smore("run", "own", "-i", '{"do": "short"}') == EXIT_FAILED
    assert "a list of 1 is expected (bad_output)" in capfd.readouterr().err
    assert smore("run", "own", "-i", '{"do": "end"}') == EXIT_FAILED
    assert "with exit code 3 (crashed)" in capfd.readouterr().err
    (folder / "handler.py").write_text(HANDLER + "this is no Python\n")
    assert smore("run", "own") == EXIT_FAILED
    said = capfd.readouterr().err
    assert "this is no Python" in said and "(load_failed)" in said and "worker/runner" not in said


def test_a_function_yaml_is_read_as_by_the_gateway(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "function.yaml").write_text(
        FUNCTION + "  secrets: [A_SECRET_THAT_NOBODY_SET]\n  requirements: [no-such-package-here==1.0]\n"
    )
    assert smore("run", "own") == EXIT_FAILED
    said = capfd.readouterr().err
    assert "not installed here: no-such-package-here==1.0" in said
    assert "There is no secret A_SECRET_THAT_NOBODY_SET" in said
    (folder / "function.yaml").write_text(FUNCTION.replace("batching", "batchign"))
    assert smore("run", "own") == EXIT_FAILED
    assert "spec.batchign: unknown field; did you mean batching? (invalid_spec)" in capfd.readouterr().err
    (folder / "function.yaml").unlink()
    assert smore("run", "own") == EXIT_USAGE
    assert "own: the folder has no function.yaml" in capfd.readouterr().err


def test_a_batch_of_two_is_tried_where_there_may_be_one(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    handler = HANDLER.replace("        print(", "        assert len(inputs) == 1, 'one at a time'\n        print(")
    (folder / "handler.py").write_text(handler)
    assert smore("run", "own", "-i", '{"do": ""}') == EXIT_FAILED
    said = capfd.readouterr().err
    assert "on 2 copies of the handler's example in one batch: AssertionError: one at a time (handler_error)" in said
    (folder / "function.yaml").write_text(FUNCTION.replace("max_size: 2", "max_size: 1"))
    assert smore("run", "own", "-i", '{"do": ""}') == 0


@pytest.mark.parametrize(
    ("entrypoint", "said"),
    [
        ("handler:Onw", "there is no class Onw in the module handler; its subclasses of smore.Handler are Own"),
        ("handler:os", "os is no subclass of smore.Handler in the module handler; its subclasses of smore.Handler are"),
        ("plain:Plain", "in the module plain; its classes are Plain, none a subclass of smore.Handler"),
        ("empty:Own", "there is no class Own in the module empty; it has no class of its own"),
        ("handlr:Own", "there is no module handlr; the folder has empty, handler, imports, plain"),
        ("imports:Own", "No module named 'no_such_module'"),
    ],
)
def test_a_wrong_entrypoint_gets_the_classes_and_modules_that_there_are(
    folder: Path, capfd: pytest.CaptureFixture[str], entrypoint: str, said: str
) -> None:
    (folder / "function.yaml").write_text(FUNCTION.replace("handler:Own", entrypoint))
    (folder / "plain.py").write_text("class Plain: ...\n")
    (folder / "empty.py").write_text("from pathlib import Path\n")
    (folder / "imports.py").write_text("import no_such_module\n")
    assert smore("run", "own") == EXIT_FAILED
    error = capfd.readouterr().err
    assert said in error and error.endswith(" (load_failed)\n")
    assert error.startswith("smore: spec.entrypoint: ") is ("no_such_module" not in said)


def test_a_first_run_whose_output_is_not_as_declared_fails(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = HANDLER.replace("(self, inputs)", "(self, inputs: list[dict]) -> list[Answer]").replace(
        "[len(inputs)", "[{}"
    )
    record = "from typing import TypedDict\n\n\nclass Answer(TypedDict):\n    words: int\n\n\n"
    (folder / "handler.py").write_text(record + code)
    assert smore("run", "own", "-i", '{"do": ""}') == EXIT_FAILED
    assert "on the handler's example: output.words: missing (bad_output)" in capfd.readouterr().err
