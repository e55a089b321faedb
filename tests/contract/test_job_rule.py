"""Rules of one's own for trainings: the kit tells good ones from bad ones, and the engine asks what the kit says."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from lab.research.compare.__main__ import main as compare
from lab.research.compare.trainings_settings import in_words
from lab.simulation.jobs.world import load_job_preset
from scheduler.policy.jobs.decisions import PairRefusal
from scheduler.policy.jobs.events import PairKnown, PairsKnown
from scheduler.policy.jobs.knobs import JobKnobs, job_setting, why_not_live
from scheduler.policy.jobs.own_rule import OwnJobRule
from scheduler.policy.setting import UnknownPolicy
from smore.domain.job_rule import HostOffer, JobRule, WaitingJob
from smore.domain.own_rule import BadRule
from smore.testing.rules import check_job_rule
from tests.support.driven_jobs import HOUR, DrivenJobs, gpus, started

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "own-policy.md"


def blocks() -> list[str]:
    return [block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "job" in block]


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """The guide's rule, by the name under which a comparison takes it."""
    path = tmp_path / "mine_jobs.py"
    path.write_text(blocks()[0])
    return f"{path}:Mine"


class Longest:
    """The longest first, beside the host that has least left; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[WaitingJob, Sequence[HostOffer], float]] = []

    def order(self, job: WaitingJob) -> float:
        return -job.expected_s

    def hosts(self, job: WaitingJob, offers: Sequence[HostOffer], wait_s: float) -> Sequence[HostOffer]:
        self.asked.append((job, offers, wait_s))
        return sorted(offers, key=lambda offer: offer.left_s)


class OrderAlone:
    def order(self, job: WaitingJob) -> float:
        return -job.expected_s


class Unsteady(Longest):
    def order(self, job: WaitingJob) -> float:
        return SystemRandom().random()


class Boundless(Longest):
    def order(self, job: WaitingJob) -> float:
        return nan


class Twice(Longest):
    def hosts(self, job: WaitingJob, offers: Sequence[HostOffer], wait_s: float) -> Sequence[HostOffer]:
        return [offers[0], offers[0]]


class Foreign(Longest):
    def hosts(self, job: WaitingJob, offers: Sequence[HostOffer], wait_s: float) -> Sequence[HostOffer]:
        return [offers[0]._replace(id="elsewhere")]


class Failing(Longest):
    def hosts(self, job: WaitingJob, offers: Sequence[HostOffer], wait_s: float) -> Sequence[HostOffer]:
        raise KeyError("nothing is known")


class Misspelt:
    def order(self, job: WaitingJob) -> float:
        return 0.0

    def host(self, job: WaitingJob, offers: Sequence[HostOffer], wait_s: float) -> Sequence[HostOffer]:
        return []


def under(rule: JobRule, **knobs: object) -> JobKnobs:
    return replace(job_setting("smore-jobs"), rule=OwnJobRule("mine", rule), **knobs)  # type: ignore[arg-type]


def shared(rule: JobRule) -> DrivenJobs:
    """Two GPU instances on which two trainings run that let a third one beside them."""
    platform = DrivenJobs(under(rule), gpus(2))
    pairs = [PairKnown(device="A", workload=a, beside=b, slowdown=1.2, most=1.3) for a in "vw" for b in "vw"]
    platform.tell(PairsKnown(pairs=pairs))
    for id_, hours in (("long", 9.0), ("short", 3.0)):
        platform.submit(id_, hours=hours, workload="v", memory_mib=1000.0, share=1.0)
    return platform


GUEST: dict[str, Any] = {"workload": "w", "memory_mib": 1000.0, "share": 1.0}


def test_the_guides_rule_keeps_the_contract(mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The guide's own test, word by word.
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    exec(blocks()[1], names)
    names["test_my_rule_keeps_the_contract"]()  # type: ignore[operator]
    sys.modules.pop("mine_jobs")


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (Unsteady, "^Unsteady.order returned .* in one instance, .* in another"),
        (Boundless, "^Boundless.order returned nan, a finite number is expected; the call was order"),
        (Twice, "^Twice.hosts returned .*, some of the offers, each once is expected"),
        (Foreign, "^Foreign.hosts returned .*elsewhere.*, some of the offers, each once is expected"),
        (Failing, r"^Failing.hosts raised KeyError: 'nothing is known' \(.*test_job_rule.py, line \d+\)"),
        (Misspelt, "^the class Misspelt of .* has no method 'hosts'; did you mean host"),
        (object, "^the class object has no method 'order' and no method 'hosts'; its methods are none"),
    ],
)
def test_a_rule_that_breaks_the_contract_is_named(rule: type[JobRule], match: str) -> None:
    check_job_rule(Longest)
    check_job_rule(OrderAlone)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=match):
        check_job_rule(rule)


def test_the_engine_orders_by_the_rule() -> None:
    platform = DrivenJobs(under(OrderAlone()), gpus(1))  # type: ignore[arg-type]
    platform.submit("first", hours=1.0)
    for id_, hours in (("one", 1.0), ("three", 3.0), ("two", 2.0)):
        platform.submit(id_, hours=hours)
    assert [job.id for job in platform.queue()] == ["three", "two", "one"]
    assert started(platform.end("first", later=HOUR)) == ["three"]


def test_the_engine_offers_what_the_contract_says() -> None:
    rule = Longest()
    platform = shared(rule)
    assert started(platform.submit("guest", hours=1.0, **GUEST)) == ["guest"]
    assert platform.running["guest"][1] == platform.running["short"][1], "beside the host that it put first"
    (job, offers, wait_s), *_ = rule.asked
    assert (job.id, job.gpus, job.workload, job.weight) == ("guest", 1, "w", 1.0)
    assert {(offer.id, offer.workload, offer.gpus, offer.slowdown) for offer in offers} == {
        ("long", "v", 1, 1.2),
        ("short", "v", 1, 1.2),
    }
    lefts = {offer.id: offer.left_s for offer in offers}
    assert lefts["short"] == wait_s < lefts["long"]


def test_whom_the_rule_takes_no_host_for_waits() -> None:
    class Alone(Longest):
        def hosts(self, job: WaitingJob, offers: Sequence[HostOffer], wait_s: float) -> Sequence[HostOffer]:
            return []

    platform = shared(Alone())
    assert started(platform.submit("guest", hours=1.0, **GUEST)) == []
    doubt = platform.entry("guest").doubt
    assert doubt is not None and doubt.nearest is not None and doubt.nearest.why is PairRefusal.WAITING


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (Boundless, "^mine: order returned nan, a finite number is expected"),
        (Foreign, "^mine: hosts returned .*, some of the offers, each once, are expected"),
        (Failing, "^mine: hosts raised KeyError"),
    ],
)
def test_the_engine_names_a_rule_that_breaks_the_contract(rule: type[Longest], match: str) -> None:
    with pytest.raises(BadRule, match=match):
        shared(rule()).submit("guest", hours=1.0, **GUEST)


def test_a_comparison_takes_a_rule_by_its_name(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--preset", "jobs-small-shared", "--seeds", "1", "--workers", "1", "--json", "--policies"]
    assert compare([*command, f"smore-jobs,{mine},{mine}:sharing=none"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    found = [value for name, value in figures.items() if name.startswith("jct.")]
    assert len(found) == len(set(found)) == 3
    assert not [name for name in figures if ".py" in name], "dots separate the parts of a name alone"
    world = load_job_preset("jobs-small-shared").world
    assert in_words(mine, world).startswith("By a rule of one's own; ")
    assert in_words(mine, world).endswith("a job starts beside whom a rule of one's own takes.")
    assert "nobody shares" in in_words(f"{mine}:sharing=none", world)

    failing = f"{Path(mine.partition(':')[0]).parent}/failing.py"
    Path(failing).write_text("class Mine:\n    def order(self, job):\n        return job.size\n")
    assert compare([*command, f"{failing}:Mine"]) == 2
    assert f"{failing}:Mine: order raised AttributeError: " in capsys.readouterr().err


def test_a_rule_of_ones_own_may_lead_live_trainings(mine: str) -> None:
    assert why_not_live(job_setting(mine)) is None
    with pytest.raises(UnknownPolicy, match=r"mine_jobs.py has no class 'Mien'; did you mean Mine\?"):
        job_setting(mine.replace("Mine", "Mien"))
    with pytest.raises(UnknownPolicy, match="'smore' is not a policy"):
        job_setting("smore")
