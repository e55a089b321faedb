"""The reference pages are what the code says, and a page that is not is named."""

from pathlib import Path

import pytest

from lab.bench.report import ROOT
from tools import reference
from tools.markdown import Incomplete, table


def test_the_pages_say_what_the_code_says() -> None:
    assert reference.stale(ROOT / reference.FOLDER) == []


def test_a_stale_page_is_named_and_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference.write(tmp_path)
    assert reference.main(["--check"], tmp_path) == 0
    page = tmp_path / "states.md"
    page.write_text(page.read_text().replace("cancel", "stop"))
    (tmp_path / "surplus").with_suffix(".md").write_text("")
    (tmp_path / "cli.md").unlink()

    assert reference.main(["--check"], tmp_path) == 1
    said = capsys.readouterr().out
    assert "cli.md, states.md, surplus" in said
    assert "make fmt" in said

    assert reference.main([], tmp_path) == 0
    assert reference.stale(tmp_path) == []


def test_the_parser_of_function_yaml_is_read_whole() -> None:
    page = reference.function_yaml()

    assert "| `spec.slo.deadline` | `5.0` s | 0.001 to 86400 s |" in page
    assert "| `spec.scaling.max_warm` | `1` | 1 to 64 |" in page


def test_a_field_that_nobody_described_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    described = {path: said for path, said in reference.FUNCTION_YAML.items() if path != "spec.slo.deadline"}
    monkeypatch.setattr(reference, "FUNCTION_YAML", described)

    with pytest.raises(Incomplete, match=r"spec\.slo\.deadline"):
        reference.function_yaml()


def test_settings_name_their_variables_and_meanings() -> None:
    page = reference.settings()

    assert "| `SMORE_WORKER__SLOTS` | int | `8` | Concurrent batches" in page
    assert "| `SMORE_REDIS__URL` | str or none | none |" in page


def test_a_cell_that_nobody_filled_is_an_error() -> None:
    with pytest.raises(Incomplete, match="--limit"):
        table(("option", "meaning"), [("`--limit`", "")])


def test_events_and_their_fields_are_explained() -> None:
    page = reference.events()

    assert "## Dispatched (`d`)\n\nThe leader claimed" in page
    assert "| `trace` | str | The caller's `traceparent`; '' = none |" in page
