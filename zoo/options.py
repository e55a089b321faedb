"""
The options of ``python -m zoo.train``. Without torch: the gateway reads them before a training waits for its turn.
"""

import argparse
from collections.abc import Sequence
from typing import Final, NoReturn

#: Models that have a card: modules of this package.
NAMES: Final = ("vgg16", "mobilenet", "deepvit", "resnet50", "bert", "roberta", "deepfm", "segnet")


class _Trial(argparse.ArgumentParser):
    """Prints nothing and ends no process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002 - argparse's own
        raise ValueError(message or "")

    def print_help(self, file: object = None) -> None:
        pass


def problem(arguments: Sequence[str]) -> str:
    """What is wrong with them, '' = nothing."""
    try:
        parser(_Trial).parse_args(arguments)
    except ValueError as error:
        return str(error)
    return ""


def parser(kind: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    made = kind(prog="zoo.train", description="A training job on synthetic data.")
    made.add_argument("--model", required=True, choices=NAMES)
    made.add_argument(
        "--preset", choices=("paper", "cpu"), help="the model's size; default: paper on a GPU, cpu on a CPU"
    )
    made.add_argument("--batch", type=int, default=16)
    made.add_argument("--iterations", type=int)
    made.add_argument("--seconds", type=float)
    made.add_argument(
        "--input-wait",
        help="share of an iteration, 0 to <1; card: the model's own; none. Default: card on a CPU, else none",
    )
    made.add_argument(
        "--input-wait-s", type=float, help="the same in seconds, where other work disturbs the first iterations"
    )
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    made.add_argument("--json", action="store_true", help="print the summary as one line of JSON")
    made.add_argument("--checkpoint-every", type=int, help="iterations from one checkpoint to the next; default: none")
    return made
