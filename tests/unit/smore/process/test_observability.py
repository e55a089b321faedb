"""Logs of the platform's processes."""

import json
import subprocess
import sys
from pathlib import Path

from smore.process import observability

ROOT = Path(__file__).resolve().parents[4]


def test_a_line_that_nobody_reads_fails_nothing() -> None:
    """As where the supervisor was killed, which held the other end of everybody's standard error."""
    code = """
import os, sys
from smore.process.observability import configure, logger
from smore.process.settings import Settings

configure(Settings(), "test")
logger("test").warning("read")
read, write = os.pipe()
os.close(read)
os.dup2(write, 2)
for _ in range(3):
    logger("test").warning("not read")
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert '"event": "read"' in done.stderr
    assert done.stdout.split() == ["went", "on"]


def test_celery_is_no_louder_than_the_platform() -> None:
    """A Redis that is away is a warning, and advice about a later Celery is no line."""
    code = """
import logging, sys, warnings
from celery.exceptions import CPendingDeprecationWarning
from celery.worker.consumer import consumer
from smore.process.observability import configure
from smore.process.settings import Settings

configure(Settings(log_level=sys.argv[1]), "test")
logging.captureWarnings(True)
warnings.simplefilter("always")
warnings.warn(consumer.CANCEL_TASKS_BY_DEFAULT, CPendingDeprecationWarning)
consumer.error(consumer.CONNECTION_ERROR, "redis+socket:///r", "refused", "Trying again")
consumer.error("another error")
"""

    def lines(level: str) -> list[tuple[str, str]]:
        done = subprocess.run([sys.executable, "-c", code, level], cwd=ROOT, capture_output=True, text=True, check=True)
        said = [json.loads(line) for line in done.stderr.splitlines() if line]
        return [(line["level"], line["event"].split(" to ")[0].strip()) for line in said]

    assert lines("INFO") == [("warning", "consumer: Cannot connect"), ("error", "another error")]
    assert lines("ERROR") == [("error", "another error")]


def test_a_process_serves_its_own_families_and_none_that_is_empty() -> None:
    def names(families: observability.Families) -> set[str]:
        return {family.name for family in families.collect()}

    observability.BUILD.labels("1.2.3", "3.11").set(1)
    gateway, worker = names(observability.GATEWAY), names(observability.WORKER)

    assert "smore_build" in {name.removesuffix("_info") for name in gateway & worker}
    assert "smore_leader" in names(observability.SCHEDULER)
    assert "smore_leader" not in gateway | worker
    assert all(family.samples for family in observability.WORKER.collect())
    observability.RUN_SECONDS.labels("default/echo", "cpu0", "standard").observe(0.1)
    assert "smore_run_seconds" in names(observability.WORKER) - gateway
