"""Every command that the documents name exists, with its options; so does every page and heading that a link names."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from smore.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page.relative_to(ROOT)
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "client").glob("*.md"))
    # What was written on a day names the commands of that day.
    if page.name != "CHANGELOG.md" and page.parent.name not in ("log", "decisions")
)


def snippets(text: str) -> Iterator[str]:
    """Each line of shell blocks and each piece of inline code."""
    fence = None
    for line in text.split("\n"):
        if line.startswith("```"):
            fence = None if fence is not None else line.removeprefix("```").strip()
        elif fence in ("sh", ""):
            yield line
        elif fence is None:
            yield from re.findall(r"`([^`]+)`", line)


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """The words behind ``program`` wherever a snippet of the page runs it."""
    for line in snippets((ROOT / page).read_text()):
        for part in re.split(r"\s(?:\|\||&&|;|\|)\s|\s#\s|\$\(|\)\s|;\s", line):
            try:
                words = shlex.split(re.sub(r"\s#.*", "", part))
            except ValueError:
                continue
            names = [word.removeprefix(".venv/bin/") for word in words]
            if program in names[:8]:
                place = names.index(program)
                before = words[:place]
                if all(
                    "=" in word or word in ("docker", "compose", "exec", "-T", "gateway", "node") for word in before
                ):
                    yield words[place + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_of_smore(page: Path) -> None:
    wrong = [f"smore {' '.join(words)}" for words in commands(page, "smore") if not _is_command(words)]

    assert wrong == []


def test_commands_that_the_dashboard_shows() -> None:
    shown = [
        (page.name, shlex.split(re.sub(r"\$\{.*", "…", command.replace('\\"', ""))))
        for page in (ROOT / "api/ui").rglob("*.js")
        for command in re.findall(r"[\"`>]smore ((?:\$\{.*?\}|\\\"|[^\"`<])+)", page.read_text())
        if "vendor" not in page.parts
    ]

    assert len(shown) > 15
    assert [each for each in shown if not _is_command(each[1])] == []


#: Typer makes the whole tree anew whenever it is asked.
SMORE: Any = typer.main.get_command(app)


def _is_command(given: list[str]) -> bool:
    """Whether there are such a command and options, and it takes as many arguments; values are not looked at."""
    command, arguments, words = SMORE, 0, iter(given)
    options: dict[str, Any] = {"--help": None, "-h": None}
    for word in words:
        if word in ("--", "<", ">"):
            break
        inner = getattr(command, "commands", {})
        if word in inner:
            command = inner[word]
        elif re.fullmatch(r"-\d+", word):
            pass
        elif word.startswith("-"):
            name, _, value = word.partition("=")
            passed_on = command.context_settings.get("ignore_unknown_options")
            options |= {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
            if name not in options:
                return bool(passed_on)
            if not value and options[name] is not None and not options[name].is_flag:
                next(words, None)
        elif inner and re.fullmatch(r"[a-z-]+", word):
            return False
        elif word != "…":
            arguments += 1
    taken = [each.nargs for each in command.params if each.param_type_name == "argument"]
    return bool(getattr(command, "commands", {})) or min(taken, default=0) < 0 or arguments <= sum(taken)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_modules_and_targets_of_make(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = [f"make {words[0]}" for words in commands(page, "make") if words and words[0] not in targets]
    for program in ("python", "python3"):
        for words in commands(page, program):
            if words[:1] == ["-m"] and words[1:2] and not words[1].isupper() and not _is_module(words[1].rstrip(",.")):
                wrong.append(f"python -m {words[1]}")

    assert wrong == []


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        place = (ROOT / page).parent / path if path else ROOT / page
        if not place.exists() or (heading and heading not in _headings(place)):
            wrong.append(target)

    assert wrong == []


def _headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}
