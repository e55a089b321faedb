"""What the policy believes of a revision, and how it is handed to the next leader."""

from dataclasses import replace

import msgspec
import pytest

from scheduler.policy.decisions import PublishLearned
from scheduler.policy.demand import Demand
from scheduler.policy.events import LearnedDue, LearnedKnown
from smore.domain.learned import Learned
from smore.messages.learned import decode_learned, encode_learned
from tests.support.driven import DrivenEngine
from tests.support.policy_events import NOW, batched, gpu, known

F = "p/f0"
TOLD = batched(0, {1: 0.3, 8: 1.2})


def demand() -> Demand:
    return Demand(function=F, revision=1, spec=TOLD.spec, column=0)


def teach(pupil: Demand, since: float) -> None:
    """Faster than declared, of sizes that were and that were not; a slow time, that begins to be forgotten."""
    for number in range(12):
        pupil.observe_run(since + number, 1 + number % 3, 0.1, 0.05)
    pupil.observe_run(since + 20.0, 13, 4.0)
    pupil.observe_load(2.5)
    pupil.observe_host(0.4)
    pupil.observe_effect(0.4, 0.05)


def believed(of: Demand, now: float) -> list[float]:
    of.forget(now)
    times = [each for rows in range(1, 40) for each in (of.run_s(rows), of.best_s(rows), of.learned_s(rows))]
    return [*times, of.row_s, of.load_s, of.host_s, of.priority]


def test_what_was_learned_goes_on_with_the_next_leader() -> None:
    old, new = demand(), demand()
    assert not old.lessons
    teach(old, NOW)
    new.recall(decode_learned(encode_learned(old.learned())))
    assert believed(new, NOW + 21.0) == pytest.approx(believed(old, NOW + 21.0), rel=1e-12)
    # Both learn the same from what follows.
    for pupil in (old, new):
        teach(pupil, NOW + 30.0)
    assert new.lessons == old.lessons > 0
    assert believed(new, NOW + 60.0) == pytest.approx(believed(old, NOW + 60.0), rel=1e-12)


def test_the_policy_hands_over_what_is_new_of_the_revision_that_has_the_traffic() -> None:
    old, new = DrivenEngine(), DrivenEngine()
    table = known([[0.1]])

    def handed(engine: DrivenEngine, revision: int, kept: dict[str, Learned]) -> dict[str, Learned]:
        (published,) = engine.decide(NOW, [LearnedDue(revisions={F: revision}, kept=kept)])
        assert isinstance(published, PublishLearned)
        return dict(published.functions)

    old.decide(NOW, [table, TOLD, gpu("a", functions=1)])
    assert not handed(old, 1, {}), "nothing was learned"
    teach(old.cluster.demand(F, 1), NOW)
    learned = handed(old, 1, {})
    assert not handed(old, 1, learned) and not handed(old, 2, {})
    new.decide(NOW, [table, TOLD, gpu("a", functions=1), LearnedKnown(function=F, learned=learned[F])])
    assert new.bounds(NOW + 21.0, F, 1) == old.bounds(NOW + 21.0, F, 1)
    assert new.cluster.demand(F, 1).priority == pytest.approx(old.cluster.demand(F, 1).priority)
    assert not handed(new, 1, learned)
    stranger = replace(learned[F], revision=2)
    engine = DrivenEngine()
    engine.decide(NOW, [table, TOLD, gpu("a", functions=1), LearnedKnown(function=F, learned=stranger)])
    assert not handed(engine, 1, {}), "of another revision"


@pytest.mark.parametrize("field", ["load_s", "usage", "observed", "ran_at", "forget_s"])
def test_a_record_that_says_nothing_is_not_read(field: str) -> None:
    teach(taught := demand(), NOW)
    record = msgspec.json.decode(encode_learned(taught.learned()))
    for bad in (None, "1", -1e12 if field != "ran_at" else [0]):
        with pytest.raises(msgspec.ValidationError):
            decode_learned(msgspec.json.encode(record | {field: bad}))
    record["times"][0]["best_s"] = 0
    with pytest.raises(msgspec.ValidationError):
        decode_learned(msgspec.json.encode(record))
