"""Worlds and presets: what they hold, and how what cannot be is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from lab.simulation import world
from lab.simulation.interference import BadInterferenceModel, InterferenceModel
from lab.simulation.world import BadWorld, Training, parse

SMALL = {"functions": [{"model": "bert"}], "gpus": [{"count": 2, "trainings": ["mobilenet/64", "vgg16/32"]}]}


def test_trainings_are_dealt_out_in_turn() -> None:
    found = parse(
        {
            "functions": [{"model": "bert"}],
            "gpus": [{"count": 3, "trainings": ["mobilenet/64", "none"]}, {"name": "mig", "sevenths": 3}],
        }
    )

    assert [(gpu.name, gpu.training, gpu.sevenths) for gpu in found.gpus] == [
        ("gpu0", Training(model="mobilenet", batch=64), 7),
        ("gpu1", None, 7),
        ("gpu2", Training(model="mobilenet", batch=64), 7),
        ("mig3", None, 3),
    ]


def test_a_function_is_specified_as_it_would_be_registered() -> None:
    found = parse(SMALL | {"functions": [{"model": "bert", "max_batch": 4}]})
    spec = found.spec(found.functions[0], 0)

    assert spec.profile.model == "bert/paper"
    assert list(spec.profile.run_s) == [1, 2, 4]
    assert spec.profile.run_s[1] == pytest.approx(0.037 * found.interference_model.p99)
    assert spec.profile.load_s == 2.6
    assert spec.deadline_s == pytest.approx(4 * 0.037 * found.interference_model.p99)


def test_a_training_counts_three_times_the_work_of_its_inference() -> None:
    """Forward, and a gradient of as many operations for the weights and for the inputs, grouped convolutions too."""
    for model, known in world.workloads().items():
        (_, training), (_, function) = (known[role]["flops"] for role in ("training", "function"))
        assert 2.8 < training / function < 3.2, model


@pytest.mark.parametrize("name", world.names())
def test_every_preset_is_sound(name: str) -> None:
    preset = world.load(name)

    assert preset.about and preset.policies and preset.trace
    # Without it nobody sees what the product's order and choice are worth.
    within = [policy for policy in preset.policies if policy.startswith("random-budget-")]
    assert bool(within) == ("random" in preset.policies)
    asked = {policy.rpartition("-")[2] for policy in within}
    assert asked == {"b5", "b10", "b20"} if name == "live" else asked <= {"b10"}
    for one in preset.worlds.values():
        assert len(one.functions) == {"budget": 4, "classes": 2, "small": 4, "live": 3, "overload": 3}.get(name, 8)


def test_fig14_is_what_it_says() -> None:
    """
    The six configurations of assumption A54, 16,000 requests a minute on 8 GPUs, a fifth of the pairs
    measured.
    """
    preset = world.load("fig14")

    assert list(preset.worlds) == [
        "mobilenet-same",
        "mobilenet-mix",
        "vgg16-same",
        "vgg16-mix",
        "roberta-same",
        "roberta-mix",
    ]
    for name, one in preset.worlds.items():
        assert len(one.gpus) == 8
        assert one.interference_model == InterferenceModel()
        assert (one.deadline, one.keep_warm, one.monitor_s) == ((1.0, 4.0), 1, 0.5)
        batches = [gpu.training.batch for gpu in one.gpus if gpu.training]
        assert batches == ([64] * 8 if name.endswith("same") else [16, 32, 64, 128] * 2)
        assert {gpu.training.model for gpu in one.gpus if gpu.training} == {name.split("-")[0]}
    assert preset.trace == {"kind": "azure", "rate_per_min": 16000, "seconds": 60}
    assert preset.predictor["fraction"] == 0.2
    assert preset.policies == ("smore", "elasticflow", "edf-util", "random", "random-budget-b10")


def test_the_repaired_figure_14_differs_from_the_first_in_pool_policies_and_closed_loop_alone() -> None:
    first, repaired = world.load("fig14"), world.load("fig14-paper")
    assert {
        name: replace(one, warm_share=0.3, burst=0.0, closed_loop=False, probe_share=0.0)
        for name, one in repaired.worlds.items()
    } == first.worlds
    assert {(one.warm_share, one.burst) for one in repaired.worlds.values()} == {(0.9, 1.5)}
    assert (repaired.trace, repaired.predictor) == (first.trace, first.predictor)
    assert set(repaired.policies) > set(first.policies)


def test_the_truth_of_a_preset_can_be_changed() -> None:
    changed = world.load("fig14", factors={"u": 1.3}, interference=False)

    for one in changed.worlds.values():
        assert not one.interference_model.interference
        assert one.interference_model.demands["training"]["deepfm"][0] == pytest.approx(0.22 * 1.3)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"gpus": []}, "gpus"),
        ({"functions": []}, "functions"),
        ({"functions": [{"model": "gpt"}]}, "functions[0].model"),
        ({"functions": [{"model": "bert", "bach": 1}]}, "functions[0].bach"),
        ({"functions": [{"model": "bert"}, {"model": "bert"}]}, "functions"),
        ({"functions": [{"model": "bert", "name": "No Name"}]}, "functions[0].name"),
        ({"functions": {"model": "bert"}}, "functions"),
        ({"gpus": [{"count": 0}]}, "gpus[0].count"),
        ({"gpus": [{"slots": 100}]}, "gpus[0].slots"),
        ({"gpus": [{"sevenths": 5}]}, "gpus[0].sevenths"),
        ({"gpus": [{"trainings": ["mobilenet"]}]}, "gpus[0].trainings[0]"),
        ({"gpus": [{"trainings": ["gpt/64"]}]}, "gpus[0].training"),
        ({"gpus": [{"trainings": ["vgg16/128"], "memory_mib": 8192}]}, "gpus[0].memory_mib"),
        ({"gpus": [{"memory_mib": 600}]}, "functions[0]"),
        ({"gpus": [{"trainings": ["bert/16"], "sevenths": 1}]}, "slice"),
        ({"deadline": [4, 1]}, "deadline"),
        ({"deadline": -1}, "deadline"),
        ({"truth": "nature"}, "truth"),
        ({"factors": {"speed": 2.0}}, "speed"),
        ({"failures": [{"gpu": "gpu9"}]}, "failures[0].gpu"),
        ({"monitor_s": 0}, "monitor_s"),
        ({"keep_warm": 1.5}, "keep_warm"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_an_impossible_world_names_the_field(changed: dict[str, object], field: str) -> None:
    with pytest.raises((BadWorld, BadInterferenceModel)) as refused:
        parse(SMALL | changed)

    assert refused.value.details["field"] == field


def test_presets_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BadWorld, match="'fig99' is not known; known are budget, classes, configurations, cpu-partition"
    ):
        world.load("fig99")
    with pytest.raises(BadWorld, match=r"preset: there is no file my/none\.yaml"):
        world.load("my/none.yaml")
    with pytest.raises(BadWorld, match=r"world\.keep_wram: unknown field; did you mean keep_warm\?"):
        parse(SMALL | {"keep_wram": 1}, "world")
    path = tmp_path / "mine.yaml"
    for document, field in (
        ({"world": SMALL, "trace": []}, "trace"),
        ({"world": SMALL, "tracer": {}}, "tracer"),
        ({"world": SMALL, "configurations": {"one": {"gpus": []}}}, "gpus"),
        ({"world": SMALL, "configurations": {"one": {"functions": [{"model": "x"}]}}}, "functions[0].model"),
        ({"world": SMALL, "configurations": ["one"]}, "configurations"),
    ):
        path.write_text(yaml.safe_dump(document))
        with pytest.raises(BadWorld) as refused:
            world.load(str(path))
        assert str(refused.value.details["field"]).endswith(field)
    path.write_text("world: [unclosed")
    with pytest.raises(BadWorld, match=r"mine\.yaml: not YAML"):
        world.load(str(path))
    path.write_text(yaml.safe_dump({"world": SMALL}))
    assert [gpu.name for gpu in world.load(str(path)).worlds[""].gpus] == ["gpu0", "gpu1"]
