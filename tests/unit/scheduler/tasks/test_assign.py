"""Compiling before a leader loads what it decides by."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from scheduler.policy import kernel
from scheduler.tasks import assign


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kept", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_compiled_code_is_kept_until_its_source_changes(tmp_path: Path) -> None:
    source = "from scheduler.policy.kernel import compiled\n\n@compiled\ndef more(x):\n    return x + 1\n"
    file = tmp_path / "kept.py"
    file.write_text(source)
    assert not kernel.is_kept(loaded(file).more)
    loaded(file).more(1)
    assert kernel.is_kept(loaded(file).more)
    file.write_text(source.replace("+ 1", "+ 22"))
    assert not kernel.is_kept(loaded(file).more)


@pytest.mark.parametrize("kept", [True, False])
def test_a_leader_has_it_compiled_in_a_process_that_ends(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(kernel, "is_kept", lambda _: kept)
    monkeypatch.setattr("subprocess.run", lambda words, **_: started.append(words))
    assign.compile_before()
    assert [words[1:] for words in started] == ([] if kept else [["-m", "scheduler.policy"]])
