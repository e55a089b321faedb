"""
The zoo's functions as they are deployed: ``python -m zoo.documents bert --preset paper > bert.yaml``.

``zoo/functions`` holds each in the small size, with what it costs on a CPU partition; for a GPU this module makes it of
the paper's size.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from zoo.model import card
from zoo.options import NAMES

FOLDER: Final = Path(__file__).parent / "functions"
#: Of a model in the paper's size, its largest batch included.
PAPER_MEMORY: Final = "2GiB"
#: Declared of one; the canary and the runs correct it.
PAPER_PROFILE: Final = {"run_ms": {1: 10, 8: 20}, "load_ms": 3000, "usage_gain": 0.1, "degradation": 0.1}


def document(name: str, preset: str = "cpu") -> dict[str, Any]:
    """
    A function of :data:`FOLDER`; those that are no model of a card have one size. FileNotFoundError for another name.
    """
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    if preset == "cpu" or name not in NAMES:
        return found
    found["spec"] |= {
        "entrypoint": f"zoo.{name}:PaperFunction",
        "resources": {"gpu_memory": PAPER_MEMORY},
        "inputs": [
            {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
            for tensor in card(name).presets[preset].inputs
        ],
        "profile": PAPER_PROFILE | {"model": f"{name}/{preset}"},
    }
    return found


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="zoo.documents", description="A function of the zoo, ready to deploy.")
    parser.add_argument("name", choices=sorted(path.stem for path in FOLDER.glob("*.yaml")))
    parser.add_argument("--preset", default="paper", choices=("paper", "cpu"))
    asked = parser.parse_args(arguments)
    yaml.safe_dump(document(asked.name, asked.preset), sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main(sys.argv[1:])
