"""Logs of the platform's processes."""

import subprocess
import sys
from pathlib import Path

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
