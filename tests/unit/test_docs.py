"""The pages under docs/ stand alone: a site that publishes the folder has every page that they link to."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_links_between_pages_lead_to_files_of_the_folder() -> None:
    wrong = []
    for page in DOCS.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            target = (page.parent / link).resolve()
            if "://" not in link and not (target.is_relative_to(DOCS) and target.exists()):
                wrong.append(f"{page.relative_to(DOCS)}: {link}")
    assert not wrong
