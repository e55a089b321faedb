"""The job scheduler's words name what their reader may read."""

from collections.abc import Collection
from typing import Any, cast

import pytest

from api.deps import Gateway
from api.trainings import views
from api.trainings.names import ANOTHER, saying
from smore.domain.access import Scope
from smore.messages.job_queue import PublishedQueue
from smore.redis.catalog import KeyEntry

OWN, FOREIGN = "a" * 32, "b" * 32
NAMES = {("vision", OWN): "night", ("nlp", FOREIGN): "bert"}
TEXT = f"It waits behind {FOREIGN}; gpu0 trains {OWN}."


class Jobs:
    def names(self, ids: Collection[str], project: str | None) -> dict[str, str]:
        return {id_: name for (of, id_), name in NAMES.items() if id_ in ids and project in (None, of)}


class FakeGateway:
    jobs = Jobs()

    def store(self) -> "FakeGateway":
        return self


def key(project: str, *scopes: Scope) -> KeyEntry:
    return KeyEntry(id="k", project=project, digest="", scopes=[scope.value for scope in scopes])


@pytest.mark.parametrize(
    ("caller", "said"),
    [
        (key("vision", Scope.READ), f"It waits behind {ANOTHER}; gpu0 trains night."),
        (key("default", Scope.READ, Scope.ADMIN), "It waits behind bert; gpu0 trains night."),
    ],
)
def test_an_id_becomes_a_name_or_says_that_it_is_anothers(caller: KeyEntry, said: str) -> None:
    say = saying(cast(Gateway, FakeGateway()), caller, [TEXT, "nothing"])
    assert say(TEXT) == said


def test_for_whom_gpu_instances_are_kept_is_told_to_its_project_alone() -> None:
    class Job:
        id, project = FOREIGN, "nlp"

    published = PublishedQueue(at=0.0, leader="l", setting="s", kept_for=FOREIGN, kept=2)
    jobs: list[Any] = [Job()]

    def kept_for(project: str | None) -> str | None:
        return views.queue(published, True, "", jobs, project, str).kept_for

    assert (kept_for("nlp"), kept_for(None), kept_for("vision")) == (FOREIGN, FOREIGN, None)
