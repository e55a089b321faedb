"""The pages under docs/ stand alone: a site that publishes the folder has every page that they link to."""

import re
from pathlib import Path

from scheduler.policy.decisions import Refusal

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_links_between_pages_lead_to_files_of_the_folder() -> None:
    wrong = []
    for page in DOCS.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            target = (page.parent / link).resolve()
            if "://" not in link and not (target.is_relative_to(DOCS) and target.exists()):
                wrong.append(f"{page.relative_to(DOCS)}: {link}")
    assert not wrong


def test_every_refusal_stands_in_the_table_of_refusals() -> None:
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \|", (DOCS / "architecture.md").read_text(), re.MULTILINE)

    assert {code.strip("`") for row in rows for code in row.split(", ")} >= {refusal.value for refusal in Refusal}
