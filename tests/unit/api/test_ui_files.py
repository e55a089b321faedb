"""The files of the dashboard, and what they must not have."""

import base64
import hashlib
import json
from pathlib import Path

import pytest

from api.server.ui import FOLDER
from lab.bench.browser import AXE

OWN = [path for path in FOLDER.rglob("*") if path.suffix in (".js", ".css", ".html") and "vendor" not in path.parts]
#: What makes markup out of text, or code out of a string.
FORBIDDEN = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "unsafeHTML",
    "unsafeSVG",
    "document.write",
    "eval(",
    "new Function",
)


@pytest.mark.parametrize("folder", [FOLDER / "vendor", AXE.parent], ids=["dashboard", "axe"])
def test_what_others_wrote_is_as_its_list_says(folder: Path) -> None:
    listed = {
        name: digest
        for package in json.loads((folder / "vendor.json").read_text()).values()
        for name, digest in package["files"].items()
    }
    there = {
        path.relative_to(
            folder
        ).as_posix(): f"sha512-{base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()}"
        for path in folder.rglob("*")
        if path.is_file() and path.name != "vendor.json"
    }

    assert there == listed


def test_the_dashboard_is_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in OWN) < 4000


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_an_own_file_makes_no_markup_of_text_and_is_short(path: Path) -> None:
    text = path.read_text()

    assert [word for word in FORBIDDEN if word in text] == []
    assert len(text.splitlines()) <= 300
