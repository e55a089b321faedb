"""What a scheduler refuses to start with."""

from pathlib import Path

import pytest

from scheduler.tasks.assign import refused
from smore.process.settings import PolicySettings


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (PolicySettings(name="psychic"), "SMORE_POLICY__NAME: 'psychic' is not a policy"),
        (PolicySettings(name="no_such_module:Rule"), "SMORE_POLICY__NAME: no_such_module:Rule: ModuleNotFoundError"),
        (PolicySettings(knobs={"psychic": 1}), "SMORE_POLICY__NAME: 'psychic' is not a knob"),
        (PolicySettings(shadow="./no.py:Rule"), "SMORE_POLICY__SHADOW: ./no.py:Rule: FileNotFoundError"),
    ],
)
def test_a_policy_that_cannot_be_made_is_refused_with_its_setting(policy: PolicySettings, why: str) -> None:
    assert refused(policy).startswith(why)


def test_a_rule_of_ones_own_and_the_product_with_a_knob_are_taken(tmp_path: Path) -> None:
    rule = tmp_path / "mine.py"
    rule.write_text(
        "class Mine:\n    def order(self, now, batch): ...\n    def choose(self, now, batch, offers): ...\n"
    )
    assert refused(PolicySettings(name=f"{rule}:Mine", shadow="edf-util")) == ""
    assert refused(PolicySettings(knobs={"tau_training": 0.05})) == ""
