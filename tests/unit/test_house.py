"""The house itself: where names import from, what a process may load, what compose starts."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from smore.cli.launch import PROGRAMS
from smore.local.layout import Layout, Partition, processes
from tools.house import PRODUCT, dead_references, read

ROOT = Path(__file__).resolve().parents[2]


def test_names_import_from_under_the_root() -> None:
    """Generic names are paid for with this: nobody else's ``api`` or ``worker`` may come first."""
    names = ("api", "worker", "scheduler", "ml", "smore", "zoo", "migrations", "lab", "tools")
    code = f"import {', '.join(names)}; print(*({'.__file__, '.join(names)}.__file__), sep='\\n')"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    places = found.stdout.splitlines()
    assert len(places) == len(names)
    assert [place for place in places if not Path(place).is_relative_to(ROOT)] == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("smore", {"numpy", "torch", "sqlalchemy", "redis", "celery", "httpx", "pydantic"}),
        ("api.app", {"torch", "sqlalchemy", "numpy", "celery", "sklearn", "rich"}),
        ("worker.app", {"torch", "sqlalchemy", "numpy", "fastapi", "sklearn", "rich"}),
        ("worker.runner.nursery", {"torch", "pydantic", "structlog", "msgspec"}),
        ("scheduler.policy.jobs.core", {"numpy", "numba", "msgspec", "pydantic", "structlog"}),
        ("scheduler.worker", {"torch", "sqlalchemy", "numpy", "fastapi", "rich"}),
        ("scheduler.tasks.assign", {"torch", "sqlalchemy", "fastapi"}),
        ("scheduler.tasks.learn", {"torch", "numpy", "fastapi", "sklearn", "ml"}),
    ],
)
def test_processes_load_only_what_they_use(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({absent!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert found.stdout.split() == []


@pytest.mark.parametrize("module", sorted(PROGRAMS.values()))
def test_programs_of_other_floors_are_there(module: str) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None
    if found.submodule_search_locations is not None:
        assert importlib.util.find_spec(f"{module}.__main__") is not None


#: Alembic runs the one, ``python -m smore.cli`` the other.
NOT_IMPORTED = {"migrations.env", "smore.cli.__main__"}
#: Imports every module of the product in an interpreter that has neither the laboratory nor the tools.
ALONE = """
import importlib, sys

class Away:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lab", "tools"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Away())
for name in sys.stdin.read().split():
    importlib.import_module(name)
"""


def test_the_product_imports_without_the_laboratory_and_the_tools() -> None:
    modules = sorted(
        source.module
        for source in read(ROOT)[0]
        if source.name.startswith(PRODUCT) and source.name.endswith(".py") and source.module not in NOT_IMPORTED
    )
    assert len(modules) > 400
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, input="\n".join(modules), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_package_has_a_list_of_what_it_may_import() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    listed = {contract["package"] for contract in settings["contracts"] if contract["type"] == "allow_list"}
    packages = [*ROOT.glob("*/__init__.py"), *(ROOT / "client").glob("*/__init__.py")]
    folders = {path.parent.name for path in packages} - {"tests"}
    assert folders == set(settings["root_packages"])
    assert folders <= listed
    parts = {
        f"{root}.{path.parent.name}"
        for root in ("smore", "scheduler", "worker", "ml", "lab")
        for path in (ROOT / root).glob("*/__init__.py")
    }
    assert parts <= listed


def test_compose_starts_the_same_processes_as_one_machine_does() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    layout = Layout(
        home=Path("/data"),
        root=ROOT,
        redis_url="r",
        postgres_url="p",
        gateway_host="0.0.0.0",
        gateway_port=8400,
        platform_cores="",
        partitions=(Partition(gpu="gpu0", kind="cuda", device="0"),),
    )
    local = {process.name: list(process.command[1:]) for process in processes(layout)}
    composed = {
        name: service["command"][1:]
        for name, service in compose["services"].items()
        if service.get("command", [""])[0] == "python"
    }

    assert composed.pop("migrate") == ["-m", "migrations", "--bootstrap-key", "/data/key"]
    # A container is one process, so there is nothing to share.
    assert local.pop("template")[:2] == ["-m", "smore.local.template"]
    # One service for all GPU instances: it supervises what are processes of their own elsewhere.
    assert local.pop("nursery") == ["-m", "worker.runner.nursery", "/data/run/nursery.sock"]
    assert (composed.pop("node"), local.pop("worker-gpu0")) == (["-m", "worker.node"], ["-m", "worker.app"])
    # Elsewhere workers start trainings themselves.
    assert composed.pop("trainings") == ["-m", "worker.keeper"]
    assert local == composed
    published = {name for name, service in compose["services"].items() if "ports" in service}
    # The last two with a profile alone, and on 127.0.0.1.
    assert published == {"gateway", "prometheus", "grafana"}


def test_every_file_that_is_named_is_there() -> None:
    """
    Paths, links and headings in documents, docstrings, comments, messages and settings, and names that a document says
    to be defined in a file; ``docs/decisions/0013`` stands for the file that begins so.
    """
    faults = ("no such file", "no such document", "no such heading", "no such name there")
    sources, files = read(ROOT)
    assert [finding for finding in dead_references(sources, files) if finding.detail.endswith(faults)] == []
    # The architecture page names files of a folder by their names alone.
    named = re.findall(r"`([\w./-]+\.(?:py|lua))(?::|`)", (ROOT / "docs/architecture.md").read_text())
    assert len(named) > 100
    assert [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


def test_tests_share_through_support_alone() -> None:
    """A test file that imports another runs its imports, its fixtures by accident, and breaks when that one moves."""
    imports = re.compile(r"^ *(?:from (tests(?:\.\w+)*|\.[\w.]*) import |import (tests\b[\w.]*))", re.MULTILINE)
    imported = {
        str(path.relative_to(ROOT)): others
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (
            others := {
                module
                for module in map("".join, imports.findall(path.read_text()))
                if not f"{module}.".startswith("tests.support.")
            }
        )
    }

    assert imported == {}
