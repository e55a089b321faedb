"""
The predictor in the running platform: published by a child of ``control``, read by the leader, held against what was
measured.
"""

import pytest

from lab.bench.servers import pid_of
from ml.rows import profiles, read
from smore.redis.celery import RETRAIN, message
from smore_client.types import Degradation
from tests.support.eventually import eventually
from tests.support.whole_platform import ROOT, STRICT, Platform

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

ENVIRONMENT = STRICT

WORKLOAD = "resnet50/cpu/training/8"


@pytest.fixture(scope="module")
def version(platform: Platform) -> int:
    """Made of the rows that come with the platform. It asks for it itself a minute after its start."""
    platform.redis.lpush("smore:learn", message(RETRAIN, [True], "learn"))
    return eventually(lambda: platform.client.predictor().version, 120, "a degradation table")


def test_the_table_holds_where_the_rows_were_measured(platform: Platform, version: int) -> None:
    predictor = platform.client.predictor()
    committed = {profile.place.key for path in (ROOT / "ml/data").glob("*.jsonl") for profile in profiles(read(path))}
    assert {(place.device, place.sharing_mode) for place in predictor.places} == committed
    assert all(place.measured > 100 for place in predictor.places)
    assert predictor.reason
    (prediction, *_) = platform.client.predictions(WORKLOAD, "bert/cpu", k=2)
    assert prediction.known
    upper = prediction.training_degradation_upper
    assert upper is not None and 0 <= prediction.training_degradation <= upper


def test_an_execution_has_the_predicted_and_the_measured_degradation(platform: Platform, version: int) -> None:
    platform.client.deploy(ROOT / "zoo/functions/bert.yaml")
    argv = ["zoo.train", "--model", "resnet50", "--preset", "cpu", "--batch", "8", "--seconds", "600"]
    job = platform.client.start_job("train", argv, workload=WORKLOAD)
    eventually(
        lambda: any(one.iterations > 15 for report in platform.reports() for one in report.jobs), 60, "iterations"
    )
    (report,) = platform.reports()
    here = (report.device, report.sharing_mode)
    in_table = here in {(place.device, place.sharing_mode) for place in platform.client.predictor().places}
    (expected,) = platform.client.predictions(job.id, "bert")
    assert expected.known == in_table
    example = {"input_ids": [[7] * 64], "attention_mask": [[1] * 64]}
    ids = [platform.client.invoke("bert", example, deadline_ms=20_000).id for _ in range(5)]

    def executions() -> list[Degradation] | None:
        measured = [
            execution
            for id_ in ids
            for execution in platform.client.executions(id_)
            if execution.degradation is not None
        ]
        return (
            [execution.predicted for execution in measured if execution.predicted is not None]
            if len(measured) >= 4
            else None
        )

    predicted = eventually(executions, 20, "the executions in the history")
    assert all(one.known == in_table and one.training > 0 and one.function > 0 for one in predicted)
    if in_table:
        assert predicted[0].function == pytest.approx(expected.function_degradation, abs=1e-3)
        assert predicted[0].training == pytest.approx(expected.training_degradation, abs=1e-3)
    platform.client.stop_job(job.id)


def test_a_control_that_is_killed_leaves_the_table_in_force(platform: Platform, version: int) -> None:
    import os
    import signal

    os.kill(platform.pid("control"), signal.SIGKILL)
    assert platform.client.predictor().version == version
    eventually(lambda: pid_of(platform.home, "control"), 20, "another control")
