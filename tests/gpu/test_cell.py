"""Runners on a GPU, shut in."""

import os

import pytest

from lab.bench import probes


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives runners users of their own")
def test_a_runner_that_is_a_user_of_its_own_computes_and_has_no_group_of_roots() -> None:
    found = probes.variant("own_user", "cuda")
    assert found.get("product") == 512, found
    assert found["user"] != 0
    assert 0 not in found["groups"]
    # What listens on a unix socket of this machine listens for streams.
    assert not found["unix_stream"]


@pytest.mark.parametrize("variant", ["one_user", "open"])
def test_without_users_of_their_own_and_not_shut_in_it_computes_too(variant: str) -> None:
    found = probes.variant(variant, "cuda")
    assert found.get("product") == 512, found
