"""Memory of the device: a function's bound holds, and who is to blame when there is none left."""

from collections.abc import Callable, Iterator

import pytest
import torch

from smore.domain.invocation import Cause
from tests.support.eventually import eventually
from tests.support.inference import ask
from worker.device.device import Device
from worker.runner.runner_handle import Runner, RunnerFailed


@pytest.fixture
def full() -> Iterator[None]:
    """The device is full but for less than a function's bound: somebody else has the rest."""
    free, _ = torch.cuda.mem_get_info()
    rest = torch.empty(max(0, free - (1500 << 20)), dtype=torch.uint8, device="cuda")
    yield
    del rest
    torch.cuda.empty_cache()


def test_what_it_declared_it_may_take_and_no_more(runner: Callable[..., Runner]) -> None:
    one = runner("Takes", memory_mib=1024)
    assert ask(one, b"700") == b"701"
    with pytest.raises(RunnerFailed) as failed:
        ask(one, b"700")
    assert failed.value.cause is Cause.OUT_OF_MEMORY


@pytest.mark.usefixtures("full")
def test_what_others_have_taken_is_not_its_fault(runner: Callable[..., Runner]) -> None:
    one = runner("Takes", memory_mib=4096)
    with pytest.raises(RunnerFailed) as failed:
        ask(one, b"3000")
    assert failed.value.cause is Cause.DEVICE_FULL


def test_nvml_tells_what_a_runner_holds(runner: Callable[..., Runner], device: Device) -> None:
    one = runner("Takes", memory_mib=1024)
    ask(one, b"600")
    if device.computing() is None:
        pytest.skip("process numbers here are not the machine's: NVML's cannot be told apart")
    held = eventually(lambda: device.process_memory_mib(one.pid), 30, "the runner's memory") or 0.0
    # What torch holds and the context, which is no tensor.
    assert held > 601
    context_mib = held - 601
    other = runner("Sum", memory_mib=1024)
    alone = eventually(lambda: device.process_memory_mib(other.pid), 30, "another runner's memory") or 0.0
    assert alone == pytest.approx(context_mib, rel=0.25, abs=64)
    one.end()
    eventually(lambda: device.process_memory_mib(one.pid) is None, 30, "the memory back")
