"""How many files of the product must know a field of a training: one is added in a copy, and goes the whole way there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("api", "client", "ml", "scheduler", "smore", "tests/support", "worker", "zoo")
MOST = 8

#: File → text of it → what follows it in the copy. From the command line to the worker and the rule, and back.
ADDED = {
    "smore/domain/job.py": {"    micro_batches: Sequence[int] = ()\n": '    note: str = ""\n'},
    "api/schemas/jobs.py": {
        '    """In how many parts its loop can run a batch where memory is short, rising from 1 (``[1, 2, 4]``)"""\n': (
            '    note: Text | None = None\n    """What its owner remarks; null = nothing"""\n'
        ),
        '    """In how many parts its loop can run a batch where memory is short"""\n': (
            '    note: str = ""\n    """What its owner remarked"""\n'
        ),
    },
    "api/trainings/request.py": {
        "        micro_batches=_micro_batches(body, workload),\n": '        note=body.note or "",\n',
    },
    "api/trainings/views.py": {
        '        "micro_batches": list(request.micro_batches),\n': '        "note": request.note,\n'
    },
    "client/smore_client/generated.py": {
        '    """In how many parts its loop can run a batch where memory is short"""\n': (
            '    note: str = ""\n    """What its owner remarked"""\n'
        ),
    },
    "client/smore_client/job_requests.py": {
        "    micro_batches: Sequence[int] | None\n": "    #: A remark.\n    note: str | None\n",
    },
    "smore/cli/jobs.py": {
        '(tracker.micro_batches)."),\n    ] = None,\n': (
            '    note: Annotated[str | None, typer.Option(help="A remark, shown by explain.")] = None,\n'
        ),
        '            "micro_batches": _counts(micro_batches),\n': '            "note": note,\n',
    },
    # Who acts on it: here the facts of an explanation.
    "scheduler/policy/jobs/answers.py": {
        "            cause, facts = self._why(job, at, counted)\n": (
            "            facts = facts._replace(others=[job.spec.request.note])\n"
        ),
    },
}


def _copied(folder: Path) -> None:
    """Links to the product's files, and the changed ones."""
    for name in PRODUCT:
        shutil.copytree(
            ROOT / name, folder / name, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name, additions in ADDED.items():
        source = (ROOT / name).read_text()
        for before, added in additions.items():
            assert source.count(before) == 1, f"{name}: {before}"
            source = source.replace(before, before + added)
        (folder / name).unlink()
        (folder / name).write_text(source)


def test_a_field_of_a_training_is_known_by_few_files(tmp_path: Path) -> None:
    _copied(tmp_path)
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{tmp_path / 'client'}"}
    told = subprocess.run(
        [sys.executable, "-m", "tests.support.training_field"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert len(ADDED) <= MOST
