"""What the simulator stands on."""

import subprocess
import sys
from pathlib import Path


def test_the_simulator_needs_no_platform() -> None:
    absent = {
        "redis",
        "celery",
        "sqlalchemy",
        "torch",
        "api",
        "worker",
        "smore.process.settings",
        "smore.messages.degradation",
        "smore.redis.tables",
    }
    code = f"import sys, lab.research.compare.__main__; print(*sorted({absent!r} & set(sys.modules)))"
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)

    assert found.stdout.split() == []
