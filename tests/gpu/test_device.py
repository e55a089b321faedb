"""What a worker sees of its GPU."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from lab.measure.device import CudaGpu
from tests.support.eventually import eventually
from tests.support.inference import ask
from worker.device.device import Device
from worker.runner.runner_handle import Runner

BARE = "import torch; torch.zeros(1 << 28, device='cuda'); print('there', flush=True); input()"


def test_the_device_is_well_and_what_torch_says_it_is(device: Device) -> None:
    assert device.health() == ""
    assert device.description == torch.cuda.get_device_name(0)
    total_mib = torch.cuda.get_device_properties(0).total_memory / 2**20
    assert device.memory_total_mib == pytest.approx(total_mib, rel=0.02)


def test_a_process_that_nobody_registered_is_seen_and_its_end_too(device: Device) -> None:
    if device.computing() is None:
        pytest.skip("process numbers here are not the machine's")
    with subprocess.Popen(
        [sys.executable, "-c", BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as bare:
        assert bare.stdout is not None
        assert bare.stdout.readline() == "there\n"
        held = eventually(lambda: (device.computing() or {}).get(bare.pid), 30, "the process")
        assert held == 0 or held > 1024, "NVML gives its memory or none"
        bare.communicate("\n")
    eventually(lambda: bare.pid not in (device.computing() or {}), 30, "its end")


def test_three_runners_of_one_zygote_open_the_device_at_the_same_time(runner: Callable[..., Runner]) -> None:
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: runner("Sum"), range(3)))
    assert [ask(one, b"5") for one in made] == [b"5.0"] * 3


def test_the_profilers_counters_see_work() -> None:
    gpu = CudaGpu(0)
    matrix = torch.randn(4096, 4096, device="cuda")
    watch = gpu.watch([])
    for _ in range(200):
        matrix @ matrix
    torch.cuda.synchronize()
    usage = watch.usage()
    if gpu.place.counter == "gpm-sm-util":
        assert usage.total is not None
        assert usage.total > 0
    told = gpu.counters(0)
    assert set(told) <= {"power_limit_w", "sm_clock_mhz", "process_memory_bytes"}
    assert "power_limit_w" in told
