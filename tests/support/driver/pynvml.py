"""
Stands before the installed ``pynvml`` on the path of a process under test: the same module with its functions answered
from a table (tests/support/nvml.py).
"""

import importlib.util
import os
import sys
from pathlib import Path

_here = Path(__file__)


def _load(name: str, path: Path) -> None:
    """The module of that file takes that name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


_load(
    "pynvml",
    next(path for folder in sys.path if (path := Path(folder, "pynvml.py")).exists() and not path.samefile(_here)),
)
_load("smore_test_nvml", _here.parents[1] / "nvml.py")
_nvml = sys.modules["smore_test_nvml"]
vars(sys.modules["pynvml"]).update(
    _nvml.Fake(sys.modules["pynvml"], _nvml.read(Path(os.environ[_nvml.VARIABLE]))).functions()
)
