"""
`up` means ready: a call that comes at once is served, after the first start and after another one, with other settings.
"""

import os
import signal
from functools import partial
from pathlib import Path

import httpx
import pytest

from smore.local import machine
from smore.redis.learned import LearnedRecords
from smore_client import Client
from smore_client.types import Attempt
from tests.support.eventually import eventually
from tests.support.whole_platform import STRICT, Platform, Platforms

pytestmark = pytest.mark.acceptance

#: A placement rule of one's own (docs/guides/own-policy.md): the last of what is offered.
RULE = """
class Last:
    def order(self, now, batch):
        return batch.deadline_at

    def choose(self, now, batch, offers):
        return offers[-1]
"""


def attempts(client: Client, id_: str) -> list[Attempt]:
    return [attempt for attempt in client.explain(id_).attempts if attempt.decision is not None]


def expected_s(client: Client, function: str) -> float | None:
    """What a run alone is expected to take."""
    decision = client.dry_run(function, {}).decision
    return decision.candidates[0].run_s if decision is not None and decision.candidates else None


def kept(platform: Platform, learned_s: float) -> bool:
    """Whether the next leader would expect no more of a run than twice what this one does."""
    record = LearnedRecords(platform.redis, "smore:").functions().get("default/hasty")
    return record is not None and all(times.run_s < 2 * learned_s for times in record.times)


def test_a_call_right_after_a_start_is_served_and_after_a_restart_too(
    platforms: Platforms, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    The first start has a placement rule of one's own; what the second one starts serves the files after this one.

    Nobody is refused who calls one after the other, however long the first run took, and what runs take is known after
    a restart, and after the leader was killed.
    """
    home = tmp_path_factory.mktemp("home")
    (tmp_path / "last_of_all.py").write_text(RULE)
    starts = {
        "last_of_all:Last": {"PYTHONPATH": str(tmp_path), "SMORE_POLICY__NAME": "last_of_all:Last"},
        "smore-product": STRICT,
    }
    ids = set()
    for number, (policy, settings) in enumerate(starts.items()):
        platform = platforms(settings, home)
        ready = httpx.get(f"{platform.url}/readyz", timeout=30)
        assert ready.status_code == 200, ready.text
        reached = machine.endpoints(home)
        assert reached is not None
        ids |= {ready.json()["instance"], reached.instance}
        if number == 0:
            platform.deploy("echo", "zoo.echo:Function")
            platform.deploy("hasty", "tests.support.handlers:Hasty", slo={"deadline": "750ms"})
            with httpx.Client(base_url=platform.url, headers={"X-API-Key": platform.key}, timeout=30) as http:
                # Longer than the leader takes to tell the gate of a run under way; then as short as can be.
                for seconds in [0.12] * 8 + [0.0] * 40:
                    told = http.post("/v1/functions/hasty/invocations", json={"input": {"s": seconds}})
                    assert told.status_code == 200, told.text
            learned_s = expected_s(platform.client, "hasty")
            assert learned_s is not None and learned_s < 0.1
            eventually(partial(kept, platform, learned_s), what="a record of it")
        invocation = platform.client.invoke("echo", {"x": [1]})
        assert invocation.output == {"x": [1]}
        # The history is a moment behind.
        (attempt,) = eventually(
            partial(attempts, platform.client, invocation.id), what="the decision of the first invocation"
        )
        assert attempt.decision is not None
        assert attempt.decision.policy == policy
    assert (expected_s(platform.client, "hasty") or 1.0) < 0.2
    before = platform.leader_pid()
    os.kill(before, signal.SIGKILL)
    eventually(lambda: platform.leader_pid() != before, 20, "another leader")
    again_s = eventually(lambda: expected_s(platform.client, "hasty"), 20, "a word of the next leader")
    assert again_s < 0.2
    platform.client.delete("hasty")
    assert len(ids) == 1, "the installation keeps its id"
    platform.client.delete("echo")
