"""FLOPs by hand, and kernel profiles."""

import pytest
import torch
from torch import nn

from lab.measure import layers


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_flops_of_a_grouped_convolution_by_hand(kind: type[nn.Conv2d] | type[nn.ConvTranspose2d], groups: int) -> None:
    """
    Each of the 10 x 10 positions takes 8 / groups x 16 x 3 x 3 multiply-adds a row: once forward, once for the
    gradient of the input, once for that of the weights.
    """
    module = kind(8, 16, 3, padding=1, groups=groups)
    image = torch.ones(2, 8, 10, 10, requires_grad=True)
    counted = layers.table_iii(module, 2, lambda: module(image).sum().backward(), training=True)
    assert counted["flops"] == 3 * 2 * (2 * 10 * 10 * (8 // groups) * 16 * 3 * 3)


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
