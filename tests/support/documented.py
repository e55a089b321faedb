"""Whether the figures of a command's JSON line are explained where its document explains figures."""

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def undocumented(figures: Iterable[str], page: str) -> set[str]:
    """The first parts of names (``not_worse`` of ``not_worse.dsr.random``) that a page of the checkout does not have as code."""
    words = (ROOT / page).read_text()
    firsts = {name.partition(".")[0] for name in figures}
    return {first for first in firsts if not re.search(rf"`{re.escape(first)}[.`]", words)}
