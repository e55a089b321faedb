"""
The third state: parked in host memory instead of let go of, and back, with runners that are no processes and weights
that are.
"""

import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn

from smore.domain.invocation import Cause
from smore.messages.reports import ParkedInstance
from smore.process.settings import Settings, WorkerSettings
from tests.support.eventually import eventually
from tests.support.pool_stage import Host, lifecycle_events
from worker import frames
from worker.app import Worker
from worker.device.device import CpuPartition
from worker.runner import weights
from worker.runner.runner_handle import Runner, RunnerFailed
from worker.runner.weights import NotParked, Weights


def test_what_is_let_go_of_is_parked_and_comes_back_by_its_next_load() -> None:
    stage = Host()
    stage.run("a")
    stage.offload("a")
    assert (stage.said, stage.warm(), stage.pool.status.memory_used_mib()) == (["park 1"], [], 10.0)
    # Its process is one of ours still.
    assert stage.pool.status.runners() == [1]
    seat = stage.run("a")
    assert (stage.said, seat.cold, seat.instance.phases, len(stage.made)) == (
        ["park 1", "restore 1"],
        True,
        {"process": 0.0, "host": 3.0},
        1,
    )
    assert (stage.warm(), stage.pool.status.memory_used_mib()) == (["a"], 100.0)
    second, first = lifecycle_events(stage).values()
    assert (first.why, first.host, second.why, second.host, second.outcome) == ("parked", 0, "", 1, "cold")


def test_the_keep_alive_ends_in_host_memory_and_that_ends_too() -> None:
    stage = Host()
    stage.run("a", keep_alive_s=5.0)
    stage.now += 5.0
    stage.pool.upkeep.round()
    assert (stage.said, stage.warm()) == (["park 1"], [])
    stage.now += 599.0
    stage.pool.upkeep.round()
    assert stage.pool.status.runners() == [1]
    stage.now += 1.0
    stage.pool.upkeep.round()
    assert (stage.pool.status.runners(), stage.made[0].ended.is_set(), stage.pool.status.memory_used_mib()) == (
        [],
        True,
        0.0,
    )


def test_host_memory_is_bounded_and_the_oldest_goes() -> None:
    stage = Host(host_mib=160.0)
    for name in "abc":
        stage.run(name)
        stage.offload(name)
    assert stage.pool.status.runners() == [2, 3]
    assert stage.made[0].ended.is_set()
    small = Host(host_mib=79.0)
    small.run("a")
    small.offload("a")
    assert (small.pool.status.runners(), small.made[0].ended.is_set()) == ([], True)


def test_nothing_is_parked_unless_it_is_asked_for() -> None:
    stage = Host(host_mib=0.0)
    stage.run("a")
    stage.offload("a")
    assert (stage.said, stage.made[0].ended.is_set()) == ([], True)


def test_a_handler_that_names_nothing_is_asked_once() -> None:
    stage = Host()
    stage.refused = RunnerFailed("handler_error", "NotParked")  # type: ignore[arg-type]
    stage.run("a")
    stage.offload("a")
    assert stage.made[0].ended.is_set()
    stage.refused = None
    stage.run("a")
    stage.offload("a")
    assert (stage.said, stage.pool.status.runners()) == ([], [])


def test_what_cannot_be_restored_is_loaded_anew() -> None:
    stage = Host()
    stage.run("a")
    stage.offload("a")
    stage.broken = True
    seat = stage.run("a")
    assert (seat.instance.phases, len(stage.made), stage.pool.status.runners()) == (
        {"process": 0.0, "import": 1.0},
        2,
        [2],
    )


