"""Placement rules: the kit tells good ones from bad ones, and the engine offers and asks what the kit says."""

import re
import sys
from collections.abc import Sequence
from math import nan
from pathlib import Path
from random import SystemRandom

import pytest

from lab.research.compare.__main__ import main as compare
from lab.simulation import policies
from lab.simulation.spelt import parse
from scheduler.policy.decisions import Dispatch
from scheduler.policy.knobs import Knobs, preset
from scheduler.policy.own_rule import load_rule
from scheduler.policy.setting import UnknownPolicy
from smore.domain.own_rule import BadRule
from smore.domain.placement_rule import METHODS, Offer, PlacementRule, WaitingBatch
from smore.testing.rules import check_placement_rule
from tests.support.driven import DrivenEngine
from tests.support.policy_events import NOW, arrived, function, gpu, placed

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "own-policy.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """The guide's rule, by the name under which a run takes it."""
    path = tmp_path / "mine.py"
    path.write_text(blocks()[0])
    return f"{path}:Mine"


class LeastMemory:
    """Takes the GPU instance with the least free memory; notes what it was asked."""

    def __init__(self) -> None:
        self.batches: list[WaitingBatch] = []
        self.offers: list[Sequence[Offer]] = []

    def order(self, now: float, batch: WaitingBatch) -> float:
        return -batch.deadline_at

    def choose(self, now: float, batch: WaitingBatch, offers: Sequence[Offer]) -> Offer | None:
        self.batches.append(batch)
        self.offers.append(offers)
        return min(offers, key=lambda offer: offer.free_mib)


class Unsteady(LeastMemory):
    def order(self, now: float, batch: WaitingBatch) -> float:
        return SystemRandom().random()


class Boundless(LeastMemory):
    def order(self, now: float, batch: WaitingBatch) -> float:
        return nan


class Foreign(LeastMemory):
    def choose(self, now: float, batch: WaitingBatch, offers: Sequence[Offer]) -> Offer | None:
        return offers[0]._replace(gpu="elsewhere")


class Failing(LeastMemory):
    def choose(self, now: float, batch: WaitingBatch, offers: Sequence[Offer]) -> Offer | None:
        raise KeyError("nothing is known")


class Careless(LeastMemory):
    def order(self, now: float, batch: WaitingBatch) -> float:
        return 1.0 / (batch.rows - batch.rows)


#: What is said of the two that raise.
FAILING = r"Failing.choose.*KeyError: 'nothing is known' \(.*test_placement_rule.py, line \d+\)"
CARELESS = r"Careless.order.*ZeroDivisionError: .*\(.*test_placement_rule.py, line \d+\)"


def product(rule: PlacementRule) -> Knobs:
    return Knobs(
        **{name: getattr(preset("smore-product"), name) for name in Knobs.__dataclass_fields__} | {"rule": rule}
    )


def test_the_guides_rule_keeps_the_contract(mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_placement_rule(lambda: load_rule(mine, METHODS, len(METHODS)))
    # The guide's own test, word by word.
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    exec(blocks()[1], names)
    names["test_my_rule_keeps_the_contract"]()  # type: ignore[operator]
    sys.modules.pop("mine")


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (Unsteady, "^Unsteady.order returned .* in one instance, .* in another"),
        (Boundless, "^Boundless.order returned nan, a finite number is expected; the call was order"),
        (Foreign, "^Foreign.choose returned Offer.*, one of the offers or None is expected; the call was choose"),
        (Failing, FAILING),
        (Careless, CARELESS),
    ],
)
def test_a_rule_that_breaks_the_contract_is_named(rule: type[LeastMemory], match: str) -> None:
    check_placement_rule(LeastMemory)
    with pytest.raises(AssertionError, match=match):
        check_placement_rule(rule)


class Misspelt(LeastMemory):
    """Its parent's order is hidden, its choose is called chose."""

    order = None  # type: ignore[assignment]

    def chose(self, now: float, batch: WaitingBatch, offers: Sequence[Offer]) -> Offer | None:
        return None


class Needy(LeastMemory):
    def __init__(self, patience: float) -> None:
        self.patience = patience


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (Misspelt, r"^the class Misspelt of .*test_placement_rule.py has no method 'order'; its methods are cho"),
        (object, "^the class object has no method 'order' and no method 'choose'; its methods are none"),
        (Needy, r"^Needy\(\) raised TypeError: .*'patience'.*; a rule is made without arguments"),
        (LeastMemory(), "^an instance of LeastMemory was given; its class is expected"),
    ],
)
def test_what_is_no_rule_is_named_before_it_is_asked(make: object, match: str) -> None:
    with pytest.raises(AssertionError, match=match):
        check_placement_rule(make)  # type: ignore[arg-type]


