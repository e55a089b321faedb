"""``smore init``: a folder to begin a function with."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from smore.cli.terminal import EXIT_USAGE, fail, write


class Template(StrEnum):
    JSON = "json"
    TENSOR = "tensor"
    TORCH = "torch"


_FUNCTION: Final = """\
apiVersion: smore/v1
kind: Function
metadata: {{name: {name}}}
spec:
  entrypoint: handler:Function
  slo: {{deadline: 5s}}
  resources: {{gpu_memory: {memory}}}
  batching: {{max_size: 8}}
"""

#: Of each template: what it declares to use of the GPU, the handler, its test, and an input for the command line.
_TEMPLATES: Final = {
    Template.JSON: (
        "0",
        """\
import smore


class Function(smore.Handler):
    # One input. Each new revision is run on it first.
    example = {"text": "how many words"}

    def predict(self, inputs):
        # The inputs of several invocations. Return one output for each, in their order.
        return [{"words": len(value["text"].split())} for value in inputs]
""",
        """\
from handler import Function

from smore.testing import InProcessRunner


def test_counts_words():
    runner = InProcessRunner(Function)
    runner.load()
    assert runner.predict([{"text": "one"}, {"text": "two words"}]) == [{"words": 1}, {"words": 2}]
    runner.unload()
""",
        '{"text": "one two three"}',
    ),
    Template.TENSOR: (
        "0",
        """\
import numpy as np

import smore


class Function(smore.Handler):
    # One input. Its names, types and shapes are those of all inputs, and each new revision is run on it first.
    example = {"x": np.zeros((1, 3), np.float32)}

    def predict(self, inputs):
        # The rows of several invocations, one after the other. Return as many rows, in their order.
        return {"y": inputs["x"] * 2}
""",
        """\
import numpy as np
from handler import Function

from smore.testing import InProcessRunner


def test_doubles():
    runner = InProcessRunner(Function)
    runner.load()
    (answer,) = runner.predict([{"x": np.array([[1, 2, 3]], np.float32)}])
    assert answer["y"].tolist() == [[2, 4, 6]]
    runner.unload()
""",
        '{"x": [[1, 2, 3]]}',
    ),
    Template.TORCH: (
        "256MiB",
        """\
from pathlib import Path

import numpy as np
import torch

import smore

#: Written by training; lies beside this file and is deployed with it.
WEIGHTS = Path(__file__).with_name("weights.pt")


class Function(smore.Handler):
    # One input. Its names, types and shapes are those of all inputs, and each new revision is run on it first.
    example = {"x": np.zeros((1, 4), np.float32)}

    def load(self, device):
        # "cuda" on a GPU, "cpu" elsewhere.
        self.device = device
        self.model = torch.nn.Linear(4, 3)
        if WEIGHTS.exists():
            self.model.load_state_dict(torch.load(WEIGHTS, weights_only=True))
        self.model.to(device).eval()

    @torch.inference_mode()
    def predict(self, inputs):
        # The rows of several invocations, one after the other. Return as many rows, in their order.
        x = torch.from_numpy(inputs["x"]).to(self.device)
        return {"scores": self.model(x).softmax(1).cpu().numpy()}
""",
        """\
import numpy as np
from handler import Function

from smore.testing import InProcessRunner


def test_scores_add_up_to_one():
    runner = InProcessRunner(Function)
    runner.load()
    (answer,) = runner.predict([{"x": np.ones((2, 4), np.float32)}])
    assert np.allclose(answer["scores"].sum(axis=1), 1)
    runner.unload()
""",
        '{"x": [[1, 2, 3, 4]]}',
    ),
}


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the function, and of the new folder.")],
    template: Annotated[
        Template, typer.Option(help="json: JSON values; tensor: numpy arrays; torch: a torch model.")
    ] = Template.JSON,
) -> None:
    """Begin a function: a folder with a function.yaml, a handler and a test."""
    from smore.domain.errors import InvalidSpec
    from smore.domain.function import parse_name

    memory, handler, test, example = _TEMPLATES[template]
    folder = Path(name)
    try:
        parse_name(name, "NAME")
        folder.mkdir()
        (folder / "function.yaml").write_text(_FUNCTION.format(name=name, memory=memory))
        (folder / "handler.py").write_text(handler)
        (folder / "test_handler.py").write_text(test)
    except FileExistsError:
        fail(f"there is a {name} here already: choose another name, or remove it", EXIT_USAGE)
    except (InvalidSpec, OSError) as error:
        fail(str(error), EXIT_USAGE)
    write(f"""\
{name}/ has function.yaml, handler.py and test_handler.py. Next:
  smore run ./{name} -i '{example}'
  smore deploy ./{name}
  smore invoke {name} -i '{example}'""")