def test_a_parked_process_gives_way_to_loads_and_to_training() -> None:
    stage = Host()
    stage.run("a")
    stage.offload("a")
    for name in "bc":
        stage.acquire(name)
    # 10 MiB too many for a third one.
    assert stage.pool.status.runners() == [2, 3, 1]
    stage.acquire("d")
    assert (stage.pool.status.runners(), stage.made[0].ended.is_set()) == ([2, 3, 4], True)

    stage = Host()
    stage.run("a")
    stage.offload("a")
    stage.jobs_mib = stage.owed_mib = 295.0
    stage.pool.relieve()
    eventually(lambda: stage.pool.status.runners() == [], what="its end")


def test_a_report_names_what_is_parked_and_until_when() -> None:
    stage = Host()
    stage.run("a")
    assert stage.pool.status.parked() == []
    stage.offload("a")
    stage.now += 100.0
    (told_,) = stage.pool.status.parked()
    assert told_ == ParkedInstance(function="p/a", revision=1, memory_mib=10.0, host_mib=80.0, left_s=500.0)
    stage.run("a")
    assert stage.pool.status.parked() == []


def test_what_a_load_is_about_to_take_is_not_told_of_any_more() -> None:
    stage = Host()
    stage.run("a")
    stage.offload("a")
    seen = []
    take = stage.parked.take
    stage.parked.take = lambda key: (seen.append(stage.pool.status.parked()), take(key))[1]  # type: ignore[func-returns-value,method-assign]
    stage.run("a")
    assert seen == [[]]


def test_what_is_to_be_gone_is_not_parked_and_leaves_host_memory() -> None:
    stage = Host()
    stage.run("a")
    stage.offload("a")
    stage.acquire("a")
    stage.run("b")
    stage.offload("b")
    stage.run("b")
    stage.pool.offload("p/b", 1, gone=True)
    assert (stage.said[-1], stage.made[1].ended.is_set(), stage.pool.status.parked()) == ("restore 2", True, [])
    stage.run("c")
    stage.offload("c")
    stage.pool.offload("p/c", 1, gone=True)
    assert (stage.made[2].ended.is_set(), stage.pool.status.parked()) == (True, [])


def test_what_a_load_comes_out_of_is_part_of_what_it_needs() -> None:
    """Of 300 MiB two others hold 200: the 10 MiB that the parked process has are among its 100."""
    stage = Host()
    stage.run("a")
    stage.offload("a")
    for name in "bc":
        stage.acquire(name)
    stage.run("a")
    assert stage.said[-1] == "restore 1"


def test_one_that_dies_in_host_memory_is_gone() -> None:
    stage = Host()
    stage.run("a")
    stage.offload("a")
    stage.made[0].ended.set()
    stage.pool.exited(stage.made[0])  # type: ignore[arg-type]
    assert stage.pool.status.runners() == []
    stage.run("a")
    stage.pool.close()
    assert all(runner.ended.is_set() for runner in stage.made)


def test_closing_ends_what_is_parked() -> None:
    stage = Host()
    stage.run("a")
    stage.offload("a")
    stage.pool.close()
    assert stage.made[0].ended.is_set()


# ---- the weights -----------------------------------------------------------------------------------------------------


def test_without_a_device_there_is_nothing_to_give_back() -> None:
    module = nn.Linear(4, 2)
    before = module.weight.data_ptr()
    for modules, words in (((), "names no modules"), ((module,), "no CUDA device"), ((nn.ReLU(),), "no CUDA device")):
        with pytest.raises(NotParked, match=words):
            Weights(modules).park()
    assert module.weight.data_ptr() == before


