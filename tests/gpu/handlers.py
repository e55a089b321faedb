"""Functions for the tests on a GPU. Each takes JSON values."""

from typing import Any, ClassVar

import torch

from smore.handler import Handler


class Sum(Handler):
    """The sum of so many ones, made on the device."""

    example: ClassVar = 1

    def load(self, device: str) -> None:
        self._device = device

    def predict(self, inputs: list[Any]) -> list[Any]:
        return [float(torch.ones(value, device=self._device).sum()) for value in inputs]


class Sticky(Sum):
    """As Sum; for a negative value it reads beyond the end of a tensor, after which the context is lost."""

    def predict(self, inputs: list[Any]) -> list[Any]:
        if min(inputs) < 0:
            table = torch.ones(4, device=self._device)
            return [float(table[torch.tensor([1_000_000], device=self._device)].sum())]
        return super().predict(inputs)


class Takes(Handler):
    """Holds so many MiB more of the device for as long as it lives; answers how many it holds."""

    example: ClassVar = 1

    def load(self, device: str) -> None:
        self._device = device
        self._held: list[torch.Tensor] = []

    def predict(self, inputs: list[Any]) -> list[Any]:
        for value in inputs:
            self._held.append(torch.zeros(value << 20, dtype=torch.uint8, device=self._device))
        return [sum(one.nbytes for one in self._held) >> 20 for _ in inputs]
