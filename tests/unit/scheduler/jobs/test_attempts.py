"""What follows from the reports of an attempt's ranks."""

import pytest
from msgspec.structs import replace

from scheduler.jobs.attempts import Attempt
from scheduler.policy.jobs.events import Ended
from scheduler.policy.jobs.spec import MicroBatches
from smore.domain.job import REFUSED
from smore.messages.reports import JobReport
from tests.support import fake_platform

RANK = JobReport(id="j", project="p", state="running", pid=1, memory_mib=1.0, iterations=5, attempt=2, world=2)


class Driven:
    """An attempt on the GPU instances a and b of two nodes; ``at`` moves by a second with each look."""

    def __init__(self) -> None:
        self.attempt = Attempt(
            job="j",
            attempt=2,
            gpus=["a", "b"],
            since_at=0.0,
            awaited_at=0.0,
            began_with=100,
            checkpoint=100,
            home="na",
            parts=MicroBatches(count=1, memory_mib=0.0),
        )
        self.at = 0.0
        self.ranks: dict[str, JobReport] = {}
        self.silent: set[str] = set()

    def look(self, seconds: float = 1.0, *, lost: set[str] | None = None, shared: bool = False) -> Attempt:
        self.at += seconds
        reports = {
            gpu: replace(
                fake_platform.report(), gpu=gpu, node=f"n{gpu}", jobs=[self.ranks[gpu]] if gpu in self.ranks else []
            )
            for gpu in {"a", "b"} - self.silent
        }
        self.attempt.follow(self.at, reports, lost or set(), 60.0, shared=shared)
        for place in self.attempt.to_stop(self.at):
            rank = self.attempt.ranks[place]
            rank.stopped_at, rank.stopping_at = self.at, rank.stopping_at or self.at
        return self.attempt


@pytest.fixture
def driven() -> Driven:
    return Driven()


def test_it_is_over_when_all_ranks_are(driven: Driven) -> None:
    driven.ranks = {"a": replace(RANK, solo_s=0.2, solo_count=3, shared_s=0.4, shared_count=1), "b": RANK}
    attempt = driven.look()
    assert (attempt.up, attempt.over, attempt.iterations, attempt.iteration_s) == (True, False, 105, 0.25)
    driven.ranks["a"] = replace(RANK, state="ended", exit_code=0)
    assert (driven.look().stop, attempt.over) == ("", False), "a rank may be through before the others"
    driven.ranks["b"] = replace(RANK, state="ended", exit_code=0)
    assert (driven.look().over, attempt.ended, attempt.exit_code) == (True, Ended.SUCCEEDED, 0)


def test_one_that_fails_ends_the_others_and_its_code_counts(driven: Driven) -> None:
    driven.ranks = {"a": RANK, "b": RANK}
    driven.look()
    driven.ranks["b"] = replace(RANK, state="ended", exit_code=3)
    assert driven.look().to_stop(driven.at + 5) == [0]
    driven.ranks["a"] = replace(RANK, state="ended", exit_code=-15)
    assert (driven.look().over, driven.attempt.ended, driven.attempt.exit_code) == (True, Ended.FAILED, 3)


def test_a_checkpoint_binds_to_the_node_of_rank_0_unless_all_see_it(driven: Driven) -> None:
    driven.ranks = {"a": replace(RANK, checkpoint_iterations=104), "b": RANK}
    assert (driven.look().checkpoint, driven.attempt.home) == (104, "na")
    driven.ranks["a"] = replace(RANK, checkpoint_iterations=105)
    assert (driven.look(shared=True).checkpoint, driven.attempt.home) == (105, "")


def test_an_attempt_began_with_the_checkpoint_that_its_worker_found(driven: Driven) -> None:
    none = replace(RANK, iterations=0)
    driven.ranks = {"a": replace(none, checkpoint_iterations=120), "b": none}
    assert (driven.look().began_with, driven.attempt.iterations) == (120, 120)
    # One that tells no iterations writes checkpoints too.
    driven.ranks["a"] = replace(none, checkpoint_iterations=130)
    assert (driven.look().began_with, driven.attempt.checkpoint) == (120, 130)


def test_a_rank_on_a_silent_gpu_instance_is_lost_and_may_turn_up_again(driven: Driven) -> None:
    driven.ranks = {"a": RANK, "b": RANK}
    driven.look()
    driven.silent = {"b"}
    assert driven.look().stop == ""
    assert driven.look(lost={"b"}).to_stop(driven.at + 5) == [0]
    driven.silent = set()
    assert not driven.look().over
    assert driven.attempt.to_stop(driven.at + 5) == [0, 1], "it must end too"
    driven.ranks = {gpu: replace(RANK, state="ended", exit_code=-15) for gpu in "ab"}
    assert driven.look().over


def test_a_rank_of_which_its_worker_tells_no_more_is_lost(driven: Driven) -> None:
    driven.ranks = {"a": RANK, "b": RANK}
    driven.look()
    del driven.ranks["b"]
    assert not driven.look().ranks[1].lost
    assert driven.look(11.0).ranks[1].lost
    driven.ranks["a"] = replace(RANK, state="ended", exit_code=-15)
    assert (driven.look().over, driven.attempt.ended) == (True, Ended.LOST)


def test_what_had_begun_before_is_not_begun_again_by_another_leader(driven: Driven) -> None:
    driven.attempt.up = True
    driven.ranks = {"a": RANK}
    assert (driven.look().to_start(driven.at), driven.attempt.ranks[1].lost) == ([], False)
    assert driven.look(11.0).ranks[1].lost


def test_ranks_that_do_not_come_up_in_time_are_refused(driven: Driven) -> None:
    driven.ranks = {"a": replace(RANK, state="starting")}
    assert driven.look(59.0).to_start(driven.at) == [1]
    attempt = driven.look(2.0)
    assert (attempt.first_bad, attempt.to_start(driven.at)) == (REFUSED, [])
    assert "a, b" in attempt.reason
    driven.ranks = {"a": replace(RANK, state="ended", exit_code=-15)}
    assert not driven.look().over, "the command to start it may be read yet"
    assert driven.look(6.0).over
    assert (attempt.ended, attempt.exit_code) == (Ended.FAILED, REFUSED)
