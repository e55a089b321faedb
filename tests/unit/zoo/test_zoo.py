"""
The zoo: published sizes and costs, seeded weights, rows that do not depend on their batch, and the small functions.
"""

import importlib
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from smore.domain.function import FunctionSpec, parse_name, parse_spec
from smore.handler import Handler
from tests.support.rounding import rounding
from zoo.model import Blank, ModelFunction, card, fill
from zoo.options import NAMES
from zoo.train import CALIBRATION, WARM_UP, InputWait, input_wait, parse

ROOT = Path(__file__).parents[3]
YAML_FILES = sorted((ROOT / "zoo" / "functions").glob("*.yaml"))
NUMPY_TYPES = {"FP32": np.float32, "INT64": np.int64}

#: Rows of DeepFM's tables with at most 100 000 a field: seven fields are cut to that, the rest stay as they are. A row
#: weighs 11.
DEEPFM_ROWS = 7 * 100_000 + 140_543
DEEPFM_PARAMETERS = DEEPFM_ROWS * 11 + 13 * 10 + 14 + (390 * 400 + 400) + 2 * (400 * 400 + 400) + 401


def _deepvit_parameters() -> int:
    """
    DeepViT-S: 16 blocks of width 396 with 12 heads and a feed-forward of three times the width, 14 x 14 patches and a
    class token.
    """
    width, heads, stem, tokens = 396, 12, 64, 14 * 14 + 1
    attention = 3 * (width * width + width) + width * width + width + heads * heads + heads + 2 * heads
    block = attention + 2 * 3 * width * width + 3 * width + width + 2 * 2 * width
    patches = 7 * 7 * 3 * stem + 3 * 3 * stem * stem + 2 * 2 * stem + 8 * 8 * stem * width + width
    return patches + width + tokens * width + 16 * block + 2 * width + width * 1000 + 1000


def _segnet_parameters() -> tuple[int, int]:
    """SegNet with the attention of three tasks, and the same SegNet with one task of 13 classes and no attention."""

    def convolution(channels: int, out: int) -> int:
        return 9 * channels * out + 3 * out  # with its bias and its BatchNorm

    def attention(channels: int, out: int) -> int:
        return channels * out + 3 * out + out * out + 3 * out

    def head(channels: int, out: int) -> int:
        return 9 * channels * channels + channels + channels * out + out

    widths, depths = (64, 128, 256, 512, 512), (2, 2, 3, 3, 3)
    back, decoded = widths[::-1], (512, 256, 128, 64, 64)
    encoder = sum(
        convolution(i, o) + (n - 1) * convolution(o, o) for i, o, n in zip((3, *widths), widths, depths, strict=False)
    )
    decoder = sum(
        convolution(i, o) + (n - 1) * convolution(o, o) for i, o, n in zip(back, decoded, depths[::-1], strict=True)
    )
    carried = sum(map(convolution, widths, (*widths[1:], 512))) + sum(map(convolution, back, decoded))
    masks = attention(64, 64) + sum(attention(2 * width, width) for width in widths[1:])
    masks += sum(attention(i + o, o) for i, o in zip(back, decoded, strict=True))
    single = encoder + decoder + head(64, 13)
    return encoder + decoder + carried + 3 * masks + sum(head(64, out) for out in (13, 1, 3)), single


PUBLISHED_PARAMETERS = {
    "vgg16": 138_357_544,
    "mobilenet": 3_504_872,
    "deepvit": _deepvit_parameters(),
    "resnet50": 25_557_032,
    "bert": 109_482_240 + 2 * 768 + 2,  # BERT-base with its pooler, and a head of two classes
    "roberta": 124_055_040 + 2 * 768 + 2,  # roberta-base without a pooler, and a head of start and end
    "deepfm": DEEPFM_PARAMETERS,
    "segnet": _segnet_parameters()[0],
}

#: Multiply-accumulates of one row in 1e9, and how far ours may be off. DeepViT's 6.2 is the paper's; how it counts
#: attention is not said.
PUBLISHED_GIGA_MACS = [
    ("vgg16", 15.47, 0.01),
    ("mobilenet", 0.30, 0.01),
    ("deepvit", 6.2, 0.04),
    ("resnet50", 4.09, 0.01),
    ("bert", 11.17, 0.01),
    ("roberta", 11.17, 0.01),
]


def blank(name: str, preset: str) -> nn.Module:
    """Shapes without memory or values."""
    with Blank(), torch.device("meta"):
        return card(name).build(preset).eval()


