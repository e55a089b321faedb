"""
A newcomer's first hour: the marked blocks of README.md and of the tutorials, run word by word in a copy of the checkout.

The quick blocks are run here; ``python -m tools.first_hour`` runs the long ones too, and starts the platform often.
"""

import os
from collections.abc import Iterator

import pytest

from tools import first_hour, walk
from tools.walk import Newcomer

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(os.environ.get("SMORE_TEST_DEVICE", "cpu") != "cpu", reason="`make up` takes the whole machine"),
]


@pytest.fixture(scope="module")
def newcomer() -> Iterator[Newcomer]:
    with first_hour.newcomer(compiled=True) as made:
        yield made


QUICK = {
    name: [block for block in blocks if block.kind == "quick"]
    for name, blocks in walk.documents().items()
    if any(block.kind == "quick" for block in blocks)
}


@pytest.mark.parametrize("document", QUICK)
def test_quick_blocks_do_what_the_document_says(newcomer: Newcomer, document: str) -> None:
    problems = {step.block.name: step.problem for step in newcomer.walk(QUICK[document]) if step.problem}
    assert problems == {}
