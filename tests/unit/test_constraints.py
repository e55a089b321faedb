"""constraints.txt pins what pyproject.toml asks for."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]


def test_every_dependency_has_one_pin_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    assert len(pins) == len(lines)
    for requirement in map(Requirement, wanted):
        assert Version(pins[canonicalize_name(requirement.name)]) in requirement.specifier, requirement