def test_a_runner_says_that_it_cannot() -> None:
    """Over the socket, in a process of its own; it goes on serving."""
    ours, theirs = socket.socketpair()
    code = (
        "import socket, sys; from worker.runner.runner import *; serve(Channel(socket.socket(fileno=int(sys.argv[1]))))"
    )
    argv = [sys.executable, "-c", code, str(theirs.fileno())]
    with (
        ours,
        subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL) as process,
        ExitStack() as ends,
    ):
        ends.callback(process.kill)
        theirs.close()
        runner = Runner(process.pid, ours, lambda pid, number: process.send_signal(number))
        results = frames.Results(one=100, together=100)
        loaded = runner.load(
            frames.Load(entrypoint="zoo.echo:Function", device="cpu", memory_mib=2000.0, label="echo", results=results),
            30.0,
        )
        assert list(loaded.phases) == ["import", "weights", "first_run"]
        with pytest.raises(RunnerFailed, match="names no modules"):
            runner.park(30.0)
        item = frames.Item(encoding="json", accept="json", rows=1, length=2)
        ran = runner.predict([item], [b"[]"], "", 30.0)
        assert (ran.answers[0].form, ran.results) == ("json", [b"[]"]) and ran.run_s > 0


def test_a_tensor_that_two_modules_share_is_moved_once() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    norm = nn.BatchNorm1d(4)
    found = list(Weights((first, second, norm, first))._tensors())
    assert len(found) == len({id(tensor) for tensor in found}) == 3 + 2 + 3
    assert all(isinstance(tensor, torch.Tensor) for tensor in found)


class Registry:
    """The part of torch.cuda that pins pages, on a machine without a GPU."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.pinned: dict[int, int] = {}
        patch.setattr(weights, "_DEVICE", "cpu")
        patch.setattr(torch.cuda, "cudart", lambda: self)
        for name in ("synchronize", "empty_cache", "check_error"):
            patch.setattr(torch.cuda, name, lambda *_: None)

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> None:
        self.pinned[address] = size

    def cudaHostUnregister(self, address: int) -> None:
        del self.pinned[address]


def test_weights_lie_in_one_block_of_their_size_which_goes_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own pinned memory is a power of two for each tensor, and stays pinned."""
    registry = Registry(monkeypatch)
    first: Any = nn.Conv2d(3, 5, 3)
    module: Any = nn.Sequential(
        first.to(memory_format=torch.channels_last), nn.BatchNorm2d(5), nn.Linear(1000, 1100).bfloat16()
    )
    module.register_buffer("parts", torch.arange(40).reshape(4, 10)[::2, ::3])
    module.register_buffer("none", torch.empty(0, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    kept = Weights((module,))
    size = sum(tensor.nbytes for tensor in before.values())
    host_mib = kept.park()
    assert list(registry.pinned.values()) == [host_mib * weights.MIB] and size <= host_mib * weights.MIB < size + 8192
    (address,) = registry.pinned
    strides = module[0].weight.stride()
    assert strides == before["0.weight"].stride() and strides != module[0].weight.contiguous().stride()
    assert all(
        address <= tensor.data_ptr() <= address + size + 8192
        for tensor in module.state_dict().values()
        if tensor.numel()
    )
    kept.restore()
    assert registry.pinned == {}
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_host_without_memory_for_weights_leaves_them_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    Registry(monkeypatch)
    module = nn.Linear(4, 2)
    before = module.weight.data_ptr()

    def full(*_: object, **__: object) -> object:
        raise OSError("no memory")

    monkeypatch.setattr("worker.runner.weights.mmap.mmap", full)
    with pytest.raises(MemoryError, match="has no"):
        Weights((module,)).park()
    assert module.weight.data_ptr() == before


def test_want_of_memory_does_not_make_a_handler_one_that_cannot_be_parked() -> None:
    stage = Host()
    stage.refused = RunnerFailed(Cause.OUT_OF_MEMORY, "the host has none")
    stage.run("a")
    stage.offload("a")
    assert stage.made[0].ended.is_set()
    stage.refused = None
    stage.run("a")
    stage.offload("a")
    assert stage.said == ["park 2"]


def test_a_cpu_partition_refuses_to_park() -> None:
    with pytest.raises(ValueError, match="no device memory that parking would give back"):
        Worker(Settings(worker=(own := WorkerSettings(host_mib=100.0))), None, CpuPartition(own))  # type: ignore[arg-type]
