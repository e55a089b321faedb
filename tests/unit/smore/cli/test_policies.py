"""``smore compare`` starts the simulator or the live comparison."""

from pathlib import Path

import pytest

from smore.cli import app, launch
from tests.support.cli import smore


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["--preset", "fig14"], ("compare", "compare", "--preset", "fig14")),
        (["--repeats", "4", "--live", "--json"], ("live", "--repeats", "4", "--json")),
    ],
)
def test_a_live_comparison_is_a_program_of_its_own(
    words: list[str], program: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(launch, "start", lambda *words: asked.append(words))

    app.app(["compare", *words], standalone_mode=False)

    assert asked == [program]


def test_a_command_of_the_laboratory_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "ROOT", tmp_path)
    assert smore("replay", "--since", "1h") == 1
    assert "pip install smore-lab" in capsys.readouterr().err
