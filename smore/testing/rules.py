"""Hold a rule of one's own to what the scheduler expects of it: no platform, no simulation, milliseconds."""

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from random import Random
from typing import Any

from smore.domain import job_rule, placement_rule
from smore.domain.job_rule import HostOffer, JobRule, WaitingJob
from smore.domain.own_rule import BadRule, Rule, failure, made
from smore.domain.placement_rule import Offer, PlacementRule, WaitingBatch


def check_placement_rule(make: Callable[[], PlacementRule], *, rounds: int = 200, seed: int = 0) -> None:
    """
    Hold a placement rule (docs/guides/own-policy.md) to its contract over made-up rounds: every order is a finite
    number, every choice one of the offers or None, nothing raises, and two instances that are asked the same answer the
    same.

    ``make`` makes a rule; ``seed`` decides what the rounds hold. Raises AssertionError, which says what is wrong and then
    names the call.
    """
    random, now = Random(seed), 1_700_000_000.0
    rules = _two(make, placement_rule.METHODS, len(placement_rule.METHODS))
    for _ in range(rounds):
        now += random.expovariate(10.0)
        for batch in [_made_up_batch(random, now) for _ in range(random.randint(1, 4))]:
            offers = _made_up_offers(random, now, batch)
            _ask(rules, "order", "a finite number", _is_finite, now, batch)
            _ask(rules, "choose", "one of the offers or None", [None, *offers].__contains__, now, batch, offers)


def check_job_rule(make: Callable[[], JobRule], *, rounds: int = 200, seed: int = 0) -> None:
    """
    The same for a rule for trainings: every order is a finite number, hosts are some of the offers, each once, nothing
    raises, and two instances that are asked the same answer the same.
    """
    random = Random(seed)
    rules = _two(make, job_rule.METHODS, 1)
    for _ in range(rounds):
        job, offers = _made_up_job(random), _made_up_hosts(random)
        if hasattr(rules[0], "order"):
            _ask(rules, "order", "a finite number", _is_finite, job)
        if hasattr(rules[0], "hosts"):
            allowed = partial(_are_hosts, offers)
            _ask(rules, "hosts", "some of the offers, each once", allowed, job, offers, random.expovariate(1e-4))


def _two(make: Callable[[], Rule], methods: Sequence[str], least: int) -> tuple[Rule, Rule]:
    try:
        return made(make, methods, least), made(make, methods, least)
    except BadRule as error:
        raise AssertionError(str(error)) from error


def _ask(rules: tuple[object, object], method: str, expected: str, allowed: Callable[[Any], bool], *given: Any) -> None:
    """Both rules the same. Raises AssertionError where one raises or answers what it may not, or they disagree."""
    name = f"{type(rules[0]).__qualname__}.{method}"
    answers = []
    for rule in rules:
        try:
            # Each gets lists of its own: it may change them.
            answer = getattr(rule, method)(*(list(one) if isinstance(one, list) else one for one in given))
        except Exception as error:
            raise AssertionError(f"{name} raised {failure(error)}") from error
        assert allowed(answer), f"{name} returned {answer!r}, {expected} is expected; the call was {method}{given}"
        answers.append(answer)
    words = f"{name} returned {answers[0]} in one instance, {answers[1]} in another; the call was {method}{given}"
    assert answers[0] == answers[1], words


def _is_finite(answer: object) -> bool:
    return isinstance(answer, int | float) and isfinite(answer)


def _are_hosts(offers: Sequence[HostOffer], answer: object) -> bool:
    return isinstance(answer, Sequence) and job_rule.is_choice(answer, offers)


def _made_up_job(random: Random) -> WaitingJob:
    expected_s = random.lognormvariate(8.0, 2.0)
    return WaitingJob(
        id=f"j{random.randrange(10**9)}",
        project=f"p{random.randrange(3)}",
        name=random.choice(("", "night")),
        gpus=random.choice((1, 1, 2, 4, 8, 64)),
        submitted_at=1_700_000_000.0 + random.uniform(0.0, 1e6),
        expected_s=expected_s,
        most_s=random.uniform(1.0, 10.0) * expected_s,
        had_s=random.choice((0.0, random.expovariate(1e-4))),
        weight=random.choice((0.5, 1.0, 2.0)),
        workload=random.choice(("", "vgg16", "bert")),
    )


def _made_up_hosts(random: Random) -> list[HostOffer]:
    offers = []
    for number in sorted(random.sample(range(12), random.randint(1, 8))):
        own, its = 1.0 + random.expovariate(2.0), 1.0 + random.expovariate(2.0)
        offers.append(
            HostOffer(
                id=f"h{number}",
                workload=random.choice(("vgg16", "bert")),
                gpus=random.choice((1, 1, 2, 4, 8)),
                slowdown=own,
                slowdown_most=1.2 * own,
                its_slowdown=its,
                its_slowdown_most=1.2 * its,
                left_s=random.expovariate(1e-4),
            )
        )
    return offers


def _made_up_batch(random: Random, now: float) -> WaitingBatch:
    run_s, arrival_at = random.lognormvariate(-3.0, 1.0), now - random.expovariate(2.0)
    return WaitingBatch(
        function=f"default/f{random.randrange(5)}",
        revision=random.randint(1, 2),
        arrival_at=arrival_at,
        deadline_at=max(now, arrival_at + run_s * random.uniform(1.0, 20.0)),
        rows=random.choice((1, 2, 8, 32)),
        run_s=run_s,
        priority=random.uniform(0.0, 5.0),
        memory_mib=random.uniform(100.0, 20_000.0),
    )


def _made_up_offers(random: Random, now: float, batch: WaitingBatch) -> list[Offer]:
    offers = []
    for number in sorted(random.sample(range(12), random.randint(1, 8))):
        warm, trains = random.random() < 0.5, random.random() < 0.7
        delay_s = 0.0 if warm else random.uniform(0.1, 5.0)
        slowed, lost = random.expovariate(5.0), random.expovariate(10.0) if trains else 0.0
        offers.append(
            Offer(
                gpu=f"gpu{number}",
                warm=warm,
                start_delay_s=delay_s,
                finish_at=now + delay_s + batch.run_s * (1.0 + slowed),
                function_degradation=slowed,
                function_degradation_upper=1.5 * slowed,
                training_degradation=lost,
                training_degradation_upper=1.5 * lost,
                known=random.random() < 0.8,
                impact=slowed + lost,
                trains=trains,
                free_mib=random.uniform(0.0, 40_000.0),
                utilisation=random.random(),
            )
        )
    return offers