def test_the_engine_asks_and_offers_what_the_contract_says() -> None:
    rule = LeastMemory()
    policy = DrivenEngine(product(rule))
    small, large = gpu("small", 0, memory_total=4000.0), gpu("large", None, memory_total=8000.0)
    first, second = arrived(0, "a", within=5.0), arrived(1, "b", within=9.0)
    decided = policy.decide(NOW, [function(0), function(1), small, large, first, second])
    # The latest deadline first, and the least free memory: the opposite of what the product does.
    assert placed(decided) == [("b", "small"), ("a", "small")]
    assert {offer.gpu for offer in rule.offers[0]} == {"small", "large"}
    offered = {offer.gpu: offer for offer in rule.offers[0]}
    assert (offered["small"].trains, offered["large"].trains) == (True, False)
    assert offered["small"].training_degradation > offered["large"].training_degradation == 0.0
    assert offered["large"].free_mib > offered["small"].free_mib
    assert all(offer.finish_at > NOW for offer in rule.offers[0])
    assert rule.batches[0].run_s > 0
    assert rule.batches[0].memory_mib > 0


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (Boundless, "is expected"),
        (Foreign, "is expected"),
        (Failing, FAILING.replace("Failing.", "smore-product: ")),
        (Careless, CARELESS.replace("Careless.", "smore-product: ")),
    ],
)
def test_the_engine_names_a_rule_that_breaks_the_contract(rule: type[LeastMemory], match: str) -> None:
    policy = DrivenEngine(product(rule()))
    with pytest.raises(BadRule, match=match):
        policy.decide(NOW, [function(0), gpu("g"), arrived(0, "a")])


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_comparison_ends_with_one_line_where_a_rule_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "class Mine:\n    def order(self, now, batch):\n        return batch.size\n\n"
        "    def choose(self, now, batch, offers):\n        return None\n"
    )
    command = ["compare", "--preset", "small", "--policies", f"{path}:Mine", "--seeds", "2", "--workers", workers]
    assert compare(command) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "compare:" in line)
    assert f"{path}:Mine: order raised AttributeError: " in line
    assert f"({path}, line 3)" in line


@pytest.mark.parametrize(("rule", "expected"), [(LeastMemory, "g"), (Failing, None)])
def test_a_rule_in_the_shadow_is_recorded_and_never_in_the_way(rule: type[LeastMemory], expected: str | None) -> None:
    policy = DrivenEngine(preset("smore-product"), shadow=product(rule()))
    (decision,) = policy.decide(NOW, [function(0), gpu("g"), arrived(0, "a")])
    assert isinstance(decision, Dispatch)
    assert decision.reasons.shadow is not None
    assert decision.reasons.shadow.gpu == expected
    assert ("KeyError" in decision.reasons.shadow.policy) == (expected is None)


def test_a_rule_is_named_by_file_or_module_with_knobs_behind_it(mine: str) -> None:
    assert parse(f"{mine}:aim=0.5") == (mine, {"aim": 0.5})
    assert preset(mine).rule is not preset(mine).rule, "each run has its own"
    assert preset("tests.contract.test_placement_rule:LeastMemory", seed=3).seed == 3


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("./nowhere.py:Mine", r"^\./nowhere.py:Mine: there is no file nowhere.py; .* has "),
        ("FOLDER/mien.py:Mine", r"there is no file .*mien.py; did you mean mine.py"),
        ("FOLDER/mine.py:Mein", r"mine.py has no class 'Mein'; did you mean Mine\?"),
        ("FOLDER/mine.py:Other", "mine.py has no class 'Other'; its classes are Mine$"),
        ("FOLDER/mine.py", "the class is missing, as in .*mine.py:Mine; its classes are Mine$"),
        ("FOLDER/broken.py:Mine", r"reading .*broken.py raised ZeroDivisionError: .* \(.*broken.py, line 2\)$"),
        ("FOLDER/unread.py:Mine", r"reading .*unread.py raised SyntaxError: .*\(unread.py, line 1\)$"),
        ("nowhere.at_all:Mine", r"there is no module 'nowhere' on the Python path; a file is named .* \./nowhere"),
        ("tests.contract.test_placement_rule:LeastMemry", r"no class 'LeastMemry'; did you mean LeastMemory\?"),
        ("tests.contract.test_placement_rule:Misspelt", "Misspelt: the class Misspelt .* has no method 'order'; its"),
        ("tests.contract.test_placement_rule:Needy", r"Needy: Needy\(\) raised TypeError: .*without arguments$"),
        ("collections:Counter", "has no method 'order'"),
        ("edf-util:fast", "form knob=value"),
    ],
)
def test_a_rule_that_cannot_be_loaded_is_named(name: str, match: str, mine: str) -> None:
    folder = Path(mine).parent
    (folder / "broken.py").write_text("class Mine: ...\n1 / 0\n")
    (folder / "unread.py").write_text("class Mine\n")
    with pytest.raises(UnknownPolicy, match=match) as refused:
        policies.factory(name.replace("FOLDER", str(folder)))
    assert "\n" not in str(refused.value)
