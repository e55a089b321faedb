"""Logs of the platform's processes."""

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


def test_a_process_serves_its_own_families_and_none_that_is_empty() -> None:
    def names(families: observability.Families) -> set[str]:
        return {family.name for family in families.collect()}

    observability.BUILD.labels("1.2.3", "3.11").set(1)
    gateway, worker = names(observability.GATEWAY), names(observability.WORKER)

    assert "smore_build" in {name.removesuffix("_info") for name in gateway & worker}
    assert "smore_leader" in names(observability.SCHEDULER)
    assert "smore_leader" not in gateway | worker
    assert all(family.samples for family in observability.WORKER.collect())
    observability.RUN_SECONDS.labels("default/echo", "cpu0").observe(0.1)
    assert "smore_run_seconds" in names(observability.WORKER) - gateway
