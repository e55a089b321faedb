"""What is asked about training beside others, checked."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from api.deps import Gateway
from api.schemas.jobs import JobBody
from api.trainings.request import request_of
from smore.domain.errors import InvalidInput
from smore.domain.limits import Limits
from smore.redis.catalog import KeyEntry

CALLER = cast(KeyEntry, SimpleNamespace(project="vision", scopes=frozenset({"jobs"})))


def asked(limits: Limits | None = None, **body: Any) -> Any:
    catalog = SimpleNamespace(limits={"vision": limits} if limits is not None else {}, paused=frozenset())
    settings = SimpleNamespace(job_entrypoints=["zoo.train"])
    gateway = cast(Gateway, SimpleNamespace(catalog=catalog, settings=settings))
    return request_of(gateway, CALLER, JobBody(**{"name": "a", "argv": ["zoo.train", "--model", "bert"]} | body), [])


def test_a_share_is_the_owners_else_the_projects_else_none() -> None:
    assert asked().share == 0.0
    assert asked(Limits(share=0.5)).share == 0.5
    assert asked(Limits(share=0.5), share=0.0).share == 0.0
    assert asked(share=10).share == 10.0


@pytest.mark.parametrize("share", [-0.1, 10.1, float("nan"), float("inf"), True, "0.5"])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        asked(share=share)
    assert {error["loc"][0] for error in refused.value.errors()} == {"share"}


@pytest.mark.parametrize("counts", [[0, 1], [1, 65], [1, 2.5], [1] * 17])
def test_micro_batches_out_of_range_are_refused(counts: list[Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        asked(micro_batches=counts)
    assert {error["loc"][0] for error in refused.value.errors()} == {"micro_batches"}


@pytest.mark.parametrize(
    ("counts", "workload", "largest"),
    [([2, 4], None, None), ([1, 4, 2], None, None), ([1, 2, 2], None, None), ([1, 8], "a/cpu/training/4", 4)],
)
def test_micro_batches_rise_from_one_and_are_no_more_than_rows(
    counts: list[int], workload: str | None, largest: int | None
) -> None:
    with pytest.raises(InvalidInput) as refused:
        asked(micro_batches=counts, workload=workload)
    assert refused.value.details.get("field") == "micro_batches"
    assert refused.value.details.get("largest") == largest
    assert asked(micro_batches=[1, 2, 4], workload="a/cpu/training/4").micro_batches == [1, 2, 4]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--model", "resnet51"], "argument --model: invalid choice: 'resnet51'"),
        (["--model", "bert", "--batch", "many"], "argument --batch: invalid int value: 'many'"),
        (["--model", "bert", "--epochs", "1"], "unrecognized arguments: --epochs 1"),
        (["--model", "bert", "--batch", "8"], ""),
        (["--help"], ""),
        (["--batch", "8"], "the following arguments are required: --model"),
    ],
)
def test_the_options_of_the_platforms_own_training_are_read_before_it_waits(
    capsys: pytest.CaptureFixture[str], options: list[str], wrong: str
) -> None:
    argv = ["zoo.train", *options]
    if wrong:
        with pytest.raises(InvalidInput, match=re.escape(f"argv: zoo.train: {wrong}")):
            asked(argv=argv)
    else:
        assert asked(argv=argv).argv == argv
    assert capsys.readouterr() == ("", "")