def function(name: str) -> ModelFunction:
    made = importlib.import_module(f"zoo.{name}").Function()
    assert isinstance(made, ModelFunction)
    return made


def in_double(name: str) -> ModelFunction:
    """
    The function with weights and arithmetic in double precision.

    What a row of the others changes by mistake is as large as ever. What another order of the same sums changes is 5e8
    times smaller, and so rare is the pixel whose maximum is now one, now another of two equally large ones, which in
    SegNet moves a value to another place.
    """
    made = function(name)
    made.load("cpu")
    made.module.double()
    return made


def doubled(inputs: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {key: array.astype(np.float64) if array.dtype == np.float32 else array for key, array in inputs.items()}


def assert_equal_but_for_rounding(one: Any, other: Any, dtype: type[np.floating[Any]], module: nn.Module) -> None:
    """Two FP32 answers that ``module`` computed in ``dtype``."""
    sums = [part.weight[0].numel() for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    bound = rounding(dtype, sums) * float(np.abs(other).max())
    np.testing.assert_allclose(one, other, rtol=float(np.finfo(np.float32).eps), atol=bound)


def drawn(name: str, rows: int, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    sample = card(name).sample("cpu", rows, torch.Generator().manual_seed(seed))
    return {key: tensor.numpy() for key, tensor in sample.items()}


#: Rows of the inputs that are answered together.
ROWS = 3


@cache
def answer(name: str) -> np.ndarray[Any, Any]:
    """What the function answers to :data:`ROWS` rows."""
    served = function(name)
    served.load("cpu")
    (output,) = served.predict(drawn(name, ROWS)).values()
    assert isinstance(output, np.ndarray)
    return output


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_preset_has_the_published_number_of_parameters(name: str) -> None:
    assert sum(p.numel() for p in blank(name, "paper").parameters()) == PUBLISHED_PARAMETERS[name]


def test_counts_by_formula_agree_with_the_rounded_publications() -> None:
    assert PUBLISHED_PARAMETERS["deepvit"] == pytest.approx(27e6, rel=0.02)
    # MTAN (arXiv:1803.10704), table 2: 1.77 times a network of one task.
    with_attention, single = _segnet_parameters()
    assert with_attention / single == pytest.approx(1.77, abs=0.005)


@pytest.mark.parametrize(("name", "giga_macs", "tolerance"), PUBLISHED_GIGA_MACS)
def test_the_paper_preset_costs_the_published_operations(name: str, giga_macs: float, tolerance: float) -> None:
    module = blank(name, "paper")
    inputs = {key: tensor.to("meta") for key, tensor in card(name).sample("paper", 1, torch.Generator()).items()}
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        module(**inputs)
    assert counter.get_total_flops() / 2e9 == pytest.approx(giga_macs, rel=tolerance)


@pytest.mark.parametrize("preset", ["paper", "cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_samples_have_the_described_shapes(name: str, preset: str) -> None:
    described = card(name).presets[preset].inputs
    sample = card(name).sample(preset, 3, torch.Generator())
    assert set(sample) == {spec.name for spec in described}
    for spec in described:
        array = sample[spec.name].numpy()
        assert array.shape == (3, *spec.shape[1:])
        assert array.dtype == NUMPY_TYPES[spec.datatype]


@pytest.mark.numeric
@pytest.mark.parametrize("name", NAMES)
def test_a_training_step_reaches_every_parameter(name: str) -> None:
    described = card(name)
    generator = torch.Generator().manual_seed(0)
    module = described.assemble("cpu").train()
    loss = described.loss(module(**described.sample("cpu", 2, generator)), described.labels("cpu", 2, generator))
    loss.backward()  # torch leaves it unannotated
    assert torch.isfinite(loss)
    gradients = {key: p.grad for key, p in module.named_parameters()}
    assert all(gradient is not None and torch.isfinite(gradient).all() for gradient in gradients.values()), (
        gradients.keys()
    )


@pytest.mark.numeric
@pytest.mark.parametrize("name", NAMES)
def test_a_function_answers_rows_as_if_they_were_alone(name: str) -> None:
    together = answer(name)
    assert together.shape[0] == ROWS
    assert together.dtype == np.float32
    assert np.isfinite(together).all()

    served, inputs = in_double(name), doubled(drawn(name, ROWS))
    (together,) = served.predict(inputs).values()
    for row in range(ROWS):
        (alone,) = served.predict({key: array[row : row + 1] for key, array in inputs.items()}).values()
        assert_equal_but_for_rounding(alone, together[row : row + 1], np.float64, served.module)


@pytest.mark.numeric
@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_the_answer(name: str) -> None:
    def seeded(seed: int) -> np.ndarray[Any, Any]:
        served = type("Seeded", (type(function(name)),), {"seed": seed})()
        served.load("cpu")
        (output,) = served.predict(drawn(name, 1)).values()
        assert isinstance(output, np.ndarray)
        return output

    first = seeded(3)
    np.testing.assert_array_equal(first, seeded(3))
    assert not np.allclose(first, seeded(4))


@pytest.mark.parametrize("name", NAMES)
def test_different_inputs_get_different_answers(name: str) -> None:
    assert len(np.unique(answer(name).reshape(ROWS, -1), axis=0)) == ROWS


def test_deepfm_answers_probabilities_and_hashes_unknown_categories() -> None:
    served = function("deepfm")
    served.load("cpu")
    inputs = drawn("deepfm", 8) | {"sparse": np.full((8, 26), 2**40 + 7, np.int64)}
    probability = served.predict(inputs)["probability"]
    assert probability.shape == (8,)
    assert ((probability >= 0) & (probability <= 1)).all()


def test_a_missing_input_is_named() -> None:
    served = function("bert")
    served.load("cpu")
    with pytest.raises(ValueError, match="'attention_mask' is missing"):
        served.predict({"input_ids": drawn("bert", 1)["input_ids"]})


@pytest.mark.parametrize("index", [-1, 8192])
def test_an_index_out_of_range_is_refused_before_the_device_sees_it(index: int) -> None:
    served = function("bert")
    served.load("cpu")
    inputs = drawn("bert", 1)
    inputs["input_ids"][0, 3] = index
    with pytest.raises(ValueError, match=r"within 0\.\.8191"):
        served.predict(inputs)


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_padding_does_not_change_an_answer(name: str) -> None:
    served, inputs = in_double(name), drawn(name, 3)
    other = dict(inputs, input_ids=np.where(inputs["attention_mask"] == 1, inputs["input_ids"], 999))
    assert_equal_but_for_rounding(
        served.predict(inputs)["logits"], served.predict(other)["logits"], np.float64, served.module
    )


@pytest.mark.numeric
def test_inputs_that_are_not_writable_are_served() -> None:
    served = function("mobilenet")
    served.load("cpu")
    array = drawn("mobilenet", 1)["image"]
    received = np.frombuffer(array.tobytes(), np.float32).reshape(array.shape)
    # The two lie at other addresses, by which some libraries choose how they add.
    found, expected = (served.predict({"image": one})["logits"] for one in (received, array))
    assert_equal_but_for_rounding(found, expected, np.float32, served.module)


def test_fill_gives_weights_of_the_wanted_deviation_and_leaves_nothing_out() -> None:
    with Blank():
        convolution, norm, linear = nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128), nn.Linear(512, 300)
    module = nn.Sequential(convolution, norm, linear)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data.fill_(7)
    fill(module, seed=0)
    assert convolution.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert linear.weight.std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.02)
    assert linear.weight.mean().item() == pytest.approx(0, abs=0.001)
    assert norm.weight.eq(1).all()
    assert norm.running_var is not None
    assert norm.running_var.eq(1).all()
    for zero in (norm.bias, norm.running_mean, norm.num_batches_tracked, convolution.bias, linear.bias):
        assert zero is not None
        assert zero.eq(0).all()
    fill(module, seed=0, weight_std=0.02)
    assert linear.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_fill_refuses_a_buffer_it_has_no_rule_for() -> None:
    module = nn.Module()
    module.register_buffer("table", torch.ones(3))
    with pytest.raises(TypeError, match="table"):
        fill(module, seed=0)


def test_input_waits_leave_the_busy_shares_of_figure_1() -> None:
    busy = {name: 1 - card(name).input_wait for name in NAMES}
    assert all(busy[name] > 0.7 for name in ("deepvit", "resnet50", "bert", "roberta"))
    assert all(busy[name] <= 0.3 + 1e-9 for name in ("deepfm", "mobilenet"))
    assert all(0.3 < busy[name] <= 0.7 for name in ("vgg16", "segnet"))


def test_an_unknown_model_has_no_card() -> None:
    with pytest.raises(KeyError):
        card("train")


def test_every_described_function_can_be_made() -> None:
    described: dict[str, FunctionSpec] = {}
    for path in YAML_FILES:
        document = yaml.safe_load(path.read_text())
        assert (document["apiVersion"], document["kind"]) == ("smore/v1", "Function")
        assert parse_name(document["metadata"]["name"]) == path.stem
        described[path.stem] = parse_spec(document["spec"])
    misbehaving = {f"misbehave-{kind}" for kind in ("crash", "sleep", "allocate", "raise")}
    assert set(described) == {*NAMES, "echo", "silero", *misbehaving}
    for spec in described.values():
        module, _, name = spec.entrypoint.partition(":")
        handler = getattr(importlib.import_module(module), name)
        assert issubclass(handler, Handler)
        assert set(spec.profile.run_s) == {1, 8} or spec.max_batch == 1
        if issubclass(handler, ModelFunction):
            assert spec.inputs == handler.card.presets[handler.preset].inputs
        elif spec.inputs is not None:
            assert set(handler.example) == {tensor.name for tensor in spec.inputs}


def test_light_modules_import_neither_torch_nor_numpy() -> None:
    done = run_python(
        "import smore, zoo.echo, zoo.misbehave, sys; smore.track().step(); print({'torch', 'numpy'} & set(sys.modules))"
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_echo_answers_its_inputs() -> None:
    echo = importlib.import_module("zoo.echo").Function()
    assert echo.predict([echo.example, 1, None]) == [echo.example, 1, None]


@pytest.mark.parametrize(("word", "status"), [("crash", -signal.SIGSEGV), ("exit", 3), ("nothing", 0)])
def test_crash_ends_its_process_when_told(word: str, status: int) -> None:
    assert run_python(f"from zoo.misbehave import Crash; Crash().predict([{{'do': '{word}'}}])").returncode == status


def test_allocate_runs_into_a_memory_limit() -> None:
    done = run_python(
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\nfrom zoo.misbehave import"
        " Allocate; f = Allocate(); f.load('cpu'); assert f.predict([{'mib': 8}]) == [{'mib': 8}]\ntry:"
        " f.predict([{'do': 'allocate'}])\nexcept MemoryError: print('full')"
    )
    assert done.stdout == "full\n", done.stderr


def test_raise_and_sleep_do_as_told() -> None:
    misbehave = importlib.import_module("zoo.misbehave")
    with pytest.raises(ValueError, match="no such cat"):
        misbehave.Raise().predict([{"id": 1}, {"message": "no such cat"}])
    for kind in (misbehave.Raise, misbehave.Sleep, misbehave.Crash):
        assert kind().predict([kind.example]) == [kind.example]


def test_the_input_wait_is_a_fixed_share_of_an_undisturbed_iteration() -> None:
    wait = InputWait(0.4)
    for _ in range(WARM_UP):
        wait.observe(9.0)  # the warm-up is slow and does not count
    for compute_s in (0.06, 0.06, 0.05, 0.06, 0.50)[:CALIBRATION]:
        assert wait.seconds == 0.0
        wait.observe(compute_s)
    assert wait.seconds == pytest.approx(0.04)
    wait.observe(1.0)  # a neighbour: the wait stays
    assert wait.seconds == pytest.approx(0.04)
    with pytest.raises(ValueError, match="share"):
        input_wait("1.0", card("bert"), "cpu")


def test_an_input_wait_in_seconds_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(["--model", "bert", "--device", "cpu", "--input-wait-s", "0.125"])
    wait = InputWait(0.4, options.input_wait_s)
    for _ in range(WARM_UP + CALIBRATION):
        assert wait.seconds == 0.125
        wait.observe(0.5)
    assert wait.seconds == 0.125
    with pytest.raises(SystemExit):
        parse(["--model", "bert", "--input-wait-s", "nan"])
    assert "--input-wait-s must be at least 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "words", "expected"),
    [
        (False, [], ("cpu", "cpu")),
        (True, [], ("cuda", "paper")),
        (True, ["--device", "cpu"], ("cpu", "cpu")),
        (True, ["--preset", "cpu"], ("cuda", "cpu")),
    ],
)
def test_a_training_takes_the_gpu_and_the_papers_size_where_there_is_one(
    gpu: bool, words: list[str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    options = parse(["--model", "resnet50", *words])
    assert (options.device, options.preset) == expected


def test_the_share_of_the_input_wait() -> None:
    bert = card("bert")
    assert input_wait(None, bert, "cpu") == input_wait("card", bert, "cuda") == bert.input_wait > 0
    assert input_wait(None, bert, "cuda") == input_wait("none", bert, "cpu") == 0
    assert input_wait("0.3", bert, "cuda") == 0.3
