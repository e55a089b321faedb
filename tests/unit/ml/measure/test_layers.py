"""Kernel profiles."""

import pytest
import torch

from ml.measure import layers


def test_copies_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        cpu_children = ()

        def __init__(self, name: str, us: float) -> None:
            self.name, self.device_time_total = name, us

    class Profiled:
        def __init__(self, **_: object) -> None: ...

        def __enter__(self) -> "Profiled":
            return self

        def __exit__(self, *_: object) -> None: ...

        def events(self) -> list[Event]:
            copies = [Event("Memcpy HtoD (Pageable -> Device)", 5000.0), Event("Memset (Device)", 2.0)]
            return [*copies, *(Event("ampere_sgemm", us) for us in (10.0, 20.0, 30.0))]

    monkeypatch.setattr("torch.profiler.profile", Profiled)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert layers.kernel_profile(lambda: None, cuda=True) == {"per_run": 1.0, "mean_us": 20.0, "longest_us": 30.0}
